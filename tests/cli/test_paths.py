"""How directories are named on the command line, and what is said where there is none."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.cli.commands import cli
from statestore.core.errors import InvalidArgumentError
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import query_of, read_rows, write_checkpoint


@pytest.fixture
def query(tmp_path: Path) -> MadeCheckpoint:
    """A query's checkpoint after one batch."""
    made = query_of(tmp_path / "query", num_partitions=2)
    made.run_batch({f"key-{number}": "value" for number in range(10)})
    return made


def run(*arguments: Any, exit_code: int = 0) -> str:
    """Run a command; return what it prints."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def test_paths_may_be_relative_or_below_home(
    tmp_path: Path, query: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an operation that refuses what every shell completes, or makes it elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))

    run("savepoint", "../query", "saved")
    run("restore", "saved", "./again")
    run("branch", "~/query", "fork")
    assert "all is well" in run("verify", "../query/")
    assert str(tmp_path / "here/saved") in run("list", "~/query", "--savepoints", ".")
    assert "No savepoint of the query in ../here/fork." in run(
        "list", "~/query", "--savepoints", "../here/fork"
    )
    assert "nothing to repair" in run("repair", "./fork")

    assert read_rows(tmp_path / "here/again") == query.expected()
    assert read_rows(tmp_path / "here/fork") == query.expected()
    with Checkpoint("../query").open_store(0, 1) as store:
        assert store.version == 1
    assert "inside another checkpoint" in run("restore", "saved", "saved/in", exit_code=1)
    assert not Path("~").exists()


def test_storage_of_a_query_is_absolute(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches state put below the directory of a command, where no executor looks."""
    run("savepoint", query.path, tmp_path / "saved")
    conf = ("--storage-option", "spark.sql.streaming.stateStore.checkpointStorage=state")

    assert "[unsupported-scheme]" in run(
        "restore", tmp_path / "saved", tmp_path / "again", *conf, exit_code=1
    )
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("form", ["{}/", "file://{}/", "file:{}//"])
def test_a_slash_at_the_end_says_nothing(query: MadeCheckpoint, form: str) -> None:
    """Catches a checkpoint taken for a directory of checkpoints, with one that has no name."""
    named = form.format(query.path)

    listed = run("list", named)

    assert "operator 0" in listed
    assert "below" not in listed
    assert run("verify", named) == run("verify", query.path)
    assert Checkpoint(named).uri == form.format(query.path).rstrip("/")


def test_a_file_uri_that_is_encoded_is_refused(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches a copy that a query does not find by the same URI, and starts without state."""
    saved, uri = tmp_path / "saved one", f"file://{tmp_path}/new%20one"
    run("savepoint", query.path, saved.as_uri())

    assert "To fix: give the path" in run("restore", saved.as_uri(), uri, exit_code=1)
    for use in (Checkpoint(query.path).branch, Savepoint(saved.as_uri()).restore):
        with pytest.raises(InvalidArgumentError, match=r"uri='file:.*new%20one'.*give the path"):
            use(uri)
        with pytest.raises(InvalidArgumentError, match=r"uri='file:.*new%20one'.*give the path"):
            use(Checkpoint(uri))
    assert {path.name for path in tmp_path.iterdir()} == {"query", "saved one"}
    for name in ("new%20one", "a file:%20", "100%"):
        run("restore", saved, tmp_path / name)
        assert read_rows(tmp_path / name) == query.expected()


@pytest.mark.parametrize("command", ["list", "verify", "ui", "savepoint"])
def test_a_name_that_is_empty_is_said(tmp_path: Path, command: str) -> None:
    """Catches a variable of the shell that is not set, and a message that speaks of paths."""
    more = [tmp_path / "new"] if command == "savepoint" else []

    assert "no directory is named: uri=''" in run(command, "", *more, exit_code=1)


def test_a_command_that_is_told_can_be_pasted(tmp_path: Path) -> None:
    """Catches a space in a path that makes two arguments of one."""
    query = query_of(tmp_path / "Prüf ung", num_partitions=2)
    query.run_batch({"key": "value"})
    saved = tmp_path / "Prüf ung 2"
    run("savepoint", query.path, saved)

    told = run("repair", saved, exit_code=1)

    assert shlex.split(told.split("`")[1])[:3] == ["statestore", "restore", str(saved)]


def test_tables_in_a_pipe_have_a_line_for_each_row(tmp_path: Path) -> None:
    """Catches rows that `grep` and `awk` find half of."""
    words = {(f"word-{number}", number): (number, "x" * 60 * number) for number in range(8)}
    path = write_checkpoint(tmp_path / "checkpoint", [{"default": words}])

    lines = run("read", path, "--rows", "default").splitlines()

    assert len(lines) == 1 + len(words)
    for (word, number), (_, text) in words.items():
        (line,) = [line for line in lines if f'"{word}"' in line]
        assert f'"{text}"' in line
        assert line.split()[-1].isdigit(), number


def test_a_pipe_is_no_terminal_whatever_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches escapes and broken lines where colors are forced for a whole build."""
    path = write_checkpoint(tmp_path / "checkpoint", [{"default": {("a", 1): (1, "x" * 200)}}])
    commands = (["list"], ["read", "--rows", "default"], ["inspect"], ["sql", "--tables"])
    plain = [run(*words, path) for words in commands]

    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")

    assert [run(*words, path) for words in commands] == plain


def test_a_name_that_is_not_utf8_is_refused_and_stops_no_other(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a traceback of the encoder, and one name that hides all beside it."""
    odd = os.fsdecode(bytes(tmp_path / "odd") + b"\xff")
    said = "a name in a path is not UTF-8: uri="

    for words in (["savepoint", query.path, odd], ["branch", query.path, odd]):
        assert said in run(*words, exit_code=1)
    assert not Path(odd).exists()
    shutil.copytree(query.path, odd)
    page = ["--to", tmp_path / "page.html"]
    for words in (["read", odd], ["report", odd, *page], ["restore", odd, tmp_path / "new"]):
        assert said in run(*words, exit_code=1)
    assert not (tmp_path / "new").exists()
    listed = json.loads(run("list", tmp_path, "--output", "json"))["checkpoints"]
    assert [said in one.get("problem", "") for one in listed] == [True, False]
    run("report", tmp_path, "--to", tmp_path / "pages", "--output", "json")
    index = (tmp_path / "pages" / "index.html").read_text()
    assert "odd\\udcff" in index
    assert query.path in index


@pytest.mark.parametrize("command", ["read", "edit"])
def test_a_condition_that_is_not_utf8_is_refused(tmp_path: Path, command: str) -> None:
    """Catches a traceback of the database."""
    path = write_checkpoint(tmp_path / "checkpoint", [{"default": {("a", 1): (1, "")}}])
    condition = os.fsdecode(b"word = '\xff'")

    said = run(command, path, "--rows", "default", "--where", condition, exit_code=1)

    assert "[invalid-argument] SQL is not UTF-8: sql=" in said


def test_a_narrow_terminal_shows_every_letter(query: MadeCheckpoint) -> None:
    """Catches times and kinds of versions that are cut off at 80 columns."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "statestore.cli", "list", query.path]
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, env=env):
        os.close(theirs)
        read = b""
        with suppress(OSError):  # which is how the end of a terminal is told
            while more := os.read(ours, 4096):
                read += more
    os.close(ours)
    shown = read.decode()

    assert "\x1b[1m" in shown
    assert max(map(len, shown.splitlines()[-3:])) <= 80
    assert "…" not in shown


def test_an_option_that_is_given_twice_is_refused(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches the last of two values, taken without a word."""
    for command in (
        ["sql", query.path, "SELECT 1", "--attach", "old=/a", "--attach", "old=/b"],
        ["list", query.path, "--storage-option", "s3.region=a", "--storage-option", "s3.region=b"],
        ["restore", query.path, tmp_path / "new", "--map-operator", "0:1", "--map-operator", "0:2"],
    ):
        assert "given twice" in run(*command, exit_code=2)
    assert not (tmp_path / "new").exists()
