"""Joins in state format 4, in a copy: their rows by key and time, and an index by time.

Format 2 has four stores of a join: of each side its rows by key and number, and how many a key has.
Format 3 has the same as column families of one store. Format 4 has one store, too: of each side and
each key and time a list of rows, and of each time and key as many elements without content. Rows
are the same to the byte, and so are their key groups.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.checkpoint.layout import DEFAULT_STORE_NAME
from statestore.checkpoint.operator_metadata import (
    JOIN_OPERATOR,
    OperatorInfo,
    StoreInfo,
    metadata_with_families_path,
    write_operator,
)
from statestore.checkpoint.query_log import JOIN_FORMAT_KEY
from statestore.checkpoint.text_files import compact
from statestore.codec.byte_ranges import ByteRanges, child
from statestore.codec.column_family import NO_DEFAULT, ColumnFamily
from statestore.codec.key_bytes import decode_keys, key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import JOIN_TIME
from statestore.codec.references import StoreName
from statestore.codec.rows import MERGE, SCHEMA, from_numpy, to_numpy
from statestore.codec.sorting import sort_into_runs
from statestore.codec.spark_types import SparkType
from statestore.codec.unsafe_row import decode_field
from statestore.codec.unsafe_row_encoding import fixed_binary, join_binary
from statestore.core.errors import CorruptionError, IncompatibleError, InvalidArgumentError
from statestore.core.text import format_count
from statestore.io.storage import hadoop_uri
from statestore.operations.copy_result import FamilyChange
from statestore.operations.full_state import StateWriter, states_at_once
from statestore.operations.metadata_file import new_query_id
from statestore.operations.operator_map import JOIN_STORES, OLDEST_JOIN_FORMAT
from statestore.operations.passes import Pass
from statestore.operations.states import read_rows
from statestore.operations.writing.join_times import FoundTimes, choose_times, drawn_times
from statestore.spark_files.schemas import write_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.byte_ranges import Int64s
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.copying import Copy
    from statestore.operations.passes import NewState, StoreId
    from statestore.operations.writing.join_times import RowTime
    from statestore.operations.writing.shape import StoreShape

_STORES = {"2": JOIN_STORES, "3": (DEFAULT_STORE_NAME,)}
"""The stores of a join in each format that can become format 4."""
_CONF = {JOIN_FORMAT_KEY: "4", "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2"}
"""Settings that Spark pins for format 4: the second for a conversion to its RocksDB provider."""
_SIDES = ("left", "right")
_COUNTS, _ROWS = "keyToNumValues", "keyWithIndexToValue"
_LISTS, _INDEX = "keyWithTsToValues", "tsWithKey"
_EVENT_TIME = {"name": JOIN_TIME, "type": "long", "nullable": True, "metadata": {}}
_COUNT = SparkType("struct", (("value", SparkType("long")),))
_NO_CONTENT = {"name": "__dummy__", "type": "void", "nullable": True, "metadata": {}}


def with_join_format(copy: Copy, shapes: Sequence[StoreShape], join_format: int) -> Copy:
    """Return a copy in which every join has another state format.

    Reads all rows of joins, to find their times.

    Args:
        copy: A copy that writes all state anew.
        shapes: All stores of its version.
        join_format: 4.

    Raises:
        InvalidArgumentError: Another format; there is no join; or rows of one are given.
        IncompatibleError: The joins are neither of format 2 nor of 3; or as `FoundTimes`,
            `RowTime` and `choose_times`.
        CorruptionError: A key has not as many rows as are counted of it.
        NotFoundError: A store has no state schema; or as `read_rows`.
        FencedError, StorageError: As `read_rows`.
    """
    joins = [info for info in copy.source.operators if info.name == JOIN_OPERATOR]
    if join_format != 4 or not joins:
        raise InvalidArgumentError(
            "no join can have this state format" if joins else "the query has no join",
            join_format=join_format,
            operators=", ".join(info.name for info in copy.source.operators),
            to_fix="ask for state format 4, of a query that joins two streams",
        )
    version = copy.version
    found = version.offsets[version.batch].conf.get(JOIN_FORMAT_KEY, OLDEST_JOIN_FORMAT)
    if found not in _STORES:
        raise IncompatibleError(
            "the joins of the checkpoint are of a state format that does not become format 4",
            state_format=found,
            to_fix="leave the format out: it is that of the checkpoint"
            if found == "4"
            else "begin a new query in format 4: rows of format 1 do not say whether they have "
            "found a match",
        )
    passes, files = dict(copy.passes), dict(copy.files)
    for info in joins:
        stores = [(info.id, name) for name in _STORES[found]]
        given = [change for store in stores for change in passes[store].families]
        if given:
            raise InvalidArgumentError(
                "rows are given of a join whose state format changes",
                operator=info.id,
                rows=", ".join(change.column_family for change in given),
                to_fix="transform twice: first the rows",
            )
        of_join = [shape for shape in shapes if (shape.operator, shape.name) in stores]
        indexed = _indexed(copy.source, of_join)
        passes |= dict.fromkeys(stores, indexed)
        files |= _files(copy, indexed)
    remade = {info.id: (DEFAULT_STORE_NAME,) for info in joins}
    return replace(copy, passes=passes, files=files, remade=remade, conf=_CONF)


def _files(copy: Copy, indexed: Indexed) -> dict[str, bytes]:
    """Return Spark's files of a join in format 4: its metadata and its state schemas."""
    batch = copy.version.batch
    schemas = f"_stateSchema/{DEFAULT_STORE_NAME}/{batch}_{new_query_id(copy.target.ids)}"
    store = StoreInfo(DEFAULT_STORE_NAME, 0, copy.num_partitions, (schemas,))
    operator = OperatorInfo(indexed.operator, JOIN_OPERATOR, (store,), has_families=True)
    text = write_operator(operator, f"{hadoop_uri(copy.target.uri)}/state")
    return {
        metadata_with_families_path("state", operator.id, batch): text.encode(),
        f"state/{operator.id}/{schemas}": write_families(indexed.new.column_families[1:]),
    }


def _indexed(source: OpenCheckpoint, stores: Sequence[StoreShape]) -> Indexed:
    """Look at all rows of a join and return how they pass; errors as `with_join_format`."""
    found: list[tuple[Stored, FoundTimes]] = []
    for side in _SIDES:
        counts, stored = (_find(stores, f"{side}-{name}") for name in (_COUNTS, _ROWS))
        times = FoundTimes.before(side, stored.family)
        num_counted = 0
        for partition in range(stored.shape.num_states):
            num_counted += sum(map(_sum, counts.rows(source, partition)))
            times.look_at(stored.rows(source, partition))
        if times.num_rows != num_counted:
            raise CorruptionError(
                "keys of a join have not as many rows as are counted of them",
                operator=stored.shape.operator,
                rows=f"{side}-{_ROWS}",
                expected=num_counted,
                found=times.num_rows,
                to_fix=f"edit {side}-{_COUNTS} or {side}-{_ROWS}, so that they agree",
            )
        found.append((stored, times))
    chosen = choose_times([times for _, times in found])
    made = []
    for number, ((stored, of), time) in enumerate(zip(found, chosen, strict=True)):
        both = _families(of.side, stored.schemas(source), 1 + 2 * number)
        made.append(JoinSide(of.side, stored, *both, time, of.num_rows))
    families = (NO_DEFAULT, *(one for side in made for one in (side.lists, side.index)))
    new = replace(
        stores[0].new,
        column_families=families,
        rescalable=all(store.new.rescalable for store in stores),
    )
    return Indexed(stores[0].operator, new, tuple(made))


def _find(stores: Sequence[StoreShape], name: str) -> Stored:
    """Return the rows of a name: of a store of its own, or of a column family of the only store."""
    (found,) = (
        Stored(shape, family)
        for shape in stores
        for family in shape.new.column_families
        if name in (shape.name, family.name)
    )
    return found


def _sum(rows: pa.RecordBatch) -> int:
    """Return the sum of counts."""
    counts: Any = decode_field(ByteRanges.of_column(rows.column(4)), _COUNT, 0)
    return int(to_numpy(counts, "<i8").sum())


@dataclass(frozen=True)
class Stored:
    """Rows of a join in format 2 or 3.

    Attributes:
        shape: Their store.
        family: Their column family in it.
    """

    shape: StoreShape
    family: ColumnFamily

    def rows(self, source: OpenCheckpoint, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield those of a state partition; errors as `read_rows`."""
        return read_rows(source, self.shape.heads[partition], self.family.name)

    def schemas(self, source: OpenCheckpoint) -> ColumnFamily:
        """Return their schemas as Spark's driver wrote them: in a task fewer columns may be null.

        Errors as `OpenCheckpoint.schemas`.
        """
        operator = source.operator(self.shape.operator)
        (info,) = (store for store in operator.stores if store.name == self.shape.name)
        known = source.schemas(operator.id, info.schema_paths[-1])
        (found,) = (family for family in known if family.name == self.family.name)
        return found


def _families(side: str, before: ColumnFamily, number: int) -> tuple[ColumnFamily, ColumnFamily]:
    """Return the column families of a side, whose numbers begin with `number`."""
    schema = json.loads(before.key_schema or "")
    keys = compact({**schema, "fields": [*schema["fields"][:-1], _EVENT_TIME]})
    nothing = compact({"type": "struct", "fields": [_NO_CONTENT]})
    lists = ColumnFamily(
        number,
        f"{side}-{_LISTS}",
        keys,
        before.value_schema,
        "timestamp-postfix",
        multi_values=True,
    )
    index = ColumnFamily(
        number + 1,
        f"{side}-{_INDEX}",
        keys,
        nothing,
        "timestamp-prefix",
        multi_values=True,
        internal=True,
    )
    return lists, index


@dataclass(frozen=True)
class JoinSide:
    """A side of a join.

    Attributes:
        name: left or right.
        stored: Its rows.
        lists, index: Its column families in format 4.
        time: Where the time of a row is; None where Spark draws numbers.
        num_rows: How many there are.
    """

    name: str
    stored: Stored
    lists: ColumnFamily
    index: ColumnFamily
    time: RowTime | None
    num_rows: int

    def rows_of(self, source: OpenCheckpoint, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield its rows in a state partition as both column families have them."""
        for rows in self.stored.rows(source, partition):
            times = drawn_times(rows.num_rows) if self.time is None else self.time.of(rows)
            keys = self._keys(rows.column(3), times)
            lengths = ByteRanges.of_column(rows.column(4)).sizes.astype(">i4")
            values = join_binary(fixed_binary(lengths), rows.column(4))
            yield _appended(rows, self.lists, keys, values)
            # Spark looks there for what the watermark evicts.
            if self.time is not None:
                kind = value_type(self.index).arrow
                nulls = pa.nulls(rows.num_rows)
                nothing = pa.Array.from_buffers(kind, rows.num_rows, [None], children=[nulls])
                yield _appended(rows, self.index, keys, encode_values(nothing, self.index))

    def _keys(self, keys: pa.Array[Any], times: Int64s) -> pa.Array[Any]:
        """Return keys with a time in place of the number of the row."""
        decoded = decode_keys(keys, self.stored.family)
        kind: Any = key_type(self.lists).arrow
        columns = [child(decoded, at) for at in range(len(kind) - 1)]
        columns.append(from_numpy(times, pa.int64()))
        return pa.Array.from_buffers(kind, len(keys), [None], children=columns)


def _appended(
    rows: pa.RecordBatch, family: ColumnFamily, keys: pa.Array[Any], values: pa.Array[Any]
) -> pa.RecordBatch:
    """Return rows that append values to keys of a column family, in the key groups they have."""
    numbers = np.full(rows.num_rows, family.id, np.uint16)
    ops = np.full(rows.num_rows, MERGE, np.uint8)
    columns: list[pa.Array[Any]] = [
        rows.column(0),
        from_numpy(numbers, pa.uint16()),
        from_numpy(ops, pa.uint8()),
        encode_keys(keys, family),
        values,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class Indexed(Pass):
    """Rows of a join written anew in state format 4: by key and time, with an index by time.

    Attributes:
        operator: Operator ID.
        new: A version of its store, but for ID and row counts.
        sides: Left and right.
    """

    operator: int
    new: NewVersion
    sides: tuple[JoinSide, ...]

    @property
    def families(self) -> tuple[FamilyChange, ...]:
        """What becomes of the rows, in words."""
        return tuple(
            FamilyChange(
                self.operator,
                f"{side.name}-{_ROWS}",
                side.lists.name,
                f"{format_count(side.num_rows, 'row')} by "
                + ("key alone" if side.time is None else f"key and time, {side.time.name}"),
                None,
                None,
            )
            for side in self.sides
        )

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them, several state partitions at a time."""
        new = replace(self.new, backend=state.backend, checkpoint_format=state.checkpoint_format)
        read = [name for name in state.version.heads if (name.operator, name.name) in stores]

        def write_one(partition: int) -> PublishedFile:
            store = StoreName(self.operator, partition, DEFAULT_STORE_NAME)
            of = replace(new, checkpoint_id=state.target.ids.new_id())
            rows = (piece for side in self.sides for piece in side.rows_of(state.source, partition))
            with tempfile.TemporaryDirectory(dir=state.work.scratch_directory) as own:
                work = replace(state.work, scratch_directory=own)
                writer = StateWriter(state.location(store), of, work)
                runs = sort_into_runs(rows, new.max_parallelism, own)
                for batch in merge_runs(runs, new.max_parallelism):
                    writer.add(batch)
                made = writer.finish()
            state.progress.add(
                state.version.state_bytes(name for name in read if name.partition == partition)
            )
            return made

        with ThreadPoolExecutor(states_at_once()) as pool:
            made = list(pool.map(write_one, range(state.num_partitions)))
        return {file.trailer.store: file for file in made}
