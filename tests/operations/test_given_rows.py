"""Rows and keys that people give as Arrow data are the state's or are refused."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import decode_keys
from statestore.codec.spark_types import parse_schema
from statestore.core.errors import InvalidArgumentError
from statestore.operations.writing.casts import KeyForm
from statestore.operations.writing.columns import FamilyColumns
from statestore.operations.writing.given import read_given
from tests.operations.given import (
    TIME,
    array,
    column,
    family_of,
    keys,
    map_of,
    schema_of,
    struct,
)

MONTHS = pa.month_day_nano_interval()


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        (column(1, None, type=pa.int8()), "long", [1, None]),
        (column(1, type=pa.uint64()), "byte", [1]),
        (column(Decimal("7.00")), "integer", [7]),
        (column(7), "decimal(3,2)", [Decimal("7.00")]),
        (column(2**64 - 1, type=pa.uint64()), "decimal(20,0)", [Decimal(2**64 - 1)]),
        (column(Decimal("1.500")), "decimal(10,2)", [Decimal("1.50")]),
        (column(Decimal("1.5"), type=pa.decimal256(50, 1)), "decimal(10,2)", [Decimal("1.50")]),
        (column(1.5, type=pa.float32()), "double", [1.5]),
        (column(0.5, None), "float", [0.5, None]),
        (column(2**53), "double", [2.0**53]),
        (column("a", None).set_column(0, "key.k", pa.array(["a", None]).dictionary_encode()),
         "string", ["a", None]),
        (column("a", type=pa.large_string()), "string", ["a"]),
        (column("a", type=pa.string_view()), "string", ["a"]),
        (pa.table({"key.k": pa.RunEndEncodedArray.from_arrays([2], pa.array(["a"]))}),
         "string", ["a", "a"]),
        (column(b"ab", type=pa.binary(2)), "binary", [b"ab"]),
        (column(TIME, type=pa.timestamp("ns", "Europe/Berlin")), "timestamp", [TIME]),
        (column(TIME.replace(tzinfo=None), type=pa.timestamp("ms")), "timestamp_ntz",
         [TIME.replace(tzinfo=None)]),
        (column(dt.date(2024, 1, 31), type=pa.date64()), "date", [dt.date(2024, 1, 31)]),
        (column(dt.time(10), type=pa.time32("s")), "time(6)", [dt.time(10)]),
        (column(dt.timedelta(1), type=pa.duration("s")), "interval day to second",
         [dt.timedelta(1)]),
        (column((0, 2, 5000), None, type=MONTHS), "interval day to second",
         [dt.timedelta(2, microseconds=5), None]),
        (column((14, 0, 0), type=MONTHS), "interval year to month",
         [pa.MonthDayNano([14, 0, 0])]),
        (column({"b": 1, "a": "x"}, None), struct(a="string", b="long"),
         [{"a": "x", "b": 1}, None]),
        (column([1], None, [], type=pa.large_list(pa.int8())), array("long"), [[1], None, []]),
        (column([1, 2], None, type=pa.list_(pa.int8(), 2)), array("long"), [[1, 2], None]),
        (column([("a", 1)], None, type=pa.map_(pa.large_string(), pa.int8())),
         map_of("string", "long"), [[("a", 1)], None]),
        (column([{"key": "a", "value": 1}]), map_of("string", "long"), [[("a", 1)]]),
        (column(None, None, type=pa.null()), "decimal(3,1)", [None, None]),
    ],
)  # fmt: skip
def test_values_in_another_type_that_holds_them_are_taken(
    given: pa.Table, kind: Any, expected: list[Any]
) -> None:
    """Catches what pandas, Polars and DuckDB make that is refused, or becomes something else."""
    assert keys(given, kind) == expected
    padded = pa.concat_tables([given.slice(0, 1), given]).combine_chunks().slice(1)
    assert keys(padded, kind) == expected


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (column(7), "string"), (column(True), "string"), (column(1.5), "string"),
        (column(b"a"), "string"), (column("a"), "binary"), (column(TIME), "string"),
        (column(dt.date(2024, 1, 1)), "string"), (column("7"), "long"), (column("0x10"), "long"),
        (column("1.5"), "decimal(10,2)"), (column("2024-01-01"), "date"),
        (column("true"), "boolean"),
        (column(2), "boolean"), (column(True), "long"), (column(1.0), "long"),
        (column(1.5), "decimal(10,2)"), (column(Decimal("0.5")), "double"),
        (column(TIME), "date"), (column(TIME), "long"), (column(TIME), "timestamp_ntz"),
        (column(TIME.replace(tzinfo=None)), "timestamp"),
        (column(dt.date(2024, 1, 1)), "timestamp"),
        (column(5), "timestamp"), (column(5), "date"), (column(dt.timedelta(1)), "long"),
        (column(dt.timedelta(1)), "interval"), (column([1]), struct(a="long")),
        (column({"a": 1, "b": 2}), struct(a="long")),
        (column({"a": 1}), struct(a="long", b="long")),
        (column([{"a": 1, "b": 2}]), array(struct(a="long"))), (column([7]), array("string")),
        (column([("a", 7)], type=pa.map_(pa.string(), pa.int64())), map_of("string", "string")),
        (column([("a", 7)], type=pa.map_(pa.string(), pa.int64())), array("long")),
        (column(7, type=pa.int64()), "variant"),
    ],
)  # fmt: skip
def test_column_of_another_kind_is_refused_by_name(given: pa.Table, kind: Any) -> None:
    """Catches a number that becomes text, a time without a zone that gets one, a field dropped."""
    with pytest.raises(InvalidArgumentError, match=r"column='key\.k.*expected=.*found="):
        keys(given, kind)
    with pytest.raises(InvalidArgumentError, match=r"column='key\.k"):
        keys(given.slice(0, 0), kind)  # a plan refuses it before there are rows


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (column(1, 300), "byte"), (column(0, 2**63, type=pa.uint64()), "long"),
        (column(Decimal("1.0"), Decimal("1.5")), "long"), (column(1, 2**53 + 1), "double"),
        (column(0.5, 0.1), "float"), (column(0.5, 1e300), "float"),
        (column(Decimal("1.000"), Decimal("1.005")), "decimal(10,2)"),
        (column(1, 100), "decimal(4,2)"), (column(1, 10**18), "decimal(38,30)"),
        (column(Decimal(1), Decimal(10) ** 30), "decimal(38,18)"),
        (column(0, 1, type=pa.timestamp("ns", "UTC")), "timestamp"),
        (column(0, 2**62, type=pa.timestamp("s", "UTC")), "timestamp"),
        (column(0, 1, type=pa.time64("ns")), "time(6)"),
        (column(0, 1, type=pa.duration("ns")), "interval day to second"),
        (column((0, 1, 0), (1, 0, 0), type=MONTHS), "interval day to second"),
        (column((0, 1, 0), (0, 2**31 - 1, 0), type=MONTHS), "interval day to second"),
        (column((1, 0, 0), (0, 1, 0), type=MONTHS), "interval year to month"),
        (column((1, 0, 1000), (0, 0, 1), type=MONTHS), "interval"),
    ],
)  # fmt: skip
def test_value_that_would_lose_something_is_refused_by_row_and_value(
    given: pa.Table, kind: Any
) -> None:
    """Catches digits that are cut, and numbers that overflow."""
    assert keys(given.slice(0, 1), kind) == keys(given.slice(0, 1), kind)
    with pytest.raises(InvalidArgumentError, match=r"column='key\.k', row=1, value="):
        keys(given, kind)


def full(kind: Any) -> dict[str, Any]:
    """Return a struct with one field `a`, which is never null."""
    field = {"name": "a", "type": kind, "nullable": False, "metadata": {}}
    return {"type": "struct", "fields": [field]}


STRUCTS = pa.struct([("a", pa.int64())])
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
LONGS = {**map_of("string", "long"), "valueContainsNull": False}


@pytest.mark.parametrize(
    ("given", "kind", "at"),
    [
        (column({"a": 1}, {"a": None}), full("long"), r"key\.k\.a"),
        (column(None, {"a": None}, type=STRUCTS), full("long"), r"key\.k\.a"),
        (column([1], [2, None]), {**array("long"), "containsNull": False}, r"key\.k\[\]"),
        (column([{"a": 1}], [None, {"a": None}], type=pa.list_(STRUCTS)), array(full("long")),
         r"key\.k\[\]\.a"),
        (column([("a", 1)], [("b", None)], type=pa.map_(pa.string(), pa.int64())), LONGS,
         r"key\.k\[\]\.value"),
        (column([("a", 1)], [(None, 1)], type=PAIRS), map_of("string", "long"),
         r"key\.k\[\]\.key"),
    ],
)  # fmt: skip
def test_null_is_refused_where_the_schema_has_none(given: pa.Table, kind: Any, at: str) -> None:
    """Catches a null that Spark reads as 0, since it does not look for one."""
    assert keys(given.slice(0, 1), kind)
    with pytest.raises(InvalidArgumentError, match=rf"null.*column='{at}', row=[0-9]+, num_nulls="):
        keys(given, kind)


def test_null_of_a_column_is_refused_where_the_schema_has_none(tmp_path: Path) -> None:
    """Catches a count that is none in a file, and 0 to the query."""
    of = ColumnFamily(0, "default", schema_of({"k": "string"}), json.dumps(full("long")))
    (tmp_path / "rows.json").write_text('{"key": {"k": "x"}, "value": {"a": null}}\n')
    with pytest.raises(InvalidArgumentError, match=r"column='value\.a', row=0"):
        read_given(tmp_path / "rows.json", "default", of, has_values=True)


NESTED = {**array({**array("byte"), "containsNull": False})}


@pytest.mark.parametrize(
    ("given", "kind", "row"),
    [
        (column([1, 2, 3], None, [4, 5], [6, 300]), array("byte"), 3),
        (column([], [], [1, 300]), array("byte"), 2),
        (column([[1], [2, 3]], [[4]], [[5], [], [6, 300]]), NESTED, 2),
        (column([[1], [2, 3]], None, [[4]], [[5], [None]]), NESTED, 3),
        (column([("a", 1), ("b", 2)], [("c", None)], type=pa.map_(pa.string(), pa.int64())),
         LONGS, 1),
    ],
)  # fmt: skip
def test_error_about_an_element_tells_the_row_that_has_it(
    given: pa.Table, kind: Any, row: int
) -> None:
    """Catches the number of an element that is told as that of a row: another one is mended."""
    with pytest.raises(InvalidArgumentError, match=rf"column='key\.k\[\].*row={row}[,.]"):
        keys(given, kind)
    padded = pa.concat_tables([given.slice(0, 1), given]).combine_chunks().slice(1)
    with pytest.raises(InvalidArgumentError, match=rf"column='key\.k\[\].*row={row}[,.]"):
        keys(padded, kind)


def test_error_tells_the_row_of_all_that_are_given() -> None:
    """Catches rows that are counted anew in each piece that is encoded."""
    counts = pa.array([1] * 40_000, pa.int64())
    rows = pa.table({"key.k": pa.array(range(40_000)), "value.n": counts}).to_batches(15_000)
    of = family_of({"k": "long"}, {"n": "byte"})
    assert sum(one.num_rows for one in FamilyColumns("default", of).encode(rows, 128)) == 40_000
    bad = pa.array([1] * 5_000 + [300] + [1] * 4_999)
    rows[2] = pa.RecordBatch.from_arrays([rows[2].column(0), bad], names=rows[2].schema.names)

    with pytest.raises(InvalidArgumentError, match=r"row=35000, value='300'"):
        list(FamilyColumns("default", of).encode(rows, 128))


def test_keys_that_come_with_values_are_refused() -> None:
    """Catches values that seem to say which rows are meant, and count for nothing."""
    rows = pa.table({"key": [{"k": 1}], "partition_id": [0]})
    assert read_given(rows, "default", family_of({"k": "long"}), has_values=False).num_rows == 1
    for name, values in (("value", [{"n": 1}]), ("value.n", [1])):
        given = rows.append_column(name, pa.array(values))
        with pytest.raises(InvalidArgumentError, match=rf"values are given.*columns='{name}'"):
            read_given(given, "default", family_of({"k": "long"}), has_values=False)


@pytest.mark.parametrize(
    ("key", "twice"),
    [
        ("string", [("a", 1), ("b", 2), ("a", 3)]),
        ("double", [(math.nan, 1), (0.0, 2), (math.nan, 3)]),
        (struct(x="long"), [({"x": 1}, 1), ({"x": 1}, 2)]),
    ],
)
def test_map_with_a_key_twice_is_refused(key: Any, twice: Any) -> None:
    """Catches an entry that Spark, which has each key once, passes over."""
    kind = map_of(key, "long")
    type_ = parse_schema(schema_of({"k": kind})).types[0].arrow
    table = column(twice[:1], None, twice[:2][::-1][:1], type=type_)
    assert len(keys(table, kind)) == len(table)
    with pytest.raises(InvalidArgumentError, match=r"a map has a key twice: column='key\.k.*row=1"):
        keys(column(twice[:1], twice, type=type_), kind)


NUMBERS = st.one_of(
    st.tuples(st.sampled_from([pa.int8(), pa.int64(), pa.uint64()]), st.integers(-(2**64), 2**64)),
    st.tuples(
        st.sampled_from([pa.float32(), pa.float64()]),
        st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False),
    ),
    st.tuples(
        st.builds(
            lambda precision, scale: pa.decimal128(precision, min(precision, scale)),
            st.integers(1, 38),
            st.integers(0, 38),
        ),
        st.decimals(allow_nan=False, allow_infinity=False),
    ),
)
SPARK_NUMBERS = st.sampled_from(
    ["byte", "short", "integer", "long", "float", "double"]
) | st.builds(
    lambda precision, scale: f"decimal({precision},{min(precision, scale)})",
    st.integers(1, 38),
    st.integers(0, 38),
)


@settings(max_examples=300)
@given(NUMBERS, SPARK_NUMBERS)
def test_number_is_cast_to_the_same_number_or_refused(number: Any, kind: str) -> None:
    """Catches a cast of Arrow that loses something: it takes 10^18 for 18960114.9… as
    decimal(38,30)."""
    of_arrow, value = number
    try:
        array_of_one = pa.array([value], of_arrow)
    except (pa.ArrowException, OverflowError):
        return
    try:
        (found,) = keys(pa.table({"key.k": array_of_one}), kind)
    except InvalidArgumentError:
        return
    exact = array_of_one[0].as_py()
    is_infinite = isinstance(exact, float) and math.isinf(exact)
    assert found == exact if is_infinite else Fraction(found) == Fraction(exact)


def test_both_forms_of_a_value_at_once_are_refused() -> None:
    """Catches one of the two that is passed over in silence."""
    both = pa.table({"key.k": [1], "value": [{"n": 1}], "value.n": [2]})
    with pytest.raises(InvalidArgumentError, match="a struct and fields of it as well"):
        read_given(both, "default", family_of({"k": "long"}), has_values=True)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["key.k", "key.k"])
    with pytest.raises(InvalidArgumentError, match="given twice"):
        keys(twice, "long")


@pytest.mark.parametrize("form", KeyForm)
def test_keys_are_numbers_as_spark_groups_by_them(form: KeyForm) -> None:
    """Catches a key that Spark never finds: a NaN of numpy has other bits than Spark's, which an
    operator that does not group by it has as they are.
    """
    nan = np.frombuffer(bytes.fromhex("010000000000f8ff"), "<f8")[0]
    family = family_of({"k": "double", "s": struct(a="float"), "l": array("double")})
    given = pa.table(
        {
            "key.k": np.array([nan, -0.0, 1.5]),
            "key.s": [{"a": -math.nan}, {"a": -0.0}, None],
            "key.l": [[nan, None], [-0.0], []],
        }
    )

    table = read_given(given, "default", family, has_values=False, key_form=form)
    (encoded,) = FamilyColumns("default", family, form).keys(
        table.rename_columns(["key"]).to_batches()
    )

    is_given = form is KeyForm.GIVEN
    zero = -0.0 if is_given else 0.0
    plain = pa.table(
        {
            "key.k": [math.nan, zero, 1.5],
            "key.s": [{"a": math.nan}, {"a": zero}, None],
            "key.l": [[math.nan, None], [zero], []],
        }
    )
    plain = given if is_given else plain
    (expected,) = FamilyColumns("default", family, key_form=KeyForm.GIVEN).keys(plain.to_batches())
    assert encoded.equals(expected)
    assert (nan.tobytes() in encoded[0].as_py()) == is_given
    assert decode_keys(encoded, family)[1].as_py()["k"] == 0
    assert math.copysign(1, decode_keys(encoded, family)[1].as_py()["k"]) == math.copysign(1, zero)


MAPS: list[tuple[Any, Any, list[Any]]] = [
    ("binary", "long", [(b"\x80", 1), (b"\x7f\0", 2), (b"\x7f", 3), (b"", 4)]),
    ("boolean", "long", [(True, 1), (False, 2)]),
    ("byte", "long", [(5, 1), (-5, 2)]),
    ("decimal(30,2)", "long", [(Decimal(1), 1), (Decimal("-5.00"), 2), (Decimal("1e20"), 3)]),
    ("date", "long", [(dt.date(2020, 1, 1), 1), (dt.date(1950, 1, 1), 2)]),
    ("interval year to month", "long", [((3, 0, 0), 1), ((-14, 0, 0), 2), ((0, 0, 0), 3)]),
    (array("integer"), "long", [([2], 1), ([1, 5], 2), ([1], 3), ([None], 4), ([], 5)]),
    (struct(a="integer", b="string"), "long",
     [({"a": 2, "b": "x"}, 1), ({"a": 1, "b": "z"}, 2), ({"a": 1, "b": None}, 3),
      ({"a": None, "b": "q"}, 4)]),
    ("string", "long",
     [("zz", 1), ("\U0001f600", 2), ("\xe9", 3), ("\uff5a", 4), ("", 5), ("a", 6)]),
    ("double", "double", [(2.0, -0.0), (math.nan, -math.nan), (-0.0, 1.0), (-math.inf, 0.0)]),
    ("string", map_of("integer", "float"), [("b", [(2, 1.0), (1, -0.0)]), ("a", None)]),
    ("string", array(map_of("long", "string")), [("b", [[(2, "x"), (1, "y")], None]), ("a", [])]),
]  # fmt: skip
SORTED_BY_SPARK: list[list[Any]] = [
    [(b"", 4), (b"\x7f", 3), (b"\x7f\0", 2), (b"\x80", 1)],
    [(False, 2), (True, 1)],
    [(-5, 2), (5, 1)],
    [(Decimal("-5.00"), 2), (Decimal(1), 1), (Decimal("1e20"), 3)],
    [(dt.date(1950, 1, 1), 2), (dt.date(2020, 1, 1), 1)],
    [((-14, 0, 0), 2), ((0, 0, 0), 3), ((3, 0, 0), 1)],
    [([], 5), ([None], 4), ([1], 3), ([1, 5], 2), ([2], 1)],
    [({"a": None, "b": "q"}, 4), ({"a": 1, "b": None}, 3), ({"a": 1, "b": "z"}, 2),
     ({"a": 2, "b": "x"}, 1)],
    [("", 5), ("a", 6), ("zz", 1), ("\xe9", 3), ("\uff5a", 4), ("\U0001f600", 2)],
    [(-math.inf, 0.0), (-0.0, 1.0), (2.0, 0.0), (math.nan, math.nan)],
    [("a", None), ("b", [(1, 0.0), (2, 1.0)])],
    [("a", []), ("b", [[(1, "y"), (2, "x")], None])],
]  # fmt: skip
"""The keys that an aggregation of Spark 4.3 has in its state, by each of these maps."""


@pytest.mark.parametrize("case", range(len(MAPS)))
@pytest.mark.parametrize("form", KeyForm)
def test_maps_in_keys_are_sorted_as_spark_groups_by_them(case: int, form: KeyForm) -> None:
    """Catches a key that an aggregation never finds, since its map has another order."""
    key, value, entries = MAPS[case]
    kind = map_of(key, value)
    family = family_of({"m": kind, "s": struct(m=kind)})
    arrow: Any = parse_schema(schema_of({"m": kind})).arrow
    maps = [[], entries, None, entries[::-1], []]

    def encoded(maps: list[Any], form: KeyForm) -> list[bytes]:
        column = pa.array(maps, arrow.field(0).type)
        within = pa.StructArray.from_arrays([column], ["m"])
        batch = pa.record_batch({"key.m": column, "key.s": within}).slice(1)
        (found,) = FamilyColumns("default", family, form).keys([batch])
        made: list[bytes] = found.to_pylist()
        return made

    found = SORTED_BY_SPARK[case]
    wanted = [[], found, None, found, []] if form is KeyForm.GROUPED else maps
    if form is KeyForm.NUMBERS and ("double" in str(kind) or "float" in str(kind)):
        assert {*encoded(maps, form)} != {*encoded(wanted, KeyForm.GROUPED)}
    else:
        assert encoded(maps, form) == encoded(wanted, KeyForm.GIVEN)


def test_values_keep_their_zeros_and_nans() -> None:
    """Catches values that are changed as keys are."""
    family = family_of({"k": "long"}, {"x": "double"})
    given = pa.table({"key.k": [1], "value.x": [-0.0]})

    table = read_given(given, "default", family, has_values=True)

    assert math.copysign(1, table["value"][0].as_py()["x"]) == -1
