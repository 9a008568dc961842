"""The trailer of a state file: everything about it but the rows.

    | body | trailer JSON | length u32 LE | CRC32C u32 LE | magic, format version |

The body is an Arrow IPC stream, or an SST with the keys it deletes behind it. The invariant: the
blocks of a trailer cover the body without a gap, so that together with the trailer's own CRC32C
and the magic every byte of the file is checked.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, cast

import google_crc32c

from statestore.codec.column_family import ColumnFamily
from statestore.codec.commit_times import CommitTimes
from statestore.codec.references import FILE_KIND, FileKind, FileRef, StoreName, VersionRef
from statestore.core.digest import digest_of
from statestore.core.errors import CorruptionError, IncompatibleError
from statestore.core.ids import CHECKPOINT_ID
from statestore.core.json_fields import (
    MAX_INTEGER,
    Fields,
    MalformedError,
    parse_fields,
    to_integer,
)
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupSet

FORMAT_VERSION = 2
"""The newest that is known: a file is of 1 unless a column family has several value schemas."""
MAGIC_PREFIX = b"SSTORE"
END_LENGTH = 16
"""Bytes after the trailer's JSON: its length, its CRC32C and the magic."""
TAIL_BYTES = 16 * 1024
"""Bytes of a file's end that are read at once: most trailers fit."""


_U32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the body with its checksum: an Arrow message, an SST or the keys it deletes.

    Attributes:
        offset, length: Bytes in the file.
        rows: 0 for an Arrow schema and end of stream.
        crc32c: CRC32C of the bytes.
        first_key_group, last_key_group: Key group of the first and last row, -1 without rows and
            in an SST, which is ordered by key.
    """

    offset: int
    length: int
    rows: int
    crc32c: int
    first_key_group: int
    last_key_group: int

    def to_list(self) -> list[int]:
        """Return the JSON form."""
        return [
            self.offset,
            self.length,
            self.rows,
            self.crc32c,
            self.first_key_group,
            self.last_key_group,
        ]

    @classmethod
    def from_list(cls, numbers: Any, max_parallelism: int) -> Block:
        """Read the JSON form."""
        if not isinstance(numbers, list) or len(numbers) != len(cls.__slots__):
            raise MalformedError(f"a block is not a list of {len(cls.__slots__)} numbers")
        offset, length, rows, crc32c, first, last = numbers
        return cls(
            to_integer(offset),
            to_integer(length),
            to_integer(rows),
            to_integer(crc32c, 0, _U32),
            to_integer(first, -1, max_parallelism - 1),
            to_integer(last, -1, max_parallelism - 1),
        )


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of a file by what they do."""

    put: int = 0
    delete: int = 0
    merge: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the JSON form."""
        return {"put": self.put, "delete": self.delete, "merge": self.merge}

    @property
    def total(self) -> int:
        """All rows."""
        return self.put + self.delete + self.merge


@dataclass(frozen=True, slots=True)
class Trailer:
    """A state file without its rows; fields as in docs/format.md."""

    kind: FileKind
    writer: str
    store: StoreName
    backend: str
    version: int
    checkpoint_id: str
    checkpoint_format: int
    parent: VersionRef | None
    lineage: str
    files: tuple[FileRef, ...]
    blocks: tuple[Block, ...]
    rows: RowCounts
    num_keys: int | None
    max_parallelism: int
    num_partitions: int
    rescalable: bool
    column_families: tuple[ColumnFamily, ...]
    num_internal_keys: int | None = 0
    key_group_rows: tuple[int, ...] | None = None
    parent_commit: CommitTimes | None = None

    @property
    def format_version(self) -> int:
        """Of the file: older releases of this package read files without the newest form."""
        return 2 if any(family.value_schemas for family in self.column_families) else 1

    @property
    def body_length(self) -> int:
        """Bytes of the body, which is also where the trailer begins."""
        last = self.blocks[-1]
        return last.offset + last.length

    @property
    def key_groups(self) -> KeyGroupSet:
        """The key groups of the state partition that wrote the file."""
        return KeyGroupSet(self.num_partitions, self.store.partition)

    @property
    def version_ref(self) -> VersionRef:
        """The version this file makes (delta) or leads to (snapshot, merged).

        The `parent` of the latter is that version, so that every kind has the lineage that the next
        delta names as its parent.
        """
        if self.kind != "delta" and self.parent is not None:
            return self.parent
        return VersionRef(self.version, self.checkpoint_id, self.lineage)


def compute_lineage(
    parent: VersionRef | None, blocks: tuple[Block, ...], files: tuple[FileRef, ...] = ()
) -> str:
    """Return the lineage of a file, 32 hex digits.

    The first 16 bytes of SHA-256 over the parent's lineage (empty without a parent) and each
    block's length and CRC32C as u64 and u32 little endian. Equal content on an equal parent gives
    an equal lineage.

    Args:
        parent: Version that the file is built on, None for none, or only for `files`.
        blocks: Of the file.
        files: Files of a version without a parent: their lineages replace the parent's, each
            followed by modulus and remainder of its clip (u32 little endian, 0 and 0 without one).
    """
    parts = [parent.lineage.encode()] if parent else []
    for ref in files:
        clip = ref.clip
        parts.append(ref.lineage.encode())
        parts.append(struct.pack("<II", *((clip.modulus, clip.remainder) if clip else (0, 0))))
    parts += (struct.pack("<QI", block.length, block.crc32c) for block in blocks)
    return digest_of(b"".join(parts))


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the bytes that follow the body: JSON, length, CRC32C, magic."""
    fields = {
        "format_version": trailer.format_version,
        "kind": trailer.kind,
        "writer": trailer.writer,
        "store": trailer.store.to_json(),
        "backend": trailer.backend,
        "version": trailer.version,
        "checkpoint_id": trailer.checkpoint_id,
        "checkpoint_format": trailer.checkpoint_format,
        "parent": trailer.parent and trailer.parent.to_json(),
        "lineage": trailer.lineage,
        "files": [ref.to_json() for ref in trailer.files],
        "blocks": [block.to_list() for block in trailer.blocks],
        "rows": trailer.rows.to_json(),
        "num_keys": trailer.num_keys,
        "num_internal_keys": trailer.num_internal_keys,
        "key_group_rows": trailer.key_group_rows,
        "max_parallelism": trailer.max_parallelism,
        "num_partitions": trailer.num_partitions,
        "rescalable": trailer.rescalable,
        "column_families": [family.to_json() for family in trailer.column_families],
    }
    if trailer.parent_commit is not None:
        fields["parent_commit"] = trailer.parent_commit.to_json()
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + struct.pack("<II", len(text), google_crc32c.value(text)) + magic(trailer)


def magic(trailer: Trailer) -> bytes:
    """Return the last bytes of a file: those of its format version."""
    return MAGIC_PREFIX + struct.pack(">H", trailer.format_version)


def trailer_length(tail: bytes, size: int, path: str) -> int:
    """Return the bytes of JSON in a trailer, from the last bytes of its file.

    Args:
        tail: The last bytes of the file, any number of them.
        size: Bytes of the whole file.
        path: For error messages.

    Raises:
        CorruptionError: The file is too short or does not end in the magic.
        IncompatibleError: The format version is newer than this package's.
    """
    if len(tail) < END_LENGTH or tail[-8:-2] != MAGIC_PREFIX:
        raise CorruptionError(
            "a state file does not end in its magic",
            kind="truncated",
            file=path,
            offset=max(size - 8, 0),
            expected=MAGIC_PREFIX.hex(),
            found=tail[-8:].hex(),
            to_fix="restore the file from a copy; it is truncated or not a state file",
        )
    (format_version,) = struct.unpack(">H", tail[-2:])
    if format_version > FORMAT_VERSION:
        raise IncompatibleError(
            "a state file is of a newer format version",
            kind="newer-format",
            file=path,
            format_version=format_version,
            newest_known=FORMAT_VERSION,
            to_fix="use the statestore release that wrote it, or a later one",
        )
    (length,) = struct.unpack("<I", tail[-END_LENGTH : -END_LENGTH + 4])
    if format_version < 1 or length + END_LENGTH > size:
        raise CorruptionError(
            "the end of a state file is damaged",
            kind="checksum-mismatch",
            file=path,
            offset=size - END_LENGTH,
            expected=f"format version 1 to {FORMAT_VERSION}, trailer below {size} bytes",
            found=f"format version {format_version}, trailer of {length} bytes",
            to_fix="restore the file from a copy",
        )
    return int(length)


def decode_trailer(tail: bytes, size: int, path: str) -> Trailer:
    """Read a trailer and check it.

    Args:
        tail: The last bytes of the file, at least the whole trailer.
        size: Bytes of the whole file.
        path: For error messages.

    Raises:
        CorruptionError: Checksum, lengths or the order of blocks do not fit.
        IncompatibleError: The format version is newer than this package's.
    """
    length = trailer_length(tail, size, path)
    text = tail[len(tail) - END_LENGTH - length : len(tail) - END_LENGTH]
    (expected,) = struct.unpack("<I", tail[-12:-8])
    found = google_crc32c.value(text)
    if found != expected:
        raise CorruptionError(
            "the trailer of a state file does not match its checksum",
            kind="checksum-mismatch",
            file=path,
            offset=size - END_LENGTH - length,
            expected=f"{expected:08x}",
            found=f"{found:08x}",
            to_fix="restore the file from a copy",
        )
    try:
        trailer = _trailer_from_json(parse_fields(text))
    except MalformedError as error:
        raise CorruptionError(
            "the trailer of a state file has wrong content",
            file=path,
            offset=size - END_LENGTH - length,
            expected="the fields of docs/format.md",
            found=str(error),
            to_fix="restore the file from a copy; its checksum is right, so it was written like "
            "this",
        ) from error
    position = 0
    for block in trailer.blocks:
        if block.offset != position:
            break
        position += block.length
    if not trailer.blocks or position + length + END_LENGTH != size:
        raise CorruptionError(
            "the blocks of a state file do not cover it",
            kind="truncated",
            file=path,
            offset=position,
            expected=size - END_LENGTH - length,
            found=position,
            to_fix="restore the file from a copy",
        )
    return trailer


def _trailer_from_json(fields: Fields) -> Trailer:
    fields.integer("format_version", 1, FORMAT_VERSION)
    rows = fields.object("rows")
    store = StoreName.from_json(fields.object("store"))
    max_parallelism = fields.integer("max_parallelism", 1, MAX_PARALLELISM_LIMIT)
    num_partitions = fields.integer("num_partitions", 1, MAX_PARALLELISM_LIMIT)
    to_integer(store.partition, 0, num_partitions - 1, "partition")
    num_internal_keys: int | None = 0
    if "num_internal_keys" in fields.all:
        num_internal_keys = _integer_or_none(fields, "num_internal_keys")
    return Trailer(
        kind=cast("FileKind", fields.text("kind", FILE_KIND)),
        writer=fields.text("writer"),
        store=store,
        backend=fields.text("backend"),
        version=fields.integer("version", 1),
        checkpoint_id=fields.text("checkpoint_id", CHECKPOINT_ID),
        checkpoint_format=fields.integer("checkpoint_format", 1),
        parent=VersionRef.from_json(fields.object("parent")) if fields.has("parent") else None,
        lineage=fields.text("lineage", CHECKPOINT_ID),
        files=tuple(FileRef.from_json(Fields(ref)) for ref in fields.items("files")),
        blocks=tuple(Block.from_list(block, max_parallelism) for block in fields.items("blocks")),
        rows=RowCounts(rows.integer("put"), rows.integer("delete"), rows.integer("merge")),
        num_keys=_integer_or_none(fields, "num_keys"),
        num_internal_keys=num_internal_keys,
        key_group_rows=(
            tuple(to_integer(count, -MAX_INTEGER) for count in fields.items("key_group_rows"))
            if fields.has("key_group_rows")
            else None
        ),
        max_parallelism=max_parallelism,
        num_partitions=num_partitions,
        rescalable=fields.flag("rescalable"),
        column_families=tuple(
            ColumnFamily.from_json(Fields(family)) for family in fields.items("column_families")
        ),
        parent_commit=(
            CommitTimes.from_json(fields.object("parent_commit"))
            if fields.has("parent_commit")
            else None
        ),
    )


def _integer_or_none(fields: Fields, name: str) -> int | None:
    return None if fields.value(name) is None else fields.integer(name, -MAX_INTEGER)
