"""The certificate of what was done so that keys are forgotten: a JSON document without the keys.

It is on the disk before anything is written or deleted, and says then that the operation was begun.
Afterwards a whole one is put in its place. So a certificate that says `complete` is of something
that was done, and something that was done has at least a certificate that says `begun`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statestore.checkpoint.history import user_name
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    StateStoreError,
    StorageError,
)
from statestore.core.json_fields import Fields, MalformedError, parse_fields, to_text
from statestore.core.text import format_count, format_time
from statestore.core.version import __version__
from statestore.io.local import LocalFileIO
from statestore.operations.forget.values import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.operations.forget.search import KeySearch
    from statestore.operations.forget.wanted import Wanted

CERTIFICATE_VERSION = 1
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
MAX_FINGERPRINTS = 1000
"""Up to so many keys each has a fingerprint of its own."""
NOT_REACHED = (
    "savepoints of the checkpoint, and checkpoints restored from them",
    "branches, which share files of the checkpoint and keep them",
    "trials: rows of the sink, and rows that differ",
    "a snapshot that an executor of the stopped query is still writing",
    "what the query reads: files, topics, tables",
    "what the query has written: sinks, and logs of the cluster",
    "local disks of executors, until the application has ended",
    "state elsewhere (checkpointStorage) of a restore that was killed and done again",
    "temporary files of commands that were killed, until the next command there removes them",
    "earlier versions and copies that the storage keeps, backups, lost+found",
    "a key within other text, encrypted, hashed or compressed by the query itself",
    "a number, and a text below four bytes, within a variant",
)
"""Where a key may still be, which no search of the checkpoint sees."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that was written or removed.

    Attributes:
        path: Its path.
        size: Bytes.
        sha256: SHA-256 of its bytes; hex, empty where the disk cannot read them.
    """

    path: str
    size: int
    sha256: str

    @classmethod
    def from_json(cls, found: object) -> FileRecord:
        """Read the JSON form."""
        fields = Fields(found)
        return cls(fields.text("path"), fields.integer("size"), fields.text("sha256", _HEX))


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Hashes by which whoever has a key can tell whether it was forgotten.

    Attributes:
        salt: 32 random bytes; hex.
        of_keys: HMAC-SHA-256 with the salt of each key, ascending; None where they are too many.
        of_all: HMAC-SHA-256 with the salt of those of all keys together, ascending; hex.
    """

    salt: str
    of_keys: tuple[str, ...] | None
    of_all: str

    @classmethod
    def make(cls, keys: Iterable[bytes], salt: str | None = None) -> Fingerprints:
        """Return those of keys, as `spelled` has them; with a new salt where None is given."""
        salt = salt or secrets.token_hex(32)
        found = sorted(_hmac(salt, key) for key in keys)
        each = tuple(found) if len(found) <= MAX_FINGERPRINTS else None
        return cls(salt, each, _hmac(salt, "".join(found).encode()))


def _hmac(salt: str, data: bytes) -> str:
    return hmac.new(bytes.fromhex(salt), data, hashlib.sha256).hexdigest()


def spelled(wanted: Wanted, encoded: Iterable[bytes] | None = None) -> list[bytes]:
    """Return keys as anybody can write them: a JSON list of the texts of their columns.

    A struct and an array in a key are lists of texts as well.

    Args:
        wanted: The keys.
        encoded: Only these of them, None for all.
    """
    keys = wanted.decoded(encoded)
    if keys is None:
        return []
    return [
        json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in _texts(keys)
    ]


def _texts(column: Any) -> list[Any]:
    """Return values as text, those of structs and arrays as lists of texts."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = zip(*map(_texts, column.flatten()), strict=True)
        rows = list(map(list, parts)) if kind.num_fields else [[] for _ in range(len(column))]
    elif pa.types.is_list(kind):
        elements = iter(_texts(column.flatten()))
        rows = [list(islice(elements, size or 0)) for size in column.value_lengths().to_pylist()]
    else:
        texts = texts_of(column)
        return [None if one is None else one.decode(errors="backslashreplace") for one in texts]
    is_null = column.is_null().to_pylist()
    return [None if null else row for row, null in zip(rows, is_null, strict=True)]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A record of how keys were forgotten. It does not hold the keys.

    Attributes:
        status: begun, before anything is changed; complete, when everything is done and searched.
        checkpoint: URI of the checkpoint.
        operator: Operator ID.
        operator_name: Spark's name of it.
        num_keys: Grouping keys that were forgotten.
        num_rows: Rows of them in the newest version, of `num_rows_before` of the operator.
        num_rows_before: Rows that the newest version had.
        num_rows_of_files: Rows of them in state files of all versions.
        fingerprints: Of the keys.
        version: The version that is made without them.
        versions_removed: Versions of the operator's stores that can be loaded no more.
        written: State files that were made; none while begun.
        removed: State files that are deleted.
        search: The search of every file that is left; None while begun.
        not_reached: Where a key may still be.
        statestore: Version of this package.
        host, user: Where and by whom it was done; the user None where the system does not say.
        begun_at, completed_at: UTC; None while begun.
        begun_ms, completed_ms: The same in milliseconds since the Unix epoch.
    """

    status: Literal["begun", "complete"]
    checkpoint: str
    operator: int
    operator_name: str
    num_keys: int
    num_rows: int
    num_rows_before: int
    num_rows_of_files: int
    fingerprints: Fingerprints
    version: int
    versions_removed: tuple[int, ...]
    written: tuple[FileRecord, ...]
    removed: tuple[FileRecord, ...]
    search: KeySearch | None
    statestore: str
    host: str
    user: str | None
    begun_at: str
    begun_ms: int
    completed_at: str | None = None
    completed_ms: int | None = None
    not_reached: tuple[str, ...] = NOT_REACHED

    @property
    def is_forgotten(self) -> bool:
        """Whether it is done, everything was searched, and no key found: see `search.outcomes`."""
        return self.search is not None and self.search.is_forgotten

    def fields(self) -> dict[str, Any]:
        """Return the document: its attributes by name, and the version of its form."""
        search = self.search and self.search.fields()
        head = {"schema_version": CERTIFICATE_VERSION, "operation": "forget"}
        return {**head, **asdict(self), "search": search}

    def to_json(self) -> str:
        """Return the document as text."""
        return json.dumps(self.fields(), indent=2) + "\n"

    def brief(self) -> dict[str, Any]:
        """Return the document with numbers of files in place of their lists, and the first hits.

        `sha256` is that of the whole document: by it a certificate is known again.
        """
        found = self.fields()
        numbers = {f"num_{name}": len(found.pop(name)) for name in ("written", "removed")}
        search = self.search and self.search.brief()
        sha256 = hashlib.sha256(self.to_json().encode()).hexdigest()
        return {**found, **numbers, "search": search, "sha256": sha256}

    def describe(self) -> str:
        """Return it in words."""
        lines = [
            f"{format_count(self.num_keys, 'key')}, {format_count(self.num_rows, 'row')} of "
            f"{self.num_rows_before:,}, {format_count(len(self.written), 'file')} written, "
            f"{len(self.removed):,} removed, of "
            f"{format_count(len(self.versions_removed), 'version')}."
        ]
        if self.search is not None:
            lines.append(str(self.search))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def who_and_when(now_ms: float) -> dict[str, Any]:
    """Return the attributes of a certificate that say who began, where and when."""
    return {
        "statestore": __version__,
        "host": socket.gethostname(),
        "user": user_name(),
        "begun_at": format_time(int(now_ms)),
        "begun_ms": int(now_ms),
    }


def _fingerprints(document: Fields) -> Fingerprints | None:
    """Return those of a certificate, as it was read; None of what is none."""
    try:
        fields = document.object("fingerprints")
        has_each = fields.has("of_keys")
        return Fingerprints(
            fields.text("salt", _HEX),
            tuple(to_text(one, _HEX) for one in fields.items("of_keys")) if has_each else None,
            fields.text("of_all", _HEX),
        )
    except MalformedError:
        return None


@dataclass(frozen=True, slots=True)
class Begun:
    """Those fields of a certificate, begun and not completed, that a repeated call needs.

    Attributes:
        removed: State files that were to be deleted.
        num_rows, num_rows_before, num_rows_of_files, version: As of `Certificate`.
        who: As `who_and_when`.
    """

    removed: tuple[FileRecord, ...]
    num_rows: int
    num_rows_before: int
    num_rows_of_files: int
    version: int
    fingerprints: Fingerprints
    who: dict[str, Any]

    @classmethod
    def from_json(cls, fields: Fields, fingerprints: Fingerprints) -> Begun:
        """Read them of the certificate's JSON form."""
        return cls(
            tuple(map(FileRecord.from_json, fields.items("removed"))),
            fields.integer("num_rows"),
            fields.integer("num_rows_before"),
            fields.integer("num_rows_of_files"),
            fields.integer("version"),
            fingerprints,
            {
                "statestore": fields.text("statestore"),
                "host": fields.text("host"),
                "user": fields.text("user") if fields.has("user") else None,
                "begun_at": fields.text("begun_at"),
                "begun_ms": fields.integer("begun_ms"),
            },
        )


class CertificateFile:
    """A certificate's file on the local disk.

    Args:
        path: Its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def begun(self, checkpoint: str, operator: int, wanted: Wanted) -> Begun | None:
        """Return a certificate of the same keys, begun and not completed; None for no file.

        Raises:
            InvalidArgumentError: Another file is there (kind file-exists); it stays.
            IncompatibleError: It is of a newer release (kind newer-format).
            CorruptionError: It is damaged.
            StorageError: It cannot be read.
        """
        document = self._read()
        if document is None:
            return None
        there, fields = _fingerprints(document), document.all
        if (
            there is None
            or (fields.get("operation"), fields.get("status")) != ("forget", "begun")
            or (fields.get("checkpoint"), fields.get("operator")) != (checkpoint, operator)
            or there != Fingerprints.make(spelled(wanted), there.salt)
        ):
            raise InvalidArgumentError(
                "the file exists, and is not a certificate that was begun for these keys",
                kind="file-exists",
                file=str(self.path),
                to_fix="name another file for the certificate; or the keys themselves, by --keys, "
                "where one that was begun is to be completed",
            )
        try:
            return Begun.from_json(document, there)
        except MalformedError as error:
            raise CorruptionError(
                "the certificate is damaged",
                file=str(self.path),
                offset=0,
                expected=f"a certificate of schema version {CERTIFICATE_VERSION}",
                found=str(error),
                to_fix="name another file for the certificate",
            ) from error

    def is_of(self, wanted: Wanted) -> bool:
        """Return whether each of these keys is one that the certificate there is of.

        One of more than MAX_FINGERPRINTS keys tells only whether these are all of them.

        Raises:
            InvalidArgumentError: There is no certificate.
            IncompatibleError: It is of a newer release (kind newer-format).
            StorageError: It cannot be read.
        """
        document = self._read()
        there = None if document is None else _fingerprints(document)
        if there is None:
            raise InvalidArgumentError(
                "the file is not a certificate",
                file=str(self.path),
                to_fix="name a file that `statestore forget --certificate` wrote",
            )
        asked = Fingerprints.make(spelled(wanted), there.salt)
        if there.of_keys is None or asked.of_keys is None:
            return hmac.compare_digest(asked.of_all, there.of_all)
        return {*asked.of_keys} <= {*there.of_keys}

    def _read(self) -> Fields | None:
        """Return the document, without any field where it is none; None for no file."""
        try:
            fields = parse_fields(self.path.read_bytes())
            if fields.all.get("operation") == "forget":
                fields.require_format(CERTIFICATE_VERSION, str(self.path), "schema_version")
        except FileNotFoundError:
            return None
        except MalformedError:
            return Fields({})
        except OSError as error:
            raise self._failed(error.strerror) from error
        return fields

    def write(self, certificate: Certificate) -> None:
        """Put a certificate in the place of what is there, in one step.

        Raises:
            StorageError: It cannot be written; what was there stays. Of a complete one the error
                has the document.
        """
        data = certificate.to_json().encode()
        try:
            LocalFileIO().write(str(self.path.absolute()), data, sync=True, overwrite=True)
        except StateStoreError as error:
            raise self._failed(error.fields.get("reason", error.problem), certificate) from error

    def _failed(self, reason: object, certificate: Certificate | None = None) -> StorageError:
        if certificate is None or certificate.status == "begun":
            return StorageError(
                "the certificate cannot be written, and nothing was changed",
                file=str(self.path),
                reason=reason,
                to_fix="name a file that can be written",
            )
        return StorageError(
            "the keys are forgotten, and their certificate cannot be written",
            file=str(self.path),
            reason=reason,
            certificate=json.dumps(certificate.fields()),
            to_fix="keep the certificate that this message has; the file says `begun`",
        )
