"""The metrics that docs/metrics.md lists are those that the shim declares."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "jvm-shim/src/main/scala/io/statestore/provider/StoreMetrics.scala"
UNITS = {"sum": "number", "time": "ms", "size": "bytes"}


def test_page_lists_the_metrics_of_the_shim() -> None:
    """Catches a metric, its unit or its meaning that changed without the page."""
    declared = re.findall(r'(sum|time|size)\("(\w+)", "([^"]+)"\)', METRICS.read_text())
    page = (ROOT / "docs" / "metrics.md").read_text()

    listed = re.findall(r"^\| `(\w+)` \| (number|ms|bytes) \| (.+) \|$", page, re.MULTILINE)

    assert listed
    assert listed == [(name, UNITS[kind], meaning) for kind, name, meaning in declared]
