"""Every operation that makes a new directory dies before any of its changes: either side is whole.

Done again it makes what one undisturbed run makes.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import Checkpoint, Edited, Savepoint, write_savepoint
from statestore.core.errors import StateStoreError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.savepoint.savepoint import open_savepoint
from tests.cases_of_ci import IS_LONG
from tests.checkpoints import OPTIONS, files_below
from tests.faults.steps import Killer, processes
from tests.made_joins import small_join
from tests.rescaled import KEYED, make
from tests.seams import at, place_of

SPARKS = Path(__file__).parents[1] / "golden" / "spark"
UPSERT = pa.table({"key.k": [3, 1000], "value.value": [7, 8]})


@dataclass(frozen=True)
class Copying:
    """An operation that makes `new` of `checkpoint` or `savepoint`, or of what Spark wrote.

    Attributes:
        run: Does it: is given a function that opens a directory on the disk that dies.
        source: The directory that it is done on.
        makes_savepoint: Whether `new` is a savepoint, and no checkpoint.
        claims: Whether the savepoint is gone afterwards.
    """

    run: Callable
    source: str = "checkpoint"
    makes_savepoint: bool = False
    claims: bool = False


COPIES = {
    "savepoint": Copying(lambda of: of("checkpoint").savepoint(of("new")), makes_savepoint=True),
    "savepoint-native": Copying(
        lambda of: of("checkpoint").savepoint(of("new"), form="native"), makes_savepoint=True
    ),
    "branch": Copying(lambda of: of("checkpoint").branch(of("new"))),
    "transform": Copying(
        lambda of: of("checkpoint").transform(of("new"), {0: "SELECT * FROM state"}),
        makes_savepoint=True,
    ),
    "transform-edited": Copying(
        lambda of: of("checkpoint").transform(of("new"), {0: Edited("key.k = 5", UPSERT)}),
        makes_savepoint=True,
    ),
    "transform-join-format": Copying(
        lambda of: of("join").transform(of("new"), join_format=4), "join", makes_savepoint=True
    ),
    "write": Copying(
        lambda of: write_savepoint(of("new"), like=of("checkpoint"), rows={0: UPSERT}),
        makes_savepoint=True,
    ),
    "restore": Copying(lambda of: of("savepoint").restore(of("new")), "savepoint"),
    "restore-rescaled": Copying(
        lambda of: of("savepoint").restore(of("new"), backend="rocksdb", num_partitions=4),
        "savepoint",
    ),
    "restore-rehashed": Copying(
        lambda of: of("savepoint").restore(of("new"), num_partitions=3), "savepoint"
    ),
    "restore-claimed": Copying(
        lambda of: of("savepoint").restore(of("new"), claim=True), "savepoint", claims=True
    ),
    "restore-from-spark": Copying(lambda of: of("hdfs").restore(of("new")), "hdfs"),
    "restore-from-spark-dealt": Copying(
        lambda of: of("rocksdb-ids-variables").restore(of("new"), num_partitions=3),
        "rocksdb-ids-variables",
    ),
    "restore-checkpoint": Copying(
        lambda of: of("checkpoint").restore(of("new"), backend="rocksdb", num_partitions=4)
    ),
}
ONE_MORE = (
    "savepoint-native",
    "transform",
    "transform-join-format",
    "write",
    "restore",
    "restore-rescaled",
    "restore-from-spark-dealt",
    "restore-checkpoint",
)
"""Copies that go the way of another, with other rows: each way is in the short lane."""
EVERY = 1 if IS_LONG else 3
"""Each so many changes a copy is killed; the copies begin at different ones."""


def run(name, root, make_io):
    """Do an operation on the directories below a root."""

    def of(directory):
        kind = Savepoint if directory == "savepoint" else Checkpoint
        return at(f"{root}/{directory}", kind=kind, options=OPTIONS, io=make_io())

    COPIES[name].run(of)


def _run_and_die(name, root, lives):
    killer = Killer(lives)
    run(name, root, lambda: killer)


def is_killed(name, root, lives):
    """Do an operation in a process that dies after some changes; whether it came to that."""
    process = processes.Process(target=_run_and_die, args=(name, str(root), lives))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def is_checkpoint(path):
    """Whether a query starts from a directory."""
    try:
        with open_checkpoint(place_of(str(path))) as checkpoint:
            checkpoint.check_of_query()
            return (path / "metadata").exists()
    except StateStoreError:
        return False


def is_savepoint(path):
    """Whether a directory is taken for a savepoint."""
    try:
        with open_savepoint(place_of(str(path))):
            return True
    except StateStoreError:
        return False


def rows_of(path):
    """Rows of every column family of a checkpoint or savepoint that is whole, as text."""
    directory = at(str(path))
    assert directory.verify(deep=True).findings == ()
    found = {}
    for store in directory.inspect():
        for family in store.column_families:
            if family.address is not None:
                rows = directory.rows(family.address).read()
                # A restore may put a row into another state partition.
                rows = rows.drop_columns(["partition_id"]).to_pylist()
                found[store.name, family.name] = sorted(map(str, rows))
    return found


def of_users(root):
    """The files of all that was there before, but for pins, which expire, whole or not."""
    return {
        name: data
        for name, data in files_below(root).items()
        if not name.startswith("new/") and not name.endswith(".pin") and "/.tmp-" not in name
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.extended if name in ONE_MORE else []) for name in COPIES],
)
def test_copy_that_is_killed_leaves_either_side_whole(tmp_path, name):
    """Catches half a directory taken for whole, and a source that was changed or is lost."""
    copying = COPIES[name]
    original = tmp_path / "original"
    original.mkdir()
    if (SPARKS / copying.source).exists():
        shutil.copytree(SPARKS / copying.source / "checkpoint", original / copying.source)
    elif copying.source == "join":
        small_join(original / "join", num_partitions=2)
    else:
        made = make(original, operators=KEYED, num_partitions=2)
        shutil.rmtree(original / "scratch")
        if copying.source == "savepoint":
            at(made.path, options=OPTIONS).savepoint(original / "savepoint")
            shutil.rmtree(made.path)
    before = of_users(original)
    root = tmp_path / "root"
    shutil.copytree(original, root)
    run(name, root, LocalFileIO)
    expected = rows_of(root / "new")
    assert any(expected.values())

    is_whole = is_savepoint if copying.makes_savepoint else is_checkpoint
    for step in count(list(COPIES).index(name) % EVERY, EVERY):
        shutil.rmtree(root)
        shutil.copytree(original, root)
        if not is_killed(name, root, step):
            break
        new = root / "new"
        assert not (is_checkpoint(new) and is_savepoint(new))
        if is_whole(new):
            # Pins are let go of, and what is claimed is deleted, when the directory is whole.
            assert copying.claims or of_users(root) == before
            assert rows_of(new) == expected
            continue
        assert not is_checkpoint(new)
        assert not is_savepoint(new)
        assert of_users(root) == before
        run(name, root, LocalFileIO)
        assert is_whole(new)
        assert rows_of(new) == expected
        assert copying.claims or of_users(root) == before
        assert not [file for file in files_below(new) if "/.tmp-" in f"/{file}"]
        assert [entry.status for entry in at(str(new)).history()] == ["done"]
    assert step > 5
    assert is_whole(root / "new")
    assert rows_of(root / "new") == expected
    if copying.claims:
        assert not is_savepoint(root / "savepoint")
    else:
        assert of_users(root) == before
