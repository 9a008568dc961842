"""What several of these tests read, and none changes."""

from __future__ import annotations

import pytest

from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import MadeStore


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with files of more than 4 MiB in each of three state partitions."""
    stores = (MadeStore("default", ("k", "more")),)
    made = MadeCheckpoint(
        str(tmp_path_factory.mktemp("large") / "ck"),
        operators=(("stateStoreSave", stores),),
        num_partitions=3,
        block_rows=1000,
        options={"file_compression": "none"},
    )
    made.run_batch({n: n * 7 for n in range(250_000)})
    return made.path
