"""docs/runbook.md says what to do at each alert."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_each_alert_has_its_section() -> None:
    """Catches an alert at night that no page knows, and a page about an alert that is gone."""
    alerts = re.findall(r"- alert: (\w+)", (DOCS / "monitoring" / "alerts.yaml").read_text())
    titles = re.findall(r"^## (Statestore\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)

    assert alerts
    assert titles == alerts
