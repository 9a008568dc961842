"""Checkpoints as Spark and an executor leave them, written without either."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from statestore import Savepoint
from statestore.codec.column_family import ColumnFamily
from statestore.core.key_groups import default_max_parallelism
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from tests.seams import at, place_of

QUERY_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"
OPTIONS = StateStoreOptions(fsync_enabled=False)
AGGREGATION = ("stateStoreSave", ("default",))
GLOBAL_LIMIT = ("globalLimit", ("default",))
GLOBAL_AGGREGATION = ("stateStoreSave", ("default",), "no key")
NO_COLUMNS = '{"type":"struct","fields":[]}'
KEYLESS = {
    GLOBAL_AGGREGATION: NO_COLUMNS,
    GLOBAL_LIMIT: '{"type":"struct","fields":[{"name":"key","type":"void","nullable":true,'
    '"metadata":{}}]}',
}
JOIN = (
    "symmetricHashJoin",
    tuple(f"{s}-{n}" for s in ("left", "right") for n in ("keyToNumValues", "keyWithIndexToValue")),
)


class QueryCheckpoint:
    """A query's checkpoint and what its stores hold.

    Attributes:
        model: Rows of the newest version by (operator, store name).
    """

    def __init__(
        self,
        path,
        *,
        io=None,
        backend="filesystem",
        num_partitions=4,
        checkpoint_format=1,
        operators=(AGGREGATION,),
        options=OPTIONS,
        **seams,
    ):
        """Begin a query; `seams` are more arguments of `at`."""
        self.path, self.io, self.options, self.seams = str(path), io, options, seams
        self.files = io or LocalFileIO()
        self.backend, self.num_partitions = backend, num_partitions
        self.checkpoint_format, self.operators = checkpoint_format, operators
        # As Spark's number of state partitions may change, and this not.
        self.max_parallelism = default_max_parallelism(num_partitions)
        self.version = 0
        self.ids = {}
        self.model = {
            (number, name): {} for number, (_, names, *_) in enumerate(operators) for name in names
        }
        self.write("metadata", json.dumps({"id": QUERY_ID}))

    def write(self, name, text):
        """Write one of Spark's files."""
        path = f"{self.path}/{name}"
        self.files.make_directory(path.rpartition("/")[0])
        self.files.write(path, text.encode(), sync=True, overwrite=True)

    def run(self, rows, *, snapshot=False):
        """Run a batch that puts rows, text by text; a value of None deletes.

        With `snapshot`, one of the version before is taken first, and the batch built on it.
        """
        self.plan()
        ids = {}
        for (operator, name), model in self.model.items():
            parts = self.partitions(operator)
            for partition in range(parts):
                with at(self.path, options=self.options, io=self.io, **self.seams).open_store(
                    operator, partition, name, version=self.version,
                    checkpoint_id=self.ids.get((operator, partition, name)),
                    num_partitions=self.num_partitions, checkpoint_format=self.checkpoint_format,
                    backend=self.backend,
                ) as store:  # fmt: skip
                    if snapshot:
                        store.snapshot()
                    batch = store.begin()
                    if parts == 1 and self.operators[operator] in KEYLESS:
                        schema = KEYLESS[self.operators[operator]]
                        batch.column_families = (ColumnFamily(0, "default", key_schema=schema),)
                    for key, value in rows.items():
                        group = self.key_group(key)
                        if parts > 1 and group % self.num_partitions != partition:
                            continue
                        if value is None:
                            batch.delete(key.encode(), key_group=group)
                        else:
                            batch.put(key.encode(), f"{name} {value}".encode(), key_group=group)
                    batch.commit()
                    ids[operator, partition, name] = store.checkpoint_id
            for key, value in rows.items():
                model.pop(key.encode(), None)
                if value is not None:
                    model[key.encode()] = f"{name} {value}".encode()
        if self.version == 0:
            self._write_operators()
        self.ids = ids if self.checkpoint_format == 2 else {}
        self._commit(ids)
        self.version += 1

    def plan(self):
        """Plan the next batch, as Spark does before it runs it."""
        conf = {
            "spark.sql.shuffle.partitions": str(self.num_partitions),
            "spark.sql.streaming.stateStore.providerClass": PROVIDERS[self.backend],
            "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
        }
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
        # A batch of an operation's reads nothing, so the source is not as far as the query.
        read = Path(self.path, "sources/0")
        log_offset = sum(1 for _ in read.iterdir()) if read.exists() else 0
        text = f'v1\n{json.dumps(metadata)}\n{{"logOffset":{log_offset}}}'
        self.write(f"sources/0/{log_offset}", f'v1\n{{"batchId":{log_offset}}}')
        self.write(f"offsets/{self.version}", text)

    def partitions(self, operator):
        return 1 if self.operators[operator] in KEYLESS else self.num_partitions

    def key_group(self, key):
        return zlib.crc32(key.encode()) % self.max_parallelism

    def _write_operators(self):
        for number, (name, stores, *_) in enumerate(self.operators):
            info = {
                "operatorInfo": {"operatorId": number, "operatorName": name},
                "stateStoreInfo": [
                    {
                        "storeName": store,
                        "numColsPrefixKey": 0,
                        "numPartitions": self.num_partitions,
                    }
                    for store in stores
                ],
            }
            self.write(f"state/{number}/_metadata/metadata", f"v1\n{json.dumps(info)}")
            for store in stores:
                inner = "" if store == "default" else f"{store}/"
                self.write(f"state/{number}/0/{inner}_metadata/schema", f"schema of {store}")

    def _commit(self, ids):
        fields = {"nextBatchWatermarkMs": self.version}
        if self.checkpoint_format == 2:
            fields["stateUniqueIds"] = {
                str(number): [
                    [ids[number, partition, name] for name in names]
                    for partition in range(self.partitions(number))
                ]
                for number, (_, names, *_) in enumerate(self.operators)
            }
        self.write(f"commits/{self.version}", f"v{self.checkpoint_format}\n{json.dumps(fields)}")


def read_rows(path, io=None, options=OPTIONS):
    """Return the rows of the newest version by (operator, store name), each where it belongs."""
    rows = {}
    with open_checkpoint(place_of(path, options=options, io=io)) as checkpoint:
        version = checkpoint.newest_version
        for store, head in checkpoint.heads(version).items():
            family = head.trailer.column_families[0]
            if GLOBAL_LIMIT[0] == checkpoint.operator(store.operator).name or family.key_schema:
                assert store.partition == 0
            found = rows.setdefault((store.operator, store.name), {})
            with at(path, options=options, io=io).open_store(
                store.operator, store.partition, store.name, version=version,
                checkpoint_id=checkpoint.checkpoint_id(store, version),
                num_partitions=checkpoint.num_partitions, backend=checkpoint.backend,
            ) as opened:  # fmt: skip
                before = len(found)
                found |= dict(opened.scan())
                assert len(found) == before + len(opened) == before + head.trailer.num_keys
                for key in dict(opened.scan()):
                    group = opened.table.key_group_of(0, key)
                    is_dealt = head.trailer.rescalable
                    assert not is_dealt or group % checkpoint.num_partitions == store.partition
    return rows


def files_below(path):
    """Return the bytes of every file below a local directory."""
    root = Path(path)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def make_query(path, num_batches=3, **how):
    """Return a query that ran some batches with puts, overwrites and deletes."""
    query = QueryCheckpoint(path, **how)
    for batch in range(num_batches):
        rows = {f"key-{number}": f"{batch}/{number}" for number in range(batch, 30 + batch)}
        query.run(rows | ({"key-3": None, "key-9": None} if batch else {}))
    return query


def restore(savepoint, checkpoint, *, options=OPTIONS, io=None, target_io=None, **how):
    """Restore a savepoint and return the plan that was carried out."""
    source = at(savepoint, kind=Savepoint, options=options, io=io)
    plan = source.plan_restore(at(checkpoint, options=options, io=target_io), **how)
    plan.run()
    return plan
