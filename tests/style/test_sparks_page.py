"""docs/spark.md says what each Spark can do as the tests have it."""

from __future__ import annotations

import re
from pathlib import Path

from statestore.core.version import SPARK_MINORS
from tests.spark.features import FEATURES

ROOT = Path(__file__).resolve().parents[2]


def _section() -> str:
    page = (ROOT / "docs" / "spark.md").read_text()
    return page.partition("\n## Versions of Spark\n")[2].partition("\n## ")[0]


def test_page_says_what_not_every_spark_can() -> None:
    """Catches a test that is left out on some Spark without a word to users, or a false word."""
    rows = [
        [
            feature.shown,
            *(feature.newer if feature.is_in(minor) else feature.older for minor in SPARK_MINORS),
        ]
        for feature in FEATURES.values()
        if feature.shown is not None
    ]
    table = [line.strip("| ").split(" | ") for line in _section().splitlines() if "|" in line]

    assert rows
    assert [row for row in table if row[0] not in SPARK_MINORS and len({*row[1:]}) > 1] == rows


def test_page_names_tests_that_are_there() -> None:
    """Catches a claim whose test is gone."""
    named = re.findall(r"`((?:spark|packaging)/test_\w+\.py)`", _section())

    assert named
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]
