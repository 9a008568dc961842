"""Whole checkpoints written without Spark: Spark's logs, and state rows as Spark would encode them.

The state is that of one operator: keys (word, number) with values (total, note), and in the column
family `lists` the same keys with several values each.
"""

import json
import struct
from pathlib import Path

import pyarrow as pa

from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import compute_key_groups
from statestore.core.key_groups import resolve_max_parallelism
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS
from tests.seams import at


def _schema(**fields):
    columns = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return json.dumps({"type": "struct", "fields": columns})


KEY = _schema(word="string", number="long")
VALUE = _schema(total="long", note="string")
DEFAULT = ColumnFamily(0, "default", KEY, VALUE)
LISTS = ColumnFamily(1, "lists", KEY, VALUE, multi_values=True)


def encode_row(*columns):
    """Return an UnsafeRow of strings, numbers, nulls and tuples of those: structs."""
    nulls, slots, rest = 0, b"", b""
    at = 8 + 8 * len(columns)
    for ordinal, column in enumerate(columns):
        if column is None:
            nulls |= 1 << ordinal
            slots += bytes(8)
        elif isinstance(column, int):
            slots += struct.pack("<q", column)
        else:
            text = encode_row(*column) if isinstance(column, tuple) else column.encode()
            slots += struct.pack("<q", (at + len(rest)) << 32 | len(text))
            rest += text + bytes(-len(text) % 8)
    return struct.pack("<Q", nulls) + slots + rest


def encode_values(*rows):
    """Return the value of a multi-value key."""
    encoded = [encode_row(*row) for row in rows]
    return b"".join(len(row).to_bytes(4) + row for row in encoded)


def write_checkpoint(
    root, versions, *, backend="filesystem", num_partitions=2, checkpoint_format=1,
    max_parallelism=64, families=(DEFAULT, LISTS), compression="none", families_of=None,
):  # fmt: skip
    """Write a checkpoint of one operator and return its directory.

    Args:
        root: Directory to make.
        versions: For each version what it changes: {family name: {key: value}}, where a key is
            (word, number), or its bytes, and a value (total, note), a list of those in a
            multi-value family, or None to delete the key.
        families_of: Column families of a state partition, where they are not the same in all; no
            row is of one that is not there.
    """
    options = StateStoreOptions(max_parallelism=max_parallelism, file_compression=compression)
    ids = []
    for partition in range(num_partitions):
        ids.append([])
        with at(root, options=options).open_store(
            partition=partition,
            num_partitions=num_partitions,
            backend=backend,
            checkpoint_format=checkpoint_format,
        ) as store:
            for changes in versions:
                batch = store.begin()
                batch.column_families = of_partition = (families_of or {}).get(partition, families)
                for family in of_partition:
                    _stage(batch, family, changes.get(family.name, {}), partition, num_partitions)
                batch.commit()
                ids[-1].append(store.checkpoint_id)
    _write_logs(Path(root), ids, backend, checkpoint_format)
    return str(root)


def _stage(batch, family, rows, partition, num_partitions):
    if not rows:
        return
    max_parallelism = resolve_max_parallelism(batch._store.max_parallelism, num_partitions)
    keys = [key if isinstance(key, bytes) else encode_row(*key) for key in rows]
    groups = compute_key_groups(pa.array(keys, pa.binary()), "default", family, max_parallelism)
    for key, group, value in zip(keys, groups.tolist(), rows.values(), strict=True):
        if group % num_partitions != partition:
            continue
        if value is None:
            batch.delete(key, key_group=group, column_family=family.name)
        else:
            encoded = encode_values(*value) if family.multi_values else encode_row(*value)
            batch.put(key, encoded, key_group=group, column_family=family.name)


def _write_logs(root, ids, backend, checkpoint_format):
    conf = {
        "spark.sql.shuffle.partitions": str(len(ids)),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS[backend],
        "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    }
    for name in ("offsets", "commits", "state/0/_metadata"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for batch in range(len(ids[0])):
        planned = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
        (root / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(planned)}\n{{}}")
        done = {"nextBatchWatermarkMs": 0}
        if checkpoint_format == 2:
            done["stateUniqueIds"] = {"0": [[found[batch]] for found in ids]}
        (root / "commits" / str(batch)).write_text(f"v{checkpoint_format}\n{json.dumps(done)}")
    metadata = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [
            {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": len(ids)}
        ],
    }
    (root / "state/0/_metadata/metadata").write_text(f"v1\n{json.dumps(metadata)}")


def contents(versions, family="default"):
    """Return what a column family holds after some versions: {key: value}."""
    found = {}
    for changes in versions:
        found |= changes.get(family, {})
    return {key: value for key, value in found.items() if value is not None}


def without_lists(versions):
    """Return versions of a checkpoint that has no column family `lists`."""
    return [{"default": changes.get("default", {})} for changes in versions]


__all__ = ["DEFAULT", "LISTS", "contents", "without_lists", "write_checkpoint"]
