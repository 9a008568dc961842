"""`statestore read`, `inspect` and `diff` on a small checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from statestore.cli.commands import cli
from statestore.codec.column_family import ColumnFamily
from tests.checkpoints import DEFAULT, contents, make_query, write_checkpoint

VERSIONS = [
    {
        "default": {(f"user-{n}", n): (n, f"[{n}]") for n in range(30)},
        "lists": {("user-1", 1): [(1, "first"), (2, "second")]},
    },
    {"default": {("user-3", 3): None, ("user-4", 4): (400, None), ("new", 0): (0, "")}},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "checkpoint", VERSIONS)


def _run(*arguments, status=0):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


def _json(*arguments):
    return json.loads(_run(*arguments, "--output", "json"))


def test_read_prints_rows_up_to_a_limit(checkpoint):
    """Catches rows left out without a word."""
    everything = _json("read", checkpoint, "--rows", "default", "--limit", 0)
    assert not everything["more"]
    found = {tuple(row["key"].values()): tuple(row["value"].values()) for row in everything["rows"]}
    assert found == contents(VERSIONS)

    few = _json("read", checkpoint, "--rows", "default", "--limit", 3, "--partition", 1)
    assert len(few["rows"]) == 3
    assert few["more"]
    text = _run("read", checkpoint, "--rows", "default", "--version", 1, "--limit", 2)
    assert "partition_id" in text
    assert "The first 2 rows" in text
    assert "second" in _run("read", checkpoint, "--rows", "lists")


def test_read_writes_parquet(checkpoint, tmp_path):
    """Catches a file without the rows of some state partition."""
    path = tmp_path / "state.parquet"

    assert _json("read", checkpoint, "--rows", "default", "--to", path)["rows"] == len(
        contents(VERSIONS)
    )
    assert "kB" in _run("read", checkpoint, "--rows", "default", "--to", path)

    rows = pq.read_table(path).to_pylist()
    found = {tuple(row["key"].values()): tuple(row["value"].values()) for row in rows}
    assert found == contents(VERSIONS)


def test_parquet_has_few_row_groups_and_none_of_no_rows(checkpoint, tmp_path):
    """Catches a footer that no reader takes: a row group of each record batch, and of none."""
    path = tmp_path / "numbers.parquet"
    sql = "SELECT n, n * 2 AS m FROM range(50000) AS numbers(n), (SELECT 1 FROM lists LIMIT 1)"

    assert _json("sql", checkpoint, sql, "--to", path)["rows"] == 50_000

    file = pq.ParquetFile(path)
    assert file.num_row_groups == 1
    assert sorted(file.read()["m"].to_pylist()) == [*range(0, 100_000, 2)]
    assert _json("read", checkpoint, "--where", "key.number < 0", "--rows", "default",
                 "--to", path)["rows"] == 0  # fmt: skip
    assert pq.ParquetFile(path).num_row_groups == 0


def test_a_parquet_file_is_whole_or_not_there(tmp_path):
    """Catches half of the rows in a file that every reader takes for whole."""
    path = write_checkpoint(tmp_path / "checkpoint", VERSIONS)
    damaged = min(Path(path, "state/0/1").glob("1.delta.*"))
    damaged.write_bytes(damaged.read_bytes().replace(b"user-", b"USER-"))
    exports = tmp_path / "exports"
    exports.mkdir()
    kept = exports / "kept.parquet"
    kept.write_bytes(b"of yesterday")

    assert "checksum" in _run(
        "read", path, "--rows", "default", "--to", exports / "new.parquet", status=1
    )
    assert "checksum" in _run("read", path, "--rows", "default", "--to", kept, status=1)

    assert {p.name: p.read_bytes() for p in exports.iterdir()} == {kept.name: b"of yesterday"}


def test_a_parquet_file_that_cannot_be_written_is_an_error_with_a_name(checkpoint, tmp_path):
    """Catches a traceback, and a device or the target of a link that is replaced."""
    family = ColumnFamily(0, "default", DEFAULT.key_schema, '{"type":"struct","fields":[]}')
    untyped = write_checkpoint(tmp_path / "checkpoint", [{}], families=(family,))
    link = tmp_path / "link.parquet"
    link.symlink_to(tmp_path / "target.parquet")

    missing = tmp_path / "none" / "state.parquet"
    assert f"{missing}" in _run("read", checkpoint, "--rows", "default", "--to", missing, status=1)
    assert "only be written to a regular file" in _run(
        "read", checkpoint, "--rows", "default", "--to", "/dev/null", status=1
    )
    refused = _run("read", untyped, "--to", tmp_path / "x.parquet", status=1)
    assert "Parquet has no type" in refused
    _run("read", untyped, "--to", tmp_path / "x.arrow")
    assert not (tmp_path / "x.parquet").exists()
    _run("read", checkpoint, "--rows", "default", "--to", link)
    assert link.is_symlink()
    assert pq.read_metadata(link).num_rows == len(contents(VERSIONS))


def test_a_file_that_is_replaced_keeps_who_may_read_it(checkpoint, tmp_path):
    """Catches rows that everybody can read, in place of those that their owner alone could."""
    for form in ("csv", "json", "arrow", "parquet"):
        file = tmp_path / f"rows.{form}"
        file.touch(mode=0o600)
        _run("read", checkpoint, "--rows", "default", "--to", file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.stat().st_size > 0


def test_inspect_shows_stores_and_schemas(checkpoint):
    """Catches a summary that has to read all state, or counts another version's rows."""
    (store,) = _json("inspect", checkpoint)["stores"]
    assert store["num_keys"] == len(contents(VERSIONS)) + 1
    assert [family["name"] for family in store["column_families"]] == ["default", "lists"]

    text = _run("inspect", checkpoint, "--version", 1)
    assert "operator 0 stateStoreSave, store default: 31 rows in 2 of 2" in text
    assert "struct<word: string, number: int64>" in text


def test_inspect_finds_rows_by_key_and_what_is_large(checkpoint):
    """Catches a key given as JSON that is compared as text."""
    rows = _json("inspect", checkpoint, "--rows", "default", "--find", '["user-4", 4]')["rows"]
    assert [row["value"] for row in rows] == [{"total": 400, "note": None}]
    assert _json("inspect", checkpoint, "--rows", "default", "--find", '"user-3"')["rows"] == []

    top = _json("inspect", checkpoint, "--largest", 1, "--rows", "lists")["rows"]
    assert top[0]["key"] == {"word": "user-1", "number": 1}
    groups = _json("inspect", checkpoint, "--rows", "default", "--key-groups")["key_groups"]
    assert sum(group["num_rows"] for group in groups) == len(contents(VERSIONS))
    assert "most in one" in _run("inspect", checkpoint, "--rows", "default", "--key-groups")


def _windows(root):
    """Write state by window and shop: of two hours, two shops each."""
    window = {
        "type": "struct",
        "fields": [
            {"name": name, "type": "timestamp", "nullable": True, "metadata": {}}
            for name in ("start", "end")
        ],
    }
    fields = [("window", window), ("shop", "string")]
    key = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in fields]
    schema = json.dumps({"type": "struct", "fields": key})
    family = ColumnFamily(0, "default", schema, DEFAULT.value_schema)
    hour = 3_600_000_000
    rows = {
        ((at * hour, (at + 1) * hour), shop): (at, f"{shop} {at}") for at in (0, 1) for shop in "xy"
    }
    return write_checkpoint(root, [{"default": rows}], families=(family,))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ('[["1970-01-01T00:00Z", "1970-01-01T01:00Z"]]', {"x 0", "y 0"}),
        ('[["1970-01-01T01:00Z", "1970-01-01T02:00Z"], "x"]', {"x 1"}),
        ('[{"start": "1970-01-01 01:00:00+00:00", "end": "1970-01-01T02:00Z"}, "y"]', {"y 1"}),
        ('[["1970-01-01T01:00Z", "1970-01-01T03:00Z"], "x"]', set()),
    ],
)
def test_window_keys_are_found_as_they_are_printed(tmp_path, key, expected):
    """Catches a key of a windowed aggregation that no text can name."""
    path = _windows(tmp_path / "checkpoint")

    rows = _json("inspect", path, "--find", key)["rows"]

    assert {row["value"]["note"] for row in rows} == expected


def test_listings_say_that_there_is_more(tmp_path):
    """Catches an audit trail of twenty lines that is taken for the whole."""
    path = make_query(tmp_path / "query", 5).path
    shown = _json("list", path, "--limit", 2)
    assert ([one["version"] for one in shown["versions"]], shown["more"]) == ([5, 4], True)
    assert "savepoints" not in shown
    assert "The 2 newest" in _run("list", path, "--limit", 2)
    every = _json("list", path, "--limit", 0)
    assert (len(every["versions"]), every["more"]) == (5, False)
    assert _json("history", path)["more"] is False


@pytest.mark.parametrize("key", ['[["1970-01-01T00:00Z"]]', '[{"start": "1970-01-01T00:00Z"}]'])
def test_part_of_a_window_is_refused_and_not_taken_for_null(tmp_path, key):
    """Catches no row found where every row begins with what was given."""
    refused = _run("inspect", _windows(tmp_path / "checkpoint"), "--find", key, status=1)

    assert "fields='start, end'" in refused
    assert "--where" in refused


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("shop = 'x'", {"x 0", "x 1"}),
        ("key.window.start >= '1970-01-01 01:00' and shop <> 'x'", {"y 1"}),
        ('"window"."end" <= \'1970-01-01 01:00\'', {"x 0", "y 0"}),
        ("value.total = 1 or note like 'x%'", {"x 0", "x 1", "y 1"}),
        ("partition_id < 0", set()),
    ],
)
def test_rows_are_found_by_any_column(tmp_path, where, expected):
    """Catches rows of another shop, and times taken in the zone of this machine."""
    path = _windows(tmp_path / "checkpoint")

    found = _json("read", path, "--where", where)["rows"]
    assert {row["value"]["note"] for row in found} == expected
    assert {tuple(row) for row in found} <= {("key", "value", "partition_id")}
    columns = _json("read", path, "--where", where, "--column", "value.note")["rows"]
    assert {row["value.note"] for row in columns} == expected


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("store = 'x'", "key.shop"),
        ("user = 'x'", "key.shop"),
        ("shop =", "syntax error"),
        ("1); drop view state; select (1", "not one expression"),
        ("read_text('/etc/hosts') = shop", "read_text"),
    ],
)
def test_condition_that_does_not_fit_is_refused(tmp_path, where, said):
    """Catches a traceback of another package, SQL that reaches files, and a name that is DuckDB's
    where there is no such column."""
    refused = _run("read", _windows(tmp_path / "checkpoint"), "--where", where, status=1)

    assert "condition" in refused
    assert said in refused


def test_values_are_printed_as_they_are(tmp_path):
    """Catches text in state that rich takes for its markup, or for the name of an emoji."""
    notes = ["[fe80::1]", "[abc]y", "a[/b]", ":heart:", "\\\\[red]", "x\tü"]
    old = {(f"[bold]{n}", n): (n, "") for n, _ in enumerate(notes)}
    new = {(f"[bold]{n}", n): (n, note) for n, note in enumerate(notes)}
    path = write_checkpoint(tmp_path / "[b]c[/b]", [{"default": old}, {"default": new}])
    of = ["--rows", "default"]
    everything = [json.dumps(note, ensure_ascii=False) for note in notes]

    for shown, expected in (
        (_run("read", path, *of), everything),
        (_run("diff", path, *of, "--old-version", 1), everything),
        (_run("inspect", path, *of, "--find", '["[bold]2"]'), everything[2:3]),
        (_run("inspect", path, *of, "--largest", 9), [f'"[bold]{n}"' for n, _ in enumerate(notes)]),
    ):
        assert [text for text in expected if text not in shown] == []
    renamed = Path(path, "state/0/_metadata/metadata")
    renamed.write_text(renamed.read_text().replace("stateStoreSave", "a[/b]:heart:"))
    assert "operator 0 a[/b]:heart:, store default" in _run("inspect", path)


def test_diff_shows_what_differs(checkpoint):
    """Catches old and new exchanged."""
    counts = _json("diff", checkpoint, "--rows", "default", "--old-version", 1, "--counts")
    assert counts == {"schema_version": 1, "added": 1, "removed": 1, "changed": 1}
    assert "removed" in _run(
        "diff", checkpoint, "--rows", "default", "--old-version", 1, "--counts"
    )

    versions = ["--old-version", 2, "--new-version", 1]
    back = _json("diff", checkpoint, "--rows", "default", *versions)["rows"]
    assert {row["change"]: row["key"]["word"] for row in back} == {
        "added": "user-3", "removed": "new", "changed": "user-4"
    }  # fmt: skip

    rows = _json("diff", checkpoint, "--rows", "default", checkpoint, "--old-version", 1)["rows"]
    assert {row["change"]: row["key"]["word"] for row in rows} == {
        "added": "new", "removed": "user-3", "changed": "user-4"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ('["user-3", 1180591620717411303424]', 1),
        ('["user-3", 9223372036854775808]', 1),
        ('["user-3", 3.9]', 1),
        ('["user-3", true]', 1),
        ('{"word": "user-3"}', 1),
        ("[[]]", 1),
        ('"\\ud800"', 1),
        ("[" * 100_000, 2),
    ],
)
def test_values_that_are_no_keys_are_refused(checkpoint, key, status):
    """Catches a traceback, and rows of another key than the one that was asked for."""
    refused = _run(
        "inspect", checkpoint, "--rows", "default", "--version", 1, "--find", key, status=status
    )
    assert ("not of the type" if status == 1 else "JSON list") in refused


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("read", "--limit", -1), 2),
        (("diff", "--old-version", 1, "--limit", -1), 2),
        (("read", "--rows", "default", "--limit", 10**30), 0),
        (("inspect", "--rows", "default", "--largest", 10**30), 0),
        (("diff", ""), 1),
        (("list", "--savepoints", ""), 1),
        (("list", "--savepoints", "/a\0b"), 1),
        (("read", "--to", f"/{'x' * 300}"), 1),
    ],
)
def test_odd_values_have_no_traceback(checkpoint, arguments, status):
    """Catches a value that a library function takes for a bug of its caller."""
    command, *options = arguments
    _run(command, checkpoint, *options, status=status)


def test_text_that_a_terminal_has_no_letters_for_is_printed_escaped(tmp_path):
    """Catches a traceback in place of the rows, by the locale of a machine."""
    path = write_checkpoint(tmp_path / "checkpoint", [{"default": {("ü", 1): (1, "")}}])
    command = [sys.executable, "-m", "statestore.cli", "read", path, "--rows", "default"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}

    done = subprocess.run(command, capture_output=True, env=environment, check=True)

    assert rb"\xfc" in done.stdout


def test_wrong_usage_is_told_from_errors(checkpoint, tmp_path):
    """Catches scripts that cannot tell a misspelt option from a damaged checkpoint."""
    assert "JSON list" in _run("inspect", checkpoint, "--find", "[user", status=2)
    assert "exclude" in _run("inspect", checkpoint, "--find", "[]", "--largest", 1, status=2)
    assert "--rows goes with" in _run("inspect", checkpoint, "--rows", 0, status=2)
    for words in ([], ["--largest", 1], ["--most-changed", 1], ["--key-groups"]):
        said = _run("inspect", checkpoint, *words, "--limit", 20, status=2)
        assert "--limit goes with --find" in said
    assert "itself" in _run("diff", checkpoint, status=2)
    assert "no rows of that name" in _run("read", checkpoint, "--rows", "x", status=1)
    assert "no checkpoint" in _run("read", tmp_path / "none", status=1)
