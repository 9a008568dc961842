"""The commands of a trial print what they promise, and their exit status says what differs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Trial, try_job
from statestore.cli.commands import cli
from statestore.core.errors import InvalidArgumentError
from statestore.io.local import LocalFileIO
from statestore.operations.trial.record import Compared, Record, read_record, write_record
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import files_below
from tests.made_trials import tried

DIFFERENT = Compared(
    "batch 2",
    is_same=False,
    removed=1,
    added=30,
    columns=("n: int64 became int32",),
    rows=({"change": "removed", "old": {"k": "<b>", "n": 1}},),
)


def run(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit status and all that it printed."""
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


@pytest.fixture
def made(tmp_path: Path) -> tuple[Checkpoint, Trial]:
    """A checkpoint and its trial."""
    return tried(tmp_path)


def write(trial: Trial, **changes: object) -> Record:
    """Change the record of a trial."""
    record = read_record(LocalFileIO(), trial.uri)
    assert record is not None
    return write_record(LocalFileIO(), trial.uri, record, **changes)


def test_promote_shows_its_plan_then_does_it(made: tuple[Checkpoint, Trial]) -> None:
    """Catches a checkpoint that is replaced unasked, and a command that does nothing."""
    ck, trial = made
    old, new = read_checkpoint(ck.uri), read_checkpoint(trial.branch.uri)

    status, plan = run("promote", trial.uri)
    assert (status, read_checkpoint(ck.uri)) == (0, old)
    assert "becomes the branch, version 3" in plan
    assert "with --yes" in plan
    status, _ = run("promote", trial.uri, "--yes")

    assert (status, read_checkpoint(ck.uri)) == (0, new)
    assert read_checkpoint(f"{ck.uri}-before-3") == old
    assert ck.history(limit=1)[0].operation == "promote"
    assert re.search(r"^\d{4}-\S+ \S+Z  promote ", run("history", ck.uri)[1], re.MULTILINE)


def test_drop_shows_its_plan_then_does_it(made: tuple[Checkpoint, Trial]) -> None:
    """Catches a trial that is deleted unasked, and one that stays."""
    ck, trial = made
    old = read_checkpoint(ck.uri)

    status, plan = run("drop", trial.uri)
    assert (status, Path(trial.uri).exists()) == (0, True)
    assert "stays as it is" in plan
    status, _ = run("drop", trial.uri, "--yes")

    assert (status, Path(trial.uri).exists()) == (0, False)
    assert read_checkpoint(ck.uri) == old


def test_what_differs_is_shown_as_text_json_and_page(
    made: tuple[Checkpoint, Trial], tmp_path: Path
) -> None:
    """Catches a difference that only one form of the report has, and rows taken for HTML."""
    _, trial = made
    same = Compared("batch 1", is_same=True, num_old=41, num_new=41)
    write(trial, compared=(same, DIFFERENT), ignored=("m", "value.m"))

    text, fields = str(trial), trial.result.fields()
    trial.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()

    assert "the new code differs" in text
    assert re.search(r"batch 1 +equal +41 +41 ", text)
    assert re.search(r"ignored +m, value.m\n", text)
    assert '{"change": "removed", "old": {"k": "<b>", "n": 1}}' in text
    assert "and 30 more" in text
    assert json.loads(json.dumps(fields))["compared"][1]["added"] == 30
    assert "n: int64 became int32" in page
    assert "&lt;b&gt;" in page
    assert "<b>&#34;" not in page
    status, error = run("promote", trial.uri, "--yes")
    assert status == 1
    assert "[trial-failed]" in error
    assert run("promote", trial.uri, "--accept")[0] == 0


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("", "the job cannot be read"),
        ("print('no query')", "the job starts no query of the checkpoint"),
        ("import os; os._exit(7)", "exit_status=7"),
        ("raise ValueError('mine')", "ValueError: mine"),
    ],
)
def test_job_that_does_not_get_to_its_query_is_named(
    made: tuple[Checkpoint, Trial], tmp_path: Path, job: str, problem: str
) -> None:
    """Catches a trial of a broken job that ends without a word, or harms the checkpoint."""
    ck, trial = made
    trial.drop()
    path = tmp_path / "job.py"
    if job:
        path.write_text(job)

    status, printed = run("try", ck.uri, str(path), "--trial", trial.uri)

    assert status == 1
    assert problem in printed
    assert printed.count("To fix:") == 1
    assert ck.verify().ok
    if job:
        assert trial.result.error
        assert run("drop", trial.uri, "--yes")[0] == 0


def test_job_whose_reply_has_no_space_is_named(
    made: tuple[Checkpoint, Trial], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Catches a traceback about JSON, and a file with secrets that no later command removes."""
    ck, trial = made
    trial.drop()
    (tmp_path / "job.py").touch()
    submit = """sh -c 'echo "$1"; : > "$2"'"""

    status, printed = run(
        "try", ck.uri, str(tmp_path / "job.py"), "--trial", trial.uri, "--submit", submit
    )

    assert (status, "ended before its time" in printed) == (1, True)
    assert "/statestore-operation-" in capfd.readouterr().err


def test_trial_of_another_checkpoint_is_left_as_it_is(
    made: tuple[Checkpoint, Trial], tmp_path: Path
) -> None:
    """Catches a branch that is deleted though a promote of it may have begun."""
    _, trial = made
    (tmp_path / "other").mkdir()
    other, _ = tried(tmp_path / "other")
    before = files_below(trial.uri)

    def never() -> None:
        raise AssertionError("the job was run")

    with pytest.raises(InvalidArgumentError, match="another checkpoint"):
        try_job(other, never, trial=trial.uri)

    assert files_below(trial.uri) == before


def _try(tmp_path: Path, job: str, *words: str) -> subprocess.CompletedProcess[str]:
    ck, _ = tried(tmp_path)
    (tmp_path / "job.py").write_text(job)
    return subprocess.run(
        [
            *(sys.executable, "-m", "statestore.cli", "try", ck.uri, str(tmp_path / "job.py")),
            *("--trial", str(tmp_path / "new"), *words),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_a_job_prints_is_no_result(tmp_path: Path) -> None:
    """Catches JSON that no program can read, and a job whose words are lost."""
    done = _try(tmp_path, "print('said by the job')", "--output", "json")

    assert (done.returncode, done.stdout) == (1, "")
    assert "said by the job" in done.stderr


def test_job_has_the_modules_of_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a module that is found by the job alone, and not in its trial, by PYTHONSAFEPATH."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "of_path.py").touch()
    path = [str(tmp_path / "modules"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")

    done = _try(tmp_path, "import of_path; print('found')")

    assert "found" in done.stderr.splitlines()


def test_job_whose_threads_do_not_end_is_ended(tmp_path: Path) -> None:
    """Catches a trial that is never over."""
    job = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()"

    done = _try(tmp_path, job)

    assert "starts no query of the checkpoint" in done.stderr


def test_what_cannot_work_is_refused_before_the_job_runs(
    tmp_path: Path, made: tuple[Checkpoint, Trial]
) -> None:
    """Catches minutes of a trial that end in an error that was there from the first."""
    ck, _ = made
    (tmp_path / "job.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    words = ["try", ck.uri, str(tmp_path / "job.py"), "--trial", str(tmp_path / "new")]

    status, text = run(*words, "--submit", "it's")
    assert (status, "--submit" in text) == (2, True)
    status, text = run(*words, "--to", str(tmp_path / "nowhere" / "page.html"))
    assert (status, "cannot write the page" in text) == (1, True)
    assert not (tmp_path / "ran").exists()
