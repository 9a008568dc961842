"""Facts: what a page about a checkpoint shows, as plain data.

`dataclasses.asdict` gives the JSON of a page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from statestore.core.providers import SPARK_PROVIDERS
from statestore.core.text import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.checkpoint.history import HistoryEntry
    from statestore.codec.commit_times import MemoryUse
    from statestore.operations.metadata_file import BranchOrigin
    from statestore.operations.savepoint.find import FoundBranch, FoundSavepoint
    from statestore.operations.savepoint.savepoint import SavepointInfo
    from statestore.operations.upkeep.query_info import QueryInfo
    from statestore.operations.upkeep.survey import VersionInfo
    from statestore.operations.upkeep.verification import Finding


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, or to know.

    Attributes:
        kind: What it is about, a word that does not change: damage, partitions-too-large,
            partitions-too-small, skew, hot-key, long-chains, retention, slow-disk,
            engine-memory.
        severity: `problem` where rows are at stake, `advice` where time or space is.
        text: What was seen and what follows, for people.
        command: The command to copy; None where there is none.
    """

    kind: str
    severity: Literal["problem", "advice"]
    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number is spread over the state partitions of a store, of those that are known.

    Attributes:
        minimum, median, p99, maximum: The least, the median, the 99th percentile and the greatest.
    """

    minimum: float
    median: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, numbers: Iterable[float | None]) -> Spread | None:
        """Return the spread of the numbers that are known, None where none is."""
        known = [number for number in numbers if number is not None]
        if not known:
            return None
        low, middle, high = (float(np.percentile(known, at)) for at in (0, 50, 99))
        return cls(low, middle, high, float(max(known)))

    @property
    def skew(self) -> float:
        """The largest number divided by the median: infinite if only that is 0, 1 if both are."""
        if self.median:
            return self.maximum / self.median
        return math.inf if self.maximum else 1.0


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A store in one state partition, at the newest version.

    Attributes:
        partition: State partition.
        num_rows: Rows; None where only reading them tells.
        own_bytes, full_bytes: Bytes that the version added, and that a restore reads: all of each
            file, whoever's rows it has.
        num_files: Files that a restore reads.
        restore_ms: Estimate of a restore on one core.
        num_commits: Commits whose times are known, of the versions looked at.
        write_ms, checksum_ms, publish_ms, sync_ms, commit_ms: Medians of their phases and of all
            of them together, as `CommitTimes` has them; None where no commit's times are known.
        memory: Memory at the commit that found its container the fullest, of those under the limit
            of the newest; None as well.
        num_taken_over: Files that a rescale took over, perhaps with rows of other state partitions.
    """

    partition: int
    num_rows: int | None
    own_bytes: int
    full_bytes: int
    num_files: int
    restore_ms: float
    num_commits: int
    write_ms: float | None
    checksum_ms: float | None
    publish_ms: float | None
    sync_ms: float | None
    commit_ms: float | None
    memory: MemoryUse | None = None
    num_taken_over: int = 0


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key with many bytes of values.

    Attributes:
        variable: State variable, or `default`.
        key: The key as text, its columns by name.
        partition: Its state partition.
        value_bytes: Bytes of its values.
    """

    variable: str
    key: str
    partition: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that changes often.

    Attributes:
        variable, key, partition: As of `HeavyKey`.
        num_changes: Versions in which a row of it was written or deleted.
        num_versions: Of so many.
    """

    variable: str
    key: str
    partition: int
    num_changes: int
    num_versions: int


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store of an operator over all state partitions, at the newest version.

    Attributes:
        operator, operator_name, name: Whose store it is, and its name.
        variables: State variables of transformWithState, with their kinds.
        num_partitions, max_parallelism: Numbers of state partitions and of key groups.
        rescalable: Whether a rescale may go by key groups.
        num_rows, full_bytes: Sums over the state partitions.
        partitions: In order.
        spreads: By field of `PartitionFacts`.
        key_groups: For each state partition, rows by key-group class; None where not known.
        heaviest: Keys with the most bytes of values; None where rows were not read.
        hottest: Keys that changed most often; None where the changes were not read, and none of
            Spark's own providers.
    """

    operator: int
    operator_name: str
    name: str
    variables: tuple[str, ...]
    num_partitions: int
    max_parallelism: int
    rescalable: bool
    num_rows: int | None
    full_bytes: int
    partitions: tuple[PartitionFacts, ...]
    spreads: dict[str, Spread]
    key_groups: tuple[tuple[int, ...], ...] | None
    heaviest: tuple[HeavyKey, ...] | None
    hottest: tuple[HotKey, ...] | None

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return f"store {self.name} of operator {self.operator} ({self.operator_name})"


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a page shows.

    Attributes:
        uri, backend: The checkpoint, and the state backend, or Spark's own provider by the name
            that `convert` takes.
        made_ms: When this was looked at, milliseconds since the Unix epoch.
        query: The query, running or not.
        num_partitions, newest_version, stored_bytes: As `CheckpointInfo`.
        versions: Newest first, as `statestore list` shows them.
        stores: Of every stateful operator.
        pinned_versions: Versions that a reader holds back from retention now.
        findings: What verify found wrong with the newest version.
        to_fix: What helps, as `Verification.to_fix`; None where nothing is wrong.
        unchecked: As `Verification.unchecked`.
        is_deep: Whether every row of the newest version was read for that.
        branch_of: What it is a branch of; None where it is none.
        savepoints, branches: Those found where it was said to look.
        advice: What to do, the most urgent first.
        history: Operations that changed the checkpoint where it is, newest first, without the
            certificates of forgotten keys.
        savepoint: What a savepoint says of itself; None of a checkpoint.
    """

    uri: str
    backend: str
    made_ms: int
    query: QueryInfo
    num_partitions: int
    newest_version: int
    stored_bytes: int
    versions: tuple[VersionInfo, ...]
    stores: tuple[StoreFacts, ...]
    pinned_versions: tuple[int, ...]
    findings: tuple[Finding, ...]
    to_fix: str | None = None
    unchecked: tuple[str, ...] = ()
    is_deep: bool = False
    branch_of: BranchOrigin | None = None
    savepoints: tuple[FoundSavepoint, ...] = ()
    branches: tuple[FoundBranch, ...] = ()
    advice: tuple[Advice, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    savepoint: SavepointInfo | None = None

    def __repr__(self) -> str:
        return (
            f"<Facts of {self.uri}: newest version {self.newest_version}, "
            f"{format_count(len(self.versions), 'version')}, "
            f"{format_count(len(self.findings), 'finding')}, "
            f"{format_count(len(self.advice), 'piece of advice', 'pieces of advice')}>"
        )

    @property
    def all_is_well(self) -> str:
        """The text where there is no advice: it says what was checked, and what was not."""
        if self.newest is None:
            return "Nothing yet: no batch is committed."
        if self.unchecked:
            return (
                "Nothing stands out. Every row of the newest version can be read. Not checked were "
                f"key groups: {'; '.join(self.unchecked)}."
            )
        if self.is_deep:
            return "Nothing: every row of the newest version was checked, and nothing stands out."
        return (
            "Nothing stands out. Every file of the newest version is there; its rows were not "
            "checked: --deep does that."
        )

    @property
    def no_commit_times(self) -> str | None:
        """The reason why no version has times of its commit; None where one has."""
        if any(version.commit for version in self.versions):
            return None
        if self.backend in SPARK_PROVIDERS:
            return "Checkpoints of Spark's own providers have no commit times."
        return (
            "No commit times yet: a version tells those of the one before it, where one run of the "
            "query made both. They are there from the second batch of a run on."
        )

    @property
    def newest(self) -> VersionInfo | None:
        """The newest version; None where no batch was committed."""
        return self.versions[0] if self.versions else None

    @property
    def memory(self) -> MemoryUse | None:
        """Memory at the commit that found its container the fullest; None where nobody knows."""
        known = [part.memory for store in self.stores for part in store.partitions if part.memory]
        return max(known, key=lambda use: use.share, default=None)
