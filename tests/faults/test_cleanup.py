"""Cleanups with very many files to delete: requests, time, and what is left when it is up."""

import os
import shutil
from dataclasses import replace

import pytest

from statestore import Checkpoint
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.rescaling import plan_rescale, write_rescaled_version
from statestore.checkpoint.trailers import read_delta_trailer
from statestore.codec.references import StoreName
from statestore.core.clock import SystemClock
from statestore.core.errors import StorageError
from statestore.core.options import StateStoreOptions
from statestore.io.checkpoint_memory import CheckpointMemoryFileIO
from statestore.io.fetch_cache import FetchCache
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.s3 import S3FileIO
from tests.checkpoints import files_below
from tests.engine_process import CheckpointMemory, EngineProcess
from tests.seams import at

OPTIONS = StateStoreOptions(min_versions_to_retain=2, orphan_age_ms=0, fsync_enabled=False)
NUM_EXPIRED = 2_500
BODIES = {"filesystem": "arrows", "rocksdb": "sst"}


def expired_names(backend):
    """Deltas of attempts of version 1, by the names that checkpoint format v2 gives them."""
    return [f"1_{number:032x}.delta.{BODIES[backend]}" for number in range(1, NUM_EXPIRED + 1)]


def write_all(io, directory, names):
    """Write a file under each name."""
    for name in names:
        io.write(f"{directory}/{name}", b"x", sync=False, overwrite=True)


def commit(store, versions):
    """Commit versions, each with its number in the row."""
    for number in versions:
        batch = store.begin()
        batch.put(b"k", b"%d" % number)
        batch.commit()


def commit_with_snapshots(store, newest):
    """Commit versions 1 to `newest`, each with a snapshot."""
    for number in range(1, newest + 1):
        commit(store, [number])
        store.snapshot()


@pytest.fixture(params=["local", "memory", "driver", "s3"])
def place(request, tmp_path):
    """A storage and a directory of it."""
    if request.param == "local":
        yield LocalFileIO(), str(tmp_path)
    elif request.param == "memory":
        yield MemoryFileIO(str(tmp_path)), "/ck"
    elif request.param == "driver":
        with CheckpointMemory(str(tmp_path / "memory")) as memory:
            yield CheckpointMemoryFileIO(memory.address, FetchCache(str(tmp_path), 0)), "/ck"
    else:
        server, bucket = (request.getfixturevalue(name) for name in ("s3_server", "bucket"))
        yield S3FileIO(str(tmp_path), server.settings()), f"/{bucket}/ck"


def test_named_files_go_together_and_no_other_does(place):
    """Catches a neighbour that is deleted too, or an error for a file that is gone already."""
    io, directory = place
    io.make_directory(f"{directory}/b")
    write_all(io, directory, ["a", "b/c", "d", "e"])

    io.delete_files(directory, ["a", "b/c", "gone"])

    assert sorted(info.name for info in io.list(directory)) == ["d", "e"]
    assert io.list(f"{directory}/b") == []


@pytest.mark.parametrize("backend", BODIES)
def test_cleanup_deletes_a_thousand_files_a_request(s3_server, bucket, tmp_path, backend):
    """Catches one request a file: 2,500 of them take a minute and more from S3."""
    io = S3FileIO(str(tmp_path), s3_server.settings(timeout_s=60.0))
    with at(f"/{bucket}/ck", options=OPTIONS, io=io).open_store(backend=backend) as store:
        commit_with_snapshots(store, 6)
        directory = f"/{bucket}/ck/state/0/0"
        s3_server.put_many(bucket, [f"ck/state/0/0/{name}" for name in expired_names(backend)])
        s3_server.requests.clear()

        cleaned = store.clean_up()

        assert cleaned.num_files >= NUM_EXPIRED
        assert (s3_server.requests["POST"], s3_server.requests["DELETE"]) == (3, 0)
        assert {info.name for info in io.list(directory)}.isdisjoint(expired_names(backend))
        assert dict(store.scan()) == {b"k": b"6"}


def test_cleanup_reads_no_version_that_the_last_one_read(s3_server, bucket, tmp_path):
    """Catches a request for each retained version a maintenance, where each is written whole."""
    io = S3FileIO(str(tmp_path), s3_server.settings())
    options = replace(OPTIONS, min_versions_to_retain=20, rocksdb_incremental=False)
    with at(f"/{bucket}/ck", options=options, io=io).open_store(backend="rocksdb") as store:
        commit(store, range(1, 31))
        store.clean_up()
        commit(store, [31])
        s3_server.requests.clear()

        assert store.clean_up().num_files == 1

    # Besides the listing: version 30, which is new to the cleanup, and whether 31 is still there.
    assert (s3_server.requests["LIST"], s3_server.requests["GET"]) == (1, 2)
    with at(f"/{bucket}/ck", options=options, io=io).open_store(version=12) as oldest:
        assert dict(oldest.scan()) == {b"k": b"12"}


def test_cleanup_sees_that_a_version_was_replaced_since_the_last_one(tmp_path):
    """Catches files that go by what a version was, and is no more."""
    options = replace(OPTIONS, min_versions_to_retain=4, rocksdb_incremental=False)
    with at(tmp_path / "other", options=options).open_store(backend="rocksdb") as other:
        commit(other, range(7, 13))
    with at(tmp_path / "ck", options=options).open_store(backend="rocksdb") as store:
        commit(store, range(1, 8))
        store.clean_up()
        commit(store, [8])
        name = "state/0/0/6.delta.sst"
        shutil.copy(tmp_path / "other" / name, tmp_path / "ck" / name)

        assert store.clean_up().num_files == 0

    assert (tmp_path / "ck/state/0/0/4.delta.sst").exists()


def test_cleanup_goes_on_beside_a_damaged_delta_that_no_version_needs(tmp_path):
    """Catches files that pile up for ever for one of a version that expired."""
    with at(tmp_path / "ck", options=OPTIONS).open_store() as store:
        commit(store, range(1, 9))
        store.snapshot()
        commit(store, range(9, 13))
    damaged = tmp_path / "ck/state/0/0/8.delta.arrows"
    damaged.write_bytes(damaged.read_bytes()[:-9])

    with at(tmp_path / "ck", options=OPTIONS).open_store() as store:
        assert store.clean_up().num_files >= 8

    assert not damaged.exists()
    for version in (11, 12):
        with at(tmp_path / "ck", options=OPTIONS).open_store(version=version) as store:
            assert dict(store.scan()) == {b"k": b"%d" % version}


def test_cleanup_stops_when_another_checkpoint_takes_the_place(tmp_path):
    """Catches files of a checkpoint that was promoted, deleted by requests for the one before."""
    directory = tmp_path / "ck/state/0/0"

    class Replaced(LocalFileIO):
        def delete_files(self, path, names):
            super().delete_files(path, names)
            (newest,) = directory.glob("6*.delta.arrows")
            newest.unlink()

    with at(tmp_path / "ck", options=OPTIONS, io=Replaced()).open_store() as store:
        commit_with_snapshots(store, 6)
        for name in expired_names("filesystem"):
            (directory / name).touch()

        assert store.clean_up().num_files == 1_000

    assert len([*directory.glob("1_*.delta.arrows")]) >= NUM_EXPIRED - 1_000


def test_file_that_must_not_be_deleted_is_named(s3_server, bucket, tmp_path):
    """Catches a refusal that a reply of status 200 holds, and that nobody looks for."""
    io = S3FileIO(str(tmp_path), s3_server.settings())
    write_all(io, f"/{bucket}/ck", ["a", "b", "c"])
    s3_server.fail("POST", "one-refused")

    with pytest.raises(StorageError) as raised:
        io.delete_files(f"/{bucket}/ck", ["b", "a", "c"])

    assert raised.value.kind == "permission-denied"
    assert raised.value.fields["file"] == f"/{bucket}/ck/b"
    assert s3_server.keys(bucket) == ["ck/b"]


@pytest.mark.parametrize("backend", BODIES)
def test_cleanup_goes_on_with_the_next_maintenance_when_its_time_is_up(tmp_path, backend):
    """Catches an engine that is taken for hung, and killed, since it has much to delete."""
    root = tmp_path / "ck"
    directory = root / "state" / "0" / "0"
    with at(root, options=OPTIONS).open_store(backend=backend) as store:
        commit_with_snapshots(store, 8)
    for name in expired_names(backend)[:1_250]:
        (directory / name).write_bytes(b"x")
        (directory / name.replace("1_", "2_", 1)).write_bytes(b"x")

    with EngineProcess(str(tmp_path / "statestore-scratch-1")) as engine:
        asked = {
            "store": {"root": f"file:{root}/state", "operator": 0, "partition": 0},
            "backend": backend,
            "version": 8,
            "checkpoint_id": None,
            "options": {"min_versions_to_retain": 2, "fsync_enabled": False},
            "snapshot": False,
            "cleanup": True,
            "wait_ms": 0,
        }
        replies = [engine.call("maintain", **asked)]
        assert len(list(directory.glob("2_*"))) >= 1_250
        for version in (7, 8):
            with Checkpoint(root).open_store(version=version, backend=backend) as store:
                assert dict(store.scan()) == {b"k": b"%d" % version}
        replies += [engine.call("maintain", **asked) for _ in range(5)]

    left = [reply["files_left"] for reply in replies]
    assert left[0] >= 1_500
    assert left == [max(0, left[0] - 1_000 * number) for number in range(6)]
    assert not list(directory.glob("[12]_*"))
    for version in (7, 8):
        with Checkpoint(root).open_store(version=version, backend=backend) as store:
            assert dict(store.scan()) == {b"k": b"%d" % version}


def test_state_partition_that_is_no_more_goes_bit_by_bit_when_time_is_up(tmp_path, caplog):
    """Catches references let go of before the files that they are for: those stay for ever."""
    io = MemoryFileIO(str(tmp_path))

    def opened(partition, num_partitions):
        return at("/ck", options=replace(OPTIONS, max_parallelism=8), io=io).open_store(
            0, partition, num_partitions=num_partitions
        )

    for partition in range(2):
        with opened(partition, 2) as store:
            batch = store.begin()
            batch.put(b"k%d" % partition, b"", key_group=partition)
            batch.commit()
    locations = [StoreLocation(io, "/ck/state", StoreName(0, p)) for p in range(2)]
    heads = {p: read_delta_trailer(locations[p], 1, None) for p in range(2)}
    (plan,) = plan_rescale(heads, 1).values()
    write_rescaled_version(locations[0], plan, str(tmp_path), clock=SystemClock())
    write_all(io, "/ck/state/0/1", expired_names("filesystem"))

    left = []
    with opened(0, 1) as store:
        commit_with_snapshots(store, 6)
        while not left or left[-1]:
            left.append(store._versions.clean_up(store._head, OPTIONS, time_limit_s=0).num_left)
            assert dict(store.scan()).keys() == {b"k", b"k0", b"k1"}
            has_ref = any(info.name.endswith(".ref") for info in io.list("/ck/state/0/0"))
            assert has_ref == bool(left[-1])
    assert len(left) == 3
    assert io.list("/ck/state/0/1") == []
    assert f"files_left={left[0]}" in caplog.text


@pytest.mark.parametrize("backend", BODIES)
def test_cleanup_of_a_store_that_was_replaced_deletes_nothing(tmp_path, backend):
    """Catches the last maintenance of a stopped query: a promote has taken its place meanwhile."""
    root, other = tmp_path / "ck", tmp_path / "promoted"
    options = replace(OPTIONS, min_versions_to_retain=100)

    def commit(store, versions, text):
        for number in versions:
            batch = store.begin()
            batch.put(b"%d" % number, text)
            batch.commit()

    with at(root, options=options).open_store(backend=backend) as store:
        commit(store, range(1, 6), b"both")
        shutil.copytree(root, other)
        commit(store, range(6, 11), b"old")
        with at(other, options=options).open_store(backend=backend) as new:
            commit(new, range(6, 11), b"new")
        shutil.rmtree(root)
        (other / "state/0/0/.tmp-1").touch()
        os.utime(other / "state/0/0/.tmp-1", (0, 0))
        shutil.copytree(other, root)
        there = files_below(root)

        assert store.clean_up().num_files == 0

        assert files_below(root) == there
    with at(root, options=options).open_store(backend=backend) as store:
        assert store.clean_up().num_files == 1
    with Checkpoint(root).open_store(backend=backend) as store:
        rows = dict(store.scan())
    assert rows == {b"%d" % n: b"both" if n < 6 else b"new" for n in range(1, 11)}
