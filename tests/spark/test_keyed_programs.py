"""A few random programs of keyed state; `python -m tests.attack.keyed` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from .keyed import DiffersError, run
from .keyed_bugs import BUGS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_programs_return_what_plain_dicts_do(tmp_path: Path) -> None:
    """Catches state, a timer or a time to live that is not what the program was promised."""
    tried = run(seed=1, minutes=1, directory=str(tmp_path), programs=2)

    assert tried["program"] >= 1


@pytest.mark.extended
@pytest.mark.parametrize("bug", list(BUGS))
def test_planted_bugs_are_found(tmp_path: Path, bug: str) -> None:
    """Catches a lane that would miss state of another key, state that expires though it was read,
    or a timer that fires though it was deleted.
    """
    with pytest.raises(DiffersError):
        run(5, 1, str(tmp_path), first=2, programs=1, bug=bug)
