"""What forgetting keys is going to do, and the certificate of what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from statestore.core.text import format_bytes, format_fields
from statestore.operations.plan import Change, Plan

if TYPE_CHECKING:
    from statestore.operations.forget.search import KeySearch

CERTIFICATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that was written or removed.

    Attributes:
        path: Its path.
        size: Bytes.
        sha256: SHA-256 of its bytes; hex.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was done so that keys are forgotten. It does not hold the keys.

    Attributes:
        checkpoint: URI of the checkpoint.
        operator: Operator ID.
        num_keys: Grouping keys that were forgotten.
        keys_sha256: `Wanted.digest` of them.
        version: The version that was made without them; None where no file held them.
        versions_removed: Versions of the operator's stores that can be loaded no more.
        written: State files that were made.
        removed: State files that were deleted.
        search: The search of every file that is left.
        at_ms: When it was done, milliseconds since the Unix epoch.
    """

    checkpoint: str
    operator: int
    num_keys: int
    keys_sha256: str
    version: int | None
    versions_removed: tuple[int, ...]
    written: tuple[FileRecord, ...]
    removed: tuple[FileRecord, ...]
    search: KeySearch
    at_ms: int

    @property
    def is_forgotten(self) -> bool:
        """Whether no file of the checkpoint holds a byte of the keys."""
        return not self.search.hits

    def fields(self) -> dict[str, Any]:
        """Return the document: its attributes by name, and the version of its form."""
        return {
            "schema_version": CERTIFICATE_VERSION,
            "operation": "forget",
            "is_forgotten": self.is_forgotten,
            **asdict(self),
        }

    def describe(self) -> str:
        """Return it in words."""
        return "\n".join(
            [
                f"{self.num_keys} keys, {len(self.written)} files written, {len(self.removed)} "
                f"removed, of {len(self.versions_removed)} versions.",
                self.search.describe(),
            ]
        )

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, repr=False)
class ForgetPlan(Plan[Certificate]):
    """What forgetting keys does.

    Attributes:
        checkpoint: URI of the checkpoint.
        operator: Operator ID.
        num_keys: Grouping keys that are forgotten.
        batch: The batch that stands for it in Spark's logs.
        version: The version that it makes.
        num_rows: Rows of them in all state files, of every version.
        files: State files that hold such rows.
        written: Store directories that get a file, below the checkpoint.
        removed: State files that are deleted: all of the operator's until now.
        removed_bytes: Their bytes.
        num_shared: Those of them that are another directory's as well, by hard link: a branch's,
            which keeps them.
    """

    checkpoint: str
    operator: int
    num_keys: int
    batch: int
    version: int
    num_rows: int
    files: tuple[str, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    removed_bytes: int
    num_shared: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are deleted."""
        return self.removed_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """New state files, Spark's logs, then what is deleted; none where no file has the keys."""
        if not self.files:
            return ()
        logs = (f"offsets/{self.batch}", f"commits/{self.batch}")
        return (
            *(Change("write", path) for path in (*self.written, *logs)),
            *(Change("delete", path) for path in self.removed),
        )

    def describe(self) -> str:
        """Return what goes, and what keeps the keys all the same."""
        if not self.files:
            return "No state file of the operator has a row of the keys."
        shared = []
        if self.num_shared:
            shared.append(("shared", f"{self.num_shared} of the files are a branch's as well"))
        return format_fields(
            [
                ("checkpoint", self.checkpoint),
                ("operator", self.operator),
                ("keys", f"{self.num_keys}, {self.num_rows} rows in {len(self.files)} files"),
                ("new version", f"{self.version}, batch {self.batch} of the query, written whole"),
                (
                    "deleted",
                    f"{len(self.removed)} files, {format_bytes(self.removed_bytes)}: every older "
                    "version of the operator; this is not undone",
                ),
                *shared,
                (
                    "not reached",
                    "savepoints and branches, the query's input and sink, what executors have on "
                    "their local disks",
                ),
            ]
        )
