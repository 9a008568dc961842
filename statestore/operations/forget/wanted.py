"""Which keys of an operator are meant: by their grouping key, in whatever column family it stands.

A user's key is in several places: of a join in four stores, with and without an index; of
transformWithState in the keys of map elements, timers and expiry indexes. What Spark partitions by
is the same in all of them, and is what is compared here.
"""

from __future__ import annotations

import json
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.column_family import DEFAULT_FAMILY, ColumnFamily
from statestore.codec.key_bytes import decode_keys, key_type
from statestore.codec.key_encoding import encode_keys
from statestore.codec.partition_key import field_type, partition_key_columns
from statestore.codec.rows import from_numpy, rows_by_family
from statestore.core.errors import InvalidArgumentError
from statestore.operations.key_set import KeySet
from statestore.operations.reading.condition import Condition
from statestore.operations.writing.casts import KeyForm
from statestore.operations.writing.columns import FamilyColumns
from statestore.operations.writing.given import kept, read_given

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from statestore.codec.trailer import Trailer


class Wanted:
    """The keys that are meant, which are held in memory.

    Args:
        where: A condition in SQL over the columns of the grouping key; None where keys are given.
        keys: Grouping keys as Arrow data, or a `pathlib.Path` of a file: columns `key.NAME` or a
            struct `key`; None with `where`. What can be read once only is read here.
        key_form: As `FamilyColumns.key_form`.

    Attributes:
        encoded: Grouping keys that are given, as bytes; of a condition none.
        condition: The condition; None where keys are given.
        grouping: The column family that they would make, of the first file that was met; its names
            count for those of all that differ in names alone. None until then.

    Raises:
        InvalidArgumentError: Not one of the two is given, or no key.
    """

    def __init__(
        self, where: str | None = None, keys: Any = None, *, key_form: KeyForm = KeyForm.GROUPED
    ) -> None:
        if (where is None) == (keys is None):
            raise InvalidArgumentError(
                "either `where` or `keys` must be given, and not both",
                where=where,
                keys=type(keys).__name__,
                to_fix="give either a condition or keys",
            )
        self.where = where
        self.encoded: set[bytes] = set()
        self.grouping: ColumnFamily | None = None
        self._key_form = key_form
        self.condition = None if where is None else Condition(where)
        self._given = None if keys is None else kept(keys)
        self._encoded_for: set[str | None] = set()
        self._known = KeySet([])
        self._num_known = 0
        self._is_found = keys is not None

    def prepare(self, store: str, trailer: Trailer) -> None:
        """Note the bytes of keys that are given, by the schemas of a file; errors as `find`.

        That of the newest version comes first, for its names.
        """
        for family in trailer.column_families:
            # Where there are others, no operator uses it, and its key may be of any type.
            is_used = family.name != DEFAULT_FAMILY or len(trailer.column_families) == 1
            grouping = grouping_family(store, family) if is_used else None
            if grouping is not None:
                self._prepare(store, grouping)

    def find(
        self,
        batch: pa.RecordBatch,
        store: str,
        trailer: Trailer,
        found: set[bytes] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Return which rows are of keys that are meant, ascending.

        Args:
            batch: Rows of the state file schema.
            store: Name of their store.
            trailer: Of the file or version that has them.
            found: Gets the keys of these rows, as bytes.

        Raises:
            InvalidArgumentError: What is given is no key of the operator, or no condition over it.
            CorruptionError, IncompatibleError: As `decode_keys`.
        """
        meant = []
        for family, rows in rows_by_family(batch, trailer.column_families):
            stored = batch.column(3).take(from_numpy(rows, pa.int64()))
            meant.append(rows[self._of_family(stored, store, family, found)])
        return np.sort(np.concatenate(meant)) if meant else np.zeros(0, np.int64)

    def _of_family(
        self, stored: pa.Array[Any], store: str, family: ColumnFamily, found: set[bytes] | None
    ) -> npt.NDArray[np.int64]:
        grouping = grouping_family(store, family)
        if grouping is None:
            return np.zeros(0, np.int64)
        named = self._prepare(store, grouping)
        encoded = grouping_keys(stored, store, family, grouping)
        if self.condition is None or self._is_found:
            meant = np.flatnonzero(self._known.has(encoded))
        else:
            meant = self.condition.rows(as_batch(decode_keys(encoded, named)))
        if found is not None:
            of_rows: list[Any] = encoded.take(from_numpy(meant, pa.int64())).to_pylist()
            found.update(of_rows)
        return meant

    def _prepare(self, store: str, grouping: ColumnFamily) -> ColumnFamily:
        """Note given keys, and return the column family by whose names keys are meant."""
        self.grouping = self.grouping or grouping
        own, newest = key_type(grouping), key_type(self.grouping)
        # Columns of one type that changed places were not renamed.
        if own.nameless == newest.nameless and {*own.names} != {*newest.names}:
            grouping = self.grouping
        if self._given is not None and grouping.key_schema not in self._encoded_for:
            form = self._key_form
            table = read_given(self._given, store, grouping, has_values=False, key_form=form)
            if not table.num_rows:
                raise InvalidArgumentError(
                    "no key is given",
                    num_keys=0,
                    to_fix="give the keys that are to be forgotten",
                )
            for encoded in FamilyColumns(store, grouping, form).keys(table.to_batches()):
                given: list[Any] = encoded.to_pylist()
                self.encoded.update(given)
            self._encoded_for.add(grouping.key_schema)
        if self._num_known != len(self.encoded) and self._is_found:
            self._known = KeySet([pa.array(sorted(self.encoded), pa.binary())])
            self._num_known = len(self.encoded)
        return grouping

    @property
    def words(self) -> dict[str, Any]:
        """Fields of an error about them: the condition, or the number of given keys."""
        return {"num_keys": len(self.encoded)} if self.where is None else {"where": self.where}

    def as_found(self, found: set[bytes]) -> Wanted:
        """Return the keys that are given, or those that the condition found, as given ones."""
        made = copy(self)
        encoded = self.encoded if self.condition is None else found
        vars(made).update(encoded={*encoded}, _is_found=True, _given=None, _num_known=0)
        return made

    def decoded(self, encoded: Iterable[bytes] | None = None) -> Any:
        """Return grouping keys as a struct, in order of their bytes; None where none is known.

        Args:
            encoded: Only these, None for all.
        """
        keys = sorted(self.encoded if encoded is None else encoded)
        if self.grouping is None or not keys:
            return None
        return decode_keys(pa.array(keys, pa.binary()), self.grouping)


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
    no_columns = json.dumps({"type": "struct", "fields": []})
    return ColumnFamily(family.id, DEFAULT_FAMILY, json.dumps(fields), no_columns)


def grouping_paths(store: str, family: ColumnFamily) -> list[str]:
    """Return the paths of the columns of the grouping key in a key.

    Raises:
        IncompatibleError: As `key_type`.
    """
    paths = []
    for ordinals in partition_key_columns(store, family):
        kind, path = key_type(family), "key"
        for ordinal in ordinals:
            struct: Any = kind.arrow
            path += f".{struct.names[ordinal]}"
            kind = kind.types[ordinal]
        paths.append(path)
    return paths


def _is_nested(store: str, family: ColumnFamily) -> bool:
    """Return whether the grouping key is a struct in the key, and not columns of it."""
    paths = partition_key_columns(store, family)
    of_variable = family.name != DEFAULT_FAMILY and family.encoder in ("prefix", "range")
    return (
        of_variable and len(paths) == 1 and field_type(key_type(family), paths[0]).kind == "struct"
    )


def grouping_keys(
    stored: pa.Array[Any], store: str, family: ColumnFamily, grouping: ColumnFamily
) -> pa.Array[Any]:
    """Return the grouping keys of keys, as bytes: no names are in them."""
    keys: Any = decode_keys(stored, family)
    paths = partition_key_columns(store, family)
    if _is_nested(store, family):
        for ordinal in paths[0]:
            keys = keys.field(ordinal)
    else:
        keys = as_struct([keys.field(path[0]) for path in paths], grouping)
    return encode_keys(keys, grouping)


def as_struct(columns: list[Any], grouping: ColumnFamily) -> pa.Array[Any]:
    """Return columns as grouping keys of a column family, by their order."""
    kind = key_type(grouping).arrow
    return pa.Array.from_buffers(kind, len(columns[0]), [None], children=columns)


def as_batch(keys: pa.Array[Any]) -> pa.RecordBatch:
    """Return grouping keys as what a condition is asked of."""
    return pa.RecordBatch.from_arrays([keys], names=["key"])
