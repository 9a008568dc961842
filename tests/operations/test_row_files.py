"""Files of rows and keys that people make are read by the state's types, or are refused."""

from __future__ import annotations

import csv as standard_csv
import datetime as dt
import io
import json
import math
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore.codec.spark_types import parse_schema
from statestore.core.errors import InvalidArgumentError
from statestore.operations.writing.casts import KeyForm
from statestore.operations.writing.given import read_given
from tests.operations.given import TIME, array, family_of, keys, map_of, schema_of, struct

UTC = dt.UTC
TEXTS: list[tuple[Any, str, Any]] = [
    # Spark's type, as people type it, as it is in state.
    *((("string"), text, text) for text in (
        "007", "00123", "12345678901234567890", "0x1F", "1e5", "1.0", "NA", "null", "NULL", "NaN",
        "true", "2024-01-31 10:00", "2024-01-31", "10:00", " a ", "a,b", 'say "hi"', "a\nb",
        "-", "é",
    )),
    ("string", "", ""),
    ("varchar(9)", "007", "007"),
    ("boolean", "true", True),
    ("boolean", "false", False),
    ("byte", "-128", -128),
    ("short", "32767", 32767),
    ("integer", "007", 7),
    ("long", "-9223372036854775808", -(2**63)),
    ("long", "9007199254740993", 2**53 + 1),
    ("float", "0.1", float(np.float32(0.1))),
    ("double", "0.1", 0.1),
    ("double", "1e300", 1e300),
    ("double", "-Infinity", -math.inf),
    ("decimal(10,2)", "19.99", Decimal("19.99")),
    ("decimal(10,2)", "1e2", Decimal("100.00")),
    ("decimal(38,18)", "19.99", Decimal("19.99").quantize(Decimal(1).scaleb(-18))),
    ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
    ("binary", "00ff", b"\0\xff"),
    ("date", "1969-12-31", dt.date(1969, 12, 31)),
    ("timestamp", "2024-01-31T10:00:00.5Z", TIME),
    ("timestamp", "2024-01-31 11:00:00.500000+01:00", TIME),
    ("timestamp_ntz", "2024-01-31 10:00:00.5", TIME.replace(tzinfo=None)),
    ("time(6)", "10:00:00.000001", dt.time(10, 0, 0, 1)),
    ("interval day to second", "1 day, 2:03:04.5", dt.timedelta(1, 7384, 500_000)),
    ("interval day to second", "-1 day, 0:00:00", dt.timedelta(-1)),
    (struct(a="string", b="timestamp"), '{"a": "7", "b": null}', {"a": "7", "b": None}),
    (array("long"), "[1, null]", [1, None]),
    (map_of("string", "decimal(4,1)"), '{"a": 1.5}', [("a", Decimal("1.5"))]),
    (map_of("long", "string"), '[[1, "01"]]', [(1, "01")]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "typed", "expected"), TEXTS)
def test_text_in_a_file_is_what_the_state_has(
    tmp_path: Path, kind: Any, typed: str, expected: Any
) -> None:
    """Catches 007 taken for 7, and every other value that is guessed from its looks."""
    escaped = typed.replace('"', '""')
    (tmp_path / "keys.csv").write_text(f'key.k,partition_id\n"{escaped}",3\n', "utf-8")
    raw = isinstance(kind, dict) or parse_schema(schema_of({"k": kind})).types[0].kind in (
        *("byte", "short", "long", "double", "float", "decimal", "boolean"),
    )
    text = typed if raw else json.dumps(typed)
    if kind == "integer":
        text = "7"  # JSON has no zeros in front
    (tmp_path / "keys.json").write_text(f'{{"key": {{"k": {text}}}}}\n\n{{"key": {{"k": null}}}}\n')
    (tmp_path / "flat.jsonl").write_text(f'{{"key.k": {text}, "partition_id": 1}}\n')

    assert keys(tmp_path / "keys.csv", kind) == [expected]
    assert keys(tmp_path / "keys.json", kind) == [expected, None]
    assert keys(tmp_path / "flat.jsonl", kind) == [expected]
    arrow = parse_schema(schema_of({"k": kind})).types[0].arrow
    table = pa.table({"key.k": pa.array([expected, None], arrow)})
    pq.write_table(table, tmp_path / "k.parquet")
    assert keys(tmp_path / "k.parquet", kind) == [expected, None]
    with ipc.new_file(tmp_path / "k.arrow", table.schema) as file:
        file.write_table(table)
    assert keys(tmp_path / "k.arrow", kind) == [expected, None]


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        ("boolean", "1"), ("boolean", "yes"), ("byte", "128"), ("integer", "1.0"),
        ("integer", "1e3"), ("integer", "0x1F"), ("integer", " 1"), ("integer", "1_000"),
        ("long", "9223372036854775808"), ("long", "true"), ("double", "1e400"),
        ("double", "1e-400"),
        ("double", "nan"), ("float", "1e39"), ("decimal(10,2)", "1.005"),
        ("decimal(10,2)", "0.125"),
        ("decimal(4,2)", "100"), ("decimal(10,2)", "NaN"), ("decimal(38,0)", "1e9999"),
        ("binary", "0xff"), ("binary", "f"), ("date", "2024-1-31"), ("date", "2024-02-30"),
        ("date", "2024-01-31 23:59"), ("date", "20240131"), ("timestamp", "2024-01-31T10:00:00"),
        ("timestamp", "2024-01-31"), ("timestamp", "2024-01-31T10:00:00.0000001Z"),
        ("timestamp_ntz", "2024-01-31T10:00:00Z"), ("time(6)", "25:00"),
        ("interval day to second", "1 month"), ("interval", "1 month"),
        ("interval year to month", "1"), ("variant", "1"), (array("long"), "[1.5]"),
        (array("long"), "1"), (struct(a="long"), '{"a": 1, "b": 2}'), (struct(a="long"), "{}"),
        (struct(a="string"), '{"a": 7}'), (struct(a="long"), '{"a": 1, "a": 2}'),
        (map_of("string", "long"), "[1]"), (map_of("long", "long"), '{"1": 1}'),
    ],
)  # fmt: skip
def test_text_that_is_not_of_the_type_is_refused_by_name(
    tmp_path: Path, kind: Any, typed: str
) -> None:
    """Catches a value that is cut, rounded or moved to another zone."""
    escaped = typed.replace('"', '""')
    (tmp_path / "keys.csv").write_text(f'key.n,key.k\n1,\n1,"{escaped}"\n')

    family = family_of({"n": "long", "k": kind})
    with pytest.raises(InvalidArgumentError, match=r"keys\.csv', row=2, column='key\.k") as refused:
        read_given(tmp_path / "keys.csv", "default", family, has_values=False)
    assert "value=" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("k.csv", "key.k\n007\n\n,\n", "CSV parse error"),
        ("k.csv", "key.k,key.k\n1,2\n", "given twice"),
        ("k.csv", "key.k,n\n1,2\n", "in neither the key nor the value"),
        ("k.csv", "k\n1\n", "in neither the key nor the value"),
        ("k.csv", "", "Empty CSV file"),
        ("k.csv", 'key.k\na\n"b\nc\n', r"a quote is not closed.*k\.csv', line=3"),
        ("k.csv", 'key.k\n"a\nb"\n"c"d\n', r"text follows.*k\.csv', line=4"),
        ("k.csv", "key.k,partition_id\n,1\n", "an empty field may be a null or an empty text"),
        ("k.json", '{"key": {"k": 7}}', r"line=1, column='key\.k', value='7'"),
        ("k.json", '{"key.k": "a"}\n{"key.k": true}', "line=2"),
        ("k.json", '{"key.k": "a"}\n{"key": {"k": "a"}}', "line=2.*key.k"),
        ("k.json", '{"key.k": "a", "key.k": "b"}', "twice"),
        ("k.json", '{"key": {"k": "a"}, "key.k": "a"}', "given twice"),
        ("k.json", '[{"key.k": "a"}]', "not an object"),
        ("k.json", '{"key.k": ', "not JSON"),
        ("k.json", '{"key": {}}', "k"),
        ("k.json", '{"key": {"k": "a", "j": 1}}', "its fields are k, j; expected: k"),
        ("k.json", '{"key": null}', "a key or a value is null"),
        ("k.parquet", "no parquet", "cannot be read"),
        ("k.arrow", "no arrow", "cannot be read"),
        ("k.txt", "007", r"unknown suffix.*\.parquet, \.arrow, \.csv, \.json, \.jsonl"),
    ],
)
def test_file_that_is_not_one_of_keys_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """Catches a traceback, and a column, row or file that is passed over."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        keys(path, "string")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        keys(tmp_path / "none.csv", "string")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("key.k\n3\n\n", 3),
        ("key.k\n\n3\n", 2),
        ('\n\r\n"key.k"\r\n3\r\n\r\n4', 5),
        ("\ufeffkey.k\r3\r\r", 3),
        ("\nkey.k\n3\r\n4\n", None),
        ("key.k,partition_id\n3,0\n\n4,0\n", None),
        ("key.k,partition_id\n3,0\n,0\n", None),
    ],
)
def test_an_empty_line_is_no_key_that_is_passed_over(
    tmp_path: Path, text: str, line: int | None
) -> None:
    """Catches the null key of a file of one column, whose row is not deleted."""
    path = tmp_path / "k.csv"
    path.write_bytes(text.encode())
    if line is None:
        assert keys(path, "long") == [3, None if "\n,0" in text else 4]
        return
    with pytest.raises(InvalidArgumentError, match=rf"empty line.*k\.csv', line={line}"):
        keys(path, "long")


def test_fields_of_a_window_are_columns_of_a_file(tmp_path: Path) -> None:
    """Catches what `read --flatten` shows that cannot be given back."""
    window = struct(start="timestamp", end="timestamp")
    family = family_of({"window": window, "user.id": "string", "n": "long"})
    text = "key.window.start,key.window.end,key.user.id,key.n,value.n\n"
    (tmp_path / "rows.csv").write_text(
        "\N{BOM}".encode("utf-8").decode() + text + "2024-01-31T10:00:00.5Z,,007,1,\n", "utf-8"
    )

    table = read_given(tmp_path / "rows.csv", "default", family, has_values=True)

    key = {"window": {"start": TIME, "end": None}, "user.id": "007", "n": 1}
    assert table.to_pylist() == [{"key": key, "value": {"n": None}}]


@pytest.mark.parametrize("side", ["key", "value"])
def test_a_flattened_struct_of_nulls_is_refused_where_it_may_be_null(
    tmp_path: Path, side: str
) -> None:
    """Catches a null struct that comes back as one of nulls: of a key, as another key."""
    inner = struct(x="long", y="long")
    types = {"key": {"k": "long"}, "value": {"n": "long"}, side: {"s": inner}}
    family = family_of(types["key"], types["value"])
    text = f"{side}.s.x,{side}.s.y," + ("value.n" if side == "key" else "key.k")
    (tmp_path / "rows.csv").write_text(f"{text}\n1,,1\n,,2\n")

    with pytest.raises(InvalidArgumentError, match=r"all fields of a struct are null.*row=1"):
        read_given(tmp_path / "rows.csv", "default", family, has_values=True)


def test_times_that_spark_writes_to_parquet_are_in_utc(tmp_path: Path) -> None:
    """Catches a file of Spark's own whose times seem to have no zone."""
    path = tmp_path / "k.parquet"
    far = dt.datetime(9999, 12, 31, tzinfo=UTC)
    of_window = pa.table({"key": pa.array([{"w": {"start": TIME}}, {"w": {"start": far}}])})
    pq.write_table(of_window, path, use_deprecated_int96_timestamps=True)
    family = family_of({"w": struct(start="timestamp")})

    table = read_given(path, "default", family, has_values=False)

    assert table["key"].to_pylist() == [{"w": {"start": TIME}}, {"w": {"start": far}}]


def test_times_that_spark_writes_into_lists_and_maps_are_in_utc(tmp_path: Path) -> None:
    """Catches an array of times that is refused, or taken for times without a zone."""
    path, later = tmp_path / "k.parquet", TIME + dt.timedelta(days=1)
    instant = pa.timestamp("us", "UTC")
    kinds = {"l": pa.list_(instant), "m": pa.map_(pa.string(), instant), "n": pa.int64()}
    keys_of_file = [{"l": [TIME, None, later], "m": [("a", TIME)], "n": 1}]
    given = pa.table({"key": pa.array(keys_of_file, pa.struct(kinds))})
    pq.write_table(given, path, use_deprecated_int96_timestamps=True)
    of_instants = family_of(
        {"l": array("timestamp"), "m": map_of("string", "timestamp"), "n": "long"}
    )

    table = read_given(path, "default", of_instants, has_values=False)

    found = table["key"].to_pylist()
    assert found == keys_of_file
    of_local_times = family_of(
        {"l": array("timestamp_ntz"), "m": map_of("string", "timestamp"), "n": "long"}
    )
    with pytest.raises(InvalidArgumentError, match="timestamp"):
        read_given(path, "default", of_local_times, has_values=False)


def test_column_of_times_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Catches an error of Arrow's in place of one that names the column."""
    path, times = tmp_path / "k.parquet", pa.array([TIME])
    given = pa.table([times, times], names=["key.t", "key.t"])
    pq.write_table(given, path, use_deprecated_int96_timestamps=True)

    with pytest.raises(InvalidArgumentError, match="given twice"):
        read_given(path, "default", family_of({"t": "timestamp"}), has_values=False)


@pytest.mark.parametrize("is_nested", [False, True])
def test_nanoseconds_of_times_of_96_bits_are_not_lost(tmp_path: Path, *, is_nested: bool) -> None:
    """Catches another time than the one given, in a key another key."""
    path = tmp_path / "k.parquet"
    nanos = 1_704_067_200_123_456_000
    kind: Any = pa.list_(pa.timestamp("ns")) if is_nested else pa.timestamp("ns")
    family = family_of({"t": array("timestamp") if is_nested else "timestamp"})
    for rest in (0, 789):
        times = [None, nanos + rest, -nanos - rest, 0]
        column = pa.array([times] if is_nested else times, kind)
        given = pa.table({"key": pa.StructArray.from_arrays([column], ["t"])})
        pq.write_table(given, path, use_deprecated_int96_timestamps=True)
        if rest:
            with pytest.raises(InvalidArgumentError, match=r"not without a loss.*789 nanoseconds"):
                read_given(path, "default", family, has_values=False)
        else:
            assert read_given(path, "default", family, has_values=False).num_rows == len(column)


def test_a_file_of_arrow_with_wrong_offsets_is_refused(tmp_path: Path) -> None:
    """Catches text from beyond its column, which Arrow reads unchecked."""
    offsets = pa.py_buffer(np.array([0, 900, 2], np.int32))
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    with ipc.new_file(tmp_path / "k.arrow", pa.schema({"key.k": pa.string()})) as file:
        file.write_batch(pa.record_batch({"key.k": texts}))

    with pytest.raises(InvalidArgumentError, match=r"cannot be read.*k\.arrow"):
        keys(tmp_path / "k.arrow", "string")


def test_csv_of_any_rows_is_read_back(tmp_path: Path) -> None:
    """Catches text that another writer of CSV quotes in its way."""
    texts = ["a", 'x"y', "1,2", "\n", "", " ", "007", "'"]
    csv.write_csv(pa.table({"key.k": texts}), tmp_path / "k.csv")

    assert keys(tmp_path / "k.csv", "string") == texts


def test_a_row_of_csv_may_be_long(tmp_path: Path) -> None:
    """Catches rows that `read --to` wrote and no edit takes: of more than Arrow reads at once."""
    texts = ["a", "b" * (5 << 20), "c"]
    csv.write_csv(pa.table({"key.k": texts}), tmp_path / "k.csv")

    assert keys(tmp_path / "k.csv", "string") == texts


@given(st.text('",\n\rab', max_size=12))
@example('"' + "a" * 200_000 + '"')
def test_csv_has_the_rows_that_another_reader_finds(text: str) -> None:
    """Catches rows that a quote swallows, and good text that is refused."""
    text = f'"key.k"\n{text}'
    found: list[list[str]] = []
    limit = standard_csv.field_size_limit(len(text))
    with suppress(standard_csv.Error):
        found = list(standard_csv.reader(io.StringIO(text, newline=""), strict=True))
    standard_csv.field_size_limit(limit)
    expected = [row[0] for row in found if len(row) == 1]
    is_refused = len(expected) < len(found) or not found
    said = r"quote is not closed|parse error|empty line"
    with TemporaryDirectory() as directory:
        path = Path(directory, "k.csv")
        path.write_bytes(text.encode())
        if is_refused:
            with pytest.raises(InvalidArgumentError, match=said):
                keys(path, "string")
        else:
            assert keys(path, "string") == expected[1:]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
    | st.sampled_from(["007", "null", "", "NA", "1e5", "2024-01-31"]),
    "long": st.integers(-(2**63), 2**63 - 1),
    "byte": st.integers(-128, 127),
    "double": st.floats(allow_nan=False),
    "decimal(12,3)": st.decimals(-(10**8), 10**8, places=3),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=4),
    "date": st.dates(),
    "timestamp": st.datetimes(
        dt.datetime(1, 1, 2),  # noqa: DTZ001 (bounds of hypothesis have no zone)
        dt.datetime(9999, 12, 30),  # noqa: DTZ001 (likewise)
        timezones=st.just(UTC),
    ),
    "timestamp_ntz": st.datetimes(),
    "time(6)": st.times(),
    "interval day to second": st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6)),
}


def typed(value: Any, kind: Any) -> Any:
    """Return a value as JSON has it."""
    if value is None:
        return None
    if isinstance(kind, dict) and kind["type"] == "array":
        return [typed(one, kind["elementType"]) for one in value]
    if isinstance(kind, dict) and kind["type"] == "struct":
        return {
            field["name"]: typed(value[field["name"]], field["type"]) for field in kind["fields"]
        }
    if isinstance(kind, dict):
        return [[typed(one, kind["keyType"]), typed(two, kind["valueType"])] for one, two in value]
    if kind == "binary":
        return value.hex()
    return value if kind in ("string", "long", "byte", "double", "boolean") else str(value)


@st.composite
def columns(draw: Any, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type of Spark, and values of it."""
    form = draw(st.sampled_from(["plain", "plain", "array", "struct", "map"])) if depth else "plain"
    if form == "array":
        kind, values = draw(columns(depth - 1))
        return array(kind), st.lists(st.none() | values, max_size=3)
    if form == "struct":
        parts = {name: draw(columns(depth - 1)) for name in draw(st.sets(st.sampled_from("abA")))}
        of = struct(**{name: kind for name, (kind, _) in parts.items()})
        return of, st.fixed_dictionaries(
            {name: st.none() | one for name, (_, one) in parts.items()}
        )
    if form == "map":
        kind, values = draw(columns(depth - 1))
        pairs = st.tuples(VALUES["string"], st.none() | values)
        return map_of("string", kind), st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    plain = draw(st.sampled_from(sorted(VALUES)))
    return plain, VALUES[plain]


@given(st.data())
def test_any_rows_typed_in_a_file_are_those_rows(data: Any) -> None:
    """Catches a value that is another one when it comes back, and a row or column that is lost."""
    named = {f"c{n}": data.draw(columns()) for n in range(data.draw(st.integers(1, 3)))}
    kinds = {name: kind for name, (kind, _) in named.items()}
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in named.items()})
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    as_json = [{name: typed(one[name], kinds[name]) for name in kinds} for one in rows]
    # Of an operator that does not group by them, so that nothing about them is changed.
    read = partial(read_given, store="default", family=family_of(kinds), key_form=KeyForm.GIVEN)

    with TemporaryDirectory() as directory:
        lines = Path(directory) / "rows.jsonl"
        lines.write_text("".join(json.dumps({"key": one}) + "\n" for one in as_json), "utf-8")
        found = read(lines, has_values=False)
        assert found["key"].to_pylist() == rows
        # CSV has no null of text.
        has_null = any(kinds[n] == "string" and one[n] is None for one in rows for n in kinds)
        table = Path(directory) / "rows.csv"
        with table.open("w", encoding="utf-8", newline="") as file:
            cells = [[cell(one[name], kinds[name]) for name in kinds] for one in as_json]
            file.writelines(",".join(line) + "\n" for line in [[f"key.{n}" for n in kinds], *cells])
        if len(kinds) == 1:
            return  # a line of one null is empty, and no row
        if has_null:
            with pytest.raises(InvalidArgumentError, match="null or an empty text"):
                read(table, has_values=False)
        else:
            found = read(table, has_values=False)
            assert found["key"].to_pylist() == rows


def cell(value: Any, kind: Any) -> str:
    """Return a value of JSON as a field of CSV."""
    if value is None:
        return ""
    text = json.dumps(value) if not isinstance(value, str) or isinstance(kind, dict) else value
    escaped = text.replace('"', '""')
    return f'"{escaped}"'
