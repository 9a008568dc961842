"""What a look at byte code cannot see of a Spark that comes next: an assertion for each.

docs/new-spark.md says which other tests belong to them; all are in next_spark.txt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from statestore.io.link_check import ClassPath

from .harness import FILESYSTEM, HDFS, PROVIDER_CLASS, STATE_STORE

OWN_KEY = "spark.statestore.providerClass"
STATE = "org/apache/spark/sql/execution/streaming/state"
OPERATORS = "org/apache/spark/sql/execution/streaming/operators/stateful"
BODIES = {
    "ReadStateStore": {
        "allColumnFamilyNames",
        "iterator",
        "iteratorWithMultiValues",
        "keyExists",
        "multiGet",
        "prefixScan",
        "prefixScanWithMultiValues",
        "rangeScan",
        "rangeScanWithMultiValues",
        "registerColFamily",
        "release",
    },
    "StateStore": {"deleteRange", "release"},
    "StateStoreProvider": {
        "doCleanupMaintenance",
        "doMaintenance",
        "doSnapshotMaintenance",
        "getReadStore",
        "setUnloaded",
        "supportedCustomMetrics",
        "supportedInstanceMetrics",
        "upgradeReadStoreToWriteStore",
    },
    "SupportsFineGrainedReplay": {"getStateStoreChangeDataReader", "replayReadStateFromSnapshot"},
}
"""Methods with a body, which a class need not have, that the shim has or does without knowingly."""
STATE_INFO = {
    "checkpointLocation",
    "numPartitions",
    "operatorId",
    "queryRunId",
    "stateSchemaMetadata",
    "stateStoreCkptIds",
    "storeVersion",
}
_ABSTRACT, _STATIC = 0x0400, 0x0008
pytestmark = pytest.mark.ours


def run(spark: SparkSession, directory: Path, conf: dict[str, str], rows: Iterable[str]) -> None:
    """Run what is new of a query that counts lines, in a session of its own."""
    session = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "1", **conf}.items():
        session.conf.set(key, value)
    (directory / "in").mkdir(exist_ok=True)
    number = len(list((directory / "in").iterdir()))
    (directory / "in" / f"{number}.txt").write_text("\n".join(rows))
    counts = session.readStream.text(f"{directory}/in").groupBy("value").count()
    writer = counts.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
    assert query.awaitTermination(120)
    session.conf.unset(PROVIDER_CLASS)


def pinned(directory: Path) -> list[str]:
    """Return the provider that each batch pins in the log of offsets."""
    logs = sorted((directory / "checkpoint" / "offsets").glob("[0-9]*"))
    return [json.loads(log.read_text().splitlines()[1])["conf"][PROVIDER_CLASS] for log in logs]


def test_query_gets_its_provider_before_spark_writes_down_what_it_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a Spark that tells its listeners of a start after it has chosen a provider."""
    run(spark, tmp_path, {OWN_KEY: FILESYSTEM}, ["a"])

    assert pinned(tmp_path) == [FILESYSTEM]


def test_query_keeps_its_provider_in_a_session_with_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a Spark whose log of offsets no longer pins the class: the state would be lost."""
    conf = {f"{STATE_STORE}.checkpointFormatVersion": "2"}
    run(spark, tmp_path, {**conf, PROVIDER_CLASS: FILESYSTEM}, ["a"])
    run(spark, tmp_path, {**conf, PROVIDER_CLASS: HDFS}, ["a", "b"])

    assert pinned(tmp_path) == [FILESYSTEM] * 2
    assert list((tmp_path / "checkpoint" / "state" / "0" / "0").glob("2_*.arrows"))


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars of the Spark that runs the tests."""
    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))


@pytest.mark.parametrize("name", BODIES)
def test_trait_has_no_body_that_the_shim_does_not_know(spark_jars: list[Path], name: str) -> None:
    """Catches a method that links without ours, that Spark begins to call and ours should have."""
    with ClassPath(spark_jars) as path:
        declared = path[f"{STATE}/{name}"].methods.items()
    bodies = {method for (method, _), access in declared if not access & (_ABSTRACT | _STATIC)}

    assert {method for method in bodies if "$" not in method} - BODIES[name] == set()


@pytest.mark.needs("row-api")  # Spark 4.0 has it in another package, as it always will
def test_state_of_an_operator_is_named_by_what_the_shim_knows(spark_jars: list[Path]) -> None:
    """Catches a field that says more of where a state lies than the shim asks for."""
    with ClassPath(spark_jars) as path:
        fields = path[f"{OPERATORS}/StatefulOperatorStateInfo"].fields

    assert {name for name, _ in fields} - STATE_INFO == set()
