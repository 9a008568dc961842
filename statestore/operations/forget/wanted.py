"""Which keys of an operator are meant: by their grouping key, in whatever column family it stands.

A user's key is in several places: of a join in four stores, with and without an index; of
transformWithState in the keys of map elements, timers and expiry indexes. What Spark partitions by
is the same in all of them, and is what is compared here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.column_family import DEFAULT_FAMILY, ColumnFamily
from statestore.codec.key_bytes import decode_keys, key_type
from statestore.codec.key_encoding import encode_keys
from statestore.codec.partition_key import field_type, partition_key_columns
from statestore.codec.rows import from_numpy, to_numpy
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.condition import Condition
from statestore.operations.writing.columns import FamilyColumns, decide_family
from statestore.operations.writing.given import as_reader

if TYPE_CHECKING:
    import numpy.typing as npt

    from statestore.codec.trailer import Trailer

MIN_DISTINCT_BYTES = 3
"""Bytes of a key that are not zero, from which on it is looked for in bytes of any kind: 42 as a
key is the same as 42 as a count."""


@dataclass
class Wanted:
    """The keys that are meant.

    Attributes:
        where: A condition in SQL over the columns of the grouping key; None where keys are given.
        keys: Grouping keys as Arrow data, columns `key.NAME` or a struct `key`; None with `where`.
        encoded: Grouping keys that were given or found, as bytes.
        stored: Keys that were found as they are stored, by store name and ID of column family.

    Raises:
        InvalidArgumentError: Not one of the two is given.
    """

    where: str | None = None
    keys: Any = None
    encoded: set[bytes] = field(default_factory=set)
    stored: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.where is None) == (self.keys is None):
            raise InvalidArgumentError(
                "which keys are meant is not said in one way",
                where=self.where,
                keys=type(self.keys).__name__,
                to_fix="give either a condition or keys",
            )
        self._condition = None if self.where is None else Condition(self.where)
        self._given = None if self.keys is None else as_reader(self.keys).read_all()
        self._encoded_for: set[str | None] = set()

    def prepare(self, store: str, trailer: Trailer) -> None:
        """Note the bytes of keys that are given, by the schemas of a file; errors as `find`."""
        for family in trailer.column_families:
            grouping = grouping_family(store, family)
            if grouping is not None:
                self._encode_given(store, grouping)

    def find_any(self, batch: pa.RecordBatch, store: str, trailer: Trailer) -> int:
        """Note the keys of rows that are meant, as `find`, of all column families."""
        return sum(self.find(batch, store, family) for family in trailer.column_families)

    def find(self, batch: pa.RecordBatch, store: str, family: ColumnFamily) -> int:
        """Note the keys of rows that are meant, and return how many there are.

        Args:
            batch: Rows of the state file schema.
            store: Name of their store.
            family: Their column family; rows of others are passed over.

        Raises:
            InvalidArgumentError: What is given is no key of the operator, or no condition over it.
            CorruptionError, IncompatibleError: As `decode_keys`.
        """
        grouping = grouping_family(store, family)
        if grouping is None:
            return 0
        self._encode_given(store, grouping)
        rows = np.flatnonzero(to_numpy(batch.column(1), np.uint16) == family.id)
        if not len(rows):
            return 0
        stored = batch.column(3).take(from_numpy(rows, pa.int64()))
        keys = _grouping_keys(stored, store, family, grouping)
        encoded = encode_keys(keys, grouping)
        meant = from_numpy(np.flatnonzero(self._is_meant(keys, encoded)), pa.int64())
        self.encoded.update(_as_bytes(encoded.take(meant)))
        found = _as_bytes(stored.take(meant))
        self.stored.setdefault((store, family.id), set()).update(found)
        return len(found)

    def _encode_given(self, store: str, grouping: ColumnFamily) -> None:
        if self._given is not None and grouping.key_schema not in self._encoded_for:
            decide_family(grouping, self._given.schema, change_schema=False, has_values=False)
            for encoded in FamilyColumns(store, grouping).keys(self._given.to_batches()):
                self.encoded.update(_as_bytes(encoded))
            self._encoded_for.add(grouping.key_schema)

    def _is_meant(self, keys: pa.Array[Any], encoded: pa.Array[Any]) -> npt.NDArray[np.bool_]:
        # Imported here because it takes long, and only what writes rows needs it.
        import pyarrow.compute as pc

        if self._condition is None:
            known = pa.array(sorted(self.encoded), pa.binary())
            is_in = pc.is_in(encoded, value_set=known).cast(pa.uint8())
            return to_numpy(is_in, np.uint8).astype(bool)
        mask = np.zeros(len(keys), bool)
        mask[self._condition.rows(pa.RecordBatch.from_arrays([keys], names=["key"]))] = True
        return mask

    @property
    def bytes_to_search(self) -> tuple[bytes, ...]:
        """The keys as bytes, those that are looked for wherever they may stand."""
        every = self.encoded.union(*self.stored.values())
        return tuple(sorted(one for one in every if not _is_plain(one)))

    @property
    def num_plain(self) -> int:
        """How many of the grouping keys are only looked for as keys of rows."""
        return sum(map(_is_plain, self.encoded))

    @property
    def digest(self) -> str:
        """SHA-256 of the grouping keys, each after its length, in order; hex."""
        made = hashlib.sha256()
        for one in sorted(self.encoded):
            made.update(len(one).to_bytes(4) + one)
        return made.hexdigest()


def _as_bytes(column: pa.Array[Any]) -> list[bytes]:
    found: list[Any] = column.to_pylist()
    return found


def _is_plain(key: bytes) -> bool:
    return sum(map(bool, key)) < MIN_DISTINCT_BYTES


def grouping_family(store: str, family: ColumnFamily) -> ColumnFamily | None:
    """Return the column family that grouping keys of another one would make.

    Args:
        store: Name of the store.
        family: The column family.

    Returns:
        None where there is no grouping key.

    Raises:
        IncompatibleError: As `key_type`.
    """
    if family.key_schema is None:
        return None
    paths = partition_key_columns(store, family)
    if not paths:
        return None
    fields: Any = json.loads(family.key_schema)
    if _is_nested(store, family):
        for ordinal in paths[0]:
            fields = fields["fields"][ordinal]["type"]
    else:
        fields = {"type": "struct", "fields": [fields["fields"][path[0]] for path in paths]}
    return ColumnFamily(family.id, DEFAULT_FAMILY, json.dumps(fields))


def _is_nested(store: str, family: ColumnFamily) -> bool:
    """Return whether the grouping key is a struct in the key, and not columns of it."""
    paths = partition_key_columns(store, family)
    of_variable = family.name != DEFAULT_FAMILY and family.encoder in ("prefix", "range")
    return (
        of_variable and len(paths) == 1 and field_type(key_type(family), paths[0]).kind == "struct"
    )


def _grouping_keys(
    stored: pa.Array[Any], store: str, family: ColumnFamily, grouping: ColumnFamily
) -> pa.Array[Any]:
    keys: Any = decode_keys(stored, family)
    paths = partition_key_columns(store, family)
    if _is_nested(store, family):
        for ordinal in paths[0]:
            keys = keys.field(ordinal)
        nested: pa.Array[Any] = keys
        return nested
    columns = [keys.field(path[0]) for path in paths]
    return pa.Array.from_buffers(key_type(grouping).arrow, len(keys), [None], children=columns)
