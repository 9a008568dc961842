"""Spark's logs of a query's checkpoint: which batches it has, and what they pin."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import BODIES
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, CommitEntry, OffsetsEntry, QueryLog
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.core.providers import PROVIDER_KEY, PROVIDERS, SPARK_PROVIDERS

if TYPE_CHECKING:
    from statestore.checkpoint.layout import FileBody
    from statestore.io.file_io import FileIO, TreeFileIO

_MOST_BATCHES = 1_000_000
"""Between the oldest entry of the logs and the newest: names of files may say anything."""
_KNOWN_PROVIDERS = {*PROVIDERS.values(), *SPARK_PROVIDERS.values()}


@dataclass(frozen=True)
class QueryLogs:
    """The logs of a query, as they were when they were first asked; open another to see changes.

    Attributes:
        uri: The checkpoint directory as the caller named it.
        io: Its storage.
        path: The directory there.
    """

    uri: str
    io: TreeFileIO
    path: str

    @property
    def files(self) -> FileIO:
        """The storage, by which files of the checkpoint are changed."""
        return self.io

    @property
    def offsets(self) -> QueryLog:
        """The offset log."""
        return QueryLog(self.files, self.path, "offsets")

    @property
    def commits(self) -> QueryLog:
        """The commit log."""
        return QueryLog(self.files, self.path, "commits")

    @cached_property
    def planned_batches(self) -> tuple[int, ...]:
        """Batches of the offset log, ascending."""
        return tuple(self.offsets.batches())

    @cached_property
    def committed_batches(self) -> tuple[int, ...]:
        """Batches of the commit log, ascending."""
        return tuple(self.commits.batches())

    @property
    def newest_planned(self) -> int | None:
        """Newest batch of the offset log."""
        return self.planned_batches[-1] if self.planned_batches else None

    @property
    def newest_committed(self) -> int | None:
        """Newest batch of the commit log."""
        return self.committed_batches[-1] if self.committed_batches else None

    @cached_property
    def done_batches(self) -> tuple[int, ...]:
        """Batches that were committed, ascending, also those whose commit entry was lost.

        A batch is planned when the one before it is committed. Where the commit log is empty, only
        the last of them is known.

        Raises:
            CorruptionError: The name of an entry is a number that no query reaches.
        """
        # In this order: a batch that is committed in between is no lost one.
        last_but_one = self.planned_batches[-1] - 1 if self.planned_batches else -1
        newest = max((last_but_one, *self.committed_batches[-1:]))
        oldest = min((*self.committed_batches, max(newest, 0)))
        if newest - oldest > _MOST_BATCHES:
            raise CorruptionError(
                "the logs say that more batches were done than a query runs",
                checkpoint=self.uri,
                oldest_batch=oldest,
                newest_batch=newest,
                to_fix="delete the entry of offsets/ or commits/ that no query has written",
            )
        return tuple(range(oldest, newest + 1))

    @cached_property
    def copyable_batches(self) -> tuple[int, ...]:
        """Those of `done_batches` of which the offset log has what a copy needs, ascending.

        Spark starts from the entries of a batch and of the one before. It expires both logs up to
        the same batch, so the oldest one that a log of some age has lacks the one before.

        Raises:
            CorruptionError: As `done_batches`.
        """
        planned = {*self.planned_batches}
        return tuple(batch for batch in self.done_batches if {batch, max(batch - 1, 0)} <= planned)

    @property
    def newest_version(self) -> int:
        """State version of the newest of `done_batches`, 0 when there is none."""
        return self.done_batches[-1] + 1 if self.done_batches else 0

    @property
    def is_between_batches(self) -> bool:
        """Whether every planned batch is committed: the next one starts from all state."""
        return self.newest_planned == self.newest_committed

    def offsets_entry(self, batch: int) -> OffsetsEntry:
        """Return an entry of the offset log.

        Raises:
            NotFoundError, CorruptionError, StorageError: It is not there or cannot be read.
        """
        if batch not in self._offsets_entries:
            text = self._read(self.offsets, batch)
            self._offsets_entries[batch] = OffsetsEntry.parse(text, self.offsets.path(batch))
        return self._offsets_entries[batch]

    def commit_entry(self, batch: int) -> CommitEntry:
        """Return an entry of the commit log; errors as `offsets_entry`."""
        if batch not in self._commit_entries:
            text = self._read(self.commits, batch)
            self._commit_entries[batch] = CommitEntry.parse(text, self.commits.path(batch))
        return self._commit_entries[batch]

    @cached_property
    def _offsets_entries(self) -> dict[int, OffsetsEntry]:
        return {}

    @cached_property
    def _commit_entries(self) -> dict[int, CommitEntry]:
        return {}

    def _read(self, log: QueryLog, batch: int) -> str:
        try:
            return log.read(batch)
        except NotFoundError as error:
            raise NotFoundError(
                "a log of the query lacks the entry of a batch",
                kind="file-not-found",
                checkpoint=self.uri,
                file=log.path(batch),
                to_fix="put the file back where the checkpoint was copied without it; else go back "
                "to an older version with `statestore repair`",
            ) from error

    @cached_property
    def conf(self) -> dict[str, str]:
        """Configuration pinned by the newest committed batch, by the first one where none is.

        Of the newest before it where that one's entry is damaged: versions before it stay readable.
        """
        batches = self.done_batches or self.planned_batches[:1]
        newest = None
        for batch in reversed(batches):
            with suppress(CorruptionError, NotFoundError):
                entry = self.offsets_entry(batch)
                if entry.conf.get(PROVIDER_KEY) in _KNOWN_PROVIDERS:
                    return dict(entry.conf)
                newest = newest or entry
        return dict((newest or self.offsets_entry(batches[-1])).conf)

    @cached_property
    def num_partitions(self) -> int:
        """Number of state partitions of the newest committed batch."""
        return int(self.conf[NUM_PARTITIONS_KEY])

    @property
    def provider(self) -> str:
        """Provider class of the query.

        Raises:
            CorruptionError: The offset log names none, which each Spark lets it name.
        """
        found = self.conf.get(PROVIDER_KEY)
        if found is None:
            raise CorruptionError(
                "the offset log names no state store provider",
                file=self.offsets.path((self.done_batches or self.planned_batches)[-1]),
                offset=0,
                conf=PROVIDER_KEY,
                to_fix="put the file back from a copy; else restore a savepoint",
            )
        return found

    @property
    def kept_by(self) -> str:
        """Name of the provider: a state backend, or of one of Spark's own; errors as `backend`."""
        for name, provider in SPARK_PROVIDERS.items():
            if provider == self.provider:
                return name
        return self.backend

    @property
    def is_of_spark(self) -> bool:
        """Whether one of Spark's own providers keeps the state; errors as `provider`."""
        return self.provider in SPARK_PROVIDERS.values()

    def require_own(self) -> None:
        """Check that a state backend of this package keeps the state; errors as `backend`."""
        _ = self.backend

    @property
    def backend(self) -> str:
        """State backend of the checkpoint.

        Raises:
            IncompatibleError: Another provider than this package's wrote it.
        """
        for name, provider in PROVIDERS.items():
            if provider == self.provider:
                return name
        raise IncompatibleError(
            "the checkpoint was written by another state store provider",
            kind="other-provider",
            checkpoint=self.uri,
            found=self.provider,
            expected=", ".join(PROVIDERS.values()),
            to_fix="bring it over with `statestore restore`; where its newest version is damaged, "
            "--version names an older one",
        )

    @property
    def body(self) -> FileBody:
        """How the state files keep rows."""
        return BODIES[self.backend]

    def num_partitions_at(self, version: int) -> int:
        """Return the number of state partitions of a committed version.

        Raises:
            NotFoundError, CorruptionError, StorageError: Its batch has no entry in the offset log.
        """
        return self.offsets_entry(version - 1).num_partitions

    def num_own_partitions(self, version: int) -> int:
        """Return the number of state partitions of a version of this package's.

        Raises:
            IncompatibleError: Another provider's.
            CorruptionError: The entry of the offset log says what no entry of the query can.
        """
        self.require_own()
        conf = self.offsets_entry(version - 1).conf
        if conf.get(PROVIDER_KEY) != self.provider:
            raise self.not_pinned(version, PROVIDER_KEY, self.provider)
        num_partitions = self.num_partitions_at(version)
        if num_partitions > MAX_PARALLELISM_LIMIT:
            raise self.not_pinned(version, NUM_PARTITIONS_KEY, f"at most {MAX_PARALLELISM_LIMIT}")
        return num_partitions

    def not_pinned(self, version: int, key: str, expected: object) -> CorruptionError:
        """Return the error for a version's entry of the offset log that says something else."""
        return CorruptionError(
            "an entry of the offset log does not fit the state of the query",
            file=self.offsets.path(version - 1),
            offset=0,
            conf=key,
            expected=expected,
            found=self.offsets_entry(version - 1).conf.get(key),
            to_fix="put the file back from a copy, or go back to an older version with "
            "`statestore repair`",
        )
