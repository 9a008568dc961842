"""Checkpoints that were copied without something: nothing takes what is left for the whole."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.cli.commands import cli
from statestore.core.errors import CorruptionError, NotFoundError, StateStoreError
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS
from tests.damaged import make_small
from tests.rescaled import edit_conf


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def made(request, tmp_path):
    """A checkpoint of two batches in two state partitions, with an aggregation without a key."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    checkpoint = MadeCheckpoint(
        str(tmp_path / "checkpoint"), scratch, num_partitions=2, checkpoint_format=request.param
    )
    checkpoint.run_batch(dict.fromkeys(range(20), 1))
    checkpoint.run_batch(dict.fromkeys(range(10), 2))
    return checkpoint


def lose(made, below):
    """Lose a directory below `state`; return the checkpoint's path."""
    shutil.rmtree(Path(made.path) / "state" / below)
    return made.path


def refusals(path, tmp_path):
    """What everything that works on the whole state answers."""
    branch, savepoint = str(tmp_path / "branch"), str(tmp_path / "savepoint")
    answers = []
    for operation in (
        lambda: Checkpoint(path).branch(branch, dry_run=True),
        lambda: Checkpoint(path).savepoint(savepoint, form="native"),
        lambda: Checkpoint(path).savepoint(savepoint),
        lambda: Checkpoint(path).rescale(4, dry_run=True),
        lambda: Checkpoint(path).repair(dry_run=True),
    ):
        with pytest.raises(StateStoreError) as raised:
            operation()
        answers.append(raised.value)
    return answers


@pytest.mark.parametrize("operator", [0, 1])
def test_lost_state_partition_is_no_operator_without_a_key(made, tmp_path, operator):
    """Catches half of a state that is verified, saved and branched as if it were all of it."""
    path = lose(made, f"{operator}/1")

    found = Checkpoint(path).verify(versions=[1, 2], deep=True)

    assert {finding.version for finding in found.findings} == {1, 2}
    assert {finding.kind for finding in found.findings} == {"version-not-found"}
    assert all(isinstance(answer, NotFoundError) for answer in refusals(path, tmp_path))
    with pytest.raises(NotFoundError):
        read_checkpoint(path)


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_savepoint_that_lost_a_state_partition_is_not_restored(made, tmp_path, form):
    """Catches a savepoint that is restored without the rows of a state partition."""
    savepoint = tmp_path / "savepoint"
    Checkpoint(made.path).savepoint(savepoint, form=form)
    shutil.rmtree(savepoint / "state" / "0" / "1")

    with pytest.raises(NotFoundError, match="the version is not in the store directory"):
        Savepoint(savepoint).restore(tmp_path / "new", num_partitions=4, dry_run=True)


@pytest.mark.parametrize("operator", [0, 1, 2])
def test_operator_without_metadata_is_not_left_out(made, tmp_path, operator):
    """Catches an operator, or all of them, that nobody sees because Spark's metadata is lost."""
    path = lose(made, f"{operator}/_metadata")

    found = Checkpoint(path).verify(deep=True)

    assert [finding.kind for finding in found.findings] == ["not-found"]
    for answer in refusals(path, tmp_path):
        assert "an operator has state and no metadata" in str(answer)
        assert f"state/{operator}/_metadata" in str(answer)


@pytest.mark.parametrize("made", [2], indirect=True)
def test_operator_is_not_left_out_when_its_state_is_lost_as_well(made, tmp_path):
    """Catches what only the commit log still knows of; in format v1 it names no operator."""
    path = lose(made, "1")

    for answer in refusals(path, tmp_path):
        assert "an operator has state and no metadata" in str(answer)
        assert f"named_by='{path}/commits/1'" in str(answer)


def test_state_elsewhere_without_metadata_is_not_left_out(made, tmp_path):
    """Catches a look into the checkpoint directory only, where the state is on another storage."""
    elsewhere = tmp_path / "elsewhere"
    placement = {"format_version": 1, "storage": f"file:{elsewhere}", "id": "0" * 32}
    (elsewhere / ("0" * 32)).parent.mkdir()
    shutil.move(Path(made.path) / "state", elsewhere / ("0" * 32))
    Path(made.path, "statestore.json").write_text(json.dumps(placement))

    found = Checkpoint(made.path).verify()

    assert [finding.kind for finding in found.findings] == ["not-found"]


def test_restored_operators_wait_for_the_metadata_of_the_first_batch(made, tmp_path):
    """Catches a checkpoint that is taken for empty, or cannot be listed, before its first batch."""
    savepoint, path = str(tmp_path / "savepoint"), str(tmp_path / "new")
    Checkpoint(made.path).savepoint(savepoint)
    Savepoint(savepoint).restore(path, add_operators={3: "dedupe"})

    (version,) = Checkpoint(path).versions(limit=1)

    assert version.kind == "unreadable"
    assert "run a batch of the query" in version.problem
    assert "run a batch of the query" in str(refusals(path, tmp_path / "more")[0])
    again = MadeCheckpoint(path, tmp_path / "scratch", num_partitions=2)
    for operator, (name, stores) in enumerate([*OPERATORS, ("dedupe", OPERATORS[0][1])]):
        again.describe(operator, name, stores, 2)
    found = Checkpoint(path).verify(deep=True)
    assert (found.findings, found.num_rows) == ((), sum(map(len, made.expected().values())))
    assert Checkpoint(path).rescale(4, dry_run=True).stores[-1].way == "key-groups"


LOSSES = {
    "all state": (["state"], "state/0/_metadata/metadata"),
    "every operator": (["state/0", "state/1"], "state/0/_metadata/metadata"),
    "the first operator": (["state/0"], "state/0/_metadata/metadata"),
    "the state of an operator": (["state/1/0", "state/1/1"], "state/1/0"),
    "a store of a join": (
        ["state/0/0/left-keyToNumValues", "state/0/1/left-keyToNumValues"],
        "state/0/0/left-keyToNumValues",
    ),
    "the commit log": (["commits"], "commits/2"),
    "newest commits": (["commits/1", "commits/2"], "commits/2"),
    "the offset log's newest": (["offsets/2", "offsets/3"], "offsets/2"),
}


def make_two(tmp_path, checkpoint_format, num_batches):
    """A checkpoint of a join and an aggregation, in two state partitions."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(
        str(tmp_path / "checkpoint"), tmp_path / "scratch", num_partitions=2,
        checkpoint_format=checkpoint_format, operators=(OPERATORS[1], OPERATORS[0]),
    )  # fmt: skip
    for _ in range(num_batches):
        made.run_batch(dict.fromkeys(range(20), 1))
    return made


def run_json(*arguments):
    """A command's exit status and what it printed."""
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_what_was_lost_is_never_taken_for_nothing(tmp_path, checkpoint_format, loss):
    """Catches a half-copied backup that is verified, saved or branched as all there is."""
    names, missing = LOSSES[loss]
    made = make_two(tmp_path, checkpoint_format, num_batches=3)
    is_of_logs = not names[0].startswith("state")
    if is_of_logs:
        offsets = Path(made.path, "offsets")
        shutil.copy(offsets / "2", offsets / "3")
    for name in names:
        lost = Path(made.path, name)
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()

    status, output = run_json("verify", made.path, "--version", "all", "--deep")

    assert status == 1
    assert missing in output.replace("\n", "")
    found = Checkpoint(made.path).verify()
    assert found.findings
    assert {finding.version for finding in found.findings} == {3}
    assert Checkpoint(made.path).versions()[0].kind in ("damaged", "unreadable")
    branch, savepoint = str(tmp_path / "branch"), str(tmp_path / "savepoint")
    for operation in (
        lambda: Checkpoint(made.path).branch(branch, dry_run=True),
        lambda: Checkpoint(made.path).savepoint(savepoint, form="native"),
        lambda: Checkpoint(made.path).savepoint(savepoint),
        lambda: Checkpoint(made.path).rescale(4, dry_run=True),
        lambda: Checkpoint(made.path).expire(2),
    ):
        with pytest.raises(NotFoundError) as raised:
            operation()
        assert missing in str(raised.value)
    assert not Path(savepoint).exists()
    assert not Path(branch).exists()


@pytest.mark.parametrize("loss", ["all state", "the first operator", "the commit log"])
def test_repair_says_what_is_lost_for_good(tmp_path, loss):
    """Catches a repair that finds nothing to do where no version is whole."""
    names, missing = LOSSES[loss]
    made = make_two(tmp_path, 1, num_batches=3)
    for name in names:
        shutil.rmtree(Path(made.path, name))

    status, output = run_json("repair", made.path, "--yes")

    assert status == 1
    assert "no version of the checkpoint can be read" in output
    assert missing.replace("2", "1") in output or missing in output


def is_started(path):
    """Whether Spark starts the query: what it reads of its logs and of a file source's then."""
    planned, committed, noted = (
        sorted(int(file.name) for file in Path(path, log).glob("[0-9]*"))
        for log in ("offsets", "commits", "sources/0")
    )
    newest = planned[-1]
    log_offset = json.loads((Path(path) / "offsets" / str(newest)).read_text().split("\n")[2])
    return (
        (newest == 0 or newest - 1 in planned)
        and committed[-1:] in ([newest], [newest - 1] if newest else [])
        and noted == list(range(len(noted)))
        and len(noted) > log_offset["logOffset"]
    )


@pytest.mark.parametrize(("num_batches", "num_planned"), [(2, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_any_file_of_logs_that_is_lost_is_made_up_for_or_has_a_fix(
    tmp_path, checkpoint_format, num_batches, num_planned
):
    """Catches a checkpoint that is called well, or repaired, and whose query does not start."""
    made = make_small(tmp_path, num_batches, num_partitions=1, checkpoint_format=checkpoint_format)
    for _ in range(num_planned):
        made.plan()
    whole = Path(made.path)
    logs = [file for log in ("offsets", "commits", "sources/0") for file in (whole / log).iterdir()]
    assert len(logs) == 3 * num_batches + 2 * num_planned
    num_repaired = 0
    for number, file in enumerate(logs):
        path = tmp_path / f"{number}"
        shutil.copytree(whole, path)
        lost = path / file.relative_to(whole)
        lost.unlink()
        assert is_started(path) or not Checkpoint(path).verify().ok, lost

        status, output = run_json("repair", str(path), "--yes")
        output = " ".join(output.split())
        if status:
            assert "from a copy" in output or "put the file back" in output
            assert "restore a savepoint" in output
            shutil.copy(file, lost)
        num_repaired += not status and "nothing to repair" not in output

        assert Checkpoint(path).verify(deep=True).ok, lost
        assert is_started(path), lost
        assert not Checkpoint(path).repair().is_needed, lost
        if not num_planned:
            Checkpoint(path).branch(tmp_path / "branch", dry_run=True)
    assert num_repaired > 1


def test_log_of_a_file_source_with_a_gap_is_cut_off_and_repaired(tmp_path):
    """Catches whole state that is given up where its page has a way to keep it."""
    made = make_small(tmp_path, 4)
    log = Path(made.path, "sources", "0")
    (log / "2").unlink()
    with pytest.raises(NotFoundError, match="no version of the checkpoint can be read"):
        Checkpoint(made.path).repair()

    (log / "3").unlink()
    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.replayed_batch, plan.replanned_batches) == (2, None, (2, 3))
    assert is_started(made.path)
    assert Checkpoint(made.path).verify(deep=True).ok
    page = run_json("explain", "file-not-found")[1]
    assert "move its later entries out of the checkpoint" in page


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_repair_goes_back_over_commits_that_were_lost(tmp_path, checkpoint_format):
    """Catches a query that goes on from a version no entry of the commit log speaks of."""
    made = make_two(tmp_path, checkpoint_format, num_batches=4)
    for batch in (1, 2):
        Path(made.path, "commits", str(batch)).unlink()
    Path(made.path, "commits", "3").unlink()

    plan = Checkpoint(made.path).repair()

    assert (plan.newest_version, plan.version, plan.replayed_batch) == (3, 1, 1)
    assert Checkpoint(made.path).verify(versions="all", deep=True).findings == ()
    assert Checkpoint(made.path).info.newest_version == 1


def test_last_operator_is_missed_in_format_v2(tmp_path):
    """Catches what only the commit log knows of, where every directory of it is lost."""
    made = make_two(tmp_path, 2, num_batches=2)
    shutil.rmtree(Path(made.path, "state", "1"))

    found = Checkpoint(made.path).verify()

    (finding,) = found.findings
    assert "state/1/_metadata/metadata" in finding.problem
    with pytest.raises(NotFoundError, match="state/1/_metadata/metadata"):
        Checkpoint(made.path).savepoint(tmp_path / "savepoint")


@pytest.mark.parametrize("num_partitions", [1, 4])
def test_other_number_of_state_partitions_is_no_half_state(tmp_path, num_partitions):
    """Catches half of the state partitions taken for all, by what the offset log says."""
    made = make_two(tmp_path, 1, num_batches=2)
    edit_conf(made, **{NUM_PARTITIONS_KEY: str(num_partitions)})

    found = Checkpoint(made.path).verify()

    assert len(found.findings) == 1
    with pytest.raises((CorruptionError, NotFoundError)):
        Checkpoint(made.path).savepoint(tmp_path / "savepoint")


def test_query_without_stateful_operators_is_well_when_its_log_says_so(tmp_path):
    """Catches a finding for state that a query never had."""
    made = make_two(tmp_path, 2, num_batches=1)
    shutil.rmtree(Path(made.path, "state"))
    Path(made.path, "commits", "0").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')

    assert Checkpoint(made.path).verify(versions="all", deep=True).findings == ()
    taken = Checkpoint(made.path).savepoint(tmp_path / "savepoint").made.info
    assert (taken.num_stores, taken.num_rows) == (0, 0)
    assert Checkpoint(made.path).versions()[0].kind == "full"


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_query_before_its_first_commit_is_well(tmp_path, checkpoint_format):
    """Catches a finding for a batch that is still running, state files and all."""
    made = make_two(tmp_path, checkpoint_format, num_batches=1)
    shutil.rmtree(Path(made.path, "commits"))

    found = Checkpoint(made.path).verify(versions="all")

    assert (found.versions, found.findings) == ((), ())
    assert Checkpoint(made.path).info.uncommitted_batch == 0
