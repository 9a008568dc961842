"""Which logs of file sources are those of the sources of a query, against every way to tell."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from statestore.checkpoint.query_log import OffsetsEntry
from statestore.core.errors import NotFoundError
from statestore.operations.source_logs import check_sources, has_input


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


@pytest.mark.parametrize(
    ("sources", "logs", "lacks"),
    [
        (['0:{"logOffset":3}'], {0: {0, 1, 2, 3}}, None),
        (['0:{"logOffset":3}'], {}, "0/0"),
        (['0:{"logOffset":3}'], {0: {0, 1, 2}}, "0/3"),
        # In the order of a hash map; one that has read nothing yet is not among them.
        (['1:{"logOffset":0}', '0:{"logOffset":1}'], {0: {0, 1}, 1: {0}}, None),
        (['1:{"logOffset":1}', '0:{"logOffset":0}'], {0: {0, 1}, 1: {0}}, "1/1"),
        (['1:{"logOffset":1}'], {1: {0, 1}}, None),
        # The first source is read again as the third.
        (['1:{"logOffset":0}', '2:{"logOffset":2}'], {0: {0, 1, 2}, 1: {0}}, None),
        (['1:{"logOffset":0}', '2:{"logOffset":2}'], {0: {0, 1}, 1: {0}}, "2/0"),
        (['sales:{"logOffset":1}', "1st:-"], {"sales": {0, 1}}, None),
        (['sales:{"logOffset":1}'], {"sales": {0}, 0: {0, 1}}, "sales/1"),
        (['0:{"topic":{"0":5}}'], {0: {0}}, None),
    ],
)
def test_logs_are_found_by_the_keys_of_an_offset_log_of_v2(
    sources: list[str], logs: dict[object, set[int]], lacks: str | None
) -> None:
    """Catches a lost log that is not missed, and one that is looked for in the wrong place."""
    entry = OffsetsEntry("v2", {}, tuple(sources))
    names = [f"sources/{log}/{number}" for log, numbers in logs.items() for number in numbers]
    if lacks is None:
        check_sources("file:/query", {7: entry}, names)
        return

    with pytest.raises(NotFoundError) as raised:
        check_sources("file:/query", {7: entry}, names)

    assert raised.value.fields["file"] == f"sources/{lacks}"
    assert raised.value.fields["told_by"] == "offsets/7"


@pytest.mark.parametrize(
    ("version", "source"), [("v1", ""), ("v2", "0:"), ("v2", "sales:")], ids=["v1", "v2", "named"]
)
def test_files_of_a_batch_are_known_while_its_entry_is_there(version: str, source: str) -> None:
    """Catches a batch that is repeated without its files, and one that is not repeated."""
    before, entry = (
        OffsetsEntry(version, {}, (f'{source}{{"logOffset":{number}}}',)) for number in (3, 5)
    )
    directory = f"sources/{source.rstrip(':') or 0}"

    assert has_input(before, entry, [f"{directory}/{number}" for number in range(6)])
    assert has_input(before, entry, [f"{directory}/{number}" for number in (4, 5)])
    assert not has_input(before, entry, [f"{directory}/{number}" for number in (3, "5.compact")])
