"""The page of Spark's own suites says what ran, and nothing fails there for no known reason."""

from __future__ import annotations

import json
from pathlib import Path

from .page import PAGE, render
from .results import PUBLISHED, Known, Results

_DOCUMENT = {
    "groups": {"Operators": ["ASuite"], "Real-time mode": []},
    "notes": {},
    "left_out": {},
    "not_run": {},
    "kinds": {"names": "wants a name"},
    "reason": [
        {"tests": "ASuite: known", "message": "of Spark", "kind": "names", "why": "a class"}
    ],
}


def _row(provider: str, test: str, outcome: str, message: str = "") -> dict[str, str]:
    return {"provider": provider, "test": test, "outcome": outcome, "message": message}


_ROWS = [
    _row("control", "known", "failed"),
    _row("control", "other", "failed"),
    _row("filesystem", "known", "failed", "a name of Spark"),
    _row("filesystem", "other", "failed", "rows differ"),
    _row("filesystem", "", "ended"),
    _row("rocksdb", "known", "failed", "something else"),
    _row("rocksdb", "other", "passed"),
    _row("rocksdb", "", "ended"),
    _row("spark", "other", "failed"),
]


def test_page_is_that_of_the_results() -> None:
    """Catches results that were not written to the page, and a page written by hand."""
    assert PAGE.read_text() == render(Known.read())


def test_every_failure_has_a_reason_and_every_reason_a_failure() -> None:
    """Catches a failure that nobody looked at, and a reason that outlived its failure."""
    known = Known.read()
    failures = [
        (r.minor, r.suite, row) for r in Results.read_all(PUBLISHED) for row in r.failures()
    ]

    assert [(s, row) for m, s, row in failures if not known.reason(m, s, row)] == []
    used = {id(known.reason(minor, suite, row)) for minor, suite, row in failures}
    assert [reason for reason in known.reasons if id(reason) not in used] == []


def test_a_reason_is_that_of_a_test_and_of_what_it_says() -> None:
    """Catches a new failure that hides behind the reason of another."""
    found = Results(Path("4.2/ASuite.jsonl"), _ROWS).unexplained(Known(_DOCUMENT))

    assert [(row["provider"], row["test"]) for row in found] == [
        ("filesystem", "other"),
        ("rocksdb", "known"),
    ]


def test_what_failed_for_no_known_reason_runs_again_alone(tmp_path: Path) -> None:
    """Catches a repetition that leaves a failure behind, or runs again what is known."""
    file = tmp_path / "4.2" / "ASuite.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in _ROWS))

    Results.read(tmp_path, "4.2", "ASuite").forget_unexplained(Known(_DOCUMENT))

    left = Results.read(tmp_path, "4.2", "ASuite")
    assert left.done("filesystem") == {"known"}
    assert left.done("rocksdb") == {"other"}
    assert not left.ended("filesystem")
    assert not left.ended("rocksdb")
    assert left.done("control") == {"known", "other"}
