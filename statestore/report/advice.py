"""Advice: what the facts of a checkpoint say should be done, in words and as a command to copy.

Each rule looks at one thing. Thresholds are those at which the figure of benchmarks/results shows a
cost that a user notices; a rule that does not know enough says nothing.
"""

from __future__ import annotations

import shlex
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.core.options import StateStoreOptions
from statestore.core.providers import IN_DRIVER_MEMORY, IN_LOCAL_DATABASE, SPARK_PROVIDERS
from statestore.core.text import format_bytes, format_count
from statestore.report.facts import Advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from statestore.operations.upkeep.verification import Finding
    from statestore.report.facts import Facts, PartitionFacts, StoreFacts

LARGE_ROWS = 5_000_000
LARGE_BYTES = 1 << 30
"""State of one partition above which a restore takes ten seconds and more."""
SMALL_ROWS = 1_000
"""Rows of one partition, of all stores, below which its commits are all overhead."""
SKEW = 2.0
SKEWED_ROWS = 10_000
"""A store of fewer rows is not worth a rescale."""
HOT_SHARE = 0.5
"""Share of a state partition's rows, of one class of key groups, above which a key is hot."""
HOT_SHARE_OF_FEW = 0.9
"""The same where there are fewer than FEWEST_CLASSES classes, each of several key groups."""
FEWEST_CLASSES = 4
RETAINED_SHARE = 20
SYNC_SHARE = 0.5
SLOW_COMMIT_MS = 50.0
_MOST_PLACES = 3
FULL_SHARE = 0.9
"""Of a container's memory, above which the next large batch may have a process killed."""


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Return what should be done, problems first; nothing changes a savepoint."""
    rules = _RULES if facts.savepoint is None else (_damage,)
    found = [advice for rule in rules for advice in rule(facts)]
    return tuple(sorted(found, key=lambda advice: advice.severity != "problem"))


def _damage(facts: Facts) -> Iterator[Advice]:
    if not facts.findings:
        return
    uri, to_fix = shlex.quote(facts.uri), facts.to_fix or ""
    unreadable = [finding for finding in facts.findings if not finding.is_recoverable]
    command = None
    if "statestore repair" in to_fix:
        command = f"statestore repair {uri}"
    elif not unreadable:
        command = f"statestore verify {uri} --deep"
    if unreadable:
        seen = (
            f"Version {facts.newest_version}, the newest, cannot be read: "
            f"{format_count(len(unreadable), 'finding')}."
        )
    else:
        seen = (
            f"Version {facts.newest_version} has {format_count(len(facts.findings), 'finding')}, "
            "and every row can be read all the same."
        )
    where = _where(unreadable or facts.findings)
    yield Advice("damage", "problem", f"{seen} {where} To fix: {to_fix}.", command)


def _where(findings: Sequence[Finding]) -> str:
    """Return in a sentence which state partitions and files some findings are of."""
    places = []
    for finding in findings[:_MOST_PLACES]:
        store = finding.store
        place = "all stores" if store is None else f"state partition {store.partition}"
        if store is not None:
            place += f" of store {store.name} of operator {store.operator}"
        places.append(place if finding.file is None else f"{place}, file {finding.file}")
    more = len(findings) - len(places)
    text = "; ".join([*places, f"and {more:,} more"] if more else places)
    return f"{text[:1].upper()}{text[1:]}."


def _too_large(facts: Facts) -> Iterator[Advice]:
    for store in _changeable(facts):
        large = [part for part in store.partitions if _is_large(part)]
        if large and (more := _doubled(store)) is not None:
            largest = max(large, key=lambda part: (part.num_rows or 0, part.full_bytes))
            rows = "rows not counted"
            if largest.num_rows is not None:
                rows = format_count(largest.num_rows, "row")
            size = "" if largest.num_taken_over else f"{format_bytes(largest.full_bytes)}, "
            yield Advice(
                "partitions-too-large",
                "advice",
                f"A state partition of {store.title} is large: {size}{rows}. A restart waits for "
                "it to be restored. More state partitions are smaller ones.",
                f"statestore rescale {shlex.quote(facts.uri)} --num-partitions {more}",
            )


def _is_large(partition: PartitionFacts) -> bool:
    if (partition.num_rows or 0) > LARGE_ROWS:
        return True
    # Files that a rescale took over have rows of others: a second rescale would not make it less.
    return not partition.num_taken_over and partition.full_bytes > LARGE_BYTES


def _too_small(facts: Facts) -> Iterator[Advice]:
    """Of all stores together, since a rescale changes all of them."""
    rows: Counter[int] = Counter()
    for store in _changeable(facts):
        if not store.rescalable:
            return
        for part in store.partitions:
            if part.num_rows is None or part.full_bytes > LARGE_BYTES:
                return
            rows[part.partition] += part.num_rows
    if len(rows) < 8 or max(rows.values()) >= SMALL_ROWS:
        return
    fewer = len(rows)
    while fewer % 2 == 0 and rows.total() / fewer < SMALL_ROWS and fewer > 2:
        fewer //= 2
    if fewer < len(rows):
        yield Advice(
            "partitions-too-small",
            "advice",
            f"The state has {rows.total():,} rows in {len(rows):,} state partitions. Each of them "
            "costs tasks and commits in every batch, whatever it holds.",
            f"statestore rescale {shlex.quote(facts.uri)} --num-partitions {fewer}",
        )


def _address(store: StoreFacts) -> str:
    """Return the address of the rows of a store, of its first state variable, as a shell word."""
    if store.name != DEFAULT_FAMILY:  # the name of an operator's only store, too
        return shlex.quote(f"{store.operator}/{store.name}")
    if store.variables:
        return shlex.quote(f"{store.operator}/{store.variables[0].rpartition(' (')[0]}")
    return str(store.operator)


def _skew(facts: Facts) -> Iterator[Advice]:
    for store in _changeable(facts):
        spread = store.spreads.get("num_rows")
        if spread is None or store.key_groups is None or spread.skew <= SKEW:
            continue
        if spread.maximum < SKEWED_ROWS:
            continue
        rows = max(store.key_groups, key=sum)
        than = f"{spread.skew:.1f} times the median" if spread.median else "while most have none"
        seen = (
            f"The largest state partition of {store.title} has {spread.maximum:,.0f} rows, {than}."
        )
        if _is_hot(store, rows):
            yield Advice(
                "hot-key",
                "advice",
                f"{seen} Most of them are in one class of key groups, which stays together: no "
                "number of state partitions spreads it. Look at the keys, and put something that "
                "varies into the grouping key.",
                f"statestore inspect {shlex.quote(facts.uri)} --rows {_address(store)} "
                "--key-groups",
            )
        elif (more := _doubled(store)) is not None:
            # By their class, rows of a state partition go to one of two new ones.
            largest = max(max(sum(part[::2]), sum(part[1::2])) for part in store.key_groups)
            then = f" With {more} state partitions the largest would have {largest:,} rows."
            yield Advice(
                "skew",
                "advice",
                f"{seen}{then if len(rows) > 1 else ''}",
                f"statestore rescale {shlex.quote(facts.uri)} --num-partitions {more}",
            )


def _is_hot(store: StoreFacts, rows: Sequence[int]) -> bool:
    """Tell whether most rows of a state partition stay together, by those of each class.

    Where a rescale has left few classes, each may be of many key groups.
    """
    share = max(rows) / max(1, sum(rows))
    is_of_one_group = store.max_parallelism <= store.num_partitions * len(rows)
    if len(rows) >= FEWEST_CLASSES or is_of_one_group:
        return share > HOT_SHARE
    return len(rows) > 1 and share > HOT_SHARE_OF_FEW


def _chains(facts: Facts) -> Iterator[Advice]:
    if facts.backend in {*SPARK_PROVIDERS, *IN_DRIVER_MEMORY}:
        return
    limit = 2 * StateStoreOptions().snapshot_max_chain_length
    parts = [part for store in facts.stores for part in store.partitions]
    longest = max(parts, key=lambda part: part.num_files, default=None)
    if longest is None or longest.num_files <= limit:
        return
    seen = f"A restore reads up to {longest.num_files} files for one state partition."
    is_local = facts.backend in IN_LOCAL_DATABASE
    made = "merges" if is_local else "snapshots"
    if longest.num_files - longest.num_taken_over <= limit:
        yield Advice(
            "long-chains",
            "advice",
            f"{seen} A rescale took over {longest.num_taken_over} of them. The next {made} of the "
            "query put them together; while it is stopped, the command does.",
            f"statestore compact {shlex.quote(facts.uri)} --yes",
        )
        return
    option = "rocksdb.mergeMinFiles" if is_local else "snapshot.maxChainLength"
    yield Advice(
        "long-chains",
        "advice",
        f"{seen} The {made} do not keep up: look for failed ones in the log of the executors, or "
        f"set spark.sql.streaming.stateStore.{option} lower.",
    )


def _retention(facts: Facts) -> Iterator[Advice]:
    newest = facts.newest
    if newest is None or facts.backend in {*SPARK_PROVIDERS, *IN_DRIVER_MEMORY}:
        return
    if newest.full_bytes and facts.stored_bytes > RETAINED_SHARE * newest.full_bytes:
        yield Advice(
            "retention",
            "advice",
            f"{format_bytes(facts.stored_bytes)} are kept for {format_bytes(newest.full_bytes)} of "
            "state. spark.sql.streaming.minBatchesToRetain says how many versions stay; the "
            "command shows what would go now.",
            f"statestore expire {shlex.quote(facts.uri)} --keep 10",
        )


def _disk(facts: Facts) -> Iterator[Advice]:
    commits = [version.commit for version in facts.versions if version.commit is not None]
    if not commits:
        return
    total = median(commit.total_ms for commit in commits)
    sync = median(commit.sync_ms for commit in commits)
    if total > SLOW_COMMIT_MS and sync / total > SYNC_SHARE:
        yield Advice(
            "slow-disk",
            "advice",
            f"A commit takes {total:.0f} ms, {sync:.0f} ms of which it waits for the disk of the "
            "checkpoint. A faster disk, or fewer state partitions, makes batches shorter.",
        )


def _memory(facts: Facts) -> Iterator[Advice]:
    memory = facts.memory
    if memory is None or memory.share <= FULL_SHARE:
        return
    holds = (
        f"{format_bytes(memory.taken_bytes)} of the {format_bytes(memory.limit_bytes)} that a "
        f"container of executors may hold were taken at a commit, "
        f"{format_bytes(memory.engine_bytes)} of them by the engine. "
    )
    is_engine = memory.engine_bytes > memory.taken_bytes / 2
    if is_engine and facts.backend in IN_LOCAL_DATABASE:
        less = "Set spark.sql.streaming.stateStore.rocksdb.memoryBytes lower, or give"
    else:
        less = "Give"
    yield Advice(
        "engine-memory",
        "advice",
        f"{holds}A process is killed when all are. {less} executors more by "
        "spark.executor.memoryOverhead; docs/sizing.md has the sum.",
    )


def _changeable(facts: Facts) -> Iterator[StoreFacts]:
    """Yield the stores that a rescale can change: those of this package, in a file."""
    if facts.backend not in {*SPARK_PROVIDERS, *IN_DRIVER_MEMORY}:
        yield from (store for store in facts.stores if len(store.partitions) > 1)


def _doubled(store: StoreFacts) -> int | None:
    """Return twice the state partitions, None where key groups do not allow that."""
    more = 2 * store.num_partitions
    return more if store.rescalable and store.max_parallelism % more == 0 else None


_RULES: tuple[Callable[[Facts], Iterator[Advice]], ...] = (
    _damage,
    _too_large,
    _too_small,
    _skew,
    _chains,
    _retention,
    _disk,
    _memory,
)
