"""Random conditions: in SQL as people write it, and in plain Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from .columns import Column, order_key, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

    from .families import Family, Key

Truth = bool | None
Expected = Literal["works", "refused", "either"]
"""What a condition must do: select what Python does, or be refused. Either is right where a bare
name may be a word of SQL."""

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
CONSTANTS = ("true", "false", "null")
"""Words that are values in SQL: without quotes nobody means a column by them."""
NO_CONDITIONS = (
    "current_user <> {text}", "session_user = {text}", "user <> {text}", "nope = {text}",
    "current_date > DATE '2000-01-01'", "1 = 1", "true", "random() < 2", "now() > {text}",
    "{name} = (SELECT max({name}) FROM state)", "{name} IN (SELECT {name} FROM state)",
    "count(*) > 0", "row_number() OVER () > 0", "key.nope = 1", "{name} = {text} OR nope",
)  # fmt: skip
"""Conditions that name no column, or more than columns: none of them may select a row."""


@dataclass(frozen=True)
class Condition:
    """A condition.

    Attributes:
        sql: As it is given.
        holds: Whether a row fulfils it, by key and value.
        expected: What must happen.
    """

    sql: str
    holds: Callable[[Key, Key], bool]
    expected: Expected


@dataclass(frozen=True)
class _Field:
    side: str
    column: Column
    number: int

    def of(self, key: Key, value: Key) -> Any:
        return (key if self.side == "key" else value)[self.number]


def draw_condition(
    rng: Generator,
    family: Family,
    rows: Any,
    *,
    only_keys: bool = False,
    only_paths: bool = False,
) -> Condition:
    """Draw a condition over the rows of a family.

    Args:
        rng: Where chance comes from.
        family: Its columns are those of the condition.
        rows: The rows; most literals are values that they have.
        only_keys: Whether only columns of the grouping key may be in it.
        only_paths: Whether every column is named by its path: as DuckDB itself understands it.
    """
    keys = family.grouping if only_keys else family.keys
    fields = [_Field("key", column, number) for number, column in enumerate(keys)]
    if not only_keys:
        fields += [_Field("value", column, number) for number, column in enumerate(family.values)]
    usable = [one for one in fields if one.column.type.sql is not None]
    every = _names([("key", keys), *([] if only_keys else [("value", family.values)])])
    made = _Maker(rng, usable, every, rows, is_many=family.kind != "value", only_paths=only_paths)
    if not usable or (not only_paths and rng.random() < 0.08):
        return made.none(fields)
    sql, test, expected = made.draw(int(rng.integers(0, 3)))
    return Condition(sql, lambda key, value: test(key, value) is True, expected)


def _names(sides: list[tuple[str, tuple[Column, ...]]]) -> list[str]:
    """Return the names of all columns and of fields in them, each as often as there is one."""
    paths: dict[tuple[str, ...], None] = {}
    for side, columns in sides:
        paths[side,] = None
        for column in columns:
            path = (side, *column.path)
            paths |= dict.fromkeys(path[:end] for end in range(1, len(path) + 1))
            arrow: Any = column.type.arrow
            if pa.types.is_struct(arrow):
                paths |= {(*path, name): None for name in arrow.names}
    names = [path[-1].casefold() for path in paths]
    return names if len(sides) == 1 else [*names, "partition_id"]


class _Maker:
    def __init__(
        self,
        rng: Generator,
        fields: list[_Field],
        every: list[str],
        rows: Any,
        *,
        is_many: bool,
        only_paths: bool,
    ) -> None:
        self._rng = rng
        self._fields = fields
        self._every = every
        self._rows = rows
        self._is_many = is_many
        self._only_paths = only_paths

    def none(self, fields: Sequence[_Field]) -> Condition:
        """Return what is no condition over the columns."""
        texts = [text for text in NO_CONDITIONS if not self._is_one_of(text)]
        text = str(self._rng.choice(texts))
        name = self._path(fields[0]) if fields else "key"
        sql = text.format(text="'x'", name=name)
        return Condition(sql, lambda key, value: False, "refused")

    def _is_one_of(self, text: str) -> bool:
        word = re.match(r"\w+", text)
        return word is not None and word[0] in self._every

    def draw(self, depth: int) -> tuple[str, Any, Expected]:
        if depth == 0:
            return self._leaf()
        left, first, one = self.draw(depth - 1)
        if self._rng.random() < 0.25:
            return f"NOT ({left})", lambda k, v: _not(first(k, v)), one
        right, second, other = self.draw(depth - 1)
        expected = _both(one, other)
        if self._rng.random() < 0.5:
            return f"({left}) AND ({right})", lambda k, v: _and(first(k, v), second(k, v)), expected
        return f"({left}) or ({right})", lambda k, v: _or(first(k, v), second(k, v)), expected

    def _leaf(self) -> tuple[str, Any, Expected]:
        field = self._fields[self._rng.integers(len(self._fields))]
        name, expected = self._name(field)
        sql_of: Any = field.column.type.sql
        kind = self._rng.random()
        if kind < 0.12:
            is_not = bool(self._rng.random() < 0.5)
            text = f"{name} IS {'NOT ' * is_not}NULL"
            return text, lambda k, v: (field.of(k, v) is None) != is_not, expected
        if kind < 0.3:
            values = [self._literal(field) for _ in range(int(self._rng.integers(1, 4)))]
            is_not = bool(self._rng.random() < 0.3)
            listed = ", ".join(map(sql_of, values))
            text = f"{name} {'NOT ' * is_not}IN ({listed})"
            return text, lambda k, v: _in(field.of(k, v), values, is_not), expected
        sign = str(self._rng.choice(list(COMPARISONS)))
        value = self._literal(field)
        compare = COMPARISONS[sign]

        def test(k: Key, v: Key) -> Truth:
            found = field.of(k, v)
            return None if found is None else compare(order_key(found), order_key(value))

        return f"{name} {sign} {sql_of(value)}", test, expected

    def _literal(self, field: _Field) -> Any:
        """Draw a value that is not null, half of the time one that a row has."""
        if self._rows and self._rng.random() < 0.6:
            keys = list(self._rows)
            key = keys[self._rng.integers(len(keys))]
            value = self._rows[key]
            if self._is_many:
                value = value[self._rng.integers(len(value))]
            found = field.of(key, value)
            if found is not None:
                return found
        return plain(field.column.type.draw(self._rng))

    def _path(self, field: _Field) -> str:
        return ".".join([field.side, *map(_quoted, field.column.path)])

    def _name(self, field: _Field) -> tuple[str, Expected]:
        """Say a column by its path, or by its name alone."""
        name = field.column.name
        is_word = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is not None
        style = self._rng.random()
        if style < 0.35 or field.column.within or self._only_paths:
            return self._path(field), "works"
        if style < 0.55:
            return (f"{field.side}.{name}", "works") if is_word else (self._path(field), "works")
        times = self._every.count(name.casefold())
        if style < 0.8:
            return _quoted(name), "works" if times == 1 else "refused"
        if not is_word or name.casefold() in CONSTANTS:
            return self._path(field), "works"
        # It may be a word of SQL.
        return name, "either" if times == 1 else "refused"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _both(one: Expected, other: Expected) -> Expected:
    if "refused" in (one, other):
        return "refused"
    return "works" if one == other == "works" else "either"


def _not(one: Truth) -> Truth:
    return None if one is None else not one


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: Truth, other: Truth) -> Truth:
    return _not(_and(_not(one), _not(other)))


def _in(found: Any, values: list[Any], is_not: bool) -> Truth:
    if found is None:
        return None
    return (order_key(found) in [order_key(value) for value in values]) != is_not
