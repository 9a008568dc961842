"""State on file systems that Hadoop alone can open; viewfs, over the disk, stands for them."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore.core.clock import ManualClock
from statestore.core.errors import FencedError, InvalidArgumentError, NotFoundError, StorageError
from statestore.io.hadoop import HadoopFileIO, HadoopRefusalError, split_hadoop_uri
from statestore.io.shim_files import ShimFiles
from tests.contract.conftest import StoreBench, any_format
from tests.contract.test_store import *  # noqa: F403

from .conftest import EXTENDED, PROVIDER, MakeLane, state_in_files
from .harness import HDFS, ROCKSDB_BACKEND, STATE_STORE, assert_same, run_plan
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

MOUNT = "fs.viewfs.mounttable.{}.link./data"
CHECKPOINT = "any"

__all__ = ["any_format"]


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimFiles]:
    """The shim's files, with a mount table: viewfs://files/data is a folder of the disk."""
    folder = tmp_path_factory.mktemp("mounted")
    jvm: Any = spark._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    configuration.set(MOUNT.format("files"), folder.as_uri())
    # Stands for a file system whose jar needs one that is not there: this class's is not.
    configuration.set(
        "fs.unlinked.impl", "org.apache.logging.log4j.core.async.RingBufferLogEventHandler"
    )
    server = jvm.io.statestore.engine.FileServer()
    server.register(CHECKPOINT, configuration)
    found = ShimFiles(server.port(), server.token())
    yield found
    found.close()
    server.close()


@pytest.fixture
def io(files: ShimFiles, tmp_path: Path) -> HadoopFileIO:
    (tmp_path / "cache").mkdir()
    return HadoopFileIO(files, "viewfs://files", CHECKPOINT, str(tmp_path / "cache"), 1 << 20)


@pytest.fixture
def bench(io: HadoopFileIO, request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    """What the contract suite, imported above, runs on: here through Hadoop."""
    found = StoreBench(io, "/data/" + re.sub(r"\W+", "-", request.node.name), ManualClock())
    yield found
    for store in found.opened:
        store.close()


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


def test_errors_are_named(io: HadoopFileIO, files: ShimFiles, tmp_path: Path) -> None:
    """Catches a Java stack trace where an error of ours belongs."""
    other = HadoopFileIO(files, "nosuch://x", CHECKPOINT, str(tmp_path), 0)
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
        HadoopFileIO(files, "unlinked://x", CHECKPOINT, str(tmp_path), 0).list("/a")
    with pytest.raises(HadoopRefusalError):
        files.ask("list", checkpoint="another", path="viewfs://files/data")
    assert io.read_tail("/data/errors/a", 2) == (b"ws", 4)
    assert io.read_range("/data/errors/a", 1, 100) == b"ows"


def test_stranger_is_refused(files: ShimFiles) -> None:
    """Catches any process of the machine being able to read what the application can."""
    stranger = ShimFiles(files._port, "0" * 64)

    with pytest.raises(HadoopRefusalError, match="does not answer"):
        stranger.ask("list", checkpoint=CHECKPOINT, path="viewfs://files/data")


def test_server_outlives_a_lack_of_file_descriptors(files: ShimFiles, spark: SparkSession) -> None:
    """Catches engines that wait for ever because a connection could not be accepted once."""
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    allowed, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", files._port), 30.0)

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, most))
    try:
        # The first one still has the descriptor that the server was waiting with.
        connections = [connect() for _ in range(3)]
        time.sleep(0.3)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (allowed, most))

    for connection in connections:
        with connection, connection.makefile("rwb") as stream:
            request = {"op": "list", "checkpoint": CHECKPOINT, "path": "viewfs://files/data"}
            stream.write(f"{files._token}\n{json.dumps(request)}\n".encode())
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
