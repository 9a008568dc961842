"""Types of Python become columns of Spark, and values come back as they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pytest

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.columns import columns_of


class Point(NamedTuple):
    x: int
    label: str | None


@dataclass(frozen=True)
class Trip:
    at: datetime
    stops: list[Point]
    fares: dict[str, Annotated[Decimal, "DECIMAL(18,2)"]]
    start: Point | None = None


@dataclass
class Only:
    total: float


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
        (Annotated[int, "INT"], "`value` INT", 7, (7,)),
        (list[int], "`value` ARRAY<BIGINT>", [1, 2], ([1, 2],)),
        (tuple[int, ...], "`value` ARRAY<BIGINT>", (1, 2), ([1, 2],)),
        (dict[str, int], "`value` MAP<STRING, BIGINT>", {"a": 1}, ({"a": 1},)),
        (
            list[Point],
            f"`value` ARRAY<{POINT}>",
            [Point(1, None)],
            ([{"x": 1, "label": None}],),
        ),
        (tuple[int, str], "`_1` BIGINT, `_2` STRING", (1, "a"), (1, "a")),
        (Point, "`x` BIGINT, `label` STRING", Point(1, None), (1, None)),
        (Only, "`total` DOUBLE", Only(0.5), (0.5,)),
        ("n INT, s STRING", "n INT, s STRING", (1, "a"), (1, "a")),
        (
            Trip,
            f"`at` TIMESTAMP, `stops` ARRAY<{POINT}>, `fares` MAP<STRING, DECIMAL(18,2)>, "
            f"`start` {POINT}",
            Trip(AT, [Point(1, "a")], {"a": Decimal(2)}),
            (AT, [{"x": 1, "label": "a"}], {"a": Decimal(2)}, None),
        ),
    ],
)
def test_value_becomes_a_row_and_comes_back(kind: Any, ddl: str, value: Any, row: Any) -> None:
    """Catches a type with another column, or a value that is not what was stored."""
    columns = columns_of(kind)

    assert columns.ddl == ddl
    assert columns.to_row(value) == row
    if not isinstance(kind, str):
        assert type(columns.from_row(_as_read(row))) is type(value)
    assert columns.from_row(_as_read(row)) == value


def _as_read(value: Any) -> Any:
    """Structs come back as tuples."""
    if isinstance(value, dict) and set(value) == set(Point._fields):
        return tuple(value.values())
    if isinstance(value, list | tuple):
        return type(value)(map(_as_read, value))
    return value


def test_timestamp_comes_back_in_utc() -> None:
    """Catches a timestamp that loses its zone on the way, which Spark's do."""
    local = AT.astimezone().replace(tzinfo=None)

    assert repr(columns_of(datetime).from_row((local,))) == repr(AT)
    assert columns_of(Annotated[datetime, "TIMESTAMP_NTZ"]).from_row((local,)) is local


def test_row_shares_nothing_that_changes() -> None:
    """Catches a list that a program changes after `update`, or after `value`, in the state."""
    columns, given = columns_of(tuple[int, list[int]]), (1, [1])

    row = columns.to_row(given)
    given[1].append(2)
    columns.from_row(row)[1].append(3)

    assert row == (1, [1])


@pytest.mark.parametrize(
    "kind", [object, set[int], list[Any], dict[Point, int], int | str, complex, None, Any]
)
def test_refused_when_no_type_of_spark_belongs_to_it(kind: Any) -> None:
    """Catches a type that is guessed, and fails within a task."""
    with pytest.raises(InvalidArgumentError) as refused:
        columns_of(kind)

    assert refused.value.kind == "invalid-argument"
    assert "type" in refused.value.fields


def test_refused_when_an_annotation_names_nothing() -> None:
    """Catches a NameError of typing's, which says nothing of what to do."""

    @dataclass
    class Broken:
        field: Missing  # noqa: F821

    with pytest.raises(InvalidArgumentError, match="annotations cannot be read"):
        columns_of(Broken)
