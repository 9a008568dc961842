"""The result of a verification, and its text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.text_files import spark_file_of, to_fix_file
from statestore.core.text import Shown, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.checkpoint.text_files import SparkFile
    from statestore.codec.references import StoreName
    from statestore.core.errors import StateStoreError


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        version: The version that cannot be trusted.
        store: The store of it, None where all are concerned.
        kind: Kind of the error, as in statestore.core.errors.KINDS.
        problem: The error's text.
        is_recoverable: Whether all rows of the version are there all the same: in the files that a
            damaged snapshot was made of (filesystem, heap), by an older snapshot and the changes
            since (Spark's own providers), or since only the batch after it cannot be repeated.
        file: Path of the file that is damaged or missing; None where it is not one file.
    """

    version: int
    store: StoreName | None
    kind: str
    problem: str
    is_recoverable: bool = False
    file: str | None = None

    @classmethod
    def of(
        cls,
        version: int,
        store: StoreName | None,
        error: StateStoreError,
        *,
        is_recoverable: bool = False,
    ) -> Finding:
        """Return what an error says of a version."""
        file = error.fields.get("file")
        named = None if file is None else str(file)
        return cls(version, store, error.kind, str(error), is_recoverable, named)

    @property
    def spark_file(self) -> SparkFile | None:
        """Which of Spark's files of the checkpoint it is about; None for state."""
        return spark_file_of(self.file or "")

    def describe(self) -> str:
        """Return it in a line."""
        note = " (recoverable: every row can be read)" if self.is_recoverable else ""
        of = "all stores" if self.store is None else f"store {self.store}"
        return f"version {self.version}, {of}{note}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Verification(Shown):
    """The result of a verification.

    Attributes:
        checkpoint: URI of the checkpoint or savepoint.
        is_savepoint: Whether it is a savepoint.
        is_repairable: Whether `repair` takes it: it is a query's, on a provider of this package.
        versions: The versions, newest first, without those that were expired.
        expired: Versions of which a store keeps later ones only, newest first. That is a finding
            where they were asked for by number.
        is_deep: Whether every row was read.
        num_files, num_bytes: Files they are made of, each counted once.
        num_rows: Rows read, 0 unless deep.
        findings: What is wrong; empty when all is well.
        unchecked: Column families whose keys this release cannot read, each with why: whether their
            rows are in the key groups of their keys was not checked. That is no finding.
        schemas_elsewhere: State schemas that Spark looks for at the query's start by these URIs, as
            its metadata names them, and that are not there as seen from here: the checkpoint was
            moved, or is under another mount than that of the query. That is no finding.
    """

    checkpoint: str
    is_savepoint: bool
    is_repairable: bool
    versions: tuple[int, ...]
    expired: tuple[int, ...]
    is_deep: bool
    num_files: int
    num_bytes: int
    num_rows: int
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]
    schemas_elsewhere: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what was found, in words."""
        rows = f", {format_count(self.num_rows, 'row')}" if self.is_deep else ""
        found = "all is well" if self.ok else format_count(len(self.findings), "finding")
        if self.ok and not self.versions and not self.expired:
            return "Nothing to verify: no batch is committed yet."
        lines = [
            *(finding.describe() for finding in self.findings),
            f"{format_count(len(self.versions), 'version')}, "
            f"{format_count(self.num_files, 'file')}, {format_bytes(self.num_bytes)}{rows}: "
            f"{found}",
        ]
        lines += [f"Key groups not checked: {one}" for one in self.unchecked]
        for named in self.schemas_elsewhere[:1]:
            lines.append(
                f"Spark looks for a state schema at {named}, which is not there as seen from here. "
                "If the checkpoint was moved, the query goes on from a restore: "
                f"statestore restore {shlex.quote(self.checkpoint)} NEW"
            )
        if self.expired:
            were = "was" if len(self.expired) == 1 else "were"
            lines.append(f"{format_count(len(self.expired), 'older version')} {were} expired.")
        if self.to_fix is not None:
            lines.append(f"To fix: {self.to_fix}")
        return "\n".join(lines)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def to_fix(self) -> str | None:
        """The fix for the findings, None when all is well."""
        if self.ok:
            return None
        uri = shlex.quote(self.checkpoint)
        new = f"statestore restore {uri} NEW"
        if all(finding.version in self.expired for finding in self.findings):
            return f"ask for a version that is kept: statestore list {uri} shows them"
        is_readable = all(finding.is_recoverable for finding in self.findings)
        can_read = "every row can be read all the same; " if is_readable else ""
        if self.is_savepoint:
            return f"{can_read}put the files back from a copy, or go on from another copy"
        about = {finding.spark_file: finding for finding in self.findings}
        if is_readable and "query-id" in about:
            is_there = about["query-id"].kind == "corruption"
            deleted = "delete it, on a local disk also .metadata.crc beside it, and "
            return (
                f"{'Spark does' if is_there else 'Spark 4.2 and later do'} not start the query "
                "without its ID: put the file back from a copy; or "
                f"{deleted if is_there else ''}make a new checkpoint, whose query has a new ID and "
                f"is another one to its sinks: {new}"
            )
        if not self.is_repairable:
            if is_readable:
                moved = "move the newest entry of offsets/ away, also its hidden .crc, and "
                under_way = moved if about.keys() & {"offsets", "sources"} else ""
                return (
                    f"{can_read}put the files back from a copy, or {under_way}"
                    f"make a new checkpoint: {new}"
                )
            deep = " --deep" if self.is_deep else ""
            return to_fix_metadata(self.findings) or (
                "put the files back from a copy; or make a new checkpoint of an older version with "
                f"which `statestore verify {uri} --version all{deep}` finds nothing wrong: {new} "
                "--version VERSION"
            )
        if is_readable:
            if "schema" in about:
                return (
                    "put the state schemas back from a copy, a savepoint has them: every row can "
                    "be read, but Spark does not start the query without them"
                )
            if "offsets" in about:
                return (
                    "every row can be read, but the batch under way cannot be repeated, and Spark "
                    "does not start the query: put the file back from a copy, or see what "
                    f"statestore repair {uri} takes back"
                )
            if "sources" in about:
                return (
                    "every row can be read, but the source of the batch under way does not know "
                    f"what it has read: put {self.checkpoint}/sources back from a copy, or see "
                    f"what statestore repair {uri} takes back"
                )
            return (
                "every row can be read and the query starts; a later snapshot takes the place of a "
                f"damaged file: statestore compact {uri} --yes takes one now"
            )
        return to_fix_metadata(self.findings) or (
            f"statestore repair {uri} says which version can be read and which batches would run "
            "again; with --yes it goes back to that version"
        )

    def __str__(self) -> str:
        return self.describe()

    def is_readable(self, version: int) -> bool:
        """Return whether every row of a version can be read, also where something is wrong."""
        return version in self.versions and all(
            finding.is_recoverable for finding in self.findings if finding.version == version
        )


def to_fix_metadata(findings: Iterable[Finding]) -> str | None:
    """Return the fix where rows are lost to nothing but metadata of operators, else None."""
    files = {finding.file or "" for finding in findings if not finding.is_recoverable}
    if {spark_file_of(file) for file in files} != {"operator"}:
        return None
    return (
        "no version can be read while the metadata of an operator is missing or damaged: "
        # The shortest is what is right for every one.
        + min(map(to_fix_file, files), key=len)
    )
