"""A checkpoint to be damaged."""

import pytest

from statestore.testing.checkpoints import MadeCheckpoint
from tests.shim import Engine

FORMATS = [("filesystem", 1), ("filesystem", 2), ("rocksdb", 2)]


@pytest.fixture(autouse=True)
def engines_end():
    """No engine of a test sends requests while the next one counts them."""
    yield
    while Engine.made:
        Engine.made.pop().end()


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
        # Nothing is merged, and no snapshot taken, beside the test.
    )
    for batch in range(4):
        checkpoint.run_batch({key: batch * 100 + key for key in range(batch * 10, batch * 10 + 30)})
    return checkpoint
