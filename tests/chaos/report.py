"""What a life is in the record of runs, and the tables that are made of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.lives import Line, counted

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


def line_of(life: Life) -> Line:
    """Return what a life did."""
    tally = life.tally
    return {
        "faults": [[*key, number] for key, number in tally.faults.items()],
        "operations": tally.operations,
        "lanes": [lane.to_json() for lane in life.plan.lanes],
        **{name: getattr(tally, name) for name in (
            "audits", "batches", "rows", "engine_mib", "store_files")},
    }  # fmt: skip


def num_faults(lives: list[Line]) -> int:
    """Return the faults of all lives."""
    return sum(number for life in lives for *_, number in life["faults"])


def table(lives: list[Line]) -> list[str]:
    """Return the lines of the tables of what happened; the last one sums it up."""
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
    lines = [
        f"| fault | {' | '.join(OUTCOMES)} | all |",
        f"|---|{'---:|' * (len(OUTCOMES) + 1)}",
    ]
    for name in FAULTS:
        numbers = [faults[name, outcome] for outcome in OUTCOMES]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} | {sum(numbers)} |")
    sums = [sum(faults[name, outcome] for name in FAULTS) for outcome in OUTCOMES]
    lines.append(f"| all | {' | '.join(map(str, sums))} | {sum(sums)} |")
    lines += counted("operation", operations.items()) + counted("lane", lanes.items())
    most = {name: max((life[name] for life in lives), default=0) for name in (
        "engine_mib", "store_files")}  # fmt: skip
    return [
        *lines,
        f"{len(lives)} applications, "
        f"{sum(life['audits'] for life in lives)} audits, "
        f"{sum(life['batches'] for life in lives):,} batches, "
        f"{sum(life['rows'] for life in lives):,} events counted; largest engine "
        f"{most['engine_mib']} MiB, most files of a store that are older than a minute "
        f"{most['store_files']}",
    ]
