"""The JVM that opens Hadoop's file systems for operations: what it needs, knows and leaves."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from statestore.core.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.io.hadoop import HadoopFileIO
from statestore.io.hadoop_process import MAIN_CLASS, HadoopProcess
from statestore.io.shim_jar import JAR_VARIABLE

SECRET = "not-to-be-seen"  # noqa: S105


@pytest.fixture
def mounted(tmp_path):
    """A file system that Hadoop alone opens, over a folder: its name and the configuration."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"bytes")
    name = uuid.uuid4().hex
    conf = {
        f"spark.hadoop.fs.viewfs.mounttable.{name}.link./data": folder.as_uri(),
        "spark.hadoop.secret": SECRET,
    }
    return f"viewfs://{name}", conf


def open_io(files, file_system, tmp_path):
    """Storage over what a process opens."""
    return HadoopFileIO(files, file_system, "", str(tmp_path), 0)


def processes(mark):
    """The JVMs that hold a text in their command line or environment."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                command = (path / "cmdline").read_bytes()
                text = command + (path / "environ").read_bytes()
            except OSError:
                continue
            if MAIN_CLASS.encode() in command and mark.encode() in text:
                found[int(path.name)] = text
    return found


def test_configuration_is_known_and_not_seen(tmp_path, mounted, monkeypatch):
    """Catches secrets that every user of the machine can read, and a JVM that outlives its use."""
    file_system, conf = mounted
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STATESTORE_TEST_MARK", mark)
    files = HadoopProcess(conf)
    io = open_io(files, file_system, tmp_path)
    assert processes(mark) == {}

    assert io.read_tail("/data/a", 9) == (b"bytes", 5)

    (text,) = processes(mark).values()
    assert SECRET.encode() not in text
    files.close()
    assert processes(mark) == {}
    assert [info.name for info in io.list("/data")] == ["a"]
    files.close()


def test_process_ends_with_the_one_that_started_it(tmp_path, mounted, monkeypatch):
    """Catches a JVM that an operation killed half way leaves behind."""
    file_system, conf = mounted
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STATESTORE_TEST_MARK", mark)
    program = (
        "import sys\n"
        "from statestore.io.hadoop_process import HadoopProcess\n"
        f"files = HadoopProcess({conf!r})\n"
        f"print(files.ask('list', checkpoint='', path='{file_system}/data'), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert "'name': 'a'" in parent.stdout.readline()
        assert len(processes(mark)) == 1
        os.kill(parent.pid, signal.SIGKILL)
    end_s = time.monotonic() + 20
    while processes(mark):
        assert time.monotonic() < end_s, "the JVM outlived its parent by 20 s"
        time.sleep(0.05)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    """Catches a stack trace, or a wait for ever, where Spark, the jar or a class is missing."""
    io = open_io(HadoopProcess(), "hdfs://nowhere", tmp_path)

    with monkeypatch.context() as patch:
        patch.setenv("SPARK_HOME", str(tmp_path / "no-spark"))
        with pytest.raises(NotFoundError, match="no-spark/bin/spark-submit") as raised:
            io.list("/a")
        assert "SPARK_HOME" in raised.value.to_fix
    with monkeypatch.context() as patch:
        patch.setenv(JAR_VARIABLE, str(tmp_path / "no.jar"))
        with pytest.raises(NotFoundError, match=r"no\.jar"):
            io.list("/a")
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
        with pytest.raises(StorageError, match="no-java/bin/java") as raised:
            io.list("/a")
        assert "statestore doctor" in raised.value.to_fix
    with (tmp_path / "empty.jar").open("wb"), monkeypatch.context() as patch:
        patch.setenv(JAR_VARIABLE, str(tmp_path / "empty.jar"))
        with pytest.raises(StorageError, match=MAIN_CLASS):
            io.list("/a")


def test_scheme_whose_jar_is_missing_is_named(tmp_path):
    """Catches a user who is not told how a command gets the jar of a cloud's file system."""
    files = HadoopProcess()

    for uri in ("gs://bucket", "nosuch://x"):
        with pytest.raises(InvalidArgumentError, match="unsupported-scheme") as raised:
            open_io(files, uri, tmp_path).list("/a")
        assert "--conf spark.jars=" in raised.value.to_fix
    files.close()
