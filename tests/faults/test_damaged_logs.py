"""Damage to Spark's own files of a checkpoint: named, found, and gone back over."""

from contextlib import suppress
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.core.errors import CorruptionError, StateStoreError
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS
from tests.damaged import make_small, run
from tests.hostile import edit_json

NO_TEXT = 0xEC
"""Begins a letter of three bytes in UTF-8, so that it is none before a letter of one."""
LOGS = ("offsets/2", "commits/2")
FILES = (*LOGS, "state/0/_metadata/metadata", "metadata")
"""The last is the query's, which no row depends on."""


def make(tmp_path, checkpoint_format=2, num_batches=3):
    return make_small(tmp_path, num_batches, num_partitions=1, checkpoint_format=checkpoint_format)


def operations(made, tmp_path):
    """What reads the logs and the metadata, by its name."""
    path, new = made.path, str(tmp_path / "new")
    return {
        "list": lambda: (Checkpoint(path).info, Checkpoint(path).versions()),
        "verify": lambda: Checkpoint(path).verify(),
        "read": lambda: Checkpoint(path).rows().read(),
        "savepoint": lambda: Checkpoint(path).savepoint(new),
        "branch": lambda: Checkpoint(path).branch(new, dry_run=True),
        "rescale": lambda: Checkpoint(path).rescale(2, dry_run=True),
        "repair": lambda: Checkpoint(path).repair(dry_run=True),
    }


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_byte_that_is_no_text_is_named_with_its_file(tmp_path, checkpoint_format, name):
    """Catches an error of Python's that says neither what is damaged nor where it is."""
    made = make(tmp_path, checkpoint_format)
    path = Path(made.path, name)
    data = path.read_bytes()
    path.write_bytes(bytes([*data[:11], NO_TEXT, *data[12:]]))
    answers = {}
    for operation, call in operations(made, tmp_path).items():
        try:
            answers[operation] = call()
        except StateStoreError as error:
            answers[operation] = error

    for operation in ("savepoint", "branch", "rescale"):
        assert answers[operation].kind == "corruption"
        assert name in str(answers[operation])
        assert "offset=11" in str(answers[operation])
    if name in LOGS:
        (finding,) = answers["verify"].findings
        assert (finding.kind, finding.version, finding.is_recoverable) == ("corruption", 3, False)
        assert answers["list"][1][0].kind == "damaged"
        assert name in answers["list"][1][0].problem
        assert answers["repair"].version == 2
    else:
        assert name in str(answers["repair"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.few(2)
def test_any_byte_may_be_damaged(tmp_path, name):
    """Catches an error that is not ours, and damage that repair does not go back over."""
    made = make(tmp_path)
    rows = read_checkpoint(made.path)
    path = Path(made.path, name)
    data = path.read_bytes()
    for offset in range(len(data)):
        byte = (NO_TEXT, data[offset] ^ 1, data[offset] ^ 0x10)[offset % 3]
        path.write_bytes(bytes([*data[:offset], byte, *data[offset + 1 :]]))
        for call in (
            lambda: Checkpoint(made.path).info,
            lambda: Checkpoint(made.path).rescale(2, dry_run=True),
            lambda: Checkpoint(made.path).branch(tmp_path / "new", dry_run=True),
        ):
            with suppress(StateStoreError):
                call()
        try:
            verified = Checkpoint(made.path).verify()
            plan = Checkpoint(made.path).repair(dry_run=True)
        except StateStoreError as error:
            assert name not in LOGS
            problem = str(error)
            assert name in problem
            continue
        if 3 in verified.versions and 3 not in {one.version for one in verified.findings}:
            assert read_checkpoint(made.path) == rows
            assert not plan.is_needed
        else:
            assert (plan.version, plan.is_needed) == (2, True)


NUMBER = '"spark.sql.shuffle.partitions":"1"'
IDS = '"stateUniqueIds":{"0":'


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("offsets/2", "v1", "vq"),
        ("offsets/2", NUMBER, '"spark.sql.shuffle.partitions":1'),
        ("offsets/2", '"true"', "true"),
        ("offsets/2", '"io.statestore.FileSystemStateStoreProvider"', "[]"),
        ("offsets/2", '"true"', r'"\ud800"'),
        ("commits/2", "v2", "v"),
        ("commits/2", IDS, f'"stateUniqueIds":{{"{"9" * 5000}":'),
        ("commits/2", '"]]}', r'\u0000"]]}'),
        ("commits/2", '"]]}', '/../x"]]}'),
        ("commits/2", IDS, '"stateUniqueIds":"","0":{"0":'),
        ("commits/2", IDS, '"stateUnkqueIds":{"0":'),
        ("state/0/_metadata/metadata", "v1\n", ""),
        ("state/0/_metadata/metadata", '"default"', r'"\ud800"'),
        ("state/0/_metadata/metadata", '"default"', '"defaelt"'),
        ("metadata", '"0f0e', '"0f,e'),
    ],
)  # fmt: skip
def test_field_that_spark_does_not_write_is_named_with_its_file(tmp_path, name, old, new):
    """Catches AttributeError and ValueError out of a log that is JSON, and what Spark refuses."""
    made = make(tmp_path)
    path = Path(made.path, name)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))

    (finding,) = Checkpoint(made.path).verify().findings
    assert name in finding.problem
    for operation, call in operations(made, tmp_path).items():
        if operation in ("savepoint", "branch", "rescale"):
            with pytest.raises(StateStoreError, match=name):
                call()
        else:
            with suppress(StateStoreError):
                call()


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_store_that_the_metadata_no_longer_names_is_missed(tmp_path, checkpoint_format):
    """Catches a savepoint without a store of a join, whose metadata is JSON all the same."""
    made = MadeCheckpoint(
        str(tmp_path / "join"), tmp_path, 1, "filesystem", checkpoint_format, OPERATORS[1:2]
    )
    made.run_batch({1: 1, 2: 2})
    edit_json(
        Path(made.path, "state/0/_metadata/metadata"), lambda fields: fields["stateStoreInfo"].pop()
    )

    (finding,) = Checkpoint(made.path).verify().findings
    assert "state/0/_metadata/metadata" in finding.problem
    assert "expected='left-keyWithIndexToValue'" in finding.problem
    with pytest.raises(CorruptionError, match="does not name all of its stores"):
        Checkpoint(made.path).savepoint(tmp_path / "new")


def test_rescale_to_more_state_partitions_than_there_can_be_is_named(tmp_path):
    """Catches an undo that lists as many stores as a damaged number says."""
    made = make(tmp_path)
    Checkpoint(made.path).rescale(2)
    path = Path(made.path, "offsets/3")
    path.write_text(path.read_text().replace('partitions":"2"', 'partitions":"2222222"'))

    with pytest.raises(CorruptionError, match="offsets/3"):
        Checkpoint(made.path).undo_rescale(dry_run=True)


def test_rescale_whose_entry_is_that_of_the_batch_before_is_named(tmp_path):
    """Catches "there is no rescale to undo" where a damaged entry hides it."""
    made = make(tmp_path)
    Checkpoint(made.path).rescale(2)
    Path(made.path, "offsets/3").write_bytes(Path(made.path, "offsets/2").read_bytes())

    with pytest.raises(CorruptionError, match="offsets/3"):
        Checkpoint(made.path).undo_rescale(dry_run=True)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_repair_goes_back_over_a_damaged_entry(tmp_path, checkpoint_format, name):
    """Catches a repair that needs the entry it is to take out, or does not keep it."""
    made = make(tmp_path, checkpoint_format, num_batches=2)
    rows = read_checkpoint(made.path)
    made.run_batch({1: 7})
    path = Path(made.path, name)
    damaged = path.read_bytes()[:20] + bytes([NO_TEXT])
    path.write_bytes(damaged)

    plan = Checkpoint(made.path).repair()

    assert (plan.newest_version, plan.version) == (3, 2)
    again = (2, ()) if name == "commits/2" else (None, (2,))
    assert (plan.replayed_batch, plan.replanned_batches) == again
    assert Path(plan.aside, name).read_bytes() == damaged
    assert Checkpoint(made.path).verify(versions="all", deep=True).findings == ()
    assert read_checkpoint(made.path) == rows


def test_entry_of_the_batch_under_way_is_found_and_planned_anew(tmp_path):
    """Catches "all is well" for a checkpoint that Spark cannot start from."""
    made = make(tmp_path)
    rows = read_checkpoint(made.path)
    under_way = Path(made.path, "offsets/3")
    under_way.write_bytes(b"v1\n{\xec")

    code, printed = run("verify", made.path)

    assert (code, printed["ok"]) == (1, False)
    assert "offsets/3" in printed["findings"][0]["problem"]
    plan = Checkpoint(made.path).repair()
    assert (plan.version, plan.replayed_batch, plan.replanned_batches) == (3, None, (3,))
    assert not under_way.exists()
    assert Checkpoint(made.path).verify().findings == ()
    assert read_checkpoint(made.path) == rows


@pytest.mark.parametrize("finished", [False, True])
def test_repair_takes_back_a_rescale_whose_entry_is_damaged(tmp_path, finished):
    """Catches operator metadata that names the state partitions of a rescale taken back."""
    made = make(tmp_path)
    Checkpoint(made.path).rescale(2)
    Path(made.path, "offsets/3").write_bytes(b"v1\n\xec")
    if not finished:
        Path(made.path, "commits/3").unlink()

    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.replayed_batch) == (3, None)
    assert Checkpoint(made.path).info.operators[0].stores[0].num_partitions == 1
    assert Checkpoint(made.path).verify(deep=True).findings == ()
