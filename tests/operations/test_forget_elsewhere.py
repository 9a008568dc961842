"""Keys that another operator still has, in columns of another order, type or name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import key_type
from statestore.operations.forget.search import KeySearch
from statestore.testing.checkpoints import MadeCheckpoint

from .test_forget_random import KINDS, TypedStore, field, schema

ANN, BOB = "ann@example.org", "bob@example.org"
WINDOW = {"type": "struct", "fields": [field("start", "timestamp"), field("end", "timestamp")]}
Columns = tuple[tuple[str, Any], ...]


def store_of(columns: Columns, rows: list[tuple[Any, ...]]) -> TypedStore:
    """A store of counts, whose keys of number 0, 1 and so on are these."""
    names = [name for name, _ in columns]

    def key(number: int) -> dict[str, Any]:
        return dict(zip(names, rows[number], strict=True))

    family = ColumnFamily(0, "default", schema(*columns), schema(("n", "long")))
    value: Callable[[int, int], dict[str, Any]] = lambda _, number: {"n": number}  # noqa: E731
    return TypedStore("default", tuple(names), family, key, value, below=len(rows))


def make(directory: Path, *stores: TypedStore) -> Checkpoint:
    """Make a checkpoint of an aggregation for each store."""
    operators = [("stateStoreSave", (store,)) for store in stores]
    made = MadeCheckpoint(str(directory / "query"), num_partitions=2, operators=operators)
    made.run_batch(dict.fromkeys(range(max(store.below for store in stores)), 1))
    return Checkpoint(made.path)


def told(search: KeySearch | None, operator: int = 1) -> tuple[str, set[tuple[str, str]]]:
    """What a search says of an operator: the verdict, and where."""
    assert search is not None
    outcome = search.outcomes[operator]
    return outcome.verdict, {(hit.path, hit.certainty) for hit in outcome.hits}


def hour_window(hour: int, hours: int = 1) -> dict[str, Any]:
    start = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return {"start": start, "end": start + timedelta(hours=hours)}


USER_SHOP: Columns = (("user_id", "string"), ("shop_id", "string"))
SHOP_USER: Columns = USER_SHOP[::-1]
USER_HOUR: Columns = (("user_id", "string"), ("hour", "long"))
USER_HOUR_AS_TEXT: Columns = (("user_id", "string"), ("hour", "string"))
NAMELESS: Columns = (("field0", "string"), ("field1", "string"))
NAMELESS_HOUR: Columns = (("field0", "string"), ("field1", "long"))
FIVE_NAMELESS: Columns = tuple((f"field{number}", "string") for number in range(5))
HOUR_NAMELESS: Columns = (("field0", "long"), ("field1", "string"))


@pytest.mark.parametrize(
    ("first", "second", "forgotten", "there", "expected"),
    [
        # The same columns in another order: together.
        (USER_SHOP, SHOP_USER, (ANN, "a"), ("a", ANN), ("found", {("row", "found")})),
        (USER_SHOP, SHOP_USER, (ANN, "a"), ("a", BOB), ("forgotten", set())),
        (USER_SHOP, USER_SHOP, (ANN, "a"), (ANN, "a"), ("found", {("row", "found")})),
        (USER_SHOP, USER_SHOP, (ANN, "a"), (BOB, "a"), ("forgotten", set())),
        # Of another type: each by itself.
        (
            USER_HOUR, USER_HOUR_AS_TEXT, (ANN, 5), (ANN, "5"),
            ("found", {("key.user_id", "found"), ("key.hour", "found")}),
        ),
        (USER_HOUR, USER_HOUR_AS_TEXT, (ANN, 5), (BOB, "6"), ("forgotten", set())),
        # Of columns without names nobody knows which is which.
        (
            NAMELESS, NAMELESS, (ANN, "a"), ("a", ANN),
            ("found", {("row", "found"), ("key.field0", "maybe"), ("key.field1", "maybe")}),
        ),
        (
            NAMELESS_HOUR, HOUR_NAMELESS, (ANN, 5), (5, ANN),
            ("found", {("row", "found"), ("key.field0", "maybe"), ("key.field1", "maybe")}),
        ),
        (
            NAMELESS_HOUR, NAMELESS_HOUR, (ANN, 5), (BOB, 5),
            ("forgotten", {("key.field1", "maybe")}),
        ),
        (NAMELESS_HOUR, NAMELESS_HOUR, (ANN, 5), (BOB, 6), ("forgotten", set())),
        # Of five there are too many orders.
        (
            FIVE_NAMELESS, FIVE_NAMELESS, (ANN, "a", "b", "c", "d"), (BOB, "z", "a", "y", "x"),
            ("found", {("key.field2", "found")}),
        ),
    ],
)  # fmt: skip
def test_a_whole_key_that_another_operator_has_is_found(
    tmp_path: Path, first: Columns, second: Columns, forgotten: Any, there: Any, expected: Any
) -> None:
    """Catches a certificate for a user whom the next operator has in another order or type."""
    other = (*forgotten[:-1], "x" if isinstance(forgotten[-1], str) else 99)
    checkpoint = make(tmp_path, store_of(first, [forgotten, other]), store_of(second, [there]))
    names = [name for name, _ in first]
    keys = pa.table({f"key.{name}": [one] for name, one in zip(names, forgotten, strict=True)})
    before = checkpoint.search_keys(keys)
    condition = " AND ".join(
        f"{name} = {one!r}" for name, one in zip(names, forgotten, strict=True)
    )

    planned = checkpoint.forget(condition, dry_run=True)
    done = checkpoint.forget(keys=keys)

    assert (planned.num_keys, done.num_keys) == (1, 1)
    search = done.certificate.search
    assert search is not None
    assert (before.num_keys, search.num_keys) == (1, 1)
    assert told(search) == told(before) == expected, done.certificate.describe()
    assert done.certificate.is_forgotten == (expected[0] == "forgotten")


@pytest.mark.parametrize(
    ("first", "second", "where", "there", "expected"),
    [
        # The condition itself, wherever its columns are.
        (USER_SHOP, SHOP_USER, f"user_id = '{ANN}'", ("z", ANN), "found"),
        (USER_SHOP, SHOP_USER, f"user_id = '{ANN}'", ("a", BOB), "forgotten"),
        (USER_SHOP, SHOP_USER, "user_id LIKE 'ann%'", ("z", "anna"), "found"),
        (USER_SHOP, SHOP_USER, f"user_id = '{ANN}' AND shop_id = 'a'", ("a", BOB), "forgotten"),
        (USER_SHOP, SHOP_USER, f"user_id = '{ANN}' AND shop_id <= 'b'", ("b", ANN), "found"),
        # The values of its columns, where these have another type, or no name.
        (USER_HOUR, USER_HOUR_AS_TEXT, "hour = 5", (BOB, "5"), "found"),
        (USER_HOUR, USER_HOUR_AS_TEXT, f"user_id = '{ANN}'", (BOB, "5"), "forgotten"),
        (
            USER_HOUR,
            (("user_id", "string"), ("hour", "decimal(10,2)")),
            f"user_id = '{ANN}' AND hour::VARCHAR = '5'",
            (ANN, Decimal(5)),
            "found",
        ),
        (NAMELESS, NAMELESS, f"field0 = '{ANN}'", ("z", ANN), "found"),
        (NAMELESS, NAMELESS, f"field0 = '{ANN}'", (BOB, "a"), "forgotten"),
        (NAMELESS, NAMELESS, f"field0 = '{ANN}' AND field1 < 'b'", ("z", ANN), "found"),
        (
            USER_SHOP,
            (("user_id", "string"), ("day", "date")),
            "user_id = 'x'",
            ("x", None),
            "found",
        ),
    ],
)
def test_what_a_condition_asks_is_asked_of_other_operators(
    tmp_path: Path, first: Columns, second: Columns, where: str, there: Any, expected: str
) -> None:
    """Catches a certificate for a user whom another operator has beside another shop."""
    rows: list[tuple[Any, ...]] = [(ANN, "a"), ("x", "y"), ("c", "c")]
    if first[-1][1] == "long":
        rows = [(ANN, 5), ("x", 7), ("c", 8)]
    checkpoint = make(tmp_path, store_of(first, rows), store_of(second, [there]))

    done = checkpoint.forget(where).certificate

    assert told(done.search)[0] == expected, done.describe()
    assert done.is_forgotten == (expected == "forgotten")


def test_a_user_of_another_window_is_found_and_a_window_is_nobody(tmp_path: Path) -> None:
    """Catches the second of two chained windows, certified since its windows are longer."""
    columns: Columns = (("window", WINDOW), ("user", "string"))
    hours = [(hour_window(0), ANN), (hour_window(0), BOB), (hour_window(1), ANN)]
    days = [(hour_window(0, 24), ANN), (hour_window(0), BOB)]
    checkpoint = make(tmp_path, store_of(columns, hours), store_of(columns, days))

    first = checkpoint.forget(f"user = '{ANN}'").certificate
    assert told(first.search)[0] == "found"
    assert ("row", "found") in told(first.search)[1]
    keys = pa.table({"key.window": pa.array([hour_window(0)]), "key.user": [ANN]})
    assert told(checkpoint.search_keys(keys)) == ("forgotten", {("bytes", "maybe")})
    second = checkpoint.forget(f"user = '{ANN}'", operator=1).certificate

    assert second.is_forgotten, second.describe()
    assert checkpoint.rows(1).read().num_rows == 1


@pytest.mark.parametrize("by_name", ["where", "keys"])
def test_a_column_that_was_renamed_has_the_name_of_the_newest_version(
    tmp_path: Path, by_name: str
) -> None:
    """Catches a user who can never be forgotten: no name is that of all files."""
    rows: list[tuple[Any, ...]] = [(ANN, "a"), (BOB, "a")]
    old = store_of((("user", "string"), ("shop", "string")), rows)
    new = store_of((("user_id", "string"), ("shop", "string")), rows)
    made = MadeCheckpoint(
        str(tmp_path / "query"), num_partitions=2, operators=[("stateStoreSave", (old,))]
    )
    made.run_batch({0: 1, 1: 1})
    made.operators = [("stateStoreSave", (new,))]
    made.run_batch({1: 2})
    checkpoint = Checkpoint(made.path)
    keys = pa.table({"key.user_id": [ANN], "key.shop": ["a"]})
    how: dict[str, Any] = {"where": f"user_id = '{ANN}'"} if by_name == "where" else {"keys": keys}
    assert told(checkpoint.search_keys(keys), 0) == ("found", {("row", "found")})

    done = checkpoint.forget(**how)

    assert (done.num_keys, done.num_rows, done.num_rows_of_files) == (1, 1, 1)
    assert done.certificate.is_forgotten, done.certificate.describe()
    assert checkpoint.rows(0).read(flatten=True)["key.user_id"].to_pylist() == [BOB]


def test_a_column_that_no_condition_names_is_told_where_another_operator_has_it(
    tmp_path: Path,
) -> None:
    """Catches a certificate that says nothing of an account number that is still there."""
    first = store_of((("user_id", "string"), ("account", "long")), [(ANN, 7654321), (BOB, 1)])
    checkpoint = make(tmp_path, first, store_of((("account", "long"),), [(7654321,)]))

    done = checkpoint.forget(f"user_id = '{ANN}'")

    verdict, hits = told(done.certificate.search)
    assert verdict == "forgotten"
    assert ("key.account", "maybe") in hits


def test_columns_of_one_type_that_changed_places_are_not_renamed(tmp_path: Path) -> None:
    """Catches a row of the forgotten that is taken for another one's."""
    columns: Columns = (("user_id", "long"), ("shop_id", "long"))
    made = MadeCheckpoint(
        str(tmp_path / "query"),
        num_partitions=2,
        operators=[("stateStoreSave", (store_of(columns, [(5, 7), (1, 1)]),))],
    )
    made.run_batch({0: 1, 1: 1})
    made.operators = [("stateStoreSave", (store_of(columns[::-1], [(7, 5), (2, 2)]),))]
    made.restart()
    made.run_batch({1: 1})
    checkpoint = Checkpoint(made.path)
    keys = pa.table({"key.user_id": [5], "key.shop_id": [7]})

    done = checkpoint.forget(keys=keys)

    left = {tuple(row["key"].values()) for row in checkpoint.rows().read().to_pylist()}
    assert (5, 7) not in left
    assert (7, 5) not in left
    assert done.certificate.is_forgotten


@pytest.mark.parametrize(
    ("kind", "of_ann", "of_bob"),
    [
        (KINDS["array"][0], [ANN, "shared"], [BOB, "shared"]),
        (
            {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
            [("team", "shared"), ("who", ANN)],
            [("team", "shared"), ("who", BOB)],
        ),
    ],
)
def test_a_part_of_an_array_or_a_map_is_no_key(
    tmp_path: Path, kind: Any, of_ann: Any, of_bob: Any
) -> None:
    """Catches a key that is never certified, since the key of another one has an element of it."""
    store = store_of((("tags", kind),), [(of_ann,), (of_bob,)])
    checkpoint = make(tmp_path, store)
    arrow = key_type(store.family).types[0].arrow

    done = checkpoint.forget(keys=pa.table({"key.tags": pa.array([of_ann], arrow)})).certificate

    assert done.num_rows == 1
    assert told(done.search, 0) == ("forgotten", {("bytes", "maybe")})
