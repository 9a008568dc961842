"""SQL over state: rows are those of the same SQL over plain tables of what the reader returns."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from statestore import Checkpoint
from tests.operations.sql_text import literal, quoted, text
from tests.operations.typed import make_typed, type_of

FIELDS = ("a", "b c", "Order", "user", 'say "x"', "ü", "count", "a.b", "A", "key", "value")


def plain(tables: dict[str, pa.Table]) -> Any:
    """Return a database with tables of its own: no filter is handed down by it."""
    database = duckdb.connect(
        config={
            "TimeZone": "UTC",
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
        }
    )
    # What is handed down to its own storage is as much of a trial as what is handed down to ours.
    database.execute("PRAGMA disable_optimizer")
    for name, table in tables.items():
        database.register("given", table)
        database.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM given")
        database.unregister("given")
    return database


def columns_of(table: pa.Table) -> list[tuple[str, Any, list[Any]]]:
    """Return the fields of key and value that are no structs: in SQL, their type, their values."""
    found: list[tuple[str, Any, list[Any]]] = []

    def add(path: str, kind: Any, values: list[Any]) -> None:
        if not pa.types.is_struct(kind):
            found.append((path, kind, values))
            return
        for field in kind:
            of = [None if value is None else value[field.name] for value in values]
            add(f"{path}.{quoted(field.name)}", field.type, of)

    for side in ("key", "value"):
        add(f"t.{side}", table.schema.field(side).type, table[side].to_pylist())
    return found


def condition(random: Random, table: pa.Table) -> str:
    """Return a condition over the fields of a table, such as can be handed down and others."""
    parts = []
    for _ in range(random.choice([1, 2, 3])):
        path, kind, values = random.choice(columns_of(table))
        value = random.choice([*values, None])
        simple = isinstance(
            value, bool | int | Decimal | float | bytes | str | dt.date | dt.time | dt.timedelta
        )
        if not simple or pa.types.is_nested(kind) or pa.types.is_interval(kind):
            parts.append(f"{path} IS {random.choice(['', 'NOT '])}NULL")
            continue
        other = random.choice(values)
        parts.append(
            random.choice(
                [
                    f"{path} = {literal(value)}",
                    f"{path} <> {literal(value)}",
                    f"{path} <= {literal(value)}",
                    f"{path} > {literal(value)}",
                    f"{path} IN ({literal(value)}, {literal(other)})",
                    f"{path} NOT IN ({literal(value)})",
                    f"{path} IS NOT DISTINCT FROM {literal(value)}",
                    f"coalesce({path} = {literal(value)}, true)",
                ]
            )
        )
    parts.append(random.choice(["t.partition_id = 1", "t.partition_id IN (0, 2)", "true"]))
    joined = parts[0]
    for part in parts[1:]:
        joined = f"({joined}) {random.choice(['AND', 'AND', 'OR'])} ({part})"
    return random.choice(["NOT ", "", "", ""]) + f"({joined})"


def statement(random: Random, table: pa.Table) -> str:
    """Return SQL over the table t, whose rows are the same whatever their order is."""
    where = condition(random, table)
    path, *_ = random.choice(columns_of(table))
    return random.choice(
        [
            f"SELECT * FROM T t WHERE {where}",
            f"SELECT {path} AS x, t.partition_id FROM T t WHERE {where}",
            f"SELECT count(*) AS n, count({path}) AS m FROM T t WHERE {where}",
            f"SELECT {path} AS x, count(*) AS n FROM T t WHERE {where} GROUP BY 1",
            f"SELECT t.key, u.value FROM T t JOIN T u ON t.key = u.key WHERE {where}",
            f"FROM T t WHERE partition_id = (SELECT min(partition_id) FROM T) OR {where}",
            f"WITH w AS (FROM T t WHERE {where}) SELECT count(*) AS n FROM w, w v",
            f"SELECT key FROM T t WHERE {where} UNION ALL SELECT key FROM T",
        ]
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.few(3)
def test_rows_are_those_of_the_same_sql_over_plain_tables(tmp_path: Path, seed: int) -> None:
    """Catches a filter that is handed down and means something else, a column that is another."""
    random = Random(seed)
    names = [name for name in FIELDS if name not in ("A", "a.b")] if seed % 2 else FIELDS[:1]
    key = {name: type_of(random, ("x", "y z")) for name in random.sample(names, min(2, len(names)))}
    value = {
        name: type_of(random, ("x", "y z")) for name in random.sample(names, min(3, len(names)))
    }
    key = {name: "string" if isinstance(of, dict) and of["type"] == "map" else of
           for name, of in key.items()}  # fmt: skip
    made = make_typed(
        tmp_path / "ck",
        random,
        key,
        value,
        backend=random.choice(["filesystem", "rocksdb"]),
        num_batches=3,
        block_rows=random.choice([4, 1000]),
    )
    checkpoint = Checkpoint(made.path)
    for _ in range(15):
        version = random.choice([None, 1, 2, 3])
        table = checkpoint.rows(version=version).read()
        sql = statement(random, table)
        name = random.choice(["state", "0", "default"]) + ("" if version is None else f"@{version}")

        found = checkpoint.sql(re.sub(r"\bT\b", quoted(name), sql)).read()

        expected = pa.RecordBatchReader.from_stream(plain({"T": table}).sql(sql)).read_all()
        assert text(found) == text(expected), sql
        assert [field.type for field in found.schema] == [field.type for field in expected.schema]
