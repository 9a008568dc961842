"""State on file systems that Hadoop alone can open; viewfs, over the disk, stands for them."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore import Checkpoint
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.lease import Leases
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import FencedError, InvalidArgumentError, NotFoundError, StorageError
from statestore.engine.requests import Request
from statestore.engine.storages import Storages
from statestore.io.fetch_cache import FetchCache
from statestore.io.hadoop import HadoopFileIO, HadoopRefusalError, split_hadoop_uri
from statestore.io.local import LocalFileIO
from statestore.io.place import Place
from statestore.io.shim_files import ShimFiles
from tests.contract.conftest import StoreBench, any_format
from tests.contract.test_store import *  # noqa: F403

from .conftest import EXTENDED, PROVIDER, MakeLane, state_in_files
from .harness import (
    HDFS,
    ROCKSDB_BACKEND,
    STATE_STORE,
    assert_same,
    engine_pool,
    run_plan,
    tree,
    wait_for,
)
from .processes import descendants, engines
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

MOUNT = "fs.viewfs.mounttable.{}.link./data"
CHECKPOINT = "any"
QUERIES = [f"viewfs://files/data/{name}/state" for name in ("q1", "q2", "q3")]

__all__ = ["any_format"]


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimFiles]:
    """The shim's files, with a mount table: viewfs://files/data is a folder of the disk."""
    folder = tmp_path_factory.mktemp("mounted")
    jvm: Any = spark._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    configuration.set(MOUNT.format("files"), folder.as_uri())
    configuration.set("fs.keep.impl", "io.statestore.testing.KeepingFileSystem")
    # Stands for a file system whose jar needs one that is not there: this class's is not.
    configuration.set(
        "fs.unlinked.impl", "org.apache.logging.log4j.core.async.RingBufferLogEventHandler"
    )
    server = jvm.io.statestore.engine.FileServer()
    for checkpoint in (CHECKPOINT, *QUERIES):
        server.files().register(checkpoint, configuration, True)
    found = ShimFiles(server.port(), server.token())
    yield found
    found.close()
    server.close()


@pytest.fixture
def io(files: ShimFiles, tmp_path: Path) -> HadoopFileIO:
    (tmp_path / "cache").mkdir()
    return HadoopFileIO(
        files, "viewfs://files", CHECKPOINT, FetchCache(str(tmp_path / "cache"), 1 << 20)
    )


@pytest.fixture
def bench(io: HadoopFileIO, request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    """What the contract suite, imported above, runs on: here through Hadoop."""
    found = StoreBench(io, "/data/" + re.sub(r"\W+", "-", request.node.name), ManualClock())
    yield found
    for store in found.opened:
        store.close()


def test_file_is_replaced_where_a_rename_replaces_none(files: ShimFiles, tmp_path: Path) -> None:
    """Catches a lease that looks renewed, and is the old one: Hadoop has no error for it."""
    (tmp_path / "cache").mkdir()
    io = HadoopFileIO(files, "keep://", CHECKPOINT, FetchCache(str(tmp_path / "cache"), 1 << 20))
    (tmp_path / "leases").mkdir()
    path = f"{tmp_path}/leases/query.json"

    for text in (b"1", b"22", b"333"):
        io.write(path, text, sync=True, overwrite=True)
        assert Path(path).read_bytes() == text
    with pytest.raises(FencedError):
        io.write(path, b"4444", sync=True, overwrite=False)

    assert Path(path).read_bytes() == b"333"
    kept = tmp_path / "unwritable"
    kept.write_bytes(b"old")
    with pytest.raises(StorageError, match="the upload failed"):
        io.write(str(kept), b"new", sync=True, overwrite=True)
    assert kept.read_bytes() == b"old"
    contested = tmp_path / "leases" / "contested"
    with pytest.raises(StorageError, match="another writer was first"):
        io.write(str(contested), b"new", sync=True, overwrite=True)
    contested.unlink()
    assert [info.name for info in io.list(f"{tmp_path}/leases")] == ["query.json"]


def test_rocksdb_store_is_opened_by_another(io: HadoopFileIO) -> None:
    """Catches SSTs that do not come back as they were written, and merged ones never published."""
    bench = StoreBench(io, "/data/rocksdb", ManualClock(), "rocksdb")
    with bench.open(rocksdb_merge_min_files=4) as store:
        for number in range(1, 8):
            batch = store.begin()
            batch.put(b"n", b"%d" % number)
            batch.put(b"%d" % number, b"v")
            batch.delete(b"%d" % (number - 2))
            batch.commit()
            if number == 4:
                store.snapshot()
        expected = list(store.scan())

    assert [name for name in bench.file_names() if name.startswith("4_")]
    with bench.open() as other:
        assert (other.version, list(other.scan())) == (7, expected)
        assert other.get(b"n") == b"7"


def test_copies_of_all_queries_share_what_an_engine_may_keep(
    files: ShimFiles, tmp_path: Path
) -> None:
    """Catches an application that fills the disk: each of its checkpoints keeps as much again."""
    storages = Storages(str(tmp_path), SystemClock(), hadoop=files)
    for root in QUERIES:
        store = {"root": root, "operator": 0, "partition": 0}
        request = Request({"store": store, "options": {"fetch_cache_bytes": 3 << 20}})
        location = storages.locate(request)
        location.io.make_directory(location.directory)
        for name in "ab":
            path = location.path(name)
            location.io.write(path, bytes(1 << 20), sync=False, overwrite=True)
            assert Path(location.io.fetch(path)).read_bytes() == bytes(1 << 20)

    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) == 3 << 20


def test_checkpoint_memory_tells_file_systems_apart(files: ShimFiles, tmp_path: Path) -> None:
    """Catches two queries that delete each other's state: one path in two buckets."""
    storages = Storages(str(tmp_path), SystemClock(), hadoop=files)
    memory = {"host": "127.0.0.1", "port": 1, "token": "t"}
    roots = ["gs://a/q/state", "gs://b/q/state", "s3a://a/q/state", "file:/q/state", "/q2/state"]

    def locate(root: str) -> StoreLocation:
        store = {"root": root, "operator": 0, "partition": 0, "memory": memory}
        return storages.locate(Request({"store": store, "backend": "heap"}))

    assert len({locate(root).root for root in roots}) == len(roots)
    assert locate("file:/q/state") == locate("/q/state")
    assert locate("s3a://a/q/state").root == Place("s3://a/q").memory_root
    # Spark fills the namenode in, where a user leaves it out.
    assert locate("hdfs://nn:8020/q/state").root == Place("hdfs:/q").memory_root


def test_errors_are_named(io: HadoopFileIO, files: ShimFiles, tmp_path: Path) -> None:
    """Catches a Java stack trace where an error of ours belongs."""
    other = HadoopFileIO(files, "nosuch://x", CHECKPOINT, FetchCache(str(tmp_path), 0))
    io.make_directory("/data/errors")
    io.write("/data/errors/a", b"rows", sync=True, overwrite=False)

    with pytest.raises(FencedError, match="file-exists"):
        io.write("/data/errors/a", b"x", sync=True, overwrite=False)
    with pytest.raises(NotFoundError, match="file-not-found"):
        io.read_tail("/data/errors/b", 10)
    with pytest.raises(InvalidArgumentError, match="unsupported-scheme"):
        other.list("/a")
    with pytest.raises(StorageError, match="viewfs://files/no-mount"):
        io.write("/no-mount/a", b"x", sync=True, overwrite=True)
    with pytest.raises(StorageError, match="NoClassDefFoundError: com/lmax/disruptor"):
        HadoopFileIO(files, "unlinked://x", CHECKPOINT, FetchCache(str(tmp_path), 0)).list("/a")
    with pytest.raises(HadoopRefusalError):
        files.ask("list", checkpoint="another", path="viewfs://files/data")
    assert io.read_tail("/data/errors/a", 2) == (b"ws", 4)
    assert io.read_range("/data/errors/a", 1, 100) == b"ows"


def test_stranger_is_refused(files: ShimFiles) -> None:
    """Catches any process of the machine being able to read what the application can."""
    stranger = ShimFiles(files._address[0], "0" * 64)

    with pytest.raises(HadoopRefusalError, match="does not answer"):
        stranger.ask("list", checkpoint=CHECKPOINT, path="viewfs://files/data")


def _num_threads(spark: SparkSession, name: str) -> int:
    """How many threads of the application have a name; Linux keeps 15 letters of it."""
    jvm: Any = spark._jvm
    tasks = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/task")
    return sum(path.read_text().strip() == name[:15] for path in tasks.glob("*/comm"))


def test_strangers_cost_few_threads_and_no_memory(files: ShimFiles, spark: SparkSession) -> None:
    """Catches an executor that every user of its machine can bring down."""
    port, token = files._address
    with ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", port), 60.0))

        strangers = [connect() for _ in range(400)]
        engine = ShimFiles(port, token)
        engine.ask("list", checkpoint=CHECKPOINT, path="viewfs://files/data")
        wait_for(lambda: _num_threads(spark, "statestore-stranger") <= 40, "few threads")
        engine.ask("list", checkpoint=CHECKPOINT, path="viewfs://files/data")
        engine.close()
        # Neither a line without end nor silence is listened to for long.
        endless = connect()
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012
            for _ in range(1000):
                endless.sendall(b"0" * 65536)
        assert strangers[-1].recv(1) == b""
    wait_for(lambda: _num_threads(spark, "statestore-stranger") == 0, "no thread of a stranger")


def test_threads_of_engines_that_connect_at_once_are_all_served(files: ShimFiles) -> None:
    """Catches a batch that fails because its tasks came together."""
    port, token = files._address
    request = {"op": "list", "checkpoint": CHECKPOINT, "path": "viewfs://files/data"}
    with ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 60.0))
            for _ in range(60)
        ]
        time.sleep(0.2)  # the threads wait for their turn in the engine
        for connection in connections:
            connection.sendall(f"{token}\n{json.dumps(request)}\n".encode())
        for connection in connections:
            with connection.makefile("rb") as stream:
                assert "ok" in json.loads(stream.readline())


@state_in_files
def test_files_are_served_once_an_engine_needs_them(
    make_lane: MakeLane, spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a port that is open in every executor, and a new engine that does not know of it."""
    conf = {f"{STATE_STORE}.engine.callTimeoutMs": "599999"}  # engines of their own
    query = replace(AGGREGATION, plan=one_input(3))
    reference, local = make_lane(query, HDFS), make_lane(query, conf=conf)
    before = _num_threads(spark, "statestore-files")
    run_plan(local)
    assert _num_threads(spark, "statestore-files") == before

    (tmp_path / "mounted").mkdir()
    name = uuid.uuid4().hex
    mount = {MOUNT.format(name): (tmp_path / "mounted").as_uri()}
    lane = make_lane(query, conf={**conf, **mount})
    lane.checkpoint = f"viewfs://{name}/data/ck"  # type: ignore[assignment]

    def kill_engines(batch_id: int) -> None:
        for pid in engines(descendants(os.getpid())) if batch_id == 1 else ():
            os.kill(pid, signal.SIGKILL)

    lane.before_batch = kill_engines
    run_plan(reference, lane)

    assert _num_threads(spark, "statestore-files") > before
    assert_same(reference, lane)


def test_server_outlives_a_lack_of_file_descriptors(files: ShimFiles, spark: SparkSession) -> None:
    """Catches engines that wait for ever because a connection could not be accepted once."""
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    port, token = files._address
    allowed, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def connect() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), 30.0)
        connection.sendall(f"{token}\n".encode())
        return connection

    # Not 0, with which Linux refuses to poll what is open.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, most))
    try:
        # The first one still has the descriptor that the server was waiting with.
        connections = [connect() for _ in range(3)]
        time.sleep(0.3)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (allowed, most))

    for connection in connections:
        with connection, connection.makefile("rwb") as stream:
            request = {"op": "list", "checkpoint": CHECKPOINT, "path": "viewfs://files/data"}
            stream.write(f"{json.dumps(request)}\n".encode())
            stream.flush()
            assert "ok" in json.loads(stream.readline())


def test_uris_are_split() -> None:
    """Catches state in a directory called after the host."""
    assert split_hadoop_uri("hdfs://nn:8020/a/b/") == ("hdfs://nn:8020", "/a/b")
    assert split_hadoop_uri("hdfs:/a") == ("hdfs:", "/a")
    assert split_hadoop_uri("abfs://c@host/a b") == ("abfs://c@host", "/a b")


@pytest.mark.parametrize("where", ["checkpoint", "storage"])
@pytest.mark.parametrize(
    "provider",
    [pytest.param(PROVIDER, marks=state_in_files), pytest.param(ROCKSDB_BACKEND, marks=EXTENDED)],
    ids=["under-test", "rocksdb"],
)
def test_rows_equal_built_in_when_state_is_on_a_hadoop_file_system(
    make_lane: MakeLane, tmp_path: Path, where: str, provider: str
) -> None:
    """Catches engines that can open local paths only."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    name = uuid.uuid4().hex  # Hadoop keeps a file system, with its mounts, by its name
    uri = f"viewfs://{name}/data/ck"
    query = replace(AGGREGATION, plan=one_input(2, 2))
    reference = make_lane(query, HDFS)
    lane = make_lane(query, provider, conf={MOUNT.format(name): mounted.as_uri()})
    if where == "checkpoint":
        lane.checkpoint = uri  # type: ignore[assignment]
    else:
        lane.conf[f"{STATE_STORE}.checkpointStorage"] = uri

    run_plan(reference, lane)

    assert_same(reference, lane)
    assert len(list(mounted.rglob("[0-9]*.delta.*"))) == 4 * 3
    reader = lane.session().read.format("statestore")
    expected = reference.session().read.format("statestore").load(str(reference.checkpoint))
    found = reader.load(str(lane.checkpoint))
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
    by_sql = Checkpoint(str(lane.checkpoint), spark=lane.session()).sql("FROM state").read()
    assert by_sql.num_rows == found.count()
    session = lane.session()
    session.conf.set("spark.sql.catalog.state", "io.statestore.StateCatalog")
    assert session.table(f"state.`{lane.checkpoint}`.state").count() == by_sql.num_rows


@state_in_files
def test_reader_of_another_session_changes_no_place_of_a_running_query(
    make_lane: MakeLane, tmp_path: Path
) -> None:
    """Catches a commit by the settings of whoever read the state last: in a directory of his."""
    name = uuid.uuid4().hex
    query = replace(AGGREGATION, plan=one_input(2))
    ((first, second),) = query.plan
    own, others = tmp_path / "own", tmp_path / "others"
    own.mkdir()
    lane = make_lane(query, PROVIDER, conf={MOUNT.format(name): own.as_uri()})
    lane.checkpoint = f"viewfs://{name}/data/ck"  # type: ignore[assignment]
    lane.feed(first)
    running = lane.start(available_now=False)
    try:
        wait_for(lambda: (own / "ck" / "commits" / "0").exists(), "a batch", timeout_s=60)
        shutil.copytree(own, others)
        before = tree(others)
        reader = lane.session()
        reader.conf.set(MOUNT.format(name), others.as_uri())
        assert reader.read.format("statestore").load(str(lane.checkpoint)).count()

        lane.feed(second)
        wait_for(lambda: (own / "ck" / "commits" / "1").exists(), "a batch", timeout_s=60)
    finally:
        running.stop()

    assert tree(others) == before
    assert len(list(own.rglob("2*.delta.*"))) == 3


@state_in_files
def test_lease_is_renewed_when_many_other_checkpoints_are_read(
    make_lane: MakeLane, tmp_path: Path
) -> None:
    """Catches an idle query that operations take for stopped: its configuration was forgotten."""
    name, mounted = uuid.uuid4().hex, tmp_path / "mounted"
    mounted.mkdir()
    conf = {MOUNT.format(name): mounted.as_uri(), f"{STATE_STORE}.lease.intervalMs": "2000"}
    query = replace(AGGREGATION, plan=one_input(1))
    lane = make_lane(query, PROVIDER, conf=conf)
    lane.checkpoint = f"viewfs://{name}/data/ck"  # type: ignore[assignment]
    renewed: set[int] = set()

    def num_renewals() -> int:
        leases = Leases(LocalFileIO(), f"{mounted}/ck/state").list()
        renewed.update(info.modified_ms for info in leases.values())
        return len(renewed)

    lane.feed(*query.plan[0])
    running = lane.start(available_now=False)
    try:
        wait_for(lambda: (mounted / "ck" / "commits" / "0").exists(), "a batch", timeout_s=60)
        session = lane.session()
        files, configuration = engine_pool(session).files(), session._jsc.hadoopConfiguration()
        for number in range(300):  # between two renewals, which keep what they use
            files.register(f"file:/{number}", configuration, False)
        before = num_renewals()
        # One may have been under way.
        wait_for(lambda: num_renewals() >= before + 2, "renewals", timeout_s=20)
    finally:
        running.stop()
