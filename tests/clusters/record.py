"""What the lanes found, as a table for benchmarks/results."""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    from .cluster import Application

_HEAD = """# Queries on a cluster: {title}

A query counts events by key, in {partitions} state partitions, on hosts that are namespaces of one
Linux machine. After each batch Spark is made to forget where its stores are, so that the tasks of
the next one go to any executor. What is killed is killed with SIGKILL, where nothing else is said,
while tasks of the state run.{note}
Where the batches are a sum, a second application went on. Each line ended well: all rows of sink
and state were those of a batch computation, and `verify --deep` found nothing in any version. No
host had an engine or a scratch directory left. The seconds say how long a line takes on a busy
machine, not how fast the query is.

```
./build.sh test-cluster {manager} --results={file}
```

Spark {spark}, {system}.

"""
_TITLES = {"kubernetes": "pods"}
_NOTES = {
    "kubernetes": """
Pods are containers of the image of docs/deploy.md, submitted by its line. The mode says whose
control plane and kubelets there were: those of Kubernetes, or stand-ins for them."""
}


@dataclass(frozen=True, slots=True)
class Row:
    """What ran and was right.

    Attributes:
        mode: Deploy mode.
        storage: Where the state was.
        backend: The state backend, and the checkpoint format.
        killed: What was killed, and other things that happened.
        batches: Batches of the applications, in order.
        keys: Keys that were compared, in sink and state.
        lost: Attempts of tasks that were lost.
        moved: Share of state partitions that were on another executor than in the batch before.
        seconds: From the first application's start to the last one's end.
    """

    mode: str
    storage: str
    backend: str
    killed: str
    batches: str
    keys: int
    lost: int
    moved: str
    seconds: int

    @classmethod
    def of(cls, seconds: float, *ran: Application, **what: Any) -> Row:
        """Return the row of applications that ran one after the other.

        Args:
            seconds: As the attribute.
            ran: The applications.
            what: The fields that they do not tell.
        """
        return cls(
            **what,
            lost=sum(each.num_lost_tasks() for each in ran),
            moved=f"{ran[-1].share_of_moves():.0%}",
            seconds=round(seconds),
        )


def table(manager: str, partitions: int, rows: list[Row], file: str) -> str:
    """Return a page of what ran."""
    heads = [
        *("mode", "state on", "state backend", "killed", "batches", "keys", "tasks lost"),
        *("partitions moved", "seconds"),
    ]
    lines = [heads, ["---"] * len(heads)]
    lines += [[str(getattr(row, field.name)) for field in fields(row)] for row in rows]
    head = _HEAD.format(
        title=_TITLES.get(manager, manager),
        manager=manager,
        note=_NOTES.get(manager, ""),
        partitions=partitions,
        file=file,
        spark=pyspark.__version__,
        system=f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
    )
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(path: Path, text: str) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
