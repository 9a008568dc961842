"""The shim's view, row cache, writers and questions: random operations and a model, in a JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pytest

from statestore.codec.rows import DELETE, PUT
from statestore.codec.state_file import describe_stream
from statestore.io.shim_jar import find_jar
from tests.cases_of_ci import IS_LONG
from tests.own_disk import small_disk
from tests.spark.helper_jar import cached_jar
from tools.scala import SPARK_JARS

CHECKS = Path(__file__).resolve().parents[2] / "jvm-shim/src/test/scala/io/statestore"
BATCHES = 300 if IS_LONG else 120
BATCHES_OF_ROCKSDB = 300 if IS_LONG else 100
BATCHES_OF_A_CACHE = 150 if IS_LONG else 40
READS_OF_A_READER = 100_000 if IS_LONG else 20_000
LIVES_OF_AN_INDEX = 3_000 if IS_LONG else 400
JVM_FLAGS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "java.lang", "sun.nio.ch")
)


@pytest.fixture(scope="module")
def classes() -> Path:
    """The checks compiled against the shim jar."""
    return cached_jar("checks", sorted(CHECKS.glob("*/*.scala")), [find_jar()], flags=())


@pytest.mark.timeout(240)
def test_view_equals_model_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Puts, removes, merges, open scans, commits, roll-backs, spills and compaction lose no row.

    Catches also a row that was handed out and is overwritten.
    """
    counts = run(classes, "view.ViewModelCheck", pytestconfig, BATCHES, "heap")

    assert int(counts["rollBacks"]) > 10, "the run proved nothing about roll-backs"
    assert int(counts["spilledRuns"]) > 0, "the run proved nothing about spilling"
    assert int(counts["compactions"]) > 0, "the run proved nothing about replaced records"
    assert int(counts["adopted"]) > 0, "the run proved nothing about records that are taken over"
    assert int(counts["forgotten"]) > 100, "the run proved nothing about rows that come and go"
    assert int(counts["closed"]) > 30, "the run proved nothing about scans that are cut short"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["heapOutside", "rocksdbOutside"])
def test_view_outside_of_the_heap_equals_model_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config, kind: str
) -> None:
    """Catches a row of memory that was freed, whose bytes are others at once, and a page that is
    never freed.
    """
    counts = run(classes, "view.ViewModelCheck", pytestconfig, BATCHES_OF_ROCKSDB, kind)

    assert int(counts["rollBacks"]) > 10, "the run proved nothing about roll-backs"
    # At most at once; what fits into one page of 256 KiB is on the heap.
    assert int(counts["outsideBytes"]) > 1 << 18, "no page was outside of the heap"
    assert int(counts["leftBytes"]) == 0


@pytest.mark.timeout(240)
def test_view_of_rocksdb_equals_model_when_it_reads_an_older_version(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches a recent row that is missing, stale or shown twice, and one of another partition."""
    counts = run(classes, "view.ViewModelCheck", pytestconfig, BATCHES_OF_ROCKSDB, "rocksdb")

    assert int(counts["rollBacks"]) > 5, "the run proved nothing about roll-backs"
    assert int(counts["opened"]) > 10, "few versions were opened"
    assert int(counts["followed"]) > 10, "few versions were read with the recent rows"


@pytest.mark.timeout(240)
def test_readers_of_one_view_do_not_disturb_each_other(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches a scan that begins where that of another task was to begin, and a row of another key.

    Tasks that take up one version at once, as two actions of a `foreachBatch` do, share its view.
    """
    counts = run(classes, "view.ViewReadersCheck", pytestconfig, READS_OF_A_READER)

    assert int(counts["readers"]) > 1
    assert int(counts["shown"]) > 100_000, "the run proved nothing about scans with rows"


@pytest.mark.timeout(240)
def test_memory_of_a_view_goes_by_its_rows(classes: Path) -> None:
    """Catches the space of replaced rows that is neither used again nor given up.

    A view holds its rows, those that the last batch replaced, and no more than a third beside. Its
    index does not stay as large as for rows that have gone.
    """
    shown, index = run_java(classes, "view.ViewMemoryCheck").splitlines()

    held = {name: int(percent) for name, percent in (pair.split("=") for pair in shown.split())}
    assert len(held) == 4
    assert max(held.values()) <= 300, held
    assert int(index) < 1000


@pytest.mark.timeout(240)
def test_ordered_index_equals_a_sorted_map_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches a row that a scan by prefix or range leaves out, shows twice, or out of order.

    Keys begin alike or not, and a bound may be on either side of all of them.
    """
    counts = run(classes, "view.SortedAddressesCheck", pytestconfig, LIVES_OF_AN_INDEX)

    assert int(counts["most"]) > 2_000, "no index had several blocks"
    assert int(counts["shown"]) > 100_000, "the run proved nothing about ranges with rows"
    assert int(counts["outside"]) > 1_000, "the run proved nothing about bounds outside of all keys"
    assert int(counts["late"]) > 100_000, "the run proved nothing about ranges that are read late"


@pytest.mark.timeout(240)
def test_a_row_with_timers_costs_the_same_late_in_a_batch(classes: Path) -> None:
    """Catches a scan over all timers that were replaced or fired, and memory that goes by rows.

    Each row deletes a timer, registers one and asks which are due.
    """
    lines = run_java(classes, "view.TimersCheck", "20000", "80000").splitlines()

    counts = [dict(pair.split("=") for pair in line.split()) for line in lines]
    assert all(count["wrong"] == "0" for count in counts), lines
    for kind in ("everyTimer", "fromTheLast", "committed"):
        few, many = (count for count in counts if count["kind"] == kind)
        assert int(many["nanos"]) < 2 * int(few["nanos"]), lines
        if kind != "committed":  # there each row is of another key
            assert int(many["heldBytes"]) < 1.5 * int(few["heldBytes"]), lines


@pytest.mark.timeout(240)
def test_row_cache_equals_model_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches a stale row, a row that is said to be absent, and a shown row that is overwritten.

    Outside of the heap also memory that is never freed, as after a read that fails half-way.
    """
    counts = run(classes, "rocksdb.RowCacheCheck", pytestconfig, BATCHES_OF_A_CACHE)

    for name in ("misses", "absents", "hits", "wholes"):
        assert int(counts[name]) > 100, f"the run proved nothing about {name}"
    assert int(counts["loads"]) > 10, "the run proved nothing about caches that read all rows"
    assert int(counts["outgrown"]) > 10, "the run proved nothing about caches that lose all rows"
    assert int(counts["unread"]) > 10, "the run proved nothing about reads that fail"
    assert int(counts["left"]) == 0


@pytest.mark.timeout(240)
def test_row_cache_outside_of_the_heap_takes_what_its_rows_need(classes: Path) -> None:
    """Catches lists that grow into ever more memory, and a read in vain that holds memory or fails.

    A cache holds its rows, those that the last batch replaced, and no more than a third beside.
    """
    shown = run_java(classes, "rocksdb.RowCacheMemoryCheck")

    found = dict(line.split("=") for line in shown.splitlines())
    assert int(found["percent"]) <= 300, found
    assert found["unaddressable"] == "tooMany:true,all:false,closed:1"
    assert found["unreadable"] == "unreadable,all:false,closed:1"
    assert int(found["left"]) == 0


@pytest.mark.timeout(240)
def test_compaction_leaves_nothing_to_do_for_the_next(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches rows of a size of which few fit into a page, all of them moved with every batch."""
    seed = str(int(pytestconfig.getoption("randomly_seed", default=1)) % 1_000_000)
    shown = run_java(classes, "view.CompactionCheck", seed)

    counts = dict(pair.split("=") for pair in shown.split() if "=" in pair)
    assert 2 * int(counts["compacted"]) > int(counts["of"]), "few runs were compacted"


@pytest.mark.timeout(240)
def test_overlays_share_one_budget(classes: Path) -> None:
    """Catches a bound that every open store has for itself, and a share that is never given back.

    The overlay records of 8 stores that are written side by side stay within 8 MiB and a page each;
    the last one that is open has all of it. Those that one task writes in turn stay within 8 MiB
    too, and 1 MiB each.
    """
    shown = run_java(classes, "view.OverlayBudgetCheck")

    assert shown.strip() == "ok"


@pytest.mark.timeout(240)
def test_list_that_is_read_while_rows_are_appended_holds_them_once(classes: Path) -> None:
    """Catches a copy of the list for each row that is appended behind a read or an open scan.

    The room that a list has to grow counts: up to as many bytes as it holds. What an overlay says
    that it holds is what `overlay.maxBytes` goes by.
    """
    lines = run_java(classes, "view.ListHeapCheck", "held").splitlines()

    assert len(lines) == 9
    for line in lines:
        name, *counts = line.split()
        held, counted, payload = (int(count.partition("=")[2]) for count in counts)
        assert held <= 2 * payload, line
        assert 0.8 * held <= counted <= 2 * payload, (name, line)


@pytest.mark.timeout(240)
def test_memory_goes_by_the_keys_and_not_by_the_puts(classes: Path) -> None:
    """Catches a batch of minutes that fills the heap with rows that were put anew.

    A row that a scan may show is not overwritten; what it was replaced by is dropped in time.
    """
    lines = run_java(classes, "view.ListHeapCheck", "values").splitlines()

    held = {}
    for line in lines:
        name, *counts = line.split()
        counted, payload = (int(count.partition("=")[2]) for count in counts)
        held[name] = counted / payload
    assert held["nothingRead"] == held["olderRowRead"] == held["rowRead"] < 0.01, lines
    assert held["mapScanned"] < 0.3, lines


@pytest.mark.timeout(240)
def test_list_longer_than_the_budget_is_spilled_as_it_grows(classes: Path) -> None:
    """Catches appends that the budget does not see, and a spill that writes all of a list again."""
    budget = 4 << 20
    shown = run_java(classes, "view.ListHeapCheck", "budget", str(budget))

    most, scratch, payload = (int(count.partition("=")[2]) for count in shown.split())
    assert payload > 19 * budget
    assert most <= 3 * budget, shown
    assert scratch <= 60, shown


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("budget", "value_bytes"), [(32 << 20, 1), (128 << 20, 600)])
def test_many_lists_are_spilled_in_a_time_that_goes_by_their_number(
    classes: Path, budget: int, value_bytes: int
) -> None:
    """Catches a spill that goes over all lists for each of them: a task that is silent for minutes.

    A short list is spilled with its record, a long one by itself. Nothing is timed: that it ends
    says it. Such a spill takes longer than a check may.
    """
    arguments = (str(budget), "400000", "1", str(value_bytes))
    shown = run_java(classes, "view.ListHeapCheck", "many", *arguments)

    counts = dict(pair.split("=") for pair in shown.split())
    assert int(counts["runs"]) > 0, "the run proved nothing about spilling"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("lists", "rows"), [(100_000, 1), (5_000, 40)])
def test_lists_that_were_spilled_are_off_the_heap(classes: Path, lists: int, rows: int) -> None:
    """Catches what each list keeps on the heap once its bytes are on disk: with millions of short
    lists more than the budget, which does not see it.

    What is left goes by the keys: their index and order, at most 40 bytes each.
    """
    budget = 2 << 20
    for overlay_bytes in (1 << 40, budget):
        arguments = (str(overlay_bytes), str(lists), str(rows), "1")
        shown = run_java(classes, "view.ListHeapCheck", "many", *arguments)
        held, counted, runs = (int(pair.partition("=")[2]) for pair in shown.split())
        assert 0.8 * held <= counted <= 1.25 * held, shown

    assert runs > 1, "the run proved nothing about spilling"
    assert held <= 1.5 * budget + 40 * lists, shown


@pytest.mark.timeout(240)
def test_memory_that_was_freed_is_there_again_whatever_its_sizes(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches rows that are refused because what was freed is in pieces of another size."""
    seed = int(pytestconfig.getoption("randomly_seed", default=1)) % 1_000_000
    counts, refusal = run_java(classes, "view.OffHeapMemoryCheck", str(seed), "100").splitlines()

    assert re.fullmatch(r"refused=0 waited=[1-9]\d*", counts)
    assert "NoMemoryException: [state-too-large]" in refusal
    assert "room=65536" in refusal


@pytest.mark.timeout(240)
def test_more_rows_than_can_be_addressed_are_refused_by_name(classes: Path) -> None:
    """Catches a task that fails with nothing but "requirement failed", a key that is a delete for
    its length, and a list that is committed and can never be loaded."""
    shown = run_java(classes, "view.FullPagesCheck")

    rows, key, *lists = shown.splitlines()
    assert "NoAddressException: [state-too-large]" in rows
    assert "statestore restore CHECKPOINT NEW --num-partitions" in rows
    assert "NoAddressException: [state-too-large]" in key
    assert "key_bytes=268435456" in key
    assert len(lists) == 2
    for refused in lists:
        assert "NoAddressException: [state-too-large]" in refused
        assert "column_family=bids, key_bytes=8, value_bytes=2147483647" in refused


@pytest.mark.timeout(240)
def test_spill_without_space_is_a_named_error_and_loses_no_row(
    classes: Path, tmp_path: Path
) -> None:
    """Catches an executor that ends, or forgets rows, when its local disk is full.

    And a commit of what was half spilled, where the user's function took the error for its own.
    """
    shown = run_java(classes, "view.SpillCheck", str(tmp_path), max_file_bytes=1 << 18)

    failure, counts, commit = shown.splitlines()
    assert commit == failure.replace("failure=", "commit=")
    assert "LocalDiskException: [storage-full] cannot spill state: path=" in failure
    assert "free space on the local disk" in failure
    put, kept = (int(pair.partition("=")[2]) for pair in counts.split())
    assert 0 < put == kept
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(240)
def test_view_that_needs_more_files_than_may_be_open_is_not_damaged(
    classes: Path, tmp_path: Path
) -> None:
    """Catches all state fetched anew for a limit of the machine, at each attempt."""
    shown = run_java(classes, "rocksdb.OpenFilesCheck", str(tmp_path), max_open_files=1000)

    assert "Too many open files" in shown
    assert "OpenFilesException" in shown
    assert "raise the limit of open files" in shown


@pytest.mark.timeout(240)
def test_scans_that_are_left_half_way_hold_few_iterators_of_rocksdb(
    classes: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Catches memory that goes by the keys of a batch, each of which was asked whether it has rows.

    Also a row that such a scan leaves out when it is read on, or shows twice. A scan of a damaged
    file fails again when it is asked again: before, that ended the JVM.
    """
    seed = str(int(pytestconfig.getoption("randomly_seed", default=1)) % 1_000_000)
    shown = run_java(classes, "rocksdb.OpenScansCheck", str(tmp_path), seed).splitlines()

    half_way, read_on, in_turns, *damaged = shown
    assert half_way == "held=64 rows=row1"
    assert read_on == "row2end row2end"
    counts = {name: int(count) for name, count in (pair.split("=") for pair in in_turns.split())}
    assert counts["held"] <= 68
    assert counts["shown"] > 50_000, "the run proved nothing about rows"
    assert len(damaged) == 2
    assert all("DamagedViewException" in raised for raised in damaged), damaged


@pytest.mark.timeout(240)
def test_rows_that_do_not_fit_outside_of_the_heap_are_not_loaded_by_every_scan(
    classes: Path, tmp_path: Path
) -> None:
    """Catches every batch that reads all rows twice, and takes the memory of others, in vain.

    And few rows that are never loaded, since there are many in another column family.
    """
    shown = run_java(classes, "rocksdb.LoadsInVainCheck", str(tmp_path))

    # Of 40 scans the first, and then one more when they have cost 2, 4, 8 and 16 times as much.
    kept = ["few=true", "after_lookups=true", "after_many=true"]
    assert shown.split() == ["loads=5", "loads=1", "large=1", *kept]


@pytest.mark.timeout(240)
def test_configuration_of_a_query_that_runs_is_not_forgotten(classes: Path) -> None:
    """Catches a query that cannot commit any more, since 256 others were looked at meanwhile."""
    forgotten, kept, readers, *own = run_java(classes, "engine.HadoopFilesCheck").splitlines()

    assert "belongs to no query of this JVM" in forgotten
    assert '"ok"' in kept
    assert "no.such.FileSystem" in readers
    assert len(own) == 1
    assert '"ok"' in own[0]


@pytest.mark.timeout(240)
def test_block_cache_is_one_for_an_executor(classes: Path) -> None:
    """Catches a block cache for each size that a query asks for: each stays until the JVM ends."""
    assert run_java(classes, "rocksdb.ReaderSettingsCheck").split() == ["true"]


@pytest.mark.timeout(240)
def test_space_of_a_spill_is_given_back_with_its_batch(classes: Path, tmp_path: Path) -> None:
    """Catches a local disk that fills with the files of former batches, and one that comes early.

    What a thread of an ended task may still read stays a while.
    """
    shown = run_java(classes, "view.SpillSpaceCheck", str(tmp_path))

    found = {name: int(number) for name, number in (pair.split("=") for pair in shown.split())}
    assert found["runs"] > 1
    assert found["before"] == found["kept"] >= found["runs"], found
    assert found["left"] == 0, found


@pytest.mark.timeout(240)
def test_local_disk_that_fails_names_its_cause(classes: Path, tmp_path: Path) -> None:
    """Catches "free space" for a directory that was removed, for a disk that is damaged and for a
    process that has no memory maps left, and an interruption that is a failure of the store.
    """
    shown = run_java(classes, "provider.LocalDiskCheck", str(tmp_path))

    *failures, gone, rocksdb_gone, interruptions = shown.splitlines()
    disk = "the local disk of the executor (spark.local.dir)"
    look, free = f"look at {disk}", f"free space on {disk}"
    limits = [
        f"on the machine of the executor raise {name}"
        for name in ("vm.max_map_count", "the limit of open files (ulimit -n)")
    ]
    told = [line.partition(". To fix: ")[2] for line in failures]
    assert told == [free, free, *limits, look, look]
    kinds = re.findall(r"LocalDiskException: \[(.*?)\] cannot write: path=", shown)
    assert kinds == ["storage-full"] * 2 + ["storage"] * 4
    for line in (gone, rocksdb_gone):
        assert f"the directory of the engines is gone: directory={tmp_path}/scratch. " in line
        assert "set spark.local.dir to a directory that nothing cleans" in line
    assert interruptions == "ClosedByInterruptException ClosedByInterruptException"


@pytest.mark.timeout(240)
def test_batch_on_a_full_disk_takes_the_place_of_closed_stores(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a query that fails for space which copies take that nobody needs, by its shim."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with small_disk(tmp_path, 96) as disk:
        shown = run_java(classes, "provider.RoomCheck", f"{tmp_path}/ck", str(disk))

    assert shown.split() == ["1", "1"]


@pytest.mark.timeout(240)
def test_full_disk_of_hadoop_is_told_as_such(classes: Path, tmp_path: Path) -> None:
    """Catches a connection without an answer where the disk is full: Hadoop raises an Error."""
    (tmp_path / "rows").write_bytes(bytes(1 << 20))

    shown = run_java(
        classes,
        "engine.FullHadoopDiskCheck",
        f"{tmp_path}/rows",
        f"{tmp_path}/published",
        max_file_bytes=1 << 14,
    )

    assert '"kind":"storage-full","reason":"FSError: ' in shown
    assert not (tmp_path / "published").exists()


@pytest.mark.timeout(240)
def test_lack_of_files_in_the_jvm_kills_no_engine(classes: Path, tmp_path: Path) -> None:
    """Catches a healthy engine that is killed, and none started, since the JVM opens no file."""
    root = Path(__file__).resolve().parents[2]
    shown = run_java(
        classes,
        "engine.ShortOfFilesCheck",
        sys.executable,
        str(root),
        str(tmp_path / "statestore-scratch-1"),
        max_open_files=1000,
    )

    called, started, after = shown.splitlines()
    assert "engine takes no new connection: engine=0, error=java.net.SocketException: " in called
    assert "Too many open files" in called
    assert re.search("engine cannot be started: .* error=.*To fix: on the machine of .*-n", started)
    assert after == "answered=true same=true"


@pytest.mark.timeout(240)
def test_call_that_ends_by_an_error_leaves_no_connection(classes: Path) -> None:
    """Catches a socket that is left open by each call that fails for want of memory or a fault."""
    shown = run_java(classes, "engine.EngineClientCheck")

    assert sorted(shown.splitlines()) == ["closed", "raised: NullPointerException"]


@pytest.mark.timeout(240)
def test_new_connection_waits_no_longer_than_its_call(classes: Path) -> None:
    """Catches a lease that lapses while an engine that hangs does not take the token.

    Also an engine that is taken for dead, and killed, when it has no thread for a new connection.
    """
    shown = run_java(classes, "engine.SilentEngineCheck")

    raised, told, closed = shown.splitlines()
    assert raised.endswith("EngineHungException: no sign of life within 500 ms")
    assert told == "in time"
    assert closed == "NoConnectionException"


@pytest.mark.timeout(240)
def test_task_killed_at_its_first_local_file_is_not_a_failure(
    classes: Path, tmp_path: Path
) -> None:
    """Catches local directories that "cannot be written", and those left by each such task."""
    shown = run_java(classes, "engine.ScratchDirectoryCheck", str(tmp_path))

    assert shown.splitlines() == ["FileLockInterruptionException"] * 2 + ["0"]


@pytest.mark.timeout(240)
def test_lease_that_begins_while_the_driver_is_asked_goes_on(classes: Path) -> None:
    """Catches a lease that is dropped since the driver does not name a run it was not asked of.

    And a session that is held until the JVM ends, since the first lease was of a query of it; and a
    lease that is renewed after a suspend, as if no operation could have begun meanwhile.
    """
    shown = run_java(classes, "provider.LeasesCheck")

    assert shown.splitlines() == ["first second", "0", "true true"]


@pytest.mark.timeout(240)
def test_driver_that_does_not_answer_in_time_is_one_that_cannot_be_reached(classes: Path) -> None:
    """Catches tasks that fail because a busy driver does not say whose stores they open."""
    shown = run_java(classes, "engine.SilentDriverCheck")

    answered, silent = shown.splitlines()
    assert answered == "Success(1)"
    assert silent.startswith("Failure(org.apache.spark.SparkException: the driver does not answer")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("writer", "max_file_bytes"), [("delta", 0), ("batch", None), ("sst", None)]
)
def test_writers_that_fail_hold_no_memory(
    classes: Path, tmp_path: Path, writer: str, max_file_bytes: int | None
) -> None:
    """Catches an executor that loses memory with every commit that lacks disk or memory."""
    shown = run_java(
        classes, "delta.WriterCheck", str(tmp_path), writer, max_file_bytes=max_file_bytes
    )

    assert shown.splitlines()[-1] == "failed=5 held=0"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("values", "size", "least", "most", "most_rows"),
    [("hashes", 32, 1.0, 1.3, 16_384), ("zeros", 300, 0.0, 0.05, (4 << 20) // 258)],
)
def test_values_are_compressed_where_that_makes_them_smaller(
    classes: Path,
    tmp_path: Path,
    values: str,
    size: int,
    least: float,
    most: float,
    most_rows: int,
) -> None:
    """Catches time that is spent on random bytes, a row that is lost so, and memory that is held.

    Also a block of more rows or bytes than a reader has room for, and one that shows what the block
    before it had: the value of a delete, a column family, a key group.
    `least` and `most`: bytes of the file, keys and offsets too, beside those of the values.
    """
    path, num_rows = tmp_path / "rows.arrows", 40_000
    shown = run_java(classes, "delta.CompressionCheck", str(path), values, str(num_rows))

    assert shown.splitlines()[-1] == "held=0"
    with pa.OSFile(str(path)) as file:
        table = ipc.open_stream(file).read_all()
    numbers = range(num_rows)
    keys = [number.to_bytes(8) for number in numbers]
    is_put = [number % 7 != 0 for number in numbers]
    expected = {
        "key_group": [number % 8 for number in numbers],
        "column_family": [number % 3 for number in numbers],
        "op": [PUT if has_value else DELETE for has_value in is_put],
        "key": keys,
        "value": [
            (sha256(key).digest() if values == "hashes" else bytes(size)) if has_value else None
            for key, has_value in zip(keys, is_put, strict=True)
        ],
    }
    assert [name for name in table.column_names if table[name].to_pylist() != expected[name]] == []
    blocks = [block.num_rows for block in table.to_batches()]
    assert 0.9 * most_rows <= max(blocks) <= most_rows
    assert min(blocks[:-1]) >= 0.9 * most_rows, "a block is written before it is full"
    assert least <= path.stat().st_size / (sum(is_put) * size) <= most


def test_long_value_of_one_byte_is_written_as_readers_take_it(
    classes: Path, tmp_path: Path
) -> None:
    """Catches a batch that fails at every start, as its only row packs too well."""
    path = tmp_path / "rows.arrows"

    shown = run_java(classes, "delta.CompressionCheck", str(path), "long", "2")

    assert shown.splitlines()[-1] == "held=0"
    describe_stream(str(path), path.stat().st_size, 8)
    with pa.OSFile(str(path)) as file:
        values = ipc.open_stream(file).read_all()["value"]
    assert values.null_count == 1
    assert pc.binary_length(values).to_pylist() == [None, 100 << 20]


def run(
    classes: Path, check: str, pytestconfig: pytest.Config, batches: int, *kind: str
) -> dict[str, str]:
    """Run a check with the seed of the test run; return what it counted."""
    seed = int(pytestconfig.getoption("randomly_seed", default=1)) % 1_000_000
    shown = run_java(classes, check, *kind, str(seed), str(batches))
    return dict(pair.split("=") for pair in shown.split() if "=" in pair)


def run_java(
    classes: Path,
    check: str,
    *arguments: str,
    max_file_bytes: int | None = None,
    max_open_files: int = 4096,
) -> str:
    """Run a check, where wanted with a limit on its files; return what it printed."""
    limit = "unlimited" if max_file_bytes is None else str(max_file_bytes // 512)
    class_path = f"{classes}:{find_jar()}:{SPARK_JARS}/*"
    scratch = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    java = ["java", "-Xmx512m", "-XX:-UsePerfData", scratch, *JVM_FLAGS, "-cp", class_path]
    limits = f'ulimit -n {max_open_files}; ulimit -f "$0"; exec "$@"'
    limited = ["sh", "-c", limits, limit]
    done = subprocess.run(
        [*limited, *java, f"io.statestore.{check}", *arguments],
        env={**os.environ, "MALLOC_PERTURB_": "165"},  # what is freed has other bytes (glibc)
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
