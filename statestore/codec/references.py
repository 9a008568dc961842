"""Names of a store, of a version of it, and of a file that a version refers to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

from statestore.core.ids import CHECKPOINT_ID
from statestore.core.json_fields import Fields, MalformedError, to_integer
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupSet

FileKind = Literal["delta", "snapshot", "merged"]
STORE_NAME = re.compile(r"(?!\.{1,2}$)[^/\x00]+")
"""A store's name is a directory's."""

FILE_KIND = re.compile(r"delta|snapshot|merged")


@dataclass(frozen=True, slots=True)
class StoreName:
    """The name of a state store inside a checkpoint.

    Attributes:
        operator: Operator ID.
        partition: State partition, in [0, num_partitions).
        name: Store name, "default" for operators with a single store.
    """

    operator: int
    partition: int
    name: str = "default"

    def __str__(self) -> str:
        return f"{self.operator}/{self.partition}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"operator": self.operator, "partition": self.partition, "name": self.name}

    @classmethod
    def from_json(cls, fields: Fields) -> StoreName:
        """Read the JSON form."""
        return cls(
            fields.integer("operator"),
            fields.integer("partition", 0, MAX_PARALLELISM_LIMIT - 1),
            fields.text("name", STORE_NAME),
        )


@dataclass(frozen=True, slots=True)
class VersionRef:
    """One committed version: its number, the ID of the attempt that made it, its lineage.

    Versions of equal lineage are equal: whichever attempt made them, they have the same rows.
    """

    version: int
    checkpoint_id: str = field(compare=False)
    lineage: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "version": self.version,
            "checkpoint_id": self.checkpoint_id,
            "lineage": self.lineage,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> VersionRef:
        """Read the JSON form."""
        return cls(
            fields.integer("version"),
            fields.text("checkpoint_id", CHECKPOINT_ID),
            fields.text("lineage", CHECKPOINT_ID),
        )


@dataclass(frozen=True, slots=True)
class FileRef:
    """Reference to a state file.

    Attributes:
        path: Relative to the store directory. A path that leads out of it, `../<partition>/name`,
            is of a file that a rescale took over, even from the partition itself.
        kind: delta, snapshot, or merged: the changes of some deltas.
        version, checkpoint_id, lineage: As in the trailer of the file itself.
        size: Bytes of the whole file.
        rows: Rows of all record batches.
        clip: Only rows of these key groups count; None for all rows.
    """

    path: str
    kind: FileKind
    version: int
    checkpoint_id: str
    lineage: str
    size: int
    rows: int
    clip: KeyGroupSet | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether a rescale took the file over from the partitions before it."""
        return "/" in self.path

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; a reference without a clip has no such field."""
        fields: dict[str, Any] = {
            "path": self.path,
            "kind": self.kind,
            "version": self.version,
            "checkpoint_id": self.checkpoint_id,
            "lineage": self.lineage,
            "size": self.size,
            "rows": self.rows,
        }
        if self.clip is not None:
            fields["clip"] = [self.clip.modulus, self.clip.remainder]
        return fields

    @classmethod
    def from_json(cls, fields: Fields) -> FileRef:
        """Read the JSON form; `layout.store_of_path` says where a path may lead.

        A version names most files of the one before: a recently read reference is the same object.
        """
        clip = _clip(fields.items("clip")) if fields.has("clip") else None
        values = [fields.value(name) for name in _REF_FIELDS]
        try:
            return _read_ref(clip, *values)
        except TypeError as error:  # a value that is an array or an object
            raise MalformedError("a reference to a file has a field of another type") from error


_REF_FIELDS = ("path", "kind", "version", "checkpoint_id", "lineage", "size", "rows")


@lru_cache(maxsize=1 << 14, typed=True)
def _read_ref(clip: KeyGroupSet | None, *values: Any) -> FileRef:
    """Return the reference with these fields."""
    fields = Fields(dict(zip(_REF_FIELDS, values, strict=True)))
    return FileRef(
        path=fields.text("path"),
        kind=cast("FileKind", fields.text("kind", FILE_KIND)),
        version=fields.integer("version", 1),
        checkpoint_id=fields.text("checkpoint_id", CHECKPOINT_ID),
        lineage=fields.text("lineage", CHECKPOINT_ID),
        size=fields.integer("size"),
        rows=fields.integer("rows"),
        clip=clip,
    )


def _clip(numbers: list[Any]) -> KeyGroupSet:
    if len(numbers) != 2:
        raise MalformedError("a clip is not a modulus and a remainder")
    modulus = to_integer(numbers[0], 1, MAX_PARALLELISM_LIMIT, "modulus")
    return KeyGroupSet(modulus, to_integer(numbers[1], 0, modulus - 1, "remainder"))
