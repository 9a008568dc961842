"""Types of keyed state that DDL names, and random ones: the parser of DDL is Spark's."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Annotated, Any, NamedTuple

import pytest
from pyspark import SparkContext
from pyspark.sql.types import StructType

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.columns import columns_of
from statestore.keyed.ddl import parse_ddl
from tests.keyed.kinds import MISFITS, fits, key_kind_of, kind_of, show, value_of

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("spark")]
NUM_TYPES = 300


def without_spark(ddl: str) -> StructType:
    """Return what DDL is read as where no session is there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkContext, "_active_spark_context", None)
        return parse_ddl(ddl)


class Point(NamedTuple):
    x: int
    label: str | None


@pytest.mark.parametrize("seed", range(NUM_TYPES // 100))
def test_value_is_what_was_given_or_refused_by_name(seed: int) -> None:
    """Catches a value that another becomes in silence, by type, and one that is refused wrongly."""
    rng = Random(seed)
    for number in range(100):
        is_key = number % 4 == 0
        kind = key_kind_of(rng) if is_key else kind_of(rng)
        columns = columns_of(getattr(kind, "text", kind), is_key=is_key, state="total")
        for _ in range(10):
            value = value_of(rng, kind, is_key=is_key)
            if value.given is None:
                continue
            row = columns.to_row(value.given)
            assert show(columns.from_row(row)) == show(value.kept), kind
            assert show(columns.to_row(columns.from_row(row))) == show(row), kind
        for misfit in MISFITS:
            if fits(misfit, kind):
                columns.to_row(misfit)
                continue
            with pytest.raises(InvalidArgumentError) as refused:
                columns.to_row(misfit)
            assert refused.value.fields["state"] == "total"


@pytest.mark.parametrize("seed", range(2))
def test_ddl_is_read_as_spark_reads_it_where_no_spark_is(seed: int) -> None:
    """Catches a function that is tested without Spark on other types than it runs with."""
    rng = Random(f"ddl-{seed}")
    for number in range(100):
        kind = key_kind_of(rng) if number % 4 == 0 else kind_of(rng)
        ddl = columns_of(getattr(kind, "text", kind)).ddl
        assert without_spark(ddl) == StructType.fromDDL(ddl), ddl


@pytest.mark.parametrize(
    "ddl",
    [
        "count BIGINT, sum BIGINT NOT NULL",
        "a: int, b: string",
        "a LONG, b SHORT, c BYTE, d REAL, e DEC(3), f NUMERIC(4, 1), g DECIMAL, h INTEGER",
        "at TIMESTAMP, local TIMESTAMP_NTZ, zoned TIMESTAMP_LTZ",
        "`a b` STRUCT<x: INT NOT NULL, `é`: ARRAY<STRING>> COMMENT 'c', m MAP<STRING, DATE>",
    ],
)
def test_ddl_that_people_write_is_read_as_spark_reads_it(ddl: str) -> None:
    """Catches a spelling of Spark's that only Spark reads."""
    assert _plain(without_spark(ddl)) == _plain(StructType.fromDDL(ddl))


def _plain(schema: Any) -> list[Any]:
    return [(each.name, each.dataType, each.nullable) for each in schema]


@pytest.mark.parametrize("ddl", ["blabla", "", "a FOO", "a ARRAY<INT", "a VARIANT"])
def test_ddl_that_is_not_read_is_refused_by_name(ddl: str) -> None:
    """Catches an error of the parser's own."""
    with pytest.raises(InvalidArgumentError) as refused:
        without_spark(ddl)

    assert "type" in refused.value.fields


@pytest.mark.parametrize(
    ("kind", "ddl", "value", "row"),
    [
        (Annotated[int, "INT"], "`value` INT", 7, (7,)),
        (Annotated[int | None, "INT"], "`value` INT", None, (None,)),
        (dict[str, Annotated[Decimal, "DECIMAL(18,2)"]], "`value` MAP<STRING, DECIMAL(18,2)>",
         {"a": Decimal(2)}, ({"a": Decimal("2.00")},)),
        (Annotated[list[int], "ARRAY<INT>"], "`value` ARRAY<INT>", [1], ([1],)),
        (Annotated[Point, "STRUCT<x: INT, label: STRING>"],
         "`value` STRUCT<x: INT, label: STRING>", Point(1, None), ((1, None),)),
        ("n INT, s STRING", "n INT, s STRING", (1, None), (1, None)),
        ("n INT NOT NULL", "n INT NOT NULL", (1,), (1,)),
        ("a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<x: INT>>", ([(1,), None],), ([(1,), None],)),
    ],
)  # fmt: skip
def test_type_that_ddl_names_is_kept_so(kind: Any, ddl: str, value: Any, row: Any) -> None:
    """Catches a type that is named and not taken."""
    columns = columns_of(kind)

    assert columns.ddl == ddl
    assert columns.to_row(value) == row
    assert columns.from_row(row) == value


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[str, "INT"],
        Annotated[int, "INTERVAL DAY TO SECOND"],
        Annotated[int, "NOTHING"],
        Annotated[list[int], "INT"],
        Annotated[list[Annotated[int, "INT"]], "ARRAY<BIGINT>"],
        list[Annotated[Point, "STRUCT<y: INT, label: STRING>"]],
        Annotated[tuple[int, int], "STRUCT<x: INT>"],
        "n INTERVAL DAY TO SECOND",
        "s VARCHAR(3)",
        "v VARIANT",
        "s STRUCT<>",
        "INT",
        "n NOTHING",
    ],
)
def test_refused_when_what_ddl_names_does_not_hold_the_type(kind: Any) -> None:
    """Catches a column that Spark would end the query for, or fill with NULL."""
    with pytest.raises(InvalidArgumentError) as refused:
        columns_of(kind, state="total")

    assert list(refused.value.fields) == ["state", "type"]


def test_refused_when_spark_keeps_no_field_of_the_name() -> None:
    """Catches a query that ends with a message about a character."""
    with pytest.raises(InvalidArgumentError, match="no field of the name"):
        columns_of("`a-b` INT")


@pytest.mark.parametrize(
    ("ddl", "value", "at", "expected", "found"),
    [
        ("n TINYINT", (300,), "n", "int of 8 bits", "int out of range"),
        ("n INT NOT NULL", (None,), "n", "int", "None"),
        ("a ARRAY<STRUCT<x: INT>>", ([(1,), ("1",)],), "a[1].x", "int", "str"),
        ("m MAP<STRING, ARRAY<INT>>", ({"a": [], "b": [1.0]},), "m.values()[1][0]", "int", "float"),
        ("d DECIMAL(10,2)", (Decimal("0.125"),), "d",
         "Decimal of 10 digits, 2 of them after the point", "Decimal of more digits"),
        ("t TIMESTAMP_NTZ", (datetime(2020, 1, 1, tzinfo=UTC),), "t", "datetime without a zone",
         "datetime with a zone"),
        ("a INT, b INT", (1,), "the value itself", "tuple of 2", "tuple of 1"),
    ],
)  # fmt: skip
def test_refusal_says_where_and_what(
    ddl: str, value: Any, at: str, expected: str, found: str
) -> None:
    """Catches a refusal of a nested value that names none of its parts."""
    with pytest.raises(InvalidArgumentError) as refused:
        columns_of(ddl, state="total").to_row(value)

    assert refused.value.fields == {
        "state": "total",
        "at": at,
        "expected": expected,
        "found": found,
    }


def test_row_shares_nothing_that_changes() -> None:
    """Catches arrays and maps of DDL columns that a program changes in the state."""
    columns = columns_of("a ARRAY<INT>, m MAP<STRING, INT>")
    given: Any = ([1], {"a": 1})

    row = columns.to_row(given)
    given[0].append(2)
    given[1].clear()
    columns.from_row(row)[0].append(3)

    assert row == ([1], {"a": 1})
