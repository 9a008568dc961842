"""The JVM that opens Hadoop's file systems for operations: what it needs, knows and leaves."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint, write_savepoint
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.io.fetch_cache import FetchCache
from statestore.io.hadoop import HadoopFileIO
from statestore.io.hadoop_process import MAIN_CLASS, HadoopProcess, shared_process, use
from statestore.io.shim_jar import JAR_VARIABLE
from statestore.io.storage import is_within
from tests.checkpoints import write_checkpoint

SECRET = "not-to-be-seen"  # noqa: S105


@pytest.fixture
def mounted(tmp_path):
    """A file system that Hadoop alone opens, over a folder: its name and the configuration."""
    file_system, conf = new_mount(tmp_path / "folder")
    (tmp_path / "folder" / "a").write_bytes(b"bytes")
    return file_system, conf | {"spark.hadoop.secret": SECRET}


def new_mount(folder):
    """Make a folder, and a file system that Hadoop alone opens over it."""
    folder.mkdir()
    name = uuid.uuid4().hex
    conf = {f"spark.hadoop.fs.viewfs.mounttable.{name}.link./data": folder.as_uri()}
    return f"viewfs://{name}", conf


def open_io(files, file_system, tmp_path):
    """Storage over what a process opens."""
    return HadoopFileIO(files, file_system, "", FetchCache(str(tmp_path), 0))


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


def test_process_is_started_when_needed_and_ends_with_its_use(tmp_path, mounted, monkeypatch):
    """Catches secrets that every user of the machine can read, and a JVM that outlives its use."""
    file_system, conf = mounted
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STATESTORE_TEST_MARK", mark)
    files = HadoopProcess(conf)
    io = open_io(files, file_system, tmp_path)
    assert processes(mark) == {}

    assert io.read_tail("/data/a", 9) == (b"bytes", 5)
    ((pid, text),) = processes(mark).items()
    assert SECRET.encode() not in text

    # One that died is named, and replaced.
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StorageError, match=r"has ended.*status=-9") as raised:
        io.list("/data")
    assert "token" not in str(raised.value)
    assert [info.name for info in io.list("/data")] == ["a"]
    assert processes(mark).keys() - {pid}

    files.close()
    assert processes(mark) == {}
    files.close()


def test_tree_of_many_files_is_listed_in_little_memory(tmp_path, mounted):
    """Catches a reply that has every file of a large checkpoint, in a JVM of a gigabyte."""
    file_system, conf = mounted
    for number in range(40):
        directory = tmp_path / "folder" / f"state-{number}"
        directory.mkdir()
        for file in range(1000):
            (directory / f"{file}-{'x' * 150}").touch()
    with closing(HadoopProcess(conf | {"spark.driver.memory": "48m"})) as files:
        found = open_io(files, file_system, tmp_path).list_tree("/data")
    assert len(found) == 40_001


def test_files_of_a_directory_are_deleted_together_and_no_other(tmp_path, mounted):
    """Catches a neighbour that is deleted too, or an error for a file that is gone already."""
    file_system, conf = mounted
    for name in ("b", "c", "d"):
        (tmp_path / "folder" / name).write_bytes(b"")
    with closing(HadoopProcess(conf)) as files:
        io = open_io(files, file_system, tmp_path)
        io.delete_files("/data", ["a", "gone", "c"])
        assert sorted(info.name for info in io.list("/data")) == ["b", "d"]


def test_directory_of_copies_that_something_else_has_deleted_is_made_again(tmp_path, mounted):
    """Catches a checkpoint that is said to have lost a file, until the application ends."""
    file_system, conf = mounted
    cache = tmp_path / "cache"
    with closing(HadoopProcess(conf)) as files:
        io = open_io(files, file_system, cache)
        for number in range(2):
            io.write(f"/data/made-{number}", b"rows", sync=True, overwrite=False)
            assert io.read_tail(f"/data/made-{number}", 10) == (b"rows", 4)
            shutil.rmtree(cache)


def test_full_local_disk_is_not_taken_for_a_full_file_system(tmp_path, mounted):
    """Catches free space that is looked for on HDFS, or a thread that a bare OSError ends."""
    file_system, conf = mounted
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    with closing(HadoopProcess(conf)) as files, ExitStack() as after:
        if is_mounted:
            after.callback(subprocess.run, ["umount", "--lazy", str(small)], check=True)
        io = open_io(files, file_system, small)
        io.write("/data/b", b"bytes", sync=True, overwrite=False)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
            with pytest.raises(StorageError, match=r"cannot write a local file: file='\S*/small/"):
                io.write("/data/c", b"x" * 20, sync=True, overwrite=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if is_mounted:
            io.write("/data/d", b"d" * 2000, sync=True, overwrite=False)
            with suppress(OSError):
                (small / "filled").write_bytes(bytes(1 << 17))
            for read in (lambda: io.fetch("/data/d"), lambda: io.read_range("/data/d", 0, 2000)):
                with pytest.raises(StorageError, match=r"file='\S*/small/") as told:
                    read()
                assert told.value.kind == "storage-full"


def test_output_of_the_process_holds_nothing_up(tmp_path, mounted, monkeypatch):
    """Catches an operation that stands still for ever once a pipe is full."""
    file_system, conf = mounted
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xlog:gc*=trace,class+load*=debug")
    with closing(HadoopProcess(conf)) as files:
        assert open_io(files, file_system, tmp_path).read_tail("/data/a", 9) == (b"bytes", 5)


def test_forked_process_starts_its_own(tmp_path, mounted, monkeypatch):
    """Catches two processes that read each other's answers."""
    file_system, conf = mounted
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STATESTORE_TEST_MARK", mark)
    with closing(HadoopProcess(conf)) as files:
        io = open_io(files, file_system, tmp_path)
        io.list("/data")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                is_right = all(io.list_directories("/data") == [] for _ in range(50))
                files.close()
                status = 0 if is_right else 2
            finally:
                os._exit(status)
        for _ in range(300):
            assert [info.name for info in io.list("/data")] == ["a"]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(processes(mark)) == 1


def test_directory_is_known_by_every_name_and_a_scheme_by_its_jar(tmp_path, mounted):
    """Catches a savepoint deleted with the checkpoint made in it; a jar nobody is told to add."""
    file_system, conf = mounted
    folder = tmp_path / "folder"
    (folder / "b").mkdir()
    (folder / "x").mkdir()
    table = f"spark.hadoop.fs.viewfs.mounttable.{file_system.removeprefix('viewfs://')}"
    conf[f"{table}.link./other"] = folder.as_uri()
    with closing(HadoopProcess(conf)) as files, use(files):
        for uri, directory, expected in (
            ("{0}/data/b/new", "{0}/data/x/../b/", True),
            ("{0}/other/b/new", "{0}/data/b", True),
            ("{0}/data/b/new", "{1}/b", True),
            ("{1}/b/new", "{0}/data/b", True),
            ("{0}/data/bc", "{0}/data/b", False),
            ("{0}/data/b", "{0}/data/b/c", False),
        ):
            found = is_within(
                uri.format(file_system, folder), directory.format(file_system, folder)
            )
            assert found == expected, (uri, directory)
        for uri in ("gs://bucket", "nosuch://x"):
            with pytest.raises(InvalidArgumentError, match="unsupported-scheme") as raised:
                open_io(files, uri, tmp_path).list("/a")
            assert "--storage-option spark.jars=" in raised.value.to_fix


def test_copy_at_the_same_path_of_another_file_system_is_refused(tmp_path, mounted):
    """Catches a copy of a checkpoint in another bucket that changes the state of the original."""
    file_system, conf = mounted
    copied_to, (other_file_system, other_conf) = tmp_path / "other", new_mount(tmp_path / "other")
    made = write_checkpoint(tmp_path / "made", [{"default": {("a", 1): (1, "b")}}] * 4)
    options = {"checkpoint_storage": str(tmp_path / "storage")}
    with closing(HadoopProcess(conf | other_conf)) as files, use(files):
        original = f"{file_system}/data/ck"
        Checkpoint(made, storage_options=options).restore(original)
        shutil.copytree(tmp_path / "folder" / "ck", copied_to / "ck")

        with pytest.raises(IncompatibleError, match=original) as raised:
            Checkpoint(f"{other_file_system}/data/ck").rescale(2)
        assert raised.value.kind == "other-checkpoint"

        # Another spelling of the same directory.
        Checkpoint(f"{file_system}//data/x/../ck/").rescale(2)


def test_environment_of_a_call_decides_where_its_directory_is(tmp_path, monkeypatch):
    """Catches a program that goes from cluster to cluster, and changes the first one each time."""
    name = uuid.uuid4().hex
    for place in ("prod", "test"):
        (tmp_path / place / "ck").mkdir(parents=True)
        write_checkpoint(tmp_path / place / "ck", [{"default": {("a", 1): (1, "b")}}] * 2)
        (tmp_path / f"{place}-conf").mkdir()
        (tmp_path / f"{place}-conf" / "core-site.xml").write_text(
            f"<configuration><property><name>fs.viewfs.mounttable.{name}.link./data</name>"
            f"<value>{(tmp_path / place).as_uri()}</value></property></configuration>"
        )
    for place, number in (("prod", 3), ("test", 5), ("prod", 4)):
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / f"{place}-conf"))
        Checkpoint(f"viewfs://{name}/data/ck").rescale(number)

    made = [Checkpoint(tmp_path / place / "ck").info.num_partitions for place in ("prod", "test")]
    assert made == [4, 5]


def test_new_directory_is_reached_by_the_options_of_its_object(tmp_path, mounted, monkeypatch):
    """Catches options that an object was given, and that are dropped where it is a destination."""
    file_system, conf = mounted
    made = write_checkpoint(tmp_path / "made", [{"default": {("a", 1): (1, "b")}}] * 2)
    checkpoint = Checkpoint(made)

    def there(of, name, **more):
        return of(f"{file_system}/data/{name}", storage_options=conf | more)

    with closing(HadoopProcess(conf)) as files:
        asked = []
        monkeypatch.setattr(
            "statestore.api.reaching.shared_process", lambda of: asked.append(dict(of)) or files
        )
        savepoint = checkpoint.savepoint(there(Savepoint, "savepoint")).made
        checkpoint.retain_savepoint(there(Savepoint, "kept"))
        rows = {"default": checkpoint.rows("default").read()}
        checkpoint.transform(there(Savepoint, "kept/other"), {"default": "FROM state"})
        write_savepoint(there(Savepoint, "kept/written"), like=checkpoint, rows=rows)
        checkpoint.branch(there(Checkpoint, "branch"))
        found = checkpoint.savepoints(there(Savepoint, "kept"))
        restored = savepoint.restore(there(Checkpoint, "restored", **{"spark.hadoop.x": "y"})).made

        assert [one.info.version for one in found] == [2] * 3
        assert restored.verify(deep=True).ok
        assert asked[0] == conf
        assert conf | {"spark.hadoop.x": "y"} in asked
        with pytest.raises(InvalidArgumentError, match=r"keys='spark\.hadoop\.secret'") as raised:
            savepoint.restore(there(Checkpoint, "never", **{"spark.hadoop.secret": "another"}))
        assert SECRET not in str(raised.value)
    assert not (tmp_path / "folder" / "never").exists()


STAND_IN = f"""#!{sys.executable}
import json, socket, sys, threading

def serve():
    stream = server.accept()[0].makefile("rwb")
    stream.readline()
    while stream.readline():
        stream.write(b'{{"ok": {{}}}}\\n')
        stream.flush()

sys.stdin.readline()
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, daemon=True).start()
print("READY", json.dumps({{"port": server.getsockname()[1], "token": ""}}), flush=True)
sys.stdin.read()
"""


def test_program_of_many_configurations_keeps_few_processes(tmp_path, monkeypatch):
    """Catches a service that fills its machine with JVMs, one for each token of a user's."""
    mark = uuid.uuid4().hex
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(STAND_IN)
    submit.chmod(0o700)
    monkeypatch.setenv("STATESTORE_TEST_MARK", mark)
    (tmp_path / "empty.jar").touch()
    monkeypatch.setenv(JAR_VARIABLE, str(tmp_path / "empty.jar"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    in_use = shared_process({"spark.hadoop.k": "in use"})
    in_use.ask("list")
    of_use = processes(mark).keys()

    for number in range(20):
        shared_process({"spark.hadoop.k": str(number)}).ask("list")
        assert len(processes(mark)) <= 5
    in_use.ask("list")
    assert of_use < processes(mark).keys()
    newest = processes(mark)
    shared_process({"spark.hadoop.k": "19"}).ask("list")
    assert processes(mark) == newest

    del in_use
    assert processes(mark).keys() == newest.keys() - of_use
    for number in range(16, 20):
        shared_process({"spark.hadoop.k": str(number)}).close()
    assert processes(mark) == {}


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
    end_s = time.monotonic() + 40
    while processes(mark):
        assert time.monotonic() < end_s, "the JVM outlived its parent by 40 s"
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
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(tmp_path))
        (tmp_path / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\n")
        with pytest.raises(StorageError, match="UnknownHostException: nowhere"):
            io.list("/a")
        io = open_io(HadoopProcess(), "hdfs://nowhere", tmp_path)
    with (tmp_path / "empty.jar").open("wb"), monkeypatch.context() as patch:
        patch.setenv(JAR_VARIABLE, str(tmp_path / "empty.jar"))
        with pytest.raises(StorageError, match=MAIN_CLASS):
            io.list("/a")
