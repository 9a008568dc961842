"""Undo of a rescale: everything goes back, or nothing is touched."""

import random
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, OffsetsEntry
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.providers import PROVIDER_KEY
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.testing.checkpoints import read_checkpoint
from tests.fault_io import Fault, FaultFileIO
from tests.rescaled import KEYED, MUTATIONS, edit_conf, end_process, listing, make
from tests.seams import at, place_of


@pytest.mark.parametrize(("checkpoint_format", "num_partitions"), [(1, 8), (2, 2), (2, 6)])
def test_undo_takes_everything_back(tmp_path, checkpoint_format, num_partitions):
    """Catches a file, an entry or a number that an undo leaves behind."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    before = listing(made.path)
    Checkpoint(made.path).rescale(num_partitions)

    plan = Checkpoint(made.path).undo_rescale(dry_run=True)
    assert (plan.batch, plan.was_committed, plan.num_partitions) == (3, True, 4)
    Checkpoint(made.path).undo_rescale()

    assert listing(made.path) == before
    Checkpoint(made.path).rescale(num_partitions)
    made.run_batch({1: 2})
    assert read_checkpoint(made.path) == made.expected()
    with pytest.raises(InvalidArgumentError, match="no rescale to undo"):
        Checkpoint(made.path).undo_rescale()


class LastReplyLost(LocalFileIO):
    """A disk of which an undo does not hear that its last change happened."""

    def delete(self, path):
        """See FileIO."""
        super().delete(path)
        if "/offsets/" in path and not path.endswith(".crc"):
            raise StorageError("reply lost", to_fix="try again")


@pytest.mark.parametrize("rescales", [(8,), (8, 16)])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_undo_that_ended_at_its_last_step_is_completed(tmp_path, rescales, checkpoint_format):
    """Catches a repeated undo that takes back the rescale before, too, or finds none."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    for num_partitions in rescales:
        before = listing(made.path)
        Checkpoint(made.path).rescale(num_partitions)
    with pytest.raises(StorageError):
        at(made.path, io=LastReplyLost()).undo_rescale()
    end_process(made.path)
    assert listing(made.path) == before

    plan = Checkpoint(made.path).undo_rescale(dry_run=True)
    assert (plan.batch, plan.stores, plan.changes) == (None, (), ())
    assert "taken back before" in str(plan)
    Checkpoint(made.path).undo_rescale()

    assert listing(made.path) == before
    history = Checkpoint(made.path).history()
    assert [entry.status for entry in history] == ["done"] * (len(rescales) + 1)
    made.run_batch({1: 2})
    assert read_checkpoint(made.path) == made.expected()
    with pytest.raises(InvalidArgumentError, match="no rescale to undo"):
        Checkpoint(made.path).undo_rescale()


class NoPlan(LocalFileIO):
    """A disk on which a rescale ends before it plans its batch."""

    def write(self, path, *data, **how):
        """See FileIO."""
        if "/offsets/" in path:
            raise StorageError("the disk is gone", to_fix="try again")
        return super().write(path, *data, **how)


@pytest.mark.parametrize("num_partitions", [2, 16])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_undo_of_a_rescale_that_planned_no_batch_leaves_the_one_before(
    tmp_path, num_partitions, checkpoint_format
):
    """Catches a finished rescale taken back in place of the newest, which did not end."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    Checkpoint(made.path).rescale(8)
    before = listing(made.path)
    with pytest.raises(StorageError):
        at(made.path, io=NoPlan()).rescale(num_partitions)
    end_process(made.path)
    assert listing(made.path) != before

    plan = Checkpoint(made.path).undo_rescale(dry_run=True)
    assert (plan.batch, plan.num_partitions) == (None, 8)
    Checkpoint(made.path).undo_rescale()

    assert listing(made.path) == before
    made.run_batch({1: 2})
    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("happens", [False, True])
def test_undo_takes_back_the_second_rescale_wherever_it_ended(tmp_path, happens):
    """Catches a finished rescale taken back, or state left, for a step at which a later one ends.

    A reference that is alone in a new state partition stays: nothing reads it.
    """
    every, had_ended = 40, False
    for index in count(random.randrange(every), every):
        folder = tmp_path / str(index)
        folder.mkdir()
        made = make(folder, checkpoint_format=random.choice([1, 2]))
        Checkpoint(made.path).rescale(8)
        before = listing(made.path)
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(index, happens=happens, calls=MUTATIONS))
        with suppress(StorageError):
            at(made.path, io=io).rescale(16)
            had_ended = not io.has_failed
        end_process(made.path)

        if listing(made.path) != before:  # else it ended before its first file
            Checkpoint(made.path).undo_rescale()

        after = listing(made.path)
        left = after.keys() - before.keys()
        assert before.items() <= after.items(), f"index={index}"
        assert all(int(name.split("/")[2]) >= 8 for name in left if name.endswith(".ref")), left
        assert all(name.endswith(".ref") for name in left), f"index={index}, left={left}"
        Checkpoint(made.path).rescale(16)
        made.run_batch({1: 2})
        assert read_checkpoint(made.path) == made.expected()
        if had_ended:
            break


def to_other_provider(made):
    """What a repartition of Spark's own is, on a checkpoint of its own provider."""
    edit_conf(made, **{PROVIDER_KEY: "org.apache.spark.Other"})


def to_heap(made):
    """State in the memory of a driver that is not here."""
    edit_conf(made, **{PROVIDER_KEY: "io.statestore.HeapStateStoreProvider"})


def to_converted(made):
    """What a conversion made of a checkpoint that was rescaled: full states of one version."""
    for file in Path(made.path, "state").rglob("*"):
        if file.suffix == ".ref" or file.name.startswith(("1.", "2.", "3.")):
            file.unlink()


def to_lost(made):
    """A copy without a file that only the state before the rescale is made of."""
    Path(made.path, "state/0/2/2.delta.arrows").unlink()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (to_other_provider, IncompatibleError, "another state store provider"),
        (to_heap, NotFoundError, "memory of the query's driver"),
        (to_converted, InvalidArgumentError, "no rescale to undo: its newest state was not made"),
        (to_lost, InvalidArgumentError, r"no rescale to undo: the state before.*2\.delta\.arrows"),
    ],
)
def test_undo_that_cannot_be_done_deletes_nothing(tmp_path, change, error, match):
    """Catches an undo that finds out half way, or that deletes the only state there is."""
    made = make(tmp_path, operators=KEYED)
    Checkpoint(made.path).rescale(8)
    change(made)
    before = listing(made.path)

    for operation in (partial(Checkpoint.undo_rescale, dry_run=True), Checkpoint.undo_rescale):
        with pytest.raises(error, match=match):
            operation(Checkpoint(made.path))

    assert listing(made.path) == before


def test_begun_rescale_of_damaged_state_has_a_way_out(tmp_path):
    """Catches an undo that says rescale, and a rescale that says undo."""
    made = make(tmp_path, operators=KEYED)
    Checkpoint(made.path).rescale(8)
    Path(made.path, "commits", "3").unlink()
    for file in Path(made.path, "state/0").glob("*/3.delta.arrows"):
        file.unlink()

    with pytest.raises(
        InvalidArgumentError, match=r"the state before.*statestore repair"
    ) as raised:
        Checkpoint(made.path).undo_rescale()
    assert "rescale to the former number" not in str(raised.value)
    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.undone_rescales) == (2, (3,))
    assert Checkpoint(made.path).verify(deep=True).ok


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_undo_after_a_repair_that_left_later_files(tmp_path, checkpoint_format):
    """Catches an undo that takes files which no log names for a batch that has run."""
    made = make(tmp_path, operators=KEYED, checkpoint_format=checkpoint_format)
    expected, numbers = made.expected(), dict(made.numbers)
    Checkpoint(made.path).rescale(8)
    made.run_batch({1: 2, 70: 1})
    for file in Path(made.path, "state/0").glob("*/4*.delta.arrows"):
        file.write_bytes(file.read_bytes()[:-1])
    assert Checkpoint(made.path).repair().version == 3

    assert Checkpoint(made.path).undo_rescale(dry_run=True).was_committed is False
    Checkpoint(made.path).undo_rescale()

    assert read_checkpoint(made.path) == expected
    made.numbers = numbers
    for number in range(3):
        made.run_batch({number: 99})
        assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("num_partitions", [8, 2, 3])
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("copied", ["branch", "native", "canonical", "restored", "rewritten"])
@pytest.mark.few(10)
def test_copy_made_right_after_a_rescale_is_whole_and_has_none_to_undo(
    tmp_path, copied, backend, num_partitions
):
    """Catches a copy called damaged, and an undo whose state before the rescale was not copied."""
    made = make(tmp_path, operators=KEYED, backend=backend)
    made.run_batch({})
    checkpoint, copy = Checkpoint(made.path), tmp_path / "copy"
    checkpoint.rescale(num_partitions)
    match copied:
        case "branch":
            checkpoint.branch(copy)
        case "native" | "canonical":
            checkpoint.savepoint(copy, form=copied)
        case "restored":
            checkpoint.savepoint(tmp_path / "savepoint", form="native").made.restore(copy)
        case "rewritten":
            other = "rocksdb" if backend == "filesystem" else "filesystem"
            savepoint = checkpoint.savepoint(tmp_path / "savepoint", form="native").made
            savepoint.restore(copy, backend=other, num_partitions=num_partitions * 2)

    for deep in (False, True):
        assert Checkpoint(copy).verify(versions="all", deep=deep).findings == ()
    assert read_checkpoint(str(copy)) == made.expected()
    if copied in ("native", "canonical"):
        return
    before = listing(copy)
    with pytest.raises(InvalidArgumentError, match="no rescale to undo"):
        Checkpoint(copy).undo_rescale()
    assert listing(copy) == before


@pytest.mark.parametrize("copied", ["branch", "canonical", "native"])
def test_copy_of_a_version_from_before_a_rescale_is_as_it_was_then(tmp_path, copied):
    """Catches operator metadata that tells the state reader of state partitions to come."""
    made = make(tmp_path)
    expected = made.expected()
    Checkpoint(made.path).rescale(8)
    made.run_batch({1: 2})
    copy = str(tmp_path / "copy")
    if copied == "branch":
        Checkpoint(made.path).branch(copy, version=3)
    else:
        Checkpoint(made.path).savepoint(copy, version=3, form=copied)

    assert read_checkpoint(copy) == expected
    with open_checkpoint(place_of(copy)) as checkpoint:
        stores = [store for operator in checkpoint.operators for store in operator.stores]
        assert [store.num_partitions for store in stores] == [4, 4, 4, 4]
    with open_checkpoint(place_of(made.path)) as checkpoint:
        assert checkpoint.operators[0].stores[0].num_partitions == 8


def stray_offsets(made, num_partitions):
    """What Spark's own repartition leaves when it finds another provider than its RocksDB's."""
    entry = OffsetsEntry.parse(Path(made.path, "offsets/2").read_text(), "offsets/2")
    changed = entry.with_conf({NUM_PARTITIONS_KEY: str(num_partitions)}).encode()
    Path(made.path, "offsets/3").write_text(changed)
    Path(made.path, "offsets/.3.crc").write_bytes(b"crc\0")


def test_stray_entry_of_sparks_repartition_is_finished_or_cleaned(tmp_path):
    """Catches a checkpoint that Spark's own tool made unusable and ours cannot help."""
    made = make(tmp_path)
    before = listing(made.path)
    stray_offsets(made, 8)

    with pytest.raises(InvalidArgumentError, match="rescale to 8") as raised:
        Checkpoint(made.path).rescale(2)
    assert raised.value.kind == "unfinished-operation"
    Checkpoint(made.path).undo_rescale()
    assert listing(made.path) == before
    stray_offsets(made, 8)
    assert Checkpoint(made.path).rescale(8, dry_run=True).is_begun
    Checkpoint(made.path).rescale(8)

    made.run_batch({3: 4})
    assert read_checkpoint(made.path) == made.expected()
