"""Random lives of a whole checkpoint: batches, rescales, undos, savepoints restored in any number
of state partitions and to either backend, branches, and deaths in between.
"""

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.checkpoint.layout import lease_directory
from statestore.core.errors import InvalidArgumentError, StorageError
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.operations.rescale.rescale import rescale, undo_rescale
from statestore.operations.savepoint.branch import plan_branch
from statestore.operations.savepoint.restore import plan_restore
from statestore.operations.savepoint.savepoint import take_savepoint
from statestore.testing.checkpoints import OPERATORS, MadeCheckpoint, read_checkpoint
from statestore.testing.fault_io import Fault, FaultFileIO

MUTATIONS = ("write", "publish", "delete")
OPTIONS = StateStoreOptions(fsync_enabled=False)

batches = st.dictionaries(st.integers(0, 40), st.none() | st.integers(-5, 5), max_size=12)
faults = st.none() | st.builds(
    Fault, st.integers(0, 25), happens=st.booleans(), calls=st.just(MUTATIONS)
)
restores = st.tuples(
    st.integers(1, 6),
    st.sampled_from(["filesystem", "rocksdb"]),
    st.sampled_from(["canonical", "native"]),
)
steps = st.one_of(
    st.tuples(st.just("batch"), batches, st.none()),
    st.tuples(st.just("rescale"), st.integers(1, 6), faults),
    st.tuples(st.just("undo"), st.none(), faults),
    st.tuples(st.just("restore"), restores, st.none()),
    st.tuples(st.just("branch"), st.none(), st.none()),
)


def attempt(path, operation, fault):
    """Do something, once more after a failure."""
    io = FaultFileIO(LocalFileIO())
    io.arm(fault)
    has_failed = False
    try:
        operation(io)
    except StorageError:
        assert io.has_failed
        has_failed = True
    io.arm(None)
    directory = lease_directory(f"{path}/state")
    for info in io.list(directory):  # its holder's end lets a lease go, also one that it could not
        io.delete(f"{directory}/{info.name}")
    if has_failed:
        operation(io)


@settings(max_examples=30, deadline=None)
@given(
    history=st.lists(steps, max_size=7),
    checkpoint_format=st.sampled_from([1, 2]),
    num_partitions=st.integers(1, 4),
)
def test_rows_are_those_of_the_batches(history, checkpoint_format, num_partitions):
    """Catches any order of batches, rescales and undos after which a row is lost or wrong."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory, "scratch")
        scratch.mkdir()
        made = MadeCheckpoint(
            f"{directory}/checkpoint",
            scratch,
            num_partitions,
            checkpoint_format=checkpoint_format,
            operators=(OPERATORS[0], OPERATORS[2]),
        )
        made.run_batch({1: 1})
        for number, (what, argument, fault) in enumerate(history):
            path = made.path
            match what:
                case "batch":
                    made.run_batch(argument)
                case "rescale":
                    attempt(made.path, lambda io, n=argument: rescale(made.path, n, io=io), fault)
                case "undo":
                    with suppress(InvalidArgumentError):
                        attempt(made.path, lambda io: undo_rescale(made.path, io=io), fault)
                case "restore":
                    num_partitions, backend, form = argument
                    savepoint, made.path = f"{directory}/{number}-taken", f"{directory}/{number}"
                    take_savepoint(path, savepoint, form=form, options=OPTIONS)
                    with plan_restore(
                        savepoint, made.path, backend=backend, num_partitions=num_partitions,
                        options=OPTIONS,
                    ) as plan:  # fmt: skip
                        plan.run()
                    made.backend = backend
                case "branch":
                    made.path = f"{directory}/{number}"
                    with plan_branch(path, made.path, options=OPTIONS) as branch:
                        branch.run()
            assert read_checkpoint(made.path) == made.expected()
        made.run_batch({2: 2})

        assert read_checkpoint(made.path) == made.expected()
