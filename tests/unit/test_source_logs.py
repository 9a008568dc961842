"""Which logs of file sources are those of the sources of a query, against every way to tell."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from statestore.checkpoint.query_log import OffsetsEntry
from statestore.core.errors import NotFoundError
from statestore.operations.source_logs import check_sources


def is_fine(sources: list[str], logs: dict[int, set[int]]) -> bool:
    """Return whether the check passes; sources are of offsets, logs of numbers of entries."""
    entry = OffsetsEntry("v1", {}, tuple(sources))
    names = [f"sources/{log}/{number}" for log, numbers in logs.items() for number in numbers]
    try:
        check_sources("file:/query", {7: entry}, names)
    except NotFoundError as error:
        refused = error
    else:
        return True
    assert refused.fields["told_by"] == "offsets/7"
    return False


def ways(sources: list[str], logs: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield each way in which sources can have logs: the next one, or one of equal offsets."""
    if len(logs) == len(sources):
        yield logs
        return
    equal = {log for log, other in zip(logs, sources, strict=False) if other == sources[len(logs)]}
    for log in {max(logs, default=-1) + 1, *equal}:
        yield from ways(sources, (*logs, log))


@pytest.mark.parametrize("seed", range(40))
def test_logs_fit_where_one_way_of_all_does(seed: int) -> None:
    """Catches a query that is refused, and one whose source would read its files again."""
    rng = Random(seed)
    found = []
    for _ in range(50):
        offsets = [rng.choice([None, 0, 1, 2]) for _ in range(rng.randint(1, 6))]
        sources = ["-" if one is None else f'{{"logOffset":{one}}}' for one in offsets]
        logs = {
            log: {*range(rng.randint(1, 4))} - {rng.choice([0, 1, 9, 9, 9])}
            for log in range(rng.randint(0, 6))
        }
        has = [
            {log for log in range(7) if one is None or _has(logs.get(log, set()), one)}
            for one in offsets
        ]
        expected = any(
            all(log in fits for log, fits in zip(way, has, strict=True)) for way in ways(sources)
        )
        found.append(expected)
        assert is_fine(sources, logs) == expected, (sources, logs)
    assert {*found} == {True, False}


def _has(entries: set[int], newest: int) -> bool:
    return {*range(max(newest, *entries, 0) + 1)} <= entries


def test_sources_of_the_same_offsets_are_checked_at_once() -> None:
    """Catches a check that tries every way one by one, where a log has no entry."""
    sources = ['{"logOffset":1}'] * 200
    assert not is_fine(sources, {0: {0}})
    assert not is_fine([*sources, '{"logOffset":9}'], {log: {0, 1} for log in range(150)})
    assert is_fine([*sources, '{"logOffset":2}'], {log: {0, 1, 2} for log in range(9)})
