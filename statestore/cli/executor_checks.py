"""What `statestore doctor --spark-submit` runs on an executor, in the Python of its engines.

It comes there as an archive with the package, is called with a file of JSON, and prints JSON. It
imports the rest late: what that needs may be missing here.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statestore.core.version import MIN_PYTHON

_OTHER = "name one of 3.11 or later by spark.pyspark.python"
_SHIM = "io/statestore/version"
"""Entry of a jar that the shim's has, and no other."""
_SPREAD_S = 1.0
"""How long a task that has nothing to do keeps its place, so that others go to other executors."""


def main(asked: str, executor: str) -> None:
    """Check this machine, unless another task of the same executor does, and print the outcome.

    Args:
        asked: A JSON file, deleted when it was read, since it may have secrets: `application`, an
            ID; `directory`, where Spark has put the files of the application; `jars`, paths of
            jars; `backend`, `storage` and `options`, as `Diagnosis` has them.
        executor: Tells it from others of its host.
    """
    try:
        request = json.loads(Path(asked).read_text())
        of = f"{request['application']}-{executor}"
        Path(request["directory"], f"statestore-doctor-{of}").touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        time.sleep(_SPREAD_S)
        return
    Path(asked).unlink()
    answer = {"executor": executor, "host": socket.gethostname(), "checks": _check(request)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _check(request: dict[str, Any]) -> list[dict[str, str]]:
    if sys.version_info < MIN_PYTHON:
        version = ".".join(map(str, sys.version_info[:3]))
        return _failed(f"the Python of the engines is too old: {version}, {sys.executable}", _OTHER)
    try:
        from statestore.api.reaching import Reach
        from statestore.cli.diagnosis import Check, Diagnosis
        from statestore.io.storage import is_hadoop
    except ImportError as error:
        fix = f"{sys.executable} -m pip install pyarrow numpy google-crc32c, on every executor"
        return _failed(f"packages that an engine imports are missing: {error}", fix)
    storage = request["storage"]
    has_own_way = storage is not None and is_hadoop(storage)
    tried = None if has_own_way else storage
    reach = Reach(tried or tempfile.gettempdir(), request["options"], None)
    diagnosis = Diagnosis(request["backend"], tried, sys.executable, reach.place.options)
    with reach.using():
        checks = list(diagnosis.run_on_executor(_find_jar(request["directory"], request["jars"])))
    if has_own_way:
        checks.append(Check("storage", "skip", "not tried: executors open it by Hadoop's client"))
    return [asdict(check) for check in checks]


def _failed(detail: str, to_fix: str) -> list[dict[str, str]]:
    return [{"name": "python", "status": "fail", "detail": detail, "to_fix": to_fix}]


def _find_jar(directory: str, jars: list[str]) -> str | None:
    """Return the jar of the shim that this executor was given; None where it has none."""
    for path in [*map(Path, jars), *Path(directory).glob("*.jar")]:
        try:
            with zipfile.ZipFile(path) as jar:
                jar.getinfo(_SHIM)
        except (OSError, zipfile.BadZipFile, KeyError):
            continue
        return str(path.resolve())
    return None
