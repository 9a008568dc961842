"""The record of runs, a line a life, and the table that is made of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore import __version__

from .faults import FAULTS
from .life import OUTCOMES

if TYPE_CHECKING:
    from .life import Life

HEAD = """# Chaos

Faults under real jobs, and what the job did next. Up to eight faults happen at a time; each has the
outcome of its group. After each group every query had to commit another batch.

| outcome | what it took |
|---|---|
| went on | nothing: engines were replaced, tasks tried again |
| restarted by run | the query failed, and `statestore.run` started it again |
| started again | the application was gone; another one was started on the same checkpoints |

An audit compares every row of sink and state with a batch computation, and verifies every byte of
every version. It fails when an orphan, a process or a scratch directory is left. Below the tables
are the failures.
"""
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / __version__


def write_line(record: Path, life: Life, failure: str) -> None:
    """Add a life to a record, which may hold those of other seeds."""
    tally = life.tally
    line = {
        "seed": life.plan.seed[0],
        "life": life.plan.seed[1],
        "failure": failure,
        "faults": [[*key, number] for key, number in tally.faults.items()],
        "operations": tally.operations,
        "lanes": [lane.to_json() for lane in life.plan.lanes],
        **{name: getattr(tally, name) for name in (
            "audits", "batches", "rows", "engine_mib", "store_files")},
    }  # fmt: skip
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(record: Path) -> list[dict[str, Any]]:
    """Return the lives of a record."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines()]


def num_faults(lives: list[dict[str, Any]]) -> int:
    """Return the faults of all lives."""
    return sum(number for life in lives for *_, number in life["faults"])


def make_table(lives: list[dict[str, Any]]) -> str:
    """Return what happened as Markdown."""
    faults: Counter[tuple[str, str]] = Counter()
    operations: Counter[str] = Counter()
    lanes: Counter[str] = Counter()
    for life in lives:
        for name, outcome, number in life["faults"]:
            faults[name, outcome] += number
        operations.update(life["operations"])
        for lane in life["lanes"]:
            storage = "S3" if lane["checkpoint_storage"] else "disk"
            lanes[f"{lane['backend']}, v{lane['checkpoint_format']}, {storage}"] += 1
    failures = [life for life in lives if life["failure"]]
    lines = [
        f"| fault | {' | '.join(OUTCOMES)} | all |",
        f"|---|{'---:|' * (len(OUTCOMES) + 1)}",
    ]
    for name in FAULTS:
        numbers = [faults[name, outcome] for outcome in OUTCOMES]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} | {sum(numbers)} |")
    sums = [sum(faults[name, outcome] for name in FAULTS) for outcome in OUTCOMES]
    lines.append(f"| all | {' | '.join(map(str, sums))} | {sum(sums)} |")
    lines += ["", "| operation | times |", "|---|---:|"]
    lines += [f"| {name} | {number} |" for name, number in sorted(operations.items())]
    lines += ["", "| lane | times |", "|---|---:|"]
    lines += [f"| {name} | {number} |" for name, number in sorted(lanes.items())]
    most = {name: max((life[name] for life in lives), default=0) for name in (
        "engine_mib", "store_files")}  # fmt: skip
    lines += [
        "",
        f"Seeds {', '.join(map(str, _seeds(lives)))}; {len(lives)} applications, "
        f"{sum(life['audits'] for life in lives)} audits, "
        f"{sum(life['batches'] for life in lives):,} batches, "
        f"{sum(life['rows'] for life in lives):,} events counted; largest engine "
        f"{most['engine_mib']} MiB, most files of a store that are older than a minute "
        f"{most['store_files']}.",
        "",
        f"Failures: {len(failures)}.",
    ]
    lines += [f"- seed {life['seed']}, life {life['life']}: {life['failure']}" for life in failures]
    return "\n".join(lines) + "\n"


def write_table(lives: list[dict[str, Any]]) -> None:
    """Write the table where results are kept."""
    seeds = {seed: [life for life in lives if life["seed"] == seed] for seed in _seeds(lives)}
    commands = "\n".join(
        f"./build.sh chaos --seed {seed} --faults {num_faults(own)}" for seed, own in seeds.items()
    )
    (RESULTS / "chaos.md").write_text(f"{HEAD}\n```\n{commands}\n```\n\n{make_table(lives)}")


def _seeds(lives: list[dict[str, Any]]) -> list[int]:
    return sorted({life["seed"] for life in lives})
