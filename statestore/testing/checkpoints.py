"""A query's whole checkpoint made without Spark: its logs, its operators, and their state."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of
from statestore.checkpoint.operator_metadata import operator_metadata_path
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, STRICT_DISTRIBUTION_KEY, QueryLog
from statestore.checkpoint.text_files import write_bytes, write_text
from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, PUT, Row
from statestore.core.clock import Clock, SystemClock
from statestore.core.ids import IdSource, RandomIds
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDER_KEY, PROVIDERS
from statestore.engine.service import EngineService
from statestore.io.local import LocalFileIO
from statestore.io.place import Place
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.states import read_rows
from statestore.store.store import open_store
from statestore.testing.deltas import write_stream
from statestore.testing.stores import OPERATORS, Changes, StoreOfQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from statestore.io.file_io import TreeFileIO

Rows = dict[bytes, bytes]
_Grouped = tuple[int, int, bytes, bytes | None]
"""Key group, ID of the column family, key, value; None for a row that is deleted."""
_NO_SUMMARIES = {
    "snapshot_max_chain_length": 1000,
    "snapshot_replay_ratio": 100.0,
    "rocksdb_merge_min_files": 1000,
}
"""Options by which nothing is summarised in the background."""
_SUMMARIES = {"snapshot_max_chain_length": 1, "rocksdb_merge_min_files": 2}
"""Options by which what is summarised is looked for."""
QUERY_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def _compact(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


class _RowsOfBatch:
    """Rows that a batch writes to a store, those before it, and those after it.

    They are encoded once, for all state partitions.

    Args:
        store: The store.
        num_partitions: Its state partitions.
        sides: Those three, by column family.
    """

    def __init__(
        self, store: StoreOfQuery, num_partitions: int, *sides: Mapping[int, Changes]
    ) -> None:
        self.store = store
        self._num_partitions = num_partitions
        self._sides = sides
        self._dealt: dict[tuple[ColumnFamily, int], list[dict[int, list[_Grouped]]]] = {}

    def partition(
        self, number: int, families: Sequence[ColumnFamily], max_parallelism: int
    ) -> list[list[_Grouped]]:
        """Return the three of a state partition that has some column families."""
        dealt = [self._deal(family, max_parallelism) for family in families]
        return [
            [row for of_family in dealt for row in of_family[side].get(number, ())]
            for side in range(len(self._sides))
        ]

    def _deal(self, family: ColumnFamily, max_parallelism: int) -> list[dict[int, list[_Grouped]]]:
        """Return for each side the rows of a column family by state partition."""
        dealt = self._dealt.get((family, max_parallelism))
        if dealt is None:
            dealt = self._dealt[family, max_parallelism] = []
            for side in self._sides:
                of = side.get(family.id, {})
                by_partition: dict[int, list[_Grouped]] = {}
                groups = self.store.key_groups(family, of, max_parallelism)
                for group, (key, value) in zip(groups, of.items(), strict=True):
                    # Without key columns all rows are in the only state partition.
                    number = group % self._num_partitions if self.store.columns else 0
                    by_partition.setdefault(number, []).append((group, family.id, key, value))
                dealt.append(by_partition)
        return dealt


@dataclass
class MadeCheckpoint:
    """A checkpoint directory, and what runs batches on it as Spark and the shim do.

    Attributes:
        path: The checkpoint directory.
        scratch: Local directory for deltas and the engine, owned by the caller; one that goes with
            this object when left out.
        num_partitions: State partitions of a new checkpoint.
        backend: filesystem or rocksdb.
        checkpoint_format: 1 or 2.
        operators: Names and stores of the stateful operators.
        io: Storage of the path; the local disk when left out.
        numbers: What the batches leave of what they are given, by key.
        options: Options of the query, by field; snapshots and merged files are made where a test
            asks for them, and only then.
        block_rows: Most rows of a block of a delta.
        families_of: Column families of state partitions that have not all; no row is of others.
        ids: Source of checkpoint IDs.
        clock: Source of time.
        watermark_ms: Returns the watermark after a batch; its number if not given.
    """

    path: str
    scratch: Path | None = None
    num_partitions: int = 4
    backend: str = "filesystem"
    checkpoint_format: int = 1
    operators: Sequence[tuple[str, Sequence[StoreOfQuery]]] = OPERATORS
    io: TreeFileIO = field(default_factory=LocalFileIO)
    numbers: dict[Any, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    block_rows: int = 65_536
    families_of: Mapping[int, tuple[ColumnFamily, ...]] = field(default_factory=dict)
    ids: IdSource = field(default_factory=RandomIds)
    clock: Clock = field(default_factory=SystemClock)
    watermark_ms: Callable[[int], int] = int

    def __post_init__(self) -> None:
        self.path = str(self.path)
        if self.scratch is None:
            self.scratch = Path(tempfile.mkdtemp(prefix="made-checkpoint-"))
            weakref.finalize(self, shutil.rmtree, self.scratch, ignore_errors=True)
        self._num_engines = 0
        self.restart()
        self._is_restarted = False
        self._committed: dict[StoreName, dict[str, Any]] = {}
        """The last commit of each store."""

    def restart(self) -> None:
        """Go on with an engine that knows nothing, and looks for snapshots, after `compact`."""
        self._num_engines += 1
        self._engine = EngineService(f"{self.scratch}/{self._num_engines}", self.io, self.clock)
        self._is_restarted = True

    @property
    def _offsets(self) -> QueryLog:
        return QueryLog(self.io, self.path, "offsets")

    @property
    def _commits(self) -> QueryLog:
        return QueryLog(self.io, self.path, "commits")

    @property
    def version(self) -> int:
        """The newest committed version, 0 before the first batch."""
        return max(self._commits.batches(), default=-1) + 1

    def write(self, name: str, text: str) -> None:
        """Write one of Spark's files."""
        write_text(self.io, f"{self.path}/{name}", text, overwrite=True)

    def take_snapshots(self) -> None:
        """Write the snapshot of the newest version of every store."""
        options = StateStoreOptions(**self.options)
        place = Place(self.path, options=options, io=self.io, clock=self.clock)
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

    def plan(self) -> int:
        """Plan the next batch, as Spark does before it runs it; return its number of partitions."""
        newest = self.version - 1
        conf = {
            NUM_PARTITIONS_KEY: str(self.num_partitions),
            PROVIDER_KEY: PROVIDERS[self.backend],
            STRICT_DISTRIBUTION_KEY: "true",
        }
        log_offset = 0
        if newest < 0:
            self.write("metadata", _compact({"id": QUERY_ID}))
        else:
            _, metadata, source = self._offsets.read(newest).split("\n")
            # Spark takes over what it knows, and no mark of an operation.
            conf = {
                key: value
                for key, value in json.loads(metadata)["conf"].items()
                if not key.startswith("statestore.")
            }
            log_offset = json.loads(source)["logOffset"] + 1
        metadata = _compact(
            {"batchWatermarkMs": 0, "batchTimestampMs": self.clock.now_ms(), "conf": conf}
        )
        self.write(f"sources/0/{log_offset}", f'v1\n{{"batchId":{log_offset}}}')
        self.write(f"offsets/{newest + 1}", f'v1\n{metadata}\n{{"logOffset":{log_offset}}}')
        return int(conf[NUM_PARTITIONS_KEY])

    def run_batch(self, changes: Mapping[Any, Any], *, snapshot: bool = False) -> None:
        """Run one batch on the newest version.

        Args:
            changes: What is put, by key, in the words of the stores; None for what is deleted.
            snapshot: Whether one of the version before, where a batch committed it, is taken first,
                and the batch built on it.

        Raises:
            AssertionError: The engine refused.
        """
        newest = self.version - 1
        parents: dict[str, list[list[str]]] = {}
        if newest >= 0:
            parents = json.loads(self._commits.read(newest).split("\n")[1]).get(
                "stateUniqueIds", {}
            )
        num_partitions = self.plan()
        before = dict(self.numbers)
        for key, value in changes.items():
            if value is None:
                self.numbers.pop(key, None)
            else:
                self.numbers[key] = value
        ids: dict[str, list[list[str]]] = {}
        for operator, (name, stores) in enumerate(self.operators):
            if newest < 0:
                self.describe(operator, name, stores, num_partitions)
            is_single = not stores[0].columns
            of_stores = [
                _RowsOfBatch(
                    store,
                    num_partitions,
                    store.changed(changes, self.numbers),
                    store.rows_by_family(before) if newest >= 0 else {},
                    store.rows_by_family(self.numbers),
                )
                for store in stores
            ]
            ids[str(operator)] = [
                [
                    self._commit(
                        StoreName(operator, partition, of.store.name),
                        of,
                        newest + 1,
                        num_partitions,
                        parents[str(operator)][partition][number] if parents else None,
                        snapshot=snapshot,
                    )
                    for number, of in enumerate(of_stores)
                ]
                for partition in range(1 if is_single else num_partitions)
            ]
        self.commit(ids)
        self._is_restarted = False

    def commit(self, ids: Mapping[str, list[list[str]]]) -> None:
        """Commit the next batch, as Spark does after it ran it; with the IDs of its stores."""
        batch = self.version
        fields: dict[str, Any] = {"nextBatchWatermarkMs": self.watermark_ms(batch)}
        if self.checkpoint_format >= 2:
            fields["stateUniqueIds"] = ids
        self._commits.add(batch, f"v{self.checkpoint_format}\n{_compact(fields)}")

    def describe(
        self, operator: int, name: str, stores: Sequence[StoreOfQuery], num_partitions: int
    ) -> None:
        """Write what Spark writes of an operator with its first batch."""
        path = operator_metadata_path(f"{self.path}/state", operator)
        fields = {
            "operatorInfo": {"operatorId": operator, "operatorName": name},
            "stateStoreInfo": [
                {"storeName": store.name, "numColsPrefixKey": 0, "numPartitions": num_partitions}
                for store in stores
            ],
        }
        write_text(self.io, path, f"v1\n{_compact(fields)}", overwrite=True)
        for store in stores:
            if store.schema_file is not None:
                inner = "" if store.name == "default" else f"{store.name}/"
                schema = f"{self.path}/state/{operator}/0/{inner}_metadata/schema"
                write_bytes(self.io, schema, store.schema_file, overwrite=True)

    def _commit(
        self,
        store: StoreName,
        of: _RowsOfBatch,
        version: int,
        num_partitions: int,
        checkpoint_id: str | None,
        *,
        snapshot: bool,
    ) -> str:
        """Commit those changes that are a store's own on a version of it; return the new ID."""
        loaded = self._call(
            "load",
            store,
            version=version,
            checkpoint_id=checkpoint_id,
            num_partitions=num_partitions,
            options={**self.options, **(_SUMMARIES if self._is_restarted else _NO_SUMMARIES)},
        )
        if snapshot and (committed := self._committed.get(store, {})).get("version") == version:
            # The same commit again, for the snapshot of it.
            again = {**committed, "force_snapshot": True, "options": dict(self.options)}
            self._call("commit", store, **again)
            while self._call("status", store)["snapshots_in_flight"]:
                time.sleep(0.001)
        max_parallelism = loaded["max_parallelism"]
        families = self.families_of.get(store.partition, of.store.families)
        changes, before, after = of.partition(store.partition, families, max_parallelism)
        rows = [
            Row(group, family, DELETE if value is None else PUT, key, value)
            for group, family, key, value in changes
        ]
        growth = [0] * NUM_CLASSES
        for sign, those in ((-1, before), (1, after)):
            for group, _, _, _ in those:
                growth[class_of(group, num_partitions)] += sign
        new_id: str = self.ids.new_id()
        path = f"{self.scratch}/{new_id}.arrows"
        length = write_stream(
            path,
            rows,
            max_parallelism,
            compression=StateStoreOptions(**self.options).file_compression,
            block_rows=self.block_rows,
        )
        ops = [row.op for row in rows]
        parent = {name: loaded[name] for name in ("version", "checkpoint_id", "lineage")}
        committed = self._committed[store] = {
            "version": version + 1,
            "parent": parent if version else None,
            "checkpoint_id": new_id,
            "delta": {
                "path": path,
                "length": length,
                "put": ops.count(PUT),
                "delete": ops.count(DELETE),
                "merge": 0,
            },
            "num_keys": len(after),
            "key_group_growth": growth,
            "max_parallelism": max_parallelism,
            "num_partitions": num_partitions,
            "rescalable": loaded["rescalable"]
            and all(row.key_group % num_partitions == store.partition for row in rows),
            "column_families": [family.to_json() for family in families],
        }
        self._call("commit", store, **committed)
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
            "options": {**self.options, **_NO_SUMMARIES},
            **fields,
        }
        reply = json.loads(self._engine.call(json.dumps(request)))
        assert "ok" in reply, reply
        return reply["ok"]

    def expected(self) -> dict[tuple[int, str], Rows]:
        """Return the rows of every store by (operator, name), as the batches leave them.

        Of a store with several column families those of the default one.
        """
        return {
            (operator, store.name): {
                key: value for key, value in store.rows(self.numbers).items() if value is not None
            }
            for operator, (_, stores) in enumerate(self.operators)
            for store in stores
        }


def read_checkpoint(
    path: str, io: TreeFileIO | None = None, *, version: int | None = None
) -> dict[tuple[int, str], Rows]:
    """Return the rows of every store of a checkpoint, from all partitions.

    Args:
        path: The checkpoint directory.
        io: Its storage; the local disk when left out.
        version: The version; the newest when left out.

    Raises:
        AssertionError: A row is in another state partition than its key belongs to.
    """
    found: dict[tuple[int, str], Rows] = {}
    with open_checkpoint(Place(path, io=io)) as checkpoint:
        for store, head in checkpoint.heads(version or checkpoint.newest_version).items():
            rows = found.setdefault((store.operator, store.name), {})
            mine: Rows = {}
            for batch in read_rows(checkpoint, head):
                for row in batch.select(["key", "value"]).to_pylist():
                    mine[row["key"]] = row["value"]
            family = head.trailer.column_families[0]
            keys = pa.array(mine, pa.binary())
            groups = compute_key_groups(keys, store.name, family, head.trailer.max_parallelism)
            assert (groups % head.trailer.num_partitions == store.partition).all(), store
            assert not rows.keys() & mine.keys(), store
            rows |= mine
    return found
