"""A checkpoint to be damaged."""

import pytest

from statestore.testing.checkpoints import MadeCheckpoint

FORMATS = [("filesystem", 1), ("filesystem", 2), ("rocksdb", 2)]


@pytest.fixture(params=FORMATS, ids=lambda param: f"{param[0]}-v{param[1]}")
def made(request, tmp_path):
    """A checkpoint of four batches."""
    backend, checkpoint_format = request.param
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    checkpoint = MadeCheckpoint(
        str(tmp_path / "checkpoint"),
        scratch,
        backend=backend,
        checkpoint_format=checkpoint_format,
        options={"rocksdb_merge_min_files": 100},  # nothing is merged beside the test
    )
    for batch in range(4):
        checkpoint.run_batch({key: batch * 100 + key for key in range(batch * 10, batch * 10 + 30)})
    return checkpoint
