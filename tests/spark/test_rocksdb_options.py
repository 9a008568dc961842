"""Options of the rocksdb backend, in a query."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore.codec.sealed_file import SealedFile

from .harness import NUM_PARTITIONS, ROCKSDB_BACKEND, STATE_STORE, Lane, run_plan
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

IGNORED = f"{STATE_STORE}.rocksdb.writeBufferSizeMB"


@pytest.fixture(scope="module")
def lane(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lane:
    """An aggregation, restarted once, whose commits write the whole state."""
    query = replace(AGGREGATION, plan=one_input(1, 1))
    # The second one as a user may spell it: Spark's RocksDB provider takes its keys in any case.
    conf = {f"{STATE_STORE}.rocksdb.incremental": "false", IGNORED.replace("Size", "size"): "64"}
    made = Lane(spark, query, ROCKSDB_BACKEND, tmp_path_factory.mktemp("whole"), conf)
    run_plan(made)
    return made


def test_every_version_is_one_whole_file_when_not_incremental(lane: Lane) -> None:
    """Catches an option that the shim or the engine does not follow in a query."""
    numbers = lane.counts("numRowsTotal")
    for batch_id, metrics in enumerate(lane.custom_metrics()):
        name = f"{batch_id + 1}.delta.sst"
        trailers = [
            SealedFile(str(lane.checkpoint / "state" / "0" / str(partition) / name)).trailer
            for partition in range(NUM_PARTITIONS)
        ]
        assert [trailer.files for trailer in trailers] == [()] * NUM_PARTITIONS
        assert [sum(trailer.rows.put for trailer in trailers)] == numbers[batch_id]
        assert 0 < metrics["statestoreDeltaBytes"] == metrics["statestoreVersionBytes"]
    assert batch_id == 1


def test_log_names_an_option_that_is_ignored(lane: Lane, application_root: Path) -> None:
    """Catches an option of Spark's RocksDB provider that silently does nothing."""
    log = (application_root / "spark.log").read_text()

    said = f"option is ignored by the rocksdb backend: key={IGNORED}, reason=rows are ingested"
    assert log.count(said) == 1


def test_log_names_no_option_that_spark_pins(lane: Lane, application_root: Path) -> None:
    """Catches a warning about what nobody set: Spark sets again what the offset log has."""
    log = (application_root / "spark.log").read_text()
    (pinned,) = {
        key
        for key in json.loads((lane.checkpoint / "offsets" / "1").read_text().splitlines()[1])[
            "conf"
        ]
        if key.endswith("rocksdb.formatVersion")
    }

    assert len(lane.batches) == 2
    assert f"key={pinned}" not in log
