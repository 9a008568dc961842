"""An undo or a repair that stands still before an entry of a log goes takes none from a query."""

import pytest

from statestore.core.clock import ManualClock
from statestore.core.errors import InUseError
from statestore.core.options import StateStoreOptions
from statestore.io.memory import MemoryFileIO
from tests.checkpoints import query_of, read_rows
from tests.seams import at

OPTIONS = StateStoreOptions(fsync_enabled=False, lease_interval_ms=1_000)


class StandsStill(MemoryFileIO):
    """Storage before whose delete of a file so much time passes that the lease is lost."""

    path = ""

    def delete(self, path):
        if path == self.path:
            self._clock.advance(60_000)
        super().delete(path)


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_entry_of_a_log_comes_back_when_the_lease_was_lost_while_it_went(tmp_path, log):
    """Catches a batch of a query that started in between, without its entry: it starts no more."""
    clock = ManualClock(1_000_000_000)
    io = StandsStill(str(tmp_path), clock)
    query = query_of("/query", io=io, num_partitions=2, clock=clock)
    for number in range(2):
        query.run_batch({f"key-{key}": f"{number}" for key in range(20)})
    checkpoint = at("/query", options=OPTIONS, io=io, clock=clock)
    checkpoint.rescale(4)
    entry = io.read_tail(f"/query/{log}/2", 1 << 16)[0]
    io.path = f"/query/{log}/2"

    with pytest.raises(InUseError):
        checkpoint.undo_rescale()

    assert io.read_tail(f"/query/{log}/2", 1 << 16)[0] == entry
    io.path = ""
    checkpoint.undo_rescale()
    assert checkpoint.info.num_partitions == 2
    assert read_rows("/query", io) == query.expected()


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_entry_that_a_repair_sets_aside_comes_back_when_the_lease_was_lost(tmp_path, log):
    """Catches a batch of a query that started in between, of which the entry is set aside."""
    clock = ManualClock(1_000_000_000)
    io = StandsStill(str(tmp_path), clock)
    query = query_of("/query", io=io, num_partitions=1, clock=clock)
    for number in range(4):
        query.run_batch({f"key-{key}": f"{number}" for key in range(20)})
    (damaged,) = (path for path in io.paths() if path.endswith("/3.delta.arrows"))
    io.write(damaged, io.read(damaged)[:-9], sync=False, overwrite=True)
    entry = io.read(f"/query/{log}/3")
    io.path = f"/query/{log}/3"
    checkpoint = at("/query", options=OPTIONS, io=io, clock=clock)

    with pytest.raises(InUseError):
        checkpoint.repair()

    assert io.read(f"/query/{log}/3") == entry
    io.path = ""
    assert checkpoint.repair().version == 2
