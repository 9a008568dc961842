"""A checkpoint and a trial of it that is promoted, in a directory that is copied for each try."""

from __future__ import annotations

import shutil

from statestore import Checkpoint, Trial
from statestore.checkpoint.layout import lease_directory
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.metadata_file import unfinished_operation
from statestore.operations.trial.record import HISTORY, read_record, write_record
from statestore.operations.trial.replacing import put_back, replace_by_branch
from statestore.testing.checkpoints import QUERY_ID, read_checkpoint
from tests.faults.steps import CHANGES
from tests.seams import place_of

FAULTS = (*CHANGES, "delete_tree", "link", "make_directory")


class World:
    """A checkpoint and its trial in a directory that is copied for each death.

    Attributes:
        root: The directory.
    """

    def __init__(self, original, root):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(original, root)
        self.root = root
        self.trial = Trial(root / "trial")
        io, record = LocalFileIO(), read_record(LocalFileIO(), str(root / "trial"))
        write_record(io, str(root / "trial"), record, checkpoint=str(root / "checkpoint"))

    def promote(self, io, clock=None):
        """Do what a promote does before it tidies up, on a storage."""
        directory = str(self.root / "trial")
        replace_by_branch(
            read_record(LocalFileIO(), directory),
            place_of(str(self.root / "checkpoint"), io=io, clock=clock),
            place_of(f"{directory}/checkpoint", io=io),
            (io, directory),
            place_of(str(self.root / "before"), io=io),
        )

    def put_back(self, io, clock=None):
        """Do what a drop does to a checkpoint whose promote did not end."""
        directory = str(self.root / "trial")
        put_back(
            read_record(LocalFileIO(), directory),
            directory,
            place_of(str(self.root / "checkpoint"), io=io, clock=clock),
            place_of(str(self.root / "before"), io=io),
            (self.root / "trial" / HISTORY).read_bytes(),
        )

    def end_process(self):
        """Let the leases of an operation that failed go, as the end of its process does."""
        for name in ("checkpoint", "trial/checkpoint"):
            shutil.rmtree(lease_directory(str(self.root / name / "state")), ignore_errors=True)

    @property
    def stands(self):
        """What a query goes on from: its rows, or "refused"."""
        path = str(self.root / "checkpoint")
        if unfinished_operation(LocalFileIO(), path) is not None:
            return "refused"
        return read_checkpoint(path)

    def check_whole(self, version=3):
        """Check the checkpoint: a query's, whole, with its history."""
        ck = Checkpoint(self.root / "checkpoint")
        assert ck.verify(deep=True).findings == ()
        assert ck.info.newest_version == version
        with open_checkpoint(place_of(ck.uri)) as opened:
            assert opened.query_id == QUERY_ID
            assert opened.is_between_batches
        assert "compact" in [entry.operation for entry in ck.history()]
