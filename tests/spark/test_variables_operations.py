"""Operations on the checkpoint of a query with state variables; the query goes on after each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statestore
from statestore import Checkpoint, Savepoint
from tests.damaged import flip

from .conftest import EXTENDED, PROVIDER, RunOnce
from .harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND
from .state_variables import EVENT_TIME
from .stopped import Stopped, rows_of

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(PROVIDER not in (FILESYSTEM, ROCKSDB_BACKEND), reason="state is in files"),
]
VARIABLES = ("count", "seen", "totals", "$eventTimers_keyToTimestamp")


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


def test_variables_are_listed_read_and_compared(stopped: Stopped) -> None:
    """Catches an operator that is overlooked, or a variable that Spark reads otherwise."""
    path, spark = str(stopped.path), stopped.lane.session()

    assert Checkpoint(path).verify(versions="all", deep=True).findings == ()
    listed = Checkpoint(path).info
    assert {variable.name for variable in listed.operators[0].variables} == {*VARIABLES}
    assert Checkpoint(path).versions()[0].num_rows
    (store,) = Checkpoint(path).inspect()
    kinds = {family.name: family.variable for family in store.column_families if family.variable}
    assert kinds == dict(
        zip(VARIABLES, ("ValueState", "ListState", "MapState", "TimerState"), strict=True)
    )
    reader = spark.read.format("statestore").option("path", path)
    for name in ("count", "seen"):
        rows = reader.option("stateVarName", name).load().collect()
        values = [row["list_element" if name == "seen" else "value"].asDict() for row in rows]
        found = Checkpoint(path).rows(name).read().to_pylist()
        assert sorted(map(repr, values)) == sorted(repr(row["value"]) for row in found)
    key = Checkpoint(path).rows("totals").read().to_pylist()[0]["key"]["key"]
    of_key = Checkpoint(path).rows("totals").find([key]).to_pylist()
    assert of_key
    assert all(row["key"]["key"] == key for row in of_key)
    changes = (
        Checkpoint(path).rows("seen", version=1).diff(Checkpoint(path).rows("seen")).to_pylist()
    )
    assert {row["change"] for row in changes} >= {"added", "changed"}
    with pytest.raises(statestore.StateStoreError, match="known='count, seen, totals'"):
        Checkpoint(path).rows().read()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: Checkpoint(path).rescale(6), id="by-key-group"),
        pytest.param(lambda path: Checkpoint(path).rescale(7), id="hashed-anew", marks=EXTENDED),
        pytest.param(
            lambda path: (Checkpoint(path).rescale(6), Checkpoint(path).undo_rescale()), id="undone"
        ),
        pytest.param(lambda path: Checkpoint(path).expire(2), id="expired"),
    ],
)
def test_query_goes_on_when_its_checkpoint_was_changed(
    stopped: Stopped, expected: list[list[str]], tmp_path: Path, change: Callable[[str], Any]
) -> None:
    """Catches variables or timers that are lost, doubled, or where no key looks for them."""
    path = stopped.copy(tmp_path / "copy")
    before = rows_of(path, VARIABLES)

    change(path)

    assert Checkpoint(path).verify(deep=True).findings == ()
    assert rows_of(path, VARIABLES) == before
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
    before = rows_of(path, VARIABLES)
    Checkpoint(path).savepoint(tmp_path / "savepoint")
    shutil.rmtree(path)
    moved = (tmp_path / "savepoint").rename(tmp_path / "moved")

    Savepoint(moved).restore(tmp_path / "new", backend=backend, num_partitions=num_partitions)
    shutil.rmtree(moved)

    new = str(tmp_path / "new")
    assert _schemas(new) == {new}
    assert rows_of(new, VARIABLES) == before
    assert Checkpoint(new).verify(deep=True).findings == ()
    provider = FILESYSTEM if backend == "filesystem" else ROCKSDB_BACKEND
    assert stopped.go_on(new, provider) == expected


BY_KEY, BY_TIME = "$eventTimers_keyToTimestamp", "$eventTimers_timestampToKey"


def test_timers_are_edited_by_key_and_by_time_at_once(
    stopped: Stopped, expected: list[list[str]], tmp_path: Path
) -> None:
    """Catches a timer that only one of both families has: it fires in every batch, or never."""
    path = stopped.copy(tmp_path / "copy")
    before = rows_of(path, (BY_KEY, BY_TIME))
    timers = Checkpoint(path).rows(BY_KEY).read().select(["key"])
    assert timers.num_rows > 2
    some = timers.slice(0, 1)
    time = some["key"][0].as_py()["expiryTimestampMs"]

    done = Checkpoint(path).edit(BY_KEY, delete=f"expiryTimestampMs = {time}")
    assert [one.column_family for one in done.families] == [BY_KEY, BY_TIME]
    left = rows_of(path, (BY_KEY, BY_TIME))
    assert len(left[BY_KEY]) == len(left[BY_TIME]) < len(before[BY_KEY])
    assert not any(str(time) in row for rows in left.values() for row in rows)
    Checkpoint(path).edit(BY_TIME, delete=timers.to_reader(), all_rows=True)
    assert rows_of(path, (BY_KEY, BY_TIME)) == {BY_KEY: [], BY_TIME: []}
    edits = {BY_KEY: statestore.Edited(upsert=timers)}
    made = Checkpoint(path).transform(tmp_path / "savepoint", edits).made
    assert rows_of(made.uri, (BY_KEY, BY_TIME)) == before
    one_of_both = {BY_KEY: statestore.Edited(upsert=timers), BY_TIME: lambda rows: rows}
    made = Checkpoint(path).transform(tmp_path / "apart", one_of_both).made
    apart = made.restore(tmp_path / "restored").made
    apart.edit(BY_TIME, delete=timers, all_rows=True)
    assert rows_of(apart.uri, (BY_KEY, BY_TIME)) == {BY_KEY: [], BY_TIME: []}

    Checkpoint(path).edit(BY_TIME, upsert=timers)
    assert stopped.go_on(path) == expected


def test_query_goes_on_from_an_older_version_after_repair(
    stopped: Stopped, built_in: Stopped, tmp_path: Path
) -> None:
    """Catches metadata of batches that are no more, which a later restart takes for the newest."""
    path = str(tmp_path / "copy")  # a branch has no older versions
    shutil.copytree(stopped.path, path, ignore=shutil.ignore_patterns("statestore-leases"))
    newest = Checkpoint(path).versions()[0].version
    # As where the run began with its last batch.
    later = Path(path, f"state/0/_metadata/v2/{newest - 1}")
    shutil.copy(later.parent / "0", later)
    for version in (newest, newest - 1):
        for delta in Path(path).glob(f"state/0/1/{version}[._]*delta*"):
            flip(delta, 40)

    done = Checkpoint(path).repair()

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
    assert Checkpoint(path).verify(deep=True).findings == ()
