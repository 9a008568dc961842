"""Answers one question of a page in a process of its own, whose memory and time are bounded.

SQL of a user may ask for any memory: the limit of the database counts neither texts nor what comes
out. So the system bounds the process, and whoever started it ends it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.core.text import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.api.checkpoint import Checkpoint

MOST_BYTES = 2 << 30
"""Memory of the process, of which the package and its libraries take a part."""
MOST_SECONDS = 30
_OF_MEMORY = re.compile("memory|alloc|thread", re.IGNORECASE)
"""In the last words of a process that had too little memory; or a signal ended it."""


def answer(
    checkpoint: Checkpoint, storage_options: Mapping[str, str], question: str, **text: str
) -> dict[str, Any]:
    """Answer a question.

    Args:
        checkpoint: The checkpoint.
        storage_options: How it is reached.
        question: `sql` or `key`.
        text: Arguments of `answers.run_sql` or `answers.follow_key`.

    Returns:
        What they return; where they raise only `problem`, the text of the error.

    Raises:
        InvalidArgumentError: It needs more time or memory than it may, and was ended.
    """
    asked = {
        "uri": checkpoint.uri,
        "storage_options": dict(storage_options),
        "question": question,
        "text": text,
    }
    command = [sys.executable, "-m", "statestore.ui.asked"]
    try:
        done = subprocess.run(
            command,
            # Else the directory that this process was started in comes before the packages.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidArgumentError(
            "the question takes longer than it may",
            timeout_s=MOST_SECONDS,
            to_fix="ask for fewer rows, by the columns of the key; or run `statestore sql`",
        ) from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if done.returncode > 0 and not _OF_MEMORY.search(last):
            raise InvalidArgumentError(
                "the process that answers questions failed",
                status=done.returncode,
                error=last,
                to_fix="run `statestore sql` or `statestore read`, which tell more",
            )
        raise InvalidArgumentError(
            "the question needs more memory than it may take",
            memory_bytes=MOST_BYTES,
            status=done.returncode,
            to_fix="select fewer columns and rows at once, or run `statestore sql`",
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _bound_memory() -> None:
    # Imported here because not every system has it.
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer the question that stands on the input, as JSON."""
    _bound_memory()
    asked = json.load(sys.stdin)
    from statestore.api.checkpoint import Checkpoint
    from statestore.core.clock import SystemClock
    from statestore.ui.answers import follow_key, run_sql

    checkpoint = Checkpoint(asked["uri"], storage_options=asked["storage_options"])
    text = asked["text"]
    try:
        if asked["question"] == "sql":
            found = run_sql(checkpoint, **text)
        else:
            found = follow_key(checkpoint, clock=SystemClock(), **text)
    except StateStoreError as error:
        found = {"problem": str(error)}
    sys.stdout.write(to_json(found))


if __name__ == "__main__":
    main()
