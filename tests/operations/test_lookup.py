"""Filters and look-ups: rows are those of the whole state that a filter keeps, few blocks read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import Checkpoint
from statestore.operations.reading.lookup import demand_of
from tests.checkpoints import move_rows
from tests.operations.typed import LEAVES, Counting, make_typed
from tests.seams import at

VARIABLES = Path(__file__).parents[1] / "golden" / "spark" / "rocksdb-ids-variables" / "checkpoint"
FIELDS = ("a", "b")
LITERALS = [0, 1, 2, None]


def expressions() -> Any:
    field = st.sampled_from(FIELDS).map(pc.field)
    literal = st.sampled_from(LITERALS).map(lambda value: pc.scalar(pa.scalar(value, pa.int64())))
    leaves = st.one_of(
        st.builds(lambda a, b: a == b, field, literal),
        st.builds(lambda a, b: b == a, field, literal),
        st.builds(lambda a, b: a != b, field, literal),
        st.builds(lambda a, b: a < b, field, literal),
        st.builds(lambda a, b: a.isin(b), field, st.lists(st.sampled_from(LITERALS), max_size=3)),
        st.builds(lambda a: a.is_null(), field),
        st.builds(lambda a, b: a == b, field, field),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
            st.builds(lambda a, b, c: pc.if_else(a, b, c), inner, inner, inner),
        ),
        max_leaves=8,
    )


ROWS = pa.table(
    {
        "a": pa.array([a for a in LITERALS for _ in LITERALS], pa.int64()),
        "b": pa.array([b for _ in LITERALS for b in LITERALS], pa.int64()),
    }
)


@given(expressions())
def test_rows_that_a_filter_keeps_have_the_values_that_it_asks_for(expression: Any) -> None:
    """Catches a look-up that passes over rows: an OR taken for an AND, a NOT, a null, an IN."""
    demand = demand_of(expression)
    kept = ROWS.filter(expression).to_pylist()

    assert demand.fields is not None
    assert {name for (name,) in demand.fields} <= {*FIELDS}
    for (name,), values in demand.values.items():
        assert {row[name] for row in kept} <= {value.as_py() for value in values}


def test_what_equality_and_membership_ask_for_is_understood() -> None:
    """Catches an Arrow that pickles expressions in another way: look-ups would read everything."""
    expression = (pc.field("key", "shop") == "it's") & pc.field("n").isin([1, 2])

    demand = demand_of(expression & (pc.field("more.x") > 3))

    found = {names: [value.as_py() for value in of] for names, of in demand.values.items()}
    assert found == {("key", "shop"): ["it's"], ("n",): [1, 2]}
    assert demand.fields == {("key", "shop"), ("n",), ("more.x",)}


def _same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


def _text(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("kind", [kind for kind in LEAVES if "year" not in kind and kind != "void"])
@pytest.mark.few(6)
def test_a_look_up_finds_what_a_filter_of_all_rows_does(
    tmp_path: Path, backend: str, kind: str
) -> None:
    """Catches a key group computed of another type, or of one of two zeros or NaNs."""
    random = Random(f"{kind} {backend}")
    key, value = {"k": kind, "n": "integer"}, {"v": kind, "k": "long"}
    made = make_typed(tmp_path / "ck", random, key, value, backend=backend, block_rows=3)
    rows = Checkpoint(made.path).rows()
    table = rows.read()
    keys = pc.struct_field(table["key"], "k")
    for wanted in keys.unique():
        for number in (0, 7):
            if not wanted.is_valid:
                continue
            expression = (pc.field("key.k") == wanted) & (pc.field("key.n") == number)
            flat = rows.read(flatten=True)
            assert _text(rows.read(flatten=True, filter=expression).to_pylist()) == _text(
                flat.filter(expression).to_pylist()
            )
            found = rows.find([wanted.as_py(), number]).to_pylist()
            assert _text(found) == _text(
                [
                    row
                    for row in table.to_pylist()
                    if _same(row["key"]["k"], wanted.as_py()) and row["key"]["n"] == number
                ]
            )


def test_a_condition_reads_what_it_needs_and_finds_the_same(tmp_path: Path) -> None:
    """Catches a condition whose rows are other ones because it was looked up."""
    random = Random(5)
    made = make_typed(
        tmp_path / "ck",
        random,
        {"shop": "string", "n": "integer", "t": "double"},
        {"count": "long", "shop": "string"},
        num_rows=300,
    )
    rows = Checkpoint(made.path).rows()
    every = rows.read().to_pylist()
    for _ in range(40):
        shop = random.choice([*{row["key"]["shop"] for row in every} - {None}])
        n, zero = random.choice([0, 7]), random.choice([0.0, 0.1])
        quoted = shop.replace("'", "''")
        condition, holds = random.choice(CONDITIONS)
        columns = random.choice([None, ["key.n"], ["value.count"], ["partition_id", "key"]])

        found = rows.read(
            filter=condition.format(shop=quoted, n=n, t=zero), columns=columns
        ).to_pylist()

        assert _text(found) == _text(
            [_picked(row, columns) for row in every if holds(row, shop, n, zero)]
        ), condition


CONDITIONS: list[tuple[str, Callable[[Any, str, int, float], bool]]] = [
    (
        "key.shop = '{shop}' AND n = {n} AND t = {t}",
        lambda row, *key: (*row["key"].values(),) == key,
    ),
    (
        "key.shop IN ('{shop}', 'a') AND n IN ({n}, 8) AND t = {t}",
        lambda row, shop, n, t: (
            row["key"]["shop"] in (shop, "a") and row["key"]["n"] in (n, 8) and row["key"]["t"] == t
        ),
    ),
    (
        "(key.shop = '{shop}' OR n = {n}) AND t IS NOT NULL",
        lambda row, shop, n, _: (
            (row["key"]["shop"] == shop or row["key"]["n"] == n) and row["key"]["t"] is not None
        ),
    ),
    (
        "key.shop = '{shop}' AND n = {n} AND t = {t} AND value.shop = 'a'",
        lambda row, *key: (*row["key"].values(),) == key and row["value"]["shop"] == "a",
    ),
]


def _picked(row: dict[str, Any], columns: list[str] | None) -> dict[str, Any]:
    found = {}
    for name in row if columns is None else columns:
        column, _, field = name.partition(".")
        found[name] = row[column][field] if field else row[column]
    return found


@pytest.mark.parametrize(
    "look_up",
    [
        lambda rows: rows.find([1234, 0]),
        lambda rows: rows.read(filter=(pc.field("key.k") == 1234) & (pc.field("key.more") == 0)),
        lambda rows: rows.read(filter="k = 1234 AND more = 0"),
    ],
    ids=["find", "expression", "condition"],
)
def test_a_look_up_by_key_reads_some_blocks_of_one_partition(large: str, look_up: Any) -> None:
    """Catches a look-up that reads the state, or all of a state partition."""
    io = Counting()
    rows = at(large, io=io).rows()

    found = look_up(rows).to_pylist()

    assert [row["value"] for row in found] == [{"value": 1234 * 7}]
    (path,) = io.num_bytes
    assert io.num_bytes[path] < Path(path).stat().st_size / 20


def test_a_look_up_in_rocksdb_reads_one_partition(tmp_path: Path) -> None:
    """Catches a look-up that reads the state."""
    key = {"k": "string", "n": "integer"}
    made = make_typed(tmp_path / "ck", Random(3), key, {"v": "long"}, backend="rocksdb")
    for row in Checkpoint(made.path).rows().read().to_pylist():
        wanted = (*row["key"].values(),)
        if None in wanted:
            continue
        io = Counting()
        quoted = wanted[0].replace("'", "''")
        sql = f"FROM state WHERE key.k = '{quoted}' AND key.n = {wanted[1]}"
        assert at(made.path, io=io).sql(sql).read().to_pylist() == [row]
        assert {Path(path).parent.name for path in io.num_bytes} == {str(row["partition_id"])}


@pytest.mark.parametrize(
    "look_up",
    [
        lambda ck, key: ck.rows("count").find([key]),
        lambda ck, key: ck.rows("count").read(filter=f"key.value = '{key}'"),
        lambda ck, key: ck.sql(f"FROM count WHERE key.value = '{key}'").read(),
    ],
    ids=["find", "condition", "sql"],
)
def test_a_look_up_in_sparks_variables_finds_a_row_wherever_it_is(
    tmp_path: Path, look_up: Any
) -> None:
    """Catches rows left out where a program's key is not what Spark hashes, and nobody checked."""
    shutil.copytree(VARIABLES, tmp_path / "sparks")
    move_rows(tmp_path / "sparks")
    checkpoint = Checkpoint(tmp_path / "sparks")

    rows = checkpoint.rows("count").read().to_pylist()
    assert len({row["partition_id"] for row in rows}) == 2
    for row in rows:
        assert look_up(checkpoint, row["key"]["value"]).to_pylist() == [row]


def test_columns_that_are_not_wanted_are_not_decoded(large: str, monkeypatch: Any) -> None:
    """Catches a projection that decodes everything and throws most of it away."""
    from statestore.operations.reading import read

    decoded = []
    real = read.decode_values
    monkeypatch.setattr(read, "decode_values", lambda *given: decoded.append(1) or real(*given))
    rows = Checkpoint(large).rows()

    assert rows.read(columns=["partition_id", "key.k"]).num_rows == 250_000
    assert not decoded
    assert rows.read(columns=["key.k"], filter=pc.field("value.value") == 7).num_rows == 1
    assert decoded
