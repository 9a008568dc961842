"""The plan of a conversion: what is refused, before Spark is started or anything is written."""

import json
from dataclasses import replace

import pytest

from statestore import Checkpoint
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.providers import PROVIDER_KEY, PROVIDERS, SPARK_PROVIDERS
from statestore.io.memory import MemoryFileIO
from statestore.operations.checkpoint import OpenCheckpoint, open_checkpoint
from statestore.operations.conversion import decide_convert
from statestore.operations.metadata_file import metadata_fields
from statestore.spark_files.schemas import write_schemas
from statestore.testing.checkpoints import QUERY_ID, MadeCheckpoint
from statestore.testing.stores import OPERATORS
from tests.checkpoints import AGGREGATION, GLOBAL_LIMIT, JOIN, query_of
from tests.seams import place_of

NUM_PARTITIONS = 3
WITH_FAMILIES = (
    'v2\n{"operatorInfo":{"operatorId":2,"operatorName":"transformWithStateExec"},'
    '"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3,'
    '"stateSchemaFilePaths":["file:/ck/state/2/_stateSchema/default/0_1"]}]}'
)


class Files:
    """A checkpoint of an aggregation and a global aggregation, as Spark lays it out."""

    def __init__(self):
        self.io = MemoryFileIO("")
        self.conf = {
            NUM_PARTITIONS_KEY: str(NUM_PARTITIONS),
            PROVIDER_KEY: PROVIDERS["filesystem"],
        }
        self.write("metadata", json.dumps({"id": QUERY_ID}))
        self.plan_batch(0)
        self.write("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
        for operator in (0, 1):
            store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": NUM_PARTITIONS}
            info = {"operatorId": operator, "operatorName": "stateStoreSave"}
            fields = json.dumps({"operatorInfo": info, "stateStoreInfo": [store]})
            self.write(f"state/{operator}/_metadata/metadata", f"v1\n{fields}")
        self.write_schema("0/0", '{"name":"k","type":"long","nullable":true,"metadata":{}}')
        self.write_schema("1/0", "")
        for directory in ("0/0", "0/1", "0/2", "1/0"):
            self.write(f"state/{directory}/1.delta", "rows")

    def write(self, path, text):
        self.io.write(f"/ck/{path}", text.encode(), sync=False, overwrite=True)

    def write_schema(self, directory, fields):
        """Write the schemas of a store as Spark does, with Java's lengths in between."""
        parts = [f'{{"type":"struct","fields":[{part}]}}'.encode() for part in (fields, "")]
        data = b"\x00\x02v2" + b"".join(
            b"\x00\x00\x00\x01" + len(part).to_bytes(2) + part for part in parts
        )
        path = f"/ck/state/{directory}/_metadata/schema"
        self.io.write(path, data, sync=False, overwrite=True)

    def plan_batch(self, batch):
        metadata = json.dumps({"batchWatermarkMs": 0, "conf": self.conf})
        self.write(f"offsets/{batch}", f"v1\n{metadata}\n0")

    def plan(self, to="spark-rocksdb"):
        checkpoint = OpenCheckpoint(
            "file:/ck",
            self.io,
            "/ck",
            place_of("/ck", io=self.io),
            self.io,
            "/ck/state",
            "",
        )
        return decide_convert(checkpoint, place_of("/new", io=self.io), to)


@pytest.fixture
def files():
    return Files()


def test_plan_names_every_store_when_an_operator_is_in_one_partition(files):
    """Catches state partitions that are left out, or asked for where there are none."""
    plan = files.plan()

    assert [(o.info.id, o.num_partitions) for o in plan.operators] == [(0, NUM_PARTITIONS), (1, 1)]
    assert (plan.backend, plan.version, plan.num_stores) == ("filesystem", 1, NUM_PARTITIONS + 1)
    assert (plan.checkpoint_format, plan.is_begun) == (1, False)


def test_partition_is_planned_when_its_directory_is_lost(files):
    """Catches a checkpoint with a hole that is converted without it: reading it must fail."""
    files.io.delete("/ck/state/0/1/1.delta")

    assert files.plan().operators[0].num_partitions == NUM_PARTITIONS


def test_partition_is_planned_when_all_others_are_lost(files):
    """Catches half of a state that is converted as an aggregation without a key."""
    files.conf[NUM_PARTITIONS_KEY] = "2"
    files.plan_batch(0)
    for partition in (1, 2):
        files.io.delete(f"/ck/state/0/{partition}/1.delta")

    assert [operator.num_partitions for operator in files.plan().operators] == [2, 1]


def test_source_that_would_read_files_again_is_refused(files):
    """Catches a new checkpoint whose query reads input once more."""
    metadata = json.dumps({"batchWatermarkMs": 0, "conf": files.conf})
    files.write("offsets/0", f'v1\n{metadata}\n{{"logOffset":0}}')
    with pytest.raises(NotFoundError, match="sources/0/0"):
        files.plan()

    files.write("sources/0/0", 'v1\n{"path":"file:/in","timestamp":1,"batchId":0}')
    assert files.plan().version == 1


@pytest.mark.parametrize("length", [123, 200])
def test_key_is_known_whatever_the_lengths_in_the_file(files, length):
    """Catches a length that looks like the beginning of a schema, or is no text."""
    field = '{"name":"%s","type":"long","nullable":true,"metadata":{}}'
    name = "k" * (length - len(field % "") - len('{"type":"struct","fields":[]}'))
    files.write_schema("0/0", field % name)
    for partition in (1, 2):
        files.io.delete(f"/ck/state/0/{partition}/1.delta")

    assert files.plan().operators[0].num_partitions == NUM_PARTITIONS


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_join_is_planned_whole_when_its_state_is_elsewhere(tmp_path, checkpoint_format):
    """Catches state partitions that have no directory of a store in the checkpoint itself."""
    query = query_of(
        tmp_path / "query", operators=(AGGREGATION, JOIN, GLOBAL_LIMIT), num_partitions=3,
        checkpoint_format=checkpoint_format,
    )  # fmt: skip
    query.run_batch({"one": 1})
    for operator, names in ((0, ("",)), (1, [store.name for store in JOIN[1]]), (2, ("",))):
        key = {"name": "k", "type": "void" if operator == 2 else "long"}
        for name in names:
            text = json.dumps({"type": "struct", "fields": [key]}, separators=(",", ":"))
            schema = tmp_path / "query" / "state" / f"{operator}" / "0" / name / "_metadata/schema"
            schema.parent.mkdir(parents=True, exist_ok=True)
            schema.write_bytes(write_schemas(text, text))
    elsewhere = tmp_path / "elsewhere" / ("0" * 32)
    for file in [*(tmp_path / "query" / "state").rglob("*.arrows")]:
        moved = elsewhere / file.relative_to(tmp_path / "query" / "state")
        moved.parent.mkdir(parents=True, exist_ok=True)
        file.rename(moved)
        operator, partition = moved.relative_to(elsewhere).parts[:2]
        query.write(f"state/{operator}/{partition}/.statestore", "")
    placement = {"format_version": 1, "storage": f"file:{elsewhere.parent}", "id": elsewhere.name}
    query.write("statestore.json", json.dumps(placement))

    with open_checkpoint(place_of(query.path)) as checkpoint:
        plan = decide_convert(checkpoint, place_of(tmp_path / "new"), "spark-rocksdb")

    assert [operator.num_partitions for operator in plan.operators] == [3, 3, 1]


def test_plan_names_the_batches_that_no_sink_was_given(tmp_path):
    """Catches a file sink whose log lacks batches, and a provider that does not close the gap."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(
        str(tmp_path / "query"), tmp_path / "scratch", operators=OPERATORS[:1], num_partitions=4
    )
    made.run_batch({1: 1, 2: 2})
    schema = tmp_path / "query/state/0/0/_metadata/schema"
    schema.parent.mkdir(parents=True, exist_ok=True)
    text = '{"type":"struct","fields":[{"name":"k","type":"long"}]}'
    schema.write_bytes(write_schemas(text, text))
    checkpoint = Checkpoint(made.path)

    def plan(to):
        with open_checkpoint(place_of(made.path)) as opened:
            return decide_convert(opened, place_of(tmp_path / "new"), to)

    assert plan("spark-rocksdb").unseen == ()
    checkpoint.rescale(8)
    checkpoint.edit(delete="k = 1")
    assert plan("spark-rocksdb").unseen == (1, 2)
    assert "no sink was given batch 1, 2" in str(plan("spark-hdfs"))
    assert plan("spark-hdfs").fields()["unseen"] == [1, 2]
    checkpoint.restore(tmp_path / "copied")
    with open_checkpoint(place_of(tmp_path / "copied")) as copied:
        of_copy = decide_convert(copied, place_of(tmp_path / "new"), "spark-hdfs")
    assert of_copy.unseen == (1, 2)  # where both entries have the same number of state partitions
    made.run_batch({3: 3})
    assert plan("spark-rocksdb").unseen == ()


@pytest.mark.parametrize(
    ("conf", "to", "error", "match"),
    [
        (
            {PROVIDER_KEY: SPARK_PROVIDERS["spark-hdfs"]},
            "spark-rocksdb",
            IncompatibleError,
            "other-provider.*statestore restore",
        ),
        ({}, "heap", InvalidArgumentError, "use one of"),
        (
            {},
            "rocksdb",
            InvalidArgumentError,
            "statestore restore file:/ck /new --backend rocksdb",
        ),
    ],
)
def test_plan_is_refused_when_providers_do_not_fit(files, conf, to, error, match):
    """Catches a conversion that cannot work and says so only after hours."""
    files.conf.update(conf)
    files.plan_batch(0)

    with pytest.raises(error, match=match):
        files.plan(to)


def test_plan_tells_the_format_that_the_target_is_of(files):
    """Catches checkpoint format v2 that is given up without a word, or leaves no way back."""
    ids = {"0": [["a"], ["b"], ["c"]], "1": [["d"]]}
    fields = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids})
    files.write("commits/0", f"v2\n{fields}")
    files.conf[PROVIDER_KEY] = PROVIDERS["rocksdb"]
    files.plan_batch(0)

    assert files.plan().checkpoint_format == 2
    assert ": spark-rocksdb, checkpoint format v2" in str(files.plan())
    assert files.plan("spark-hdfs").checkpoint_format == 1
    assert ": spark-hdfs, checkpoint format v1" in str(files.plan("spark-hdfs"))


@pytest.mark.parametrize(
    ("path", "text", "match"),
    [
        ("state/2/_metadata/v2/0", WITH_FAMILIES, "lacks a file of its state schemas"),
        ("state/2/0/1.delta", "", "no metadata"),
    ],
)
def test_plan_is_refused_when_some_state_would_be_left_behind(files, path, text, match):
    """Catches an operator that the new checkpoint would begin without."""
    files.write(path, text)

    with pytest.raises(NotFoundError, match=match):
        files.plan()


def test_plan_is_refused_when_the_target_has_no_column_families(files):
    """Catches a conversion that fails in its first task."""
    files.write("state/2/_metadata/v2/0", WITH_FAMILIES)
    files.write("state/2/_stateSchema/default/0_1", "")

    assert [operator.info.id for operator in files.plan("spark-rocksdb").operators] == [0, 1, 2]
    with pytest.raises(IncompatibleError, match="no column families"):
        files.plan("spark-hdfs")


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
