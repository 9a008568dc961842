"""Checkpoints made without Spark whose keys and values are of any of Spark's types."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import Changes, StoreOfQuery
from tests.operations.given import array, map_of, schema_of, struct

_TIME = dt.datetime(2024, 1, 31, 10, 0, tzinfo=dt.UTC)
_VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": [-128, 0, 127],
    "short": [-1, 300],
    "integer": [0, 7, -(2**31)],
    "long": [0, 7, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.5, math.nan, math.inf],
    "double": [0.0, -0.0, 0.1, math.nan, -math.inf],
    "decimal(10,2)": [Decimal("1.50"), Decimal("-99999999.99")],
    "decimal(38,18)": [Decimal("12345678901234567890.123456789012345678"), Decimal("0E-18")],
    "string": ["", "a", "it's", 'say "x"', "zwölf", "7", "007", "select", "\n"],
    "binary": [b"", b"\x00\xff", b"a"],
    "date": [dt.date(1970, 1, 1), dt.date(2024, 1, 31)],
    "timestamp": [_TIME, _TIME + dt.timedelta(microseconds=1)],
    "timestamp_ntz": [_TIME.replace(tzinfo=None), _TIME.replace(year=1969, tzinfo=None)],
    "time(6)": [dt.time(0), dt.time(23, 59, 59, 999_999)],
    "interval day to second": [dt.timedelta(0), dt.timedelta(days=-3, microseconds=5)],
    "interval year to month": [(0, 0, 0), (14, 0, 0)],
    "void": [None],
}
LEAVES = list(_VALUES)


def value_of(random: Random, kind: Any) -> Any:
    """Return some value of a type, null at times."""
    if random.random() < 0.15:
        return None
    if isinstance(kind, str):
        return random.choice(_VALUES[kind])
    if kind["type"] == "struct":
        return {field["name"]: value_of(random, field["type"]) for field in kind["fields"]}
    if kind["type"] == "array":
        return [value_of(random, kind["elementType"]) for _ in range(random.randrange(3))]
    return [("k", value_of(random, kind["valueType"]))] if random.random() < 0.7 else []


def type_of(random: Random, names: Iterable[str], depth: int = 1) -> Any:
    """Return some type; fields of a struct have some of the names."""
    choice = random.random()
    if depth and choice < 0.15:
        return struct(**{name: type_of(random, names, depth - 1) for name in names})
    if depth and choice < 0.22:
        return array(type_of(random, names, depth - 1))
    if depth and choice < 0.29:
        return map_of("string", type_of(random, names, depth - 1))
    return random.choice(LEAVES)


@dataclass(frozen=True)
class TypedStore(StoreOfQuery):
    """A store of rows of any types; a batch is given them by (number of a key, the number)."""

    family: ColumnFamily
    keys: tuple[dict[str, Any], ...]
    name: str = "default"

    @property
    def columns(self) -> tuple[str, ...]:
        return key_type(self.family).names

    def rows(self, changes: Mapping[int, Any]) -> Changes:
        if not self.columns:
            changes = dict(list(changes.items())[-1:])
        given: Any = [self.keys[number] for number in changes]
        keys = encode_keys(pa.array(given, key_type(self.family).arrow), self.family)
        return {
            key: None
            if value is None
            else encode_values(pa.array([value], value_type(self.family).arrow), self.family)[
                0
            ].as_py()
            for key, value in zip(keys.to_pylist(), changes.values(), strict=True)
        }


def make_typed(
    path: Any,
    random: Random,
    key: Mapping[str, Any],
    value: Mapping[str, Any],
    *,
    num_rows: int = 60,
    num_batches: int = 2,
    **how: Any,
) -> MadeCheckpoint:
    """Return a checkpoint of one store: random rows, and random changes and deletes of some."""
    family = ColumnFamily(0, "default", schema_of(dict(key)), schema_of(dict(value)))
    given = [{name: value_of(random, kind) for name, kind in key.items()} for _ in range(num_rows)]
    encoded = encode_keys(pa.array(given, key_type(family).arrow), family).to_pylist()
    keys = tuple(dict(zip(encoded, given, strict=True)).values())
    made = MadeCheckpoint(
        str(path), operators=(("stateStoreSave", (TypedStore(family, keys),)),), **how
    )
    for batch in range(num_batches):
        chosen = range(len(keys)) if not batch else random.sample(range(len(keys)), len(keys) // 3)
        made.run_batch(
            {
                number: None
                if batch and random.random() < 0.3
                else {name: value_of(random, kind) for name, kind in value.items()}
                for number in chosen
            }
        )
    return made


class Counting(LocalFileIO):
    """A storage that notes of which files how many bytes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: dict[str, int] = {}

    def _note(self, path: str, num_bytes: int) -> None:
        if path.endswith((".arrows", ".sst")):
            self.num_bytes[path] = self.num_bytes.get(path, 0) + num_bytes

    def fetch(self, path: str) -> str:
        self._note(path, Path(path).stat().st_size)
        return super().fetch(path)

    def fetch_slices(self, path: str, size: int, slices: Any) -> str:
        del size
        self._note(path, sum(length for _, length in slices))
        return path
