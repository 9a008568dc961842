"""The checker is checked: it must find three bugs, and nothing where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.life import Life
from tests.chaos.plan import LOCAL, make_plan
from tests.lives import ProblemError

pytestmark = [
    pytest.mark.extended,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NUM_FAULTS = 12
KINDS = ("engine killed", "driver killed")
"""Each makes state be loaded from its files."""
LOST_FILE = r"\[?(version|file)-not-found|directory-gone|is not there"
SHOWN_AS = {
    "answers-first": LOST_FILE,
    "ignores-delta": r"rows of the (sink|state) are lost|rows of a version are not as many",
    "age-alone": LOST_FILE,
}
"""What the audit says of each bug."""


def _live(s3_server, disk: Path, bug: str) -> Life:
    plan = make_plan(
        5, 0, has_own_disk=False, s3_endpoint=s3_server.endpoint, bucket="", master=LOCAL,
        backend="filesystem", checkpoint_format=2, checkpoint_storage="", query="totals",
        trigger="always", retained=3,
    )  # fmt: skip
    life = Life(plan, disk, s3_server, bug)
    try:
        life.run(NUM_FAULTS, lambda: False, KINDS)
    finally:
        life.clean_up(None)
    return life


def test_nothing_is_found_where_no_bug_is_planted(s3_server, tmp_path: Path) -> None:
    """Catches an audit that cries wolf."""
    life = _live(s3_server, tmp_path, "")

    assert life.tally.num_faults >= NUM_FAULTS
    assert life.tally.audits == 1
    assert life.tally.rows > 0


@pytest.mark.parametrize("bug", SHOWN_AS)
def test_audit_finds_a_planted_bug(s3_server, tmp_path: Path, bug: str) -> None:
    """Catches an audit that would miss a commit that never came, a delta that was left out of a
    load, or a file that was deleted while a retained version needed it.
    """
    with pytest.raises(ProblemError) as found:
        _live(s3_server, tmp_path, bug)

    assert re.search(SHOWN_AS[bug], " ".join(found.value.args)), found.value.args
