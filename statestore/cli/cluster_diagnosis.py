"""`statestore doctor --spark-submit`: the checks of one machine, on every executor of a cluster."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statestore
from statestore.cli.diagnosis import Check
from statestore.core.errors import InvalidArgumentError, NotFoundError, ProtocolError
from statestore.io.local import temporary_directory
from statestore.io.spark_home import find_spark_home

_PACKAGE = Path(statestore.__file__).parent
_PROGRAM = _PACKAGE / "spark" / "on_executors.py"
_MAIN = "import sys\nfrom statestore.cli.executor_checks import main\nmain(*sys.argv[1:])\n"
_LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class ExecutorChecks:
    """What was checked on an executor.

    Attributes:
        host: Its machine.
        executor: Process ID of the executor there.
        checks: A `Check` each.
    """

    host: str
    executor: str
    checks: list[Check]


def check_executors(
    arguments: str, backend: str | None, storage: str | None, options: Mapping[str, str]
) -> list[ExecutorChecks]:
    """Return the checks of every executor of an application, sorted by host.

    The application is started here, its driver in client mode, and ends.

    Args:
        arguments: What a query is submitted with, but for the program, as a shell reads it.
        backend: heap, filesystem or rocksdb; None for that of the arguments, if they name one.
        storage: URI that every executor must be able to write; None to leave that out.
        options: How the storage is reached.

    Raises:
        InvalidArgumentError: The arguments are no words of a shell.
        NotFoundError: There is no Spark here.
        ProtocolError: The application failed, or an executor did not answer.
    """
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise InvalidArgumentError(
            "the arguments of spark-submit cannot be read",
            arguments=arguments,
            error=str(error),
            to_fix="quote them as in a shell",
        ) from error
    home = find_spark_home()
    if home is None:
        raise NotFoundError(
            "no Spark is installed to submit with",
            searched="SPARK_HOME, pyspark",
            to_fix="pip install 'statestore[spark]', or name it by SPARK_HOME",
        )
    request = {"backend": backend, "storage": storage, "options": dict(options)}
    with temporary_directory() as directory:
        archive, result = Path(directory, "statestore-doctor.zip"), Path(directory, "result.json")
        # It may have secrets, as no argument should.
        asked = Path(directory, "statestore-doctor.json")
        asked.write_text(json.dumps(request))
        _pack(archive)
        command = [
            *(str(home / "bin" / "spark-submit"), *words, "--deploy-mode", "client"),
            *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
            *(str(_PROGRAM), str(result), str(archive), str(asked)),
        ]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(_PACKAGE.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not result.exists():
            lines = (done.stdout + done.stderr).splitlines()[-_LAST_LINES:]
            raise ProtocolError(
                "the application that asks the executors failed",
                exit_code=done.returncode,
                output="\n".join(lines),
                to_fix="correct the arguments of --spark-submit: they are those of the query",
            )
        report = json.loads(result.read_text())
    found = [_read(answer) for answer in report["answers"]]
    if len(found) < report["executors"]:
        raise ProtocolError(
            "some executors ran no task",
            executors=report["executors"],
            answered=", ".join(sorted(checks.host for checks in found)),
            to_fix="try again when the cluster is less busy",
        )
    return sorted(found, key=lambda checks: (checks.host, checks.executor))


def _pack(archive: Path) -> None:
    """Make an archive that Python runs, with the package, without its jars."""
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("__main__.py", _MAIN)
        for path in sorted(_PACKAGE.rglob("*.py")):
            packed.write(path, path.relative_to(_PACKAGE.parent))


def _read(answer: dict[str, Any]) -> ExecutorChecks:
    if "exit" in answer:
        check = Check(
            "python",
            "fail",
            f"the Python of the engines cannot be run: python={answer['python']!r}, "
            f"exit={answer['exit']}; more is in the executor's stderr",
            "name one by spark.pyspark.python that is on every executor",
        )
        return ExecutorChecks(answer["host"], answer["executor"], [check])
    checks = [Check(**fields) for fields in answer["checks"]]
    return ExecutorChecks(answer["host"], answer["executor"], checks)
