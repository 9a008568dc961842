"""Queries whose checkpoints tests make: stores of texts and of words, and what is found in them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any

from statestore import Savepoint, Store
from statestore.codec.column_family import ColumnFamily
from statestore.core.options import StateStoreOptions
from statestore.operations.checkpoint import open_checkpoint
from statestore.spark_files.schemas import read_schemas, replace_schemas, write_schemas
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import Changes, StoreOfQuery, schema_of, unsafe_row
from tests.seams import at, place_of

OPTIONS = StateStoreOptions(fsync_enabled=False)
NUM_VERSIONS = 6
KEY = schema_of(word="string", number="long")
VALUE = schema_of(total="long", note="string")
DEFAULT = ColumnFamily(0, "default", KEY, VALUE)
LISTS = ColumnFamily(1, "lists", KEY, VALUE, multi_values=True)


@dataclass(frozen=True)
class TextStore(StoreOfQuery):
    """A store of texts by text, which are its bytes: no schema says what they are."""

    name: str = "default"
    columns: tuple[str, ...] = ("key",)
    key_schema: str | None = None

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        return ColumnFamily(0, "default", key_schema=self.key_schema)

    @property
    def schema_file(self) -> bytes:
        """Schemas by which it is told from another store."""
        return write_schemas(schema_of(key="string"), schema_of(**{self.name: "string"}))

    def rows(self, changes: Mapping[str, Any]) -> Changes:
        """Return its rows, each of which names the store."""
        return {
            key.encode(): None if value is None else f"{self.name} {value}".encode()
            for key, value in changes.items()
        }

    def key_groups(
        self, family: ColumnFamily, keys: Iterable[bytes], max_parallelism: int
    ) -> list[int]:
        """Return some key group of each key."""
        del family
        return [zlib.crc32(key) % max_parallelism for key in keys]


@dataclass(frozen=True)
class WordStore(StoreOfQuery):
    """A store of (total, note) by (word, number), and of lists of those in the family `lists`.

    A batch is given them by (name of the family, key).
    """

    families: tuple[ColumnFamily, ...] = (DEFAULT, LISTS)
    name: str = "default"
    columns: tuple[str, ...] = ("word", "number")

    @property
    def family(self) -> ColumnFamily:
        """The first column family."""
        return self.families[0]

    def rows_by_family(self, changes: Mapping[Any, Any]) -> dict[int, Changes]:
        """Return the rows of each column family."""
        return {
            family.id: {
                _key(key): None if value is None else _encoded(value, family)
                for (name, key), value in changes.items()
                if name == family.name
            }
            for family in self.families
        }

    def rows(self, changes: Mapping[Any, Any]) -> Changes:
        """Return the rows of the first column family."""
        return self.rows_by_family(changes)[self.family.id]


def _key(key: Any) -> bytes:
    return key if isinstance(key, bytes) else unsafe_row(*key)


def _encoded(value: Any, family: ColumnFamily) -> bytes:
    if not family.multi_values:
        return unsafe_row(*value)
    encoded = [unsafe_row(*row) for row in value]
    return b"".join(len(row).to_bytes(4) + row for row in encoded)


NO_COLUMNS = schema_of()
AGGREGATION = ("stateStoreSave", (TextStore(),))
GLOBAL_AGGREGATION = ("stateStoreSave", (TextStore(columns=(), key_schema=NO_COLUMNS),))
GLOBAL_LIMIT = ("globalLimit", (TextStore(columns=(), key_schema=schema_of(key="void")),))
JOIN = (
    "symmetricHashJoin",
    tuple(
        TextStore(f"{side}-{name}")
        for side in ("left", "right")
        for name in ("keyToNumValues", "keyWithIndexToValue")
    ),
)


def query_of(
    path: Any,
    *,
    operators: Sequence[tuple[str, Sequence[StoreOfQuery]]] = (AGGREGATION,),
    options: StateStoreOptions = OPTIONS,
    **how: Any,
) -> MadeCheckpoint:
    """Return a query of texts that has not run; arguments as of `MadeCheckpoint`."""
    given = {
        field.name: value
        for field in fields(options)
        if (value := getattr(options, field.name)) != field.default
    }
    return MadeCheckpoint(str(path), operators=operators, options=given, **how)


def make_query(path: Any, num_batches: int = 3, **how: Any) -> MadeCheckpoint:
    """Return a query of texts that ran some batches with puts, overwrites and deletes."""
    query = query_of(path, **how)
    for batch in range(num_batches):
        rows = {f"key-{number}": f"{batch}/{number}" for number in range(batch, 30 + batch)}
        query.run_batch(rows | ({"key-3": None, "key-9": None} if batch else {}))
    return query


def write_checkpoint(
    root: Any,
    versions: Sequence[Mapping[str, Mapping[Any, Any]]],
    *,
    families: tuple[ColumnFamily, ...] = (DEFAULT, LISTS),
    families_of: Mapping[int, tuple[ColumnFamily, ...]] | None = None,
    num_partitions: int = 2,
    max_parallelism: int = 64,
    compression: str = "none",
    **how: Any,
) -> str:
    """Write a checkpoint of one operator and return its directory.

    Args:
        root: Directory to make.
        versions: For each version what it changes: {family name: {key: value}}, where a key is
            (word, number), or its bytes, and a value (total, note), a list of those in a
            multi-value family, or None to delete the key.
        families: All column families.
        families_of: Column families of a state partition, where they are not the same in all; no
            row is of one that is not there.
        num_partitions, max_parallelism, compression: As Spark's conf and the options.
        how: As of `MadeCheckpoint`.
    """
    made = MadeCheckpoint(
        str(root),
        num_partitions=num_partitions,
        operators=(("stateStoreSave", (WordStore(families),)),),
        options={"max_parallelism": max_parallelism, "file_compression": compression},
        families_of=families_of or {},
        **how,
    )
    for changes in versions:
        made.run_batch(
            {(family, key): value for family, of in changes.items() for key, value in of.items()}
        )
    return made.path


def run_versions(store: Store, random: Random, salt: bytes = b"") -> Iterator[int]:
    """Commit versions 1 to 6 of an empty store, snapshots of 2 and 5; yield each behind it.

    On RocksDB with files merged from three on, 3 to 5 are in a merged file.
    """
    for number in range(1, NUM_VERSIONS + 1):
        batch = store.begin()
        for key in range(12):
            batch.put(b"%d" % key, b"%s%d %d" % (salt, key, number))
        # The first is large and the others grow, so that 3 to 5 are merged by themselves.
        if number == 1:
            batch.put(b"large", random.randbytes(20_000))
        batch.put(b"%d" % (100 + number), random.randbytes(100 * number))
        gone = b"%d" % (99 + number)
        batch.put(gone, b"")  # as a delete of a key that was never there writes nothing
        batch.delete(gone)
        batch.commit()
        if number in (2, 5):
            store.snapshot()
        yield number


def contents(versions, family="default"):
    """Return what a column family holds after some versions: {key: value}."""
    found = {}
    for changes in versions:
        found |= changes.get(family, {})
    return {key: value for key, value in found.items() if value is not None}


def without_lists(versions):
    """Return versions of a checkpoint that has no column family `lists`."""
    return [{"default": changes.get("default", {})} for changes in versions]


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


def group_by(checkpoint, **columns):
    """Change the columns that Spark partitions the input of `transformWithState` by, not its key.

    As after `groupBy(columns).as[K, V]` in Scala; of operator 0, by the types of the columns.
    """
    for path in Path(checkpoint).glob("state/0/_stateSchema/default/[0-9]*"):
        data = path.read_bytes()
        (default,) = (one for one in read_schemas(data, "") if one.name == "default")
        changed = replace(default, key_schema=schema_of(**columns))
        path.write_bytes(replace_schemas(data, "", {"default": changed}))


def move_rows(checkpoint):
    """Exchange two state partitions of Spark's, so that no row is where its key's hash says."""
    state = Path(checkpoint) / "state" / "0"
    (state / "0").rename(state / "2")
    (state / "1").rename(state / "0")
    (state / "2").rename(state / "1")
    for path in (Path(checkpoint) / "commits").glob("[0-9]*"):
        version, line = path.read_text().split("\n")
        fields = json.loads(line)
        fields["stateUniqueIds"]["0"].reverse()
        path.write_text(f"{version}\n{json.dumps(fields)}")


def restore(savepoint, checkpoint, *, options=OPTIONS, io=None, target_io=None, **how):
    """Restore a savepoint and return what was done."""
    source = at(savepoint, kind=Savepoint, options=options, io=io)
    return source.restore(at(checkpoint, options=options, io=target_io), **how)
