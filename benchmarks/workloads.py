"""What is measured: the providers, the workloads with their sizes, and nothing that runs.

Every size is part of a frozen value, so a result can name exactly what it measured. `full()` gives
the sizes of the published figures, `quick()` a smoke test of the same code paths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

STATE_STORE = "spark.sql.streaming.stateStore"
SPARK_STATE = "org.apache.spark.sql.execution.streaming.state"
OURS = "filesystem"
"""ID of the filesystem backend, which the figures without a name are about."""
OUR_ROCKSDB = "rocksdb-backend"
"""ID of the rocksdb backend; `rocksdb` is Spark's own."""
NO_STORE = "none"
"""ID of a store that keeps nothing: a query on it takes what Spark itself takes."""
FORMAT_2 = (f"{STATE_STORE}.checkpointFormatVersion", "2")
"""The newer checkpoint format of Spark, which `statestore.configure` sets."""
COUNTS_ROWS = f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows"
"""Key by which Spark's RocksDB reads a row for each that it writes, to count them; by default."""
FINDING = "finding"
"""ID of the same with a row for each key that is asked for: Spark's own part of an aggregation."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A state store provider and the Spark settings that select it; all else is at its default.

    Spark's RocksDB with changelog stands for Spark at its best, so it has the newer checkpoint
    format; ours have what `statestore.configure` sets, and the empty stores the same. The tuned one
    does not read a row for each that it writes, in order to count them, and has a larger cache.

    `is_ours` says whether it is in the jar, `is_durable` whether its state outlives the driver,
    `keeps_state` whether it is a store at all, `counts_rows` whether it tells how many rows it has,
    `has_families` whether what needs column families is measured on it: `transformWithState`, and
    joins of state format 4. `only_aggregations` is true of a store that no other operator can run
    on.
    """

    id: str
    title: str
    provider_class: str
    conf: tuple[tuple[str, str], ...] = ()
    is_ours: bool = False
    is_durable: bool = True
    keeps_state: bool = True
    counts_rows: bool = True
    has_families: bool = False
    only_aggregations: bool = False

    @property
    def tells_its_rows(self) -> bool:
        """Whether it has state, and tells how many rows: what can be checked."""
        return self.keeps_state and self.counts_rows

    def can_run(self, query: QueryWorkload) -> bool:
        """Return whether a workload is measured on it."""
        if self.only_aggregations and (query.variable or query.operator != "aggregation"):
            return False
        return self.has_families or not query.needs_families


PROVIDERS = (
    Provider("hdfs", "Spark HDFS-backed", f"{SPARK_STATE}.HDFSBackedStateStoreProvider"),
    Provider("rocksdb", "Spark RocksDB", f"{SPARK_STATE}.RocksDBStateStoreProvider"),
    Provider(
        "rocksdb-changelog",
        "Spark RocksDB + changelog",
        f"{SPARK_STATE}.RocksDBStateStoreProvider",
        ((f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled", "true"), FORMAT_2),
        has_families=True,
    ),
    Provider(
        "rocksdb-tuned",
        "Spark RocksDB + changelog, tuned",
        f"{SPARK_STATE}.RocksDBStateStoreProvider",
        (
            (f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled", "true"),
            (COUNTS_ROWS, "false"),
            (f"{STATE_STORE}.rocksdb.blockCacheSizeMB", "64"),
            FORMAT_2,
        ),
        counts_rows=False,
        has_families=True,
    ),
    Provider(
        OURS,
        "statestore filesystem",
        "io.statestore.FileSystemStateStoreProvider",
        (FORMAT_2,),
        is_ours=True,
        has_families=True,
    ),
    Provider(
        OUR_ROCKSDB,
        "statestore rocksdb",
        "io.statestore.RocksDBStateStoreProvider",
        (FORMAT_2,),
        is_ours=True,
        has_families=True,
    ),
    Provider(
        "heap",
        "statestore heap",
        "io.statestore.HeapStateStoreProvider",
        # Its default is made for small states; the workloads' are not.
        ((f"{STATE_STORE}.heap.maxStateBytes", str(1 << 30)), FORMAT_2),
        is_ours=True,
        is_durable=False,
    ),
    Provider(
        NO_STORE,
        "empty store",
        "io.statestore.bench.EmptyStateStoreProvider",
        (FORMAT_2,),
        is_durable=False,
        keeps_state=False,
        has_families=True,
    ),
    Provider(
        FINDING,
        "empty store that finds rows",
        "io.statestore.bench.FindingStateStoreProvider",
        (FORMAT_2,),
        is_durable=False,
        keeps_state=False,
        only_aggregations=True,
    ),
)


def find_provider(provider_id: str) -> Provider:
    """Return the provider of that ID.

    Raises:
        LookupError: There is none; the message names those there are.
    """
    for provider in PROVIDERS:
        if provider.id == provider_id:
            return provider
    known = ", ".join(p.id for p in PROVIDERS)
    raise LookupError(f"no such provider: provider={provider_id!r}. To fix: use one of {known}")


@dataclass(frozen=True, slots=True)
class QueryWorkload:
    """A streaming query that loads its keys, then updates some of them.

    Its `operator` is an `aggregation`, `groupBy(key).agg(count, sum)`; a `join` of the stream with
    itself on the key, in state format `join_format`; or `session` windows of each key. Where
    `variable` names a kind of state, it is a `transformWithState` of `jvm/VariableQueries.scala`
    that keeps such state for each key.
    The first `load_batches` insert `keys` rows, each of the `update_batches` that follow updates
    `updates_per_batch` distinct random keys. The first `warm_up_batches` updates are left out of
    the medians. `restart_batches` more are read after a restart in a new JVM (0: no restart).
    """

    name: str
    keys: int
    updates_per_batch: int
    update_batches: int
    warm_up_batches: int
    restart_batches: int
    partitions: int
    seed: int = 20
    variable: str | None = None
    operator: Literal["aggregation", "join", "session"] = "aggregation"
    load_batches: int = 1
    join_format: int = 2

    @property
    def needs_families(self) -> bool:
        """Whether its state is in column families, which not every provider has."""
        return self.variable is not None or self.join_format > 2


@dataclass(frozen=True, slots=True)
class StoreWorkload:
    """W4: `rows` operations of each kind on a store of `rows` rows, one partition, no query.

    `overlaps` are percentages of the touched keys that exist already.
    """

    name: str
    rows: tuple[int, ...]
    overlaps: tuple[int, ...]
    iterations: int


@dataclass(frozen=True, slots=True)
class CommitWorkload:
    """W5: commits of deltas of about `delta_bytes`, alternated with a raw write of equal size."""

    name: str
    delta_bytes: tuple[int, ...]
    value_bytes: tuple[int, ...]
    iterations: int
    warm_up_iterations: int


@dataclass(frozen=True, slots=True)
class MemoryWorkload:
    """Rows shaped as in W1: `keys` loaded, then `update_commits` commits of `updates` rows each."""

    name: str
    keys: int
    updates: int
    update_commits: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Suite:
    """One consistent set of sizes, and how often each provider's run is repeated."""

    w1: QueryWorkload
    w2_large: QueryWorkload
    w2_small: QueryWorkload
    w7: QueryWorkload
    w8: tuple[QueryWorkload, ...]
    w4: StoreWorkload
    w5: CommitWorkload
    memory: MemoryWorkload
    w9: tuple[QueryWorkload, ...]
    rounds: int

    @property
    def queries(self) -> tuple[QueryWorkload, ...]:
        """The workloads that run an aggregation."""
        return (self.w1, self.w2_large, self.w2_small, self.w7)

    def query(self, name: str) -> QueryWorkload:
        """Return the workload of that name that runs a streaming query."""
        return next(query for query in (*self.queries, *self.w8, *self.w9) if query.name == name)


MB = 1_000_000
VARIABLES = ("value", "list", "map", "timers", "ttl")
"""Kinds of state that a workload of `transformWithState` keeps; ttl is a value that expires."""
READ_FIRST = ("appended", "expired", "iterated")
"""Kinds that are read or gone over before each write: lists of 2,000 rows, a map with timers."""


def _w8(join: QueryWorkload) -> tuple[QueryWorkload, ...]:
    """Return a join in state format 2, Spark's default; in format 4; and session windows."""
    join_4 = replace(join, name="W8-join-4", join_format=4)
    return join, join_4, replace(join, name="W8-session", operator="session")


def full() -> Suite:
    """Return the sizes of the published figures."""
    return Suite(
        w1=QueryWorkload("W1", 1_000_000, 100_000, 20, 5, 5, partitions=4),
        w2_large=QueryWorkload("W2-1M", 1_000_000, 1_000, 25, 10, 0, partitions=1),
        w2_small=QueryWorkload("W2-10k", 10_000, 1_000, 25, 10, 0, partitions=1),
        w7=QueryWorkload("W7", 200_000, 2_000, 8, 3, 0, partitions=200),
        w8=_w8(QueryWorkload("W8-join", 50_000, 2_000, 6, 3, 0, partitions=200, operator="join")),
        w4=StoreWorkload("W4", (10_000, 100_000), (100, 50, 10, 0), 7),
        w5=CommitWorkload("W5", (MB, 10 * MB, 40 * MB), (100, 1_000), 9, 3),
        memory=MemoryWorkload("memory", 1_000_000, 100_000, 10, 4),
        w9=tuple(
            QueryWorkload(f"W9-{kind}", keys, updates, 8, 3, 0, partitions=4, variable=kind)
            for kind, keys, updates in (
                *((kind, 200_000, 20_000) for kind in VARIABLES),
                ("appended", 200, 20),
                ("expired", 200, 20),
                ("iterated", 50_000, 5_000),
            )
        ),
        rounds=3,
    )


def quick() -> Suite:
    """Return small sizes: every code path in little time, no figure worth quoting."""
    return Suite(
        w1=QueryWorkload("W1", 50_000, 5_000, 4, 1, 2, partitions=4),
        w2_large=QueryWorkload("W2-1M", 50_000, 500, 4, 1, 0, partitions=1),
        w2_small=QueryWorkload("W2-10k", 2_000, 500, 4, 1, 0, partitions=1),
        w7=QueryWorkload("W7", 5_000, 500, 4, 1, 0, partitions=16),
        w8=_w8(QueryWorkload("W8-join", 2_000, 200, 2, 1, 0, partitions=4, operator="join")),
        w4=StoreWorkload("W4", (2_000,), (100, 0), 2),
        w5=CommitWorkload("W5", (MB,), (100,), 2, 1),
        memory=MemoryWorkload("memory", 50_000, 5_000, 2, 4),
        w9=tuple(
            QueryWorkload(f"W9-{kind}", 2_000, 500, 4, 1, 0, partitions=4, variable=kind)
            for kind in VARIABLES
        )
        + tuple(
            QueryWorkload(f"W9-{kind}", 20, 5, 4, 1, 0, partitions=4, variable=kind)
            for kind in READ_FIRST
        ),
        rounds=1,
    )
