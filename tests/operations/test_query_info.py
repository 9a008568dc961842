"""A query at a glance: what is told of it is what its logs and leases say, and costs little."""

import json
import os
from pathlib import Path
from random import Random

import pytest

from statestore import Checkpoint
from statestore.checkpoint.lease import Holder, Lease, QueryProgress
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.ids import RandomIds
from statestore.core.process import find_process
from statestore.core.text import format_duration
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import OpenCheckpoint, open_checkpoint
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import GLOBAL_AGGREGATION, query_of
from tests.seams import at, place_of

SPARK = Path(__file__).resolve().parents[1] / "golden" / "spark"
NOW_MS = 1_700_000_000_000


class Noting(LocalFileIO):
    """A storage that notes what it is asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __getattribute__(self, name):
        if name in ("read_tail", "read_range", "fetch", "fetch_slices", "list", "list_tree"):
            self.asked.append(name)
        return super().__getattribute__(name)


@pytest.fixture
def made(tmp_path):
    """A checkpoint of three versions."""
    checkpoint = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    for batch in range(3):
        checkpoint.run_batch({1: batch, 2: batch})
    return checkpoint


def tell(made, batch, *, planned_ms, watermark_ms=0, sources=("-",), committed_ms=None, after=0):
    """Write what the logs have of a batch."""
    offsets = Path(made.path, "offsets", str(batch))
    version, metadata, *_ = Path(made.path, "offsets", "0").read_text().splitlines()
    fields = json.loads(metadata) | {"batchTimestampMs": planned_ms}
    fields["batchWatermarkMs"] = watermark_ms
    offsets.write_text("\n".join([version, json.dumps(fields), *sources]))
    os.utime(offsets, ns=(planned_ms * 1_000_000,) * 2)
    if committed_ms is not None:
        commit = Path(made.path, "commits", str(batch))
        commit.write_text(f'v1\n{{"nextBatchWatermarkMs":{after}}}')
        os.utime(commit, ns=(committed_ms * 1_000_000,) * 2)


def lease_of(made, operation="", *, clock=None, **of):
    """Take a lease, as a query of this process has it, or an operation."""
    holder = Holder(find_process(), application="app", run="run", operation=operation, **of)
    root = f"{made.path}/state"
    clock = clock or SystemClock()
    return Lease(LocalFileIO(), root, RandomIds().new_id(), holder, 10_000, clock)


def look(made):
    """Look at the query, at a time that stands still."""
    return at(made.path, clock=ManualClock(NOW_MS)).query


def test_stopped_query_lags_as_when_it_stopped(made):
    """Catches a lag that grows after the query has ended."""
    tell(made, 1, planned_ms=NOW_MS - 40_000)
    tell(
        made, 2, planned_ms=NOW_MS - 30_000, watermark_ms=NOW_MS - 99_000,
        committed_ms=NOW_MS - 28_000, after=NOW_MS - 90_000,
    )  # fmt: skip
    found = look(made)
    assert (found.is_running, found.operation, found.name) == (False, None, None)
    assert (found.newest_version, found.uncommitted_batch) == (3, None)
    assert (found.committed_ms, found.batch_ms) == (NOW_MS - 28_000, 2_000)
    assert (found.watermark_ms, found.lag_ms) == (NOW_MS - 90_000, 60_000)
    assert found.position.sources == ("-",)

    tell(made, 3, planned_ms=NOW_MS - 10_000)
    found = look(made)
    assert (found.uncommitted_batch, found.planned_ms) == (3, NOW_MS - 10_000)
    assert (found.newest_version, found.lag_ms) == (3, 80_000)

    lease = lease_of(made)
    lease.take()
    assert (look(made).is_running, look(made).lag_ms) == (True, 90_000)
    lease.drop()


def test_list_and_page_agree_on_how_far_the_watermark_is_behind(made):
    """Catches two rules for one number."""
    checkpoint = at(made.path, clock=ManualClock(NOW_MS))
    tell(
        made, 2, planned_ms=NOW_MS - 30_000, committed_ms=NOW_MS - 28_000, after=NOW_MS - 90_000
    )  # fmt: skip
    tell(made, 3, planned_ms=NOW_MS - 10_000)
    lease = lease_of(made)
    for take, lag_ms in ((lambda: None, 80_000), (lease.take, 90_000)):
        take()
        assert (checkpoint.info.lag_ms, checkpoint.query.lag_ms) == (lag_ms, lag_ms)
        assert checkpoint.info.position.lines(lag_ms)[0].endswith(
            f", {format_duration(lag_ms)} behind the clock"
        )
    lease.drop()


def test_a_batch_that_is_repeated_did_not_take_the_time_that_nothing_ran(made):
    """Catches the hours between a kill and the restart shown as the length of a batch."""
    long_ago_ms, began_ms = NOW_MS - 3_600_000, NOW_MS - 60_000
    tell(made, 2, planned_ms=long_ago_ms - 5_000, committed_ms=long_ago_ms - 3_000)
    tell(made, 3, planned_ms=long_ago_ms)
    driver = lease_of(made, executor="driver", clock=ManualClock(began_ms))
    driver.take(QueryProgress("clicks"))
    found = look(made)
    assert (found.began_ms, found.planned_ms, found.batch_ms) == (began_ms, long_ago_ms, 2_000)
    assert found.words()["batch"] == "3, repeated"

    tell(made, 3, planned_ms=long_ago_ms, committed_ms=NOW_MS - 20_000)
    tell(made, 4, planned_ms=NOW_MS - 19_000)
    found = look(made)
    assert (found.newest_version, found.batch_ms) == (4, None)
    assert found.words()["took"] == "-"
    assert found.words()["batch"] == "4 for 19.0 s"

    tell(made, 4, planned_ms=NOW_MS - 19_000, committed_ms=NOW_MS - 9_000)
    assert look(made).batch_ms == 10_000

    # The first of a run may be planned before an engine takes the lease.
    tell(made, 5, planned_ms=began_ms - 9_000)
    assert look(made).words()["batch"] == "5 for 1 min 9 s"
    tell(made, 5, planned_ms=long_ago_ms)
    driver.renew(QueryProgress("clicks"))
    assert look(made).words()["batch"] == "5, repeated"
    driver.drop()


def test_what_the_driver_says_comes_with_its_lease(made):
    """Catches a name that another lease of the query hides, and one of an operation."""
    executors = [lease_of(made, executor=str(number)) for number in range(3)]
    driver = lease_of(made, executor="driver")
    for lease in executors:
        lease.take()
    driver.take(QueryProgress("clicks <b>", 2, 500, 12.5, 250.0))
    found = look(made)
    assert (found.name, found.is_running) == ("clicks <b>", True)
    rates = found.rates
    assert (rates.batch, rates.rows, rates.known_by) == (2, 500, "progress")
    assert (rates.input_rows_per_second, rates.processed_rows_per_second) == (12.5, 250.0)
    assert Checkpoint(made.path).info.query_name == "clicks <b>"
    assert f"query             clicks <b> {found.query_id}" in repr(found)
    assert "input             12 rows/s" in repr(found)
    assert "clicks &lt;b&gt;" in found._repr_html_()

    driver.renew(QueryProgress("clicks <b>"))
    assert (look(made).name, look(made).rates) == ("clicks <b>", None)
    for lease in [*executors, driver]:
        lease.drop()
    assert (look(made).name, look(made).is_running) == (None, False)

    operation = lease_of(made, operation="rescale")
    operation.take()
    assert (look(made).is_running, look(made).operation) == (False, "rescale")
    operation.drop()


def test_what_runs_is_told_beside_what_others_left(made):
    """Catches a query that is said to be stopped: of drivers that were killed, or beside a lease.

    The lease is that of an operation, which looks for queries when it has taken it.
    """
    for _ in range(20):
        killed = lease_of(made, executor="driver")
        killed.take(QueryProgress("killed " * 50))
        file = Path(made.path, "statestore-leases", killed.name)
        file.write_text(file.read_text().replace(find_process().host, "another"))
        os.utime(file, ns=((SystemClock().now_ms() - 600_000) * 1_000_000,) * 2)
    running, operation = lease_of(made, executor="driver"), lease_of(made, operation="repair")
    running.take()
    operation.take()

    found = at(made.path).query

    assert (found.is_running, found.name, found.operation) == (True, None, "repair")
    assert "state             running\n" in repr(found)


def test_what_the_driver_says_is_told_however_seldom_it_renews_its_lease(made):
    """Catches a name that is not read, since many executors have renewed theirs since."""
    driver = lease_of(made, executor="driver")
    driver.take(QueryProgress("clicks"))
    renewed_ms = SystemClock().now_ms() - 90_000
    os.utime(Path(made.path, "statestore-leases", driver.name), ns=(renewed_ms * 1_000_000,) * 2)
    for number in range(20):
        lease_of(made, executor=str(number)).take()

    assert look(made).name == "clicks"


@pytest.mark.parametrize(
    "hostile",
    [
        "text", [], 7, {"name": 7}, {"name": "x" * 9_000, "batch": True}, {"rows": -1},
        {"input_rows_per_second": "NaN"}, {"input_rows_per_second": 10**400},
        {"input_rows_per_second": float("inf")}, {"batch": 1.5},
    ],
)  # fmt: skip
def test_progress_that_is_none_is_left_out(made, hostile):
    """Catches a lease that nobody can read because of what is told beside it."""
    lease = lease_of(made)
    lease.take()
    file = Path(lease.leases.path(lease.name))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"query": hostile}))
    found = look(made)
    assert (found.is_running, found.rates) == (True, None)
    assert len(found.name or "") <= 1000
    lease.drop()


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_counted_from_the_offsets_of_kafka(made, seed):
    """Catches a topic or partition that is left out, or one that is new and counts from 0."""
    random = Random(seed)

    def offsets(before=None):
        """Return offsets at or behind others, and the rows in between."""
        rows, of = 0, {}
        for topic in "ab":
            partitions = {}
            for number in range(random.randint(1, 4)):
                start = ((before or {}).get(topic) or {}).get(str(number))
                step = random.randint(0, 10**6)
                rows += step if start is not None else 0
                partitions[str(number)] = (start or random.randint(0, 10**12)) + step
            of[topic] = partitions
        return of, rows

    both, told = 0, [[], []]
    for _ in range(random.randint(1, 3)):
        old, _ = offsets()
        new, rows = offsets(old)
        both += rows
        told[0].append(json.dumps(old))
        told[1].append(json.dumps(new))
    tell(made, 1, planned_ms=NOW_MS - 8_000, sources=told[0])
    tell(made, 2, planned_ms=NOW_MS - 4_000, sources=told[1], committed_ms=NOW_MS - 2_000)
    rates = look(made).rates
    assert (rates.batch, rates.rows, rates.known_by) == (2, both, "offsets")
    assert rates.input_rows_per_second == pytest.approx(both / 4)
    assert rates.processed_rows_per_second == pytest.approx(both / 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"logOffset":1}', '{"logOffset":2}'), ("17", "18"), ("-", '{"a":{"0":3}}'), ("{}", "{}"),
        ('{"a":{"0":9}}', '{"a":{"0":3}}'), ('{"a":{"0":1}}', '{"a":{"0":true}}'),
        ('{"a":{"x":1}}', '{"a":{"x":2}}'), ("{" * 9000, "{" * 9000), ("", ""),
        ('{"a":{"0":1}}', '{"a":[1]}'),
    ],
)  # fmt: skip
def test_offsets_that_count_nothing_give_no_rates(made, old, new):
    """Catches rows per second made of what is no number of rows."""
    tell(made, 1, planned_ms=NOW_MS - 8_000, sources=[old])
    tell(made, 2, planned_ms=NOW_MS - 4_000, sources=[new], committed_ms=NOW_MS - 2_000)
    assert look(made).rates is None


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", "\0", "v1\n{}\n{}", 'v1\n{"batch":1}'])
def test_damaged_logs_are_passed_over(made, text):
    """Catches a page that does not open where an entry of a log is damaged."""
    for log in ("offsets", "commits"):
        kept = Path(made.path, log, "2").read_text()
        Path(made.path, log, "2").write_text(text)
        assert look(made).newest_version == 3
        Path(made.path, log, "2").write_text(kept)


@pytest.mark.parametrize("name", sorted(path.name for path in SPARK.iterdir()))
def test_nobody_knows_whether_a_query_of_sparks_own_runs(name):
    """Catches a query that is said to be stopped because it has no lease."""
    found = Checkpoint(SPARK / name / "checkpoint").query
    assert (found.is_running, found.name) == (None, None)
    assert Checkpoint(SPARK / name / "checkpoint").info.is_running is None
    assert found.newest_version > 0
    assert found.position is not None


def test_how_long_a_batch_took_is_not_told_of_what_an_operation_wrote(made, tmp_path):
    """Catches a batch that took from its plan, years ago, to the copy of its commit."""
    checkpoint = Checkpoint(made.path)
    tell(made, 2, planned_ms=NOW_MS - 30_000, committed_ms=NOW_MS - 28_000)
    assert checkpoint.query.batch_ms == 2_000

    savepoint = checkpoint.savepoint(tmp_path / "savepoint").made
    copies = [savepoint.restore(tmp_path / "restored").made, checkpoint.branch(tmp_path / "b").made]
    for copy in copies:
        assert (copy.query.newest_version, copy.query.batch_ms) == (3, None)
        assert "took              -\n" in repr(copy.query)
    planned_ms = SystemClock().now_ms()
    tell(made, 2, planned_ms=planned_ms, committed_ms=planned_ms + 500)
    assert checkpoint.query.batch_ms == 500
    checkpoint.rescale(8)
    assert (checkpoint.query.newest_version, checkpoint.query.batch_ms) == (4, None)


def test_a_look_reads_a_few_small_files_however_many_state_partitions(tmp_path):
    """Catches a look that costs more the larger the state is: a page asks every two seconds."""
    costs = []
    for num_partitions in (1, 16):
        io = Noting()
        made = MadeCheckpoint(
            str(tmp_path / f"query-{num_partitions}"), tmp_path / f"scratch-{num_partitions}",
            num_partitions=num_partitions,
        )  # fmt: skip
        for batch in range(3):
            made.run_batch(dict.fromkeys(range(100), batch))
        assert at(made.path, io=io).query.newest_version == 3
        costs.append(len(io.asked))
    assert costs[0] == costs[1]
    assert costs[0] < 20


def test_operator_of_one_state_partition_is_found_out_once(tmp_path, monkeypatch):
    """Catches a look at every store for each state partition without state: their square."""
    query = query_of(tmp_path / "query", operators=(GLOBAL_AGGREGATION,), num_partitions=9)
    query.run_batch({"a": "b"})
    is_single, asked = OpenCheckpoint._is_single, []
    monkeypatch.setattr(
        OpenCheckpoint, "_is_single", lambda *of: asked.append(of) or is_single(*of)
    )

    with open_checkpoint(place_of(query.path)) as checkpoint:
        assert [store.partition for store in checkpoint.heads(1)] == [0]

    assert len(asked) == 1
