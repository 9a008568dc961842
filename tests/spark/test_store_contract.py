"""Every method of a state store, called directly, against Spark's own RocksDB provider."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import EXTENDED, OURS, PROVIDER
from .harness import HEAP, ROCKSDB, ROCKSDB_BACKEND, STATE_STORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CASES = [
    pytest.param(PROVIDER, seed, id=str(seed), marks=[EXTENDED] if seed > 3 else [])
    for seed in (1, 2, 3, 4, 5, 6)
]
if OURS:
    CASES.append(pytest.param(HEAP, 7, id="heap-7"))
    CASES += [
        pytest.param(
            ROCKSDB_BACKEND, seed, id=f"rocksdb-{seed}", marks=[EXTENDED] if seed > 9 else []
        )
        for seed in (8, 9, 10, 11)
    ]


@pytest.mark.parametrize(("provider", "seed"), CASES)
def test_calls_return_the_same_when_random(
    spark: SparkSession, tmp_path: Path, provider: str, seed: int
) -> None:
    """Column families, multi-values, scans, range deletes, retries, full states, restarts.

    Catches a row that is lost, stale or out of order, an iterator that sees later writes, and a row
    whose bytes the store did not copy.
    """
    compare_transcripts(spark, tmp_path, provider, seed)


@pytest.mark.ours
@pytest.mark.parametrize("seed", [12, pytest.param(13, marks=EXTENDED)])
def test_calls_return_the_same_when_commits_are_ssts(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Catches a row that the JVM's SST lacks or hides, locally or where only the storage has it.

    No row is cached: RocksDB answers every read of a committed row.
    """
    uncached = spark.newSession()
    uncached.conf.set(f"{STATE_STORE}.rocksdb.rowCacheBytes", "0")
    compare_transcripts(uncached, tmp_path, ROCKSDB_BACKEND, seed, has_ssts=True)


def compare_transcripts(
    spark: SparkSession, directory: Path, provider: str, seed: int, *, has_ssts: bool = False
) -> None:
    """Assert that random calls return what they do on Spark's RocksDB provider.

    Args:
        has_ssts: Commits of the rocksdb backend are SSTs, of which every other provider knows
            nothing but what the storage holds.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    transcripts = []
    for used in (ROCKSDB, provider):
        root = elsewhere = directory / used
        if has_ssts:
            root.mkdir()
            elsewhere = directory / f"{used}-elsewhere"
            elsewhere.symlink_to(root)
        made = contract.transcript(
            spark._jsparkSession, f"file:{root}", f"file:{elsewhere}", used, seed, 25, has_ssts
        )
        transcripts.append(made.split("\n"))
    expected, candidate = transcripts

    assert "stale" not in candidate
    comparable = expected.index("stale") if "stale" in expected else len(expected)
    assert comparable > 50, "too little was called to prove anything"
    for number, wanted in enumerate(expected[:comparable]):
        assert candidate[number] == wanted, f"line {number}: {expected[number - 3 : number]}"


@pytest.mark.parametrize("provider", [PROVIDER, *([ROCKSDB_BACKEND] if OURS else [])])
def test_family_that_is_removed_and_made_anew_is_empty(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Catches rows of a dropped state variable that come back in the one that replaces it.

    Spark's own provider cannot replay such a batch, so it is no reference here.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.familyMadeAnew(spark._jsparkSession, f"file:{tmp_path}/state", provider)

    assert lines.split("\n") == [
        "values  false",
        "lists  false",
        "committed 1",
        "values a,b true",
        "values  false",
        "lists a,b true",
        "lists  false",
        "committed 2",
        "values c false",
        "lists c false",
        "committed 3",
    ]


def test_zombie_is_told_when_its_version_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a batch built on rows that checkpoint format v1 no longer holds, and a view that goes
    on showing them after the error.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.twoAttempts(spark._jsparkSession, f"file:{tmp_path}/state", PROVIDER, 1)

    assert lines.split("\n") == [
        "found - committed 1",
        "found base committed 2",
        "found base committed 2",
        "found zombie committed -",
        "found task committed 3",
    ]


def test_zombie_and_task_are_kept_apart_when_format_is_v2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches an attempt that overwrites, or reads, the other one's version."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.twoAttempts(spark._jsparkSession, f"file:{tmp_path}/state", PROVIDER, 2)

    assert lines.split("\n") == [
        "found - committed 1",
        "found base committed 2",
        "found base committed 2",
        "found zombie committed 3",
        "found task committed 3",
    ]
