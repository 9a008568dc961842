"""The description of a column family in a trailer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from statestore.core.json_fields import Fields, MalformedError, to_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

_U16 = 0xFFFF
_I16 = 0x7FFF

DEFAULT_FAMILY = "default"
"""The column family that every store has; where there are others, no operator uses it."""


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A named key space in a store; schemas are Spark's JSON.

    Attributes:
        value_schemas: Where the schema of values may change, every one that rows may have, by
            ID; each row then has the ID of its schema behind it. `value_schema` is the newest, of
            the highest ID.
        avro: Rows, also within ordered keys, are encoded as Avro, with the ID in front: only by
            Spark's own RocksDB provider, never in a state file.
    """

    id: int
    name: str
    key_schema: str | None = None
    value_schema: str | None = None
    encoder: str = "no-prefix"
    num_prefix_columns: int | None = None
    ordering_ordinals: tuple[int, ...] | None = None
    multi_values: bool = False
    internal: bool = False
    value_schemas: Mapping[int, str] = field(default_factory=dict, hash=False)
    avro: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; a family of one value schema has no field for several."""
        fields: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "key_schema": self.key_schema,
            "value_schema": self.value_schema,
            "encoder": self.encoder,
            "num_prefix_columns": self.num_prefix_columns,
            "ordering_ordinals": self.ordering_ordinals,
            "multi_values": self.multi_values,
            "internal": self.internal,
        }
        if self.value_schemas:
            fields["value_schemas"] = dict(self.value_schemas)
        return fields

    @classmethod
    def from_json(cls, fields: Fields) -> ColumnFamily:
        """Read the JSON form; absent fields take their default."""
        ordinals = fields.items("ordering_ordinals") if fields.has("ordering_ordinals") else None
        return cls(
            id=fields.integer("id", 0, _U16),
            name=fields.text("name"),
            key_schema=fields.text("key_schema") if fields.has("key_schema") else None,
            value_schema=fields.text("value_schema") if fields.has("value_schema") else None,
            encoder=fields.text("encoder") if fields.has("encoder") else "no-prefix",
            num_prefix_columns=(
                fields.integer("num_prefix_columns") if fields.has("num_prefix_columns") else None
            ),
            ordering_ordinals=None if ordinals is None else tuple(map(to_integer, ordinals)),
            multi_values=fields.has("multi_values") and fields.flag("multi_values"),
            internal=fields.has("internal") and fields.flag("internal"),
            value_schemas=_schemas(fields.object("value_schemas"))
            if fields.has("value_schemas")
            else {},
        )


def _schemas(fields: Fields) -> dict[int, str]:
    try:
        return {to_integer(int(number), 0, _I16): fields.text(number) for number in fields.all}
    except ValueError as error:
        raise MalformedError("a value schema without an ID") from error


def _one_binary(name: str) -> str:
    fields = [{"name": name, "type": "binary", "nullable": True, "metadata": {}}]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


NO_DEFAULT = ColumnFamily(0, DEFAULT_FAMILY, _one_binary("key"), _one_binary("value"))
"""The default column family where Spark's schemas name none: a query takes its own schemas for it,
and has no row in it."""
