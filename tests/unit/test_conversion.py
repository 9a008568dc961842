"""The plan of a conversion: what is refused, before Spark is started or anything is written."""

import json
from dataclasses import replace

import pytest

from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, PROVIDER_KEY
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.io.memory import MemoryFileIO
from statestore.operations.checkpoint import Checkpoint
from statestore.operations.conversion import plan_conversion
from statestore.operations.new_directory import metadata_fields

NUM_PARTITIONS = 3


class Files:
    """A checkpoint of an aggregation and a global aggregation, as Spark lays it out."""

    def __init__(self):
        self.io = MemoryFileIO("")
        self.conf = {
            NUM_PARTITIONS_KEY: str(NUM_PARTITIONS),
            PROVIDER_KEY: SPARK_PROVIDERS["spark-hdfs"],
        }
        self.write("metadata", '{"id":"1"}')
        self.plan_batch(0)
        self.write("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
        for operator in (0, 1):
            store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": NUM_PARTITIONS}
            info = {"operatorId": operator, "operatorName": "stateStoreSave"}
            fields = json.dumps({"operatorInfo": info, "stateStoreInfo": [store]})
            self.write(f"state/{operator}/_metadata/metadata", f"v1\n{fields}")
            self.write(f"state/{operator}/0/_metadata/schema", "schema")
        for directory in ("0/0", "0/1", "0/2", "1/0"):
            self.write(f"state/{directory}/1.delta", "rows")

    def write(self, path, text):
        self.io.write(f"/ck/{path}", text.encode(), sync=False, overwrite=True)

    def plan_batch(self, batch):
        metadata = json.dumps({"batchWatermarkMs": 0, "conf": self.conf})
        self.write(f"offsets/{batch}", f"v1\n{metadata}\n0")

    def plan(self, to="filesystem"):
        checkpoint = Checkpoint(
            "file:/ck",
            self.io,
            "/ck",
            self.io,
            "/ck/state",
            None,
            StateStoreOptions(),
            SystemClock(),
            "",
        )
        return plan_conversion(checkpoint, "file:/new", self.io, "/new", to)


@pytest.fixture
def files():
    return Files()


def test_plan_names_every_store_when_an_operator_is_in_one_partition(files):
    """Catches state partitions that are left out, or asked for where there are none."""
    plan = files.plan()

    assert [(o.info.id, o.num_partitions) for o in plan.operators] == [(0, NUM_PARTITIONS), (1, 1)]
    assert (plan.source, plan.version, plan.num_stores) == ("spark-hdfs", 1, NUM_PARTITIONS + 1)
    assert (plan.checkpoint_format, plan.is_begun) == (1, False)


def test_partition_is_planned_when_its_directory_is_lost(files):
    """Catches a checkpoint with a hole that is converted without it: reading it must fail."""
    files.io.delete("/ck/state/0/1/1.delta")

    assert files.plan().operators[0].num_partitions == NUM_PARTITIONS


@pytest.mark.parametrize(
    ("conf", "to", "error", "match"),
    [
        ({}, "spark-hdfs", InvalidArgumentError, "leave it as it is"),
        ({}, "heap", InvalidArgumentError, "use one of"),
        ({PROVIDER_KEY: PROVIDERS["rocksdb"]}, "filesystem", InvalidArgumentError, "savepoint"),
        (
            {"spark.sql.streaming.stateStore.encodingFormat": "avro"},
            "rocksdb",
            IncompatibleError,
            "avro",
        ),
    ],
)
def test_plan_is_refused_when_providers_do_not_fit(files, conf, to, error, match):
    """Catches a conversion that cannot work and says so only after hours."""
    files.conf.update(conf)
    files.plan_batch(0)

    with pytest.raises(error, match=match):
        files.plan(to)


def test_plan_is_refused_when_the_target_has_no_checkpoint_ids(files):
    """Catches checkpoint format v2 that is silently given up."""
    ids = {"0": [["a"], ["b"], ["c"]], "1": [["d"]]}
    fields = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids})
    files.write("commits/0", f"v2\n{fields}")
    files.conf[PROVIDER_KEY] = SPARK_PROVIDERS["spark-rocksdb"]
    files.plan_batch(0)

    assert files.plan().checkpoint_format == 2
    with pytest.raises(IncompatibleError, match="v2"):
        files.plan("spark-hdfs")


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("state/2/_metadata/v2/0", IncompatibleError, "transformWithState"),
        ("state/2/0/1.delta", NotFoundError, "no metadata"),
    ],
)
def test_plan_is_refused_when_some_state_would_be_left_behind(files, path, error, match):
    """Catches an operator that the new checkpoint would begin without."""
    files.write(path, "")

    with pytest.raises(error, match=match):
        files.plan()


def test_plan_is_refused_when_a_schema_is_missing(files):
    """Catches rows of unknown columns, whose key groups nobody can tell."""
    files.io.delete("/ck/state/1/0/_metadata/schema")

    with pytest.raises(NotFoundError, match="stateSchemaCheck"):
        files.plan()


def test_plan_is_refused_when_no_batch_is_committed(files):
    """Catches version 0, which has no rows, taken for a state."""
    files.io.delete("/ck/commits/0")

    with pytest.raises(NotFoundError, match="not committed"):
        files.plan()


@pytest.mark.parametrize("path", ["metadata", "offsets/0", "commits/0", "notes.txt"])
def test_plan_is_refused_when_something_is_at_the_new_place(files, path):
    """Catches another query's checkpoint that is overwritten."""
    files.io.write(f"/new/{path}", b"{}", sync=False, overwrite=True)

    with pytest.raises(InvalidArgumentError, match="checkpoint-exists"):
        files.plan()


def test_plan_begins_anew_when_a_conversion_is_unfinished(files):
    """Catches a crashed conversion that needs somebody to clean up."""
    text = metadata_fields(unfinished="convert").encode()
    files.io.write("/new/metadata", text, sync=False, overwrite=True)

    assert files.plan() == replace(files.plan(), is_begun=True)


def test_plan_is_refused_when_another_operation_is_unfinished(files):
    """Catches the target of a restore that is under way, deleted for an unfinished conversion."""
    text = metadata_fields(unfinished="restore").encode()
    files.io.write("/new/metadata", text, sync=False, overwrite=True)

    with pytest.raises(InvalidArgumentError, match="begun='restore'") as raised:
        files.plan()
    assert raised.value.kind == "unfinished-operation"
