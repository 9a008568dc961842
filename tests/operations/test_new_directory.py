"""Directories that operations make: new, apart from their source, whole or not taken for one."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.storage import is_within, resolve_path
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.metadata_file import mark_unfinished, metadata_fields
from statestore.operations.new_directory import begin_directory
from statestore.operations.savepoint.savepoint import open_savepoint
from tests.checkpoints import OPTIONS, files_below, make_query, read_rows, restore
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at, place_of


def test_destination_must_be_new(tmp_path):
    """Catches a checkpoint or savepoint that is written over."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    for act in (
        lambda: at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint"),
        lambda: at(query.path, options=OPTIONS).savepoint(query.path),
        lambda: restore(tmp_path / "savepoint", query.path),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            act()
        assert raised.value.kind == "checkpoint-exists"
    with pytest.raises(NotFoundError) as raised:
        _ = Savepoint(query.path).info
    assert raised.value.kind == "savepoint-not-found"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("{0}/a", "{0}/a/new"),
        ("{0}/a/", "file:{0}/b/../a/new/"),
        ("file://{0}/a", "{0}/link/new"),
        ("{0}/a/source", "{0}/a"),
    ],
)
def test_source_and_target_that_are_not_apart_are_refused(tmp_path, source, target):
    """Catches a savepoint that is deleted with what was made of it, or that holds all others."""
    (tmp_path / "link").symlink_to(tmp_path / "a")
    source, target = (text.format(tmp_path) for text in (source, target))
    query = make_query(tmp_path / "query")

    def check(operation, act):
        if target.endswith("/a"):  # around the source, and begun before
            Path(target, "metadata").write_text(metadata_fields(unfinished=operation))
        before = files_below(tmp_path)
        with pytest.raises(InvalidArgumentError, match="inside another checkpoint"):
            act()
        assert files_below(tmp_path) == before

    at(query.path, options=OPTIONS).savepoint(source)
    check("restore", lambda: restore(source, target, claim=True))
    shutil.rmtree(resolve_path(source))
    shutil.copytree(query.path, resolve_path(source))
    check("savepoint", lambda: at(source, options=OPTIONS).savepoint(target))
    check("branch", lambda: at(source, options=OPTIONS).branch(target, dry_run=True))
    check("convert", lambda: Checkpoint(source).convert(target, "spark-hdfs", dry_run=True))


@pytest.mark.parametrize(
    ("uri", "directory", "expected"),
    [
        ("s3://bucket/a/b", "s3a://bucket/a/", True),
        ("s3://bucket/ab", "s3://bucket/a", False),
        ("s3://other/a/b", "s3://bucket/a", False),
        ("s3://bucket/a", "/bucket/a", False),
        ("/a", "/a/b", False),
    ],
)
def test_uri_is_within_a_directory_however_it_is_spelled(uri, directory, expected):
    """Catches a directory that is taken for another because its URI differs."""
    assert is_within(uri, directory) == expected


def test_claimed_savepoint_does_not_take_state_with_it(tmp_path):
    """Catches a checkpoint whose state is kept in the directory that the claim deletes."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    before = files_below(tmp_path)
    within = StateStoreOptions(checkpoint_storage=str(tmp_path / "savepoint" / "states"))

    with pytest.raises(InvalidArgumentError, match="inside another checkpoint"):
        restore(tmp_path / "savepoint", tmp_path / "new", claim=True, options=within)

    assert files_below(tmp_path) == before


def test_directory_that_another_operation_began_is_left_to_it(tmp_path):
    """Catches the files of an operation that is under way, deleted by one of another kind."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    with begin_directory(place_of(tmp_path / "new"), "convert", query.path):
        before = files_below(tmp_path / "new")
        for act in (
            lambda: at(query.path, options=OPTIONS).savepoint(tmp_path / "new"),
            lambda: restore(tmp_path / "savepoint", tmp_path / "new"),
            lambda: Checkpoint(query.path).branch(tmp_path / "new", dry_run=True),
        ):
            with pytest.raises(InvalidArgumentError, match="begun='convert'") as raised:
                act()
            assert raised.value.kind == "unfinished-operation"
        assert files_below(tmp_path / "new") == before


def test_checkpoint_that_a_promote_left_is_not_advised_to_be_deleted(tmp_path):
    """Catches advice by which a query in production is deleted, for a promote that was killed."""
    query, other = (make_query(tmp_path / name) for name in ("query", "other"))
    mark_unfinished(LocalFileIO(), query.path, "promote")

    with pytest.raises(InvalidArgumentError, match="statestore drop TRIAL --yes") as raised:
        at(other.path, options=OPTIONS).savepoint(query.path)

    assert raised.value.kind == "unfinished-operation"
    assert "delete" not in str(raised.value)


CRASHES = {
    "canonical": lambda io: at("/query", options=OPTIONS, io=io).savepoint(
        at("/new", options=OPTIONS, io=io)
    ),
    "native": lambda io: at("/query", options=OPTIONS, io=io).savepoint(
        at("/new", options=OPTIONS, io=io), form="native"
    ),
    "restore": lambda io: restore("/savepoint", "/new", io=io, target_io=io),
    "rescale": lambda io: restore("/savepoint", "/new", io=io, target_io=io, num_partitions=1),
    "claim": lambda io: restore("/savepoint", "/new", io=io, target_io=io, claim=True),
    "branch": lambda io: branch(io),
}


def branch(io):
    at("/query", options=OPTIONS, io=io).branch(at("/new", options=OPTIONS, io=io))


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory):
    """A query's checkpoint and a savepoint of it in memory, and what the query holds."""
    io = MemoryFileIO(str(tmp_path_factory.mktemp("at-rest")))
    query = make_query("/query", 2, io=io, num_partitions=2, checkpoint_format=2)
    at("/query", options=OPTIONS, io=io).savepoint(at("/savepoint", options=OPTIONS, io=io))
    return {path: io.read(path) for path in io.paths()}, query


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.few(4)
def test_either_side_is_whole_when_it_ends_at_any_call(tmp_path, at_rest, name):
    """Catches half a savepoint or checkpoint that is taken for whole, or one that was whole."""
    act = CRASHES[name]
    files, query = at_rest

    def begin(fault):
        io = FaultFileIO(MemoryFileIO(tempfile.mkdtemp(dir=tmp_path)))
        for path, data in files.items():
            io.write(path, data, sync=True, overwrite=True)
        io.arm(fault)
        return io

    io = begin(Fault(10**9))
    act(io)
    trace = io.trace
    assert len(trace) > 20
    if name == "claim":
        # While a savepoint is being deleted, it is none.
        mark = max(index for index, call in enumerate(trace) if call == "write metadata")
        assert {call.split()[0] for call in trace[mark + 1 :]} & {"write", "publish"} == set()
        assert trace[-2:] == ["delete_tree savepoint", "read_tail metadata"]  # which it asks first
    # Where nothing is written, a failure leaves no trace: a few of those will do. What becomes of
    # pins matters to retention alone: test_pins.py.
    reads, writes = [], []
    for index, call in enumerate(trace):
        if not call.endswith(".pin"):
            (reads if call.startswith(("read", "list", "fetch")) else writes).append(index)
    faults = [(index, False) for index in (*writes, *reads[::10])]
    faults += [(index, True) for index in (*writes[::2], writes[-1])]
    for index, happens in faults:
        io = begin(Fault(index, happens=happens))
        try:
            act(io)
        except StateStoreError:
            is_told = True
        else:
            is_told = False
        io.arm(None)

        is_whole = _is_whole(io, name, query)
        # What is claimed need not be gone for the checkpoint to be whole.
        assert is_told or (name == "claim" and is_whole)
        if name != "claim" or not is_whole:
            with open_savepoint(place_of("/savepoint", io=io)) as (savepoint, _):
                assert savepoint.version == 2
        assert {p: d for p, d in files.items() if p.startswith("/query")} == {
            path: io.inner.read(path) for path in io.inner.paths() if path.startswith("/query")
        }
        if name != "claim":
            assert {path: io.inner.read(path) for path in files} == files
        if is_whole:
            assert name == "claim" or index >= max(writes)
            continue
        act(io)
        assert _is_whole(io, name, query)


def _is_whole(io, name, query):
    """Whether there is a savepoint or checkpoint that holds all; anything else is refused."""
    try:
        if name in ("canonical", "native"):
            with open_savepoint(place_of("/new", io=io)) as (savepoint, _):
                assert savepoint.version == 2
        else:
            fields = json.loads(io.read_tail("/new/metadata", 1 << 20)[0])
            if "id" not in fields:
                with pytest.raises(NotFoundError):
                    read_rows("/new", io)
                return False
    except NotFoundError:
        return False
    assert read_rows("/new", io) == query.expected()
    return True


def test_second_writer_of_a_directory_is_fenced(tmp_path):
    """Catches a directory in which the files of two restores are mixed."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    first = at(tmp_path / "savepoint", kind=Savepoint, options=OPTIONS)

    def meanwhile(done, total):
        if done == total:
            restore(tmp_path / "savepoint", tmp_path / "again")

    with pytest.raises(FencedError, match="begun anew"):
        first.restore(tmp_path / "again", num_partitions=2, progress=meanwhile)
    assert read_rows(tmp_path / "again") == query.expected()
    with open_checkpoint(place_of(tmp_path / "again")) as checkpoint:
        assert checkpoint.num_partitions == 4
        assert checkpoint.operators[0].stores[0].num_partitions == 4


def test_savepoint_is_claimed_behind_a_link(tmp_path):
    """Catches a claim that fails when the checkpoint is whole, and cannot be done again."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    (tmp_path / "latest").symlink_to(tmp_path / "savepoint")

    Savepoint(tmp_path / "latest").restore(tmp_path / "new", claim=True)

    assert Checkpoint(tmp_path / "new").verify(deep=True).ok
    assert files_below(tmp_path / "savepoint") == {}


@pytest.mark.parametrize("deletes", ["claim", "schedule"])
def test_what_a_link_in_a_savepoint_leads_to_stays(tmp_path, deletes):
    """Catches a savepoint that goes, and takes everything beside it with it."""
    query = make_query(tmp_path / "query")
    kept = tmp_path / "kept"
    taken = Path(Checkpoint(query.path).retain_savepoint(kept).taken)
    (tmp_path / "mine").mkdir()
    for of_user in (tmp_path / "mine" / "file", kept / "file"):
        of_user.write_text("of the user")
    for name, to in (("up", ".."), ("apart", "../../mine"), ("twice", "up")):
        (taken / name).symlink_to(to)
    query.run_batch({"key-0": "later"})

    if deletes == "claim":
        with pytest.raises(CorruptionError, match="leads out of the checkpoint"):
            Savepoint(taken).restore(tmp_path / "new", claim=True)
        assert Savepoint(taken).verify(deep=True).ok
        (taken / "apart").unlink()
        Savepoint(taken).restore(tmp_path / "new", claim=True)
        assert Checkpoint(tmp_path / "new").verify(deep=True).ok
    else:
        other = Checkpoint(query.path).retain_savepoint(kept, keep=1)
        assert other.deleted == (str(taken),)
        assert Savepoint(other.taken).verify(deep=True).ok

    assert not taken.exists()
    for of_user in (tmp_path / "mine" / "file", kept / "file"):
        assert of_user.read_text() == "of the user"
    assert Checkpoint(query.path).verify(deep=True).ok


def test_a_link_to_the_files_of_a_savepoint_leads_nowhere_else(tmp_path):
    """Catches a directory of the user's that is deleted because a stranger's `state` is it."""
    query = make_query(tmp_path / "query")
    Checkpoint(query.path).savepoint(tmp_path / "savepoint")
    (tmp_path / "savepoint" / "state").rename(tmp_path / "mine")
    (tmp_path / "mine" / "letter").write_text("of the user")
    (tmp_path / "savepoint" / "state").symlink_to(tmp_path / "mine")

    Savepoint(tmp_path / "savepoint").restore(tmp_path / "new", claim=True)

    assert Checkpoint(tmp_path / "new").verify(deep=True).ok
    assert not (tmp_path / "savepoint").exists()
    assert (tmp_path / "mine" / "letter").exists()


def test_directory_of_one_who_was_killed_in_its_first_write_is_taken(tmp_path):
    """Catches a command that is refused when it is repeated, as its documentation says."""
    query = make_query(tmp_path / "query")
    new = tmp_path / "new"
    new.mkdir()
    (new / ".tmp-0123").write_text("{")

    Checkpoint(query.path).savepoint(new)

    assert Savepoint(new).verify(deep=True).ok
    (new / ".other").write_text("")
    with pytest.raises(InvalidArgumentError, match="checkpoint-exists"):
        Checkpoint(query.path).branch(new)


def test_no_directory_for_temporary_files_is_named(tmp_path, monkeypatch):
    """Catches an error of the system, which no caller expects: schedules would end by it."""
    query = make_query(tmp_path / "query")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    for act in (
        lambda: Checkpoint(query.path).info,
        lambda: Checkpoint(query.path).savepoint(tmp_path / "new"),
    ):
        with pytest.raises(StorageError, match=r"temporary files.*TMPDIR"):
            act()
