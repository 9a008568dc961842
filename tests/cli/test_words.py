"""What commands say: nothing that a terminal obeys, JSON that everything reads, whole sentences."""

import json
import re
from inspect import cleandoc
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import statestore
from statestore import Checkpoint, StateStoreError
from statestore.checkpoint.lease import Holder, Lease
from statestore.cli.commands import cli
from statestore.cli.output import print_rows
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.ids import RandomIds
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from statestore.operations.upkeep.verification import Finding
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import make_query
from tests.seams import at


def run(*arguments):
    """A command's exit status and what it prints."""
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def made(tmp_path):
    """A checkpoint of two versions."""
    (tmp_path / "scratch").mkdir()
    checkpoint = MadeCheckpoint(str(tmp_path / "parent" / "query"), tmp_path / "scratch")
    for batch in range(2):
        checkpoint.run_batch({1: batch, 2: batch})
    return checkpoint


@pytest.fixture
def running(made):
    """The same while its query runs a batch."""
    Path(made.path, "offsets", "2").write_text(Path(made.path, "offsets", "1").read_text())
    holder = Holder(find_process(), application="app-1", run="run-1")
    root = f"{made.path}/state"
    lease = Lease(LocalFileIO(), root, RandomIds().new_id(), holder, 10_000, SystemClock())
    lease.take()
    yield made
    lease.drop()


def test_plan_of_a_rescale_is_shown_while_the_query_runs(running):
    """Catches a plan, which reads only, that wants the query stopped."""
    code, shown = run("rescale", running.path, "--num-partitions", "8")

    assert code == 0, shown
    assert "The query is running: stop it first." in shown
    plan = Checkpoint(running.path).rescale(3, dry_run=True)
    assert (plan.is_running, plan.batch) == (True, 2)
    with pytest.raises(StateStoreError, match="a query is writing the checkpoint"):
        at(running.path, clock=ManualClock()).rescale(3)


@pytest.mark.parametrize(
    ("operation", "arguments"), [("expire", [2]), ("compact", []), ("repair", [])]
)
def test_plans_of_upkeep_are_shown_while_the_query_runs(running, operation, arguments):
    """Catches a plan, which reads only, that wants the query stopped."""
    assert str(getattr(Checkpoint(running.path), operation)(*arguments, dry_run=True))


def test_batch_under_way_is_told_from_one_that_runs_again(running, tmp_path):
    """Catches a running batch that is said to run again."""
    assert "batch 2 is running" in run("list", running.path)[1]
    page = tmp_path / "page.html"
    run("report", running.path, "--to", page)
    assert re.search('data-live="state">running<', page.read_text())
    assert re.search('data-live="batch">2 for [0-9]', page.read_text())

    for lease in Path(running.path).rglob("query-*.json"):
        lease.unlink()
    assert "batch 2 is planned and not committed: it runs again" in run("list", running.path)[1]
    run("report", running.path, "--to", page)
    assert re.search('data-live="batch">2, runs again<', page.read_text())


def test_number_of_state_partitions_that_is_text_is_refused(made):
    """Catches a bare TypeError."""
    for wrong in ("8", 8.0, True, None):
        with pytest.raises(InvalidArgumentError, match="is not a whole number"):
            Checkpoint(made.path).rescale(wrong, dry_run=True)


def test_first_batch_that_is_not_committed_is_said_so(tmp_path):
    """Catches "ask for a version from 1 to the newest" where the newest is 0."""
    query = make_query(tmp_path / "query", num_batches=0)
    query.plan()

    checkpoint = Checkpoint(query.path)
    for ask in (
        lambda: checkpoint.verify(versions=[1]),
        lambda: checkpoint.savepoint(tmp_path / "savepoint"),
        lambda: checkpoint.branch(tmp_path / "branch"),
        checkpoint.repair,
    ):
        with pytest.raises(NotFoundError, match="no batch of the query is committed yet") as said:
            ask()
        assert "from 1 to the newest" not in str(said.value)


def test_query_that_waits_for_its_first_input_is_not_told_to_name_another_directory(tmp_path):
    """Catches "there is no checkpoint" of the directory that the query has just been given."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"0f0e0d0c-0b0a-4908-8706-050403020100"}')

    with pytest.raises(NotFoundError, match="has not begun its first batch yet") as said:
        Checkpoint(tmp_path).versions()

    assert "name the directory" not in str(said.value)


def test_verify_of_a_query_without_its_id_says_what_helps(made):
    """Catches the advice to compact, which brings no file of the query's back."""
    Path(made.path, "metadata").unlink()

    found = Checkpoint(made.path).verify()

    assert [finding.is_recoverable for finding in found.findings] == [True]
    assert "from a copy" in found.to_fix
    assert "compact" not in found.to_fix


def test_state_without_metadata_of_its_operators_is_not_shown_as_none(made):
    """Catches a state of many rows of which inspect prints nothing, and exits 0."""
    for metadata in Path(made.path).glob("state/*/_metadata/**/*"):
        if metadata.is_file():
            metadata.unlink()

    code, shown = run("inspect", made.path)

    assert code == 1
    assert "metadata" in shown


def test_objects_are_short(made):
    """Catches a notebook's cell of 17 kB."""
    checkpoint = Checkpoint(made.path)

    assert len(repr(checkpoint.info)) < 300
    assert len(repr(checkpoint.report())) < 300
    assert {"Any", "TYPE_CHECKING", "annotations", "import_module"}.isdisjoint(dir(statestore))
    assert {*statestore.__all__} <= {*dir(statestore)}


def test_finding_of_no_store_does_not_name_none():
    """Catches "store None"."""
    assert Finding(3, None, "corruption", "x").describe() == "version 3, all stores: x"


def test_operators_of_a_restore_are_told_in_words(made, tmp_path):
    """Catches "operator 0         0"."""
    Checkpoint(made.path).savepoint(tmp_path / "savepoint")
    shown = run("restore", tmp_path / "savepoint", tmp_path / "new", "--dry-run")[1]
    assert "operator 0         keeps its number" in shown


def test_help_tells_each_command_in_whole_sentences():
    """Catches one-liners that are cut, and a provider that is there in plural only."""
    shown = run("--help")[1]
    assert "..." not in shown.partition("Commands")[2]
    assert "rescale    Change the number of state partitions of a query that is stopped." in shown
    assert "[spark-hdfs|spark-rocksdb]" in run("convert", "--help")[1]
    assert "statestore restore CHECKPOINT NEW --backend rocksdb" in " ".join(
        run("convert", "a", "b", "--provider", "rocksdb")[1].split()
    )
    for sql in ("SELECT 1", "select * FROM state WHERE value.count = 3"):
        assert "takes NAME=SELECT" in run("transform", "a", "b", "--sql", sql)[1]


def test_help_has_no_gaps_within_a_sentence():
    """Catches a docstring that was wrapped with the spaces of its old margin in it."""
    lines = [line for one in cli.commands.values() for line in cleandoc(one.help).splitlines()]
    assert [line for line in lines if re.search(r"\w {2,}\w", line)] == []


def test_options_are_explained_without_a_network():
    """Catches a document that the wheel lacks."""
    code, shown = run("explain", "options")
    assert code == 0
    assert "snapshot.maxChainLength" in shown


def rows_of(capsys, output, **columns):
    print_rows(iter([pa.record_batch(columns)]), 0, output)
    return capsys.readouterr().out


def test_rows_cannot_command_the_terminal(capsys):
    """Catches a string of a user's that clears the screen of who reads the state."""
    shown = rows_of(capsys, "text", **{"k\x1b[2J": pa.array(["a\x1b]0;x\x07", "b\x9b1m\u202e"])})
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*shown}
    assert "a\\x1b]0;x\\x07" in shown


def test_binary_cells_are_hex(capsys):
    r"""Catches b'\x00' beside the hex of nested values."""
    columns = {"flat": pa.array([b"\x00\xff"]), "nested": pa.array([{"x": b"\x00\xff"}])}
    assert rows_of(capsys, "text", **columns).split()[2:] == ["00ff", '{"x":', '"00ff"}']


@pytest.mark.parametrize(
    ("number", "text"), [("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")]
)
def test_json_has_no_number_that_json_has_not(capsys, number, text):
    """Catches NaN in a JSON object, which jq and every browser refuse."""

    def refuse(name):
        raise ValueError(name)

    columns = {"flat": pa.array([float(number)]), "nested": pa.array([{"x": [float(number)]}])}
    shown = json.loads(rows_of(capsys, "json", **columns), parse_constant=refuse)
    assert shown["rows"] == [{"flat": text, "nested": {"x": [text]}}]
    assert json.loads(
        rows_of(capsys, "text", nested=columns["nested"]).split(maxsplit=1)[1],
        parse_constant=refuse,
    ) == {"x": [text]}


def test_list_tells_the_query_and_how_far_it_has_read(running):
    """Catches a list that leaves nobody knowing whose state it is, or how far behind."""
    offsets = Path(running.path, "offsets", "1")
    query = json.loads(Path(running.path, "metadata").read_text())["id"]

    def tell(watermark, source):
        version, metadata, *_ = offsets.read_text().splitlines()
        fields = {**json.loads(metadata), "batchTimestampMs": 90_000_000}
        fields["batchWatermarkMs"] = watermark
        offsets.write_text("\n".join([version, json.dumps(fields), source, "-"]))
        return run("list", running.path)

    def commit_watermark(watermark):
        commit = Path(running.path, "commits", "1")
        version, fields = commit.read_text().splitlines()
        fields = {**json.loads(fields), "nextBatchWatermarkMs": watermark}
        commit.write_text(f"{version}\n{json.dumps(fields)}")

    commit_watermark(0)
    code, shown = tell(3_600_000, '{"edits":{"0":7}}')
    assert code == 0, shown
    assert f"query {query}, running\n" in shown
    days = Checkpoint(running.path).info.lag_ms // 86_400_000
    assert f"watermark 1970-01-01 01:00:00Z, {days} d" in shown
    assert " behind the clock\n" in shown
    assert 'source 0: {"edits":{"0":7}}\nsource 1: -\n' in shown
    assert "watermark" not in tell(0, "-")[1]
    commit_watermark(7_200_000)
    assert "watermark 1970-01-01 02:00:00Z, " in tell(3_600_000, "-")[1]
    commit_watermark(0)
    assert "\\x1b]" in tell(0, "\x1b]0;x")[1]
    assert len(max(tell(0, "9" * 5000)[1].splitlines(), key=len)) < 250

    (lease,) = Path(running.path).rglob("query-*.json")
    said = {"query": {"name": "clicks \x1b]0;x"}}
    lease.write_text(json.dumps(json.loads(lease.read_text()) | said))
    assert f"query clicks \\x1b]0;x {query}, running\n" in tell(0, "-")[1]

    position = Checkpoint(running.path).info.position
    assert (position.batch, position.planned_ms, position.watermark_ms) == (1, 90_000_000, None)
    for hostile in (10**18, -1, 1.5, "x"):
        assert tell(hostile, "-")[0] == 0
        assert Checkpoint(running.path).info.position is None
