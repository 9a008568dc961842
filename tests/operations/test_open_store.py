"""A store of a query's checkpoint, opened without Spark: which version, and who may change it."""

import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from statestore import Checkpoint
from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.checkpoint.layout import HEAP_MARKER, HEAP_MARKER_TEXT, StoreLocation
from statestore.checkpoint.lease import Holder, Lease
from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import StoreName
from statestore.codec.rows import PUT, Row
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from statestore.testing.deltas import new_version, write_stream
from tests.checkpoints import DEFAULT, OPTIONS, files_below, make_query, write_checkpoint
from tests.seams import at


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_newest_version_is_the_one_that_a_batch_committed(tmp_path, backend):
    """Catches a version of a batch that may yet run again, with other rows."""
    query = make_query(tmp_path / "ck", backend=backend, num_partitions=1)
    query.plan()
    with at(query.path, options=OPTIONS).open_store() as store:
        store.begin().commit()
        assert store.version == 4

    with at(query.path, options=OPTIONS).open_store() as store:
        assert store.version == 3


def test_batch_whose_commit_entry_was_lost_is_not_written_again(tmp_path):
    """Catches rows of a batch replaced by other ones: the next batch was planned on it."""
    query = make_query(tmp_path / "ck", num_partitions=1)
    query.plan()
    Path(query.path, "commits/2").unlink()

    with at(query.path, options=OPTIONS).open_store() as store:
        assert store.version == Checkpoint(query.path).info.newest_version == 3


def test_store_is_empty_when_the_first_batch_is_not_committed(tmp_path):
    """Catches a first version that counts before its batch does."""
    query = make_query(tmp_path / "ck", num_batches=0, num_partitions=1)
    query.plan()
    with at(query.path, options=OPTIONS).open_store() as store:
        store.begin().commit()

    with at(query.path, options=OPTIONS).open_store() as store:
        assert store.version == 0


@pytest.mark.parametrize(
    "how",
    [
        {"operator": -1},
        {"partition": 1},
        {"partition": -1},
        {"partition": 4, "num_partitions": 4},
        {"store": ".."},
        {"store": "left/right"},
        {"store": ""},
    ],
)
def test_store_that_cannot_be_is_refused_when_it_is_opened(tmp_path, how):
    """Catches a commit that fails on the file it wrote, and a store in another's directory."""
    with pytest.raises(InvalidArgumentError, match="no such state store"):
        at(tmp_path / "new", options=OPTIONS).open_store(**how)
    assert files_below(tmp_path) == {}
    at(tmp_path / "new", options=OPTIONS).open_store(partition=3, num_partitions=4).close()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_store_of_checkpoint_format_2_stays_so_from_version_0(tmp_path, backend):
    """Catches version 0 of a store that takes its files for those of format 1: later versions are
    not found, and one made of it stands beside them under a name of the other format."""
    path = tmp_path / "ck"
    with at(path, options=OPTIONS).open_store(checkpoint_format=2, backend=backend) as store:
        for number in range(2):
            batch = store.begin()
            batch.put(b"key", b"%d" % number)
            batch.commit()

    with at(path, options=OPTIONS).open_store(version=0) as store:
        store.load(1)
        assert dict(store.scan()) == {b"key": b"0"}
        store.load(0)
        batch = store.begin()
        batch.put(b"key", b"other")
        batch.commit()
        assert store.checkpoint_id is not None
    names = [name.rsplit("/", 1)[-1] for name in files_below(path)]
    deltas = [name for name in names if ".delta." in name]
    assert len(deltas) == 3
    assert all("_" in name for name in deltas)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_version_0_stands_beside_what_a_power_failure_left(tmp_path, backend):
    """Catches an empty store that cannot be opened for a file that the next commit replaces."""
    path = tmp_path / "ck"
    with at(path, options=OPTIONS).open_store(backend=backend) as store:
        store.begin().commit()
    (left,) = path.rglob("1.delta.*")
    left.write_bytes(b"")
    with pytest.raises(CorruptionError, match="give num_partitions"):
        at(path, options=OPTIONS).open_store(version=0, backend=backend)

    how = {"version": 0, "backend": backend, "num_partitions": 1}
    with at(path, options=OPTIONS).open_store(**how) as store:
        batch = store.begin()
        batch.put(b"key", b"value")
        batch.commit()
    with at(path, options=OPTIONS).open_store(version=1) as store:
        assert dict(store.scan()) == {b"key": b"value"}


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_version_0_has_the_state_partitions_of_the_checkpoint(tmp_path, backend):
    """Catches a checkpoint of four state partitions whose empty store is of one: its last ones
    cannot be opened, and a commit there fails on its own file."""
    path = tmp_path / "ck"
    options = replace(OPTIONS, max_parallelism=64)
    with at(path, options=options).open_store(
        partition=2, num_partitions=4, backend=backend
    ) as store:
        store.begin().commit()

    with pytest.raises(IncompatibleError, match="checkpoint=4, query=8"):
        at(path, options=OPTIONS).open_store(partition=2, version=0, num_partitions=8)
    with at(path, options=OPTIONS).open_store(partition=2, version=0) as store:
        assert (store.num_partitions, store.max_parallelism) == (4, 64)
        batch = store.begin()
        batch.put(b"key", b"value", key_group=6)
        batch.commit()
        assert (batch.is_rescalable, store.num_partitions) == (True, 4)
        store.load(0)
        assert (store.num_partitions, store.max_parallelism, len(store)) == (4, 64, 0)
        store.begin().commit()
    with at(path, options=OPTIONS).open_store(partition=2) as store:
        assert (store.version, store.num_partitions, store.max_parallelism) == (1, 4, 64)


@pytest.mark.parametrize("version", [None, 0, 3])
@pytest.mark.parametrize(
    ("given", "to_fix"),
    [
        ({"num_partitions": 8}, "leave num_partitions out, or give 4"),
        ({"backend": "rocksdb"}, "leave backend out, or give filesystem"),
    ],
)
def test_argument_that_does_not_fit_is_what_is_to_be_changed(tmp_path, version, given, to_fix):
    """Catches advice to rescale, or to change the offset log of, a checkpoint that is whole."""
    query = make_query(tmp_path / "ck", num_partitions=4)

    with pytest.raises(IncompatibleError) as caught:
        at(query.path, options=OPTIONS).open_store(version=version, **given)

    assert caught.value.to_fix == to_fix


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_commit_on_a_full_scratch_disk_is_named_and_leaves_no_file(tmp_path, backend):
    """Catches a bare OSError, and a file that takes the rest of the disk until the store closes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with at(tmp_path / "ck", options=OPTIONS).open_store(backend=backend) as store:
        batch = store.begin()
        batch.put(b"key", Random(0).randbytes(100_000))
        scratch = Path(store._scratch_directory)
        before = files_below(scratch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(StorageError, match="cannot write the delta to commit"):
                batch.commit()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert files_below(scratch) == before

        assert batch.commit() == 1


def test_store_of_the_heap_backend_is_refused_with_the_way_to_its_rows(tmp_path):
    """Catches advice to start with a new checkpoint, where the state is in the driver's memory."""
    query = make_query(tmp_path / "ck", num_partitions=1)
    directory = Path(query.path, "state", "0", "0")
    for file in directory.glob("[0-9]*"):
        file.unlink()
    (directory / HEAP_MARKER).write_bytes(HEAP_MARKER_TEXT)

    with pytest.raises(NotFoundError, match=r"spark=session\)\.rows\(\)") as caught:
        at(query.path, options=OPTIONS).open_store()

    assert caught.value.kind == "driver-lost"


@pytest.mark.parametrize("backend", ["RocksDB", "heap", 7])
def test_store_of_another_backend_is_refused_by_name(tmp_path, backend):
    """Catches an error that has the name and says nothing."""
    with pytest.raises(InvalidArgumentError, match=r"backend=.* use one of filesystem, rocksdb"):
        at(tmp_path / "new", options=OPTIONS).open_store(backend=backend)

    assert files_below(tmp_path) == {}


def test_rows_of_internal_column_families_stay_counted(tmp_path):
    """Catches a query that shows more rows than it has after a commit from Python."""
    families = (ColumnFamily(0, "default"), ColumnFamily(1, "$counts", internal=True))
    rows = [Row(0, 0, PUT, b"a", b"1"), Row(0, 1, PUT, b"a", b"1"), Row(0, 1, PUT, b"b", b"1")]
    location = StoreLocation(LocalFileIO(), f"{tmp_path}/ck/state", StoreName(0, 0))
    length = write_stream(f"{tmp_path}/delta", rows, 8)
    new = replace(
        new_version(1, None, f"{1:032x}", rows, 3), num_internal_keys=2, column_families=families
    )
    FilesystemVersions(location, SystemClock()).commit(new, f"{tmp_path}/delta", length, OPTIONS)

    with at(tmp_path / "ck", options=OPTIONS).open_store(version=1) as store:
        batch = store.begin()
        batch.put(b"b", b"2")
        batch.put(b"c", b"2", column_family="$counts")
        batch.put(b"d", b"2", column_family="$counts")
        batch.delete(b"a", column_family="$counts")
        batch.commit()
        assert (len(store), store._head.trailer.num_internal_keys) == (5, 3)


def test_store_is_not_changed_when_a_query_runs(tmp_path):
    """Catches a commit or a cleanup under a query that goes on from another version."""
    query = make_query(tmp_path / "ck", num_partitions=1)
    holder = Holder(find_process(), application="app", run="run-1")
    lease = Lease(LocalFileIO(), f"{query.path}/state", f"{1:032x}", holder, 10_000, SystemClock())
    lease.take()
    before = files_below(query.path)

    with at(query.path, options=OPTIONS, clock=ManualClock()).open_store() as store:
        batch = store.begin()
        batch.put(b"key", b"value")
        for change in (batch.commit, store.clean_up):
            with pytest.raises(InUseError, match="run-1") as caught:
                change()
            assert caught.value.kind == "checkpoint-in-use"
        assert files_below(query.path) == before

        lease.drop()
        assert batch.commit() == 4


def test_store_that_was_closed_holds_no_file_of_its_directory(tmp_path):
    """Catches databases that stay open, and their disk space taken, as long as a variable lives."""
    path = write_checkpoint(
        tmp_path / "ck",
        [{"default": {("a", number): (number, "x") for number in range(50)}}] * 2,
        families=(DEFAULT,),
        backend="rocksdb",
    )
    before = _deleted_files()
    store = at(path, options=OPTIONS).open_store(partition=0)
    num_rows = len(store)

    store.close()

    assert _deleted_files() <= before
    assert len(store) == num_rows > 0


def _deleted_files():
    """Files of databases that this process has open, and that are in no directory."""
    held = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of this very listing
            held.add(str(link.readlink()))
    return {name for name in held if "(deleted)" in name and ".sst" in name}
