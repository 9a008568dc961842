"""Random keys in random columns of two operators: what is said of the other one, by a plain model.

The model compares texts of values, as `docs/forget.md` says it, and knows no bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.operations.forget.search import KeySearch

from .test_forget_elsewhere import make, store_of, told

NUM_PEOPLE = 6
ALL_DAYS = [date(2024, 2, 27) + timedelta(days=number) for number in range(NUM_PEOPLE)]


@dataclass(frozen=True)
class Column:
    """A column of a grouping key.

    Attributes:
        name: Its name; one that Spark made, such as `field1`, says nothing.
        kind: Its type in Spark's words.
        values: What it has of each person.
    """

    name: str
    kind: str
    values: tuple[Any, ...]

    @property
    def is_nameless(self) -> bool:
        return self.name.startswith("field")

    @property
    def is_weak(self) -> bool:
        return self.kind == "date"

    def text(self, value: Any) -> str:
        return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)

    def is_telling(self, value: Any) -> bool:
        text = self.text(value)
        return not self.is_weak and len(text) >= (7 if text.isdigit() else 4)

    def is_called(self, other: Column) -> bool:
        return self.name.casefold() == other.name.casefold()

    def is_like(self, other: Column) -> bool:
        """Whether a value of one is one of the other, wherever it stands."""
        return self.is_nameless or other.is_nameless or self.is_called(other)


def columns_called(name: str, things: str) -> list[Column]:
    """Columns of each type that a thing may have."""
    people = range(NUM_PEOPLE)
    numbers = {"account": 7_000_000, "hour": 10}
    if things == "email":
        return [Column(name, "string", tuple(f"user{one}@ex.org" for one in people))]
    if things == "shop":
        return [Column(name, "string", tuple("pqrstu"))]
    if things == "day":
        return [Column(name, "date", tuple(ALL_DAYS))]
    values = [numbers[things] + one for one in people]
    return [
        Column(name, "long", tuple(values)),
        Column(name, "integer", tuple(values)),
        Column(name, "string", tuple(map(str, values))),
        Column(name, "decimal(12,2)", tuple(map(Decimal, values))),
    ]


THINGS = {"email": "user_id", "account": "account", "shop": "select", "hour": "hour", "day": "day"}
"""Names of columns, one a word of SQL."""

Row = tuple[Any, ...]


def draw_columns(rng: random.Random, *, can_be_nameless: bool) -> list[Column]:
    things = rng.sample([*THINGS], rng.randint(1, 4))
    is_nameless = can_be_nameless and rng.random() < 0.4
    columns = []
    for number, thing in enumerate(things):
        name = rng.choice([THINGS[thing]] * 6 + [THINGS[thing].upper(), f"other_{thing}"])
        columns.append(rng.choice(columns_called(f"field{number}" if is_nameless else name, thing)))
    return columns


def draw_other(rng: random.Random, columns: list[Column]) -> list[Column]:
    """Draw the columns of the other operator: mostly from those of the first."""
    chance = rng.random()
    if chance < 0.5:
        return rng.sample(columns, len(columns))
    if chance < 0.7:
        some = rng.sample(columns, rng.randint(1, len(columns)))
        names = {one.name.casefold() for one in some}
        more = [
            one
            for one in draw_columns(rng, can_be_nameless=False)
            if one.name.casefold() not in names
        ]
        return rng.sample([*some, *more], len(some) + len(more))
    return draw_columns(rng, can_be_nameless=True)


def draw_rows(rng: random.Random, columns: list[Column], most: int) -> list[Row]:
    rows = {
        tuple(rng.choice(column.values) for column in columns) for _ in range(rng.randint(1, most))
    }
    return sorted(rows, key=str)


def searched(columns: list[Column]) -> list[int]:
    """The columns that mean something alone: dates where there is nothing else."""
    strong = [number for number, column in enumerate(columns) if not column.is_weak]
    return strong or [*range(len(columns))]


def is_alone(own: list[Column], keys: list[Row], others: list[Column], rows: list[Row]) -> bool:
    """Whether a column of another operator has a value of a key that is surely the key's."""
    for number in searched(own):
        values = {own[number].text(key[number]) for key in keys}
        for at, other in enumerate(others):
            for row in rows:
                value = row[at]
                is_equal = other.text(value) in values
                if is_equal and (own[number].is_like(other) or own[number].is_telling(value)):
                    return True
    return False


def is_same_row(own: list[Column], keys: list[Row], others: list[Column], rows: list[Row]) -> bool:
    """Whether a row is a key as it is stored, whatever its columns are called."""
    is_one = [one.kind for one in own] == [one.kind for one in others]
    return is_one and any(tuple(row) in keys for row in rows)


def in_any_order(
    own: list[Column], keys: list[Row], others: list[Column], rows: list[Row]
) -> bool | None:
    """Whether keys are there, all columns of one together; None where these are other columns."""
    if len(own) != len(others) or len(own) == 1:
        return None
    orders = [
        order
        for order in permutations(range(len(own)))
        if all(
            own[number].kind == other.kind
            and (own[number].is_called(other) or (own[number].is_nameless and other.is_nameless))
            for number, other in zip(order, others, strict=True)
        )
    ]
    if not orders:
        return None
    return any(tuple(key[number] for number in order) in rows for order in orders for key in keys)


def expected_of_keys(
    own: list[Column], keys: list[Row], others: list[Column], rows: list[Row]
) -> bool:
    together = in_any_order(own, keys, others, rows)
    if together is None:
        return is_alone(own, keys, others, rows)
    return together


def expected_of_condition(
    own: list[Column], keys: list[Row], named: list[int], others: list[Column], rows: list[Row]
) -> bool:
    """As `expected_of_keys` of the columns that a condition names, which asks for equal values."""
    asked = [own[number] for number in named]
    values = list({tuple(key[number] for number in named) for key in keys})
    if len(others) == len(asked) and not any(one.is_nameless for one in (*asked, *others)):
        places = [
            next((at for at, one in enumerate(others) if one.is_called(column)), None)
            for column in asked
        ]
        if None not in places and all(
            others[at].kind == column.kind
            for at, column in zip(places, asked, strict=True)
            if at is not None
        ):
            wanted = [tuple(row[at] for at in places if at is not None) for row in rows]
            return any(value in wanted for value in values)
    return is_alone(asked, values, others, rows)


def literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str | date) else str(value)


def forgotten_at(search: KeySearch | None, operator: int) -> bool:
    return told(search, operator)[0] == "forgotten"


@pytest.mark.parametrize("num_turns", [8, pytest.param(300, marks=pytest.mark.extended)])
@pytest.mark.parametrize("way", ["keys", "where"])
def test_what_is_said_of_another_operator_is_what_it_has(
    tmp_path: Path, way: str, num_turns: int
) -> None:
    """Catches a certificate for somebody whom another operator has, and one that is refused."""
    rng = random.Random(random.getrandbits(64))
    told_of = {True: 0, False: 0}
    for turn in range(num_turns):
        own = draw_columns(rng, can_be_nameless=way == "keys")
        others = draw_other(rng, own)
        own_rows, rows = draw_rows(rng, own, 9), draw_rows(rng, others, 5)
        if rng.random() < 0.3:
            # Often the very columns of a key, one of them perhaps another's.
            key = rng.choice(own_rows)
            by_name = {one.name.casefold(): value for one, value in zip(own, key, strict=True)}
            row = tuple(
                value
                if (value := by_name.get(one.name.casefold())) in one.values
                else rng.choice(one.values)
                for one in others
            )
            rows = list({*rows, row})
        first = store_of(tuple((one.name, one.kind) for one in own), own_rows)
        second = store_of(tuple((one.name, one.kind) for one in others), rows)
        checkpoint = make(tmp_path / str(turn), first, second)
        key = rng.choice(own_rows)
        if way == "keys":
            keys = [key]
            told_as: dict[str, Any] = {
                "keys": pa.table(
                    {
                        f"key.{one.name}": pa.array(
                            [value], pa.decimal128(12, 2) if "decimal" in one.kind else None
                        )
                        for one, value in zip(own, key, strict=True)
                    }
                )
            }
            expected = expected_of_keys(own, keys, others, rows)
        else:
            named = sorted(rng.sample(range(len(own)), rng.randint(1, len(own))))
            keys = [row for row in own_rows if all(row[at] == key[at] for at in named)]
            told_as = {
                "where": " AND ".join(f'"{own[at].name}" = {literal(key[at])}' for at in named)
            }
            expected = expected_of_condition(own, keys, named, others, rows)
        expected = expected or is_same_row(own, keys, others, rows)

        done = checkpoint.forget(**told_as, all_rows=True)

        story = f"{own}\n{keys}\n{others}\n{rows}\n{told_as}\n{done.certificate.describe()}"
        assert done.num_keys == len(keys), story
        assert forgotten_at(done.certificate.search, 0), story
        assert forgotten_at(done.certificate.search, 1) == (not expected), story
        told_of[expected] += 1
    assert min(told_of.values()) >= num_turns // 10, told_of
