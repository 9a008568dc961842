"""The contract suite of stores on a real HDFS, by the JVM that operations start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statestore.core.clock import ManualClock
from statestore.io.file_io import TreeFileIO
from tests.contract.conftest import StoreBench, any_format
from tests.contract.test_store import *  # noqa: F403

from .conftest import EXTENDED

pytestmark = [pytest.mark.ours, EXTENDED]

__all__ = ["any_format"]


@pytest.fixture
def bench(hdfs_storage: tuple[TreeFileIO, str]) -> Iterator[StoreBench]:
    """What the contract suite, imported above, runs on."""
    found = StoreBench(*hdfs_storage, ManualClock())
    yield found
    for store in found.opened:
        store.close()
