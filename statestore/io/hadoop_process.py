"""Hadoop's file systems where no Spark runs: a JVM of this process, started when it is needed.

spark-submit starts it, so that it has what a query of this machine has: the Hadoop configuration of
HADOOP_CONF_DIR and of spark-defaults.conf (`spark.hadoop.*`), and the jars named there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from statestore.core.errors import NotFoundError, StorageError
from statestore.io.hadoop import HadoopSilenceError
from statestore.io.shim_files import ShimFiles
from statestore.io.shim_jar import find_jar
from statestore.io.spark_home import find_spark_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.io.hadoop import HadoopFiles

MAIN_CLASS = "io.statestore.engine.HadoopProcess"
_HADOOP = "spark.hadoop."
HADOOP_PREFIXES = (_HADOOP, "spark.jars")
"""How the keys begin that a Spark configuration has for Hadoop's file systems."""
_SETTINGS = (
    "HADOOP_CONF_DIR",
    "HADOOP_USER_NAME",
    "KRB5CCNAME",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "YARN_CONF_DIR",
)
"""Variables of the environment that decide which files a JVM opens, and as whom."""
_READY = b"READY "
_POLL_S = 0.02
_ENDING_S = 0.5
_END_TIMEOUT_S = 10.0
_NUM_KEPT = 4
_NUM_LINES = 5
_MOST_LOG_BYTES = 1 << 20


class HadoopProcess:
    """HadoopFiles of a JVM of its own, which is started by the first request. Thread-safe.

    It ends with `close`, when nothing has this object any more, and with this process, however that
    ends. A process that is forked starts another.

    Args:
        conf: Spark configuration that spark-defaults.conf does not have: `spark.hadoop.*`, which
            may be secret, and what names jars, such as `spark.jars`.
    """

    def __init__(self, conf: Mapping[str, str] | None = None) -> None:
        self._conf = dict(conf or {})
        self._lock = threading.Lock()
        self._jvm: _Jvm | None = None
        _ALL.add(self)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles.

        Raises:
            NotFoundError: Spark or the jar is not there.
            StorageError: The JVM does not start; or it has ended, and the next request starts
                another.
        """
        with self._lock:
            if self._jvm is None:
                self._jvm = _Jvm(self._conf, self)
            jvm = self._jvm
        try:
            return jvm.files.ask(op, **arguments)
        except HadoopSilenceError as error:
            if not jvm.has_ended():
                raise
            with self._lock:
                if self._jvm is jvm:
                    self._jvm = None
                    jvm.end()
            raise StorageError(
                "the JVM for Hadoop's file systems has ended",
                status=jvm.process.returncode,
                reason=jvm.last_words,
                to_fix="remove the reason, and try again",
            ) from error

    def close(self) -> None:
        """End the JVM if it was started; the next request starts another."""
        with self._lock:
            jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.end()

    def forget_inherited(self) -> None:
        """Release the JVM of the process that this one was forked from."""
        self._lock = threading.Lock()
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.release()


class _Jvm:
    """A running JVM; `files` asks it. Its output goes to a file without a name.

    It ends when its owner is gone.
    """

    def __init__(self, conf: Mapping[str, str], owner: HadoopProcess) -> None:
        hadoop = {key: value for key, value in conf.items() if key.startswith(_HADOOP)}
        command = [str(find_spark_submit()), "--master", "local[1]", "--deploy-mode", "client"]
        for key in conf.keys() - hadoop.keys():
            command += ["--conf", f"{key}={conf[key]}"]
        command += ["--class", MAIN_CLASS, str(find_jar())]
        self._command = shlex.join(command)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `release`)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            # Spark Connect's, with which spark-submit runs nothing of its own.
            env={key: value for key, value in os.environ.items() if key != "SPARK_REMOTE"},
            # Ctrl-C reaches the group; what it interrupts still has files to put in order.
            start_new_session=True,
        )
        self.last_words = ""
        self.files = ShimFiles()
        self._end_with_owner = finalize(owner, self.end)
        try:
            self.files = self._handshake(hadoop)
        except BaseException:
            self.process.kill()
            self.end()
            raise

    def has_ended(self) -> bool:
        """Return whether it has ended, or is just ending."""
        try:
            self.process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """End it, by force where it does not end by itself; `last_words` then has its reason."""
        self._close_pipe()
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.last_words = self._last_lines()
        self.release()

    def release(self) -> None:
        """Close the connections to it; it ends when every process has."""
        self._end_with_owner.detach()
        self._close_pipe()
        self.files.close()
        self._log.close()

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    def _last_lines(self) -> str:
        """Return the end of its output, without stack frames and its token."""
        lines = [
            line.decode(errors="replace").strip()
            for line in self._printed().splitlines()
            if not line.startswith((b"\tat ", _READY))
        ]
        return " | ".join(lines[-_NUM_LINES:])

    def _handshake(self, hadoop: Mapping[str, str]) -> ShimFiles:
        assert self.process.stdin is not None  # noqa: S101 (asked for)
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{json.dumps(hadoop)}\n".encode())
            self.process.stdin.flush()
        while True:
            has_ended = self.process.poll() is not None
            for line in self._printed().splitlines(keepends=True):
                if line.startswith(_READY) and line.endswith(b"\n"):
                    ready = json.loads(line.removeprefix(_READY))
                    return ShimFiles(ready["port"], ready["token"])
            if has_ended:
                raise StorageError(
                    "the JVM for Hadoop's file systems does not start",
                    command=self._command,
                    status=self.process.returncode,
                    reason=self._last_lines(),
                    to_fix="remove the reason; `statestore doctor` checks Java, Spark and the jar",
                )
            time.sleep(_POLL_S)

    def _printed(self) -> bytes:
        # Not through the file object, whose position is the JVM's as well.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _MOST_LOG_BYTES, max(0, size - _MOST_LOG_BYTES))


def find_spark_submit() -> Path:
    """Return the path of spark-submit: of SPARK_HOME, or else of the pyspark of this Python.

    Raises:
        NotFoundError: There is neither.
    """
    home = find_spark_home()
    submit = home / "bin" / "spark-submit" if home else None
    if submit is None or not submit.is_file():
        raise NotFoundError(
            "Hadoop's file systems need Spark, which is not installed",
            kind="file-not-found",
            spark_submit=str(submit) if submit else None,
            to_fix="pip install 'statestore[spark]', or set SPARK_HOME to a Spark; in a program "
            "with a session: Checkpoint(…, spark=session)",
        )
    return submit


_ALL: WeakSet[HadoopProcess] = WeakSet()
_IN_USE: ContextVar[HadoopFiles | None] = ContextVar("_IN_USE", default=None)


def hadoop_files() -> HadoopFiles:
    """Return the files of `use`, or those of a JVM of this process."""
    return _IN_USE.get() or shared_process()


def shared_process(conf: Mapping[str, str] | None = None) -> HadoopProcess:
    """Return the process of a configuration, and of the environment's settings as they are now.

    The last few are kept. Another one ends when nothing has it any more.
    """
    settings = tuple(os.environ.get(name) for name in _SETTINGS)
    return _shared_process(frozenset((conf or {}).items()), settings)


@lru_cache(_NUM_KEPT)
def _shared_process(
    conf: frozenset[tuple[str, str]], _settings: tuple[str | None, ...]
) -> HadoopProcess:
    return HadoopProcess(dict(conf))


@contextmanager
def use(files: HadoopFiles) -> Iterator[None]:
    """Open Hadoop's file systems through other files within a block, in calls of its thread."""
    token = _IN_USE.set(files)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def _forget_inherited() -> None:
    for process in list(_ALL):
        process.forget_inherited()


os.register_at_fork(after_in_child=_forget_inherited)
