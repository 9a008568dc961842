"""The times that Spark gives rows of a join in state format 4, found in the rows of format 2.

Format 4 keeps a row by the key and a time (`SymmetricHashJoinStateManagerV4`, Spark 4.3): by the
time in the key where a column of it has the watermark, else by that column of the row that has it,
else by a number that is drawn. A window counts by its end. The schema of rows says which of their
columns has the watermark. Which column of the key has it, only the query knows: it is one that has
the same time as the rows of a side.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore.codec.byte_ranges import ByteRanges, child
from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.rows import to_numpy
from statestore.codec.unsafe_row import decode_field
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from statestore.codec.byte_ranges import Int64s
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType

_WATERMARK = "spark.watermarkDelayMs"
"""Key of Spark's metadata of a column that has the watermark."""
_TIMES = ("timestamp", "timestamp_ntz")
NUM_DRAWN = 1024
"""Spark draws one of so many numbers, to divide the rows of a key."""


@dataclass(frozen=True, slots=True)
class RowTime:
    """The column that has the time of a row.

    Attributes:
        side: `key` or `value`; of a key the index comes last.
        ordinal: The column.
        kind: The struct of that side.
    """

    side: str
    ordinal: int
    kind: SparkType

    @property
    def name(self) -> str:
        """Side and column."""
        return f"{self.side}.{self.kind.names[self.ordinal]}"

    @property
    def type(self) -> SparkType:
        """The type of the column."""
        return self.kind.types[self.ordinal]

    def of(self, rows: pa.RecordBatch) -> Int64s:
        """Return the times of rows of a state file, in microseconds since the Unix epoch.

        Raises:
            IncompatibleError: One is null: in format 2 such a row never expires, in format 4 at
                once.
        """
        ranges = ByteRanges.of_column(rows.column(3 if self.side == "key" else 4))
        column: Any = decode_field(ranges, self.kind, self.ordinal)
        columns = [column]
        if self.type.kind == "struct":
            columns.append(child(column, 1))
        if any(part.null_count for part in columns):
            raise IncompatibleError(
                "a row of a join has no time",
                column=self.name,
                to_fix="keep state format 2, in which such rows stay for ever: format 4 takes "
                "1970 for their time",
            )
        times: Int64s = to_numpy(columns[-1], "<i8")
        return times


@dataclass
class FoundTimes:
    """Columns that may have the time of the rows of a side.

    Attributes:
        side: left or right.
        family: The column family of its rows, in format 2.
        num_rows: How many were looked at.
        in_row: Their column that has the watermark.
        in_key: Columns of the key that may have it, by ordinal.
        apart: Those of which a row has another time than by `in_row`.
    """

    side: str
    family: ColumnFamily
    num_rows: int
    in_row: RowTime | None
    in_key: Mapping[int, RowTime]
    apart: set[int]

    @classmethod
    def before(cls, side: str, family: ColumnFamily) -> FoundTimes:
        """Return what is known before a row was looked at.

        Raises:
            IncompatibleError: Several columns of a row have a watermark.
        """
        fields = json.loads(family.value_schema or "")["fields"]
        marked = [at for at, field in enumerate(fields) if _WATERMARK in field["metadata"]]
        if len(marked) > 1:
            raise IncompatibleError(
                "a side of a join has several columns with a watermark: Spark has no format 4 then",
                side=side,
                columns=", ".join(fields[at]["name"] for at in marked),
                to_fix="keep state format 2; or begin a query in format 4 that drops the time "
                "behind a window before it joins",
            )
        kind, keys = value_type(family), key_type(family)
        return cls(
            side,
            family,
            0,
            RowTime("value", marked[0], kind) if marked else None,
            {
                at: RowTime("key", at, keys)
                for at, (_, column) in enumerate(keys.fields[:-1])
                if _is_time(column)
            },
            set(),
        )

    def look_at(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Compare the times in some rows with those in their keys; errors as `RowTime.of`."""
        for rows in batches:
            self.num_rows += rows.num_rows
            if self.in_row is None:
                continue
            times = self.in_row.of(rows)
            for at, in_key in self.in_key.items():
                if at not in self.apart and not _are_same(in_key, rows, times):
                    self.apart.add(at)


def _is_time(kind: SparkType) -> bool:
    if kind.kind == "struct":
        return [part.kind in _TIMES for part in kind.types] == [True, True]
    return kind.kind in _TIMES


def _are_same(in_key: RowTime, rows: pa.RecordBatch, times: Int64s) -> bool:
    column: Any = decode_field(ByteRanges.of_column(rows.column(3)), in_key.kind, in_key.ordinal)
    if column.null_count:
        return False
    return np.array_equal(in_key.of(rows), times)


def choose_times(sides: Sequence[FoundTimes]) -> list[RowTime | None]:
    """Return where the time of each side's rows is, as Spark looks for it; None where it draws.

    Args:
        sides: Both, all of whose rows were looked at.

    Raises:
        IncompatibleError: By the rows there are it is the time in the key as well as another one.
    """
    may_be = sorted(
        {
            at
            for found in sides
            if found.in_row is not None
            for at, in_key in found.in_key.items()
            if in_key.type == found.in_row.type and at not in found.apart
        }
    )
    chosen: list[RowTime | None] = []
    for found in sides:
        is_clear = len(may_be) < 2 if found.in_row is None else found.apart.isdisjoint(may_be)
        if not is_clear and found.num_rows:
            raise IncompatibleError(
                "no row says whether a join goes by the time in its key",
                side=found.side,
                columns=", ".join(f"key.field{at}" for at in may_be),
                to_fix="transform a version in which both sides have rows; or keep state format 2",
            )
        in_key = found.in_key[may_be[0]] if may_be else None
        chosen.append(in_key if found.in_row is None else found.in_row)
    return chosen


def drawn_times(num_rows: int) -> npt.NDArray[np.int64]:
    """Return numbers in place of times, for rows of a join that has none."""
    return np.arange(num_rows, dtype=np.int64) % NUM_DRAWN
