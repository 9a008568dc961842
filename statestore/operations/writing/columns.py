"""Columns that a user gives as those of a column family: found by name, of the right types."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import unpack
from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.partition_key import key_groups_of
from statestore.codec.rows import MERGE, PUT, SCHEMA, from_numpy, split_for_blocks
from statestore.codec.spark_types import (
    VARIANT_PARTS,
    describe_field,
    describe_type,
    distinct_names,
    parse_schema,
)
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.operations.reading.sql_types import given_back
from statestore.operations.writing.casts import (
    OTHER_SCHEMA,
    KeyForm,
    conform,
    normalized,
    null_where_parts_are,
    refuse_nulls,
    row_told,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType

SIDES = ("key", "value")
_COLLATIONS = "__COLLATIONS"
_PASSED_OVER = "partition_id"
"""A column that `read` returns and nobody need give: Spark's hash decides on it."""


@dataclass(frozen=True, slots=True)
class FamilyColumns:
    """How given columns become rows of a column family.

    Attributes:
        store: Name of its store.
        family: The column family, with the schemas that it has afterwards.
        key_form: The form of its keys.
    """

    store: str
    family: ColumnFamily
    key_form: KeyForm = KeyForm.GROUPED

    def encode(
        self, batches: Iterable[pa.RecordBatch], max_parallelism: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield given rows as rows of the state file schema, in no order.

        Args:
            batches: Columns `key` and `value`, structs or their fields named with dots.
            max_parallelism: Number of key groups.

        Raises:
            InvalidArgumentError: A column is missing, unknown, or not of its type; or a key or
                value is null. Rows are counted over all batches.
            IncompatibleError: As `compute_key_groups`.
        """
        num_before = 0
        for batch in batches:
            for piece in split_for_blocks(batch):
                with row_told(num_before.__add__):
                    encoded = self._encode(piece, max_parallelism)
                yield encoded
                num_before += piece.num_rows

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Array[Any]]:
        """Yield given keys as bytes; errors as `encode`."""
        for batch in batches:
            for piece in split_for_blocks(batch):
                yield encode_keys(self._side(piece, "key"), self.family)

    def typed(self, table: pa.Table, sides: Sequence[str]) -> pa.Table:
        """Return given rows as structs of the column family's own types; errors as `encode`.

        Args:
            table: As `encode` takes them.
            sides: `key`, and `value` where it is given.
        """
        schema = pa.schema([(side, self._type(side).arrow) for side in sides])
        # Each in one piece, so that an error tells the row of the table.
        batches = table.combine_chunks().to_batches()
        made = [
            pa.RecordBatch.from_arrays([self._side(one, side) for side in sides], schema=schema)
            for one in batches
        ]
        return pa.Table.from_batches(made, schema)

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
        kind = self._type(side)
        found = _assembled(_fields(batch, side), kind)
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
                to_fix="give these columns" + (OTHER_SCHEMA if side == "value" else ""),
            )
        children = [
            conform(found[name], part, f"{side}.{name}")
            if name in found
            else pa.nulls(batch.num_rows)
            for name, part in zip(names, kind.types, strict=True)
        ]
        refuse_nulls(children, kind, side)
        made = pa.Array.from_buffers(kind.arrow, batch.num_rows, [None], children=children)
        return normalized(made, kind, self.key_form) if side == "key" else made

    def _type(self, side: str) -> SparkType:
        return key_type(self.family) if side == "key" else value_type(self.family)


def _is_void(kind: SparkType) -> bool:
    return kind.kind == "void"


def _fields(batch: pa.RecordBatch, side: str) -> dict[str, pa.Array[Any]]:
    """Return the columns of a side by name: the fields of a struct, or columns named with a dot."""
    prefix = f"{side}."
    named = [
        (name[len(prefix) :], column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name.startswith(prefix)
    ]
    whole: list[Any] = [
        column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name == side
    ]
    if len({name for name, _ in named}) != len(named) or len(whole) + bool(named) > 1:
        raise InvalidArgumentError(
            "a column is given twice, or a struct and fields of it as well",
            columns=", ".join([side] * len(whole) + [prefix + name for name, _ in named]),
            to_fix=f"give either the struct {side}, or each of its fields once",
        )
    if not whole:
        return dict(named)
    (column,) = whole
    if not pa.types.is_struct(column.type):
        raise InvalidArgumentError(
            "a key or a value is not a struct",
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
    names = column.type.names
    if len({*names}) != len(names):
        raise InvalidArgumentError(
            "a struct has a field twice",
            column=side,
            fields=", ".join(names),
            to_fix="give each field once",
        )
    return dict(zip(names, column.flatten(), strict=True))


def _assembled(found: dict[str, pa.Array[Any]], kind: SparkType) -> dict[str, pa.Array[Any]]:
    """Return columns where those named as fields of a struct, `window.start`, make it up.

    So do the parts of a variant, which is null where they are.

    Raises:
        InvalidArgumentError: All fields of a row's are null, which the struct itself may be.
    """
    struct: Any = kind.arrow
    for ordinal, (name, part) in enumerate(zip(struct.names, kind.types, strict=True)):
        prefix = f"{name}."
        inner = [path for path in found if path.startswith(prefix) and path not in struct.names]
        if part.kind in ("struct", "variant") and name not in found and inner:
            parts = {path[len(prefix) :]: found[path] for path in inner}
            if part.kind == "struct":
                parts = _assembled(parts, part)
                if ordinal not in kind.never_null:
                    _require_some(parts, name)
            if part.kind == "variant":
                parts = {
                    name: parts[name] for name in (*VARIANT_PARTS.names, *parts) if name in parts
                }
            made = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
            whole = made if part.kind == "struct" else null_where_parts_are(made)
            # In the place of its first field.
            found = {
                (name if path == inner[0] else path): whole if path == inner[0] else column
                for path, column in found.items()
                if path == inner[0] or path not in inner
            }
    return found


def _require_some(parts: dict[str, pa.Array[Any]], name: str) -> None:
    is_null = np.logical_and.reduce([unpack(part.is_null()) for part in parts.values()])
    if is_null.any():
        raise InvalidArgumentError(
            "all fields of a struct are null: it may be null itself",
            struct=name,
            row=int(np.argmax(is_null)),
            to_fix="give the struct as one column, as `read` without --flatten writes it: null, or "
            "with fields that are null",
        )


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
    sides = SIDES if has_values else SIDES[:1]
    values = [name for name in schema.names if name.partition(".")[0] == "value"]
    if values and not has_values:
        raise InvalidArgumentError(
            "values are given, where only keys are expected",
            columns=", ".join(values),
            to_fix="give the key alone; where values decide, name the rows by a condition",
        )
    known = [name for name in schema.names if name.partition(".")[0] in sides]
    others = {*schema.names} - {*known} - {_PASSED_OVER}
    if others:
        raise InvalidArgumentError(
            "the given rows have columns that are in neither the key nor the value",
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
    fields = _assembled(fields, schema)
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
        if name in of_before and _is_of(struct.field(name).type, column.type)
        else describe_field(name, column.type)
        for name, column in fields.items()
    ]
    # Of columns of one name Spark's name says which they are by their order alone.
    if distinct_names([field["name"] for field in described]) != [*fields]:
        described = [_renamed(*pair) for pair in zip(described, fields, strict=True)]
    if described == list(of_before.values()):
        return before
    return json.dumps({"type": "struct", "fields": described}, separators=(",", ":"))


def _renamed(field: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field under another name, by which Spark finds the collations of its parts."""
    made, before = {**field, "name": name}, field["name"]
    collations = field.get("metadata", {}).get(_COLLATIONS, {})
    if collations:
        # By path: the name, and behind a dot the part, such as `element` of an array.
        renamed = {name + path.removeprefix(before): of for path, of in collations.items()}
        made["metadata"] = {**field["metadata"], _COLLATIONS: renamed}
    return made


def _is_of(before: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a given type is that of a state, in any layout or as SQL gives it back."""
    if given in (pa.null(), before):
        return True
    of_before = [describe_type(kind) for kind in (before, given_back(before))]
    return describe_type(given) in of_before


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
