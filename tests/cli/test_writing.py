"""`statestore transform`, `edit` and `forget`: the plan first."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.cli.commands import cli
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS
from tests.made_joins import small_join
from tests.operations.given import array, map_of, struct
from tests.operations.typed import LEAVES, make_typed


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch", operators=OPERATORS[:2])
    made.run_batch({number: number for number in range(10)})
    return made.path


INTERVAL = "interval year to month"
KEY = {
    "k": "long",
    "id": "binary",
    "price": "decimal(10,2)",
    "w": struct(start="timestamp", name="string"),
}
NESTED = {
    "s": struct(a="string", b=array("decimal(38,18)")),
    "m": map_of("string", "timestamp"),
    "l": array("binary"),
}


def _run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == status, done.output
    return done.output


def _rows(path: str) -> list[str]:
    return sorted(map(repr, Checkpoint(path).rows().read().to_pylist()))


@contextmanager
def _opened(path: Path) -> Iterator[list[str]]:
    """Collect each time that this process opens a file."""
    found: list[str] = []
    is_over = False

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not is_over and str(arguments[0]) == str(path):
            found.append(event)

    sys.addaudithook(note)  # there for as long as the process is
    yield found
    is_over = True


def test_transform_does_it_and_with_dry_run_says_what(checkpoint: str, tmp_path: Path) -> None:
    """Catches SQL given to another operator or store, and a command that writes unasked."""
    to = tmp_path / "savepoint"
    command = [
        *("transform", checkpoint, str(to)),
        *("--sql", "0=SELECT key, {'value': value.value + 1} AS value FROM state"),
        *("--sql", "1/left-keyToNumValues=SELECT * FROM state WHERE key.field0 = 3"),
    ]

    planned = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert "operator 1 left-keyToNumValues" in planned.output
    assert "Nothing was changed" in planned.output
    assert not to.exists()

    done = CliRunner().invoke(cli, [*command, "--output", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["done"]
    found = Savepoint(to).rows(0).read(flatten=True)
    assert sorted(found["value.value"].to_pylist()) == list(range(1, 11))
    assert Savepoint(to).rows("1/left-keyToNumValues").read().num_rows == 1


def test_transform_changes_a_schema_where_it_is_asked_to(checkpoint: str, tmp_path: Path) -> None:
    """Catches an option that does nothing, and another type that nobody asked for."""
    sql = "0=SELECT key, {'value': CAST(value.value AS DOUBLE)} AS value FROM state"
    command = ["transform", checkpoint, str(tmp_path / "savepoint"), "--sql", sql]

    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 1, refused.output
    assert "--change-schema" in refused.output
    asked = CliRunner().invoke(cli, [*command, "--change-schema"])
    # What was made without Spark has no schema of Spark's to be changed.
    assert asked.exit_code == 1
    assert "file-not-found" in asked.output
    assert "_metadata/schema" in asked.output


def test_transform_makes_joins_of_format_4(tmp_path: Path) -> None:
    """Catches an option that is not passed on, and rows that have to be named beside it."""
    join = small_join(tmp_path / "query")
    command = ["transform", join.made.path, str(tmp_path / "savepoint"), "--join-format"]

    done = CliRunner().invoke(cli, [*command, "4"])
    assert done.exit_code == 0, done.output
    assert "rows by key and time, value.ts" in done.output
    rows = Savepoint(tmp_path / "savepoint").rows("left-keyWithTsToValues").read()
    assert rows.num_rows == sum(map(len, join.rows("left")))

    refused = CliRunner().invoke(cli, [*command, "3"])
    assert refused.exit_code == 2


def test_transform_takes_keys_and_rows_from_files(checkpoint: str, tmp_path: Path) -> None:
    """Catches a form of file that is read as other keys."""
    (tmp_path / "keys.csv").write_text("key.k\n3\n4\n")
    (tmp_path / "rows.json").write_text('{"key": {"k": 5}, "value": {"value": 50}}\n')
    to = tmp_path / "savepoint"
    files = ["--delete", str(tmp_path / "keys.csv"), "--upsert", str(tmp_path / "rows.json")]
    files += ["--rows", "0"]

    done = CliRunner().invoke(cli, ["transform", checkpoint, str(to), *files])

    assert done.exit_code == 0, done.output
    assert "2 of 2 keys have rows: 2 rows of 10 deleted" in done.output
    assert "1 row put, in place of those of 1 key" in done.output
    rows = Savepoint(to).rows(0).read(flatten=True)
    found = dict(zip(rows["key.k"].to_pylist(), rows["value.value"].to_pylist(), strict=True))
    assert found == {n: n for n in range(10) if n not in (3, 4, 5)} | {5: 50}


def test_a_file_of_rows_may_have_a_name_in_capitals(checkpoint: str, tmp_path: Path) -> None:
    """Catches a file that `read --to` writes and `edit` does not take."""
    file = tmp_path / "ROWS.CSV"
    for words in (["read", "--flatten", "--to"], ["edit", "--upsert"]):
        command, *options = words
        _run(command, checkpoint, "--rows", "0", *options, file)


@pytest.mark.parametrize("suffix", ["", ".parquet", ".arrow", ".csv", ".json", ".jsonl"])
def test_a_file_that_read_writes_has_the_rows_that_edit_puts(tmp_path: Path, suffix: str) -> None:
    """Catches a form of file that `edit` does not take, or that makes another value of a type."""
    leaves = [kind for kind in LEAVES if kind != INTERVAL or suffix == ".arrow"]
    value = {**{f"c{number}": kind for number, kind in enumerate(leaves)}, **NESTED}
    path = make_typed(tmp_path / "query", Random(7), KEY, value).path
    before = _rows(path)
    rows, keys = tmp_path / f"rows{suffix}", tmp_path / f"keys{suffix}"
    _run("read", path, "--to", rows)
    _run("read", path, "--column", "key", "--to", keys)

    _run("edit", path, "--delete", keys, "--all", "--yes")
    assert _rows(path) == []
    _run("edit", path, "--upsert", rows, "--yes")

    assert _rows(path) == before


def test_intervals_are_in_files_of_arrow_alone(tmp_path: Path) -> None:
    """Catches values that a form of file has not, and that nobody is told of."""
    made = make_typed(tmp_path / "query", Random(7), {"k": "long"}, {"i": INTERVAL})

    said = _run("read", made.path, "--to", tmp_path / "rows.parquet", status=1)
    assert "Parquet has no type" in said
    assert ".arrow" in said
    for name in ("rows.csv", "rows.json"):
        _run("read", made.path, "--to", tmp_path / name)
        said = _run("edit", made.path, "--upsert", tmp_path / name, status=1)
        assert "a file of Arrow" in said


@pytest.mark.parametrize(
    "words",
    [
        ["read", "--to"],
        ["sql", "SELECT 1", "--to"],
        ["edit", "--delete"],
        ["edit", "--upsert"],
        ["transform", "savepoint", "--upsert"],
        ["forget", "--keys"],
    ],
)
def test_an_unknown_suffix_of_a_file_of_rows_is_refused_at_once(
    tmp_path: Path, words: list[str]
) -> None:
    """Catches a file of another form than its name says, and state that is read before that."""
    file = tmp_path / "rows.cvs"
    command, *options = words

    said = _run(command, tmp_path / "no-checkpoint", *options, file, status=2)

    assert all(one in said for one in (str(file), ".parquet, .arrow, .csv, .json, .jsonl"))
    assert not file.exists()


def test_edit_and_forget_show_their_plans_and_do_it_with_yes(
    checkpoint: str, tmp_path: Path
) -> None:
    """Catches a command that writes unasked, a certificate lost, a status that says all is well."""
    (tmp_path / "keys.csv").write_text("key.k\n3\n")
    edit = ["edit", checkpoint, "--rows", "0", "--where", "k = 4", "--watermark-ms", "7"]
    forget = ["forget", checkpoint, "--keys", str(tmp_path / "keys.csv")]
    certificate = tmp_path / "certificate.json"

    for command in (edit, forget):
        planned = CliRunner().invoke(cli, command)
        assert planned.exit_code == 0, planned.output
        assert "Nothing was changed" in planned.output
    assert Checkpoint(checkpoint).info.newest_version == 1
    assert CliRunner().invoke(cli, [*forget, "--verify"]).exit_code == 1
    done = CliRunner().invoke(cli, [*edit, "--yes", "--output", "json"])
    assert json.loads(done.output)["version"] == 2
    done = CliRunner().invoke(cli, [*forget, "--certificate", str(certificate), "--yes"])

    # The join has the key as well, and it is to be forgotten there by itself.
    assert done.exit_code == 1, done.output
    assert "operator 1 (symmetricHashJoin): found" in done.output
    document = json.loads(certificate.read_text())
    assert (document["status"], document["version"]) == ("complete", 3)
    verdicts = [outcome["verdict"] for outcome in document["search"]["outcomes"]]
    assert verdicts == ["forgotten", "found", "forgotten"]
    (tmp_path / "join.csv").write_text("key.field0\n3\n")
    of_join = ["--operator", "1", "--keys", str(tmp_path / "join.csv"), "--yes"]
    done = CliRunner().invoke(cli, ["forget", checkpoint, *of_join])
    assert done.exit_code == 0, done.output
    verify = [*forget, "--verify", "--certificate", str(certificate)]
    assert CliRunner().invoke(cli, [*forget, "--verify"]).exit_code == 0
    with _opened(tmp_path / "keys.csv") as opened:
        verified = CliRunner().invoke(cli, verify)
    assert verified.exit_code == 0, verified.output
    assert len(opened) == 1
    assert "The certificate is of these keys." in verified.output
    found = Checkpoint(checkpoint).rows(0).read(flatten=True)
    assert sorted(found["key.k"].to_pylist()) == [0, 1, 2, 5, 6, 7, 8, 9]
    # The keys are gone: nothing is done, and what there is of a certificate stays as it is.
    before = certificate.read_text()
    again = CliRunner().invoke(cli, [*forget, "--certificate", str(tmp_path / "2.json"), "--yes"])
    assert again.exit_code == 1
    assert "[keys-not-found]" in again.output
    assert not (tmp_path / "2.json").exists()
    nothing = CliRunner().invoke(cli, [*verify[:-1], str(tmp_path / "none.json")])
    assert (nothing.exit_code, "not a certificate" in nothing.output) == (1, True)
    (tmp_path / "keys.csv").write_text("key.k\n5\n")
    other = CliRunner().invoke(cli, verify)
    assert other.exit_code == 1
    assert "The certificate is not of these keys, or not of each" in other.output
    assert certificate.read_text() == before
    condition = ["forget", checkpoint, "--where", "k = 1"]
    refused = CliRunner().invoke(cli, [*condition, "--verify"])
    assert refused.exit_code == 2
    assert "--verify takes --keys" in refused.output
    everybody = ["forget", checkpoint, "--where", "k >= 0", "--output", "json"]
    assert "8 of 8" in CliRunner().invoke(cli, everybody).output
    printed = CliRunner().invoke(cli, [*everybody, "--all"])
    assert json.loads(printed.output)["num_rows"] == 8
    both = CliRunner().invoke(cli, [*forget, "--where", "k = 1"])
    assert "either --where SQL or --keys FILE" in both.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["transform", "--sql", "SELECT 1"], "NAME=SELECT"),
        (["transform"], "--sql SELECT, --delete FILE"),
        (["transform", "--sql", "0=SELECT 1", "--all"], "--rows and --all go with"),
        (["transform", "--sql", "0=SELECT 1", "--rows", "0", "--where", "k = 1"], "in two ways"),
        (["transform", "--sql", "0=SELECT 1", "--sql", "0=SELECT 2"], "given twice for 0"),
        (["edit"], "--delete FILE"),
        (["edit", "--expire", "value.max"], "go together"),
        (["edit", "--expire", "value.max", "--older-than", "7 days"], "999999 with s, m, h or d"),
        (["edit", "--expire", "value.max", "--older-than", "9999999999d"], "not a duration"),
        (["edit", "--expire", "value.max", "--older-than", "0d"], "not a duration"),
        (["edit", "--where", "k = 1", "--delete", "keys.csv"], "either --delete FILE or"),
        (["edit", "--delete", "keys.txt"], ".parquet"),
        (["edit", "--delete", "none.csv"], "none.csv"),
    ],
)
def test_what_is_mistaken_is_said(
    checkpoint: str, tmp_path: Path, command: list[str], said: str
) -> None:
    """Catches a traceback in place of what to type."""
    name, *options = command
    to = str(tmp_path / "to")
    where = [checkpoint, to] if name == "transform" else [checkpoint]
    done = CliRunner().invoke(cli, [name, *where, *options])

    assert done.exit_code == 2
    assert any(part in done.output for part in said.split("|")), done.output
