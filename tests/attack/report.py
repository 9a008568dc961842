"""The record of runs, a line a life, and the tables that are made of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.chaos.report import RESULTS, read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from .life import Life

HEAD = """# Attack on operations

Random operations on checkpoints of real queries, with batches between them. After each one every
row is compared with a dict of Python, every byte is verified, and bytes of forgotten keys are
looked for in every file.

| disturbance | what happened |
|---|---|
| killed | kill -9 before or after a call that changes the storage; then the same operation again |
| full disk | the disk was full; then the same operation again |
| beside another | it stood still at such a call, while another operation began and ended |
| beside the query | it stood still at such a call, while the query was started |

*Refused*: by an error of the package, and nothing had changed.
"""
DISTURBANCES = ("", "killed", "full disk", "beside another", "beside the query")


def write_line(record: Path, life: Life, failure: str) -> None:
    """Add a life to a record, which may hold those of other seeds."""
    tally, plan = life.tally, life.plan
    line = {
        "seed": plan.seed[0],
        "life": plan.seed[1],
        "failure": failure,
        "steps": [[*key, number] for key, number in tally.steps.items()],
        "on": f"{plan.operator}, {plan.backend}, v{plan.checkpoint_format}",
        "types": [column.type_name for column in life.operator.keys],
        **{name: getattr(tally, name) for name in ("audits", "batches", "rows", "searches")},
    }
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")


def make_table(lives: list[dict[str, Any]]) -> str:
    """Return what happened as Markdown."""
    steps: Counter[tuple[str, str]] = Counter()
    refused: Counter[str] = Counter()
    places: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for life in lives:
        places[life["on"]] += 1
        types.update(life["types"])
        for name, disturbance, ending, number in life["steps"]:
            steps[name, disturbance] += number
            refused[name] += number * (ending == "refused")
    names = sorted({name for name, _ in steps})
    heads = ["undisturbed", *DISTURBANCES[1:], "all", "refused"]
    lines = [f"| operation | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for name in names:
        numbers = [steps[name, disturbance] for disturbance in DISTURBANCES]
        cells = [*numbers, sum(numbers), refused[name]]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    sums = [sum(steps[name, disturbance] for name in names) for disturbance in DISTURBANCES]
    cells = [*sums, sum(sums), sum(refused.values())]
    lines.append(f"| all | {' | '.join(map(str, cells))} |")
    lines += _counted("query, state backend, format", places) + _counted("type of a key", types)
    failures = [life for life in lives if life["failure"]]
    lines += [
        "",
        f"Seeds {', '.join(map(str, _seeds(lives)))}; {len(lives)} lives, "
        f"{sum(life['batches'] for life in lives):,} batches of queries, "
        f"{sum(life['audits'] for life in lives):,} audits, "
        f"{sum(life['rows'] for life in lives):,} rows compared, "
        f"{sum(life['searches'] for life in lives):,} searches for forgotten keys.",
        "",
        f"Failures: {len(failures)}.",
    ]
    for life in failures:
        lines.append(f"- seed {life['seed']}, life {life['life']}: {life['failure']}")
    return "\n".join(lines) + "\n"


def _counted(title: str, counts: Counter[str]) -> list[str]:
    rows = [f"| {name} | {number} |" for name, number in sorted(counts.items())]
    return ["", f"| {title} | times |", "|---|---:|", *rows]


def write_table(record: Path) -> None:
    """Write the tables of a record where results are kept."""
    lives = read_lines(record)
    commands = "\n".join(f"./build.sh attack --seed {seed}" for seed in _seeds(lives))
    (RESULTS / "attack.md").write_text(f"{HEAD}\n```\n{commands}\n```\n\n{make_table(lives)}")


def _seeds(lives: list[dict[str, Any]]) -> list[int]:
    return sorted({life["seed"] for life in lives})
