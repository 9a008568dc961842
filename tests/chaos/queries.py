"""The queries under chaos, and what a batch computation says that each should have found.

No event is late: the stream is in order of its times. So what a query returns depends on the files
it has read and on its watermark, and not on how they were cut into batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from .stream import SCHEMA, Event

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
SESSION_GAP = timedelta(hours=2)
JOIN_SPAN = timedelta(hours=6)
DELAY = "1 hour"


@dataclass(frozen=True)
class Expected:
    """What a query should have returned, and what it should still know.

    Attributes:
        rows: Rows of the sink and how often; of `totals` the newest row of every key.
        state: Rows of the state, None where its size alone is told by the files.
    """

    rows: Counter[Row]
    state: Counter[Row] | None


@dataclass(frozen=True)
class ChaosQuery:
    """A query.

    Attributes:
        name: Its kind.
        mode: Output mode.
        build: Makes the frame from the session, the input folder and nothing else.
        expect: Computes the outcome from the events of each source and the watermark.
        has_duplicates: Whether its input has events twice.
    """

    name: str
    mode: str
    build: Callable[[SparkSession, Path], DataFrame]
    expect: Callable[[Sequence[Sequence[Event]], datetime], Expected]
    has_duplicates: bool = False

    def sink_rows(self, batches: Iterable[Sequence[Event]]) -> Counter[Row]:
        """Return the rows of a sink as `Expected` has them, from those of every batch in order."""
        rows = [_row(found) for batch in batches for found in batch]
        if self.mode == "update":
            rows = list({row[0]: row for row in rows}.values())
        return Counter(rows)


def _row(found: Event) -> Row:
    return tuple(found[name] for name in sorted(found))


def _read(session: SparkSession, directory: Path) -> DataFrame:
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(directory))


def _time(event: Event) -> datetime:
    return datetime.fromisoformat(event["time"])


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _build_totals(session: SparkSession, directory: Path) -> DataFrame:
    from pyspark.sql import functions as sf

    grouped = _read(session, directory).groupBy(sf.col("user").alias("a_user"))
    return grouped.agg(sf.count("*").alias("n"), sf.sum("delta").alias("total"))


def _expect_totals(sources: Sequence[Sequence[Event]], _watermark: datetime) -> Expected:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in sources[0]:
        totals[event["user"]][0] += 1
        totals[event["user"]][1] += event["delta"]
    rows = Counter((user, *sums) for user, sums in totals.items())
    return Expected(rows, rows)


def _build_distinct(session: SparkSession, directory: Path) -> DataFrame:
    return _read(session, directory).select("page", "revision").dropDuplicates()


def _expect_distinct(sources: Sequence[Sequence[Event]], _watermark: datetime) -> Expected:
    rows = Counter({(event["page"], event["revision"]) for event in sources[0]})
    return Expected(rows, rows)


def _build_pairs(session: SparkSession, directory: Path) -> DataFrame:
    left = _read(session, directory).select("page", "revision", "time")
    right = _read(session, directory).selectExpr("page p", "revision r", "time t")
    hours = JOIN_SPAN // timedelta(hours=1)
    near = f"page = p AND t BETWEEN time AND time + INTERVAL {hours} HOURS"
    from pyspark.sql import functions as sf

    joined = left.withWatermark("time", DELAY).join(right.withWatermark("t", DELAY), sf.expr(near))
    return joined.select("page", "r", "revision")


def _expect_pairs(sources: Sequence[Sequence[Event]], _watermark: datetime) -> Expected:
    right: dict[str, list[Event]] = defaultdict(list)
    for event in sources[1]:
        right[event["page"]].append(event)
    rows = Counter(
        (event["page"], other["revision"], event["revision"])
        for event in sources[0]
        for other in right[event["page"]]
        if timedelta(0) <= _time(other) - _time(event) <= JOIN_SPAN
    )
    return Expected(rows, None)


def _build_sessions(session: SparkSession, directory: Path) -> DataFrame:
    from pyspark.sql import functions as sf

    events = _read(session, directory).withWatermark("time", DELAY)
    gap = f"{SESSION_GAP // timedelta(hours=1)} hours"
    sums = events.groupBy(sf.session_window("time", gap).alias("w"), "user").agg(
        sf.count("*").alias("n"), sf.sum("delta").alias("total")
    )
    form = "yyyy-MM-dd'T'HH:mm:ss'Z'"
    ends = [sf.date_format(f"w.{name}", form).alias(f"{name}_") for name in ("end", "start")]
    return sums.select(*ends, "n", "total", "user")


def _expect_sessions(sources: Sequence[Sequence[Event]], watermark: datetime) -> Expected:
    open_sessions: dict[str, list[Any]] = {}
    made: list[list[Any]] = []
    for event in sources[0]:
        at, user = _time(event), event["user"]
        session = open_sessions.get(user)
        if session is None or at > session[1]:
            session = open_sessions[user] = [at, at, 0, 0, user]
            made.append(session)
        session[1] = at + SESSION_GAP
        session[2] += 1
        session[3] += event["delta"]
    rows = Counter(
        (_text(end), n, _text(start), total, user)
        for start, end, n, total, user in made
        if end <= watermark
    )
    state = Counter((user, n, total) for _, end, n, total, user in made if end > watermark)
    return Expected(rows, state)


TOTALS = ChaosQuery("totals", "update", _build_totals, _expect_totals)
DISTINCT = ChaosQuery("distinct", "append", _build_distinct, _expect_distinct, has_duplicates=True)
PAIRS = ChaosQuery("pairs", "append", _build_pairs, _expect_pairs)
SESSIONS = ChaosQuery("sessions", "append", _build_sessions, _expect_sessions)
QUERIES = {query.name: query for query in (TOTALS, DISTINCT, PAIRS, SESSIONS)}
