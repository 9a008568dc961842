"""Runs a command once on every executor of an application: a program for spark-submit.

`on_executors.py RESULT ARCHIVE REQUEST`: the Python of the engines runs the archive there, with the
file of the request, completed by what only the application knows, and the process ID of the
executor. It is a child of the executor, as an engine is, and needs no Python worker of
Spark's. The request may have secrets of the storage, so it is no argument, which every user of a
machine can read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statestore.core.providers import PROVIDER_KEY, PROVIDERS, REAL_TIME_KEY

_ROUNDS = 5
_TASKS_A_CORE = 2
_FAILED = (
    r"{\"executor\": \"$PPID\", \"host\": \"$(hostname)\", \"exit\": $status, "
    r"\"python\": \"$python\"}"
)
# As the shim chooses, but for an environment that pyspark is in: the first that is there.
_SCRIPT = (
    'named=$1; shift; for python in "$named" "$PYSPARK_PYTHON"; do case $python in '
    '*/*) [ -x "$python" ];; ?*) true;; *) false;; esac && break; python=; done; '
    ': "${python:=${named:-${PYSPARK_PYTHON:-python3}}}"; '
    # The request may have secrets; a Python that starts deletes it.
    f'"$python" "$@" "$PPID" || {{ status=$?; rm -f "$2"; echo "{_FAILED}"; }}'
)


def main(result: str, archive: str, asked: str) -> None:
    """Write to a file, as JSON, what the executors answer.

    Args:
        result: The file; has `answers`, what each printed; `executors`, how many there are, also
            those that ran no task.
        archive: What is run.
        asked: A file with the request; its `backend` may be null for that of the application.
    """
    session = SparkSession.builder.appName("statestore doctor").getOrCreate()
    context = session.sparkContext
    context.addFile(archive)
    conf = dict(context.getConf().getAll())
    jvm: Any = session._jvm  # noqa: SLF001
    is_in_driver = conf["spark.master"].partition("[")[0] == "local"
    directory = jvm.org.apache.spark.SparkFiles.getRootDirectory() if is_in_driver else "."
    provider = conf.get(PROVIDER_KEY) or conf.get(REAL_TIME_KEY)
    request = json.loads(Path(asked).read_text())
    request["backend"] = request["backend"] or next(
        (name for name, of in PROVIDERS.items() if of == provider), None
    )
    request |= {"application": context.applicationId, "directory": directory, "jars": _jars(conf)}
    python = conf.get("spark.pyspark.python", "")
    Path(asked).write_text(json.dumps(request))
    context.addFile(asked)
    there = [f"{directory}/{Path(path).name}" for path in (archive, asked)]
    command = ["sh", "-c", _SCRIPT, "sh", python, *there]

    java: Any = context._jsc  # noqa: SLF001
    number = context.defaultParallelism * _TASKS_A_CORE
    answers: list[dict[str, Any]] = []
    executors = 1
    for _ in range(_ROUNDS):
        # Tasks of the JVM; those of an executor that has answered only keep their place a while.
        tasks = java.parallelize(list(range(number)), number)
        answers += [json.loads(line) for line in tasks.pipe(command).collect()]
        known = len(java.sc().statusTracker().getExecutorInfos())
        executors = 1 if is_in_driver else known - 1  # one is the driver
        if len(_unique(answers)) >= executors:
            break
    report = {"answers": _unique(answers), "executors": executors}
    Path(result).write_text(json.dumps(report))
    session.stop()


def _unique(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one answer of each executor: a Python that cannot be run leaves no sign behind."""
    return list({(answer["host"], answer["executor"]): answer for answer in answers}.values())


def _jars(conf: dict[str, str]) -> list[str]:
    """Return jars that may lie on the executors' machines, by their paths there."""
    listed = conf.get("spark.jars", "").split(",")
    listed += conf.get("spark.executor.extraClassPath", "").split(":")
    paths = (jar.removeprefix("local:").removeprefix("file:") for jar in listed)
    return ["/" + path.lstrip("/") for path in paths if path.startswith("/")]


if __name__ == "__main__":
    main(*sys.argv[1:])
