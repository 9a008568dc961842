"""A store of a query's checkpoint, opened without Spark: which version, and who may change it."""

import pytest

from statestore.checkpoint.lease import Holder, Lease
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import InUseError, InvalidArgumentError
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from tests.checkpoints import OPTIONS, files_below, make_query
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
