"""Where a key is found that is not the key of a row: other columns, types, names and depths."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from statestore.operations.forget import search, values
from statestore.operations.forget.values import Values, ValueSearch, key_columns

ANN = "ann@example.org"


def found(keys: Any, column: Any, path: str = "value", **how: Any) -> list[tuple[str, str]]:
    """Where a search for keys finds them in a column."""
    struct = pa.StructArray.from_arrays(list(keys.values()), names=list(keys))
    return list(ValueSearch(key_columns(struct)).find(column, path, **how))


def of(name: str, *values: Any, kind: Any = None) -> Any:
    """A struct column with one field."""
    return pa.StructArray.from_arrays([pa.array(values, kind)], names=[name])


@pytest.mark.parametrize(
    ("key", "column", "expected"),
    [
        # By the same name whatever the value is; by another name where the value tells enough.
        (pa.array([7]), of("user_id", 7), [("value.user_id", "found")]),
        (pa.array([7]), of("USER_ID", 7, kind=pa.int16()), [("value.USER_ID", "found")]),
        (pa.array([7]), of("count", 1, 7), [("value.count", "maybe")]),
        (pa.array([7]), of("count", 70, 77), []),
        (pa.array([7654321]), of("count", 7654321, kind=pa.int64()), [("value.count", "found")]),
        (pa.array([7654321]), of("who", "7654321"), [("value.who", "found")]),
        (pa.array(["7654321"]), of("who", 7654321), [("value.who", "found")]),
        (pa.array(["4321"]), of("who", 4321), [("value.who", "maybe")]),
        (pa.array([ANN]), of("who", "bob", ANN), [("value.who", "found")]),
        (pa.array([ANN]), of("who", ANN.encode()), [("value.who", "found")]),
        (pa.array([ANN]), of("who", f"x{ANN}"), []),
        (pa.array(["a"]), of("who", "a"), [("value.who", "maybe")]),
        (pa.array([""]), of("user_id", None, "x"), []),
        (pa.array([""]), of("user_id", None, ""), [("value.user_id", "found")]),
        (pa.array([-1], pa.int32()), of("n", -1), [("value.n", "maybe")]),
        # Types.
        (pa.array([date(1969, 12, 31)]), of("day", date(1969, 12, 31)), [("value.day", "maybe")]),
        (pa.array([date(1969, 12, 31)]), of("day", "1969-12-31"), [("value.day", "maybe")]),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            of("user_id", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), kind=pa.timestamp("us")),
            [("value.user_id", "found")],
        ),
        (
            pa.array([Decimal("12345678.50")], pa.decimal128(12, 2)),
            of("sum", Decimal("12345678.5000"), kind=pa.decimal128(20, 4)),
            [("value.sum", "found")],
        ),
        (
            pa.array([Decimal("12345678.55")], pa.decimal128(12, 2)),
            of("sum", Decimal("12345678.5"), kind=pa.decimal128(20, 1)),
            [],
        ),
        (
            pa.array([Decimal("12345678.50")], pa.decimal128(12, 2)),
            of("sum", "12345678.50"),
            [("value.sum", "found")],
        ),
        (
            pa.array([Decimal("12345678.50")], pa.decimal128(12, 2)),
            of("sum", "12345678.5"),
            [("value.sum", "found")],
        ),
        (
            pa.array([Decimal("12.50")], pa.decimal128(12, 2)),
            of("user_id", "12.50"),
            [("value.user_id", "found")],
        ),
        (pa.array([12345678]), of("sum", 12345678.0), [("value.sum", "found")]),
        (pa.array([True]), of("user_id", True), [("value.user_id", "found")]),
        # What Python takes for a date or a number besides.
        (pa.array([20240131]), of("day", date(2024, 1, 31)), []),
        (pa.array(["1_234_567"]), of("sum", 1234567.0), []),
        (pa.array(["infinity"]), of("sum", float("inf")), []),
        # Names of hex digits, which as numbers are zero or too large.
        (pa.array(["0e462097"]), of("sum", 0.0), []),
        (pa.array(["4e781234"]), of("sum", float("inf")), []),
        (pa.array(["0e12"]), of("sum", Decimal(0), kind=pa.decimal128(20, 4)), []),
        # Of all the digits of which no memory is large enough.
        *(
            (pa.array([text]), of("sum", Decimal("1.5"), kind=pa.decimal128(20, 4)), [])
            for text in ("7e12345678901234", "7e-12345678901234")
        ),
        (
            pa.array([f"12345678.{50:0<99}"]),
            of("sum", Decimal("12345678.5"), kind=pa.decimal128(20, 4)),
            [("value.sum", "found")],
        ),
        # Which Arrow writes with an exponent.
        *(
            (
                pa.array([number], kind),
                of("user_id", number, kind=kind),
                [("value.user_id", "found")],
            )
            for number, kind in (
                (Decimal(0), pa.decimal128(38, 18)),
                (Decimal("0.0000002"), pa.decimal128(20, 7)),
                (Decimal("-0.00000025"), pa.decimal128(20, 10)),
            )
        ),
        # Depth.
        (
            pa.array([ANN]),
            of("last", {"seen": [None, {"who": "bob"}, {"who": ANN}]}),
            [("value.last.seen[].who", "found")],
        ),
        (
            pa.array([ANN]),
            of("by", [("bob", 1), (ANN, 2)], kind=pa.map_(pa.string(), pa.int64())),
            [("value.by{}", "found")],
        ),
        (pa.array([ANN]), of("by", None, {"x": None}, {"x": "y"}), []),
    ],
)
def test_a_value_is_found_where_it_is(key: Any, column: Any, expected: Any) -> None:
    """Catches a type, a name or a depth in which a user is not seen, or seen who is not there."""
    assert found({"user_id": key}, column) == expected


def test_what_was_found_is_told_first() -> None:
    """Catches a history that keeps the first hits, and says `found` without where."""
    of = search._Found()
    hits = [search.Hit(str(number), "value.count", "maybe") for number in range(30)]
    of.hits.update(dict.fromkeys([*hits, search.Hit("30", "row", "found")]))

    assert [hit.file for hit in of.outcome(0, "count").hits][:2] == ["30", "0"]


def test_keys_whose_columns_lost_their_names_are_taken_by_value() -> None:
    """Catches small numbers as keys of a join, whose columns Spark calls field0."""
    assert found({"user_id": pa.array([7])}, of("field0", 7), "key", is_other=True) == [
        ("key.field0", "found")
    ]
    # Of the same operator the grouping key is known, and any other column is something else.
    assert found({"user_id": pa.array([7])}, of("field0", 7), "key") == [("key.field0", "maybe")]
    assert found({"value": pa.array([7])}, of("value", 7), "value") == [("value.value", "maybe")]


def test_times_say_nothing_alone_in_a_key_of_several_columns() -> None:
    """Catches everybody's window taken for the user's, so that nobody is ever forgotten."""
    window = pa.array([{"start": datetime(2024, 1, 1, tzinfo=UTC), "end": None}])
    keys = {"window": window, "user_id": pa.array([ANN])}

    assert found(keys, pa.StructArray.from_arrays([window], names=["window"])) == []
    assert found(keys, of("user_id", ANN)) == [("value.user_id", "found")]
    only = {"window": window}
    assert found(only, pa.StructArray.from_arrays([window], names=["window"])) == [
        ("value.window.start", "found")
    ]


def test_columns_of_very_many_names_share_what_is_looked_for(monkeypatch: Any) -> None:
    """Catches a copy of all keys for each name of a column, which filled the memory."""
    made = []
    monkeypatch.setattr(values, "Values", lambda texts: made.append(1) or Values(texts))
    names = [*(f"column_{number}" for number in range(100)), "user_id"]
    column = pa.StructArray.from_arrays([pa.array(["a"]) for _ in names], names=names)

    places = found({"user_id": pa.array(["a"])}, column)

    assert places == [
        (f"value.{name}", "found" if name == "user_id" else "maybe") for name in names
    ]
    assert len(made) == 4  # found and maybe, of columns of the key's name and of others
