"""Advice: each rule speaks where it should, and nowhere else."""

import re
from dataclasses import replace

import pytest

from statestore.codec.commit_times import CommitTimes, MemoryUse
from statestore.codec.references import StoreName
from statestore.operations.upkeep.query_info import QueryInfo
from statestore.operations.upkeep.survey import VersionInfo
from statestore.operations.upkeep.verification import Finding
from statestore.report.advice import advise
from statestore.report.facts import Facts, PartitionFacts, Spread, StoreFacts


def partition(number, rows, *, num_files=5, full_bytes=None, num_taken_over=0):
    """A store in one state partition."""
    return PartitionFacts(
        partition=number,
        num_rows=rows,
        own_bytes=10,
        full_bytes=50 * rows if full_bytes is None else full_bytes,
        num_files=num_files,
        restore_ms=(rows or 0) / 500,
        num_commits=0,
        write_ms=None,
        checksum_ms=None,
        publish_ms=None,
        sync_ms=None,
        commit_ms=None,
        num_taken_over=num_taken_over,
    )


def facts(*partitions, key_groups=None, max_parallelism=128, rescalable=True, **changed):
    """The facts of a checkpoint with one store, in these state partitions."""
    rows = [part.num_rows for part in partitions]
    num_rows = None if None in rows else sum(rows)
    full_bytes = sum(part.full_bytes for part in partitions)
    store = StoreFacts(
        operator=0,
        operator_name="stateStoreSave",
        name="default",
        variables=(),
        num_partitions=len(partitions),
        max_parallelism=max_parallelism,
        rescalable=rescalable,
        num_rows=num_rows,
        full_bytes=full_bytes,
        partitions=partitions,
        spreads={"num_rows": Spread.of(rows)},
        key_groups=key_groups,
        heaviest=(),
        hottest=(),
    )
    newest = VersionInfo(
        version=7,
        batch=6,
        kind="incremental",
        made_by=None,
        num_partitions=len(partitions),
        num_stores=len(partitions),
        num_rows=num_rows,
        incremental_bytes=10,
        full_bytes=full_bytes,
        num_snapshots=0,
        snapshot_bytes=0,
        committed_ms=1,
        commit=None,
        problem=None,
    )
    made = Facts(
        uri="/ck",
        backend="filesystem",
        made_ms=2,
        query=QUERY,
        num_partitions=len(partitions),
        newest_version=7,
        stored_bytes=2 * full_bytes,
        versions=(newest,),
        stores=(store,),
        pinned_versions=(),
        findings=(),
    )
    return replace(made, **changed)


QUERY = QueryInfo(
    uri="/ck",
    looked_ms=2,
    query_id=None,
    name=None,
    is_running=False,
    operation=None,
    newest_version=7,
    uncommitted_batch=None,
    planned_ms=None,
    committed_ms=None,
    batch_ms=None,
    watermark_ms=None,
    lag_ms=None,
    position=None,
    rates=None,
)


def even(num, rows, **arguments):
    """State partitions of equal size."""
    return facts(*(partition(number, rows) for number in range(num)), **arguments)


def told(found):
    """Kinds and commands."""
    return [(advice.kind, advice.command) for advice in advise(found)]


@pytest.mark.parametrize(("num", "rows"), [(1, 10), (4, 500), (8, 2_000), (4, 4_000_000)])
def test_nothing_is_said_where_all_is_well(num, rows):
    """Catches advice that everybody gets, and nobody reads any more."""
    assert told(even(num, rows)) == []


def test_large_state_partitions_are_divided():
    """Catches a rescale that the key groups do not allow, or one of a checkpoint that has none."""
    more = [("partitions-too-large", "statestore rescale /ck --num-partitions 8")]
    assert told(even(4, 6_000_000)) == more
    wide = facts(*(partition(number, 10, full_bytes=2 << 30) for number in range(4)))
    assert told(wide) == more
    assert told(even(4, 6_000_000, max_parallelism=4)) == []
    assert told(even(4, 6_000_000, rescalable=False)) == []
    assert told(even(64, 1, rescalable=False)) == []
    assert told(even(4, 6_000_000, backend="spark-rocksdb")) == []
    assert told(even(4, 6_000_000, backend="heap")) == []


def test_files_of_a_rescale_are_no_reason_for_another():
    """Catches a page that orders the same rescale again when it is done.

    Each new state partition reads some rows of files that are as large as before.
    """
    after = [partition(number, 10, full_bytes=2 << 30, num_taken_over=3) for number in range(8)]
    assert told(facts(*after)) == []
    large = replace(after[0], num_rows=6_000_000)
    (advice,) = advise(facts(large, *after[1:]))
    assert advice.kind == "partitions-too-large"
    assert "is large: 6,000,000 rows. " in advice.text


def test_rows_that_are_not_counted_are_not_called_none():
    """Catches a state partition that has 0 rows and a gigabyte."""
    parts = [partition(number, None, full_bytes=2 << 30) for number in range(4)]
    uncounted = facts(*parts)
    store = replace(uncounted.stores[0], spreads={})
    (advice,) = advise(replace(uncounted, stores=(store,)))
    assert advice.kind == "partitions-too-large"
    assert "is large: 2.1 GB, rows not counted. " in advice.text


def test_advice_can_be_pasted():
    """Catches a space in a path that makes two arguments of one."""
    ((_, command),) = told(even(4, 6_000_000, uri="/my ck"))
    assert command == "statestore rescale '/my ck' --num-partitions 8"


def test_small_state_partitions_are_put_together_until_they_are_not_small():
    """Catches advice to go from too many to too few."""
    assert told(even(64, 500)) == [
        ("partitions-too-small", "statestore rescale /ck --num-partitions 32")
    ]
    assert told(even(64, 1)) == [
        ("partitions-too-small", "statestore rescale /ck --num-partitions 2")
    ]


def test_small_stores_are_no_reason_where_others_are_not():
    """Catches a rescale for one store that makes the state partitions of another too large."""
    large, small = (even(8, rows).stores[0] for rows in (6_000_000, 3))
    medium = even(8, 999).stores[0]
    parts = tuple(replace(part, num_rows=None) for part in small.partitions)
    unknown = replace(small, num_rows=None, partitions=parts)

    more = ("partitions-too-large", "statestore rescale /ck --num-partitions 16")
    assert told(even(8, 3, stores=(large, small))) == [more]
    assert told(even(8, 3, stores=(small, medium))) == []
    assert told(even(8, 3, stores=(small, unknown))) == []
    fewer = ("partitions-too-small", "statestore rescale /ck --num-partitions 2")
    assert told(even(8, 3, stores=(small, small))) == [fewer]
    assert "has 48 rows in 8 state" in advise(even(8, 3, stores=(small, small)))[0].text


def test_skew_is_told_apart_by_whether_a_rescale_helps():
    """Catches a rescale that moves a hot key from one state partition to another."""
    parts = [partition(number, rows) for number, rows in enumerate((5_000, 5_000, 5_000, 40_000))]
    small = (5_000 // 4,) * 4
    spread = facts(*parts, key_groups=(small, small, small, (10_000,) * 4))
    hot = facts(*parts, key_groups=(small, small, small, (39_000, 400, 300, 300)))

    assert told(spread) == [("skew", "statestore rescale /ck --num-partitions 8")]
    assert "would have 20,000 rows" in advise(spread)[0].text
    assert told(hot) == [("hot-key", "statestore inspect /ck --rows 0 --key-groups")]
    assert told(replace(spread, stores=(replace(spread.stores[0], key_groups=None),))) == []


def test_hot_key_is_told_where_most_state_partitions_are_empty():
    """Catches a median of 0 that hides the worst skew there is."""
    parts = [partition(number, rows) for number, rows in enumerate((1_000_000, *[0] * 7))]
    hot = facts(*parts, key_groups=((999_000, 1_000), *[(0, 0)] * 7))

    assert told(hot) == [("hot-key", "statestore inspect /ck --rows 0 --key-groups")]
    assert "has 1,000,000 rows, while most have none. Most of" in advise(hot)[0].text
    assert told(facts(*[partition(number, 0) for number in range(2)], key_groups=((0,),) * 2)) == []


def test_long_chains_retention_and_a_slow_disk_are_named():
    """Catches a rule that looks at the wrong number."""
    chained = facts(partition(0, 100, num_files=1_000), partition(1, 100))
    assert [kind for kind, _ in told(chained)] == ["long-chains"]

    kept = even(4, 500, stored_bytes=21 * 4 * 500 * 50)
    assert told(kept) == [("retention", "statestore expire /ck --keep 10")]

    for sync_ms, kinds in ((90.0, ["slow-disk"]), (30.0, [])):
        commit = CommitTimes(write_ms=10.0, publish_ms=95.0, sync_ms=sync_ms, committed_ms=1)
        version = replace(even(4, 500).versions[0], commit=commit)
        assert [kind for kind, _ in told(even(4, 500, versions=(version,)))] == kinds


@pytest.mark.parametrize(
    ("backend", "num_taken_over", "words", "command"),
    [
        ("filesystem", 0, "snapshots do not keep up: .*snapshot.maxChainLength lower", None),
        ("rocksdb", 0, "merges do not keep up: .*rocksdb.mergeMinFiles lower", None),
        ("filesystem", 99, "The next snapshots", "statestore compact /ck --yes"),
        ("rocksdb", 99, "The next merges", "statestore compact /ck --yes"),
        ("filesystem", 9, "snapshots do not keep up", None),
    ],
)
def test_long_chains_are_explained_by_what_made_them(backend, num_taken_over, words, command):
    """Catches an option that the backend does not read, and blame for what a rescale did."""
    chained = partition(0, 100, num_files=100, num_taken_over=num_taken_over)
    (advice,) = advise(facts(chained, partition(1, 100), backend=backend))
    assert advice.kind == "long-chains"
    assert re.search(words, advice.text)
    assert advice.command == command


@pytest.mark.parametrize(
    ("engine", "taken", "backend", "words"),
    [
        (100, 900, "rocksdb", None),
        (100, 901, "rocksdb", "Give executors more"),
        (600, 950, "rocksdb", "rocksdb.memoryBytes lower"),
        (600, 950, "filesystem", "Give executors more"),
    ],
)
def test_memory_near_the_limit_is_named_with_what_helps(engine, taken, backend, words):
    """Catches an executor that is killed at the next large batch, without a word before."""
    full = replace(partition(0, 10), memory=MemoryUse(engine, taken, 1_000))
    free = replace(partition(1, 10), memory=MemoryUse(999, 999, 100_000))
    found = advise(facts(full, free, backend=backend))
    assert [advice.kind for advice in found] == (["engine-memory"] if words else [])
    assert words is None or words in found[0].text


def test_damage_comes_first():
    """Catches a page that talks of speed while rows are at stake."""
    finding = Finding(7, StoreName(0, 1), "checksum-mismatch", "damaged")
    for is_recoverable, to_fix, command in (
        (False, "statestore repair /ck says which version can be read", "statestore repair /ck"),
        (False, "put the files back from a copy", None),
        (True, "a later snapshot takes the place", "statestore verify /ck --deep"),
        (True, "see what statestore repair /ck takes back", "statestore repair /ck"),
    ):
        findings = (replace(finding, is_recoverable=is_recoverable),)
        found = even(64, 1, findings=findings, to_fix=to_fix)
        assert told(found)[0] == ("damage", command)
        assert to_fix in advise(found)[0].text
        assert len(told(found)) == 2


@pytest.mark.parametrize("classes", [1, 2])
def test_no_key_is_called_hot_where_classes_cannot_tell(classes):
    """Catches the word that no number of state partitions helps, where twice as many do.

    A rescale to 32 times as many state partitions leaves two classes of key groups in each.
    """
    parts = [partition(number, 12_000 if number == 0 else 5_000) for number in range(4)]
    large = (12_000,) if classes == 1 else (6_010, 5_990)
    small = (5_000,) if classes == 1 else (2_500, 2_500)
    (advice,) = advise(facts(*parts, key_groups=(large, *[small] * 3)))
    assert advice.kind == "skew"
    assert ("would have" in advice.text) == (classes > 1)
    # Of one key group each, they can.
    (advice,) = advise(facts(*parts, key_groups=(large, *[small] * 3), max_parallelism=4 * classes))
    assert advice.kind == "hot-key"
