"""Columns that a user gives as those of a column family: found by name, of the right types."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.partition_key import key_groups_of
from statestore.codec.rows import MERGE, PUT, SCHEMA, from_numpy, split_for_blocks
from statestore.codec.spark_types import describe_field, parse_schema
from statestore.core.errors import IncompatibleError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType

_SIDES = ("key", "value")
_PASSED_OVER = "partition_id"
"""What `read` returns beside: Spark's hash decides on it."""


@dataclass(frozen=True, slots=True)
class FamilyColumns:
    """How given columns become rows of a column family.

    Attributes:
        store: Name of its store.
        family: The column family, with the schemas that it has afterwards.
    """

    store: str
    family: ColumnFamily

    def encode(
        self, batches: Iterable[pa.RecordBatch], max_parallelism: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield given rows as rows of the state file schema, in no order.

        Args:
            batches: Columns `key` and `value`, structs or their fields named with dots.
            max_parallelism: Number of key groups.

        Raises:
            InvalidArgumentError: A column is missing, unknown, or not of its type; or a key or
                value is null.
            IncompatibleError: As `compute_key_groups`.
        """
        for batch in batches:
            for piece in split_for_blocks(batch):
                yield self._encode(piece, max_parallelism)

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Array[Any]]:
        """Yield given keys as bytes; errors as `encode`."""
        for batch in batches:
            for piece in split_for_blocks(batch):
                yield encode_keys(self._side(piece, "key"), self.family)

    def _encode(self, batch: pa.RecordBatch, max_parallelism: int) -> pa.RecordBatch:
        family = self.family
        keys = self._side(batch, "key")
        groups = key_groups_of(keys, self.store, family, max_parallelism)
        count = batch.num_rows
        op = MERGE if family.multi_values else PUT
        columns = [
            from_numpy(groups, pa.uint16()),
            from_numpy(np.full(count, family.id, np.uint16), pa.uint16()),
            from_numpy(np.full(count, op, np.uint8), pa.uint8()),
            encode_keys(keys, family),
            encode_values(self._side(batch, "value"), family),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _side(self, batch: pa.RecordBatch, side: str) -> pa.Array[Any]:
        """Return the keys or the values as the column family has them."""
        kind = key_type(self.family) if side == "key" else value_type(self.family)
        found = _fields(batch, side)
        struct: Any = kind.arrow
        names = struct.names
        missing = [name for name in names if name not in found]
        # A value of nothing, as deduplication has it, need not be given.
        optional = {name for name, part in zip(names, kind.types, strict=True) if _is_void(part)}
        if {*missing} - optional or found.keys() - {*names}:
            raise InvalidArgumentError(
                "the columns given are not those of the column family",
                side=side,
                column_family=self.family.name,
                expected=", ".join(f"{side}.{name}" for name in names),
                found=", ".join(f"{side}.{name}" for name in found),
                to_fix="give these columns; of another schema of values, say that it changes "
                "(change_schema)",
            )
        children = [
            conform(found[name], part, f"{side}.{name}")
            if name in found
            else pa.nulls(batch.num_rows)
            for name, part in zip(names, kind.types, strict=True)
        ]
        return pa.Array.from_buffers(kind.arrow, batch.num_rows, [None], children=children)


def _is_void(kind: SparkType) -> bool:
    return kind.kind == "void"


def _fields(batch: pa.RecordBatch, side: str) -> dict[str, pa.Array[Any]]:
    """Return the columns of a side by name: the fields of a struct, or columns named with a dot."""
    if side in batch.schema.names:
        column: Any = batch.column(side)
        if not pa.types.is_struct(column.type):
            raise InvalidArgumentError(
                "keys and values are structs",
                column=side,
                type=str(column.type),
                to_fix=f"give a struct, or its fields as columns named {side}.NAME",
            )
        if column.null_count:
            raise InvalidArgumentError(
                "a key or a value is null",
                column=side,
                num_nulls=column.null_count,
                to_fix="leave such rows out; only fields of keys and values may be null",
            )
        return dict(zip(column.type.names, column.flatten(), strict=True))
    prefix = f"{side}."
    return {
        name[len(prefix) :]: column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name.startswith(prefix)
    }


def conform(column: Any, kind: SparkType, name: str) -> pa.Array[Any]:
    """Return a column as one of a type, values unchanged; fields of structs go by name.

    Raises:
        InvalidArgumentError: It cannot be, or not without a loss; names the column.
    """
    try:
        found: pa.Array[Any] = column if column.type == kind.arrow else _cast(column, kind.arrow)
        return found
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            "a column is not of the type that the column family has",
            column=name,
            expected=str(kind.arrow),
            found=str(column.type),
            reason=str(error).partition("\n")[0],
            to_fix="cast it; or say that the schema changes (change_schema)",
        ) from error


def _cast(column: Any, wanted: Any) -> Any:
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        if sorted(column.type.names) != sorted(wanted.names):
            raise pa.ArrowInvalid(f"fields {', '.join(column.type.names)}")
        children = [_cast(column.field(part.name), part.type) for part in wanted]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=column.is_null())
    return column.cast(wanted)


def decide_family(
    family: ColumnFamily, schema: pa.Schema, *, change_schema: bool, has_values: bool = True
) -> ColumnFamily:
    """Return a column family with the schemas that given columns let it have.

    Args:
        family: As it is.
        schema: Of the columns given.
        change_schema: Whether names and types of what is given are its schemas from now on; else
            they must be those it has.
        has_values: Whether values are given beside keys.

    Raises:
        InvalidArgumentError: The columns do not fit.
        IncompatibleError: Spark has no such type; or the schema of this family cannot be changed.
    """
    sides = _SIDES if has_values else _SIDES[:1]
    known = [name for name in schema.names if name.partition(".")[0] in sides]
    others = {*schema.names} - {*known} - {_PASSED_OVER}
    if others:
        raise InvalidArgumentError(
            "what is given has columns that are neither of the key nor of the value",
            columns=", ".join(sorted(others)),
            to_fix="name them key.NAME or value.NAME, or make structs key and value of them",
        )
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    if not change_schema:
        for side in sides:
            FamilyColumns("", family)._side(empty, side)  # noqa: SLF001 (of this module)
        return family
    changed = replace(
        family,
        key_schema=_schema_of(_fields(empty, "key"), family.key_schema),
        value_schema=_schema_of(_fields(empty, "value"), family.value_schema),
    )
    _check_change(family, changed)
    return changed


def _schema_of(fields: dict[str, pa.Array[Any]], before: str | None) -> str | None:
    """Return the schema of fields; those that stay as they were keep what Spark says of them."""
    if before is None:
        return None
    schema = parse_schema(before)
    struct: Any = schema.arrow
    of_before = dict(zip(struct.names, json.loads(before)["fields"], strict=True))
    if not fields and all(map(_is_void, schema.types)):
        return before
    untyped = [name for name, column in fields.items() if pa.types.is_null(column.type)]
    if {*untyped} - of_before.keys():
        raise InvalidArgumentError(
            "a column has no type when there are no rows",
            columns=", ".join(untyped),
            to_fix="give it a type, also in a table without rows, such as pa.array(…, pa.int64())",
        )
    described: list[Any] = [
        of_before[name]
        if name in of_before and column.type in (pa.null(), struct.field(name).type)
        else describe_field(name, column.type)
        for name, column in fields.items()
    ]
    if described == list(of_before.values()):
        return before
    return json.dumps({"type": "struct", "fields": described}, separators=(",", ":"))


def _check_change(family: ColumnFamily, changed: ColumnFamily) -> None:
    if family.value_schemas and value_type(changed) != value_type(family):
        raise IncompatibleError(
            "the values of this column family evolve by Spark's own rules",
            column_family=family.name,
            to_fix="change the state variable in the query: its next run takes the schema over",
        )
    if family.encoder != "no-prefix" and key_type(changed) != key_type(family):
        raise IncompatibleError(
            "keys of this column family are ordered by some of their columns, which stay",
            column_family=family.name,
            encoder=family.encoder,
            to_fix="keep the columns of the key as they are",
        )
