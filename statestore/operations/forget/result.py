"""What forgetting keys did or would do: what was found, not what was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from statestore.core.errors import InvalidArgumentError
from statestore.core.text import format_bytes, format_count, format_fields
from statestore.operations.forget.certificate import NOT_REACHED, Certificate
from statestore.operations.result import Change, Result


@dataclass(frozen=True, repr=False)
class Forget(Result):
    """What forgetting keys did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        operator: Operator ID.
        num_keys: Grouping keys that are looked for: those given, or that fulfil the condition.
        num_keys_found: Those of them that have rows.
        keys: The first few of these, as text.
        batch: The batch that stands for it in Spark's logs.
        version: The version that it makes.
        num_rows: Rows of them in the newest version.
        num_rows_before: All rows of the operator there.
        num_rows_of_files: Rows of them in all state files, of every version.
        files: State files that hold such rows.
        damaged: State files whose rows are not known, of no version that can be loaded.
        written: Store directories that get a file, below the checkpoint; none where an earlier call
            wrote them, and was killed while it deleted files.
        removed: State files that are deleted: all of the operator's until now.
        removed_bytes: Their bytes.
        num_shared: Those of them that are another directory's as well, by hard link: a branch's,
            which keeps them.
    """

    checkpoint: str
    operator: int
    num_keys: int
    num_keys_found: int
    keys: tuple[str, ...]
    batch: int
    version: int
    num_rows: int
    num_rows_before: int
    num_rows_of_files: int
    files: tuple[str, ...]
    damaged: tuple[str, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    removed_bytes: int
    num_shared: int
    _certificate: Certificate | None = field(default=None, kw_only=True)

    @property
    def certificate(self) -> Certificate:
        """The certificate: what was done, and what was found in every file afterwards.

        Raises:
            InvalidArgumentError: It was not done.
        """
        if self._certificate is None:
            raise InvalidArgumentError(
                "a dry run has no certificate",
                operation="forget",
                to_fix="leave out dry_run=True",
            )
        return self._certificate

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are deleted."""
        return self.removed_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """New state files, Spark's logs, then what is deleted."""
        logs = (f"offsets/{self.batch}", f"commits/{self.batch}")
        return (
            *(Change("write", path) for path in self.written and (*self.written, *logs)),
            *(Change("delete", path) for path in self.removed),
        )

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and the certificate or None."""
        return {**super().fields(), "certificate": self.certificate.fields() if self.done else None}

    def __str__(self) -> str:
        has = "has" if self.num_keys_found == 1 else "have"
        more = self.num_keys_found - len(self.keys)
        shared = []
        if self.damaged:
            shared.append(("damaged", f"{len(self.damaged)} of the files cannot be read"))
        if self.num_shared:
            shared.append(("shared", f"{self.num_shared} of the files are a branch's as well"))
        text = format_fields(
            [
                ("checkpoint", self.checkpoint),
                ("operator", self.operator),
                (
                    "found",
                    f"{self.num_keys_found:,} of {format_count(self.num_keys, 'key')} {has} rows: "
                    f"{format_count(self.num_rows, 'row')} of {self.num_rows_before:,} in version "
                    f"{self.version - 1}; {format_count(self.num_rows_of_files, 'row')} in "
                    f"{format_count(len(self.files), 'file')} of all versions",
                ),
                *(("key" if number == 0 else "", key) for number, key in enumerate(self.keys)),
                *([("", f"and {more:,} more")] if more else []),
                ("new version", f"{self.version}, batch {self.batch} of the query, written whole"),
                (
                    "deleted",
                    f"{format_count(len(self.removed), 'file')}, "
                    f"{format_bytes(self.removed_bytes)}: every other version of the operator; "
                    "this is not undone",
                ),
                *shared,
                *(("not reached" if n == 0 else "", line) for n, line in enumerate(NOT_REACHED)),
            ]
        )
        return f"{text}\n{self.certificate}" if self.done else text
