"""The commands savepoint, restore and branch: plans, what is done, and what is said."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from statestore import Checkpoint, Savepoint
from statestore.cli.commands import cli
from statestore.core.text import format_bytes
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import files_below, query_of, read_rows


@pytest.fixture
def query(tmp_path: Path) -> MadeCheckpoint:
    """A query's checkpoint after one batch."""
    made = query_of(tmp_path / "query", num_partitions=2)
    made.run_batch({f"key-{number}": "value" for number in range(10)})
    return made


def run(*arguments: Any) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_savepoint_restore_and_branch_do_what_they_show(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a dry run that does it, or says that it did what it did not."""
    planned = run("savepoint", query.path, tmp_path / "savepoint", "--dry-run")
    assert "written anew" in planned.output
    assert not (tmp_path / "savepoint").exists()
    taken = run("savepoint", query.path, tmp_path / "savepoint", "--output", "json")
    assert taken.exit_code == 0, taken.output
    assert json.loads(taken.output).items() >= {"done": True, "version": 1}.items()
    assert json.loads(taken.output)["savepoint"]["form"] == "canonical"
    assert taken.stderr == ""
    native = run("savepoint", query.path, tmp_path / "native", "--form", "native", "--version", 1)
    assert native.stderr == ""
    assert native.output.splitlines()[-1].startswith("Done: a native savepoint of ")

    how = ("--backend", "rocksdb", "--num-partitions", 4)
    for command in (
        ("restore", tmp_path / "savepoint", tmp_path / "again", *how),
        ("branch", query.path, tmp_path / "fork"),
    ):
        planned = run(*command, "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert planned.output.splitlines()[-1].startswith("Nothing was changed.")
        assert not Path(command[2]).exists()
        done = run(*command, "--output", "json")
        assert json.loads(done.output)["done"] is True
        assert read_rows(command[2]) == query.expected()


def test_restore_shows_what_becomes_of_operators(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches a plan from which nobody can tell whose state goes where."""
    run("savepoint", query.path, tmp_path / "savepoint")
    moved = ("--map-operator", "0:1", "--add-operator", "0:dedupe", "--claim", "--new-query-id")

    again = ("restore", tmp_path / "savepoint", tmp_path / "again", "--dry-run")
    planned = run(*again, *moved)
    dropped = run(*again, "--drop-operator", 0)

    lines = [" ".join(line.split()) for line in planned.output.splitlines()]
    assert {"operator 0 becomes 1", "new operator 0 dedupe, empty"} <= {*lines}
    assert any(line.startswith("state ") and line.endswith(", written anew") for line in lines)
    assert "afterwards the savepoint is deleted" in lines
    assert "afterwards" not in dropped.output
    assert "operator 0         dropped" in dropped.output.splitlines()
    done = run("restore", tmp_path / "savepoint", tmp_path / "again", *moved)
    assert done.output.splitlines()[-1] == "Done."
    assert not (tmp_path / "savepoint").exists()


def test_wrong_usage_and_refusals_have_a_status_of_their_own(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a script that goes on after a restore which was not done."""
    before = files_below(query.path)
    run("savepoint", query.path, tmp_path / "savepoint")

    for wrong in (("--map-operator", "x"), ("--map-operator", "0:x"), ("--add-operator", "1")):
        called = run("restore", tmp_path / "savepoint", tmp_path / "again", *wrong)
        assert called.exit_code == 2
        assert f"{wrong[0]} takes" in called.output
        assert f"not '{wrong[1]}'" in called.output
    refused = run("restore", tmp_path / "savepoint", query.path)

    assert refused.exit_code == 1
    assert "[checkpoint-exists]" in refused.output
    assert files_below(query.path) == before


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_list_says_what_a_savepoint_is(tmp_path: Path, form: str) -> None:
    """Catches a savepoint shown as a checkpoint of the backend that its files happen to have."""
    made = query_of(tmp_path / "query", num_partitions=2, backend="rocksdb")
    made.run_batch({"a": "b"})
    savepoint = tmp_path / "savepoint"
    assert run("savepoint", made.path, savepoint, "--form", form).exit_code == 0

    of_checkpoint, of_savepoint = (
        run("list", path).output.splitlines()[0] for path in (made.path, savepoint)
    )
    assert of_checkpoint.startswith(f"{made.path}: rocksdb backend, 2 state partitions, ")
    said = f"{savepoint}: {form} savepoint of the rocksdb backend, 2 state partitions, "
    assert of_savepoint.startswith(said)
    header, query, other = run("list", tmp_path).output.splitlines()[1:4]
    assert header.split()[-1] == "now"
    assert query.split()[:2] == ["query", "rocksdb"]
    assert other.split()[:2] == ["savepoint", "rocksdb"]
    assert (query[-1], other.endswith(f"  {form} savepoint")) == ("-", True)
    listed = json.loads(run("list", savepoint, "--output", "json").output)
    assert listed["savepoint"]["form"] == form
    (savepoint / "metadata").write_text('{"statestore": {"savepoint": {"form": "other"}}}')
    damaged = run("list", savepoint)
    assert damaged.exit_code == 0, damaged.output
    assert " savepoint of " not in damaged.output


def test_savepoints_are_kept_by_a_scheduler(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches an exit status by which a scheduler does not see what happened."""
    command, kept = ("savepoint", query.path, tmp_path / "kept"), tmp_path / "kept"

    planned = run(*command, "--keep", "2", "--max-age", "7d", "--dry-run")
    assert (planned.exit_code, kept.exists()) == (0, False), planned.output
    assert "Repeat the command without --dry-run to do it." in planned.output
    taken = run(*command, "--keep", "2")
    assert taken.exit_code == 0, taken.output
    assert "Done." in taken.output
    (made,) = kept.glob("savepoint-*")
    size = format_bytes(Savepoint(made).info.state_bytes)
    assert f"savepoint  {made}, {size} of state files\n" in taken.output
    assert f"savepoint  nothing new since {made}\n" in run(*command, "--keep", "2").output
    again = run(*command, "--max-age", "7d", "--output", "json")
    assert (again.exit_code, json.loads(again.output)["taken"]) == (0, None)
    assert len([*kept.glob("savepoint-*")]) == 1
    Path(query.path, "state", "0", "_metadata", "metadata").unlink()
    query.run_batch({"a": "b"})
    Path(query.path, "state", "0", "_metadata", "metadata").unlink(missing_ok=True)
    failed = run(*command, "--keep", "2")
    assert failed.exit_code == 1, failed.output
    assert json.loads((kept / "status.json").read_text())["error"]
    assert len([*kept.glob("savepoint-*")]) == 1


def test_metrics_say_what_is_there(tmp_path: Path) -> None:
    """Catches an alert that stays silent, by names, values or escapes that Prometheus has not."""
    path = tmp_path / 'a "new" \\ query'
    query = query_of(path)
    query.run_batch({"a": "b"})
    command = ("savepoint", query.path, tmp_path / "kept", "--keep", "1")
    metrics = tmp_path / "savepoints.prom"

    def told() -> dict[str, float]:
        families = [*text_string_to_metric_families(metrics.read_text())]
        assert all(family.documentation and family.type == "gauge" for family in families)
        samples = [sample for family in families for sample in family.samples]
        assert all(sample.labels == {"checkpoint": query.path} for sample in samples)
        return {
            sample.name.removeprefix("statestore_savepoints_"): sample.value for sample in samples
        }

    run(*command, "--metrics", metrics, "--dry-run")
    assert not metrics.exists()
    began = time.time()
    taken = run(*command, "--metrics", metrics)
    assert taken.exit_code == 0, taken.output
    first = told()
    assert (first["failed"], first["kept"]) == (0, 1)
    assert began - 1 <= first["newest_seconds"] <= first["attempted_seconds"] <= time.time()
    assert first["newest_bytes"] > 0
    query.run_batch({"c": "d"})
    Path(query.path, "state", "0", "_metadata", "metadata").unlink()
    assert run(*command, "--metrics", metrics).exit_code == 1
    failed = told()
    assert (failed["failed"], failed["kept"]) == (1, 1)
    assert failed["newest_seconds"] == first["newest_seconds"]
    assert failed["attempted_seconds"] > first["attempted_seconds"]
    Path(query.path, "state", "0", "_metadata", "metadata").unlink(missing_ok=True)
    nowhere = run(*command, "--metrics", tmp_path / "no" / "such.prom")
    assert nowhere.exit_code == 1
    assert nowhere.stderr.index("such.prom") < nowhere.stderr.index("_metadata")


def test_a_savepoint_is_told_whatever_becomes_of_its_metrics(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a savepoint that was taken and is told as one that was not."""
    nowhere = tmp_path / "no" / "such.prom"
    taken = run("savepoint", query.path, tmp_path / "kept", "--keep", "1", "--metrics", nowhere)

    (made,) = (tmp_path / "kept").glob("savepoint-*")
    assert taken.exit_code == 1
    assert str(made) in taken.stdout
    assert taken.stdout.endswith("Done.\n")
    assert f"cannot write the metrics of savepoints: file='{nowhere}'" in taken.stderr


def test_a_schedule_ends_where_nobody_reads_what_it_prints(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches metrics that stand still for ever, since the command writes them no more."""
    metrics = tmp_path / "one.prom"
    words = ["savepoint", query.path, tmp_path / "kept", "--keep", 3, "--every", "1s"]
    reader, writer = os.pipe()
    os.close(reader)

    with os.fdopen(writer) as output:
        done = subprocess.run(
            [sys.executable, "-m", "statestore.cli", *map(str, words), "--metrics", str(metrics)],
            stdout=output, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert len(list((tmp_path / "kept").glob("savepoint-*"))) == 1
    assert "statestore_savepoints_failed{" in metrics.read_text()


def test_a_schedule_goes_on_where_the_disk_of_its_log_is_full(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches backups that end for good, since nothing can be written about them."""
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "statestore.cli", "savepoint", query.path, str(kept)]
    with Path("/dev/full").open("w") as log:
        process = subprocess.Popen([*command, "--every", "1s"], stdout=log, stderr=log)
    try:
        for number in range(1, 4):
            until = time.monotonic() + 60
            while len(Checkpoint(query.path).savepoints(kept)) < number:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            query.run_batch({"a": f"{number}"})
    finally:
        process.kill()
        process.wait()


def test_a_command_whose_streams_are_closed_does_what_it_is_asked_to(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a savepoint of a background job that is never taken, without a word."""
    command = f"{sys.executable} -m statestore.cli savepoint {query.path} {tmp_path / 'one'}"

    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], timeout=60, check=False)

    assert done.returncode == 0
    assert Savepoint(tmp_path / "one").info.version


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 1), (SystemExit(143), 143)])
def test_a_schedule_ends_where_its_metrics_cannot_be_written(
    tmp_path: Path,
    query: MadeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    status: int,
    has_log: bool,
) -> None:
    """Catches a schedule that goes on after Ctrl-C or SIGTERM."""

    def retain(*_: Any, **__: Any) -> None:
        raise end

    def echo(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoint, "retain_savepoint", retain)
    if not has_log:
        monkeypatch.setattr(click, "echo", echo)
    monkeypatch.setattr(time, "sleep", lambda seconds: seconds and pytest.fail("it goes on"))
    nowhere = ("--metrics", tmp_path / "no" / "such.prom")

    ended = run("savepoint", query.path, tmp_path / "kept", "--every", "1h", *nowhere)

    assert ended.exit_code == status


@pytest.mark.parametrize(
    "options",
    [
        ("--keep", "0"),
        ("--max-age", "soon"),
        ("--every", "0s"),
        ("--keep", "2", "--version", "1"),
        ("--metrics", "x.prom"),
    ],
)
def test_schedule_that_is_none_is_refused(
    tmp_path: Path, query: MadeCheckpoint, options: tuple[str, ...]
) -> None:
    """Catches a schedule that is not what was meant."""
    refused = run("savepoint", query.path, tmp_path / "kept", *options)

    assert refused.exit_code == 2, refused.output
    assert not (tmp_path / "kept").exists()


def test_a_plan_says_what_a_savepoint_is_restored_on(tmp_path: Path) -> None:
    """Catches files of one backend that are read as the backend of what comes of them."""
    query = query_of(tmp_path / "query", backend="rocksdb")
    query.run_batch({"a": "b"})
    taken = run("savepoint", query.path, tmp_path / "savepoint")
    assert "\nform of files      filesystem\n" in taken.output
    restored = run("restore", tmp_path / "savepoint", tmp_path / "new")
    assert "\nbackend            rocksdb\n" in restored.output


def test_a_schedule_goes_on_after_a_failure_that_nobody_knows(
    tmp_path: Path, query: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches backups that end for good where a machine had no thread, or no memory, for one."""
    retain, waits = Checkpoint.retain_savepoint, []

    def fail_once(self: Checkpoint, *words: Any, **named: Any) -> Any:
        monkeypatch.setattr(Checkpoint, "retain_savepoint", retain)
        raise RuntimeError("can't start new thread")

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if [*(tmp_path / "kept").glob("savepoint-*")]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "retain_savepoint", fail_once)
    monkeypatch.setattr(time, "sleep", sleep)
    ended = run("savepoint", query.path, tmp_path / "kept", "--every", "1s")
    assert ended.exit_code == 0, ended.output
    assert "RuntimeError: can't start new thread" in ended.stderr
    assert len([*(tmp_path / "kept").glob("savepoint-*")]) == 1


def test_a_schedule_is_ended_by_ctrl_c(
    tmp_path: Path, query: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches the usual end of a schedule that is told as a failure."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    ended = run("savepoint", query.path, tmp_path / "kept", "--every", "1h")
    assert (ended.exit_code, ended.output.endswith("Done.\n")) == (0, True), ended.output
    assert len([*(tmp_path / "kept").glob("savepoint-*")]) == 1
    assert waits == [60] * 5


def test_a_savepoint_is_whole_whenever_the_schedule_is_killed(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a moment without one; also what a kill leaves that the next run trips over."""
    checkpoint, kept, random = Checkpoint(query.path), tmp_path / "kept", Random(7)
    checkpoint.retain_savepoint(kept)
    command = [sys.executable, "-m", "statestore.cli", "savepoint", query.path, str(kept)]
    for _ in range(3):
        before = {*kept.glob("savepoint-*")}
        process = subprocess.Popen([*command, "--every", "1s", "--keep", "1"])
        until = time.monotonic() + 60
        while {*kept.glob("savepoint-*")} <= before and time.monotonic() < until:
            query.run_batch({"a": f"{until}"})
            time.sleep(0.02)
        time.sleep(random.uniform(0, 0.5))  # within what follows the first one
        assert process.poll() is None
        process.kill()
        process.wait()

        whole = checkpoint.savepoints(kept)
        assert len(whole) in (1, 2)
        assert [one.verify(deep=True).findings for one in whole] == [()] * len(whole)
    query.run_batch({"a": "last"})
    assert checkpoint.retain_savepoint(kept, keep=1).version == query.version
    assert len(checkpoint.savepoints(kept)) == 1
