"""Reference files of rescales: whoever has none of the files any more, holds none of them."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from statestore import Checkpoint
from statestore.core.errors import InvalidArgumentError, StorageError
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from tests.damaged import NOW
from tests.rescaled import KEYED, end_process
from tests.seams import at


class FullDisk(LocalFileIO):
    """A local disk on which no batch can be planned."""

    def write(self, path, data, *, sync, overwrite):
        if "/offsets/" in path:
            raise StorageError("disk is full", to_fix="nothing; a test asked for it")
        super().write(path, data, sync=sync, overwrite=overwrite)


def references(path):
    """Every reference file of a checkpoint."""
    return sorted(str(file.relative_to(path)) for file in Path(path).rglob("*.ref"))


def go_on(made, num_batches=6, keep=2):
    """Run batches with snapshots, restarts and expiries, as a query does over days."""
    for number in range(num_batches):
        made.restart()
        made.run_batch(dict.fromkeys(range(number, 40), number))
        made.take_snapshots()
    for _ in range(2):
        at(made.path, options=NOW).expire(keep)


def test_copies_of_a_rescaled_checkpoint_let_go_of_what_they_took_over(tmp_path):
    """Catches a copy with a reference whose owner has left the files behind: it stays for ever."""
    backend = "rocksdb"
    made = MadeCheckpoint(tmp_path / "query", num_partitions=2, operators=KEYED, backend=backend)
    made.run_batch({key: key for key in range(40)})
    made.run_batch({key: -key for key in range(40)})
    Checkpoint(made.path).rescale(4)
    made.run_batch({key: key for key in range(20)})
    with Checkpoint(made.path).open_store(operator=0, partition=2) as store:
        store.snapshot()
    made.restart()
    made.run_batch({key: key for key in range(30)})

    source = Checkpoint(made.path)
    source.branch(tmp_path / "branch")
    source.savepoint(tmp_path / "savepoint", form="native").made.restore(tmp_path / "restored")

    for path in (made.path, tmp_path / "branch", tmp_path / "restored"):
        copy = MadeCheckpoint(path, operators=KEYED, backend=backend, numbers=dict(made.numbers))
        assert read_checkpoint(copy.path) == copy.expected()
        assert references(path)
        go_on(copy)
        assert references(path) == []
        assert read_checkpoint(copy.path) == copy.expected()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("then", [1, 4, 16])
def test_rescale_after_one_that_was_killed_lets_go_of_what_both_took_over(tmp_path, backend, then):
    """Catches references of the first rescale that the second one's owner does not know of."""
    made = MadeCheckpoint(tmp_path / "query", num_partitions=8, operators=KEYED, backend=backend)
    made.run_batch({key: key for key in range(40)})
    made.run_batch({key: -key for key in range(40)})
    with pytest.raises(StorageError):
        at(made.path, io=FullDisk()).rescale(2)
    assert references(made.path)
    end_process(made.path)

    Checkpoint(made.path).rescale(then)
    go_on(made)

    assert references(made.path) == []
    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("layouts", [[2, 4], [4, 1, 2], [4, 2, 1], [2, 3, 6]])
def test_damaged_snapshot_that_was_taken_over_is_done_without(tmp_path, layouts):
    """Catches the files in its place, which expire when the rescale is older than what is kept."""
    first, *between, last = layouts
    made = MadeCheckpoint(tmp_path / "query", num_partitions=first, operators=KEYED)
    made.run_batch(dict.fromkeys(range(40), 1))
    made.run_batch(dict.fromkeys(range(40), 2))
    for number in between:
        Checkpoint(made.path).rescale(number)
    made.run_batch(dict.fromkeys(range(40), 3))
    made.take_snapshots()
    made.restart()
    made.run_batch({key: -key for key in range(20)})
    Checkpoint(made.path).rescale(last)
    for number in range(4):
        made.run_batch({number: number})
    at(made.path, options=NOW).expire(2)
    snapshots = list(Path(made.path).glob("state/0/*/*.snapshot.*"))
    for path in snapshots:
        path.write_bytes(path.read_bytes()[:-40])

    assert snapshots
    assert read_checkpoint(made.path) == made.expected()
    assert all(found.is_recoverable for found in Checkpoint(made.path).verify().findings)


@pytest.mark.parametrize("damaged", ["2.delta.*", "2.*.ref"])
def test_damaged_file_of_no_version_to_retain_ends_no_cleanup(tmp_path, damaged):
    """Catches a store that expires nothing any more because of a file that nobody needs."""
    made = MadeCheckpoint(tmp_path / "query", num_partitions=2, operators=KEYED)
    made.run_batch({key: key for key in range(40)})
    Checkpoint(made.path).rescale(4)
    go_on(made, num_batches=3, keep=100)
    for path in Path(made.path).glob(f"state/0/*/{damaged}"):
        path.write_bytes(path.read_bytes()[:-3])

    deleted = at(made.path, options=NOW).expire(2)

    assert deleted.num_files > 0
    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_rescales_that_follow_soon_leave_no_more_files_each_time(tmp_path, backend):
    """Catches a query that is scaled up and down each day, and never expires anything."""
    made = MadeCheckpoint(tmp_path / "query", num_partitions=2, operators=KEYED, backend=backend)
    most = []
    for number in range(12):
        for batch in range(4):
            made.run_batch(dict.fromkeys(range(40), number * 10 + batch))
        made.take_snapshots()
        made.restart()
        made.run_batch(dict.fromkeys(range(40), number))
        Checkpoint(made.path).rescale(4 if number % 2 == 0 else 2)
        made.restart()
        made.run_batch(dict.fromkeys(range(40), -number))
        at(made.path, options=NOW).expire(5)
        assert read_checkpoint(made.path) == made.expected()
        folders = list(Path(made.path).glob("state/0/[0-9]"))
        most.append(max(len(list(folder.glob("*.delta.*"))) for folder in folders))

    assert max(most[6:]) <= max(most[:6]) <= 24


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.extended) for n in range(3, 120))]
)
def test_retained_versions_stay_whatever_was_rescaled(tmp_path, backend, checkpoint_format, seed):
    """Catches a file that expires although a version to retain, of any layout, is made of it.

    Histories of batches, snapshots, rescales, killed ones, undone ones, restarts and expiries;
    after these any one snapshot may be damaged. At the end the newest version needs none of it.
    """
    random = Random(seed)
    made = MadeCheckpoint(
        tmp_path / "query",
        num_partitions=random.choice([2, 4]),
        operators=KEYED,
        backend=backend,
        checkpoint_format=checkpoint_format,
    )
    rows = {}
    for _ in range(random.choice([8, 16])):
        what = random.choice(["batch"] * 5 + ["snapshot", "rescale", "rescale", "killed", "undo"])
        wanted = random.choice([1, 2, 3, 4, 8])
        if what == "batch" or made.version == 0:
            for _ in range(random.choice([1, 1, 4])):
                keys = random.sample(range(30), random.choice([1, 20]))
                made.run_batch({key: random.choice([None, random.randrange(1000)]) for key in keys})
                rows[made.version] = made.expected()
        elif what == "snapshot":
            made.take_snapshots()
        elif what == "rescale":
            Checkpoint(made.path).rescale(wanted)
        elif what == "killed":
            with suppress(StorageError):
                at(made.path, io=FullDisk()).rescale(wanted)
            end_process(made.path)
        else:
            with suppress(InvalidArgumentError):
                Checkpoint(made.path).undo_rescale()
        rows[made.version] = made.expected()
        if random.random() < 0.3:
            made.restart()
        if random.random() < 0.6:
            keep = random.choice([2, 3, 6])
            at(made.path, options=NOW).expire(keep)
            oldest = max(1, made.version - keep + 1, min(rows))
            for version in [found for found in rows if found < oldest]:
                del rows[version]
            for version in range(oldest, made.version + 1):
                assert read_checkpoint(made.path, version=version) == rows[version], version
            snapshots = sorted(Path(made.path).glob("state/0/*/*.snapshot.arrows"))
            if snapshots:
                damaged = random.choice(snapshots)
                whole = damaged.read_bytes()
                damaged.write_bytes(whole[:-40])
                assert read_checkpoint(made.path) == made.expected(), damaged
                damaged.write_bytes(whole)

    go_on(made, num_batches=9)

    assert read_checkpoint(made.path) == made.expected()
    present = range(Checkpoint(made.path).info.num_partitions)
    left = [path for path in references(made.path) if int(path.split("/")[2]) in present]
    assert left == []
