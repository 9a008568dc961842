"""Checkpoints and their pages."""

import pytest

from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.sample import make_sample
from tests.ui.served import serve


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A checkpoint of sales, which no test changes."""
    path = tmp_path_factory.mktemp("sample") / "sales"
    make_sample(path)
    return path


@pytest.fixture(scope="module")
def served(sample, tmp_path_factory):
    """The pages of it, and of a directory without one; no changes are allowed."""
    with serve(sample, tmp_path_factory.mktemp("none")) as server:
        yield server


@pytest.fixture
def made(tmp_path):
    """A checkpoint of six versions, to be changed."""
    checkpoint = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    for batch in range(5):
        checkpoint.run_batch(dict.fromkeys(range(batch * 10, batch * 10 + 40), batch))
    checkpoint.run_batch({1: 7})
    return checkpoint


@pytest.fixture
def changing(made):
    """The page of it, by which it may be changed."""
    with serve(made.path, "--allow-changes") as server:
        yield server
