"""What the commands refuse: how, at once, and with the way out in the text."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statestore.cli.commands import cli
from statestore.io.hadoop_process import find_spark_submit
from statestore.io.scratch import LOCK_NAME
from statestore.spark_files.schemas import write_schemas
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import query_of, read_rows


@pytest.fixture
def query(tmp_path: Path) -> MadeCheckpoint:
    """A query's checkpoint after one batch."""
    made = query_of(tmp_path / "query", num_partitions=2)
    made.run_batch({f"key-{number}": "value" for number in range(10)})
    return made


@pytest.fixture
def savepoint(tmp_path: Path, query: MadeCheckpoint) -> Path:
    """A savepoint of it."""
    run("savepoint", query.path, tmp_path / "saved")
    return tmp_path / "saved"


def run(*arguments: Any, exit_code: int = 0) -> str:
    """Run a command; return what it prints."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def test_a_file_is_no_checkpoint(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches advice about a batch where a name was mistyped."""
    file = tmp_path / "file"
    file.write_text("x")

    for path in (file, "/dev/null"):
        text = run("verify", path, exit_code=1)
        assert "[checkpoint-not-found]" in text
        assert "name the directory" in text
        text = run("savepoint", query.path, path, exit_code=1)
        assert "[invalid-argument] no directory can be made at this place" in text
    assert file.read_text() == "x"


def _write_schemas(query: Path) -> None:
    schema = query / "state/0/0/_metadata/schema"
    schema.parent.mkdir(exist_ok=True)
    text = '{"type":"struct","fields":[{"name":"k","type":"string"}]}'
    schema.write_bytes(write_schemas(text, text))


@pytest.mark.parametrize("command", ["savepoint", "branch", "restore", "convert"])
def test_place_where_nothing_can_be_made_is_refused_at_once(
    tmp_path: Path, query: MadeCheckpoint, savepoint: Path, command: str
) -> None:
    """Catches a plan that cannot be done, and blame for files that nobody deleted."""
    source = savepoint if command == "restore" else query.path
    how = ("--provider", "spark-hdfs") if command == "convert" else ()
    (tmp_path / "empty").mkdir()
    if command == "convert":
        _write_schemas(tmp_path / "query")

    text = run(command, source, "/proc/new", *how, exit_code=1)

    assert "[invalid-argument] no directory can be made at this place" in text
    assert "existing='/proc'" in text
    run(command, source, tmp_path / "empty", *how, "--dry-run", exit_code=0)
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    ("lacks", "fix"),
    [("pyspark", "pip install 'statestore[spark]'"), ("java", "`statestore doctor` checks Java")],
)
def test_conversion_without_spark_or_java_says_what_to_install(
    tmp_path: Path, query: MadeCheckpoint, lacks: str, fix: str
) -> None:
    """Catches a traceback of pyspark's where a machine lacks what only this command needs."""
    _write_schemas(tmp_path / "query")
    program = "import sys; from statestore.cli.commands import cli; "
    program += "sys.modules['pyspark.errors'] = None; " * (lacks == "pyspark") + "cli()"
    arguments = ["convert", query.path, str(tmp_path / "new"), "--provider", "spark-hdfs"]

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **({"JAVA_HOME": str(tmp_path)} if lacks == "java" else {})},
    )

    assert done.returncode == 1
    assert fix in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_place_in_another_checkpoint_is_refused(
    tmp_path: Path, query: MadeCheckpoint, savepoint: Path
) -> None:
    """Catches a checkpoint among the state files of another query's, deleted with them."""
    other = query_of(tmp_path / "other", num_partitions=2)
    other.run_batch({"key": "value"})

    for target in (tmp_path / "other/new", tmp_path / "other/state/0/new", savepoint / "new"):
        for command in (("restore", savepoint), ("branch", query.path), ("savepoint", query.path)):
            assert "inside another checkpoint" in run(*command, target, exit_code=1)
        assert not target.exists()


def test_operators_of_a_restore_are_checked_one_by_one(tmp_path: Path, savepoint: Path) -> None:
    """Catches a message that does not name what is wrong, and state for an unknown operator."""
    how = ("restore", savepoint, tmp_path / "new")

    text = run(*how, "--map-operator", "5:1", exit_code=1)
    assert "the savepoint has no such operator: operator='5', savepoint='0'" in text
    text = run(*how, "--drop-operator", "7", exit_code=1)
    assert "the savepoint has no such operator: operator='7'" in text
    text = run(*how, "--map-operator", "0:1", "--drop-operator", "0", exit_code=1)
    assert "an operator is mapped and dropped: operator='0'" in text
    text = run(*how, "--add-operator", "1:foo", exit_code=1)
    assert "no operator of Spark has this short name: operator=1, name='foo'" in text
    assert "use one of stateStoreSave, " in text
    assert "new operator 1     dedupe, empty" in run(*how, "--add-operator", "1:dedupe")


def test_key_groups_that_nobody_makes_are_refused(tmp_path: Path, savepoint: Path) -> None:
    """Catches an option that is taken and does nothing."""
    how = ("restore", savepoint, tmp_path / "new", "--dry-run", "--storage-option")
    key = "spark.sql.streaming.stateStore.maxParallelism"

    text = run(*how, f"{key}=7", exit_code=1)

    assert f"key='{key}', value=7, max_parallelism=32768" in text
    assert "leave the option out" in text
    run(*how, f"{key}=32768")
    assert "max_parallelism=24576" in run(*how, f"{key}=32768", "--num-partitions", 3, exit_code=1)


@pytest.mark.parametrize("partitions", [0, -1, 32769])
def test_state_partitions_out_of_range_are_a_usage_error(
    tmp_path: Path, query: MadeCheckpoint, savepoint: Path, partitions: int
) -> None:
    """Catches two commands with two opinions on the same option."""
    run("rescale", query.path, "--num-partitions", partitions, exit_code=2)
    run("restore", savepoint, tmp_path / "new", "--num-partitions", partitions, exit_code=2)


def test_web_address_is_refused_without_a_jvm(
    query: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a JVM that is started to learn what everybody knows."""
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    with pytest.raises(LookupError):
        find_spark_submit()

    assert "[unsupported-scheme]" in run("verify", "http://host/checkpoint", exit_code=1)
    assert "[unsupported-scheme]" in run("savepoint", query.path, "https://h/x", exit_code=1)
    for secret in ("SEC-RET", "SEC/RET"):
        told = run("verify", f"s3a://AKIA:{secret}@bucket/checkpoint", exit_code=1)
        assert "[unsupported-scheme]" in told
        assert "credentials" in told
        assert not re.search("AKIA|SEC|RET", told)


def test_lost_query_id_is_a_finding(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches a backup that is called well and starts as another query, or with no ID."""
    (tmp_path / "query/metadata").unlink()

    text = run("verify", query.path, exit_code=1)
    assert "[file-not-found]" in text
    assert "/query/metadata" in text
    assert "query ID           new" in run("savepoint", query.path, tmp_path / "saved")
    assert "query ID           new" in run("restore", tmp_path / "saved", tmp_path / "new")
    assert read_rows(tmp_path / "new") == query.expected()
    assert "all is well" in run("verify", tmp_path / "new")


@pytest.mark.parametrize("text", ["", "{", '{"id":7', '{"id":"7"}', "[]", "{}", "\x00\x01"])
def test_damaged_query_id_is_named(tmp_path: Path, query: MadeCheckpoint, text: str) -> None:
    """Catches an operation that goes on from what Spark does not start from."""
    (tmp_path / "query/metadata").write_text(text)

    text = run("verify", query.path, exit_code=1)
    assert "[corruption]" in text
    assert "To fix: Spark does not start the query without its ID: put the file back from" in text
    for command in ("savepoint", "branch"):
        said = run(command, query.path, tmp_path / "new", exit_code=1)
        assert "[corruption] the file with the ID of the query, or that" in said
        assert "/query/metadata" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_stays_of_a_command_that_is_terminated(
    tmp_path: Path, query: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Catches scratch directories that pile up, with rows that are to be forgotten in them."""
    checkpoint, scratch = tmp_path / "checkpoint", tmp_path / "scratch"
    checkpoint.mkdir()
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    os.mkfifo(checkpoint / "metadata")  # what reads it waits for ever
    hung_up = "SIG_DFL" if number == signal.SIGHUP else "SIG_IGN"  # as nohup has it
    program = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{hung_up});"
        "from statestore.cli.commands import cli; cli()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "verify", str(checkpoint)],
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        while not (made := [*scratch.glob("statestore-operation-*/*/fetched-state")]):
            assert process.poll() is None
            time.sleep(0.01)
        lock = made[0].parents[1] / LOCK_NAME
        os.utime(lock, (0, 0))
        run("verify", query.path)
        assert made[0].exists()
        process.send_signal(signal.SIGHUP)
        process.send_signal(number)

        assert process.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    finally:
        process.kill()
        process.wait()
    assert lock.exists() == (number == signal.SIGKILL)
    run("verify", query.path)
    assert not list(scratch.iterdir())


def test_query_that_has_not_ended_its_first_batch_is_told_as_such(tmp_path: Path) -> None:
    """Catches "name one of these" with none to name, of a query that has just begun."""
    begun = tmp_path / "begun"
    made = MadeCheckpoint(str(begun), tmp_path)
    made.run_batch({1: 1})
    shutil.rmtree(begun / "commits")
    shutil.rmtree(begun / "state")
    not_yet = "no batch of the query is committed yet"
    for status, arguments, said in (
        (0, ["list"], "No batch is committed yet."),
        (0, ["inspect"], "none of its batches is committed yet"),
        (0, ["history"], "No operation has changed it."),
        (0, ["sql", "--tables"], "none of its batches is committed yet"),
        (0, ["verify"], "Nothing to verify: no batch is committed yet."),
        (1, ["read"], not_yet),
        (1, ["inspect", "--largest", "3"], not_yet),
        (1, ["inspect", "--key-groups"], not_yet),
        (1, ["sql", "SELECT * FROM state"], not_yet),
        (1, ["diff", "--old-version", "1"], not_yet),
        (1, ["compact"], not_yet),
    ):
        command, *options = arguments
        done = CliRunner().invoke(cli, [command, str(begun), *options])
        assert isinstance(done.exception, SystemExit | None), arguments
        assert (done.exit_code, said in done.output) == (status, True), (arguments, done.output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no such device")
@pytest.mark.parametrize("options", [(), ("--output", "json")])
def test_output_that_cannot_be_written_is_an_error_without_traceback(
    query: MadeCheckpoint, options: tuple[str, ...]
) -> None:
    """Catches a traceback on a full disk, and an exit status that says all is well."""
    command = [sys.executable, "-m", "statestore.cli", "list", query.path, *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "Error: the output: No space left on device\n")


def test_ctrl_c_while_modules_are_imported_has_no_traceback() -> None:
    """Catches a traceback of an import, by Ctrl-C in the first moment of any command."""
    program = """
import os, signal, sys
from statestore.cli.__main__ import main

class PressesCtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "statestore.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, PressesCtrlC())
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", "\nAborted!\n")


@pytest.mark.parametrize(
    "words",
    [
        ["edit", "--where", "k = 1", "--where", "k = 2"],
        ["forget", "--where", "k = 1", "--where", "k = 2"],
        ["read", "--version=1", "--limit", "3", "--versions", "2"],
        ["rescale", "--num-partitions=2", "--num-partitions", "4"],
        ["doctor", "--backend", "heap", "--backend", "rocksdb"],
    ],
)
def test_option_that_is_given_twice_is_refused(query: MadeCheckpoint, words: list[str]) -> None:
    """Catches the first of two conditions that is left out unseen."""
    command, *options = words
    named = [] if command == "doctor" else [query.path]
    before = read_rows(query.path)

    text = run(command, *named, *options, exit_code=2)

    assert "is given twice" in text
    assert next(option for option in options if option.startswith("--")).partition("=")[0] in text
    assert read_rows(query.path) == before


def test_control_characters_of_a_checkpoint_do_not_reach_the_terminal(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a checkpoint of somebody else's that writes what it likes on a terminal."""
    hostile = tmp_path / "hostile\x1b[2J"
    shutil.copytree(query.path, hostile)
    run("savepoint", hostile, tmp_path / "below" / "one\x1b[2J")
    for file in (tmp_path / "below").rglob("metadata"):
        file.write_text("{")

    metadata = hostile / "state" / "0" / "_metadata" / "metadata"
    metadata.write_text(metadata.read_text().replace("stateStoreSave", "\\u001b]0;x\\u0007"))
    keys = tmp_path / "keys.csv"
    keys.write_text("key.k\n1\n")

    for words in (
        ["list", hostile],
        ["verify", hostile],
        ["list", tmp_path / "below"],
        ["rescale", hostile, "--num-partitions", 8],
        ["repair", hostile],
        ["forget", hostile, "--keys", keys, "--verify"],
    ):
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert "\x1b" not in result.output, words
    assert "\\x1b" in run("list", hostile)


def test_place_that_cannot_be_looked_at_is_an_error_of_this_package(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches an error of Python, which names no way out."""
    text = run("savepoint", query.path, tmp_path / ("n" * 300) / "saved", exit_code=1)

    assert "[storage]" in text
    assert "To fix:" in text
