"""Joins of two streams in state format 2, made without Spark, and what they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.spark_files.schemas import write_schemas
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import StoreOfQuery
from tests.rescaled import edit_conf

JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
SIDES = ("left", "right")
Row = dict[str, Any]


def column(name: str, kind: Any, *, watermark: bool = False) -> Row:
    """Return a column as Spark describes it."""
    metadata = {"spark.watermarkDelayMs": 5000} if watermark else {}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def schema(*columns: Row) -> str:
    """Return the schema of a struct of columns."""
    return json.dumps({"type": "struct", "fields": columns})


@dataclass(frozen=True)
class RowsStore(StoreOfQuery):
    """A store of the rows of a side, or of how many each key has.

    A batch is given rows by (side, key, number), and counts by (side, key), each key as the text of
    its columns; None for what is deleted.
    """

    side: str
    name: str
    family: ColumnFamily
    columns: tuple[str, ...]
    keys: Mapping[str, Row] = field(compare=False)

    def rows(self, changes: Mapping[Any, Any]) -> dict[bytes, bytes | None]:
        """Return those of its rows that change."""
        is_numbered = self.columns[-1] == "index"
        own = {of: row for of, row in changes.items() if of[0] == self.side}
        own = {of: row for of, row in own.items() if len(of) == (3 if is_numbered else 2)}
        keys = [self.keys[of[1]] | ({"index": of[2]} if is_numbered else {}) for of in own]
        encoded = encode_keys(pa.array(keys, key_type(self.family).arrow), self.family)
        filled = [{} if row is None else row for row in own.values()]
        values = encode_values(pa.array(filled, value_type(self.family).arrow), self.family)
        pairs = zip(encoded.to_pylist(), values.to_pylist(), own.values(), strict=True)
        return {key: None if row is None else value for key, value, row in pairs}


@dataclass
class MadeJoin:
    """A checkpoint with a join of format 2, and what is in it.

    Attributes:
        made: The checkpoint; the join is its only operator.
        keys: Columns of keys by their text.
        join_format: What the offset log pins; None for nothing.
        held: The rows of each side and key, in order.
    """

    made: MadeCheckpoint
    keys: dict[str, Row]
    join_format: str | None = "2"
    held: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        path: Path,
        keys: list[Row],
        values: Mapping[str, list[Row]],
        *,
        join_format: str | None = "2",
        **how: Any,
    ) -> MadeJoin:
        """Return one that has not run.

        Args:
            path: Its directory.
            keys: Columns of keys.
            values: Columns of the rows of each side, but for whether they found a match.
            join_format: What the offset log pins; None for nothing.
            how: As of `MadeCheckpoint`.
        """
        known: dict[str, Row] = {}
        names = tuple(one["name"] for one in keys)
        stores = []
        for side in SIDES:
            counted = ColumnFamily(0, "default", schema(*keys), schema(column("value", "long")))
            rows = ColumnFamily(
                0,
                "default",
                schema(*keys, column("index", "long")),
                schema(*values[side], column("matched", "boolean")),
            )
            stores += [
                RowsStore(side, f"{side}-keyToNumValues", counted, names, known),
                RowsStore(side, f"{side}-keyWithIndexToValue", rows, (*names, "index"), known),
            ]
        made = MadeCheckpoint(str(path), operators=(("symmetricHashJoin", stores),), **how)
        return cls(made, known, join_format)

    def rows(self, side: str) -> list[list[Row]]:
        """Return the rows of each key of a side."""
        return [rows for (of, _), rows in self.held.items() if of == side]

    def run(
        self, added: list[tuple[str, Row, Row]], removed: Mapping[tuple[str, str], int]
    ) -> None:
        """Run a batch.

        Args:
            added: Rows that come, each with its side and key.
            removed: Of some sides and keys the number of the row that goes.
        """
        changes: dict[tuple[Any, ...], Any] = {}

        def put(side: str, text: str) -> None:
            rows = self.held[side, text]
            changes[side, text] = {"value": len(rows)} if rows else None
            for number, row in enumerate(rows):
                changes[side, text, number] = row

        for (side, text), number in removed.items():
            rows = self.held[side, text]
            # As Spark: the last one takes its place.
            rows[number] = rows[-1]
            changes[side, text, len(rows) - 1] = None
            rows.pop()
            put(side, text)
        for side, key, row in added:
            text = repr(key)
            self.keys[text] = key
            self.held.setdefault((side, text), []).append(row)
        for side, text in dict.fromkeys((side, repr(key)) for side, key, _ in added):
            put(side, text)
        self.made.run_batch(changes)
        for store in self.made.operators[0][1]:
            path = Path(self.made.path, "state", "0", "0", store.name, "_metadata", "schema")
            path.parent.mkdir(parents=True, exist_ok=True)
            of = store.family
            path.write_bytes(write_schemas(of.key_schema or "", of.value_schema or ""))
        if self.join_format is not None:
            edit_conf(self.made, **{JOIN_FORMAT: self.join_format})


def small_join(path: Path, seed: int = 1, **how: Any) -> MadeJoin:
    """Return a join of a few rows by a text, each with a time, after three batches."""
    rng = Random(seed)
    values = {
        side: [column("ts", "timestamp", watermark=True), column(f"{side}_n", "long")]
        for side in SIDES
    }
    join = MadeJoin.make(path, [column("field0", "string")], values, **how)
    for batch in range(3):
        added = [
            (
                side,
                {"field0": rng.choice(["a", "b", "", None])},
                {"ts": rng.randint(0, 3) * 10**6, f"{side}_n": n, "matched": rng.random() < 0.5},
            )
            for side in SIDES
            for n in range(8)
        ]
        full = [of for of, rows in join.held.items() if rows]
        join.run(added, dict.fromkeys(full[:batch], 0))
    return join
