"""Every stateful operator returns the rows Spark's own provider returns, across restarts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from statestore.codec.partition_key import compute_key_groups
from statestore.codec.state_file import StateFile

from .conftest import (
    BODY,
    ON_EACH_SPARK,
    OURS,
    PROVIDER,
    MakeLane,
    RunReference,
    state_in_files,
)
from .harness import (
    FILESYSTEM,
    FORMAT_2,
    HDFS,
    HEAP,
    NUM_PARTITIONS,
    ROCKSDB,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Lane,
    Query,
    assert_same,
    run_plan,
)
from .queries import (
    AGGREGATION,
    AGGREGATION_THEN_DEDUP,
    EVENT_TIME_GROUPS,
    JOIN,
    OPERATORS,
    SESSION_APPEND,
    WATERMARK_DEDUP,
    WINDOW_APPEND,
    WINDOW_UPDATE,
    one_input,
)
from .state_rows import assert_read

UNLOAD = {f"{STATE_STORE}.unloadOnCommit": "true"}
ASK_NOTHING_ELSE = {
    "aggregation-global-complete",
    "dedup-then-aggregation",
    "join-inner-format-2",
    "join-inner-no-watermark-format-1",
    "join-inner-no-watermark-format-2",
    "join-right-outer-format-2",
    "join-then-window-format-2",
    "map-groups",
    "pandas-groups-processing-time-update",
    "session-complete",
    "window-append-format-1",
    "window-complete",
    "window-sliding-append",
    "window-update",
}
"""Queries that ask of a store what others ask: the two parts of each are other queries."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def _cases(queries: Sequence[Query], extended: Sequence[Query] = ()) -> list[Any]:
    """Return queries for the provider under test and, beside the usual one, other backends.

    Other Sparks have all of the first: each backend is the provider under test of a run.
    """
    cases = [
        pytest.param(PROVIDER, query, id=query.name, marks=pytest.mark.each_spark)
        for query in queries
    ]
    cases += [
        pytest.param(PROVIDER, query, id=query.name, marks=ON_EACH_SPARK) for query in extended
    ]
    if PROVIDER == FILESYSTEM:
        cases += [
            pytest.param(provider, query, id=f"{backend}-{query.name}")
            for backend, provider in (("rocksdb", ROCKSDB_BACKEND), ("heap", HEAP))
            for query in queries
        ]
    return cases


def _compare(
    make_lane: MakeLane,
    run_reference: RunReference,
    query: Query,
    conf: Mapping[str, str] | None = None,
    provider: str = PROVIDER,
) -> Lane:
    candidate = make_lane(query, provider, conf)
    with ThreadPoolExecutor(1) as pool:
        reference = pool.submit(run_reference, query)
        run_plan(candidate)
        expected = reference.result()
    assert any(candidate.batches.values()), "the query returned nothing: the test tests nothing"
    assert_same(expected, candidate)
    if provider in (FILESYSTEM, ROCKSDB_BACKEND):
        _assert_key_groups(candidate)
    return candidate


def _assert_key_groups(lane: Lane) -> None:
    """Every row lies in a key group of its partition: the store can be rescaled by key groups.

    Python finds the same key group from the key's bytes as the shim did.
    """
    deltas = sorted((lane.checkpoint / "state").rglob("*.delta.*"))
    assert deltas
    for path in deltas:
        file = StateFile(str(path))
        assert file.trailer.rescalable, path
        if path.suffix == ".sst":
            continue
        for index in range(file.num_batches):
            batch = file.batch(index)
            groups = batch.column(0).to_numpy()
            assert (groups % NUM_PARTITIONS == file.trailer.store.partition).all(), path
            (family,) = file.trailer.column_families
            store, max_parallelism = file.trailer.store.name, file.trailer.max_parallelism
            computed = compute_key_groups(batch.column(3), store, family, max_parallelism)
            assert computed.tolist() == groups.tolist(), path


@pytest.mark.parametrize(
    ("provider", "query"),
    _cases(
        [query for query in OPERATORS if query.name not in ASK_NOTHING_ELSE],
        extended=[query for query in OPERATORS if query.name in ASK_NOTHING_ELSE],
    ),
)
@pytest.mark.each_once
def test_rows_equal_built_in_when_restarted(
    make_lane: MakeLane, run_reference: RunReference, provider: str, query: Query
) -> None:
    """Catches a lost, stale or foreign row of any operator, batch by batch."""
    if query is AGGREGATION_THEN_DEDUP and PROVIDER == ROCKSDB:
        pytest.skip("Spark's RocksDB provider asserts on another operator's read store")

    candidate = _compare(make_lane, run_reference, query, provider=provider)

    if provider in (FILESYSTEM, ROCKSDB_BACKEND):
        assert_read(candidate)


@pytest.mark.parametrize(
    ("provider", "query"),
    _cases([JOIN, AGGREGATION, WATERMARK_DEDUP], extended=[SESSION_APPEND, EVENT_TIME_GROUPS]),
)
@pytest.mark.each_once
def test_rows_equal_built_in_when_checkpoint_format_is_2(
    make_lane: MakeLane, run_reference: RunReference, provider: str, query: Query
) -> None:
    """Catches a version loaded by its number where the checkpoint ID names another attempt."""
    candidate = _compare(make_lane, run_reference, query, FORMAT_2, provider)

    last = max((int(path.name), path) for path in (candidate.checkpoint / "commits").glob("[0-9]*"))
    ids = json.loads(last[1].read_text().splitlines()[1])["stateUniqueIds"]["0"]
    assert len(ids) == NUM_PARTITIONS
    for partition, stores in enumerate(ids):
        assert len(stores) == (4 if query is JOIN else 1)
        if provider in (FILESYSTEM, ROCKSDB_BACKEND):
            folder = candidate.checkpoint / "state" / "0" / str(partition)
            names = {path.stem for path in folder.rglob("*.delta.*")}
            assert {f"{last[0] + 1}_{unique}.delta" for unique in stores} <= names


@pytest.mark.needs("unload-on-commit")
@pytest.mark.parametrize(
    ("provider", "query"),
    _cases([WINDOW_APPEND, JOIN]),
)
@pytest.mark.each_once
def test_rows_equal_built_in_when_unloaded_on_commit(
    make_lane: MakeLane, run_reference: RunReference, provider: str, query: Query
) -> None:
    """Catches a provider that needs to stay loaded between batches, or maintenance after close."""
    _compare(make_lane, run_reference, query, UNLOAD, provider)


@pytest.mark.extended
@pytest.mark.needs("unload-on-commit")
def test_rows_equal_built_in_when_format_2_and_unloaded(
    make_lane: MakeLane, run_reference: RunReference
) -> None:
    """Catches a lineage kept only in the loaded provider."""
    _compare(make_lane, run_reference, AGGREGATION, {**FORMAT_2, **UNLOAD})


@state_in_files
@pytest.mark.ours
def test_rows_equal_built_in_when_compressed(
    make_lane: MakeLane, run_reference: RunReference
) -> None:
    """Catches an option that is read but not applied, or compressed files that cannot be read."""
    key = "rocksdb.compression" if BODY == "sst" else "file.compression"
    candidate = _compare(make_lane, run_reference, WINDOW_UPDATE, {f"{STATE_STORE}.{key}": "zstd"})

    deltas = sorted((candidate.checkpoint / "state").rglob(f"*.delta.{BODY}"))
    assert any(ZSTD_MAGIC in path.read_bytes() for path in deltas)


@pytest.mark.ours
def test_rows_equal_built_in_when_a_batch_outgrows_memory(
    make_lane: MakeLane, run_reference: RunReference
) -> None:
    """Catches a spilled overlay that loses, repeats or reorders writes of its batch."""
    plan = one_input(1, 1, num_rows=40_000, num_keys=30_000)
    query = replace(AGGREGATION, name="aggregation-spilled", plan=plan)

    candidate = _compare(
        make_lane, run_reference, query, {f"{STATE_STORE}.overlay.maxBytes": str(1 << 20)}
    )

    spilled = [metrics["statestoreSpilledRuns"] for metrics in candidate.custom_metrics()]
    assert min(spilled) > 0, "no state partition outgrew the overlay: the test tests nothing"


def test_rows_equal_when_providers_run_side_by_side(make_lane: MakeLane) -> None:
    """Catches state that leaks between queries of one application, or between providers."""
    lanes = [
        make_lane(WINDOW_UPDATE, HDFS),
        make_lane(WINDOW_UPDATE, ROCKSDB),
        make_lane(WINDOW_UPDATE),
        make_lane(WINDOW_UPDATE),
        make_lane(WINDOW_UPDATE, HEAP if OURS else PROVIDER),
        make_lane(WINDOW_UPDATE, conf=FORMAT_2),
    ]

    run_plan(*lanes)

    for candidate in lanes[1:]:
        assert_same(lanes[0], candidate)
