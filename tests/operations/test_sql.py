"""SQL over state: its tables and their names, what it refuses, what it reads, holds and needs."""

from __future__ import annotations

import math
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint, Savepoint
from statestore.codec.column_family import ColumnFamily
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.operations.database import OUT_ROWS
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import KEY, VALUE, WordStore, write_checkpoint
from tests.operations.sql_text import literal, quoted, text
from tests.operations.typed import LEAVES, Counting, make_typed
from tests.seams import at

SPARKS = Path(__file__).parents[1] / "golden" / "spark"
GOLDEN = Path(__file__).parents[1] / "golden" / "spark-4.3.tar.xz"


NAMES = (
    *("select", "a@1", "a", 'x"y', "x y", "order", "count", "7", "0/1", "rows_0", "main", "user"),
    *(
        "'; DROP TABLE x; --",
        "información",
        "line\nbreak",
        "$timers",
        "range",
        "temp.x",
        "old",
        "@2",
    ),
    *("duckdb_tables", "sqlite_master", "a.b", "read_text('/etc/passwd')", "/etc/passwd"),
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: Any) -> str:
    """A checkpoint whose state variables are called as nobody should call them."""
    families = tuple(ColumnFamily(n, name, KEY, VALUE) for n, name in enumerate(NAMES))
    batches = [
        {
            name: {(name, n): (n, "x") for n in range(place + batch)}
            for place, name in enumerate(NAMES)
        }
        for batch in range(1, 4)
    ]
    root = tmp_path_factory.mktemp("hostile") / "ck"
    return write_checkpoint(root, batches, families=families)


def test_every_table_that_is_listed_is_read_whatever_its_name_is(hostile: str) -> None:
    """Catches a name that is taken for SQL, for a version, or for something of the database."""
    checkpoint = Checkpoint(hostile)
    tables = checkpoint.tables()
    addresses = [
        family.address for store in checkpoint.inspect() for family in store.column_families
    ]
    assert len(tables) == len(NAMES)
    for table, address in zip(tables, addresses, strict=True):
        expected = checkpoint.rows(address).read()
        assert text(checkpoint.sql(f"SELECT * FROM {table.name}").read()) == text(expected)
        old = table.name.removesuffix('"') + '@2"'
        assert (
            text(checkpoint.sql(f"FROM {old}").read())
            == text(checkpoint.rows(address, version=2).read())
        )  # fmt: skip
        attached = checkpoint.sql(
            f"SELECT o.key FROM Old.{table.name} o JOIN {table.name} n ON o.key = n.key "
            f"WHERE o.key.word = {literal(NAMES[addresses.index(address)])}",
            attach={"old": Savepoint(hostile)},
        )
        assert attached.read().num_rows <= expected.num_rows


def test_names_may_differ_by_the_case_of_letters_alone(tmp_path: Path) -> None:
    """Catches the rows of another state variable, or the field of another name."""
    families = tuple(ColumnFamily(n, name, KEY, VALUE) for n, name in enumerate(("a", "A", "b")))
    batch = {name: {(name, 0): (n, "x")} for n, name in enumerate(("a", "A", "b"))}
    checkpoint = Checkpoint(write_checkpoint(tmp_path / "ck", [batch], families=families))

    for name, word in (("a", "a"), ('"A"', "A"), ("B", "b")):
        found = checkpoint.sql(f"SELECT key.word FROM {name}").read()
        assert found["word"].to_pylist() == [word]
    with pytest.raises(InvalidArgumentError, match="case of letters"):
        checkpoint.sql('FROM a JOIN "A" ON true').read()

    made = make_typed(
        tmp_path / "fields", Random(1), {"k": "long"}, {"n": "long", "N": "string"}, num_batches=1
    )
    fields = Checkpoint(made.path)
    rows = fields.rows().read().to_pylist()
    found = fields.sql("SELECT value.n_1, value.N_2 FROM state WHERE value.N_2 IS NOT NULL").read()
    expected = [row["value"] for row in rows if row["value"]["N"] is not None]
    assert sorted(map(repr, found.to_pylist())) == sorted(
        repr({"n_1": value["n"], "N_2": value["N"]}) for value in expected
    )
    with pytest.raises(InvalidArgumentError, match=r"value\.n_1"):
        fields.sql("SELECT value.n FROM state").read()


@pytest.mark.parametrize("name", sorted(path.name for path in SPARKS.iterdir()))
def test_checkpoints_of_sparks_own_are_joined_with_others(name: str, hostile: str) -> None:
    """Catches a table of Spark's that is read in another way than by its address."""
    checkpoint = Checkpoint(SPARKS / name / "checkpoint")
    before = sorted(Path(SPARKS / name).rglob("*"))
    for store in checkpoint.inspect():
        for family in store.column_families:
            if family.address is None:
                continue
            expected = checkpoint.rows(family.address).read()
            table = quoted(family.address)
            found = Checkpoint(hostile).sql(
                f"SELECT s.* FROM sparks.{table} s, a WHERE a.key.number = 0",
                attach={"sparks": checkpoint},
            )
            assert text(found.read()) == text(expected)
    assert sorted(Path(SPARKS / name).rglob("*")) == before


def test_tables_of_every_operator_are_those_of_their_addresses(tmp_path: Path) -> None:
    """Catches an operator, a timer, a join or a state variable that SQL reads in another way."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    num_tables = 0
    for path in sorted(tmp_path.iterdir()):
        checkpoint = Checkpoint(path / "checkpoint")
        addresses = [
            family.address
            for store in checkpoint.inspect()
            for family in store.column_families
            if family.address is not None
        ]
        for table, address in zip(checkpoint.tables(), addresses, strict=True):
            found = checkpoint.sql(f"FROM {table.name}").read()
            assert text(found) == text(checkpoint.rows(address).read()), (path.name, address)
            num_tables += 1
    assert num_tables > 30


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM nothing", "there is no table"),
        ("SELECT * FROM old.nothing", "there is no table"),
        ("SELECT * FROM nobody.a", "there is no table"),
        ("SELECT * FROM temp.main.rows_1", "there is no table"),
        ("SELECT * FROM rows_1", "there is no table"),
        ("SELECT * FROM information_schema.tables", "there is no table"),
        ("SELECT * FROM duckdb_settings()", "would read something else"),
        ("SELECT * FROM read_csv('/etc/passwd')", "would read something else"),
        ("SELECT * FROM a, glob('/*')", "would read something else"),
        ("SELECT (FROM read_text('/etc/passwd')) FROM a", "would read something else"),
        ("SELECT * FROM query('SELECT 1')", "would read something else"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "would read something else"),
        ("SELECT * FROM '/etc/hosts.csv'", "there is no table"),
        ("COPY (SELECT * FROM a) TO 'OUT'", "not one SELECT"),
        ("ATTACH 'OUT' AS x", "not one SELECT"),
        ("CREATE TABLE x AS SELECT 1", "not one SELECT"),
        ("INSERT INTO a VALUES (1)", "not one SELECT"),
        ("SET memory_limit = '100GB'", "not one SELECT"),
        ("PRAGMA database_list", "SQL cannot be run|not shown"),
        ("INSTALL httpfs", "not one SELECT"),
        ("SELECT 1; DROP VIEW a", "not one SELECT"),
        ("SELECT 1; SELECT 2", "not one SELECT"),
        ("EXPORT DATABASE 'OUT'", "not one SELECT"),
        ("SHOW TABLES", "list the tables"),
        ("", "not one SELECT"),
        ("SELECT", "SQL cannot be run"),
        ("SELECT user FROM a", "not a column"),
        ("SELECT current_user FROM a WHERE session_user = 'x'", "not a column"),
        ("SELECT * FROM a WHERE current_date > '2024-01-31'", "not a column"),
        ("SELECT localtimestamp FROM a", "not a column"),
        ("SELECT word FROM a", "key.word"),
        ("SELECT key.wrd FROM a", "key.word"),
        ("SELECT rowid FROM a", "key.word"),
        ("SELECT * FROM a WHERE key.word = \"x\"", "key.word"),
        ("SELECT ?", "SQL cannot be run"),
        ("SELECT " + "1 + " * 900 + "1", "nested more deeply than"),
        ("SELECT 'x' || '\0' FROM a", "a NUL character"),
        ("SELECT $1 FROM a", "SQL cannot be run"),
        ("SELECT error('mine') FROM a", "mine"),
        ("SELECT 'x'::INT FROM a", "Conversion"),
        ('SELECT * FROM "a@4"', "not committed"),
        ('SELECT * FROM "a@0"', "not committed"),
        ('SELECT * FROM "a@99999999999999999999"', "there is no table"),
        ("SELECT * FROM a AT (VERSION => 1)", "SQL cannot be run"),
    ],
)  # fmt: skip
def test_what_is_no_select_over_the_tables_is_refused(
    hostile: str, sql: str, says: str, tmp_path: Path
) -> None:
    """Catches SQL that reaches a file, the settings, or a word of the engine's own."""
    out = tmp_path / "out"
    with pytest.raises(StateStoreError, match=says):
        Checkpoint(hostile).sql(sql.replace("OUT", str(out)), attach={"old": hostile}).read()
    assert not list(tmp_path.iterdir())


def test_a_name_that_sql_makes_opens_no_table_of_the_databases_own(hostile: str) -> None:
    """Catches paths of this machine, by a name that only a part of the SQL has made."""
    made = "(WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)"
    with pytest.raises(InvalidArgumentError, match="no table of that name"):
        Checkpoint(hostile).sql(f"SELECT path FROM duckdb_databases s, {made} t").read()
    found = Checkpoint(hostile).sql("WITH views AS (SELECT 1 AS n) SELECT n FROM views").read()
    assert found["n"].to_pylist() == [1]


@pytest.mark.parametrize("alias", ["temp", "MAIN", "state", "", "a\0b"])
def test_an_alias_of_the_databases_own_is_refused(hostile: str, alias: str) -> None:
    """Catches a checkpoint that hides another, or cannot be reached."""
    if alias == "":
        found = Checkpoint(hostile).sql("SELECT 1 AS x", attach={"": hostile})
    else:
        found = Checkpoint(hostile).sql("SELECT 1 AS x", attach={alias: hostile})
    with pytest.raises(InvalidArgumentError, match="cannot be attached"):
        found.read()


@pytest.mark.parametrize(
    "limit", ["'; DROP", "99999999TB", "9" * 400 + "B", "5iB", "1\u212aB", 10**9]
)
def test_a_limit_of_memory_that_is_none_is_refused(hostile: str, limit: Any) -> None:
    """Catches an error that is the engine's own."""
    with pytest.raises(InvalidArgumentError, match=r"not a size such as 512MB.*1GB"):
        Checkpoint(hostile).sql("SELECT 1", memory_limit=limit).read()


def test_sql_that_takes_longer_than_it_may_is_ended(hostile: str) -> None:
    """Catches a query without an end that nobody ends, or one that ends all later ones."""
    forever = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range > 5"
    with pytest.raises(InvalidArgumentError, match="longer than it may"):
        Checkpoint(hostile).sql(forever, timeout=1).read()
    assert Checkpoint(hostile).sql("SELECT 1 AS one", timeout=60).read().to_pylist() == [{"one": 1}]
    with pytest.raises(InvalidArgumentError, match="duration"):
        Checkpoint(hostile).sql("SELECT 1", timeout=0)


def test_a_look_up_by_key_reads_some_blocks_of_one_partition(large: str) -> None:
    """Catches a look-up that reads the state, or all of a state partition."""
    io = Counting()
    checkpoint = at(large, io=io)

    found = checkpoint.sql("SELECT value.value FROM state WHERE key.k = 1234 AND key.more = 0")

    assert found.read().to_pylist() == [{"value": 1234 * 7}]
    (path,) = io.num_bytes
    assert io.num_bytes[path] < Path(path).stat().st_size / 20
    io.num_bytes.clear()
    in_two = "SELECT count(*) AS n FROM state WHERE key.k IN (1, 2) AND key.more = 0"
    assert checkpoint.sql(in_two).read().to_pylist() == [{"n": 2}]
    assert len({Path(path).parent for path in io.num_bytes}) < 3


def test_a_version_is_pinned_as_long_as_it_is_read(tmp_path: Path) -> None:
    """Catches files that are deleted under a query, and a pin that stays."""
    made = make_typed(tmp_path / "ck", Random(1), {"k": "long"}, {"v": "string"}, num_batches=3)
    path = made.path
    checkpoint = Checkpoint(path)
    expected = text(checkpoint.rows(version=2).read())
    batches_read = checkpoint.sql('SELECT * FROM "state@2"').read_batches()
    first = next(batches_read)
    assert first.num_rows == 0
    assert list(Path(path).rglob("*.pin"))

    for _ in range(3):
        made.take_snapshots()
        made.restart()
        for _ in range(3):
            made.run_batch({0: {"v": "later"}, 1: {"v": "later"}})
    checkpoint.expire(2)

    assert text(pa.Table.from_batches([first, *batches_read])) == expected
    assert not list(Path(path).rglob("*.pin"))
    checkpoint.expire(2)
    with pytest.raises(StateStoreError):
        checkpoint.sql('SELECT * FROM "state@2"').read()


def test_tables_are_of_one_version_while_the_query_runs(tmp_path: Path) -> None:
    """Catches tables of two versions in one result, and a version that goes while it is read."""
    families = tuple(ColumnFamily(n, name, KEY, VALUE) for n, name in enumerate(("a", "b")))
    made = MadeCheckpoint(
        str(tmp_path / "ck"), operators=(("stateStoreSave", (WordStore(families),)),)
    )
    checkpoint = Checkpoint(made.path)

    def run_batch(batch: int) -> None:
        made.run_batch({(name, ("x", n)): (batch, "") for name in "ab" for n in range(50)})

    run_batch(0)
    is_over = threading.Event()

    found: list[dict[str, int]] = []
    has_failed = threading.Event()

    def run_batches() -> None:
        batch = 0
        while batch < 24 or (len(found) < 4 and not has_failed.is_set()):
            batch += 1
            run_batch(batch)
            if batch % 5 == 0:
                made.take_snapshots()
                made.restart()
                checkpoint.expire(6)
        is_over.set()

    sql = """SELECT min(a.value.total) AS w, max(a.value.total) AS x, min(b.value.total) AS y,
        max(b.value.total) AS z, count(*) AS n FROM a JOIN b ON a.key = b.key"""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_batches)
        try:
            while not is_over.is_set() and not running.done():
                found += checkpoint.sql(sql).read().to_pylist()
        except BaseException:
            has_failed.set()
            raise
        running.result()

    for row in found:
        assert row["n"] == 50
        assert row["w"] == row["x"] == row["y"] == row["z"]
    assert [row["w"] for row in found] == sorted(row["w"] for row in found)
    assert not list(Path(made.path).rglob("*.pin"))


def test_a_query_that_is_left_behind_lets_go_of_its_pins(hostile: str) -> None:
    """Catches a pin of a query that ended early."""
    batches = Checkpoint(hostile).sql("SELECT * FROM a").read_batches()
    next(batches)
    assert list(Path(hostile).rglob("*.pin"))
    batches.close()
    with pytest.raises(InvalidArgumentError):
        Checkpoint(hostile).sql("SELECT key.nope FROM a").read()
    assert not list(Path(hostile).rglob("*.pin"))


def test_a_savepoint_is_not_written_to(hostile: str, tmp_path: Path) -> None:
    """Catches a file in a savepoint, which is the user's."""
    Checkpoint(hostile).savepoint(tmp_path / "sp")
    before = sorted(tmp_path.rglob("*"))

    with closing(Savepoint(tmp_path / "sp").sql("SELECT key.word FROM a").read_batches()) as found:
        next(found)
        assert sorted(tmp_path.rglob("*")) == before
        assert sum(batch.num_rows for batch in found) > 0
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_of_what_is_read_is_that_error(tmp_path: Path) -> None:
    """Catches damage that is told as an error of SQL, or is passed over."""
    batch = {"default": {("a", n): (n, "x") for n in range(2000)}}
    families = (ColumnFamily(0, "default", KEY, VALUE),)
    path = write_checkpoint(tmp_path / "ck", [batch], families=families, num_partitions=1)
    (file,) = Path(path).rglob("*.arrows")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)

    with pytest.raises(StateStoreError) as caught:
        Checkpoint(path).sql("SELECT count(*) FROM state").read()

    assert caught.value.kind == "checksum-mismatch"


def test_an_interval_that_sql_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Catches an interval that comes back as another one."""
    made = make_typed(
        tmp_path / "ck", Random(1), {"k": "long"}, {"v": "interval day to second"}, num_batches=1
    )
    checkpoint = Checkpoint(made.path)
    assert checkpoint.sql("SELECT value.v FROM state").read().num_rows > 0
    assert math.isfinite(checkpoint.rows().read().num_rows)


def test_rows_are_arrow_data_to_others(hostile: str) -> None:
    """Catches rows that only this package reads."""
    rows = Checkpoint(hostile).sql('SELECT key.word, value.total FROM "a" ORDER BY key.number')

    assert pa.table(rows).num_rows == rows.read().num_rows
    assert "SqlRows" in repr(rows)


NO_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize("without", ["", NO_PANDAS])
def test_nanoseconds_are_shown(without: str) -> None:
    """Catches a traceback for a time that Python has no type for, where pandas is missing."""
    program = (
        without
        + """
import pyarrow as pa
from statestore.codec.python_values import to_pylist
times = pa.array([1700000000000000001, None], pa.timestamp("ns"))
for value in [*to_pylist(times), *to_pylist(pa.array([[1]], pa.list_(times.type)))[0]]:
    print(str(value).replace(" ", "T"))
"""
    )

    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    found, missing, inner = shown.splitlines()
    assert (found, inner) == ("2023-11-14T22:13:20.000000001", "1970-01-01T00:00:00.000000001")
    assert missing == "None"


@pytest.mark.parametrize("kind", LEAVES)
def test_every_type_comes_out_as_it_is(tmp_path: Path, kind: str) -> None:
    """Catches a type that SQL changes, but for intervals."""
    random = Random(kind)
    made = make_typed(tmp_path / "ck", random, {"k": "long"}, {"v": kind}, num_batches=1)
    checkpoint = Checkpoint(made.path)

    found = checkpoint.sql("SELECT key, value, partition_id FROM state").read()

    expected = checkpoint.rows().read()
    if "second" not in kind:
        assert found.schema.field("value").type == expected.schema.field("value").type
        assert text(found) == text(expected)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: Any) -> str:
    """A checkpoint of 192 MiB, in 16 state partitions, of rows of 16 KiB."""
    rows = {("a", n): (n, f"{n} " * (16_384 // len(f"{n} "))) for n in range(12_000)}
    families = (ColumnFamily(0, "default", KEY, VALUE),)
    root = tmp_path_factory.mktemp("wide") / "ck"
    return write_checkpoint(root, [{"default": rows}], families=families, num_partitions=16)


def test_a_table_that_is_larger_than_the_memory_streams(wide: str) -> None:
    """Catches a query that holds all rows before it gives the first ones."""
    io = Counting()
    sql = "SELECT value.total, value.note FROM state WHERE value.total >= 0"
    with closing(at(wide, io=io).sql(sql, memory_limit="48MB").read_batches()) as batches:
        assert next(batches).num_rows == 0
        num_rows = next(batches).num_rows
        assert 0 < num_rows <= 2048
        assert len(io.num_bytes) < 16
        num_rows += sum(batch.num_rows for batch in batches)
    assert num_rows == 12_000


def test_wide_rows_come_a_few_at_a_time(hostile: str) -> None:
    """Catches wide rows that are asked of DuckDB together, and are more than one column holds."""
    sql = "SELECT repeat('x', 20000) AS text FROM range(2000)"

    sizes = [batch.num_rows for batch in Checkpoint(hostile).sql(sql).read_batches()]

    assert max(sizes) <= OUT_ROWS < sum(sizes) == 2000


def test_what_is_larger_than_the_memory_goes_to_the_disk(wide: str) -> None:
    """Catches a query that fails where it has to hold more than the memory."""
    sql = "SELECT count(*) AS n FROM (SELECT DISTINCT value.note FROM state)"

    assert Checkpoint(wide).sql(sql, memory_limit="128MB").read()["n"].to_pylist() == [12_000]


def test_a_query_that_needs_more_memory_says_what_to_do(wide: str) -> None:
    """Catches an error that does not name the option."""
    sql = "SELECT string_agg(value.note, '') AS x FROM state"
    with pytest.raises(InvalidArgumentError, match="memory_limit") as caught:
        Checkpoint(wide).sql(sql, memory_limit="32MB").read()
    assert "larger limit" in str(caught.value)
