"""Conditions in SQL: every name is a column or refused, and rows are as a plain evaluation says."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.condition import Condition

NAMES = [
    *(
        "user",
        "USER",
        "current_user",
        "session_user",
        "date",
        "now",
        "key",
        "value",
        "Key",
        "order",
    ),
    *("a.b", "select", "state", "c0", 'say "hi"', "ü", "shop", "count", "current_date"),
]
LEAVES = {"string": pa.string(), "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
VALUES = {
    "string": st.sampled_from(["", "a", "b", "duckdb", "007", "7", "it's", "ü"]),
    "long": st.sampled_from([-(2**63), -1, 0, 7, 2**53 + 1, 2**63 - 1]),
    "double": st.sampled_from([math.nan, -0.0, 0.0, 0.5, -1.5, math.inf, -math.inf]),
    "boolean": st.booleans(),
}
COMPARISONS = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def leaves(kind: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Return the types of all fields that are no structs, by path."""
    if isinstance(kind, str):
        return {path: kind}
    return {
        found: of
        for name, part in kind.items()
        for found, of in leaves(part, (*path, name)).items()
    }


def every(kind: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return all paths, also those of structs."""
    own = [path] if path else []
    return own + [
        found
        for name, part in (kind.items() if isinstance(kind, dict) else ())
        for found in every(part, (*path, name))
    ]


def resolve(kind: Any, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the path that names stand for; None where they stand for none, or for several."""
    paths = every(kind)
    lower = tuple(name.lower() for name in names)
    if len(names) > 1 and names in paths:
        return names
    ends = [p for p in paths if tuple(n.lower() for n in p)[-len(names) :] == lower]
    whole = [p for p in ends if len(p) == len(names)] if len(names) > 1 else []
    found = whole or ends
    return found[0] if len(found) == 1 else None


def arrow(kind: Any) -> pa.DataType:
    """Return a type of Arrow."""
    if isinstance(kind, str):
        return LEAVES[kind]
    return pa.struct([(name, arrow(part)) for name, part in kind.items()])


def at(row: Any, path: tuple[str, ...]) -> Any:
    """Return a value of a row, None within None."""
    for name in path:
        row = None if row is None else row[name]
    return row


def comparable(value: Any) -> Any:
    """Return what Python compares as DuckDB does: NaN is one number, the largest."""
    return (
        (math.isnan(value), 0.0 if math.isnan(value) else value)
        if isinstance(value, float)
        else value
    )


def literal(value: Any, kind: str) -> str:
    """Return a value as it is typed."""
    if kind == "string":
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    if kind == "double":
        return f"{value!r}::double" if math.isfinite(value) else f"'{value}'::double"
    return str(value).lower()


def quoted(names: tuple[str, ...]) -> str:
    """Return names with dots, in double quotes."""
    escaped = (name.replace('"', '""') for name in names)
    return ".".join(f'"{name}"' for name in escaped)


fields = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=4),
    max_leaves=6,
)
structs = st.dictionaries(st.sampled_from(NAMES), fields, min_size=1, max_size=4)
schemas = st.fixed_dictionaries({"key": structs, "value": structs})


@st.composite
def rows_of(draw: Any, kind: Any) -> Any:
    """A value of a type, or None."""
    if isinstance(kind, str):
        return draw(st.none() | VALUES[kind])
    if draw(st.integers(0, 9)) == 0:
        return None
    return {name: draw(rows_of(part)) for name, part in kind.items()}


@st.composite
def names_of(draw: Any, schema: Any) -> tuple[str, ...]:
    """Names as people type them: of a field, whole or its last ones, in either case; or others."""
    path = draw(st.sampled_from(sorted(leaves(schema))))
    names = path[draw(st.integers(0, len(path) - 1)) :]
    if draw(st.integers(0, 5)) == 0:
        names = (draw(st.sampled_from(NAMES)),)
    return tuple(name.swapcase() if draw(st.integers(0, 3)) == 0 else name for name in names)


@st.composite
def conditions(draw: Any, schema: Any, depth: int = 3) -> tuple[str, Any]:
    """A condition, and a function that says of a row: True, False, None; refused where not one."""
    if depth and draw(st.booleans()):
        word = draw(st.sampled_from(["AND", "OR", "NOT"]))
        one, judge = draw(conditions(schema, depth - 1))
        if word == "NOT":
            negated = (
                None
                if judge is None
                else (lambda row: None if judge(row) is None else not judge(row))
            )
            return f"NOT ({one})", negated
        other, judge_other = draw(conditions(schema, depth - 1))
        if judge is None or judge_other is None:
            return f"({one}) {word} ({other})", None
        deciding = word == "OR"

        def both(row: Any) -> Any:
            found = judge(row), judge_other(row)
            return deciding if deciding in found else None if None in found else not deciding

        return f"({one}) {word} ({other})", both
    names = draw(names_of(schema))
    path = resolve(schema, names)
    kind = leaves(schema).get(path) if path else None
    written = quoted(names)
    if kind is None:
        return f"{written} = 1", None
    form = draw(st.sampled_from(["compare", "null", "in", "between"]))
    if form == "null":
        return f"{written} IS NULL", lambda row: at(row, path) is None
    values = [draw(VALUES[kind]) for _ in range(3)]
    typed = [literal(value, kind) for value in values]
    known = [comparable(value) for value in values]

    def of(judged: Any) -> Any:
        return lambda row: None if at(row, path) is None else judged(comparable(at(row, path)))

    if form == "in":
        return f"{written} IN ({', '.join(typed)})", of(lambda value: value in known)
    if form == "between":
        low, high = known[:2]
        return f"{written} BETWEEN {typed[0]} AND {typed[1]}", of(
            lambda value: low <= value <= high
        )
    sign = draw(st.sampled_from(sorted(COMPARISONS)))
    compare = COMPARISONS[sign]
    return f"{written} {sign} {typed[0]}", of(lambda value: compare(value, known[0]))


@given(st.data())
def test_rows_are_those_of_a_plain_evaluation_or_the_condition_is_refused(data: Any) -> None:
    """Catches a name that is taken for a function or another column, a null taken for true, text
    taken for a number, and a result that depends on where record batches end."""
    schema = data.draw(schemas)
    text, judge = data.draw(conditions(schema))
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({side: rows_of(part) for side, part in schema.items()}),
            max_size=8,
        )
    )
    of_arrow = pa.schema([(side, arrow(part)) for side, part in schema.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema=of_arrow)

    if judge is None:
        with pytest.raises(
            InvalidArgumentError,
            match=r"no column of a name|several columns|are compared",
        ):
            Condition(text).rows(batch)
        return
    condition = Condition(text)
    cut = data.draw(st.integers(0, len(rows)))
    first, second = condition.rows(batch.slice(0, cut)), condition.rows(batch.slice(cut))
    expected = [number for number, row in enumerate(rows) if judge(row)]
    assert [*first.tolist(), *(second + cut).tolist()] == expected


WINDOW = {
    "start": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    "end": dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
}
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "key": {"user": "u0", "shop": "007", "window": WINDOW},
            "value": {
                "user": "u1",
                "count": 7,
                "tags": ["007"],
                "ratio": 0.5,
                "day": dt.date(2024, 1, 1),
                "local": dt.datetime.fromisoformat("2024-01-01T23:00"),
            },
        }
    ]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user = 'u0'", "columns='key.user, value.user'"),
        ("user <> 'u0'", "columns='key.user, value.user'"),
        ("current_user = 'u0'", "no column of a name"),
        ("USER IS NOT NULL", "columns='key.user, value.user'"),
        ("key.usr = 'u0'", r"known='key, key\.user, key\.shop"),
        ("state.count = 7", "no column of a name"),
        ('shop = "007"', "text is in single quotes"),
        ("true", "no column occurs"),
        ("1 = 1 or 'a' = 'b'", "no column occurs"),
        ("count = (SELECT max(count) FROM state)", "found='subquery'"),
        ("EXISTS (SELECT 1) AND count = 7", "found='subquery'"),
        ("shop = ANY (value.tags)", "found='subquery'"),
        ("max(count) = count", "function='max'"),
        ("sum(count) OVER () = 7", "found='window'"),
        ("list_filter(tags, lambda tag: true) = tags", "function='list_filter'"),
        ("now() > start", "function='now'"),
        ("random() < 0.5 AND count = 7", "function='random'"),
        ("version() <> shop", "function='version'"),
        ("current_setting('TimeZone') <> shop", "function='current_setting'"),
        ("getvariable('x') IS NULL AND count = 7", "function='getvariable'"),
        ("age(start) > INTERVAL 1 DAY", "function='age'"),
        ("main.lower(shop) = '007'", r"function='main\.lower'"),
        ("count = ?", "found='parameter'"),
        ("count = $1", "found='parameter'"),
        ("COLUMNS(*) IS NULL", "found='star'"),
        ("#1 = 7", "found='positional reference'"),
        ("count", "neither true nor false"),
        ("value", "neither true nor false"),
        ("count AND count = 7", "a part of a condition is neither"),
        ("NOT count", "a part of a condition is neither"),
        ("shop = 7", "different kinds"),
        ("7 = shop", "different kinds"),
        ("shop IN ('x', 7)", "different kinds"),
        ("shop = count", "different kinds"),
        ("shop = DATE '2024-01-01'", "different kinds"),
        ("CASE shop WHEN 7 THEN true END", "different kinds"),
        ("tags = [7]", "different kinds"),
        ("tags[1] = 7", "different kinds"),
        ("{'a': shop} = {'a': 7}", "different kinds"),
        ("value = 7", "different kinds"),
        ("key.window = 7", "different kinds"),
        ("(count = 7) = 1", "different kinds"),
        ("count = 9007199254740993e0", "number='9007199254740993'"),
        ("count IN (7, -1E+19)", "by its first digits"),
        ("count BETWEEN 1 AND 1e16", "by its first digits"),
        ("count = 12345678901234567890123456789012345678.5", "by its first digits"),
        ("count = '5.5'", "numbers without quotes"),
        ("count BETWEEN '6.5' AND 8", "numbers without quotes"),
        ("ratio > '0'", "numbers without quotes"),
        ("day >= '2024-01-01 12:00'", "text='2024-01-01 12:00', type='DATE'"),
        ("day IN ('2024-01-01', '2024-01-01 12:00')", "would cut off a part of a text"),
        ("start > DATE '2024-01-01 12:00'", "would cut off a part of a text"),
        ("local < '2024-01-01 23:30+02'", "type='TIMESTAMP'"),
        ("start < TIMESTAMP '2024-01-01 23:30+02'", "type='TIMESTAMP'"),
        ("count = 7; DROP TABLE state", "not one expression|syntax error"),
        ("count = 7) FROM state; SELECT (1", "not one expression"),
        ("count = 7 -- and shop = 'x'", "comment"),
        ("count = 7 /* and shop = 'x' */", "comment"),
        ("count = 7 UNION SELECT true", "syntax error"),
        ("count = 7, count = 7", "not one expression"),
        ("count = 7) OR (1 = 1", "not one expression"),
        ("count = 7 LIMIT 1", "syntax error"),
        ("", "empty"),
        ("CAST(shop AS INTEGER) = 7 AND CAST('x' AS INTEGER) = 1", "cannot be evaluated"),
    ],
)  # fmt: skip
def test_condition_that_is_not_of_a_rows_columns_is_refused(text: str, said: str) -> None:
    """Catches a condition that holds for every row, or that says another thing than was meant."""
    with pytest.raises(InvalidArgumentError, match=said):
        Condition(text).rows(ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "shop = '007'",
        "KEY.SHOP = '007'",
        "count > 6.5 AND NOT count = 8",
        "start = '2024-01-01'",
        "start = '2024-01-01 01:00+01'",
        "key.window.start < TIMESTAMP '2024-01-01 00:00:01'",
        "day = '2024-01-01' AND day = '2024-01-01 00:00' AND local = '2024-01-01 23:00Z'",
        "local BETWEEN day AND '2024-01-02 13:00' AND local IN (day, '2024-01-01 23:00')",
        "day < TIMESTAMP '2024-01-01 12:00' AND local > '2024-01-01 23:30+02'::TIMESTAMPTZ",
        "\"end\" - start = INTERVAL 1 DAY",
        "\"window\".start + INTERVAL 24 HOUR = key.window.end",
        "date_trunc('month', start) = start AND extract(hour FROM start) = 0",
        "shop LIKE '00%' AND shop SIMILAR TO '0+7' AND lower(shop) = '007'",
        "CAST(shop AS INTEGER) = count",
        "list_contains(tags, shop) AND shop IN tags AND tags = ['007']",
        "(value.tags)[1] = shop AND len(tags) = 1",
        "ratio = 0.5 AND round(ratio * 2) = 1",
        "key.window['start'] IS NOT NULL",
        "CASE WHEN count = 7 THEN shop = '007' ELSE NULL END",
        "shop <> '--' AND shop <> '/*'",
        "coalesce(count, 0) % 7 = 0",
        "count IS NOT DISTINCT FROM 7",
        "key.window = {'start': TIMESTAMPTZ '2024-01-01', 'end': TIMESTAMPTZ '2024-01-02'}",
        "CAST(start AS DATE) = start",
    ],
)  # fmt: skip
def test_condition_over_one_row_holds(text: str) -> None:
    """Catches what people write that would be refused, and times in the zone of the machine."""
    assert Condition(text).rows(ROWS).tolist() == [0]
    assert Condition(f"NOT ({text})").rows(ROWS).tolist() == []


TERMS = pa.RecordBatch.from_arrays(
    [
        pa.StructArray.from_arrays(
            [
                pa.array([(14, 0, 0), (0, 420, 0), (14, 0, 0)], pa.month_day_nano_interval()),
                pa.array([dt.timedelta(days=30)] * 3, pa.duration("us")),
                pa.array(list("abc")),
            ],
            ["term", "span", "name"],
        )
    ],
    ["key"],
)


@pytest.mark.parametrize(
    "text",
    [
        "term = INTERVAL 14 MONTH",
        "term > INTERVAL 1 DAY AND name = 'b'",
        "'14 months' = key.term",
        "term IN (INTERVAL 1 MONTH, INTERVAL 14 MONTH)",
        "term BETWEEN INTERVAL 1 MONTH AND INTERVAL 20 MONTH",
        "term + INTERVAL 1 DAY = INTERVAL 421 DAY",
        "term IS NOT DISTINCT FROM INTERVAL 14 MONTH",
        "CASE term WHEN INTERVAL 14 MONTH THEN true END",
        "[term] = [INTERVAL 14 MONTH]",
        "list_contains([term], INTERVAL 420 DAY)",
        "contains([term], INTERVAL 420 DAY)",
        "term IN [INTERVAL 420 DAY]",
        "map([term], [1])[INTERVAL 420 DAY] = 1",
        "greatest(term, INTERVAL 1 DAY) IS NOT NULL",
        "key.term < span",
        "key = {'term': INTERVAL 14 MONTH, 'span': INTERVAL 30 DAY, 'name': 'a'}",
    ],
)
def test_interval_of_months_is_not_compared_as_days(text: str) -> None:
    """Catches a key of 420 days that goes with one of 14 months, which to DuckDB are equal."""
    with pytest.raises(InvalidArgumentError, match=r"an interval of months.*column='key(\.term)?'"):
        Condition(text).rows(TERMS)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("date_part('year', term) = 1 AND date_part('month', term) = 2 AND name <> 'c'", [0]),
        ("date_part('day', term) = 420", [1]),
        ("term IS NOT NULL AND name = 'b'", [1]),
        ("span = INTERVAL 30 DAY AND span < '31 days' AND name = 'a'", [0]),
        ("list_contains([span], INTERVAL 30 DAY) AND list_contains(['a', 'x'], name)", [0]),
    ],
)
def test_parts_of_an_interval_and_durations_are_compared(text: str, rows: Any) -> None:
    """Catches a refusal that leaves no way to name a row by its interval."""
    assert Condition(text).rows(TERMS).tolist() == rows


MINUTE = dt.timedelta(minutes=1)
MOMENTS = st.sampled_from([0, 1, 719, 720, 1439, 1440, 2160, 2880]).map(
    lambda minutes: dt.datetime(2024, 1, 1) + minutes * MINUTE  # noqa: DTZ001
)
TIMES = {"day": pa.date32(), "local": pa.timestamp("us"), "start": pa.timestamp("us", "UTC")}


def midnight(moment: dt.datetime) -> dt.datetime:
    """Return the begin of a time's day."""
    return moment.replace(hour=0, minute=0)


@st.composite
def typed_times(draw: st.DrawFn) -> tuple[str, dt.datetime, dict[str, dt.datetime]]:
    """Return a text, the time in UTC that it says, and what each type of column keeps of it."""
    moment, hours = draw(MOMENTS), draw(st.sampled_from([None, None, -11, 0, 2]))
    if hours is None and draw(st.booleans()):
        moment = midnight(moment)
        return f"{moment:%Y-%m-%d}", moment, dict.fromkeys(TIMES, moment)
    zone = "" if hours is None else f"{hours:+03d}"
    said = moment - (hours or 0) * 60 * MINUTE
    keeps = {"day": midnight(moment), "local": moment, "start": said}
    return f"{moment:%Y-%m-%d %H:%M}{zone}", said, keeps


@given(
    name=st.sampled_from([*TIMES]),
    moments=st.lists(MOMENTS, min_size=1, max_size=5),
    texts=st.tuples(typed_times(), typed_times()),
    what=st.sampled_from([*COMPARISONS, "BETWEEN", "IN"]),
)
def test_times_are_compared_with_all_that_a_text_says_or_refused(
    name: str, moments: list[Any], texts: Any, what: str
) -> None:
    """Catches rows that are chosen by a day without its time, or by a time without its offset."""
    if name == "day":
        moments = [*map(midnight, moments)]
    rows = pa.RecordBatch.from_arrays([pa.array(moments).cast(TIMES[name])], names=[name])
    (first, low, _), (second, high, _) = texts
    if what in COMPARISONS:
        texts = texts[:1]
        text = f"{name} {what} '{first}'"
        expected = [COMPARISONS[what](moment, low) for moment in moments]
    elif what == "BETWEEN":
        text = f"{name} BETWEEN '{first}' AND '{second}'"
        expected = [low <= moment <= high for moment in moments]
    else:
        text = f"{name} IN ('{first}', '{second}')"
        expected = [moment in (low, high) for moment in moments]

    if any(said != keeps[name] for _, said, keeps in texts):
        with pytest.raises(InvalidArgumentError, match="would cut off a part of a text"):
            Condition(text).rows(rows)
    else:
        found = Condition(text).rows(rows).tolist()
        assert found == [number for number, holds in enumerate(expected) if holds]


WIDE = 12345678901234567890123456789012345678
NUMBERS = pa.RecordBatch.from_pylist(
    [
        {"id": b"ann", "wide": Decimal(WIDE), "price": Decimal("1.10"), "fee": Decimal("1.10")},
        {"id": b"616e6e", "wide": Decimal(WIDE - 1), "price": Decimal("1.11"), "fee": None},
    ],
    schema=pa.schema(
        {
            "id": pa.binary(),
            "wide": pa.decimal128(38, 0),
            "price": pa.decimal128(20, 2),
            "fee": pa.decimal128(15, 2),
        }
    ),
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("id = '616e6e'", "hex(key.id) = '00FF'"),
        ("id IN ('ann', 'bob')", "hex(key.id) = '00FF'"),
        ("hex(id) = '616E6E'", [0]),
        (r"id = '\x61nn'::BLOB", [0]),
        (f"wide = {WIDE}", [0]),
        (f"wide > {WIDE - 1} AND wide > 1e9", [0]),
        (f"wide = {WIDE}.0", "by its first digits"),
        (f"wide >= {WIDE // 10}e1", "by its first digits"),
        ("price = 1.1", [0]),
        ("price = 1.1e0", [0]),
        ("price < 1e13", "by its first digits"),
        ("price::DOUBLE < 1e13", [0, 1]),
        ("price * 1.5 < 1e3", [0, 1]),
        ("fee::DOUBLE IN (10000000000, 1e20)", []),
        ("octet_length(id) = -(9007199254740993e0)", "number='-9007199254740993'"),
        ("fee = 1.1e0", [0]),
    ],
)
def test_a_value_is_none_of_its_neighbours_and_bytes_are_no_text(text: str, rows: Any) -> None:
    """Catches a row that goes because its key is next to the one that was meant."""
    if isinstance(rows, list):
        assert Condition(text).rows(NUMBERS).tolist() == rows
        return
    with pytest.raises(InvalidArgumentError, match=re.escape(rows)):
        Condition(text).rows(NUMBERS)
