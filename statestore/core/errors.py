"""Errors of the package: one tree, cut by what a caller would do about it.

    StateStoreError
    ├── InvalidArgumentError (ValueError)  an option or argument is out of range: change it
    ├── NotFoundError (LookupError)        a version or file is not there: ask for another one
    ├── IncompatibleError                  the checkpoint has other settings: change them back
    ├── FencedError                        another attempt wrote this version: reload, do not retry
    ├── InUseError                         somebody else changes the checkpoint: let them end first
    ├── StoreClosedError                   the handle was committed, aborted or closed: begin anew
    ├── CorruptionError                    a file is damaged: file, offset, expected, found
    ├── StorageError                       the storage failed
    ├── QueryFailedError                   a supervised query failed for good: see its cause
    ├── ProtocolError                      shim and engine do not speak the same protocol
    └── InternalError                      a bug of this package

Every error has a `kind` of KINDS (append-only, never renamed), `fields` with the real values, and
`to_fix`, what the reader should do. Values never hold secrets or row contents.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from statestore.core.restarts import Restart

KINDS: dict[str, str] = {
    "invalid-argument": "an argument is out of range or of the wrong type",
    "invalid-option": "the value of an option is out of range or of the wrong type",
    "unknown-option": "an option of that name does not exist",
    "unsupported-scheme": "the storage scheme of a URI is not supported",
    "not-found": "something asked for is not there",
    "version-not-found": "the version is not in the store directory",
    "snapshot-not-found": "the version has no snapshot",
    "file-not-found": "a file is not there",
    "checkpoint-not-found": "there is no checkpoint of a streaming query",
    "incompatible": "the checkpoint was made with other settings",
    "other-provider": "the store directory holds files of another state store provider",
    "other-store": "the file belongs to another store",
    "other-checkpoint": "the state belongs to another checkpoint",
    "newer-format": "the file was written in a format version this package does not know",
    "num-partitions-changed": "the number of state partitions differs from the checkpoint's",
    "max-parallelism-changed": "the number of key groups differs from the checkpoint's",
    "not-rescalable": "rows are not in the state partitions that their key groups belong to",
    "backend-changed": "the state backend differs from the checkpoint's",
    "storage-changed": "the checkpoint storage differs from the checkpoint's",
    "fenced": "another attempt wrote this version",
    "lineage-broken": "a version is built on rows that are no longer there",
    "file-exists": "a file that must not be replaced exists",
    "store-closed": "the handle was committed, aborted or closed",
    "corruption": "a file is damaged",
    "truncated": "a file is shorter than it says",
    "checksum-mismatch": "the bytes of a file do not match their checksum",
    "storage": "the storage failed",
    "storage-full": "the storage has no space left",
    "permission-denied": "the storage refused access",
    "directory-gone": "the store directory was removed while the store was open",
    "driver-lost": "the state was in the memory of a driver that is gone",
    "state-too-large": "a state is larger than the state backend may keep",
    "query-failed": "a supervised query failed, and a restart would not help",
    "restarts-exhausted": "a supervised query failed as often as its restart strategy allows",
    "protocol": "shim and engine do not speak the same protocol",
    "files-not-offered": "the engine needs files that the shim has not offered to serve",
    "version-apart": "parts that work together are of different versions",
    "internal": "a bug of this package",
    "checkpoint-exists": "a checkpoint that must not be replaced exists",
    "checkpoint-in-use": "a query is writing the checkpoint",
    "checkpoint-under-operation": "an operation is changing the checkpoint",
    "unfinished-operation": "an operation on the checkpoint was begun and not finished",
    "unfinished-batch": "a batch of the query is planned and not committed",
    "savepoint-not-found": "there is no savepoint",
    "keys-not-found": "no row of the keys is there",
    "partitions-asked": "the checkpoint has another number of state partitions than the query asks "
    "for",
    "sink-apart": "a sink has other batches than the checkpoint, or leaves one out",
    "duplicate-key": "a key is given more than once",
    "wrong-spark": "this Spark is not the one that it takes",
    "trial-failed": "new code that was tried failed, or differs from the old",
    "spark-connect": "a client of Spark Connect has not got the driver's JVM",
}


class StateStoreError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        problem: What failed, lower case, present tense, without values.
        kind: One of KINDS; the class's default when None.
        to_fix: What the reader should do.
        fields: The values, in the order they are printed.
    """

    default_kind: ClassVar[str] = "internal"

    def __init__(
        self, problem: str, /, *, kind: str | None = None, to_fix: str, **fields: object
    ) -> None:
        self.problem = problem
        self.kind = kind or self.default_kind
        self.to_fix = to_fix
        self.fields = fields
        if self.kind not in KINDS:
            raise AssertionError(f"unknown error kind {self.kind!r}")
        super().__init__(problem)

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        middle = f": {values}" if values else ""
        return f"[{self.kind}] {self.problem}{middle}. To fix: {self.to_fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.problem, self.kind, self.to_fix, self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return the form in which an error crosses to the shim: class, kind, message, fields."""
        fields = {
            name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in self.fields.items()
        }
        return {
            "class": type(self).__name__,
            "kind": self.kind,
            "message": str(self),
            "fields": fields,
        }


def _rebuild(
    cls: type[StateStoreError], problem: str, kind: str, to_fix: str, fields: dict[str, object]
) -> StateStoreError:
    return cls(problem, kind=kind, to_fix=to_fix, **fields)


class InvalidArgumentError(StateStoreError, ValueError):
    """An option or argument is out of range."""

    default_kind = "invalid-argument"


def require_several(name: str, given: object) -> None:
    """Check that a list is given where one is meant: a text is one of its letters.

    Raises:
        InvalidArgumentError: It is a text, or nothing to iterate over.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        fields: dict[str, Any] = {name: given}
        found = "a string" if isinstance(given, str | bytes) else type(given).__name__
        raise InvalidArgumentError(
            f"`{name}` must be a list, not {found}",
            to_fix="give a list, also of one value: [value]",
            **fields,
        )


def require_whole(name: str, given: Any) -> int:
    """Return a whole number as an int, which it need not be: numpy and pandas have their own.

    Raises:
        InvalidArgumentError: It is no whole number; 12.0 and True are none.
    """
    with suppress(TypeError):
        if not isinstance(given, bool):
            return operator.index(given)
    fields: dict[str, Any] = {name: given}
    raise InvalidArgumentError(
        f"`{name}` is not a whole number",
        to_fix="give a number without a decimal point and without quotation marks",
        **fields,
    )


class NotFoundError(StateStoreError, LookupError):
    """A version or file is not there."""

    default_kind = "not-found"


class IncompatibleError(StateStoreError):
    """The checkpoint was made with settings other than the ones asked for."""

    default_kind = "incompatible"


class FencedError(StateStoreError):
    """Another attempt wrote this version; reload instead of retrying."""

    default_kind = "fenced"


class InUseError(StateStoreError):
    """Somebody else changes the checkpoint; `fields` say who, and how that is known."""

    default_kind = "checkpoint-in-use"


class StoreClosedError(StateStoreError):
    """The handle was committed, aborted or closed."""

    default_kind = "store-closed"


class CorruptionError(StateStoreError):
    """A durable file is damaged; `fields` name the file, the offset, expected and found."""

    default_kind = "corruption"


class StorageError(StateStoreError):
    """The storage failed; where the kind is `storage`, the same call may succeed later."""

    default_kind = "storage"


class QueryFailedError(StateStoreError):
    """A supervised query failed for good; the last failure is the cause.

    Attributes:
        restart: What happened until then; None after pickling.
    """

    default_kind = "query-failed"
    restart: Restart | None = None


class ProtocolError(StateStoreError):
    """Shim and engine do not speak the same protocol."""

    default_kind = "protocol"


class InternalError(StateStoreError):
    """A bug of this package."""

    default_kind = "internal"
