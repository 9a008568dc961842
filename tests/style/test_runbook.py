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


def test_no_step_at_an_alert_deletes_what_a_schedule_keeps() -> None:
    """Catches `--keep N` of a few, by which the newest N stay of what was kept for a month."""
    of_alerts, *_ = (DOCS / "runbook.md").read_text().partition("\n## Without an alert\n")

    assert re.findall(r"--keep \d", of_alerts) == []


def test_lines_to_look_for_in_a_log_are_written() -> None:
    """Catches a text that no engine, and nothing of the shim, ever says."""
    sources = (DOCS.parent / "jvm-shim" / "src" / "main").rglob("*.scala")
    said = " ".join(file.read_text() for file in sources)
    pages = [(DOCS / name).read_text() for name in ("runbook.md", "troubleshooting.md")]
    quoted = {one for page in pages for one in re.findall(r"`(engine [a-z ]+[a-z])", page)}

    assert len(quoted) > 5
    assert [one for one in sorted(quoted) if one.removeprefix("engine ") not in said] == []
