"""Every method of a state store, called directly, against Spark's own RocksDB provider."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statestore.codec.rows import Row
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import StateFile, describe_stream
from statestore.testing.deltas import write_stream

from .conftest import EXTENDED, OURS, PROVIDER
from .features import missing
from .harness import FILESYSTEM, HDFS, HEAP, ROCKSDB, ROCKSDB_BACKEND, STATE_STORE, open_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.needs("store-calls")

CASES = [
    pytest.param(PROVIDER, seed, id=str(seed), marks=[EXTENDED] if seed > 3 else [])
    for seed in (1, 2, 3, 4, 5, 6)
]
if OURS:
    CASES.append(pytest.param(HEAP, 7, id="heap-7"))
    CASES += [
        pytest.param(
            ROCKSDB_BACKEND, seed, id=f"rocksdb-{seed}", marks=[EXTENDED] if seed > 9 else []
        )
        for seed in (7, 8, 10, 11)
    ]


@pytest.mark.parametrize(("provider", "seed"), CASES)
@pytest.mark.few(3)
def test_calls_return_the_same_when_random(
    spark: SparkSession, tmp_path: Path, provider: str, seed: int
) -> None:
    """Column families, multi-values, scans, range deletes, retries, full states, restarts.

    Catches a row that is lost, stale or out of order, an iterator that sees later writes, and a row
    whose bytes the store did not copy.
    """
    compare_transcripts(spark, tmp_path, provider, seed)


@pytest.mark.ours
@pytest.mark.parametrize("seed", [12, pytest.param(13, marks=EXTENDED)])
def test_calls_return_the_same_when_commits_are_ssts(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Catches a row that the JVM's SST lacks or hides, locally or where only the storage has it.

    No row is cached: RocksDB answers every read of a committed row.
    """
    compare_transcripts(uncached(spark), tmp_path, ROCKSDB_BACKEND, seed, has_ssts=True)


def uncached(spark: SparkSession) -> SparkSession:
    """Return a session in which the rocksdb backend caches no row."""
    session = spark.newSession()
    session.conf.set(f"{STATE_STORE}.rocksdb.rowCacheBytes", "0")
    return session


def compare_transcripts(
    spark: SparkSession, directory: Path, provider: str, seed: int, *, has_ssts: bool = False
) -> None:
    """Assert that random calls return what they do on Spark's RocksDB provider.

    Args:
        has_ssts: Commits of the rocksdb backend are SSTs, of which every other provider knows
            nothing but what the storage holds.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    transcripts = []
    for used in (ROCKSDB, provider):
        root = elsewhere = directory / used
        if has_ssts:
            root.mkdir()
            elsewhere = directory / f"{used}-elsewhere"
            elsewhere.symlink_to(root)
        made = contract.transcript(
            spark._jsparkSession, f"file:{root}", f"file:{elsewhere}", used, seed, 25, has_ssts
        )
        transcripts.append(made.split("\n"))
    expected, candidate = transcripts

    assert "stale" not in candidate
    comparable = expected.index("stale") if "stale" in expected else len(expected)
    assert comparable > len(expected) / 2, "too little was called to prove anything"
    for number, wanted in enumerate(expected[:comparable]):
        assert candidate[number] == wanted, f"line {number}: {expected[number - 3 : number]}"


@pytest.mark.parametrize("provider", [PROVIDER, *([ROCKSDB_BACKEND] if OURS else [])])
def test_family_that_is_removed_and_made_anew_is_empty(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Catches rows of a dropped state variable that come back in the one that replaces it.

    Spark's own provider cannot replay such a batch, so it is no reference here.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.familyMadeAnew(spark._jsparkSession, f"file:{tmp_path}/state", provider)

    assert lines.split("\n") == [
        "values  false",
        "lists  false",
        "committed 1",
        "values a,b true",
        "values  false",
        "lists a,b true",
        "lists  false",
        "committed 2",
        "values c false",
        "lists c false",
        "committed 3",
    ]


@pytest.mark.ours
@pytest.mark.parametrize(
    ("provider", "built_in"), [(FILESYSTEM, HDFS), (HEAP, HDFS), (ROCKSDB_BACKEND, ROCKSDB)]
)
def test_version_that_is_not_there_is_refused_as_built_in(
    spark: SparkSession, tmp_path: Path, provider: str, built_in: str
) -> None:
    """Catches an error that tools which match on Spark's conditions do not know."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    found, expected = (
        contract.missingVersion(spark._jsparkSession, f"file:{tmp_path}/{used}", used)
        for used in (provider, built_in)
    )

    condition, text = found.split("\n", 1)
    assert condition == expected.split("\n", 1)[0]
    assert text.startswith(f"[{condition}]")
    assert f"{tmp_path}/{provider}/0/0/7.delta." in text
    assert "does not exist" in text
    assert "[version-not-found]" in text
    assert "To fix: " in text


def test_zombie_is_told_when_its_version_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a batch built on rows that checkpoint format v1 no longer holds, and a view that goes
    on showing them after the error.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.twoAttempts(spark._jsparkSession, f"file:{tmp_path}/state", PROVIDER, 1)

    *before, zombie, after = lines.split("\n")
    assert before == ["found - committed 1", "found base committed 2", "found base committed 2"]
    # The driver knows of no such run: it may have let go of the view before it is used again.
    assert zombie in ("found zombie committed -", "found task committed 3")
    assert after == "found task committed 3"


def test_zombie_and_task_are_kept_apart_when_format_is_v2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches an attempt that overwrites, or reads, the other one's version."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.twoAttempts(spark._jsparkSession, f"file:{tmp_path}/state", PROVIDER, 2)

    assert lines.split("\n") == [
        "found - committed 1",
        "found base committed 2",
        "found base committed 2",
        "found zombie committed 3",
        "found task committed 3",
    ]


@pytest.mark.ours
def test_store_with_a_row_of_another_partition_is_marked(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a checkpoint that is rescaled by key groups which are not where Spark looks for them,
    and a mark that a restart, or a later commit, takes away.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    marks = contract.misplacedRow(spark._jsparkSession, f"file:{tmp_path}", FILESYSTEM)

    assert marks == "0 1 1"
    deltas = [StateFile(f"{tmp_path}/0/0/{version}.delta.arrows") for version in (1, 2, 3)]
    assert [delta.trailer.rescalable for delta in deltas] == [True, False, False]


@pytest.mark.ours
@pytest.mark.parametrize("provider", [FILESYSTEM, HEAP, ROCKSDB_BACKEND])
def test_store_reads_on_when_its_provider_is_closed(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Catches a zombie task that crashes in the view of a closed provider, or writes a version."""
    session = uncached(spark)
    contract = session._jvm.io.statestore.testing.StoreContract
    lines = contract.closedUnderATask(session._jsparkSession, f"file:{tmp_path}/state", provider)

    assert lines.split("\n") == [
        "scan a=base b=own",
        "get base false",
        "iterator a=base b=own",
        "put IllegalStateException",
        "remove IllegalStateException",
        "commit IllegalStateException",
        "getStore CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
        "next a=base b=base",
    ]


@pytest.mark.ours
def test_rows_of_files_in_many_blocks_are_all_loaded(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a load that ends with the first block of a file, and a block that is read twice."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    root = f"file:{tmp_path}/state"
    expected = {f"k{n:02}": f"first{n}" for n in range(50)}
    batches = [dict(expected), {f"k{n:02}": f"next{n}" if n % 4 else None for n in range(0, 50, 2)}]

    for version, batch in enumerate(batches):
        words = " ".join(key if value is None else f"{key}={value}" for key, value in batch.items())
        contract.commitRows(spark._jsparkSession, root, FILESYSTEM, version, words)
        cut_into_blocks(tmp_path / f"state/0/0/{version + 1}.delta.arrows", block_rows=3)
        expected |= batch
    found = contract.rowsOf(spark._jsparkSession, root, FILESYSTEM, len(batches))

    assert found.split(" ") == [f"{key}={value}" for key, value in expected.items() if value]


def cut_into_blocks(path: Path, block_rows: int) -> None:
    """Write a state file anew, in blocks of so many rows."""
    file = StateFile(str(path))
    trailer = file.trailer
    rows = [
        Row(row["key_group"], row["column_family"], row["op"], row["key"], row["value"])
        for index in range(file.num_batches)
        for row in file.batch(index).to_pylist()
    ]
    path.unlink()
    length = write_stream(str(path), rows, trailer.max_parallelism, block_rows=block_rows)
    blocks = describe_stream(str(path), length, trailer.max_parallelism)
    append_trailer(str(path), replace(trailer, blocks=blocks))


@pytest.mark.ours
@pytest.mark.parametrize("provider", [FILESYSTEM, HEAP, ROCKSDB_BACKEND])
def test_stores_that_are_open_side_by_side_show_their_own_versions(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Catches a view that is changed, or rolled back, under a store that reads it; a read store of
    another version, or one that has ended, that becomes the write store; and an abort that undoes a
    commit.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    lines = contract.storesSideBySide(spark._jsparkSession, f"file:{tmp_path}/state", provider)

    def committed(version: int) -> list[str]:
        return [f"committed {version}", f"then aborted true {version}"]

    assert lines.split("\n") == [
        *(line for version in range(1, 22) for line in committed(version)),
        "read meanwhile a=one",
        *committed(22),
        "the version before a=v20, this one a=now",
        "still a=now",
        "of another version 21 a=v20",
        "of one that has ended a=last 23",
    ]


@pytest.mark.ours
def test_store_that_outlives_its_provider_leaves_nothing_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a zombie task whose reads open a store in the engine that nobody closes."""
    session = uncached(spark)
    shim = session._jvm.io.statestore

    def views_asked_for() -> int:
        counts = shim.engine.Engines.callCounts()
        return int(counts.apply("view")) if counts.contains("view") else 0

    root = f"file:{tmp_path}/state"
    open_before, asked_before = open_stores(session), views_asked_for()
    found = shim.testing.StoreContract.readBehindTheEnd(
        session._jsparkSession, root, ROCKSDB_BACKEND
    )

    assert found == "a=base"
    assert views_asked_for() > asked_before, "nothing had to be opened"
    assert open_stores(session) == open_before


@pytest.mark.ours
@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND])
def test_change_feed_equals_built_in(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    """Catches a change of a named family that is lost, or a list without its later values."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    expected, found = (
        contract.changes(spark._jsparkSession, f"file:{tmp_path}/{used}", used).split("\n")
        for used in (ROCKSDB, provider)
    )
    if missing("feed-of-lists"):
        found, expected = (
            [line for line in lines if not line.startswith("lists ")] for lines in (found, expected)
        )

    assert found == expected


@pytest.mark.ours
@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND])
def test_change_feed_has_no_rows_of_a_column_family_that_was_removed(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Catches rows of a removed state variable that are shown as rows of a new one, which has its
    ID: decoded by the new one's schema, some of them beyond the end of the row.
    """
    contract = spark._jvm.io.statestore.testing.StoreContract
    feeds = contract.changesOfRemoved(spark._jsparkSession, f"file:{tmp_path}/state", provider)

    assert feeds.split("\n") == [
        "new 1: 2 b put_record 7, 3 b delete_record -",
        "new 3: 2 b put_record 7, 3 b delete_record -",
        "old 1: ",
    ]


@pytest.mark.ours
def test_store_that_could_not_be_committed_is_not_opened(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a batch that is written first, and then called a damaged file."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    root = f"file:{tmp_path}/state"
    stores = contract.storesThatAreNot(spark._jsparkSession, root, PROVIDER).split("\n")

    assert stores[0] == "0 0 opened"
    for line, named in zip(stores[1:], ("part=1", "part=-1", "op=-1"), strict=True):
        assert "IllegalArgumentException [invalid-argument] there is no such state store" in line
        assert named in line


def test_refused_calls_are_those_of_the_built_in(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a wrong call that is taken, or refused by another error than Spark has for it."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    expected, found = (
        dict(line.split(": ") for line in transcript.split("\n"))
        for transcript in (
            contract.refusals(spark._jsparkSession, f"file:{tmp_path}/{used}", used)
            for used in (ROCKSDB, PROVIDER)
        )
    )

    assert found.keys() == expected.keys()
    java = {"IllegalArgumentException", "IllegalStateException"}
    for call, wanted in expected.items():
        # Where Spark has no condition for it ours may be the one of an unsupported operation.
        allowed = {*java, "STATE_STORE_UNSUPPORTED_OPERATION"} if wanted in java else {wanted}
        assert found[call] in allowed, call


@pytest.mark.ours
def test_read_store_refuses_to_write(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a write that is taken by a store which no task commits."""
    contract = spark._jvm.io.statestore.testing.StoreContract
    root = f"file:{tmp_path}/state"
    lines = contract.writesToReadStore(spark._jsparkSession, root, PROVIDER).split("\n")

    assert lines == [
        f"{call}: STATE_STORE_UNSUPPORTED_OPERATION" for call in ("put", "remove", "commit")
    ]
