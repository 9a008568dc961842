"""A checkpoint and a trial of it, made without Spark."""

from statestore import Checkpoint, Trial
from statestore.core.clock import ManualClock
from statestore.io.local import LocalFileIO
from statestore.operations.trial.record import Compared, Record, State, write_record
from statestore.testing.checkpoints import QUERY_ID, MadeCheckpoint, read_checkpoint
from tests.rescaled import KEYED, make


def tried(tmp_path, checkpoint_format=1, backend="filesystem"):
    """Make a checkpoint of three batches with history, and a trial that repeated the last one.

    The new code puts other rows: so it is seen from which a query goes on.
    """
    # A batch that is repeated is planned at the time at which it was planned at first.
    shape = {
        "num_partitions": 2,
        "operators": KEYED,
        "checkpoint_format": checkpoint_format,
        "backend": backend,
    }
    made = make(tmp_path, clock=ManualClock(), **shape)
    ck = Checkpoint(made.path)
    ck.compact()  # a line of the history
    trial = tmp_path / "trial"
    trial.mkdir()
    branch = MadeCheckpoint(
        ck.branch(trial / "checkpoint", version=2).made.uri,
        tmp_path / "scratch",
        clock=ManualClock(),
        **shape,
        numbers={key: key for key in range(40) if key % 3} | {50: 1},
    )
    branch.run_batch(dict.fromkeys(range(60), 7))
    record = Record(
        ck.uri,
        QUERY_ID,
        {"job": "job.py"},
        State.COMPARED,
        2,
        3,
        (Compared("state 0", is_same=True),),
    )
    write_record(LocalFileIO(), str(trial), record)
    return ck, Trial(trial)


def tried_with_rows(folder, checkpoint_format, backend="filesystem"):
    """Make a directory with both; return it, and the rows of the old and of the new."""
    folder.mkdir()
    ck, trial = tried(folder, checkpoint_format, backend)
    return folder, read_checkpoint(ck.uri), read_checkpoint(trial.branch.uri)
