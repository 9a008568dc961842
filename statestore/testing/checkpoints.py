"""A query's whole checkpoint made without Spark: its logs, its operators, and their state."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of
from statestore.checkpoint.operator_metadata import operator_metadata_path
from statestore.checkpoint.query_log import (
    NUM_PARTITIONS_KEY,
    PROVIDER_KEY,
    QueryLog,
    write_text,
)
from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, PUT, Row
from statestore.core.ids import RandomIds
from statestore.core.providers import PROVIDERS
from statestore.engine.service import EngineService
from statestore.io.local import LocalFileIO
from statestore.io.place import Place
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.rows import read_rows
from statestore.store.store import open_store
from statestore.testing.deltas import write_stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from statestore.io.file_io import TreeFileIO

Rows = dict[bytes, bytes]
_STRICT_KEY = "spark.sql.streaming.statefulOperator.useStrictDistribution"
_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"
_LONG = {"type": "long", "nullable": True, "metadata": {}}


def _schema(*names: str) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": name, **_LONG} for name in names]})


def _compact(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def unsafe_row(*values: int) -> bytes:
    """Return Spark's row of as many 64-bit numbers, none of them null."""
    return struct.pack(f"<{len(values) + 1}q", 0, *values) if values else b""


@dataclass(frozen=True, slots=True)
class MadeStore:
    """A store of the query.

    Attributes:
        name: Its name.
        columns: Key columns; the first is the grouping key.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        return ColumnFamily(0, "default", _schema(*self.columns), _schema("value"))

    def rows(self, numbers: Mapping[int, int | None]) -> dict[bytes, bytes | None]:
        """Return the store's rows for numbers by key; None for a row that is deleted."""
        if not self.columns:
            return {b"": unsafe_row(sum(value or 0 for value in numbers.values()))}
        rest = len(self.columns) - 1
        return {
            unsafe_row(key, *[0] * rest): None if value is None else unsafe_row(value)
            for key, value in numbers.items()
        }


OPERATORS: tuple[tuple[str, tuple[MadeStore, ...]], ...] = (
    ("stateStoreSave", (MadeStore("default", ("k",)),)),
    (
        "symmetricHashJoin",
        (
            MadeStore("left-keyToNumValues", ("field0",)),
            MadeStore("left-keyWithIndexToValue", ("field0", "index")),
        ),
    ),
    ("stateStoreSave", (MadeStore("default", ()),)),
)
"""An aggregation, a join and an aggregation without keys."""


@dataclass
class MadeCheckpoint:
    """A checkpoint directory, and what runs batches on it as Spark and the shim do.

    Attributes:
        path: The checkpoint directory.
        scratch: Local directory for deltas and the engine, owned by the caller.
        num_partitions: State partitions of a new checkpoint.
        backend: filesystem or rocksdb.
        checkpoint_format: 1 or 2.
        operators: Names and stores of the stateful operators.
        io: Storage of the path; the local disk when left out.
        numbers: What the batches leave, by key.
        options: Options of the query, by field.
        block_rows: Most rows of a block of a delta.
    """

    path: str
    scratch: Path
    num_partitions: int = 4
    backend: str = "filesystem"
    checkpoint_format: int = 1
    operators: Sequence[tuple[str, tuple[MadeStore, ...]]] = OPERATORS
    io: TreeFileIO = field(default_factory=LocalFileIO)
    numbers: dict[int, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    block_rows: int = 65_536

    def __post_init__(self) -> None:
        self._engine = EngineService(str(self.scratch), self.io)

    def take_snapshots(self) -> None:
        """Write the snapshot of the newest version of every store."""
        place = Place(self.path, io=self.io)
        with open_checkpoint(place) as checkpoint:
            version = checkpoint.newest_version
            for store in checkpoint.heads(version):
                checkpoint_id = checkpoint.checkpoint_id(store, version)
                with open_store(
                    place,
                    store.operator,
                    store.partition,
                    store.name,
                    version=version,
                    checkpoint_id=checkpoint_id,
                ) as opened:
                    opened.snapshot()

    def run_batch(self, changes: Mapping[int, int | None]) -> None:
        """Run one batch on the newest version: numbers by key, None for one that goes; no snapshot.

        Raises:
            AssertionError: The engine refused.
        """
        offsets, commits = (QueryLog(self.io, self.path, name) for name in ("offsets", "commits"))
        newest = max(commits.batches(), default=-1)
        if newest < 0:
            write_text(self.io, f"{self.path}/metadata", _compact({"id": _ID}), overwrite=True)
        conf = self._conf()
        parents: dict[str, list[list[str]]] = {}
        log_offset = 0
        if newest >= 0:
            _, metadata, source = offsets.read(newest).split("\n")
            # Spark takes over what it knows, and no mark of an operation.
            conf = {
                key: value
                for key, value in json.loads(metadata)["conf"].items()
                if not key.startswith("statestore.")
            }
            log_offset = json.loads(source)["logOffset"] + 1
            parents = json.loads(commits.read(newest).split("\n")[1]).get("stateUniqueIds", {})
        num_partitions = int(conf[NUM_PARTITIONS_KEY])
        metadata = _compact({"batchWatermarkMs": 0, "batchTimestampMs": 7, "conf": conf})
        read = f"{self.path}/sources/0/{log_offset}"
        write_text(self.io, read, f'v1\n{{"batchId":{log_offset}}}', overwrite=True)
        offsets.add(newest + 1, f'v1\n{metadata}\n{{"logOffset":{log_offset}}}')
        before = dict(self.numbers)
        self.numbers |= {key: value for key, value in changes.items() if value is not None}
        for key in changes.keys() - {key for key, value in changes.items() if value is not None}:
            self.numbers.pop(key, None)
        ids: dict[str, list[list[str]]] = {}
        for operator, (name, stores) in enumerate(self.operators):
            self._write_metadata(operator, name, stores, num_partitions)
            is_whole = not stores[0].columns
            ids[str(operator)] = [
                [
                    self._commit(
                        StoreName(operator, partition, store.name),
                        store.rows(self.numbers if is_whole else changes),
                        store.rows(before) if newest >= 0 else {},
                        store.rows(self.numbers),
                        newest + 1,
                        num_partitions,
                        parents[str(operator)][partition][number] if parents else None,
                        store,
                    )
                    for number, store in enumerate(stores)
                ]
                for partition in range(1 if is_whole else num_partitions)
            ]
        fields: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        if self.checkpoint_format >= 2:
            fields["stateUniqueIds"] = ids
        commits.add(newest + 1, f"v{self.checkpoint_format}\n{_compact(fields)}")

    def _conf(self) -> dict[str, str]:
        return {
            PROVIDER_KEY: PROVIDERS[self.backend],
            NUM_PARTITIONS_KEY: str(self.num_partitions),
            _STRICT_KEY: "true",
        }

    def _write_metadata(
        self, operator: int, name: str, stores: Sequence[MadeStore], num_partitions: int
    ) -> None:
        path = operator_metadata_path(f"{self.path}/state", operator)
        infos = [
            {"storeName": store.name, "numColsPrefixKey": 0, "numPartitions": num_partitions}
            for store in stores
        ]
        fields = {
            "operatorInfo": {"operatorId": operator, "operatorName": name},
            "stateStoreInfo": infos,
        }
        write_text(self.io, path, f"v1\n{_compact(fields)}", overwrite=True)

    def _commit(
        self,
        store: StoreName,
        changes: Mapping[bytes, bytes | None],
        rows_before: Mapping[bytes, bytes | None],
        all_rows: Mapping[bytes, bytes | None],
        version: int,
        num_partitions: int,
        checkpoint_id: str | None,
        made: MadeStore,
    ) -> str:
        """Commit those changes that are a store's own on a version of it; return the new ID."""
        loaded = self._call(
            "load",
            store,
            version=version,
            checkpoint_id=checkpoint_id,
            num_partitions=num_partitions,
        )
        max_parallelism = loaded["max_parallelism"]
        rows = [
            Row(group, 0, DELETE if changes[key] is None else PUT, key, changes[key])
            for key, group in _groups(changes, made, max_parallelism).items()
            if group % num_partitions == store.partition
        ]
        growth, num_keys = [0] * NUM_CLASSES, 0
        for sign, those in ((-1, rows_before), (1, all_rows)):
            for group in _groups(those, made, max_parallelism).values():
                if group % num_partitions == store.partition:
                    growth[class_of(group, num_partitions)] += sign
                    num_keys += sign > 0
        new_id = RandomIds().new_id()
        path = f"{self.scratch}/{new_id}.arrows"
        length = write_stream(path, rows, max_parallelism, block_rows=self.block_rows)
        ops = [row.op for row in rows]
        parent = {name: loaded[name] for name in ("version", "checkpoint_id", "lineage")}
        self._call(
            "commit",
            store,
            version=version + 1,
            parent=parent if version else None,
            checkpoint_id=new_id,
            delta={
                "path": path,
                "length": length,
                "put": ops.count(PUT),
                "delete": ops.count(DELETE),
                "merge": 0,
            },
            num_keys=num_keys,
            key_group_growth=growth,
            max_parallelism=max_parallelism,
            num_partitions=num_partitions,
            rescalable=True,
            column_families=[_family_json(made.family)],
        )
        return new_id

    def _call(self, op: str, store: StoreName, **fields: Any) -> Any:
        request = {
            "op": op,
            "store": {
                "root": f"{self.path}/state",
                "operator": store.operator,
                "partition": store.partition,
                "name": store.name,
            },
            "backend": self.backend,
            "checkpoint_format": self.checkpoint_format,
            "options": {"snapshot_max_chain_length": 1000, **self.options},
            **fields,
        }
        reply = json.loads(self._engine.call(json.dumps(request)))
        assert "ok" in reply, reply
        return reply["ok"]

    def expected(self) -> dict[tuple[int, str], Rows]:
        """Return the rows of every store by (operator, name), as the batches leave them."""
        return {
            (operator, store.name): {
                key: value for key, value in store.rows(self.numbers).items() if value is not None
            }
            for operator, (_, stores) in enumerate(self.operators)
            for store in stores
        }


def read_checkpoint(path: str, io: TreeFileIO | None = None) -> dict[tuple[int, str], Rows]:
    """Return the rows of every store of a checkpoint at its newest version, from all partitions.

    Raises:
        AssertionError: A row is in another state partition than its key belongs to.
    """
    found: dict[tuple[int, str], Rows] = {}
    with open_checkpoint(Place(path, io=io)) as checkpoint:
        version = checkpoint.newest_version
        for store, head in checkpoint.heads(version).items():
            rows = found.setdefault((store.operator, store.name), {})
            mine: Rows = {}
            for batch in read_rows(checkpoint, head):
                for row in batch.select(["key", "value"]).to_pylist():
                    mine[row["key"]] = row["value"]
            family = head.trailer.column_families[0]
            keys = pa.array(mine, pa.binary())
            groups = compute_key_groups(keys, store.name, family, head.trailer.max_parallelism)
            assert (groups % checkpoint.num_partitions == store.partition).all(), store
            assert not rows.keys() & mine.keys(), store
            rows |= mine
    return found


def _groups(
    rows: Mapping[bytes, bytes | None], made: MadeStore, max_parallelism: int
) -> dict[bytes, int]:
    keys = pa.array(rows, pa.binary())
    groups = compute_key_groups(keys, made.name, made.family, max_parallelism)
    return dict(zip(rows, groups.tolist(), strict=True))


def _family_json(family: ColumnFamily) -> dict[str, Any]:
    return {
        "id": family.id,
        "name": family.name,
        "key_schema": family.key_schema,
        "value_schema": family.value_schema,
        "encoder": family.encoder,
    }
