"""Spark's files of state schemas.

    v1  text v1 | key | value
    v2  text v2 | chunks of the key | chunks of the value
    v3  text v3 | number of column families i32 | of each:
        text name | i16 number of its key schema | chunks of the key | i16 of its value schema |
        chunks of the value | chunks of the key encoder | chunks of a map's user key

A text has its length before it, u16; chunks, their number, i32: the chunks of one are joined. All
are big-endian, and texts are in Java's UTF-8. Schemas and encoders are JSON. Source: Spark's
StateSchemaCompatibilityChecker and SchemaHelper, releases 4.0 to 4.3.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.text_files import compact
from statestore.codec.column_family import DEFAULT_FAMILY, ColumnFamily
from statestore.core.errors import CorruptionError, IncompatibleError
from statestore.core.json_fields import MalformedError, parse_fields, to_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OF_NULLS = ("nullable", "containsNull", "valueContainsNull")
_MAX_CHUNKS = 1 << 16
_CHUNK_CHARACTERS = 0xFFFF // 3
"""Of which each takes at most three bytes."""
_NO_USER_KEY = "{    }"
"""The schema of a user's key where there is none, as Spark prints it."""
_ENCODERS = {
    "NoPrefixKeyStateEncoderSpec": "no-prefix",
    "PrefixKeyScanStateEncoderSpec": "prefix",
    "RangeKeyScanStateEncoderSpec": "range",
    "TimestampAsPrefixKeyStateEncoderSpec": "timestamp-prefix",
    "TimestampAsPostfixKeyStateEncoderSpec": "timestamp-postfix",
}


def read_schemas(data: bytes, path: str) -> tuple[ColumnFamily, ...]:
    """Return the column families that a schema file describes.

    Args:
        data: The file.
        path: Its name in errors.

    Returns:
        Of versions 1 and 2 the one family of the store, without a key encoder; of version 3 with
        the ID of its value schema. IDs of families are 0: they are kept with the state.

    Raises:
        CorruptionError: It is no schema file.
        IncompatibleError: It is of an unknown version.
    """
    source = _Source(data)
    try:
        version = source.text()
        if version == "v1":
            return (ColumnFamily(0, DEFAULT_FAMILY, source.text(), source.text()),)
        if version == "v2":
            return (ColumnFamily(0, DEFAULT_FAMILY, source.chunks(), source.chunks()),)
        if version == "v3":
            count = to_integer(source.integer(), 0, _MAX_CHUNKS)
            return tuple(_read_family(source) for _ in range(count))
    except (MalformedError, struct.error, UnicodeError) as error:
        raise CorruptionError(
            "a file of state schemas is not in Spark's form",
            file=path,
            offset=source.position,
            expected="schemas of keys and values",
            found=str(error),
            to_fix="put the file back from a copy",
        ) from error
    raise IncompatibleError(
        "a file of state schemas has an unknown version",
        kind="newer-format",
        file=path,
        found=version,
        to_fix="use a later release of statestore",
    )


def _read_family(source: _Source) -> ColumnFamily:
    name = source.text()
    source.number()
    key_schema = source.chunks()
    number = source.number()
    value_schema = source.chunks()
    encoder = parse_fields(source.chunks())
    source.chunks()
    kind = encoder.text("keyStateEncoderType")
    if kind not in _ENCODERS:
        raise MalformedError(f"key encoder {kind}")
    has_ordinals = encoder.has("orderingOrdinals")
    return ColumnFamily(
        0,
        name,
        key_schema,
        value_schema,
        _ENCODERS[kind],
        encoder.integer("numColsPrefixKey") if encoder.has("numColsPrefixKey") else None,
        tuple(map(to_integer, encoder.items("orderingOrdinals"))) if has_ordinals else None,
        value_schemas={number: value_schema},
    )


def write_schemas(key_schema: str, value_schema: str) -> bytes:
    """Return a schema file, version 2, of a store without column families."""
    return _text("v2") + _chunks(key_schema) + _chunks(value_schema)


def write_families(families: Sequence[ColumnFamily]) -> bytes:
    """Return a schema file, version 3, of column families with their first schemas.

    Args:
        families: In order; of encoders that have no arguments, such as those of a time.
    """
    number = struct.pack(">h", 0)
    found = [_text("v3"), struct.pack(">i", len(families))]
    for family in families:
        (encoder,) = (name for name, kind in _ENCODERS.items() if kind == family.encoder)
        found += [
            _text(family.name),
            number,
            _chunks(family.key_schema or ""),
            number,
            _chunks(family.value_schema or ""),
            _chunks(f'{{"keyStateEncoderType":"{encoder}"}}'),
            _chunks(_NO_USER_KEY),
        ]
    return b"".join(found)


def replace_schemas(data: bytes, path: str, families: Mapping[str, ColumnFamily]) -> bytes:
    """Return a schema file with new schemas of some of its column families.

    Args:
        data: The file; one of version 1 becomes one of version 2.
        path: Its name in errors.
        families: The column families, by name; others stay as they are. So do fields of the same
            name and type: what Spark's driver says of their nulls a task does not know.

    Raises:
        CorruptionError, IncompatibleError: As `read_schemas`.
    """
    known = read_schemas(data, path)
    families = {
        of.name: _with_fields_of(of, families[of.name]) for of in known if of.name in families
    }
    source = _Source(data)
    if source.text() != "v3":
        family = families.get(DEFAULT_FAMILY, known[0])
        return write_schemas(family.key_schema or "", family.value_schema or "")
    source.integer()
    found = [source.cut()]
    for family in known:
        source.text()
        head, numbers = source.cut(), []
        for _ in range(2):
            source.number()
            numbers.append(source.cut())
            source.chunks()
            source.cut()
        source.chunks()
        source.chunks()
        rest, now = source.cut(), families.get(family.name, family)
        schemas = (now.key_schema or "", now.value_schema or "")
        found.append(head)
        for number, schema in zip(numbers, schemas, strict=True):
            found += [number, _chunks(schema)]
        found.append(rest)
    return b"".join(found)


def _with_fields_of(before: ColumnFamily, now: ColumnFamily) -> ColumnFamily:
    return replace(
        now,
        key_schema=_described(before.key_schema, now.key_schema),
        value_schema=_described(before.value_schema, now.value_schema),
    )


def _described(before: str | None, now: str | None) -> str | None:
    """Return a schema with the fields of another one that differ in nulls alone."""
    if not before or not now:
        return now
    schema, known = json.loads(now), json.loads(before)["fields"]
    fields = []
    for at, field in enumerate(schema["fields"]):
        # Of columns of one name the one in the same place.
        alike = (of for of in (*known[at : at + 1], *known) if _same(of, field))
        fields.append(next(alike, field))
    return before if fields == known else compact({**schema, "fields": fields})


def _same(field: Any, other: Any) -> bool:
    return bool(_but_for_nulls(field) == _but_for_nulls(other))


def _but_for_nulls(described: Any) -> Any:
    if isinstance(described, dict):
        return {name: _but_for_nulls(of) for name, of in described.items() if name not in _OF_NULLS}
    return [*map(_but_for_nulls, described)] if isinstance(described, list) else described


def _text(text: str) -> bytes:
    # Java writes a zero as two bytes, and each half of a character of two by itself.
    units = text.encode("utf-16-be", "surrogatepass")
    halves = "".join(chr(unit) for (unit,) in struct.iter_unpack(">H", units))
    data = halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(data)) + data


def _chunks(text: str) -> bytes:
    step = _CHUNK_CHARACTERS // 2  # a character may be of two halves
    parts = [text[start : start + step] for start in range(0, len(text), step)] or [""]
    return struct.pack(">i", len(parts)) + b"".join(map(_text, parts))


@dataclass
class _Source:
    """A schema file, read from its beginning."""

    data: bytes
    position: int = 0
    cut_at: int = 0

    def cut(self) -> bytes:
        """Return the bytes that were read since the last cut."""
        found = self.data[self.cut_at : self.position]
        self.cut_at = self.position
        return found

    def integer(self) -> int:
        (found,) = struct.unpack_from(">i", self.data, self.position)
        self.position += 4
        return int(found)

    def number(self) -> int:
        (found,) = struct.unpack_from(">h", self.data, self.position)
        self.position += 2
        return int(found)

    def text(self) -> str:
        return _whole(self._halves())

    def chunks(self) -> str:
        count = to_integer(self.integer(), 0, _MAX_CHUNKS)
        return _whole("".join(self._halves() for _ in range(count)))

    def _halves(self) -> str:
        """Return a text with surrogate pairs as two characters."""
        (length,) = struct.unpack_from(">H", self.data, self.position)
        start = self.position + 2
        found = self.data[start : start + length]
        if len(found) < length:
            raise MalformedError(f"a text of {length} bytes")
        self.position = start + length
        # Java writes a zero as two bytes, and each half of a character of two by itself.
        return found.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")


def _whole(halves: str) -> str:
    return halves.encode("utf-16", "surrogatepass").decode("utf-16")
