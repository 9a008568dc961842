"""The alerts of docs/monitoring fire when they should, as Prometheus itself says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
RULES = MONITORING / "alerts.yaml"
DAY = 24 * 60

# Of two applications, one after the other, or two executors at one address.
FIRST, SECOND = "app_1_driver", "app_2_driver"
ENDS, BEGINS = "_x30", "_x14 "


def series(of: str, name: str, values: str) -> dict[str, str]:
    """Return a metric as Spark's servlet shows it, with one value a minute."""
    return {"series": f'metrics_{of}_statestore_{name}{{instance="host"}}', "values": values}


def savepoints(name: str, values: str) -> dict[str, str]:
    """Return a metric as `statestore savepoint --metrics` writes it."""
    return {"series": f'statestore_savepoints_{name}{{checkpoint="/c"}}', "values": values}


CASES: dict[str, tuple[str, int, bool, list[dict[str, str]]]] = {
    "engines die": (
        "StatestoreEngineRestarts",
        14,
        True,
        [series(FIRST, "engineRestarts_Value", "0x9 1 2 3 4 4 4")],
    ),
    "an engine died": (
        "StatestoreEngineRestarts",
        14,
        False,
        [series(FIRST, "engineRestarts_Value", "0x9 1x9")],
    ),
    "two engines died": (
        "StatestoreEngineRestarts",
        14,
        False,
        [series(FIRST, "engineRestarts_Value", "0x9 1 2x9")],
    ),
    "engines died, and another application is there": (
        "StatestoreEngineRestarts",
        16,
        True,
        [
            series(FIRST, "engineRestarts_Value", f"0x8 1 2 3 4 4 {ENDS}"),
            series(SECOND, "engineRestarts_Value", f"{BEGINS} 0x9"),
        ],
    ),
    "no engine": (
        "StatestoreNoEngine",
        14,
        True,
        [
            series(FIRST, "enginesRunning_Value", "1x9 0x9"),
            series(FIRST, "commitMs_Count", "0+8x10 80x9"),
        ],
    ),
    "no engine of an idle query": (
        "StatestoreNoEngine",
        40,
        False,
        [
            series(FIRST, "enginesRunning_Value", "0x60"),
            series(FIRST, "commitMs_Count", "80x60"),
        ],
    ),
    "no engine, after another application": (
        "StatestoreNoEngine",
        22,
        True,
        [
            series(FIRST, "enginesRunning_Value", f"1x13 {ENDS}"),
            series(FIRST, "commitMs_Count", f"0+8x13 {ENDS}"),
            series(SECOND, "enginesRunning_Value", f"{BEGINS} 1 1 1 0x9"),
            series(SECOND, "commitMs_Count", f"{BEGINS} 0 8 16 16x9"),
        ],
    ),
    "commits wait": (
        "StatestoreCommitWaitsForDisk",
        20,
        True,
        [series(FIRST, "commitSyncMs_Mean", "250x30"), series(FIRST, "commitMs_Count", "0+8x30")],
    ),
    "commits waited, and the query was stopped": (
        "StatestoreCommitWaitsForDisk",
        40,
        False,
        [series(FIRST, "commitSyncMs_Mean", "250x60"), series(FIRST, "commitMs_Count", "80x60")],
    ),
    "a commit waited": (
        "StatestoreCommitWaitsForDisk",
        20,
        False,
        [
            series(FIRST, "commitSyncMs_Mean", "20x4 250x10 20x30"),
            series(FIRST, "commitMs_Count", "0+8x45"),
        ],
    ),
    "commits wait for S3": (
        "StatestoreCommitSlow",
        20,
        True,
        [
            series(FIRST, "commitPublishMs_Mean", "9e3x30"),
            series(FIRST, "commitMs_Count", "0+8x30"),
        ],
    ),
    "commits waited for S3, and the query was stopped": (
        "StatestoreCommitSlow",
        40,
        False,
        [series(FIRST, "commitPublishMs_Mean", "9e3x60"), series(FIRST, "commitMs_Count", "80x60")],
    ),
    "engines are large": (
        "StatestoreEngineMemory",
        20,
        True,
        [series(FIRST, "engineRssBytes_Value", "5000000000x30")],
    ),
    "engines are small": (
        "StatestoreEngineMemory",
        20,
        False,
        [series(FIRST, "engineRssBytes_Value", "300000000x30")],
    ),
    "a savepoint is old": (
        "StatestoreSavepointOld",
        DAY + 60,
        True,
        [savepoints("newest_seconds", f"0x{DAY + 90}"), savepoints("failed", f"0x{DAY + 90}")],
    ),
    "the last savepoint failed, and the one before is new": (
        "StatestoreSavepointOld",
        60,
        False,
        [savepoints("newest_seconds", "0x90"), savepoints("failed", "1x90")],
    ),
    "there was never a savepoint": (
        "StatestoreSavepointOld",
        60,
        True,
        [savepoints("failed", "1x90")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_alert_fires_when_it_should(tmp_path: Path, case: str) -> None:
    """Catches an alert that stays silent, above all after a restart, and one that cries wolf."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    alert, minute, is_firing, metrics = CASES[case]
    asked = {
        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": 1}] if is_firing else [],
    }
    test = {"interval": "1m", "input_series": metrics, "promql_expr_test": [asked]}
    file = tmp_path / "case.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]})
    )

    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_ranges_keep_the_names_of_metrics_apart() -> None:
    """Catches a rule or chart that fails where two applications had one address: Prometheus drops
    the name of what it takes a rate of, and refuses two series of the same labels."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    asked = [rule["expr"] for rule in group["rules"]]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]

    ranges = [text for text in asked if re.search(r"\[\d+m", text)]

    assert len(ranges) > 10
    for text in ranges:
        assert re.search(r'\(label_replace\(\{__name__=~"[^"]+"\},\s*"metric", "\$1",', text), text
        assert not re.search(r"\}\[", text), text
