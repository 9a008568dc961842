"""Operations on the checkpoint of a query with state variables; the query goes on after each."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statestore
from statestore import plan_branch, plan_restore, rescale, take_savepoint, undo_rescale
from statestore.operations.reading.diff import diff
from statestore.operations.reading.inspection import describe, find_rows
from statestore.operations.upkeep.expire import expire
from statestore.operations.upkeep.listing import list_versions
from statestore.operations.upkeep.repair import repair
from statestore.operations.upkeep.verify import verify
from tests.damaged import flip

from .conftest import EXTENDED, PROVIDER, RunOnce
from .harness import FILESYSTEM, PROVIDER_CLASS, ROCKSDB, ROCKSDB_BACKEND, Lane
from .queries import generate_events
from .state_variables import EVENT_TIME

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(PROVIDER not in (FILESYSTEM, ROCKSDB_BACKEND), reason="state is in files"),
]
VARIABLES = ("count", "seen", "totals", "$eventTimers_keyToTimestamp")


class Stopped:
    """A query that was stopped, with one more file to read.

    Attributes:
        path: Its checkpoint; tests work on copies, whose query goes on with the same input.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.path = lane.checkpoint
        lane.feed({"events": generate_events("events", 9, num_rows=30)})

    def copy(self, path: Path) -> str:
        """Return a copy of the checkpoint, made with our own command: its schemas are its own."""
        with plan_branch(str(self.path), str(path)) as branch:
            branch.run()
        return str(path)

    def go_on(self, path: str, provider: str | None = None) -> list[list[str]]:
        """Run the query from a checkpoint; return the rows of each batch."""
        lane = copy.copy(self.lane)
        lane.checkpoint, lane.batches = Path(path), {}
        if provider is not None:
            lane.conf = {**lane.conf, PROVIDER_CLASS: provider}
        lane.run()
        return [lane.batches[batch] for batch in sorted(lane.batches)]


@pytest.fixture(
    scope="module",
    params=[PROVIDER, pytest.param(ROCKSDB_BACKEND, marks=EXTENDED)],
    ids=["under-test", "rocksdb"],
)
def stopped(request: pytest.FixtureRequest, run_once: RunOnce) -> Stopped:
    """The query on a state backend."""
    return Stopped(run_once(EVENT_TIME, request.param))


@pytest.fixture(scope="module")
def built_in(run_once: RunOnce) -> Stopped:
    """The query on Spark's provider."""
    return Stopped(run_once(EVENT_TIME, ROCKSDB))


@pytest.fixture(scope="module")
def expected(stopped: Stopped, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the query returns where nothing was done to its checkpoint."""
    path = tmp_path_factory.mktemp("untouched") / "checkpoint"
    shutil.copytree(stopped.path, path)
    rows = stopped.go_on(str(path))
    assert sum(map(len, rows)) > 5, "few rows: the tests test little"
    return rows


def _schemas(path: str) -> set[str]:
    """Directories that a checkpoint takes its schemas from, by all its metadata."""
    found = set()
    for file in Path(path).glob("state/*/_metadata/v2/[0-9]*"):
        for store in json.loads(file.read_text().splitlines()[-1])["stateStoreInfo"]:
            for uri in store["stateSchemaFilePaths"]:
                assert Path(uri.removeprefix("file:")).exists(), uri
                found.add(uri.removeprefix("file:").partition("/state/")[0])
    return found


def _rows(path: str) -> dict[str, list[str]]:
    """All rows of the variables, whatever their state partition."""
    return {
        name: sorted(
            repr((row["key"], row["value"]))
            for row in statestore.read(path, column_family=name).to_pylist()
        )
        for name in VARIABLES
    }


def test_variables_are_listed_read_and_compared(stopped: Stopped) -> None:
    """Catches an operator that is overlooked, or a variable that Spark reads otherwise."""
    path, spark = str(stopped.path), stopped.lane.session()

    assert verify(path, versions="all", deep=True).findings == ()
    listed = list_versions(path)
    assert {variable.name for variable in listed.operators[0].variables} == {*VARIABLES}
    assert listed.versions[0].num_rows
    (store,) = describe(path)
    kinds = {family.name: family.variable for family in store.column_families if family.variable}
    assert kinds == dict(
        zip(VARIABLES, ("ValueState", "ListState", "MapState", "TimerState"), strict=True)
    )
    reader = spark.read.format("statestore").option("path", path)
    for name in ("count", "seen"):
        rows = reader.option("stateVarName", name).load().collect()
        values = [row["list_element" if name == "seen" else "value"].asDict() for row in rows]
        found = statestore.read(path, column_family=name).to_pylist()
        assert sorted(map(repr, values)) == sorted(repr(row["value"]) for row in found)
    key = statestore.read(path, column_family="totals").to_pylist()[0]["key"]["key"]
    of_key = find_rows(path, [key], column_family="totals").to_pylist()
    assert of_key
    assert all(row["key"]["key"] == key for row in of_key)
    changes = diff(path, path, old_version=1, column_family="seen").to_pylist()
    assert {row["change"] for row in changes} >= {"added", "changed"}
    with pytest.raises(statestore.StateStoreError, match="in variables, and none is named"):
        statestore.read(path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: rescale(path, 6), id="by-key-group"),
        pytest.param(lambda path: rescale(path, 7), id="hashed-anew", marks=EXTENDED),
        pytest.param(lambda path: (rescale(path, 6), undo_rescale(path)), id="undone"),
        pytest.param(lambda path: expire(path, 2), id="expired"),
    ],
)
def test_query_goes_on_when_its_checkpoint_was_changed(
    stopped: Stopped, expected: list[list[str]], tmp_path: Path, change: Callable[[str], Any]
) -> None:
    """Catches variables or timers that are lost, doubled, or where no key looks for them."""
    path = stopped.copy(tmp_path / "copy")
    before = _rows(path)

    change(path)

    assert verify(path, deep=True).findings == ()
    assert _rows(path) == before
    assert _schemas(path) == {path}
    assert stopped.go_on(path) == expected


@pytest.mark.parametrize(
    ("backend", "num_partitions"),
    [
        ("rocksdb", 2),
        pytest.param("filesystem", 6, marks=EXTENDED),
        pytest.param("filesystem", None, marks=EXTENDED),
        pytest.param("rocksdb", None, marks=EXTENDED),
    ],
)
def test_query_goes_on_from_a_savepoint_when_nothing_else_is_left(
    stopped: Stopped,
    expected: list[list[str]],
    tmp_path: Path,
    backend: str,
    num_partitions: int | None,
) -> None:
    """Catches a savepoint that reads the schemas of its checkpoint, or is bound to its place."""
    path = stopped.copy(tmp_path / "copy")
    before = _rows(path)
    take_savepoint(path, str(tmp_path / "savepoint"))
    shutil.rmtree(path)
    moved = (tmp_path / "savepoint").rename(tmp_path / "moved")

    with plan_restore(
        str(moved), str(tmp_path / "new"), backend=backend, num_partitions=num_partitions
    ) as plan:
        plan.run()
    shutil.rmtree(moved)

    new = str(tmp_path / "new")
    assert _schemas(new) == {new}
    assert _rows(new) == before
    assert verify(new, deep=True).findings == ()
    provider = FILESYSTEM if backend == "filesystem" else ROCKSDB_BACKEND
    assert stopped.go_on(new, provider) == expected


def test_query_goes_on_from_an_older_version_after_repair(
    stopped: Stopped, built_in: Stopped, tmp_path: Path
) -> None:
    """Catches metadata of batches that are no more, which a later restart takes for the newest."""
    path = str(tmp_path / "copy")  # a branch has no older versions
    shutil.copytree(stopped.path, path, ignore=shutil.ignore_patterns("statestore-leases"))
    newest = list_versions(path).versions[0].version
    # As where the run began with its last batch.
    later = Path(path, f"state/0/_metadata/v2/{newest - 1}")
    shutil.copy(later.parent / "0", later)
    for version in (newest, newest - 1):
        for delta in Path(path).glob(f"state/0/1/{version}[._]*delta*"):
            flip(delta, 40)

    done = repair(path)

    assert done.version == newest - 2
    assert not later.exists()
    older = shutil.copytree(built_in.path, tmp_path / "reference")
    for log in ("offsets", "commits", "sources/0"):  # so Spark itself goes back
        kept = {file.name for file in Path(path, log).iterdir()}
        for file in (older / log).glob("[0-9]*"):
            if file.name not in kept:
                file.unlink()
                file.with_name(f".{file.name}.crc").unlink()
    assert stopped.go_on(path) == built_in.go_on(str(older))
    assert verify(path, deep=True).findings == ()
