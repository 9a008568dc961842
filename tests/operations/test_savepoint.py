"""Savepoints: what they hold, whose they are, and what becomes of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.cli.commands import cli
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.metadata_file import metadata_fields
from statestore.operations.savepoint.branch import decide_branch
from statestore.operations.savepoint.savepoint import open_savepoint
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import (
    AGGREGATION,
    GLOBAL_LIMIT,
    JOIN,
    OPTIONS,
    files_below,
    make_query,
    read_rows,
    restore,
)
from tests.damaged import flip
from tests.seams import at, place_of

FORMS = ("canonical", "native")


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.few(4)
def test_query_goes_on_from_a_restored_savepoint(tmp_path, form, backend, checkpoint_format):
    """Catches a row lost or left in a wrong partition by any change of backend or parallelism."""
    operators = (AGGREGATION, GLOBAL_LIMIT, JOIN)[: 2 if backend == "rocksdb" else 3]
    query = make_query(
        tmp_path / "query", 2, backend=backend, checkpoint_format=checkpoint_format,
        operators=operators,
    )  # fmt: skip
    before = files_below(tmp_path / "query")

    taken = at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", form=form).made.info

    assert files_below(tmp_path / "query") == before
    assert (taken.version, taken.backend, taken.num_partitions) == (2, backend, 4)
    assert taken.num_rows == sum(map(len, query.expected().values()))
    for other, partitions in [("filesystem", 4), ("rocksdb", 8), ("filesystem", 2)]:
        name = tmp_path / f"{other}-{partitions}"
        restore(tmp_path / "savepoint", name, backend=other, num_partitions=partitions)
        assert read_rows(name) == query.expected()
        assert Checkpoint(name).info.checkpoint_format == checkpoint_format
        with open_checkpoint(place_of(name)) as checkpoint:
            assert (checkpoint.backend, checkpoint.num_partitions) == (other, partitions)
            assert checkpoint.newest_version == 2
            assert [info.name for info in checkpoint.operators] == [name for name, _ in operators]
            assert {s.num_partitions for o in checkpoint.operators for s in o.stores} == {
                partitions
            }
            heads = checkpoint.heads(2)
            store = next(store for store in heads if store.operator == 0)
            checkpoint_id = checkpoint.checkpoint_id(store, 2)
        # The next batch, and the maintenance after it.
        with at(
            name, options=StateStoreOptions(min_versions_to_retain=2, fsync_enabled=False)
        ).open_store(
            store.operator, store.partition, store.name, version=2, checkpoint_id=checkpoint_id
        ) as opened:
            for _ in range(3):
                batch = opened.begin()
                batch.put(b"another", b"value", key_group=store.partition)
                batch.commit()
            opened.snapshot()
            opened.clean_up()
            opened.load(5, opened.checkpoint_id)
            assert opened.get(b"another") == b"value"
            assert len(opened) == heads[store].trailer.num_keys + 1


def test_checkpoint_format_is_told_where_it_is_known(tmp_path):
    """Catches a format that a user of an older Spark asks for in vain."""
    query = make_query(tmp_path / "query", 1, checkpoint_format=2)
    query.plan()
    checkpoint = Checkpoint(query.path)
    assert checkpoint.info.checkpoint_format == 2
    plan = checkpoint.restore(tmp_path / "new", dry_run=True)
    assert (plan.checkpoint_format, "checkpoint format  v2" in str(plan)) == (2, True)
    shown = CliRunner().invoke(cli, ["list", query.path]).output
    assert shown.splitlines()[0].endswith(", checkpoint format v2")

    (tmp_path / "query" / "commits" / "0").unlink()
    assert checkpoint.info.checkpoint_format is None
    assert "checkpoint format" not in CliRunner().invoke(cli, ["list", query.path]).output


@pytest.mark.parametrize("form", FORMS)
def test_savepoint_is_complete_and_can_be_moved(tmp_path, form):
    """Catches a path into the checkpoint, or a file left behind there."""
    query = make_query(tmp_path / "query")
    query.write("_schema_log/0", "of another tool")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", form=form)
    model = query.expected()
    shutil.rmtree(query.path)
    (tmp_path / "savepoint").rename(tmp_path / "moved")

    for name, data in files_below(tmp_path / "moved").items():
        if name == "statestore-history.jsonl":  # which tells what it was made of
            continue
        assert str(tmp_path).encode() not in data, name
        assert not name.endswith(".arrows") or b'"path":"../' not in data
    # Full states of one version, or the deltas of all three that make it.
    num_files = len(list((tmp_path / "moved").rglob("*.arrows")))
    assert num_files == {"canonical": 4, "native": 12}[form]
    restore(tmp_path / "moved", tmp_path / "again")

    assert read_rows(tmp_path / "again") == model
    files = files_below(tmp_path / "again")
    assert files["_schema_log/0"] == b"of another tool"
    assert json.loads(files["metadata"]) == {"id": QUERY_ID}
    assert {name for name in files if name.startswith(("offsets", "commits", "sources"))} == {
        "offsets/1", "offsets/2", "commits/2", "sources/0/0", "sources/0/1", "sources/0/2",
    }  # fmt: skip
    assert files["state/0/0/_metadata/schema"] == AGGREGATION[1][0].schema_file


def test_savepoint_stays_whole_whatever_queries_delete(tmp_path):
    """Catches a savepoint that shares files with the checkpoint it came from or became."""
    query = make_query(tmp_path / "query")
    for form in FORMS:
        at(query.path, options=OPTIONS).savepoint(tmp_path / form, form=form)
        restore(tmp_path / form, tmp_path / f"of-{form}")
    before = {form: files_below(tmp_path / form) for form in FORMS}

    for name in ("query", *(f"of-{form}" for form in FORMS)):
        for path in (tmp_path / name / "state").rglob("*.arrows"):
            with path.open("r+b") as file:
                file.write(b"overwritten")
            path.unlink()

    assert {form: files_below(tmp_path / form) for form in FORMS} == before


def test_older_version_is_taken_when_asked_for(tmp_path):
    """Catches a savepoint of the newest version under another's number."""
    query = make_query(tmp_path / "query", num_batches=1)
    model = query.expected()
    query.run_batch({"key-1": "later"})

    taken = at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", version=1).made.info
    restore(tmp_path / "savepoint", tmp_path / "again", num_partitions=2)

    assert taken.version == 1
    assert read_rows(tmp_path / "again") == model
    with pytest.raises(NotFoundError, match=r"oldest_version=1, newest_version=2") as raised:
        at(query.path, options=OPTIONS).savepoint(tmp_path / "none", version=9)
    assert raised.value.kind == "version-not-found"
    assert not (tmp_path / "none").exists()


def test_oldest_version_that_is_named_can_be_copied(tmp_path):
    """Catches the name of a version without the batch before, whose entry Spark has expired."""
    query = make_query(tmp_path / "query", num_batches=5)
    for log in ("offsets", "commits"):
        for batch in ("0", "1"):
            Path(query.path, log, batch).unlink()
    checkpoint = at(query.path, options=OPTIONS)

    for version in (1, 3):
        with pytest.raises(NotFoundError, match=r"oldest_version=4, newest_version=5") as raised:
            checkpoint.savepoint(tmp_path / "none", version=version)
        assert raised.value.kind == "version-not-found"
    checkpoint.savepoint(tmp_path / "savepoint", version=4)

    restore(tmp_path / "savepoint", tmp_path / "again")
    assert Checkpoint(tmp_path / "again").info.newest_version == 4
    assert checkpoint.verify(versions=[3], deep=True).ok


def test_batch_that_was_planned_is_repeated_with_the_same_input(tmp_path):
    """Catches a batch whose output a sink has, run with other input after a restore."""
    query = make_query(tmp_path / "query")
    query.plan()

    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    restore(tmp_path / "savepoint", tmp_path / "again", num_partitions=8, backend="rocksdb")

    with open_checkpoint(place_of(tmp_path / "again")) as checkpoint:
        assert (checkpoint.newest_planned, checkpoint.newest_committed) == (3, 2)
        planned = checkpoint.offsets_entry(3)
    assert planned.sources == ('{"logOffset":3}',)
    assert planned.conf["spark.sql.shuffle.partitions"] == "8"
    assert planned.conf["spark.sql.streaming.stateStore.providerClass"].endswith(
        "RocksDBStateStoreProvider"
    )


class ExpiringFileIO(LocalFileIO):
    """A disk on which a query commits, and expires what it had, when a first file is read."""

    def __init__(self, query):
        super().__init__()
        self.query = query
        self.has_expired = False

    def fetch(self, path):
        if path.endswith(".delta.arrows") and not self.has_expired:
            self.has_expired = True
            self.query.run_batch({"key-0": "new"}, snapshot=True)
            for old in Path(self.query.path, "state").rglob("[12].delta.arrows"):
                old.unlink()
        return super().fetch(path)


@pytest.mark.parametrize("form", FORMS)
def test_newer_version_is_taken_when_files_are_expired_meanwhile(tmp_path, form):
    """Catches a savepoint without a file that retention deleted, or one that is given up."""
    query = make_query(tmp_path / "query", num_batches=2, num_partitions=2)

    taken = (
        at(query.path, options=OPTIONS, io=ExpiringFileIO(query))
        .savepoint(tmp_path / "newer", form=form)
        .made.info
    )
    restore(tmp_path / "newer", tmp_path / "again")

    assert taken.version == 3
    assert read_rows(tmp_path / "again") == query.expected()
    with pytest.raises(NotFoundError) as raised:
        at(query.path, options=OPTIONS).savepoint(tmp_path / "asked", version=2, form=form)
    assert raised.value.kind == "version-not-found"
    with pytest.raises(NotFoundError), open_savepoint(place_of(tmp_path / "asked")):
        pass


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", ""),
        ('"filesystem"', '"filesystan"'),
        (QUERY_ID, QUERY_ID.replace("-", ",")),
        ('"statestore"', '"statestorf"'),
        ('"savepoint"', '"savepoinu"'),
    ],
)
def test_damaged_descriptor_is_named_and_nothing_is_changed(tmp_path, old, new):
    """Catches "there is no savepoint" for one that is, and one that a rescale takes for a query."""
    make_query(tmp_path / "query")
    saved = tmp_path / "saved"
    at(tmp_path / "query", options=OPTIONS).savepoint(saved)
    path = saved / "metadata"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    before = files_below(saved)

    with pytest.raises(CorruptionError, match="saved/metadata"):
        Savepoint(saved).restore(tmp_path / "new", dry_run=True)
    for change in (
        lambda uri: Checkpoint(uri).rescale(2),
        lambda uri: Checkpoint(uri).expire(2),
        lambda uri: Checkpoint(uri).repair(),
    ):
        with pytest.raises((CorruptionError, InvalidArgumentError), match="saved"):
            change(str(saved))
    assert files_below(saved) == before


def test_damaged_file_does_not_become_part_of_a_savepoint(tmp_path):
    """Catches damage that is noticed when the savepoint is needed."""
    query = make_query(tmp_path / "query")
    (damaged, *_) = sorted((tmp_path / "query" / "state" / "0" / "1").glob("2.delta.arrows"))
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)

    for form in FORMS:
        with pytest.raises(CorruptionError, match=f"file='{damaged}'"):
            at(query.path, options=OPTIONS).savepoint(tmp_path / form, form=form)
        with pytest.raises(NotFoundError, match="begun and not finished"):
            restore(tmp_path / form, tmp_path / "again")


def test_savepoint_is_never_changed(tmp_path):
    """Catches a backup that an operation for checkpoints writes into."""
    query = make_query(tmp_path / "query")
    savepoint = str(tmp_path / "savepoint")
    at(query.path, options=OPTIONS).savepoint(savepoint)
    before = files_below(savepoint)
    for act in (
        lambda: Checkpoint(savepoint).rescale(2, dry_run=True),
        lambda: Checkpoint(savepoint).rescale(2),
        lambda: Checkpoint(savepoint).undo_rescale(dry_run=True),
        lambda: Checkpoint(savepoint).undo_rescale(),
        lambda: Checkpoint(savepoint).repair(dry_run=True),
        lambda: Checkpoint(savepoint).repair(),
        lambda: Checkpoint(savepoint).expire(2, dry_run=True),
        lambda: Checkpoint(savepoint).expire(2),
        lambda: Checkpoint(savepoint).convert(tmp_path / "new", "spark-hdfs", dry_run=True),
    ):
        with pytest.raises(InvalidArgumentError, match="restore it first"):
            act()
    assert files_below(savepoint) == before

    (tmp_path / "savepoint" / "metadata").write_text(metadata_fields(unfinished="savepoint"))
    with pytest.raises(NotFoundError, match="begun and not finished"):
        Checkpoint(savepoint).convert(tmp_path / "new", "spark-hdfs", dry_run=True)


@pytest.mark.parametrize("partitions", [4, 8])
def test_claimed_savepoint_is_moved(tmp_path, partitions):
    """Catches a claim that copies, or that leaves half a savepoint behind."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", form="native")
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "savepoint").rglob("3.*")}

    restore(tmp_path / "savepoint", tmp_path / "again", claim=True, num_partitions=partitions)

    assert not (tmp_path / "savepoint").exists()
    assert read_rows(tmp_path / "again") == query.expected()
    found = {path.name: path.stat().st_ino for path in (tmp_path / "again").rglob("3.*")}
    assert (found == inodes) == (partitions == 4)


@pytest.mark.parametrize("dry_run", [False, True])
def test_form_that_there_is_not_is_refused(tmp_path, dry_run):
    """Catches a savepoint of a form that no release can restore."""
    query = make_query(tmp_path / "query")

    with pytest.raises(InvalidArgumentError, match=r"form='avro'.*canonical or native"):
        Checkpoint(query.path).savepoint(tmp_path / "savepoint", form="avro", dry_run=dry_run)

    assert not (tmp_path / "savepoint").exists()


def test_savepoint_is_restored_and_not_branched(tmp_path):
    """Catches a query of rocksdb that goes on with all state on the heap: a canonical savepoint's
    rows are files of the filesystem backend."""
    query = make_query(tmp_path / "query", backend="rocksdb")
    savepoint = Checkpoint(query.path).savepoint(tmp_path / "savepoint").made

    with pytest.raises(InvalidArgumentError, match=r"savepoint, not the checkpoint.*restore it"):
        Checkpoint(savepoint.uri).branch(tmp_path / "branch")

    assert not (tmp_path / "branch").exists()
    restored = savepoint.restore(tmp_path / "restored").made
    assert restored.branch(tmp_path / "branch").made.info.backend == "rocksdb"


def test_branch_shares_files_and_harms_nobody(tmp_path):
    """Catches a branch that copies state, or that changes with the original."""
    query = make_query(tmp_path / "query", checkpoint_format=2)
    at(query.path, options=OPTIONS).branch(tmp_path / "branch")
    numbers = dict(query.numbers)
    shared = list((tmp_path / "branch" / "state").rglob("*.arrows"))
    assert len(shared) == 12
    assert {path.stat().st_nlink for path in shared} == {2}
    branch_id = json.loads((tmp_path / "branch" / "metadata").read_text())["id"]
    assert branch_id != QUERY_ID
    assert len(branch_id) == 36

    # Both write the same version, and the original expires what they share.
    query.run_batch({"key-1": "original"})
    forked = replace(query, path=tmp_path / "branch", scratch=None, numbers=numbers)
    forked.run_batch({"key-1": "branch"})
    for path in (tmp_path / "query" / "state").rglob("[12]_*.arrows"):
        path.unlink()

    assert read_rows(tmp_path / "branch") == forked.expected()
    assert forked.expected() != query.expected()
    shutil.rmtree(tmp_path / "branch")
    with open_checkpoint(place_of(query.path)) as checkpoint:
        assert len(checkpoint.heads(4)) == 4


@pytest.mark.parametrize("claims", [False, True])
def test_files_of_another_owner_are_copied_and_the_plan_says_so(tmp_path, monkeypatch, claims):
    """Catches a plan of 0 bytes for what is copied since it belongs to somebody else."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", form="native")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    def make(*, dry_run):
        if claims:
            source = Savepoint(tmp_path / "savepoint")
            return source.restore(tmp_path / "new", claim=True, dry_run=dry_run)
        return Checkpoint(query.path).branch(tmp_path / "new", dry_run=dry_run)

    plan = make(dry_run=True)
    assert plan.state_files == ("moved" if claims else "copied")
    assert plan.copied_bytes == plan.state_bytes > 0
    make(dry_run=False)
    files = list((tmp_path / "new" / "state").rglob("*.arrows"))
    assert {path.stat().st_nlink for path in files} == {1}
    assert read_rows(tmp_path / "new") == query.expected()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("num_of_another", [1, 12])
def test_branch_that_is_given_away_takes_no_file_of_another_owner(tmp_path, num_of_another):
    """Catches a `chown -R` of a branch that takes the state of production from its query."""
    query = make_query(tmp_path / "query")
    files = sorted(Path(query.path, "state").rglob("*.arrows"))
    assert len(files) == 12
    for path in files[:num_of_another]:
        os.chown(path, 12345, 12345)

    plan = Checkpoint(query.path).branch(tmp_path / "branch", dry_run=True)
    Checkpoint(query.path).branch(tmp_path / "branch")
    for path in (tmp_path / "branch").rglob("*"):
        os.chown(path, 23456, 23456)

    assert {path.stat().st_uid for path in files[:num_of_another]} == {12345}
    assert plan.state_files == "copied"
    assert {path.stat().st_nlink for path in files[num_of_another:]} <= {2}
    assert read_rows(tmp_path / "branch") == query.expected()


def test_file_that_can_be_seen_and_not_read_is_named(tmp_path, monkeypatch):
    """Catches a traceback of Python's in place of the file and what to do."""
    query = make_query(tmp_path / "query", 1, num_partitions=1)

    def deny(path, _):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(shutil, "copyfile", deny)
    with pytest.raises(StorageError, match=f"cannot copy a file.*file='{query.path}/") as caught:
        Checkpoint(query.path).savepoint(tmp_path / "savepoint", form="native")
    assert caught.value.kind == "permission-denied"


@pytest.fixture
def elsewhere(tmp_path):
    """A directory on another local file system."""
    shared_memory = Path("/dev/shm")  # noqa: S108
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second local file system here")
    with tempfile.TemporaryDirectory(dir=shared_memory) as directory:
        yield Path(directory)


def test_between_two_local_file_systems_files_are_copied_and_the_plan_says_so(tmp_path, elsewhere):
    """Catches a plan of 0 bytes for what is copied whole."""
    query = make_query(tmp_path / "query", 1, num_partitions=1)
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint", form="native")

    branch = Checkpoint(query.path).branch(elsewhere / "branch", dry_run=True)
    claim = Savepoint(tmp_path / "savepoint").restore(elsewhere / "new", claim=True, dry_run=True)
    here = Checkpoint(query.path).branch(tmp_path / "branch", dry_run=True)

    assert (branch.state_files, claim.state_files, here.state_files) == (
        "copied", "moved", "shared",
    )  # fmt: skip
    assert branch.copied_bytes == claim.copied_bytes == here.state_bytes > 0
    assert here.copied_bytes == 0
    restore(tmp_path / "savepoint", elsewhere / "new", claim=True)
    assert read_rows(elsewhere / "new") == query.expected()


@pytest.mark.parametrize("is_state_elsewhere", [False, True])
def test_damaged_savepoint_is_not_claimed_to_another_local_file_system(
    tmp_path, elsewhere, is_state_elsewhere
):
    """Catches a savepoint that is deleted, of which one file came over damaged."""
    query = make_query(tmp_path / "query", 1, num_partitions=1)
    savepoint = tmp_path / "savepoint"
    at(query.path, options=OPTIONS).savepoint(savepoint, form="native")
    state = savepoint / "state"
    if is_state_elsewhere:
        shutil.move(state, elsewhere / "state")
        state.symlink_to(elsewhere / "state")
        target = tmp_path / "new"
    else:
        target = elsewhere / "new"
    flip(next(iter(sorted(state.glob("0/0/1.*")))))

    with pytest.raises(CorruptionError):
        restore(savepoint, target, claim=True)

    assert (savepoint / "metadata").exists()


def test_every_storage_to_every_other(tmp_path, s3_server, bucket):
    """Catches a file that is moved instead of copied, or fetched where the server copies."""
    options = StateStoreOptions(**s3_server.options())
    query = make_query(tmp_path / "query", 2, num_partitions=2)
    remote = f"s3://{bucket}"
    places = {
        "local": str(tmp_path / "savepoint"),
        "s3": f"{remote}/savepoint",
    }
    for place, (form, partitions) in zip(
        places.values(), [("native", 2), ("canonical", 4)], strict=True
    ):
        at(query.path, options=options).savepoint(place, form=form)
        for to in (str(tmp_path / f"again-{form}"), f"{remote}/again-{form}"):
            restore(place, to, num_partitions=partitions, options=options)
            assert read_rows(to, options=options) == query.expected()

    target = place_of(f"{remote}/branch", options=options)
    with open_checkpoint(place_of(f"{remote}/again-native", options=options)) as source:
        branch = decide_branch(source, target)
        s3_server.requests.clear()
        branch.run()
    fetched = s3_server.requests["GET"]
    # Spark's small files go through here, the operator's and the history too, and `metadata`
    # between the steps and of what is above: the bucket. Of state files only the trailers are read.
    num_files = len(branch.version.spark_files)
    num_trailers = sum(len(branch.version.state_files(store)) for store in branch.version.heads)
    assert fetched == num_files + num_trailers + 13
    assert read_rows(f"{remote}/branch", options=options) == query.expected()
    assert not list(tmp_path.glob("branch*"))
    restore(f"{remote}/savepoint", f"{remote}/claimed", claim=True, options=options)
    assert not [key for key in s3_server.keys(bucket) if key.startswith("savepoint/")]
    assert read_rows(f"{remote}/claimed", options=options) == query.expected()


def test_state_kept_elsewhere_comes_home_and_goes_there_again(tmp_path):
    """Catches a savepoint that refers to the storage of the checkpoint's state."""
    query = make_query(tmp_path / "query")
    placement = {"format_version": 1, "writer": "", "storage": str(tmp_path), "id": "a" * 32}
    (tmp_path / "query" / "statestore.json").write_text(json.dumps(placement))
    (tmp_path / ("a" * 32)).mkdir()
    for path in sorted((tmp_path / "query" / "state").rglob("*.arrows")):
        to = tmp_path / ("a" * 32) / path.relative_to(tmp_path / "query" / "state")
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)

    for form in FORMS:
        at(query.path, options=OPTIONS).savepoint(tmp_path / form, form=form)
        assert not (tmp_path / form / "statestore.json").exists()
        elsewhere = StateStoreOptions(checkpoint_storage=str(tmp_path / f"elsewhere-{form}"))
        restore(tmp_path / form, tmp_path / f"again-{form}", options=elsewhere)
        assert read_rows(tmp_path / f"again-{form}") == query.expected()
        assert not list((tmp_path / f"again-{form}" / "state").rglob("*.arrows"))
        assert list((tmp_path / f"elsewhere-{form}").rglob("*.arrows"))
        assert (tmp_path / f"again-{form}/state/0/3/.statestore").exists()


@pytest.mark.parametrize("form", FORMS)
def test_offset_log_that_names_no_provider_is_told_as_damaged(tmp_path, form):
    """Catches a savepoint that is read as one of Spark's own provider, and lacks other files."""
    query = make_query(tmp_path / "query", 1)
    savepoint = Checkpoint(query.path).savepoint(tmp_path / "savepoint", form=form).made
    assert savepoint.verify().ok
    for entry in (tmp_path / "savepoint" / "offsets").iterdir():
        entry.write_text(entry.read_text().replace("providerClass", "providerClasr"))

    for ask in (savepoint.inspect, savepoint.versions, savepoint.verify):
        with pytest.raises(CorruptionError, match=r"offsets/0', offset=0, conf='.*providerClass"):
            ask()
