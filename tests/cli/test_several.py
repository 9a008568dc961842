"""Commands that take a directory for the checkpoints below it, as the storage of a pipeline."""

import builtins
import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.api import reaching
from statestore.cli.commands import cli
from statestore.core.errors import InvalidArgumentError, NotFoundError
from tests.checkpoints import make_query

FLOW = "_checkpoints/spark_catalog/default/firsts/firsts"


def run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(name="storage")
def _storage(tmp_path):
    """The storage of a pipeline: a flow with a full refresh, and another flow."""
    storage = tmp_path / "storage"
    make_query(storage / FLOW / "0", 3)
    make_query(storage / FLOW / "1", 1)
    make_query(storage / "_checkpoints/spark_catalog/default/other/other/0", 2)
    return storage


def uris(storage):
    return [f"{storage}/{FLOW}/{number}" for number in (0, 1)] + [
        f"{storage}/_checkpoints/spark_catalog/default/other/other/0"
    ]


def test_checkpoints_of_a_pipeline_are_found(storage):
    """Catches a flow that is not seen, and one that is seen twice."""
    assert [one.uri for one in Checkpoint.find(storage)] == uris(storage)
    assert [one.info.newest_version for one in Checkpoint.find(storage)] == [3, 1, 2]
    assert [one.uri for one in Checkpoint.find(storage / FLOW)] == uris(storage)[:2]


def test_a_checkpoint_is_found_and_nothing_in_it(storage):
    """Catches directories of state that are taken for checkpoints, or walked through."""
    uri = uris(storage)[0]
    (Path(uri) / "state/0/0/offsets").mkdir()

    assert [one.uri for one in Checkpoint.find(uri)] == [uri]
    listed = run("list", uri, "--output", "json")
    assert [one["version"] for one in json.loads(listed.stdout)["versions"]] == [3, 2, 1]


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_no_checkpoint_is_said(tmp_path, name):
    """Catches an empty table where a name was mistyped."""
    with pytest.raises(NotFoundError, match="at or below"):
        Checkpoint.find(tmp_path / name)
    for command in ("list", "verify", "report"):
        result = run(command, tmp_path / name, "--output", "json")
        assert result.exit_code == 1
        assert "[checkpoint-not-found]" in result.output


def test_a_directory_that_is_not_there_is_not_served(tmp_path):
    """Catches a server of nothing where a name was mistyped; the right name beside it is none."""
    make_query(tmp_path / "here", 1)

    result = run("ui", tmp_path / "here", tmp_path / "nowhere")

    assert result.exit_code == 1
    assert f"the directory does not exist: directory='{tmp_path}/nowhere'" in result.output


def test_too_many_directories_are_not_walked(tmp_path, monkeypatch):
    """Catches a walk through a lake of files, and one that is cut off without a word."""
    monkeypatch.setattr(reaching, "_MOST_LISTED", 5)
    for number in range(6):
        (tmp_path / str(number)).mkdir()

    with pytest.raises(InvalidArgumentError, match="too many directories"):
        Checkpoint.find(tmp_path)


def test_other_commands_name_what_lies_below(storage):
    """Catches a message that leaves a user of a pipeline alone."""
    result = run("read", storage)

    assert result.exit_code == 1
    assert f"below='{FLOW}/0, {FLOW}/1" in result.output
    assert "name one of the checkpoints below it" in result.output


def test_list_has_a_line_for_each(storage):
    """Catches a checkpoint that hides the others because it is damaged."""
    Path(uris(storage)[1], "offsets/0").write_text("damaged")

    text = run("list", storage)
    listed = json.loads(run("list", storage, "--output", "json").stdout)["checkpoints"]

    assert text.exit_code == 0
    lines = text.output.splitlines()
    names = [uri.removeprefix(f"{storage}/") for uri in uris(storage)]
    assert lines[0] == f"3 checkpoints below {storage}"
    assert [line.split()[0] for line in lines[-4:-1]] == names
    assert lines[-1].startswith(f"{names[1]}: ")
    assert [one["uri"] for one in listed] == uris(storage)
    assert [one.get("newest_version") for one in listed] == [3, None, 2]
    assert "offsets/0" in listed[1]["problem"]


@pytest.mark.parametrize("option", ["--savepoints", "--limit"])
def test_what_is_of_one_checkpoint_is_refused_for_several(storage, option):
    """Catches an option that is taken and does nothing."""
    result = run("list", storage, option, "20")

    assert result.exit_code == 2
    assert "--limit and --savepoints go with one checkpoint" in result.output
    assert run("list", storage / FLOW / "0", "--limit", "20").exit_code == 0


def test_verify_looks_at_each(storage):
    """Catches a damaged checkpoint among others that does not change the exit status."""
    well = run("verify", storage, "--deep")
    files = sorted(Path(uris(storage)[2]).glob("state/0/*/2*.delta.*"))
    files[0].write_bytes(files[0].read_bytes()[:-20])
    text = run("verify", storage)
    found = json.loads(run("verify", storage, "--output", "json").stdout)

    assert well.exit_code == 0
    assert well.output.count("all is well") == 3
    assert text.exit_code == 1
    assert text.output.count("all is well") == 2
    assert not found["ok"]
    assert [one["ok"] for one in found["checkpoints"]] == [True, True, False]


def test_report_has_a_page_for_each(storage, tmp_path):
    """Catches an index that leads nowhere, and a page that is missing."""
    Path(uris(storage)[1], "offsets/0").write_text("damaged")
    pages = tmp_path / "pages"

    result = run("report", storage, "--to", pages)

    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in pages.iterdir()) == ["0.html", "2.html", "index.html"]
    index = (pages / "index.html").read_text()
    assert 'href="0.html"' in index
    assert 'href="1.html"' not in index
    assert "offsets/0" in index
    assert 'href="index.html"' in (pages / "2.html").read_text()


def test_directory_that_may_not_be_listed_is_told_and_stops_nothing(storage, tmp_path, monkeypatch):
    """Catches one directory of root's beside checkpoints and savepoints, which fails them all."""
    listed = os.scandir

    def scan(path="."):
        if "/closed" in str(path) or "lost+found" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    for name in ("closed", "lost+found"):
        (storage / name).mkdir()
    monkeypatch.setattr(os, "scandir", scan)

    for command in ("list", "verify", "report"):
        told = json.loads(run(command, storage, "--output", "json").stdout)["checkpoints"]
        problems = [one["problem"] for one in told if "problem" in one]
        assert len(told) == 4
        assert len(problems) == 1
        assert "[permission-denied]" in problems[0]
        assert "closed" in problems[0]
    (top := tmp_path / "top" / "lost+found").mkdir(parents=True)
    assert run("branch", storage / FLOW / "0", top.parent).exit_code == 0
    assert run("savepoint", top.parent, tmp_path / "of-top").exit_code == 0
    monkeypatch.setattr(os, "scandir", listed)
    kept = tmp_path / "kept"
    assert run("savepoint", storage / FLOW / "0", kept / "one").exit_code == 0
    for name in ("closed", "lost+found", "table/metadata"):
        (kept / name).mkdir(parents=True)
    opened = builtins.open

    def open_file(path, *arguments, **how):
        if any(f"/{name}/" in str(path) for name in ("closed", "lost+found")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **how)

    monkeypatch.setattr(builtins, "open", open_file)
    found = run("list", storage / FLOW / "0", "--savepoints", kept, "--output", "json")
    (one,) = json.loads(found.stdout)["savepoints"]
    assert one["uri"] == str(kept / "one")


@pytest.mark.parametrize("several", [False, True])
def test_page_that_cannot_be_written_is_refused_before_state_is_read(
    storage, tmp_path, monkeypatch, several
):
    """Catches hours of reading for a page that has no place."""
    (tmp_path / "file").write_text("mine")
    checkpoint = storage if several else storage / FLOW / "0"
    monkeypatch.setattr("statestore.report.gather.gather", lambda *_, **__: pytest.fail("read"))

    result = run("report", checkpoint, "--deep", "--to", tmp_path / "file" / "page.html")

    assert result.exit_code == 1
    assert "cannot write the page" in result.output


def test_pages_of_a_file_are_refused(storage, tmp_path):
    """Catches a traceback where the directory of pages is a file."""
    (tmp_path / "pages").write_text("mine")

    result = run("report", storage, "--to", tmp_path / "pages")

    assert result.exit_code == 1
    assert "cannot write the page" in result.output
    assert (tmp_path / "pages").read_text() == "mine"
