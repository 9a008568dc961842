"""Every method of a state store, called directly, against Spark's own RocksDB provider."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import PROVIDER
from .harness import ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calls_return_the_same_when_random(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Column families, multi-values, scans, range deletes, retries and restarts of a provider.

    Catches a row that is lost, stale or out of order, an iterator that sees later writes, and a row
    whose bytes the store did not copy.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    transcripts = [
        contract.transcript(spark._jsparkSession, f"file:{tmp_path}/{name}", provider, seed, 25)
        for name, provider in (("expected", ROCKSDB), ("candidate", PROVIDER))
    ]
    expected, candidate = (transcript.split("\n") for transcript in transcripts)

    assert len(expected) > 200, "too little was called to prove anything"
    for number, (wanted, found) in enumerate(zip(expected, candidate, strict=True)):
        assert found == wanted, f"line {number}: {expected[max(0, number - 3) : number]}"
