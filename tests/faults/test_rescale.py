"""Rescale of whole checkpoints: every layout, up and down, and a death at every step."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.checkpoint.lease import Holder, Lease
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.checkpoint.text_files import checksum_path
from statestore.cli.commands import cli
from statestore.codec import sorting
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.sealed_file import SealedFile, append_trailer
from statestore.codec.trailer import TAIL_BYTES, RowCounts
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    IncompatibleError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.process import find_process
from statestore.io.counting import CountingFileIO, RequestCounts
from statestore.io.local import LocalFileIO
from statestore.io.s3 import S3FileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS, unsafe_row
from tests.checkpoints import make_query
from tests.rescaled import KEYED, edit_conf, listing, make, newest
from tests.seams import at, place_of


@pytest.mark.parametrize(
    ("backend", "checkpoint_format", "operators"),
    [("filesystem", 1, OPERATORS), ("filesystem", 2, OPERATORS), ("rocksdb", 2, OPERATORS[::2])],
)
def test_query_goes_on_when_rescaled_again_and_again(
    tmp_path, backend, checkpoint_format, operators
):
    """Catches rows lost, doubled or in a wrong state partition, of any operator, up and down."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format, operators=operators)

    for num_partitions, way in ((8, "key-groups"), (2, "key-groups"), (6, "rehash"), (1, None)):
        done = Checkpoint(made.path).rescale(num_partitions)
        assert read_checkpoint(made.path) == made.expected()
        assert [store.way for store in done.stores[-1:]] == ["whole"]
        assert way in (None, done.stores[0].way)
        made.run_batch({100 + num_partitions: 7, 31: None, 33: num_partitions})
        if num_partitions == 2:
            made.take_snapshots()
        assert read_checkpoint(made.path) == made.expected()
    Checkpoint(made.path).rescale(3)
    Checkpoint(made.path).rescale(4)
    assert read_checkpoint(made.path) == made.expected()
    made.run_batch({5: 5})

    assert read_checkpoint(made.path) == made.expected()


def test_rehash_of_more_rows_than_memory_holds(tmp_path, monkeypatch):
    """Catches rows lost between the pieces that are laid by on the local disk."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 300)
    made = make(tmp_path, operators=OPERATORS[:2])

    Checkpoint(made.path).rescale(5)

    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("restored", [False, True], ids=["rescale", "restore"])
def test_progress_of_a_single_rehashed_store_grows(tmp_path, restored):
    """Catches a bar that stands still until all of a large store is hashed anew."""
    made = make(tmp_path, operators=KEYED)
    reports = []

    def report(done, total):
        reports.append((done, total))

    if restored:
        Checkpoint(made.path).savepoint(tmp_path / "savepoint")
        Savepoint(tmp_path / "savepoint").restore(
            tmp_path / "copy", num_partitions=6, progress=report
        )
    else:
        Checkpoint(made.path).rescale(6, progress=report)

    done = [value for value, _ in reports]
    (total,) = {total for _, total in reports}
    assert done == sorted(done)
    assert done[-1] == total
    # Of each state partition that is read and each that is written.
    assert len(set(done)) >= 4 + 6


class TrailersOnly(LocalFileIO):
    """A local disk that hands out the end of a state file and no more."""

    def read_tail(self, path, num_bytes):
        assert num_bytes <= TAIL_BYTES or not path.endswith(".arrows"), path
        return super().read_tail(path, num_bytes)

    def read_range(self, path, offset, length):
        raise AssertionError(f"a part of a file was asked for: {path}")

    def fetch(self, path):
        assert "/state/" not in path, path
        return super().fetch(path)

    def fetch_slices(self, path, size, slices):
        raise AssertionError(f"slices of a file were asked for: {path}")


class CountingTreeFileIO(CountingFileIO):
    """Counts the requests of operations, which list directories as well."""

    def list_directories(self, directory):
        with self._counted("list"):
            return self._io.list_directories(directory)


def test_rescale_by_key_groups_reads_and_writes_no_row(tmp_path):
    """Catches a rescale whose cost grows with the state."""
    made = make(tmp_path, backend="filesystem")
    requests = RequestCounts()

    at(
        made.path,
        io=CountingTreeFileIO(TrailersOnly(), requests, RequestCounts(), is_counted_inside=False),
    ).rescale(8)

    written = [SealedFile(str(path)) for path in Path(made.path).rglob("4.delta.arrows")]
    assert len(written) == 8 * 3 + 1
    assert {file.trailer.rows for file in written} == {RowCounts()}
    assert requests.take()["get"] < 200


def test_plan_changes_nothing_and_says_what_is_done(tmp_path):
    """Catches a plan that writes, or that promises something else than what is done."""
    made = make(tmp_path)
    before = listing(made.path)

    plan = Checkpoint(made.path).rescale(8, dry_run=True)

    assert listing(made.path) == before
    assert (plan.batch, plan.num_partitions_before, plan.num_partitions) == (3, 4, 8)
    keyed, *_, whole = plan.stores
    files = list(Path(made.path, "state/0").glob("[0-9]/*.delta.*"))
    assert (keyed.num_files, keyed.num_bytes) == (
        len(files), sum(path.stat().st_size for path in files),
    )  # fmt: skip
    assert list(keyed.partition_rows) == rows_by_partition(made.numbers, 8, keyed.max_parallelism)
    assert keyed.num_rows == sum(keyed.partition_rows) == len(made.numbers)
    assert (whole.way, whole.num_rows, whole.partition_rows) == ("whole", 1, (1,))
    assert Checkpoint(made.path).rescale(8, count_rows=True, dry_run=True).stores == plan.stores
    assert Checkpoint(made.path).rescale(8).stores == plan.stores


def test_plan_asks_no_more_for_many_state_partitions(tmp_path):
    """Catches requests for each new state partition: minutes of them for 4,096 on S3."""
    made = make(tmp_path, operators=KEYED)
    asked = []

    for num_partitions in (8, 4096):
        requests = RequestCounts()
        io = CountingTreeFileIO(LocalFileIO(), requests, RequestCounts(), is_counted_inside=False)
        (plan,) = at(made.path, io=io).rescale(num_partitions, dry_run=True).stores
        asked.append(requests.take())

    assert asked[0] == asked[1]
    assert plan.num_rows == len(made.numbers)


def rows_by_key_group(keys, num_key_groups):
    """Number of keys of the aggregation in each key group."""
    encoded = pa.array([unsafe_row(key) for key in keys], pa.binary())
    groups = compute_key_groups(encoded, "default", KEYED[0][1][0].family, num_key_groups)
    return np.bincount(groups, minlength=num_key_groups)


def rows_by_partition(keys, num_partitions, num_key_groups):
    """Number of keys of the aggregation in each of some state partitions."""
    by_group = rows_by_key_group(keys, num_key_groups)
    return [int(by_group[partition::num_partitions].sum()) for partition in range(num_partitions)]


def forget_key_groups(made):
    """Leave out of trailers where the rows are."""
    for path in Path(made.path).rglob("*.delta.*"):
        trailer = SealedFile(str(path)).trailer
        os.truncate(path, trailer.body_length)
        append_trailer(str(path), replace(trailer, key_group_rows=None))


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not-told"])
def test_skew_shows_a_heavy_key_group_or_is_unknown(tmp_path, backend, is_told):
    """Catches a plan that promises equal state partitions without knowing what lies in them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = MadeCheckpoint(
        str(tmp_path / "checkpoint"), scratch, 2, backend=backend, operators=KEYED,
        options={"max_parallelism": 8},
    )  # fmt: skip
    heavy = [key for key in range(3000) if rows_by_key_group([key], 8)[5]]
    keys = {*range(100), *heavy}
    made.run_batch(dict.fromkeys(keys, 1))
    if not is_told:
        forget_key_groups(made)

    (plan,) = Checkpoint(made.path).rescale(4, dry_run=True).stores
    (counted,) = Checkpoint(made.path).rescale(4, count_rows=True, dry_run=True).stores
    (rehash,) = Checkpoint(made.path).rescale(3, dry_run=True).stores
    (rehash_counted,) = Checkpoint(made.path).rescale(3, count_rows=True, dry_run=True).stores

    rows = rows_by_partition(keys, 4, 8)
    assert list(counted.partition_rows) == rows
    assert counted.skew == max(rows) * 4 / len(keys) > 2.5
    assert plan.partition_rows == (counted.partition_rows if is_told else None)
    assert plan.skew == (counted.skew if is_told else None)
    assert (rehash.partition_rows, rehash.skew) == (None, None)
    rows = rows_by_partition(keys, 3, rehash.max_parallelism)
    assert list(rehash_counted.partition_rows) == rows
    assert rehash_counted.skew == max(rows) * 3 / len(keys)
    assert {of.num_rows for of in (plan, counted, rehash, rehash_counted)} == {len(keys)}


def test_state_kept_elsewhere_is_rescaled_there(tmp_path):
    """Catches state written into the checkpoint, or partitions that the state reader misses."""
    elsewhere = tmp_path / "elsewhere"
    made = make(tmp_path, options={"checkpoint_storage": str(elsewhere)}, operators=KEYED)

    for num_partitions in (8, 6):
        Checkpoint(made.path).rescale(num_partitions)
        assert read_checkpoint(made.path) == made.expected()
        placeholders = {path.parent.name for path in Path(made.path, "state/0").glob("*/.stat*")}
        assert {str(partition) for partition in range(num_partitions)} <= placeholders
    made.run_batch({7: 8})

    assert read_checkpoint(made.path) == made.expected()
    assert not list(Path(made.path).rglob("*.arrows"))


def test_checkpoint_on_s3_is_rescaled_and_undone(s3_server, bucket, tmp_path):
    """Catches a rescale that needs what only a disk can do."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "scratch").mkdir()
    io = S3FileIO(str(tmp_path / "cache"), s3_server.settings())
    path = f"/{bucket}/checkpoint"
    made = MadeCheckpoint(path, tmp_path / "scratch", 2, operators=KEYED, io=io)
    made.run_batch({key: key for key in range(20)})

    at(path, io=io).rescale(4)
    assert read_checkpoint(path, io=io) == made.expected()
    at(path, io=io).undo_rescale()
    at(path, io=io).rescale(3)
    made.run_batch({3: 4})

    assert read_checkpoint(path, io=io) == made.expected()


def test_checksum_of_an_entry_deleted_by_hand_does_not_stay(tmp_path):
    """Catches Hadoop refusing the new entry: the old one's hidden checksum was left behind."""
    made = make(tmp_path)
    Path(checksum_path(f"{made.path}/offsets/3")).write_bytes(b"crc\0stale")

    Checkpoint(made.path).rescale(8)

    assert not Path(checksum_path(f"{made.path}/offsets/3")).exists()


def test_uncommitted_batch_is_refused_by_name(tmp_path):
    """Catches a rescale that drops or doubles the rows of a batch that is under way."""
    made = make(tmp_path)
    entry = Path(made.path, "offsets/2").read_text()
    Path(made.path, "offsets/3").write_text(entry.replace('"logOffset":2', '"logOffset":3'))
    before = listing(made.path)

    for operation in (
        lambda: Checkpoint(made.path).rescale(8),
        lambda: Checkpoint(made.path).undo_rescale(),
    ):
        with pytest.raises(InvalidArgumentError, match="planned_batch=3") as raised:
            operation()
        assert raised.value.kind == "unfinished-batch"
    assert listing(made.path) == before


def test_gap_in_the_offset_log_is_refused_with_the_way_out(tmp_path):
    """Catches advice to start a query that Spark does not start."""
    made = make(tmp_path)
    entry = Path(made.path, "offsets/2").read_text()
    Path(made.path, "offsets/4").write_text(entry.replace('"logOffset":2', '"logOffset":4'))

    for operation in (
        lambda: Checkpoint(made.path).rescale(8),
        lambda: Checkpoint(made.path).undo_rescale(),
    ):
        with pytest.raises(NotFoundError, match="offsets/3") as raised:
            operation()
        assert raised.value.kind == "file-not-found"
        assert "statestore repair" in raised.value.to_fix

    Checkpoint(made.path).repair()
    Checkpoint(made.path).rescale(8)
    assert read_checkpoint(made.path) == made.expected()


def test_checkpoint_in_use_is_refused(tmp_path):
    """Catches a rescale under a query that goes on writing the old state partitions."""
    made = make(tmp_path, operators=KEYED)
    before = listing(made.path)
    with (
        open_checkpoint(place_of(made.path)) as checkpoint,
        exclusive_use(checkpoint, "something else"),
        pytest.raises(InUseError, match="something else"),
    ):
        Checkpoint(made.path).rescale(8)

    assert listing(made.path) == before


def test_rescale_under_a_batch_that_runs_says_that_the_query_does(tmp_path):
    """Catches advice to start a query that is running."""
    query = make_query(tmp_path / "query")
    query.plan()
    holder = Holder(find_process(), application="app", run="run-1")
    lease = Lease(LocalFileIO(), f"{query.path}/state", f"{1:032x}", holder, 10_000, SystemClock())
    lease.take()

    code, output = rescale_by_command(query.path, "--yes")
    assert (code, output.split()[1]) == (1, "[checkpoint-in-use]")
    assert "stop the query" in output
    code, output = rescale_by_command(query.path)
    assert (code, "The query is running: stop it first." in output) == (0, True)

    lease.drop()
    code, output = rescale_by_command(query.path)
    assert (code, output.split()[1]) == (1, "[unfinished-batch]")
    assert "start the query" in output


def rescale_by_command(path, *arguments):
    result = CliRunner().invoke(cli, ["rescale", path, "--num-partitions", "8", *arguments])
    return result.exit_code, result.output


def test_state_that_does_not_follow_its_keys_is_refused(tmp_path):
    """Catches rows moved by a hash that Spark did not partition by."""
    made = make(tmp_path)
    key = "spark.sql.streaming.statefulOperator.useStrictDistribution"
    edit_conf(made, **{key: "false"})

    with pytest.raises(IncompatibleError) as raised:
        Checkpoint(made.path).rescale(8)

    assert raised.value.kind == "not-rescalable"
    assert newest(made.path, "offsets") == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_rows_that_cannot_be_hashed_anew_are_refused_before_any_is(tmp_path, dry_run):
    """Catches a plan that says yes, and hours of writing before the rescale says no."""
    made = make(tmp_path, operators=OPERATORS[:2])
    for path in Path(made.path, "state/1").rglob("*.delta.*"):
        trailer = SealedFile(str(path)).trailer
        os.truncate(path, trailer.body_length)
        append_trailer(str(path), replace(trailer, rescalable=False))
    before = sorted(Path(made.path, "state").rglob("*"))

    with pytest.raises(IncompatibleError) as raised:
        Checkpoint(made.path).rescale(6, dry_run=dry_run)

    assert raised.value.kind == "not-rescalable"
    assert sorted(Path(made.path, "state").rglob("*")) == before


def test_other_provider_is_refused(tmp_path):
    """Catches a rescale of a checkpoint whose state files are Spark's."""
    made = make(tmp_path)
    key = "spark.sql.streaming.stateStore.providerClass"
    edit_conf(made, **{key: "org.apache.spark.Other"})

    with pytest.raises(IncompatibleError, match="another state store provider"):
        Checkpoint(made.path).rescale(8)


def test_heap_backend_without_its_driver_is_refused(tmp_path):
    """Catches a rescale that takes a checkpoint for empty because its state is elsewhere."""
    made = make(tmp_path, operators=KEYED)
    key = "spark.sql.streaming.stateStore.providerClass"
    edit_conf(made, **{key: "io.statestore.HeapStateStoreProvider"})

    with pytest.raises(NotFoundError) as raised:
        Checkpoint(made.path).rescale(8)

    assert raised.value.kind == "driver-lost"
    assert newest(made.path, "offsets") == 2


@pytest.mark.parametrize("num_partitions", [0, -1, 32_769])
def test_number_out_of_range_is_refused(tmp_path, num_partitions):
    """Catches a checkpoint without state partitions."""
    made = make(tmp_path, operators=KEYED)

    with pytest.raises(InvalidArgumentError, match="out of range"):
        Checkpoint(made.path).rescale(num_partitions)


def test_rescale_to_the_same_number_does_nothing(tmp_path):
    """Catches a repeated command that fails, or adds a batch, after it was done."""
    made = make(tmp_path)
    Checkpoint(made.path).rescale(8)
    before = listing(made.path)

    again = Checkpoint(made.path).rescale(8)

    assert not again.is_needed
    assert listing(made.path) == before


def test_operator_metadata_and_logs_are_what_spark_would_write(tmp_path):
    """Catches a lost watermark, source offset or checkpoint ID."""
    made = make(tmp_path, checkpoint_format=2)

    Checkpoint(made.path).rescale(8)

    old, new = (Path(made.path, f"offsets/{batch}").read_text() for batch in (2, 3))
    rescaled = old.replace(f'"{NUM_PARTITIONS_KEY}":"4"', f'"{NUM_PARTITIONS_KEY}":"8"')
    assert new == rescaled.replace("}}", ',"statestore.rescale":"true"}}')
    ids = json.loads(Path(made.path, "commits/3").read_text().split("\n")[1])["stateUniqueIds"]
    assert [len(ids[operator]) for operator in ("0", "1", "2")] == [8, 8, 1]
    assert {len(stores) for stores in ids["1"]} == {2}
    flat = [unique for stores in ids.values() for part in stores for unique in part]
    assert len(set(flat)) == len(flat)
    metadata = Path(made.path, "state/1/_metadata/metadata").read_text()
    assert metadata.count('"numPartitions":8') == 2
