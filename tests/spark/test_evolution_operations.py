"""Operations on the checkpoint of a query whose schemas have changed; it goes on after each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import IncompatibleError
from statestore.core.providers import SPARK_PROVIDERS

from .conftest import EXTENDED, PROVIDER
from .harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND, Lane
from .state_evolution import ROUND, evolve, evolving
from .stopped import Stopped, rows_of

BEFORE, AFTER = ROUND[:4], ROUND[4]
"""Schemas that the query had, and the one it has when it goes on."""
VARIABLES = ("value", "list", "map")
pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(PROVIDER not in (FILESYSTEM, ROCKSDB_BACKEND), reason="state is in files"),
]


@pytest.fixture(scope="module")
def make_stopped(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stopped]:
    """Returns a function that runs the query on a provider, once each."""
    made: dict[str, Stopped] = {}

    def make(provider: str) -> Stopped:
        if provider not in made:
            lane = Lane(spark, evolving(BEFORE[0]), provider, tmp_path_factory.mktemp("evolved"))
            evolve(lane, BEFORE)
            lane.query = evolving(AFTER)
            made[provider] = Stopped(lane)
        return made[provider]

    return make


@pytest.fixture(scope="module")
def stopped(make_stopped: Callable[[str], Stopped]) -> Stopped:
    """The query on the state backend under test."""
    return make_stopped(PROVIDER)


@pytest.fixture(scope="module")
def expected(stopped: Stopped, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the query returns where nothing was done to its checkpoint."""
    path = tmp_path_factory.mktemp("untouched") / "checkpoint"
    shutil.copytree(stopped.path, path)
    (rows,) = stopped.go_on(str(path))
    assert sum(row.count("[") for row in rows) > 5, "little held: the tests test little"
    return [rows]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: Checkpoint(path).rescale(6), id="by-key-group", marks=EXTENDED),
        pytest.param(lambda path: Checkpoint(path).rescale(7), id="hashed-anew"),
    ],
)
def test_query_goes_on_when_its_checkpoint_was_rescaled(
    stopped: Stopped, expected: list[list[str]], tmp_path: Path, change: Callable[[str], Any]
) -> None:
    """Catches rows that lose the schema they were written with, or a partition without it."""
    path = stopped.copy(tmp_path / "copy")
    before = rows_of(path, VARIABLES)

    change(path)

    assert Checkpoint(path).verify(deep=True).findings == ()
    assert rows_of(path, VARIABLES) == before
    assert stopped.go_on(path) == expected


@pytest.mark.parametrize(
    ("backend", "num_partitions"),
    [
        pytest.param("rocksdb", 6, marks=EXTENDED),
        pytest.param("rocksdb", None, marks=EXTENDED),
        pytest.param("filesystem", 2, marks=EXTENDED),
    ],
)
def test_query_goes_on_from_a_savepoint(
    stopped: Stopped,
    expected: list[list[str]],
    tmp_path: Path,
    backend: str,
    num_partitions: int | None,
) -> None:
    """Catches a full state written without the schemas of its rows."""
    savepoint, new = str(tmp_path / "savepoint"), str(tmp_path / "new")
    Checkpoint(stopped.path).savepoint(savepoint)

    Savepoint(savepoint).restore(new, backend=backend, num_partitions=num_partitions)

    assert Checkpoint(new).verify(deep=True).findings == ()
    assert rows_of(new, VARIABLES) == rows_of(str(stopped.path), VARIABLES)
    provider = FILESYSTEM if backend == "filesystem" else ROCKSDB_BACKEND
    assert stopped.go_on(new, provider) == expected


@pytest.mark.needs("to-spark-rocksdb")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(ROCKSDB, "filesystem", id="to-filesystem"),
        pytest.param(ROCKSDB, "rocksdb", id="to-rocksdb", marks=EXTENDED),
        pytest.param(PROVIDER, "spark-rocksdb", id="to-spark-rocksdb"),
    ],
)
def test_query_goes_on_with_another_provider(
    make_stopped: Callable[[str], Stopped],
    expected: list[list[str]],
    tmp_path: Path,
    source: str,
    target: str,
) -> None:
    """Catches rows of former schemas that are copied as if they were of the newest."""
    stopped = make_stopped(source)
    new = str(tmp_path / "new")

    checkpoint = Checkpoint(stopped.path, spark=stopped.lane.spark)
    if target in SPARK_PROVIDERS:
        checkpoint.convert(new, target)
    else:
        checkpoint.restore(new, backend=target)

    assert Checkpoint(new).verify(deep=True).findings == ()
    assert rows_of(new, VARIABLES) == rows_of(str(stopped.path), VARIABLES)
    providers = {"spark-rocksdb": ROCKSDB, "rocksdb": ROCKSDB_BACKEND, "filesystem": FILESYSTEM}
    assert stopped.go_on(new, providers[target]) == expected


def test_checkpoint_of_built_in_is_read_as_it_is(
    make_stopped: Callable[[str], Stopped], stopped: Stopped
) -> None:
    """Catches Avro that Python reads otherwise than the JVM writes it, of any version."""
    ours, built_in = str(stopped.path), str(make_stopped(ROCKSDB).path)

    assert Checkpoint(built_in).verify(versions="all", deep=True).findings == ()
    assert rows_of(built_in, VARIABLES) == rows_of(ours, VARIABLES)
    for name in VARIABLES:
        for version in range(1, len(BEFORE)):
            found, expected = (
                Checkpoint(path).rows(name, version=version).read() for path in (built_in, ours)
            )
            assert found.schema == expected.schema
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
        counts = [
            Checkpoint(path).rows(name, version=1).count_differences(Checkpoint(path).rows(name))
            for path in (built_in, ours)
        ]
        assert counts[0] == counts[1]
        with pytest.raises(IncompatibleError, match=r"different ways.*as Avro"):
            Checkpoint(built_in).rows(name).count_differences(Checkpoint(ours).rows(name))
