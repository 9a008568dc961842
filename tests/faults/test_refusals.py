"""Operations on checkpoints that they must not change: refused by name, nothing touched."""

import shutil
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.lease import Holder, Lease
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import IncompatibleError, InUseError
from statestore.core.process import find_process
from statestore.core.providers import PROVIDER_KEY, SPARK_PROVIDERS
from statestore.io.local import LocalFileIO
from tests.damaged import make_small
from tests.rescaled import edit_conf
from tests.seams import at


@pytest.mark.parametrize(
    "operation",
    [
        lambda checkpoint: checkpoint.rescale(2),
        lambda checkpoint: checkpoint.undo_rescale(dry_run=True),
        lambda checkpoint: checkpoint.undo_rescale(),
        lambda checkpoint: checkpoint.expire(2),
        lambda checkpoint: checkpoint.repair(),
    ],
    ids=["rescale", "dry run of undo_rescale", "undo_rescale", "expire", "repair"],
)
def test_query_in_the_middle_of_a_batch_is_in_use(tmp_path, operation):
    """Catches the advice to start a query that runs."""
    made = make_small(tmp_path, 3, num_partitions=4)
    shutil.copy(Path(made.path, "offsets/2"), Path(made.path, "offsets/3"))
    holder = Holder(find_process(), run="r")
    lease = Lease(LocalFileIO(), f"{made.path}/state", f"{9:032x}", holder, 10_000, SystemClock())
    lease.take()

    with pytest.raises(InUseError) as raised:
        operation(at(made.path, clock=ManualClock()))

    assert raised.value.kind == "checkpoint-in-use"
    assert raised.value.fields["pid"] == find_process().pid


@pytest.mark.parametrize("provider", SPARK_PROVIDERS.values(), ids=SPARK_PROVIDERS)
@pytest.mark.parametrize(
    "operation",
    [
        lambda checkpoint: checkpoint.rescale(2),
        lambda checkpoint: checkpoint.undo_rescale(),
        lambda checkpoint: checkpoint.expire(2),
        lambda checkpoint: checkpoint.repair(),
    ],
    ids=["rescale", "undo_rescale", "expire", "repair"],
)
def test_checkpoint_of_sparks_is_left_as_it_is(tmp_path, operation, provider):
    """Catches a refused operation that leaves its lease directory behind."""
    made = make_small(tmp_path, 2, num_partitions=4)
    edit_conf(made, **{PROVIDER_KEY: provider})
    before = sorted(Path(made.path).rglob("*"))

    with pytest.raises(IncompatibleError) as raised:
        operation(Checkpoint(made.path))

    assert raised.value.kind == "other-provider"
    assert sorted(Path(made.path).rglob("*")) == before
