"""What operations cost where there are many state partitions and files, but hardly a row.

    $ python -m benchmarks.metadata [--partitions 1000,10000] [--versions 10]

For each number of state partitions the state of one operator is committed version by version, a
file each; it is real in all but its rows. Every operation is then measured alone: seconds of CPU
and of the clock, and requests by kind, counted where they reach the storage, which is the local
disk. Operations that make something new make it in a directory of its own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statestore.io.local import LocalFileIO
from statestore.io.place import Place
from statestore.operations.checkpoint import OpenCheckpoint, open_checkpoint
from statestore.operations.rescale.rescale import rescale, undo_rescale
from statestore.operations.savepoint.branch import decide_branch
from statestore.operations.upkeep.expire import expire
from statestore.operations.upkeep.survey import list_versions
from statestore.operations.upkeep.verify import verify
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS

KINDS = {
    "read_tail": "get",
    "read_range": "get",
    "fetch": "get",
    "fetch_slices": "get",
    "write": "put",
    "publish": "put",
    "link": "copy",
    "list": "list",
    "list_tree": "list",
    "list_directories": "list",
    "delete": "delete",
    "delete_files": "delete",
}
"""What a call to the local disk would ask of an object store."""
SHOWN = ("get", "put", "copy", "list", "delete")
PAGE = 1_000
"""Names that one request lists on S3."""
LISTED_VERSIONS = 1
KEPT_VERSIONS = 2


_call = threading.local()
"""Of this thread: whether a call is under way, whose own calls are not counted."""


class CountingDisk(LocalFileIO):
    """The local disk, with its calls counted by kind; not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()


def _counted(name: str, kind: str) -> Callable[..., Any]:
    method = getattr(LocalFileIO, name)

    def call(self: CountingDisk, *args: Any, **named: Any) -> Any:
        if "sync" in named:
            named["sync"] = False
        is_outermost = not getattr(_call, "is_under_way", False)
        _call.is_under_way = True
        try:
            found = method(self, *args, **named)
        finally:
            _call.is_under_way = not is_outermost
        if is_outermost:
            with self.lock:
                self.requests[kind] += 1 + len(found) // PAGE if name == "list_tree" else 1
        return found

    return call


for _name, _kind in KINDS.items():
    setattr(CountingDisk, _name, _counted(_name, _kind))


def main() -> int:
    """Measure and print a table for each number of state partitions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--partitions", default="1000,10000", help="separated by commas")
    parser.add_argument("--versions", type=int, default=10, help="versions, a file each")
    arguments = parser.parse_args()
    for num_partitions in map(int, arguments.partitions.split(",")):
        work = Path(tempfile.mkdtemp(prefix="statestore-metadata-"))
        try:
            _measure(work, num_partitions, arguments.versions)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def _measure(work: Path, num_partitions: int, versions: int) -> None:
    io = CountingDisk()
    path = str(work / "checkpoint")
    _say(f"\n{num_partitions:,} state partitions, {num_partitions * versions:,} state files\n")
    _say(f"| operation | CPU s | s | {' | '.join(SHOWN)} |\n|---|{'---:|' * (2 + len(SHOWN))}")

    def line(title: str, operation: Callable[[], object]) -> None:
        io.requests.clear()
        cpu, clock = time.process_time(), time.perf_counter()
        operation()
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        counts = " | ".join(f"{io.requests[kind]:,}" for kind in SHOWN)
        _say(f"| {title} | {cpu:.1f} | {clock:.1f} | {counts} |")

    def opened(operation: Callable[[OpenCheckpoint], object]) -> Callable[[], None]:
        def run() -> None:
            with open_checkpoint(_place(path, io)) as checkpoint:
                operation(checkpoint)

        return run

    line(f"{versions} batches", lambda: _commit(work, path, num_partitions, versions, io))
    line("list", opened(lambda checkpoint: list_versions(checkpoint, limit=LISTED_VERSIONS)))
    line("verify", opened(verify))
    line("branch", opened(lambda it: decide_branch(it, _place(str(work / "branch"), io)).run()))
    shutil.rmtree(work / "branch")
    line(
        "dry run of a rescale to twice",
        opened(lambda it: rescale(it, 2 * num_partitions, dry_run=True)),
    )
    line("rescale to twice", opened(lambda checkpoint: rescale(checkpoint, 2 * num_partitions)))
    line("undo it", opened(undo_rescale))
    line(f"expire, {KEPT_VERSIONS} stay", opened(lambda it: expire(it, KEPT_VERSIONS)))


def _place(path: str, io: CountingDisk) -> Place:
    return Place(path, io=io)


def _commit(work: Path, path: str, num_partitions: int, versions: int, io: CountingDisk) -> None:
    scratch = work / "scratch"
    scratch.mkdir()
    made = MadeCheckpoint(
        path,
        scratch,
        num_partitions,
        operators=OPERATORS[:1],
        io=io,
        checkpoint_format=2,
        options={"snapshot_replay_ratio": 100},
    )
    for version in range(versions):
        made.run_batch({version: version})
    shutil.rmtree(scratch)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
