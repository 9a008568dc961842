"""What a life is in the record of runs, and the tables that are made of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.lives import Line, counted

if TYPE_CHECKING:
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

| operation | what is killed |
|---|---|
| scale, killed: change | a rescale, as a driver leaves it that is killed within one |
| scale, killed: driver | a driver, from its first start of the query to the one behind a change |
| retain, two schedules | at times the one from outside; the other one is the driver's |

*Refused*: by an error of the package, and nothing had changed.
"""
DISTURBANCES = ("", "killed", "full disk", "beside another", "beside the query")


def line_of(life: Life) -> Line:
    """Return what a life did."""
    tally, plan = life.tally, life.plan
    return {
        "steps": [[*key, number] for key, number in tally.steps.items()],
        "on": f"{plan.operator}, {plan.backend}, v{plan.checkpoint_format}",
        "types": [column.type_name for column in life.operator.keys],
        **{name: getattr(tally, name) for name in ("audits", "batches", "rows", "searches")},
    }


def table(lives: list[Line]) -> list[str]:
    """Return the lines of the tables of what happened; the last one sums it up."""
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
    lines += counted("query, state backend, format", places.items())
    lines += counted("type of a key", types.items())
    return [
        *lines,
        f"{len(lives)} lives, "
        f"{sum(life['batches'] for life in lives):,} batches of queries, "
        f"{sum(life['audits'] for life in lives):,} audits, "
        f"{sum(life['rows'] for life in lives):,} rows compared, "
        f"{sum(life['searches'] for life in lives):,} searches for forgotten keys",
    ]
