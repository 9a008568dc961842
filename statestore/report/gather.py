"""Gathering the facts of a page from a checkpoint's files alone, whoever wrote them.

From Spark's logs and the trailers of the newest versions; rows are read for the heaviest and the
most changed keys only, where the state is small or a deep look is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.history import read_history
from statestore.checkpoint.key_group_rows import NUM_CLASSES, folded
from statestore.codec.python_values import to_pylist
from statestore.core.errors import StateStoreError
from statestore.core.providers import IN_LOCAL_DATABASE
from statestore.io.storage import absolute_uri
from statestore.operations.reading.changed_keys import most_changed_keys
from statestore.operations.reading.inspection import largest_keys
from statestore.operations.savepoint.find import find_branches, find_savepoints
from statestore.operations.states import FoundRows, find_store
from statestore.operations.upkeep.query_info import look_at_query
from statestore.operations.upkeep.survey import survey
from statestore.operations.upkeep.verify import verify
from statestore.report.advice import advise
from statestore.report.facts import (
    Facts,
    HeavyKey,
    HotKey,
    PartitionFacts,
    Spread,
    StoreFacts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from statestore.codec.commit_times import CommitTimes
    from statestore.codec.references import StoreName
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.store_state import States, StoreState
    from statestore.operations.upkeep.survey import CheckpointInfo, VersionInfo

NUM_VERSIONS = 100
NUM_OPERATIONS = 100
NUM_HEAVIEST = 10
READ_BYTES = 64 << 20
"""State up to this size is read for such keys without being asked to."""
_FEW_STORES = 32
"""So many stores of state partitions at most: a delta of each version of each of them is read."""
_ROWS_A_SECOND = 500_000
_BYTES_A_SECOND = 100 << 20
"""Rows that one core restores into memory, and bytes it fetches for a local database (W3)."""


def gather(
    checkpoint: OpenCheckpoint,
    *,
    num_versions: int | None = NUM_VERSIONS,
    deep: bool = False,
    savepoints: str | None = None,
) -> Facts:
    """Look at a checkpoint, whoever wrote it, while its query runs or not.

    Args:
        checkpoint: The checkpoint.
        num_versions: At most so many versions of the history; None for all.
        deep: As `Directory.report`.
        savepoints: As `Directory.report`.

    Errors as `Directory.report`.
    """
    info, versions = survey(checkpoint, num_versions)
    newest = versions.newest
    is_read = deep or sum(state.full_bytes for state in newest.values()) <= READ_BYTES
    has_few = deep or (is_read and len(newest) <= _FEW_STORES)
    stores = tuple(
        _store_facts(
            checkpoint,
            operator.id,
            store.name,
            newest,
            versions.commits,
            is_read=is_read,
            are_changes_read=has_few,
        )
        for operator in checkpoint.operators
        for store in operator.stores
        if any(_is_of(state, operator.id, store.name) for state in newest.values())
    )
    facts = _facts(checkpoint, info, versions.infos, stores, deep=deep)
    if savepoints is not None:
        there = checkpoint.place.beside(absolute_uri(savepoints))
        facts = replace(
            facts,
            savepoints=find_savepoints(checkpoint, there),
            branches=find_branches(checkpoint, there),
        )
    return replace(facts, advice=advise(facts))


def _facts(
    source: OpenCheckpoint,
    info: CheckpointInfo,
    versions: tuple[VersionInfo, ...],
    stores: tuple[StoreFacts, ...],
    *,
    deep: bool,
) -> Facts:
    found = verify(source, deep=deep) if info.newest_version else None
    history = read_history(source.io, source.path)
    return Facts(
        uri=info.uri,
        backend=info.backend,
        made_ms=source.clock.now_ms(),
        query=look_at_query(source),
        num_partitions=info.num_partitions,
        newest_version=info.newest_version,
        stored_bytes=info.stored_bytes,
        versions=versions,
        stores=stores,
        branch_of=info.branch_of,
        pinned_versions=info.pinned_versions,
        findings=() if found is None else found.findings,
        to_fix=None if found is None else found.to_fix,
        unchecked=() if found is None else found.unchecked,
        is_deep=deep,
        history=tuple(entry.brief() for entry in history[::-1][:NUM_OPERATIONS]),
        savepoint=info.savepoint,
    )


def _is_of(state: StoreState, operator: int, name: str) -> bool:
    return (state.store.operator, state.store.name) == (operator, name)


def _store_facts(
    source: OpenCheckpoint,
    operator: int,
    name: str,
    newest: States,
    commits: Mapping[StoreName, Sequence[CommitTimes]],
    *,
    is_read: bool,
    are_changes_read: bool,
) -> StoreFacts:
    states = [state for state in newest.values() if _is_of(state, operator, name)]
    states.sort(key=lambda state: state.store.partition)
    info = source.operator(operator)
    partitions = tuple(
        _partition_facts(state, commits.get(state.store, ()), source.kept_by) for state in states
    )
    spreads = {
        field: spread
        for field in ("num_rows", "full_bytes", "num_files", "commit_ms", "restore_ms")
        if (spread := Spread.of(getattr(partition, field) for partition in partitions))
    }
    rows = [partition.num_rows for partition in partitions]
    return StoreFacts(
        operator=operator,
        operator_name=info.name,
        name=name,
        variables=tuple(f"{variable.name} ({variable.kind})" for variable in info.variables),
        num_partitions=states[0].num_partitions,
        max_parallelism=states[0].max_parallelism,
        rescalable=all(state.rescalable for state in states),
        num_rows=None if None in rows else sum(row or 0 for row in rows),
        full_bytes=sum(state.full_bytes for state in states),
        partitions=partitions,
        spreads=spreads,
        key_groups=_key_groups(states),
        heaviest=_heaviest(source, states) if is_read else None,
        hottest=_hottest(source, states) if are_changes_read else None,
    )


def _partition_facts(
    state: StoreState, commits: Sequence[CommitTimes], kept_by: str
) -> PartitionFacts:
    medians: dict[str, Any] = {
        field: median(getattr(commit, field) for commit in commits) if commits else None
        for field in ("write_ms", "checksum_ms", "publish_ms", "sync_ms", "total_ms")
    }
    # The newest comes first. What was true under another limit was mended since.
    memory = [commit.memory for commit in commits if commit.memory.limit_bytes]
    is_local = kept_by in IN_LOCAL_DATABASE
    seconds = state.full_bytes / _BYTES_A_SECOND if is_local else state.most_rows / _ROWS_A_SECOND
    return PartitionFacts(
        partition=state.store.partition,
        num_rows=state.num_keys,
        own_bytes=state.own_bytes,
        full_bytes=state.full_bytes,
        num_files=state.num_files,
        restore_ms=1000 * seconds,
        num_commits=len(commits),
        commit_ms=medians.pop("total_ms"),
        memory=max(
            (use for use in memory if use.limit_bytes == memory[0].limit_bytes),
            key=lambda use: use.share,
            default=None,
        ),
        num_taken_over=state.num_taken_over,
        **medians,
    )


def _key_groups(states: Sequence[StoreState]) -> tuple[tuple[int, ...], ...] | None:
    """Return rows by class of every state partition, all by as many classes."""
    known = [state.key_group_rows for state in states]
    if not all(known):
        return None
    num_classes = min([NUM_CLASSES, *(len(rows) for rows in known if rows)])
    # Key groups there are: more classes would always be empty.
    groups = max(1, states[0].max_parallelism // states[0].num_partitions)
    while num_classes > groups:
        num_classes //= 2
    return tuple(folded(rows, num_classes) for rows in known if rows)


def _heaviest(source: OpenCheckpoint, states: Sequence[StoreState]) -> tuple[HeavyKey, ...]:
    """Return the keys with the most bytes of values; none of what cannot be decoded or read."""
    found = [
        HeavyKey(variable, _text(row["key"]), row["partition_id"], row["value_bytes"])
        for variable, row in _keys(source, states, lambda rows: largest_keys(rows, NUM_HEAVIEST))
    ]
    return tuple(sorted(found, key=lambda key: -key.value_bytes)[:NUM_HEAVIEST])


def _hottest(source: OpenCheckpoint, states: Sequence[StoreState]) -> tuple[HotKey, ...]:
    """Return the keys that changed most often; none of what cannot be decoded or read."""
    most_changed = partial(
        most_changed_keys, source, version=source.newest_version, num_keys=NUM_HEAVIEST
    )
    found = [
        HotKey(
            variable,
            _text(row["key"]),
            row["partition_id"],
            row["num_changes"],
            row["num_versions"],
        )
        for variable, row in _keys(source, states, most_changed)
    ]
    return tuple(sorted(found, key=lambda key: -key.num_changes)[:NUM_HEAVIEST])


def _keys(
    source: OpenCheckpoint,
    states: Sequence[StoreState],
    find: Callable[[FoundRows], pa.Table],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the found rows of each of the query's own column families, with its name."""
    store = states[0].store
    variables = {variable.name for variable in source.operator(store.operator).variables}
    for family in states[0].column_families:
        if family.internal or (variables and family.name not in variables):
            continue
        try:
            table = find(FoundRows(find_store(source, store.operator, store.name), family.name))
        except StateStoreError:
            continue  # verify names what is damaged
        for row in to_pylist(table):
            yield family.name, row


def _text(key: Any) -> str:
    if isinstance(key, dict):
        return ", ".join(f"{name} = {value}" for name, value in key.items()) or "(no key)"
    return str(key)
