"""Lanes on clusters: `./build.sh test-cluster`; each makes its hosts, and is left out without."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cluster import STATE_PARTITIONS, why_no_python
from .hosts import why_not
from .record import Row, table, write

TIMEOUT_S = 1500
_RESULTS = "--results"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_RESULTS, metavar="FILE", help="write what ran to a page")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="module")
def cluster_directory() -> Iterator[Path]:
    """A directory for a cluster, where this machine can have one."""
    if reason := why_not() or why_no_python():
        pytest.skip(f"no cluster: {reason}")
    directory = Path(tempfile.mkdtemp(prefix="statestore-cluster-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def record(request: pytest.FixtureRequest) -> Iterator[Callable[[Row], None]]:
    """Takes what ran and was right.

    The page is printed at the end and, where it is asked for and nothing failed, written.
    """
    rows: list[Row] = []
    yield rows.append
    file = request.config.getoption(_RESULTS)
    manager = request.path.stem.removeprefix("test_")
    text = table(manager, STATE_PARTITIONS, rows, file or "FILE")
    print(text)
    if file and not request.session.testsfailed:
        write(Path(file), text)
