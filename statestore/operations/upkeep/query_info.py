"""The query of a checkpoint at a glance, running or not: from its logs and leases alone.

A few small files are read, however large the state is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from statestore.checkpoint.query_log import NO_OFFSET
from statestore.core.clock import LAST_MS
from statestore.core.errors import CorruptionError, NotFoundError, StateStoreError
from statestore.core.json_fields import Fields, MalformedError, parse_json
from statestore.core.providers import SPARK_PROVIDERS
from statestore.core.text import Told, format_duration, format_time
from statestore.operations.batches import read_own_batch
from statestore.operations.in_use import find_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.checkpoint.lease import QueryProgress
    from statestore.operations.checkpoint import OpenCheckpoint

_WRITTEN_WITHIN_MS = 10_000
"""An entry that is so much younger than the plan that it has is a copy."""
_TAKEN_WITHIN_MS = 30_000
"""A run may plan a batch so long before the lease of its driver is taken: its engine starts
first."""


@dataclass(frozen=True, slots=True)
class InputPosition:
    """How far a query has read, as its newest committed batch has it.

    Attributes:
        batch: The batch.
        planned_ms: When it was planned, milliseconds since the Unix epoch.
        watermark_ms: The watermark after it, or else the one that it began with, in the time of the
            events; None where the query has none, or no event had come.
        sources: For each source, in the order of the query, the offset that it has read up to, as
            the source writes it: mostly JSON; `-` for none.
    """

    batch: int
    planned_ms: int
    watermark_ms: int | None
    sources: tuple[str, ...]

    def lines(self, lag_ms: int | None) -> list[str]:
        """Return it in words, for people.

        Args:
            lag_ms: How far the watermark is behind the clock; None where nobody knows.
        """
        told = [f"source {number}: {text}" for number, text in enumerate(self.sources)]
        if self.watermark_ms is None:
            return told
        behind = "" if lag_ms is None else f", {format_duration(lag_ms)} behind the clock"
        return [f"watermark {format_time(self.watermark_ms)}{behind}", *told]


@dataclass(frozen=True, slots=True)
class InputRates:
    """How many rows a query reads.

    Attributes:
        batch: The batch that they are of.
        rows: Input rows of the batch.
        input_rows_per_second: Rows that come, by the time from batch to batch; None where unknown.
        processed_rows_per_second: Rows that the batch took, by the time that it took; None as well.
        known_by: `progress` where the driver of a running query says so, in its lease; `offsets`
            where they were counted from the offset log: by offsets, of which transactions and
            compaction make more than rows, and without those of a topic or partition in its first
            batch. Times are as exact as clocks agree.
    """

    batch: int
    rows: int
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    known_by: Literal["progress", "offsets"]


@dataclass(frozen=True, slots=True, repr=False)
class QueryInfo(Told):
    """A query at a glance.

    Attributes:
        uri: Its checkpoint.
        looked_ms: When it was looked at, milliseconds since the Unix epoch, as all times here.
        query_id: ID of the query; None of a savepoint, and where it was lost.
        name: Name of the query, which only its driver knows: None where none runs, or it has none.
        is_running: Whether a query holds a lease; None where nobody knows: Spark's own providers
            have none.
        operation: The operation that changes the checkpoint now; None where none does.
        newest_version: Newest committed version, 0 when there is none.
        uncommitted_batch: Batch that was planned and not committed; None between two batches.
        planned_ms: When the newest batch was planned; None where the offset log does not tell.
        committed_ms: When the newest version was committed, by the storage; None as well.
        batch_ms: From planning to committing the newest version; None as well, where an operation
            has made it or has copied it here, and where the run that is there has repeated the
            batch, which an earlier one had planned. When that run has ended, the time between the
            two counts.
        watermark_ms: Watermark, in the time of the events; None where the query has none.
        lag_ms: How far the watermark is behind the clock: the time of now, or of a query that is
            known to be stopped the time at which its newest batch was planned; None where one of
            them is unknown.
        position: How far it has read; None before its first batch is committed.
        rates: How many rows it reads; None where neither its driver nor its offsets tell. Offsets
            count rows where they are Kafka's.
        began_ms: When the run of the query began; None where none runs, or the lease of its driver
            does not tell.
    """

    uri: str
    looked_ms: int
    query_id: str | None
    name: str | None
    is_running: bool | None
    operation: str | None
    newest_version: int
    uncommitted_batch: int | None
    planned_ms: int | None
    committed_ms: int | None
    batch_ms: int | None
    watermark_ms: int | None
    lag_ms: int | None
    position: InputPosition | None
    rates: InputRates | None
    began_ms: int | None = None

    def words(self) -> dict[str, str]:
        """Return what a page shows of it, by name: all that changes by itself; `-` is unknown."""
        rates = self.rates
        return {
            "state": self._state(),
            "batch": self._batch(),
            "committed": self._ago(self.committed_ms),
            "took": "-" if self.batch_ms is None else format_duration(self.batch_ms),
            "watermark": "-" if self.watermark_ms is None else format_time(self.watermark_ms),
            "lag": "-" if self.lag_ms is None else format_duration(self.lag_ms),
            "input": _rate(rates.input_rows_per_second if rates else None),
            "processed": _rate(rates.processed_rows_per_second if rates else None),
            "sources": "\n".join(self.position.sources if self.position else ()),
        }

    def fields_for_people(self) -> list[tuple[str, object]]:
        """Return its attributes in words."""
        told = self.words()
        sources = self.position.sources if self.position else ()
        return [
            ("checkpoint", self.uri),
            ("query", " ".join(one for one in (self.name, self.query_id) if one) or None),
            ("state", told["state"]),
            ("newest version", self.newest_version),
            ("committed", told["committed"]),
            ("took", told["took"]),
            ("batch under way", told["batch"]),
            ("watermark", told["watermark"]),
            ("behind the clock", told["lag"]),
            ("input", told["input"]),
            ("processed", told["processed"]),
            *((f"source {number}", offset) for number, offset in enumerate(sources)),
        ]

    def _state(self) -> str:
        if self.operation is not None and not self.is_running:
            return f"stopped, {self.operation} under way"
        if self.is_running is None:
            return "not known"
        return "running" if self.is_running else "stopped"

    def _batch(self) -> str:
        if self.uncommitted_batch is None:
            return "none"
        if self.is_running is False:
            return f"{self.uncommitted_batch}, runs again"
        if _is_of_run_before(self.planned_ms, self.began_ms):
            return f"{self.uncommitted_batch}, repeated"
        since = self.planned_ms and f" for {format_duration(self.looked_ms - self.planned_ms)}"
        return f"{self.uncommitted_batch}{since or ''}"

    def _ago(self, then_ms: int | None) -> str:
        return (
            "-" if then_ms is None else f"{format_duration(max(0, self.looked_ms - then_ms))} ago"
        )


def look_at_query(checkpoint: OpenCheckpoint) -> QueryInfo:
    """Look at the query of a checkpoint, or of a savepoint; nobody is waited for.

    Raises:
        CorruptionError, IncompatibleError, StorageError: As `find_users`. An entry of a log that
            cannot be read is passed over.
    """
    users = find_users(checkpoint)
    is_known = checkpoint.kept_by not in SPARK_PROVIDERS
    is_running = users.is_query_running if is_known else None
    began_ms = users.progress.began_ms if users.progress else None
    position = find_position(checkpoint)
    batch = checkpoint.newest_version - 1
    newest = checkpoint.newest_planned
    planned_ms = None if newest is None else _planned_ms(checkpoint, newest)
    committed_ms = _written_ms(checkpoint, checkpoint.commits.directory, batch)
    batch_ms = _batch_ms(checkpoint, position, committed_ms, began_ms)
    watermark_ms = position.watermark_ms if position else _next_watermark_ms(checkpoint, batch)
    now_ms = checkpoint.clock.now_ms()
    return QueryInfo(
        uri=checkpoint.uri,
        looked_ms=now_ms,
        query_id=checkpoint.query_id,
        name=users.progress.name if users.progress else None,
        is_running=is_running,
        operation=users.operation,
        newest_version=checkpoint.newest_version,
        uncommitted_batch=None if checkpoint.is_between_batches else newest,
        planned_ms=planned_ms,
        committed_ms=committed_ms,
        batch_ms=batch_ms,
        watermark_ms=watermark_ms,
        lag_ms=find_lag_ms(checkpoint, watermark_ms, is_running=is_running),
        position=position,
        rates=_told_rates(users.progress) or _counted_rates(checkpoint, position, batch_ms),
        began_ms=began_ms,
    )


def find_lag_ms(
    checkpoint: OpenCheckpoint, watermark_ms: int | None, *, is_running: bool | None
) -> int | None:
    """Return how far a watermark is behind the clock, as `QueryInfo.lag_ms`."""
    until_ms: int | None = checkpoint.clock.now_ms()
    if is_running is False:
        newest = checkpoint.newest_planned
        until_ms = None if newest is None else _planned_ms(checkpoint, newest)
    return None if watermark_ms is None or until_ms is None else until_ms - watermark_ms


def _is_of_run_before(planned_ms: int | None, began_ms: int | None) -> bool:
    """Tell whether a batch was planned before the run began, which repeats it then."""
    if planned_ms is None or began_ms is None:
        return False
    return planned_ms + _TAKEN_WITHIN_MS < began_ms


def _written_ms(checkpoint: OpenCheckpoint, directory: str, batch: int) -> int | None:
    """Return when the entry of a batch was written to a log, by the storage; None without one."""
    written = (of.modified_ms for of in checkpoint.io.list(directory) if of.name == str(batch))
    return next(written, None)


def _batch_ms(
    checkpoint: OpenCheckpoint,
    position: InputPosition | None,
    committed_ms: int | None,
    began_ms: int | None,
) -> int | None:
    """Return how long the newest committed batch took; None as `QueryInfo.batch_ms`."""
    if position is None or committed_ms is None:
        return None
    written_ms = _written_ms(checkpoint, checkpoint.offsets.directory, position.batch)
    if written_ms is None or written_ms > position.planned_ms + _WRITTEN_WITHIN_MS:
        return None
    is_of_run = began_ms is not None and began_ms < committed_ms
    if is_of_run and _is_of_run_before(position.planned_ms, began_ms):
        return None
    with suppress(StateStoreError):
        if read_own_batch(checkpoint, position.batch) is not None:
            return None
    took_ms = committed_ms - position.planned_ms
    return took_ms if took_ms >= 0 else None


def find_position(checkpoint: OpenCheckpoint) -> InputPosition | None:
    """Return how far a query has read; None where its logs do not tell."""
    return _position_at(checkpoint, checkpoint.newest_version - 1)


def _position_at(checkpoint: OpenCheckpoint, batch: int) -> InputPosition | None:
    try:
        entry = checkpoint.offsets_entry(batch)
        fields = Fields(entry.metadata)
        # An operation that puts rows which may have expired leaves no time.
        planned = fields.integer("batchTimestampMs", low=1, high=LAST_MS)
        watermark = fields.integer("batchWatermarkMs", high=LAST_MS)
    except (NotFoundError, CorruptionError, MalformedError):
        return None
    watermark = _next_watermark_ms(checkpoint, batch) or watermark
    return InputPosition(batch, planned, watermark or None, entry.sources)


def _planned_ms(checkpoint: OpenCheckpoint, batch: int) -> int | None:
    found = _position_at(checkpoint, batch)
    return None if found is None else found.planned_ms


def _next_watermark_ms(checkpoint: OpenCheckpoint, batch: int) -> int | None:
    """Return the watermark after a batch; None where the log does not tell."""
    with suppress(NotFoundError, CorruptionError, MalformedError):
        entry = Fields(dict(checkpoint.commit_entry(batch).fields))
        return entry.integer("nextBatchWatermarkMs", high=LAST_MS) or None
    return None


def _told_rates(progress: QueryProgress | None) -> InputRates | None:
    if progress is None or progress.batch is None or progress.rows is None:
        return None
    return InputRates(
        progress.batch,
        progress.rows,
        progress.input_rows_per_second,
        progress.processed_rows_per_second,
        "progress",
    )


def _counted_rates(
    checkpoint: OpenCheckpoint, position: InputPosition | None, batch_ms: int | None
) -> InputRates | None:
    """Return the rates of the newest committed batch, where its offsets are Kafka's."""
    if position is None:
        return None
    before = _position_at(checkpoint, position.batch - 1)
    if before is None or not 0 < len(before.sources) == len(position.sources):
        return None
    counts = [
        _count_rows(old, new) for old, new in zip(before.sources, position.sources, strict=True)
    ]
    rows = 0
    for count in counts:
        if count is None:
            return None
        rows += count
    between_ms = position.planned_ms - before.planned_ms
    return InputRates(
        position.batch,
        rows,
        1000 * rows / between_ms if between_ms > 0 else None,
        1000 * rows / batch_ms if batch_ms else None,
        "offsets",
    )


def _count_rows(old: str, new: str) -> int | None:
    """Return how many rows are between two offsets of a source; None where they do not tell."""
    if new == NO_OFFSET:
        return 0
    before, after = _numbers(old), _numbers(new)
    if before is None or after is None or not after:
        return None
    # A topic or partition that was not there before begins anywhere: it counts from the next on.
    steps = [end - before[at] for at, end in after.items() if at in before]
    return sum(steps) if all(step >= 0 for step in steps) else None


def _rate(rows_per_second: float | None) -> str:
    if rows_per_second is None:
        return "-"
    places = 0 if rows_per_second >= 10 else 1
    return f"{rows_per_second:,.{places}f} rows/s"


def _numbers(text: str) -> Mapping[tuple[str, str], int] | None:
    """Return Kafka's offsets by topic and partition; None for those of another source."""
    try:
        found: Any = parse_json(text)
    except MalformedError:
        return None
    if not isinstance(found, dict) or not all(isinstance(of, dict) for of in found.values()):
        return None
    numbers = {(name, at): end for name, of in found.items() for at, end in of.items()}
    is_count = all(type(end) is int and at.isdecimal() for (_, at), end in numbers.items())
    return numbers if is_count else None
