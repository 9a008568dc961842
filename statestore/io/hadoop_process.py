"""Hadoop's file systems where no Spark runs: a JVM of this process, started when it is needed.

spark-submit starts it, so that it has what a query of this machine has: the Hadoop configuration of
HADOOP_CONF_DIR and of spark-defaults.conf (`spark.hadoop.*`), and the jars named there.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from statestore.core.errors import NotFoundError, StorageError
from statestore.io.shim_files import ShimFiles
from statestore.io.shim_jar import find_jar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.io.hadoop import HadoopFiles

MAIN_CLASS = "io.statestore.engine.HadoopProcess"
_HADOOP = "spark.hadoop."
HADOOP_PREFIXES = (_HADOOP, "spark.jars")
"""How the keys begin that a Spark configuration has for Hadoop's file systems."""
_READY = "READY "
_END_TIMEOUT_S = 10.0
_NUM_LINES = 5


class HadoopProcess:
    """HadoopFiles of a JVM of its own, which is started by the first request. Thread-safe.

    It ends with `close`, and with this process, however that ends.

    Args:
        conf: Spark configuration that spark-defaults.conf does not have: `spark.hadoop.*`, which
            may be secret, and what names jars, such as `spark.jars`.
    """

    def __init__(self, conf: Mapping[str, str] | None = None) -> None:
        self._conf = dict(conf or {})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._files: ShimFiles | None = None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles.

        Raises:
            NotFoundError: Spark or the jar is not there.
            StorageError: The JVM does not start.
        """
        with self._lock:
            if self._files is None:
                self._files = self._start()
        return self._files.ask(op, **arguments)

    def close(self) -> None:
        """End the JVM if it was started; the next request starts another."""
        with self._lock:
            files, self._files = self._files, None
            process, self._process = self._process, None
        if files is not None:
            files.close()
        if process is not None:
            atexit.unregister(self.close)
            _end(process)

    def _start(self) -> ShimFiles:
        hadoop = {key: value for key, value in self._conf.items() if key.startswith(_HADOOP)}
        command = [str(find_spark_submit()), "--master", "local[1]", "--class", MAIN_CLASS]
        for key in self._conf.keys() - hadoop.keys():
            command += ["--conf", f"{key}={self._conf[key]}"]
        command.append(str(find_jar()))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # Ctrl-C reaches the group; what it interrupts still has files to put in order.
                start_new_session=True,
            )
            try:
                found = _handshake(process, hadoop)
            except BaseException:
                _end(process)
                raise
            if found is None:
                _end(process)
                stderr.seek(0)
                raise StorageError(
                    "the JVM for Hadoop's file systems does not start",
                    command=" ".join(command[:1] + command[-2:]),
                    status=process.returncode,
                    reason=" | ".join(stderr.read().splitlines()[-_NUM_LINES:]),
                    to_fix="mend what the reason names; `statestore doctor` checks Java, Spark "
                    "and the jar",
                )
        self._process = process
        atexit.register(self.close)
        return ShimFiles(found["port"], found["token"])


def find_spark_submit() -> Path:
    """Return the path of spark-submit: of SPARK_HOME, or else of the pyspark of this Python.

    Raises:
        NotFoundError: There is neither.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = find_spec("pyspark")
        home = os.path.dirname(found.origin) if found is not None and found.origin else ""
    submit = Path(home, "bin", "spark-submit")
    if not home or not submit.is_file():
        raise NotFoundError(
            "Hadoop's file systems are opened by Spark, which is not there",
            kind="file-not-found",
            spark_submit=str(submit) if home else None,
            to_fix="pip install 'statestore[spark]', or set SPARK_HOME to a Spark",
        )
    return submit


def _handshake(process: subprocess.Popen[str], hadoop: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what the JVM says of itself once it serves, None when it ends before."""
    try:
        _pipe(process.stdin).write(f"{json.dumps(hadoop)}\n")
        _pipe(process.stdin).flush()
    except BrokenPipeError:
        return None
    for line in _pipe(process.stdout):
        if line.startswith(_READY):
            return dict(json.loads(line.removeprefix(_READY)))
    return None


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(BrokenPipeError):
        _pipe(process.stdin).close()
    _pipe(process.stdout).close()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # noqa: S101 (asked for when the process was started)
    return pipe


_PROCESS = HadoopProcess()
_IN_USE: ContextVar[HadoopFiles | None] = ContextVar("_IN_USE", default=None)


def hadoop_files() -> HadoopFiles:
    """Return what opens Hadoop's file systems here: what `use` names, or a JVM of this process."""
    return _IN_USE.get() or _PROCESS


@contextmanager
def use(files: HadoopFiles) -> Iterator[None]:
    """Open Hadoop's file systems by other means within this context."""
    token = _IN_USE.set(files)
    try:
        yield
    finally:
        _IN_USE.reset(token)
