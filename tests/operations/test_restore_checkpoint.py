"""A checkpoint is restored without a savepoint between: of this package's, of Spark's providers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random

import pytest

from statestore import Checkpoint
from statestore.checkpoint.lease import Holder, Lease
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.ids import RandomIds
from statestore.core.options import StateStoreOptions
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from statestore.operations.batches import is_of_operation
from statestore.operations.metadata_file import read_metadata
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import (
    AGGREGATION,
    JOIN,
    OPTIONS,
    files_below,
    make_query,
    query_of,
    read_rows,
)
from tests.seams import at

SPARKS = Path(__file__).parents[1] / "golden" / "spark"


@pytest.fixture
def copy(tmp_path):
    """Returns a function that copies a golden checkpoint of Spark's, to be damaged."""

    def make(name):
        shutil.copytree(SPARKS / name / "checkpoint", tmp_path / name)
        return tmp_path / name

    return make


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.few(3)
def test_rows_are_those_of_a_model_however_often_it_is_restored(tmp_path, seed):
    """Catches a row of a checkpoint that is lost, old, or where no query looks for it."""
    random = Random(seed)
    how = {"num_partitions": random.choice([1, 2, 4]), "checkpoint_format": random.choice([1, 2])}
    query = query_of(
        tmp_path / "query",
        backend=random.choice(["filesystem", "rocksdb"]),
        operators=(AGGREGATION, JOIN)[: random.randint(1, 2)],
        **how,
    )
    at_version = {}
    for number in range(random.randint(1, 5)):
        keys = random.sample(range(40), 15)
        query.run_batch({f"key-{key}": random.choice([None, "a", "bb" * key]) for key in keys})
        at_version[number + 1] = query.expected()
    if random.random() < 0.5:
        at(query.path, options=OPTIONS).rescale(how["num_partitions"] * 2)
    source, before = query.path, files_below(query.path)
    for number in range(4):
        target = at(tmp_path / f"restored-{number}", options=OPTIONS)
        made = at(source, options=OPTIONS).restore(
            target,
            backend=random.choice([None, "filesystem", "rocksdb"]),
            num_partitions=random.choice([None, 1, 2, 8]),
            new_query_id=random.random() < 0.5,
        )
        assert read_rows(target.uri) == query.expected()
        assert target.verify(deep=True).findings == ()
        query_id, _ = read_metadata(LocalFileIO(), target.uri)
        assert made.query_id in (None, query_id)
        assert [entry.operation for entry in target.history()] == ["restore"]
        source = target.uri
    version = random.choice([*at_version])
    older = at(tmp_path / "older", options=OPTIONS)
    num_partitions = random.choice([None, 1, 2, 8])
    at(query.path, options=OPTIONS).restore(older, version=version, num_partitions=num_partitions)
    assert read_rows(older.uri) == at_version[version]
    assert older.verify(deep=True).findings == ()
    assert files_below(query.path) == before


def test_query_keeps_its_id_and_its_backend(tmp_path):
    """Catches a restore that is another query, unasked for."""
    query = make_query(tmp_path / "query", backend="rocksdb")

    made = at(query.path, options=OPTIONS).restore(tmp_path / "new")

    assert (made.backend, made.query_id, made.state_files) == ("rocksdb", QUERY_ID, "copied")
    assert json.loads((tmp_path / "new/metadata").read_text()) == {"id": QUERY_ID}


def test_state_that_is_elsewhere_comes_home_and_goes_there(tmp_path):
    """Catches a checkpoint restored without the state that another storage has."""
    elsewhere = StateStoreOptions(
        checkpoint_storage=str(tmp_path / "elsewhere"), fsync_enabled=False
    )
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).restore(at(tmp_path / "there", options=elsewhere))
    at(tmp_path / "there", options=OPTIONS).restore(tmp_path / "again")

    assert list((tmp_path / "elsewhere").rglob("*.arrows"))
    assert not list((tmp_path / "there").rglob("*.arrows"))
    assert read_rows(tmp_path / "again") == query.expected()


@pytest.mark.parametrize("name", ["query", "hdfs"])
@pytest.mark.parametrize("operation", [None, "rescale"])
def test_checkpoint_that_somebody_writes_is_refused(tmp_path, copy, name, operation):
    """Catches a restore of a checkpoint that changes meanwhile, and one for two queries."""
    path = make_query(tmp_path / "query").path if name == "query" else str(copy(name))
    io = LocalFileIO()
    holder = Holder(find_process(), operation=operation or "")
    lease = Lease(io, f"{path}/state", RandomIds().new_id(), holder, 10_000, SystemClock())
    lease.take()

    with pytest.raises(InUseError) as raised:
        at(path, clock=ManualClock()).restore(tmp_path / "new")

    assert raised.value.kind in ("checkpoint-in-use", "checkpoint-under-operation")
    assert not (tmp_path / "new").exists()
    lease.drop()
    assert Checkpoint(path).restore(tmp_path / "new").done


@pytest.mark.parametrize("name", ["query", "hdfs"])
def test_checkpoint_that_changed_meanwhile_is_refused(tmp_path, copy, name):
    """Catches state of one batch with the position in the sources of another."""
    path = make_query(tmp_path / "query").path if name == "query" else str(copy(name))
    newest = Checkpoint(path).info.newest_version

    def run_a_batch(*_):
        for log in ("offsets", "commits"):
            shutil.copy(f"{path}/{log}/{newest - 1}", f"{path}/{log}/{newest}")

    with pytest.raises(InUseError, match="since it was opened"):
        Checkpoint(path).restore(tmp_path / "new", progress=run_a_batch)

    metadata = json.loads((tmp_path / "new/metadata").read_text())
    assert metadata["statestore"]["unfinished"] == "restore"


def test_checkpoint_whose_query_begins_meanwhile_is_refused(tmp_path):
    """Catches a second query beside one that was started while it was made, and waits for data."""
    path, holder = make_query(tmp_path / "query").path, Holder(find_process(), run="1")
    lease = Lease(
        LocalFileIO(), f"{path}/state", RandomIds().new_id(), holder, 10_000, SystemClock()
    )

    with pytest.raises(InUseError, match="a query is writing the checkpoint"):
        at(path, clock=ManualClock()).restore(tmp_path / "new", progress=lambda *_: lease.take())

    metadata = json.loads((tmp_path / "new/metadata").read_text())
    assert metadata["statestore"]["unfinished"] == "restore"


@pytest.mark.parametrize("name", ["query", "rocksdb-ids-variables"])
def test_checkpoint_cannot_be_claimed(tmp_path, copy, name):
    """Catches a query's only state that is deleted by a word."""
    path = make_query(tmp_path / "query").path if name == "query" else str(copy(name))
    before = files_below(path)

    with pytest.raises(InvalidArgumentError, match="only a savepoint can be claimed"):
        Checkpoint(path).restore(tmp_path / "new", claim=True)

    assert files_below(path) == before
    assert not (tmp_path / "new").exists()


def _cut_commits(path):
    shutil.rmtree(path / "commits")


def _lose_a_file(path):
    next((path / "state/0").rglob("4.delta")).unlink()


def _lose_schemas(path):
    (path / "state/0/0/_metadata/schema").unlink()


def _lose_metadata(path):
    shutil.rmtree(path / "state/0/_metadata")


def _scramble_metadata(path):
    (path / "metadata").write_text("{}")


def _change_encoding(path):
    for entry in (path / "offsets").glob("[0-9]*"):
        entry.write_text(entry.read_text().replace('Format":"unsaferow', 'Format":"json'))


def _change_provider(path):
    for entry in (path / "offsets").glob("[0-9]*"):
        text = entry.read_text()
        entry.write_text(text.replace("HDFSBackedStateStoreProvider", "OtherProvider"))


def _pin_loose_distribution(path):
    for entry in (path / "offsets").glob("[0-9]*"):
        text = entry.read_text()
        strict, loose = (f'useStrictDistribution":"{value}"' for value in ("true", "false"))
        assert strict in text
        entry.write_text(text.replace(strict, loose))


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (_cut_commits, NotFoundError, "lacks the entry of a batch"),
        (_lose_a_file, NotFoundError, r"4\.delta"),
        (_lose_schemas, NotFoundError, "_metadata/schema"),
        (_lose_metadata, NotFoundError, "no metadata"),
        (_scramble_metadata, CorruptionError, "ID of the query"),
        (_change_encoding, IncompatibleError, "encoded in a way"),
        (_change_provider, IncompatibleError, "other-provider"),
        (_pin_loose_distribution, IncompatibleError, "useStrictDistribution.*keep the number"),
    ],
)
def test_what_would_be_lost_is_refused_before_anything_is_written(
    tmp_path, copy, damage, error, match
):
    """Catches a checkpoint with a hole that is restored without what was there."""
    path = copy("hdfs")
    damage(path)

    with pytest.raises(error, match=match):
        Checkpoint(path).restore(tmp_path / "new", num_partitions=6)

    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_older_version_is_restored_and_the_query_goes_on_behind_it(tmp_path, backend):
    """Catches a version that can be read, and not gone back to in another shape."""
    query = query_of(tmp_path / "query", backend=backend, num_partitions=2)
    at_version = {}
    for number in range(4):
        query.run_batch({"a": str(number), f"b{number}": "x"})
        at_version[number + 1] = query.expected()
    for version in (2, 3):
        new = tmp_path / f"new-{version}"
        at(query.path, options=OPTIONS).restore(new, version=version, num_partitions=4)
        assert read_rows(new) == at_version[version]
        assert (Checkpoint(new).info.newest_version, Checkpoint(new).info.uncommitted_batch) == (
            version, None,
        )  # fmt: skip
    with pytest.raises(NotFoundError, match="version-not-found"):
        at(query.path, options=OPTIONS).restore(tmp_path / "none", version=9)
    assert not (tmp_path / "none").exists()


def test_older_version_of_sparks_own_is_restored(tmp_path, copy):
    """Catches the newest state with the batch number of an older one."""
    path = copy("hdfs")
    newest = Checkpoint(path).info.newest_version

    at(str(path), options=OPTIONS).restore(tmp_path / "new", version=newest - 1)

    old, new = (
        Checkpoint(path).rows(version=newest - 1).read(),
        Checkpoint(tmp_path / "new").rows().read(),
    )
    assert Checkpoint(tmp_path / "new").info.newest_version == newest - 1
    assert sorted(map(str, new.select(["key", "value"]).to_pylist())) == sorted(
        map(str, old.select(["key", "value"]).to_pylist())
    )


def test_savepoint_with_state_that_is_left_behind_is_not_claimed(tmp_path):
    """Catches state of a dropped operator that goes with the savepoint."""
    query = query_of(tmp_path / "query", operators=(AGGREGATION, AGGREGATION))
    query.run_batch({"a": "1"})
    saved = tmp_path / "saved"
    at(query.path, options=OPTIONS).savepoint(saved)
    before = files_below(saved)

    with pytest.raises(InvalidArgumentError, match="drop_operators='1'"):
        at(saved, options=OPTIONS).restore(tmp_path / "new", claim=True, drop_operators=[1])

    assert files_below(saved) == before
    assert not (tmp_path / "new").exists()


def test_marks_of_operations_in_a_row_go_with_a_copy(tmp_path):
    """Catches a file sink that is said to lack the batches of operations, and cannot be mended."""
    query = query_of(tmp_path / "query", num_partitions=2)
    for number in range(3):
        query.run_batch({"a": str(number)})
    for num_partitions in (4, 8, 2):
        at(query.path, options=OPTIONS).rescale(num_partitions)

    at(query.path, options=OPTIONS).restore(tmp_path / "new")

    with at(tmp_path / "new", options=OPTIONS)._reach.checkpoint() as made:
        assert made.planned_batches == (2, 3, 4, 5)
        assert [is_of_operation(made, batch) for batch in (2, 3, 4, 5)] == [False, *[True] * 3]
    assert read_rows(tmp_path / "new") == query.expected()
    assert Checkpoint(tmp_path / "new").verify(deep=True).findings == ()


def test_metadata_that_a_next_run_writes_meanwhile_is_not_copied(tmp_path, copy):
    """Catches a copy whose metadata names a state schema that it has not, and never starts."""
    path = copy("rocksdb-ids-variables")
    newest = Checkpoint(path).info.newest_version
    shutil.copy(path / "offsets" / str(newest - 1), path / "offsets" / str(newest))
    metadata = path / "state/0/_metadata/v2"

    def begin_next_batch(*_):
        last = max(metadata.glob("[0-9]*"), key=lambda file: int(file.name)).read_text()
        text = re.sub(r"_stateSchema/default/[^\"]+", f"_stateSchema/default/{newest}_x", last)
        (metadata / str(newest)).write_text(text)
        (path / f"state/0/_stateSchema/default/{newest}_x").write_text("")

    made = at(str(path), options=OPTIONS).restore(tmp_path / "new", progress=begin_next_batch)

    assert (metadata / str(newest)).exists()
    assert not (tmp_path / "new/state/0/_metadata/v2" / str(newest)).exists()
    assert made.made.verify(deep=True).findings == ()
    at(tmp_path / "new", options=OPTIONS).restore(tmp_path / "again")
