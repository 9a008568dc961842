"""A query that was stopped, whose checkpoint operations change before it goes on."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

from statestore import Checkpoint

from .harness import PROVIDER_CLASS, Lane
from .queries import generate_events


class Stopped:
    """A query that was stopped, with one more file to read.

    Attributes:
        path: Its checkpoint; tests work on copies, whose query goes on with the same input.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.path = lane.checkpoint
        lane.feed({"events": generate_events("events", 9, num_rows=30)})

    def copy(self, path: Path) -> str:
        """Return a copy of the checkpoint, made with our own command: its schemas are its own."""
        Checkpoint(self.path).branch(path)
        return str(path)

    def go_on(self, path: str, provider: str | None = None) -> list[list[str]]:
        """Run the query from a checkpoint; return the rows of each batch."""
        lane = copy.copy(self.lane)
        lane.checkpoint, lane.batches = Path(path), {}
        lane.progress, lane.attempts = [], {}
        if provider is not None:
            lane.conf = {**lane.conf, PROVIDER_CLASS: provider}
        lane.run()
        return [lane.batches[batch] for batch in sorted(lane.batches)]


def rows_of(path: str, variables: Iterable[str]) -> dict[str, list[str]]:
    """Return all rows of variables, whatever their state partition."""
    return {
        name: sorted(
            repr((row["key"], row["value"]))
            for row in Checkpoint(path).rows(name).read().to_pylist()
        )
        for name in variables
    }
