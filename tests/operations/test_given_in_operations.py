"""Conditions, keys and rows that people give, in what reads, edits and transforms a checkpoint."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import statestore
from statestore import Checkpoint, Edited, Savepoint
from statestore.cli.commands import cli
from statestore.codec.column_family import ColumnFamily
from statestore.core.clock import SystemClock
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.database import OUT_ROWS
from statestore.operations.trial.rule import Rule, compare_state
from statestore.operations.writing.given import rows_of
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import schema_of
from statestore.ui.answers import follow_key
from tests.checkpoints import WordStore, write_checkpoint
from tests.operations import given
from tests.operations.typed import LEAVES, make_typed
from tests.seams import place_of

HOUR = 3_600_000_000
WINDOW = {
    "type": "struct",
    "fields": [
        {"name": name, "type": "timestamp", "nullable": True, "metadata": {}}
        for name in ("start", "end")
    ],
}


def family(key: dict[str, Any], value: dict[str, Any], **how: Any) -> ColumnFamily:
    """Return a column family of fields of Spark's types."""
    schemas = [
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {"name": name, "type": kind, "nullable": True, "metadata": {}}
                    for name, kind in fields.items()
                ],
            }
        )
        for fields in (key, value)
    ]
    return ColumnFamily(0, "default", *schemas, **how)


def make(root: Path, of: ColumnFamily, rows: dict[Any, Any]) -> str:
    """Write a checkpoint with rows."""
    return write_checkpoint(root / "query", [{"default": rows}], families=(of,))


@pytest.fixture
def sessions(tmp_path: Path) -> str:
    """Sessions of users: the user is in the key and in the value."""
    of = family({"user": "string", "start": "timestamp"}, {"window": WINDOW, "user": "string"})
    rows = {
        (f"u{number}", number * HOUR): ((number * HOUR, (number + 1) * HOUR), f"u{number}")
        for number in range(20)
    }
    return make(tmp_path, of, rows)


@pytest.fixture
def users(tmp_path: Path) -> str:
    """Counts by a text that looks like a number."""
    texts = ["007", "7", "00123", "123", "NA", "null", "", "2024-01-31 10:00", "1.0", "1"]
    rows = {(text,): (number,) for number, text in enumerate(texts)}
    return make(tmp_path, family({"user": "string"}, {"count": "long"}), rows)


def run(*arguments: Any, status: int = 0) -> str:
    """Run a command, and return what it prints."""
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert done.exit_code == status, done.output
    return done.output


def users_of(path: str) -> list[Any]:
    return sorted(key["user"] for key in Checkpoint(path).rows().read()["key"].to_pylist())


@pytest.mark.parametrize(
    "command",
    [
        ["edit", "--yes", "--where"],
        ["forget", "--yes", "--where"],
        ["read", "--where"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    "where", ["user <> 'u0'", "session_user <> 'u0'", "shop = 'x'", "now() > key.start", "true"]
)
def test_condition_with_a_name_that_is_not_one_column_deletes_nothing(
    sessions: str, command: list[str], where: str
) -> None:
    """Catches a name that DuckDB takes for a function of its own, which holds for every row."""
    name, *options = command
    if name == "forget" and where.startswith("user"):
        where = "currentuser <> 'u0'"  # a grouping key has one column of that name

    said = run(name, sessions, *options, where, status=1)

    if where.startswith("user"):
        assert "key.user, value.user" in said
    elif "'" in where:
        assert "key.user" in said
    assert Checkpoint(sessions).info.newest_version == 1
    assert Checkpoint(sessions).rows().read().num_rows == 20


def test_edit_says_what_it_finds_and_wants_to_be_told_of_all_rows(
    sessions: str, tmp_path: Path
) -> None:
    """Catches a plan that says what it was given, and a store that is emptied by a slip."""
    every = "key.user IS NOT NULL"
    edit = ["edit", sessions, "--where"]
    planned = run(*edit, "key.user = 'u3' OR key.user = 'u4'")
    assert "2 rows of 20 deleted, where key.user = 'u3'" in planned
    assert '{"user": "u3", "start": "1970-01-01 03:00:00+00:00"}' in planned
    assert "no row is there to delete" in run(*edit, "key.user = 'nobody'", "--yes", status=1)
    refused = run(*edit, every, "--yes", status=1)
    assert "all rows of a store would be deleted" in refused
    assert "--all" in refused
    assert "all rows" in run("transform", sessions, tmp_path / "to", "--where", every, status=1)
    assert "all 20 rows deleted: the whole store" in run(*edit, every, "--all")
    assert Checkpoint(sessions).rows().read().num_rows == 20

    run(*edit, every, "--all", "--yes")

    assert Checkpoint(sessions).rows().read().num_rows == 0


@pytest.mark.parametrize("typed", ["007", "00123", "NA", "null", "2024-01-31 10:00", "1.0"])
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_key_in_a_file_is_the_key_that_is_deleted(
    users: str, tmp_path: Path, typed: str, form: str
) -> None:
    """Catches another user who is deleted: 7, where 007 was typed."""
    file = tmp_path / f"keys.{form}"
    if form == "csv":
        file.write_text(f"key.user\n{typed}\n")
    elif form == "json":
        file.write_text(json.dumps({"key": {"user": typed}}) + "\n")
    else:
        pa.parquet.write_table(pa.table({"key.user": [typed]}), file)
    expected = users_of(users)
    expected.remove(typed)

    planned = run("edit", users, "--delete", file)
    assert "1 of 1 key has rows: 1 row of 10 deleted" in planned
    assert json.dumps({"user": typed}) in planned
    run("edit", users, "--delete", file, "--yes")

    assert users_of(users) == expected


def test_key_that_is_not_there_is_said_and_a_number_is_no_text(users: str, tmp_path: Path) -> None:
    """Catches an edit of nothing that says that it is done."""
    file = tmp_path / "keys.csv"
    file.write_text("key.user\n0007\n\x1b[31m\n")
    said = run("edit", users, "--delete", file, "--yes", status=1)
    assert "no row is there to delete" in said
    assert "0007" in said
    assert "\x1b" not in said
    file.write_text("key.user\n0007\n7\n007\n")
    planned = run("edit", users, "--delete", file)
    assert "2 of 3 keys have rows: 2 rows of 10 deleted" in planned
    assert '{"user": "0007"}, which has no row' in planned
    (tmp_path / "keys.json").write_text('{"key.user": 7}\n')
    said = run("edit", users, "--delete", tmp_path / "keys.json", status=1)
    assert "line=1, column='key.user', value='7'" in said
    with pytest.raises(InvalidArgumentError, match=r"column='key\.user', expected='string'"):
        Checkpoint(users).edit(delete=pa.table({"key.user": [7]}))
    with pytest.raises(NotFoundError, match="keys-not-found"):
        Checkpoint(users).edit(delete=pa.table({"key.user": ["x"]}), watermark_ms=1)
    assert len(users_of(users)) == 10


def test_rows_of_files_are_written(users: str, tmp_path: Path) -> None:
    """Catches a file that only the command line reads."""
    (tmp_path / "put.csv").write_text('key.user,value.count\n007,70\n"",\n')

    savepoint = (
        Checkpoint(users).transform(tmp_path / "to", {0: Edited(upsert=tmp_path / "put.csv")}).made
    )

    found = savepoint.rows().read(flatten=True)
    counts = dict(zip(found["key.user"].to_pylist(), found["value.count"].to_pylist(), strict=True))
    assert (counts["007"], counts["7"], counts[""], len(counts)) == (70, 1, None, 10)


def test_key_that_is_put_twice_is_refused_by_the_plan(users: str, tmp_path: Path) -> None:
    """Catches a plan that says it puts two rows, and whose run puts none."""
    checkpoint = Checkpoint(users)
    twice = pa.table({"key.user": ["007", "new", "007"], "value.count": [1, 2, 3]})
    for edit in (
        lambda: checkpoint.edit(upsert=twice, dry_run=True),
        lambda: checkpoint.edit(upsert=twice),
        lambda: checkpoint.transform(tmp_path / "to", {0: Edited(upsert=twice)}, dry_run=True),
    ):
        with pytest.raises(InvalidArgumentError, match="num_rows_too_many=1") as refused:
            edit()
        assert refused.value.kind == "duplicate-key"
    assert checkpoint.info.newest_version == 1


def test_a_relation_over_a_stream_is_refused_by_name(users: str, tmp_path: Path) -> None:
    """Catches an error of DuckDB's that says what the user did not do."""
    rows = pa.table({"key.user": ["new"], "value.count": [1]})
    write = partial(statestore.write_savepoint, tmp_path / "to", like=Checkpoint(users))

    with pytest.raises(InvalidArgumentError, match=r"over a stream.*to_arrow_reader"):
        write(rows={0: duckdb.connect().from_arrow(rows.to_reader())})

    relation = duckdb.connect().from_arrow(rows.to_reader())
    assert write(rows={0: relation.to_arrow_reader()}).made.rows().read().num_rows == 1


def test_rows_that_are_none_are_refused(users: str, tmp_path: Path) -> None:
    """Catches a stream that a call that failed has used up: again, it would put nothing."""
    checkpoint = Checkpoint(users)
    put = pa.table({"key.user": ["new"], "value.count": [1]})
    spent = put.to_reader()
    spent.read_all()
    keys = pa.table({"key.user": ["7"]})
    (tmp_path / "keys.csv").write_text("key.user\n")
    given: list[dict[str, Any]] = [
        {"upsert": spent},
        {"upsert": put.slice(0, 0), "watermark_ms": 1},
        {"delete": keys, "upsert": spent},
        {"delete": keys.slice(0, 0), "upsert": put},
        {"delete": tmp_path / "keys.csv", "upsert": put},
    ]
    for how in given:
        with pytest.raises(InvalidArgumentError, match="no row is given"):
            checkpoint.edit(**how)
        how.pop("watermark_ms", None)
        with pytest.raises(InvalidArgumentError, match="no row is given"):
            checkpoint.transform(tmp_path / "to", {0: Edited(**how)}, dry_run=True)
    with pytest.raises(InvalidArgumentError, match="a stream of rows has no row"):
        statestore.write_savepoint(tmp_path / "to", like=checkpoint, rows={0: spent})
    pa.parquet.write_table(put.slice(0, 0), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("key.user,value.count\n")
    for name in ("rows.parquet", "rows.csv"):
        with pytest.raises(InvalidArgumentError, match=f"file of rows has no row.*{name}"):
            statestore.write_savepoint(tmp_path / "to", like=checkpoint, rows={0: tmp_path / name})
    assert checkpoint.info.newest_version == 1

    none = statestore.write_savepoint(
        tmp_path / "none", like=checkpoint, rows={0: put.slice(0, 0)}
    ).made

    assert none.rows().read().num_rows == 0


def test_list_goes_with_all_its_elements(tmp_path: Path) -> None:
    """Catches a plan that counts elements that fulfil a condition, where the whole list goes."""
    of = family({"user": "string"}, {"n": "long"}, multi_values=True)
    path = make(tmp_path, of, {("a",): [(1,), (2,), (3,)], ("b",): [(4,)]})

    done = Checkpoint(path).edit(delete="n = 2")

    assert "3 rows of 4 deleted, where n = 2" in str(done)
    assert users_of(path) == ["b"]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("value.count", r"is not a timestamp or date.*type='int64'.*value\.count < [0-9]{13}"),
        ("count", r"is not a timestamp or date.*value\.count < [0-9]{13}"),
        ("value.n", "no column of a name"),
        ("count + 1", "is not a timestamp or date"),
        ("1", "no column occurs"),
    ],
)
def test_rows_expire_by_a_time_alone(users: str, column: str, said: str) -> None:
    """Catches an error in SQL that nobody typed."""
    with pytest.raises(InvalidArgumentError, match=said):
        Checkpoint(users).edit(expire=column, older_than=timedelta(days=7), dry_run=True)


def test_a_date_expires_when_its_day_has(tmp_path: Path) -> None:
    """Catches rows of today that are deleted as older than an hour: a date is no midnight."""
    query = make_typed(tmp_path / "query", Random(1), {"k": "long", "s": "string"}, {"day": "date"})
    known = Checkpoint(query.path)
    days = known.rows().read()["value"].to_pylist()
    limit = datetime(2024, 1, 31, 23, 59, tzinfo=UTC)
    old = sum(row["day"] == date(1970, 1, 1) for row in days)
    assert 0 < old < sum(row["day"] is not None for row in days)

    for older_than, gone in (
        (limit, old),
        (limit + timedelta(minutes=1), sum(row["day"] is not None for row in days)),
        (datetime(1970, 1, 1, 23, 59, tzinfo=UTC), 0),
    ):
        plan = known.edit(expire="value.day", older_than=older_than, dry_run=True)
        assert f"{gone} rows of {len(days)} deleted" in str(plan).replace(",", ""), str(plan)


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (7, "neither a timedelta nor a datetime"),
        (timedelta(days=999_999), "beyond the year 1"),
        (timedelta(days=-7), "not a duration of at least a second"),
        (timedelta(0), "not a duration of at least a second"),
    ],
)
def test_an_age_that_is_none_is_refused(sessions: str, age: Any, said: str) -> None:
    """Catches an AttributeError for seconds in place of a timedelta, or an OverflowError.

    And an age of the wrong sign, by which rows of tomorrow are old.
    """
    with pytest.raises(InvalidArgumentError, match=said):
        Checkpoint(sessions).edit(expire="value.window.end", older_than=age, dry_run=True)


def test_rows_expire_where_none_is_old(sessions: str) -> None:
    """Catches a nightly expiry that fails on the nights when nothing is old enough."""
    checkpoint = Checkpoint(sessions)
    how = {"expire": "value.window.end", "older_than": timedelta(days=365 * 300)}
    assert "0 rows of 20 deleted" in str(checkpoint.edit(**how))

    assert checkpoint.info.newest_version == 2
    assert checkpoint.rows().read().num_rows == 20


def test_sql_runs_in_utc_and_reaches_no_file(users: str, tmp_path: Path) -> None:
    """Catches times in the zone of the machine, and rows of a file that happens to be there."""
    zone = "(current_setting('TimeZone') = 'UTC')::BIGINT"
    sql = f"SELECT key, {{'count': {zone}}} AS value FROM state"

    savepoint = Checkpoint(users).transform(tmp_path / "to", {0: sql}).made

    assert {value["count"] for value in savepoint.rows().read()["value"].to_pylist()} == {1}
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for other in (f"SELECT * FROM '{tmp_path}/rows.csv'", "SELECT * FROM batches"):
        with pytest.raises(InvalidArgumentError, match="the SQL cannot be run"):
            Checkpoint(users).transform(tmp_path / "other", {0: other})


def test_wide_rows_that_sql_makes_come_a_few_at_a_time(tmp_path: Path) -> None:
    """Catches wide rows that are asked of DuckDB together, and are more than one column holds."""
    stored = pa.record_batch({"n": list(range(2000))})

    made = rows_of(
        "SELECT n, repeat('x', 20000) AS text FROM state",
        lambda: (rows for rows in (stored[:0], stored)),
    )
    batches = list(made.batches(str(tmp_path)))

    assert max(batch.num_rows for batch in batches) <= OUT_ROWS < 2000
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(2000))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT key, value FROM state; SELECT key, value FROM state WHERE false",
        "CREATE TABLE other AS FROM state; SELECT key, value FROM other",
        "PRAGMA version",
        "",
    ],
)
def test_sql_is_one_select(users: str, tmp_path: Path, sql: str) -> None:
    """Catches statements of which the last decides, and the rows of the first are passed over."""
    with pytest.raises(InvalidArgumentError, match="one SELECT"):
        Checkpoint(users).transform(tmp_path / "to", {0: sql})
    assert not (tmp_path / "to").exists()
    rows = (
        Checkpoint(users)
        .transform(tmp_path / "to", {0: "SELECT key, value FROM state;"})
        .made.rows()
        .read()
    )
    assert rows.num_rows == 10


@pytest.mark.parametrize("change_schema", [False, True])
def test_intervals_go_through_sql_unchanged(tmp_path: Path, change_schema: bool) -> None:
    """Catches a state with durations that SQL cannot write, or writes as others."""
    of = family(
        {"user": "string", "in": "interval hour to second"}, {"of": "interval day to second"}
    )
    times = [0, 1, -1, 86_400_000_000, 2**63 // 1000, None]
    path = make(tmp_path, of, {(str(n), us): (us,) for n, us in enumerate(times)})

    done = Checkpoint(path).transform(
        tmp_path / "to", {0: "SELECT key, value FROM state"}, change_schema=change_schema
    )

    assert "become" not in str(done)

    def by_user(checkpoint: Any) -> dict[str, Any]:
        return {
            row["key"]["user"]: (row["key"]["in"], row["value"]["of"])
            for row in checkpoint.rows().read().to_pylist()
        }

    assert by_user(Savepoint(tmp_path / "to")) == by_user(Checkpoint(path))
    (tmp_path / "long").mkdir()
    longer = make(tmp_path / "long", of, {("x", 0): (2**62,)})
    with pytest.raises(InvalidArgumentError, match="an interval is too long for SQL"):
        Checkpoint(longer).transform(tmp_path / "other", {0: "SELECT * FROM state"})


@pytest.mark.parametrize("kind", ["array", "map"])
def test_intervals_in_lists_that_are_too_long_for_sql_are_refused(
    tmp_path: Path, kind: str
) -> None:
    """Catches one that comes out negative."""
    interval, long = "interval day to second", timedelta(days=200_000)
    of = family(
        {"user": "string"},
        {
            "of": {"type": "array", "elementType": interval, "containsNull": True}
            if kind == "array"
            else {
                "type": "map",
                "keyType": "string",
                "valueType": interval,
                "valueContainsNull": True,
            }
        },
    )
    checkpoint = Checkpoint(make(tmp_path, of, {}))
    checkpoint.edit(
        upsert=pa.table(
            {
                "key.user": ["x"],
                "value.of": pa.array(
                    [[long] if kind == "array" else [("a", long)]],
                    pa.list_(pa.duration("us"))
                    if kind == "array"
                    else pa.map_(pa.string(), pa.duration("us")),
                ),
            }
        )
    )

    with pytest.raises(InvalidArgumentError, match="an interval is too long for SQL"):
        checkpoint.sql("SELECT value.of FROM state").read()


def test_intervals_that_sql_computes_are_refused_where_they_are_too_long(tmp_path: Path) -> None:
    """Catches a sum that comes out negative."""
    of = family({"user": "string"}, {"of": "interval day to second"})
    rows = {("a",): (2**63 // 1000,), ("b",): (2**63 // 1000,)}
    checkpoint = Checkpoint(make(tmp_path, of, rows))
    own = "SELECT value.of AS own, value.of FROM state ORDER BY 1"

    assert checkpoint.sql(own).read().column_names == ["own", "of"]
    with pytest.raises(InvalidArgumentError, match="too long for SQL"):
        checkpoint.sql("SELECT value.of + value.of FROM state").read()
    twice = "SELECT key, {'of': value.of + value.of} AS value FROM state"
    with pytest.raises(InvalidArgumentError, match="too long for SQL"):
        checkpoint.transform(tmp_path / "to", {0: twice})


def test_not_a_number_is_found_and_edited_as_one_key(tmp_path: Path) -> None:
    """Catches a key of which numpy has other bits than Spark."""
    bits = int.from_bytes(struct.pack("<d", math.nan), "little")
    half = int.from_bytes(struct.pack("<d", 0.5), "little")
    of = family({"ratio": "double"}, {"count": "long"})
    path = make(tmp_path, of, {(bits,): (1,), (half,): (2,), (0,): (3,)})
    checkpoint = Checkpoint(path)
    (other,) = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))

    for nan in (math.nan, other, -math.nan):
        assert checkpoint.rows().find([nan])["value"].to_pylist() == [{"count": 1}]
    assert checkpoint.rows().find([-0.0])["value"].to_pylist() == [{"count": 3}]
    checkpoint.edit(
        delete=pa.table({"key.ratio": [-0.0]}),
        upsert=pa.table({"key.ratio": [other], "value.count": [7]}),
    )

    assert checkpoint.rows().read().num_rows == 2
    assert checkpoint.rows().find([math.nan])["value"].to_pylist() == [{"count": 7}]


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("[1234567890123456.78]", [1]),
        ("[1234567890123456.8]", [2]),
        ("[1.2345678901234568e15, 0.1]", [2]),
        ("[1234567890123456.78, 0.10000000000000001, [0.1, 2]]", [1]),
        ("[1234567890123456.78, 0.2]", []),
        ("[1234567890123456.78, 1e400]", []),
        ("[1234567890123456.78, 0.1, [0.2]]", []),
        ("[1234567890123456.781]", None),
        ('["1234567890123456.78"]', [1]),
        ("[1e400]", None),
        ("[1e-999999999]", None),
        ('["1e-999999999"]', None),
        ("[1e999999999]", None),
        ('["x"]', None),
        ("[NaN]", None),
    ],
)
def test_decimal_is_found_by_all_of_its_digits(
    tmp_path: Path, key: str, found: list[int] | None
) -> None:
    """Catches a number of a command or a page that is rounded, and finds another key, or none."""
    ratios = {"type": "array", "elementType": "double", "containsNull": True}
    of = family({"price": "decimal(18,2)", "ratio": "double", "ratios": ratios}, {"count": "long"})
    (tenth,) = struct.unpack("<q", struct.pack("<d", 0.1))
    rest = (tenth, struct.pack("<qqdd", 2, 0, 0.1, 2.0))
    path = make(
        tmp_path, of, {(123456789012345678, *rest): (1,), (123456789012345680, *rest): (2,)}
    )
    arguments = ["inspect", path, "--find", key, "--output", "json"]

    done = CliRunner().invoke(cli, arguments)

    if found is None:
        assert (done.exit_code, "not of the type" in done.output) == (1, True)
        with pytest.raises(InvalidArgumentError, match="not of the type"):
            follow_key(Checkpoint(path), "", key, SystemClock())
        return
    assert [row["value"]["count"] for row in json.loads(done.stdout)["rows"]] == found
    (line,) = follow_key(Checkpoint(path), "", key, SystemClock())["rows"]
    assert line[3] == (json.dumps({"count": found[0]}) if found else None)


def test_fraction_finds_no_whole_number(tmp_path: Path) -> None:
    """Catches a number that is cut, and finds another key."""
    longs = {"type": "array", "elementType": "long", "containsNull": True}
    of = family({"number": "long", "numbers": longs}, {"count": "long"})
    path = make(tmp_path, of, {(1, struct.pack("<qqq", 1, 0, 1)): (1,)})
    rows = Checkpoint(path).rows()

    assert rows.find([1, [1]]).num_rows == 1
    for key in ([1.5], [Decimal("1.5")], [1, [1.5]], [1, [Decimal("1.5")]]):
        with pytest.raises(InvalidArgumentError, match="not of the type"):
            rows.find(key)


@pytest.mark.parametrize(
    "kind", [*LEAVES, given.array("binary"), given.struct(at="time(6)", id="binary")], ids=str
)
def test_key_is_found_by_what_read_prints(tmp_path: Path, kind: Any) -> None:
    """Catches a key that no text finds, or that of another type does."""
    made = make_typed(tmp_path / "query", Random(1), {"k": kind}, {"count": "long"}, num_batches=1)
    rows = json.loads(run("read", made.path, "--output", "json"))["rows"]
    assert rows

    for row in rows:
        found = run(
            "inspect", made.path, "--find", json.dumps([row["key"]["k"]]), "--output", "json"
        )
        assert row in json.loads(found)["rows"]


@pytest.mark.parametrize(
    ("kind", "typed", "reason"),
    [
        ("timestamp", 1_704_067_200, "with its zone"),
        ("timestamp_ntz", "2024-01-31T10:00:00Z", "without a zone"),
        ("date", 5, "2024-01-31"),
        ("time(6)", 5, "10:00:00"),
        ("interval day to second", 5, "1 day, 2:03:04"),
        ("binary", "a", "hexadecimal"),
        ("interval year to month", "x", "text cannot express a value"),
    ],
)
def test_value_that_is_not_as_read_prints_it_is_refused(
    tmp_path: Path, kind: str, typed: Any, reason: str
) -> None:
    """Catches a number that passes for a time, and finds no row."""
    made = make_typed(tmp_path / "query", Random(1), {"k": kind}, {"count": "long"}, num_batches=1)

    with pytest.raises(InvalidArgumentError, match=rf"not of the type.*reason=.*{reason}"):
        Checkpoint(made.path).rows().find([typed])


@pytest.mark.parametrize("us", [2**62, -(2**62), -(2**63)])
def test_calendar_interval_that_arrow_cannot_hold_is_refused(tmp_path: Path, us: int) -> None:
    """Catches one that is read as another, or that passes for damage."""
    of = family({"user": "string"}, {"of": "interval"})
    path = make(tmp_path, of, {("x",): (struct.pack("<iiq", 0, 0, us),)})

    with pytest.raises(IncompatibleError, match="an interval of more than 292 years"):
        Checkpoint(path).rows().read()


def test_state_with_geometry_is_read_compared_and_edited(tmp_path: Path) -> None:
    """Catches one such column that hides the whole checkpoint, as it is in no list then."""
    kinds = {"at": "geometry(OGC:CRS84)", "area": "geography(OGC:CRS84, SPHERICAL)"}
    of = family({"user": "string"}, kinds)
    path = make(tmp_path, of, {(user,): (b"\1\2", b"\3") for user in "ab"})

    assert "binary" in run("inspect", path)
    run("sql", path, "--tables")
    with open_checkpoint(place_of(path)) as checkpoint:
        (compared,) = compare_state(checkpoint, 1, checkpoint, Rule())
    assert compared.is_same
    run("edit", path, "--where", "key.user = 'a'", "--yes")
    sql = "SELECT key, value FROM state"
    done = Checkpoint(path).transform(tmp_path / "to", {0: sql}, change_schema=True)

    assert "become" not in str(done)
    (row,) = done.made.rows().read()["value"].to_pylist()
    assert row == {"at": b"\1\2", "area": b"\3"}


@pytest.mark.parametrize("kind", ["time(7)", "time(9)", "timestamp_ntz(9)"])
def test_time_of_nanoseconds_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    """Catches nanoseconds that are cut in text, and of which no edit takes its own rows."""
    path = make(tmp_path, family({"user": "string"}, {"at": kind}), {("x",): (36_000_000_000_001,)})

    assert f"type='{kind}'" in run("read", path, status=1)


def test_key_with_a_map_is_found_and_edited_whatever_its_order(tmp_path: Path) -> None:
    """Catches a key that an aggregation has, and that nobody finds or forgets; or has twice."""
    of = family({"m": given.map_of("string", "double")}, {"n": "long"})
    checkpoint = Checkpoint(make(tmp_path, of, {}))
    one, other = [("b", math.nan), ("a", -0.0)], [("a", 0.0), ("b", math.nan)]
    table = pa.table(
        {
            "key.m": pa.array([one, [("c", 1.0)]], pa.map_(pa.string(), pa.float64())),
            "value.n": [1, 2],
        }
    )
    checkpoint.edit(upsert=table)
    twice = table.set_column(0, "key.m", pa.array([one, other], table.schema.field(0).type))

    assert repr(other) in repr(checkpoint.rows().read()["key"].to_pylist())
    for key in (one, other, dict(one)):
        assert checkpoint.rows().find([key])["value"].to_pylist() == [{"n": 1}]
    assert checkpoint.rows().find([[("a", 0.0)]]).num_rows == 0
    with pytest.raises(InvalidArgumentError) as refused:
        checkpoint.edit(upsert=twice)
    assert refused.value.kind == "duplicate-key"
    checkpoint.forget(keys=table.select(["key.m"]).slice(0, 1))
    assert checkpoint.rows().read()["value"].to_pylist() == [{"n": 2}]


class _Unhashed(WordStore):
    """A store whose keys may be of any type."""

    def key_groups(self, family: ColumnFamily, keys: Any, max_parallelism: int) -> list[int]:
        """Return one key group for all."""
        del family, max_parallelism
        return [0 for _ in keys]


@pytest.mark.parametrize("side", ["key", "value"])
def test_type_that_cannot_be_read_hides_no_other_rows(tmp_path: Path, side: str) -> None:
    """Catches one column for which inspect, the tables of SQL and a trial fail for all state."""
    plain = family({"user": "string"}, {"count": "long"})
    new = {"key_schema": schema_of(user="string"), "value_schema": schema_of(at="long")}
    new[f"{side}_schema"] = schema_of(at="time(9)")
    store = _Unhashed((plain, replace(plain, id=1, name="new", **new)))
    made = MadeCheckpoint(str(tmp_path / "query"), operators=(("stateStoreSave", (store,)),))
    made.run_batch({("default", ("x",)): (1,)})
    path = made.path

    with open_checkpoint(place_of(path)) as checkpoint:
        compared = {one.of: one for one in compare_state(checkpoint, 1, checkpoint, Rule())}
    (found,) = Checkpoint(path).inspect()

    assert str(found.column_families[0].key) == "struct<user: string>"
    assert "time(9)" in str(getattr(found.column_families[1], side))
    assert len(pa.table(Checkpoint(path).inspect())) == 1
    assert "time(9)" in run("inspect", path)
    assert "time(9)" in run("sql", path, "--tables")
    assert compared["state default"].is_same
    assert not compared["state default"].why
    assert "cannot be read" in compared["state new"].why


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_keys_go_whatever_the_type_of_their_values(tmp_path: Path, form: str) -> None:
    """Catches rows that nobody can delete, as a release of Spark has a new type for their value."""
    of = family({"user": "string"}, {"at": "time(9)"})
    checkpoint = Checkpoint(make(tmp_path, of, {("x",): (1,), ("y",): (2,)}))
    keys = tmp_path / f"keys.{form}"
    if form == "csv":
        keys.write_text("key.user\nx\n")
    if form == "json":
        keys.write_text('{"key": {"user": "x"}}\n')
    delete = pa.table({"key.user": ["x"]}) if form == "table" else keys

    done = checkpoint.edit(delete=delete)

    assert "1 row of 2 deleted" in str(done)
    with pytest.raises(NotFoundError, match="keys-not-found"):
        checkpoint.edit(delete=delete)
    with pytest.raises(InvalidArgumentError, match="only keys are expected"):
        checkpoint.edit(delete=pa.table({"key.user": ["y"], "value.at": [2]}))
