"""Random lives of a whole checkpoint: batches, rescales, undos, savepoints restored in any number
of state partitions and to either backend, branches, and deaths in between.
"""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from statestore import Savepoint
from statestore.checkpoint.layout import lease_directory
from statestore.core.errors import InvalidArgumentError, StorageError
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at

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
        undoable = 0  # rescales since the last batch; None where that is not known
        for number, (what, argument, fault) in enumerate(history):
            path = made.path
            match what:
                case "batch":
                    made.run_batch(argument)
                    undoable = 0
                case "rescale":
                    before = at(made.path).info.num_partitions
                    attempt(
                        made.path, lambda io, n=argument: at(made.path, io=io).rescale(n), fault
                    )
                    if undoable is not None:
                        undoable += argument != before
                case "undo":
                    is_done = True
                    try:
                        attempt(made.path, lambda io: at(made.path, io=io).undo_rescale(), fault)
                    except InvalidArgumentError:
                        is_done = False
                    if fault is not None or undoable is None:  # done before the fault, and again
                        undoable = None
                    else:
                        assert is_done == (undoable > 0)
                        undoable -= is_done
                case "restore":
                    num_partitions, backend, form = argument
                    savepoint, made.path = f"{directory}/{number}-taken", f"{directory}/{number}"
                    at(path, options=OPTIONS).savepoint(savepoint, form=form)
                    at(savepoint, kind=Savepoint, options=OPTIONS).restore(
                        made.path, backend=backend, num_partitions=num_partitions
                    )
                    made.backend = backend
                    undoable = 0
                case "branch":
                    made.path = f"{directory}/{number}"
                    undoable = None
                    at(path, options=OPTIONS).branch(made.path)
            assert read_checkpoint(made.path) == made.expected()
        made.run_batch({2: 2})

        assert read_checkpoint(made.path) == made.expected()
