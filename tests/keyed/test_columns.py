"""Types of Python become columns of Spark, and values come back as they were."""

from __future__ import annotations

import math
import struct
import time
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pyspark
import pytest
from pyspark.sql import Row
from pyspark.sql import types as sql

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.columns import columns_of


class Point(NamedTuple):
    x: int
    label: str | None


@dataclass(frozen=True)
class Trip:
    at: datetime
    stops: list[Point]
    fares: dict[str, Decimal]
    start: Point | None = None


@dataclass
class Only:
    total: float


@dataclass
class Part:
    a: int
    b: int = field(init=False)
    _: KW_ONLY
    c: int = 0

    def __post_init__(self) -> None:
        self.b = self.a + 1


@dataclass
class Seeded:
    total: int
    seed: InitVar[int]


@dataclass
class Node:
    label: str
    children: list[Node]


class Longer(Point):
    pass


class Page(NamedTuple):
    user: str
    page: str


@dataclass
class Visit:
    user: str
    page: str


AT = datetime(2020, 2, 29, 12, tzinfo=UTC)
POINT = "STRUCT<`x`: BIGINT, `label`: STRING>"


@pytest.mark.parametrize(
    ("kind", "ddl", "value", "row"),
    [
        (int, "`value` BIGINT", 7, (7,)),
        (int | None, "`value` BIGINT", 7, (7,)),
        (float, "`value` DOUBLE", 0.5, (0.5,)),
        (bool, "`value` BOOLEAN", False, (False,)),
        (str, "`value` STRING", "é", ("é",)),
        (bytes, "`value` BINARY", b"\0", (b"\0",)),
        (date, "`value` DATE", date(2020, 2, 29), (date(2020, 2, 29),)),
        (datetime, "`value` TIMESTAMP", AT, (AT,)),
        (Decimal, "`value` DECIMAL(38,18)", Decimal("1.5"), (Decimal("1.5"),)),
        (Annotated[int, 7], "`value` BIGINT", 7, (7,)),
        (int | None, "`value` BIGINT", None, (None,)),
        (list[int | None], "`value` ARRAY<BIGINT>", [1, None], ([1, None],)),
        (list[int], "`value` ARRAY<BIGINT>", [1, 2], ([1, 2],)),
        (tuple[int, ...], "`value` ARRAY<BIGINT>", (1, 2), ([1, 2],)),
        (dict[str, int], "`value` MAP<STRING, BIGINT>", {"a": 1}, ({"a": 1},)),
        (
            list[Point],
            f"`value` ARRAY<{POINT}>",
            [Point(1, None)],
            ([(1, None)],),
        ),
        (tuple[int, str], "`_1` BIGINT, `_2` STRING", (1, "a"), (1, "a")),
        (Point, "`x` BIGINT, `label` STRING", Point(1, None), (1, None)),
        (Only, "`total` DOUBLE", Only(0.5), (0.5,)),
        (Part, "`a` BIGINT, `b` BIGINT, `c` BIGINT", Part(1, c=3), (1, 2, 3)),
        (
            Trip,
            f"`at` TIMESTAMP, `stops` ARRAY<{POINT}>, `fares` MAP<STRING, DECIMAL(38,18)>, "
            f"`start` {POINT}",
            Trip(AT, [Point(1, "a")], {"a": Decimal(2)}),
            (AT, [(1, "a")], {"a": Decimal(2)}, None),
        ),
    ],
)
def test_value_becomes_a_row_and_comes_back(kind: Any, ddl: str, value: Any, row: Any) -> None:
    """Catches a type with another column, or a value that is not what was stored."""
    columns = columns_of(kind)

    assert columns.ddl == ddl
    assert columns.to_row(value) == row
    assert columns.from_row(row) == value
    assert type(columns.from_row(row)) is type(value)


def test_timestamp_comes_back_in_utc() -> None:
    """Catches a timestamp that loses its zone on the way, which Spark's do."""
    local = AT.astimezone().replace(tzinfo=None)

    assert repr(columns_of(datetime).from_row((local,))) == repr(AT)
    assert repr(columns_of(datetime).to_row(local)) == repr((AT,))


def test_row_shares_nothing_that_changes() -> None:
    """Catches a list that a program changes after `update`, or after `value`, in the state."""
    columns, given = columns_of(tuple[int, list[int]]), (1, [1])

    row = columns.to_row(given)
    given[1].append(2)
    columns.from_row(row)[1].append(3)

    assert row == (1, [1])


@pytest.mark.parametrize(
    "kind",
    [
        object,
        set[int],
        list,
        list[Any],
        dict[Point, int],
        dict[int, str],
        int | str,
        complex,
        None,
        Any,
        tuple[()],
        Seeded,
        Node,
        Annotated[int, "INT, b INT"],
        Annotated[int, "INT NOT NULL"] | None,
        Annotated[int | None, "INT NOT NULL"],
        tuple[Annotated[int, "INT NOT NULL"] | None, int],
        list[Annotated[int, "INT NOT NULL"]],
        dict[str, Annotated[int, "INT NOT NULL"]],
    ],
)
def test_refused_when_no_type_of_spark_belongs_to_it(kind: Any) -> None:
    """Catches a type that is guessed, and fails within a task."""
    with pytest.raises(InvalidArgumentError) as refused:
        columns_of(kind)

    assert refused.value.kind == "invalid-argument"
    assert "type" in refused.value.fields


def test_map_of_the_output_has_keys_of_any_scalar() -> None:
    """Catches an output that is refused for what Spark cannot keep."""
    columns = columns_of(dict[int, str], is_output=True)

    assert columns.to_row({1: "a"}) == ({1: "a"},)


def test_time_of_the_output_is_in_the_zone_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a time that is another one by the columns' names than by annotation."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    naive = datetime(2020, 2, 29, 7)  # noqa: DTZ001
    pd = pytest.importorskip("pandas")
    try:
        by_ddl = columns_of(
            "a TIMESTAMP, n TIMESTAMP_NTZ, l ARRAY<TIMESTAMP>, m MAP<STRING, TIMESTAMP>, "
            "s STRUCT<t: TIMESTAMP, n: TIMESTAMP_NTZ>",
            is_output=True,
        ).to_row
        of_one = columns_of("a TIMESTAMP", is_output=True).to_row

        (by_annotation,) = columns_of(datetime, is_output=True).to_row(naive)
        given = [naive, naive, [naive, None], {"k": naive}, {"t": naive, "n": naive}]
        found = by_ddl(given)
        of_row = by_ddl([*given[:3], [("k", naive)], Row(t=naive, n=naive)])
        of_tuple = by_ddl([*given[:4], (naive, naive)])
        kept = [of_one((each,)) for each in (AT, None, "2020-02-29")]
        assert of_one((pd.NaT,)) == (pd.NaT,)
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            of_one((pd.Timestamp(naive),))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert by_annotation == AT
    assert found == (AT, naive, [AT, None], {"k": AT}, {"t": AT, "n": naive})
    assert of_row == (*found[:3], [("k", AT)], found[4])
    assert of_tuple == (*found[:4], (AT, naive))
    assert kept == [(AT,), (None,), ("2020-02-29",)]


@pytest.mark.parametrize("kind", ["user STRING, page STRING", Page, Visit])
def test_row_of_spark_is_taken_by_its_names(kind: Any) -> None:
    """Catches two columns of one type that swap their values."""
    to_row = columns_of(kind).to_row

    assert to_row(Row(page="p", user="u")) == ("u", "p")
    with pytest.raises(InvalidArgumentError, match="with other names"):
        to_row(Row(page="p", name="u"))
    assert columns_of(tuple[str, str]).to_row(Row(page="p", user="u")) == ("p", "u")


def test_client_without_a_jvm_has_its_columns_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an ImportError where pyspark-client is installed alone, which has no context."""
    monkeypatch.delattr(pyspark, "SparkContext")
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    read = sql.StructType([sql.StructField("a", sql.IntegerType())])
    monkeypatch.setattr(sql.StructType, "fromDDL", lambda ddl: {"a INT": read}[ddl])

    assert columns_of("a INT", is_output=True).to_row({"a": 1}) == (1,)


def test_struct_of_the_output_has_names() -> None:
    """Catches a struct that Arrow takes for something else."""
    columns = columns_of(list[Point], is_output=True)

    assert columns.to_row([Point(1, None)]) == ([{"x": 1, "label": None}],)


def test_refused_when_a_key_of_a_map_has_maps_in_it() -> None:
    """Catches keys that are equal and have other bytes: a map has no order."""
    columns_of(tuple[int, str], is_key=True)

    with pytest.raises(InvalidArgumentError, match="no map in a key"):
        columns_of(tuple[int, dict[str, int]], is_key=True)


@pytest.mark.parametrize(
    ("kind", "value", "at", "expected", "found"),
    [
        (int, "7", "the value itself", "int", "str"),
        (int, True, "the value itself", "int", "bool"),
        (int, 1 << 63, "the value itself", "int of 64 bits", "int out of range"),
        (int, 7.0, "the value itself", "int", "float"),
        (float, 2**53 + 1, "the value itself", "float", "int that no float is equal to"),
        (float, 10**400, "the value itself", "float", "int out of range"),
        (bool, 1, "the value itself", "bool", "int"),
        (bytes, bytearray(b"a"), "the value itself", "bytes", "bytearray"),
        (date, AT, "the value itself", "date", "datetime"),
        (datetime, datetime.min, "the value itself", "datetime",  # noqa: DTZ901
         "datetime out of the range that is read back"),
        (date, date(1582, 10, 5), "the value itself", "date", "date of 5 to 14 October 1582"),
        (date, date(1582, 10, 14), "the value itself", "date", "date of 5 to 14 October 1582"),
        (datetime, datetime(1582, 10, 15, 23, tzinfo=UTC), "the value itself", "datetime",
         "datetime of 4 to 15 October 1582"),
        (str, "a\ud800", "the value itself", "str", "str with half of a surrogate pair"),
        (list[int], [1, None], "[1]", "int", "None"),
        (list[int], (1,), "the value itself", "list", "tuple"),
        (dict[str, int], {"a": 1, "b": "1"}, "values()[1]", "int", "str"),
        (dict[str | None, int], {None: 1}, "the value itself", "dict", "dict with a key None"),
        (tuple[int, str], (1, 2), "_2", "str", "int"),
        (Point, (1, "a"), "the value itself", "Point", "tuple"),
        (Point, Longer(1, "a"), "the value itself", "Point", "Longer"),
        (Point | None, None, "the value itself", "Point", "None"),
        (Trip, Trip(AT, [Point(1, "a"), Point("1", "a")], {}), "stops[1].x", "int", "str"),
    ],
)  # fmt: skip
def test_refused_when_a_value_does_not_fit(
    kind: Any, value: Any, at: str, expected: str, found: str
) -> None:
    """Catches what Spark would store as NULL, wrap around or never read back."""
    with pytest.raises(InvalidArgumentError, match="does not fit") as refused:
        columns_of(kind, state="total").to_row(value)

    assert refused.value.fields == {
        "state": "total",
        "at": at,
        "expected": expected,
        "found": found,
    }


@pytest.mark.parametrize("value", [-0.0, math.nan, -math.nan])
def test_equal_floating_point_keys_have_equal_rows(value: float) -> None:
    """Catches an entry that is put twice, or not found, by the bits of its key."""
    (kept,) = columns_of(float, is_key=True).to_row(value)

    assert struct.pack("d", kept) == struct.pack("d", value + 0.0 if value == 0 else math.nan)
    (value_kept,) = columns_of(float).to_row(value)
    assert repr(value_kept) == repr(value)


def test_refused_when_an_annotation_names_nothing() -> None:
    """Catches a NameError of typing's, which says nothing of what to do."""

    @dataclass
    class Broken:
        field: Missing  # noqa: F821

    with pytest.raises(InvalidArgumentError, match="annotations cannot be read"):
        columns_of(Broken)


def test_refused_when_the_output_has_a_column_twice() -> None:
    """Catches a column that comes out with the value of another."""
    with pytest.raises(InvalidArgumentError, match="no type of Spark"):
        columns_of("a INT, b INT, a INT", is_output=True)


class Labelled(Point):
    note: str = ""


def test_columns_of_a_named_tuple_are_its_fields() -> None:
    """Catches a column for an annotation of a subclass, which no value has."""
    columns = columns_of(Labelled)

    assert columns.ddl == columns_of(Point).ddl
    assert columns.from_row(columns.to_row(Labelled(1, "a"))) == Labelled(1, "a")
