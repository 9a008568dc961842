"""Snapshots and merged files when whoever made one is not whoever commits next, or cleans up."""

import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from statestore.checkpoint.load import reach_back
from statestore.checkpoint.summaries import Summaries
from statestore.checkpoint.trailers import PublishedFile
from statestore.codec.references import FileRef, StoreName
from statestore.codec.rows import PUT, Row
from statestore.codec.trailer import RowCounts, Trailer
from tests.shim import Engine, G, RocksDBShim, Shim, in_view, rows_in_files, write_sst

SHIMS = {"filesystem": Shim, "rocksdb": RocksDBShim}
BATCHES = 48
RETAINED = 10
A, B = "a" * 32, "b" * 32


@contextmanager
def engine(shim, name=0):
    """An engine on a machine of its own, as a JVM has it; it forgets all in the end."""
    made = Engine(f"{shim.directory}/{name}")
    yield made
    made.end()


@pytest.fixture(params=["filesystem", "rocksdb"])
def shim(request, tmp_path):
    """The shim's side of a store with small summaries; 16 keys, one written by each batch."""
    return new_shim(request.param, tmp_path)


def new_shim(backend, directory, checkpoint_format=2, **options):
    """The shim's side of a store."""
    given = {
        "min_versions_to_retain": RETAINED,
        "snapshot_max_chain_length": 8,
        "rocksdb_merge_min_files": 8,
        **options,
    }
    made = SHIMS[backend](directory, checkpoint_format, **given)
    made.keys = set()
    Path(made.scratch).mkdir(parents=True, exist_ok=True)
    return made


def request_of(shim, attempt="", value=b""):
    """A commit of the next version: one of 16 keys gets a new value."""
    version = (shim.parent["version"] if shim.parent else 0) + 1
    key = b"%08d" % (version % 16)
    row = Row(version % G, 0, PUT, key, value or b"%d" % version)
    request = shim.request([row])
    shim.keys.add(key)
    request["num_keys"] = len(shim.keys)
    request["checkpoint_id"] = attempt or f"{version:032x}"
    path = f"{shim.scratch}/{version}-{attempt}"
    if shim.backend == "rocksdb":
        request["delta"] = write_sst(path, [row])
    else:
        request["delta"]["path"] = str(Path(request["delta"]["path"]).rename(path))
    return request


def commit(shim, on, **how):
    """Commit the next version; the reply."""
    request = request_of(shim, **how)
    reply = on.call("commit", **request)
    shim.committed(request, reply)
    return reply


def files_of(shim):
    """Names of the state files of the store."""
    directory = Path(shim.directory, "ck/state/0/0")
    return {path.name for path in directory.iterdir() if "." in path.name}


def state_of(shim, tmp_path, version=None):
    """Keys and values of a version, by an engine that knows nothing of it."""
    other = Shim(tmp_path / f"reader-{threading.get_ident()}")
    Path(other.scratch).mkdir(parents=True, exist_ok=True)
    with engine(other, "reader") as reader:
        reply = reader.call("load", **shim.load(version, num_partitions=None))
        return in_view(reply) if shim.backend == "rocksdb" else rows_in_files(reply)


def expected_state(version):
    """Keys and values after a version."""
    last = {b"%08d" % (number % 16): b"%d" % number for number in range(1, version + 1)}
    return dict(sorted(last.items()))


def assert_flat(loads, sizes, attempts=1):
    """Check that what a load reads, and what the directory holds, does not grow.

    Deltas that are retained, those that the oldest of them is made of, and what stands for its
    snapshot; and some summaries.
    """
    assert max(loads) <= 10
    assert max(sizes) <= attempts * (RETAINED + 9 + 8) + 5


def test_files_and_loads_stay_flat_when_a_job_is_started_for_each_batch(shim, tmp_path):
    """Catches summaries that are forgotten with the process that made them."""
    loads, sizes = [], []
    for number in range(BATCHES):
        with engine(shim, number) as job:
            if shim.parent:
                loads.append(job.call("load", **shim.load())["files_read"])
            commit(shim, job)
        sizes.append(len(files_of(shim)))

    assert_flat(loads, sizes)
    assert state_of(shim, tmp_path) == expected_state(BATCHES)


def test_files_stay_flat_when_a_store_is_closed_after_each_batch(shim, tmp_path):
    """Catches summaries that a close and a load throw away."""
    loads, sizes = [], []
    with engine(shim) as job:
        for _ in range(BATCHES):
            if shim.parent:
                loads.append(job.call("load", **shim.load())["files_read"])
            commit(shim, job)
            job.settle()
            job.call("close", store=shim.store, backend=shim.backend)
            sizes.append(len(files_of(shim)))

    assert_flat(loads, sizes)
    assert state_of(shim, tmp_path) == expected_state(BATCHES)


def test_files_stay_flat_when_a_partition_changes_its_executor_with_each_batch(shim, tmp_path):
    """Catches summaries that only the executor that made them knows of."""
    loads, sizes = [], []
    with engine(shim, 1) as one, engine(shim, 2) as two:
        for number in range(BATCHES):
            job = (one, two)[number % 2]
            if shim.parent:
                loads.append(job.call("load", **shim.load())["files_read"])
            commit(shim, job)
            job.settle()
            sizes.append(len(files_of(shim)))

    assert_flat(loads, sizes)
    assert state_of(shim, tmp_path) == expected_state(BATCHES)


def test_files_stay_flat_when_each_batch_runs_twice(shim, tmp_path):
    """Catches summaries lost where a batch has two actions: the first attempt is the one taken."""
    loads, sizes = [], []
    with engine(shim) as job:
        for _ in range(BATCHES):
            if shim.parent:
                loads.append(job.call("load", **shim.load())["files_read"])
            second = request_of(shim, attempt=B)
            commit(shim, job, attempt=A)
            job.call("commit", **second)
            job.settle()
            sizes.append(len(files_of(shim)))

    assert_flat(loads, sizes, attempts=2)
    assert state_of(shim, tmp_path) == expected_state(BATCHES)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_query_begun_anew_names_no_file_of_a_checkpoint_that_was_deleted(tmp_path, backend):
    """Catches a version that names a summary which went with the directory, and loads nowhere.

    As in a notebook: a query runs, its checkpoint is deleted, and it runs again over the same rows.
    """
    num_batches = 20
    with engine(new_shim(backend, tmp_path, checkpoint_format=1)) as job:
        for run in ("first", "second"):
            shim = new_shim(backend, tmp_path, checkpoint_format=1, run=run)
            job.call("load", **shim.load(0))
            for number in range(num_batches):
                told = commit(shim, job)["snapshot"]
                assert told["version"] <= number + 1
                job.settle()
            job.call("close", store=shim.store, backend=shim.backend)
            if run == "first":
                assert any(".delta." not in name for name in files_of(shim))
                shutil.rmtree(tmp_path / "ck")

    assert state_of(shim, tmp_path) == expected_state(num_batches)


def test_commit_names_a_merged_file_that_its_load_found_due(tmp_path):
    """Catches a job that ends before its merge does, each time: the chain never gets shorter."""
    shim = new_shim("rocksdb", tmp_path, rocksdb_merge_min_files=1000)
    with engine(shim, "before") as before:
        for _ in range(20):
            commit(shim, before)
    assert len(files_of(shim)) == 20

    shim.options["rocksdb_merge_min_files"] = 8
    with engine(shim, "after") as after:
        after.call("load", **shim.load())
        commit(shim, after)
        assert after.call("load", **shim.load())["files_read"] == 0
    with engine(shim, "later") as later:
        assert later.call("load", **shim.load())["files_read"] == 2


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_merged_file_stays_when_another_attempt_of_the_version_names_it(
    tmp_path, checkpoint_format
):
    """Catches a cleanup that goes by its own attempt alone: the other one's state was lost."""
    shim = new_shim("rocksdb", tmp_path, checkpoint_format, rocksdb_merge_min_files=4,
                    min_versions_to_retain=2)  # fmt: skip
    with engine(shim, "one") as one, engine(shim, "two") as two:
        for _ in range(3):
            commit(shim, one)
        commit(shim, one)
        commit(shim, one)
        one.settle()
        assert any(".snapshot." in name for name in files_of(shim))
        # Version 6 is attempted by both: two loads version 5 by the files it names.
        two.call("load", **shim.load())
        request = request_of(shim, attempt=B, value=b"6")
        first = request_of(shim, attempt=A, value=b"6")
        two.call("commit", **request)
        cleanup = {"snapshot": False, "cleanup": True, "options": shim.options}
        attempt = B if checkpoint_format == 2 else None
        two.call("maintain", store=shim.store, backend="rocksdb", version=6,
                 checkpoint_id=attempt, **cleanup)  # fmt: skip
        shim.committed(first, one.call("commit", **first))
        for _ in range(3):
            commit(shim, one)
            one.call("maintain", store=shim.store, backend="rocksdb",
                     version=shim.parent["version"],
                     checkpoint_id=shim.parent["checkpoint_id"] if attempt else None,
                     **cleanup)  # fmt: skip

    assert state_of(shim, tmp_path) == expected_state(9)


def test_version_before_the_newest_stays_when_one_version_is_to_be_retained(tmp_path):
    """Catches a failed batch whose version to start from was expired while other tasks ran."""
    shim = new_shim("rocksdb", tmp_path, rocksdb_merge_min_files=3, min_versions_to_retain=1)
    with engine(shim) as job:
        for _ in range(9):
            commit(shim, job)
            job.settle()
            job.call("maintain", store=shim.store, backend="rocksdb",
                     version=shim.parent["version"], checkpoint_id=shim.parent["checkpoint_id"],
                     snapshot=True, cleanup=True, options=shim.options)  # fmt: skip
            if shim.parent["version"] > 1:
                before = shim.parent["version"] - 1
                load = shim.load(before) | {"checkpoint_id": f"{before:032x}"}
                other = new_shim("rocksdb", tmp_path / f"reader-{before}")
                with engine(other, "reader") as reader:
                    reply = reader.call("load", **(load | {"num_partitions": None}))
                    assert in_view(reply) == expected_state(before)


def ref_of(kind, version, attempt=A):
    """A reference to a file of a store."""
    name = f"{version}_{attempt}.{kind}.sst"
    return FileRef(name, kind, version, attempt, f"{version:032x}", 1, 1)


def merged_of(files):
    """A merged file of some files."""
    ref = ref_of("merged", files[-1].version, files[-1].checkpoint_id)
    trailer = Trailer(
        "merged", "test", StoreName(0, 0), "rocksdb", ref.version, ref.checkpoint_id, 2, None,
        ref.lineage, files, (), RowCounts(), None, G, 1, True, (),
    )  # fmt: skip
    return PublishedFile(ref, trailer)


class CountedChain(tuple):
    """A chain that counts how often files of it are taken out."""

    taken = 0

    def __getitem__(self, index):
        CountedChain.taken += 1
        return super().__getitem__(index)


def test_summaries_of_files_that_a_chain_does_not_have_are_not_tried():
    """Catches a commit that takes the longer, the more summaries of other attempts there are."""
    files = tuple(ref_of("delta", version) for version in range(1, 101))
    chain = CountedChain(files)
    others = tuple(ref_of("delta", version, B) for version in range(1, 101))
    summaries = Summaries(None)
    for start in range(92):
        summaries.add(merged_of(others[start : start + 8]))
    small = merged_of(files[8:16])
    large = merged_of((small.ref, *files[16:24]))
    summaries.add(large)

    assert summaries.shorten(chain) == chain
    assert CountedChain.taken == 0
    summaries.add(small)
    shorter = summaries.shorten(chain)
    # Once to compare the sources of the small one, twice for what is before and after them.
    assert CountedChain.taken == 3
    assert shorter == (*files[:8], large.ref, *files[24:])


def test_files_of_a_chain_are_read_once_however_many_summaries_are_behind_each_other():
    """Catches a cleanup that takes the square of the summaries that are retained."""
    num_given = []

    def files_before(refs, index):
        num_given.append(len(refs))
        version = refs[index].version
        older = [ref_of("snapshot", version - 1)] if version > 1 else []
        return (*older, ref_of("delta", version))

    chain = (ref_of("snapshot", 200), ref_of("delta", 201), ref_of("delta", 202))

    deltas = tuple(ref_of("delta", version) for version in range(1, 203))
    assert reach_back(None, chain, 1, files_before) == deltas
    assert reach_back(None, chain, 100, files_before) == (ref_of("snapshot", 99), *deltas[99:])
    assert max(num_given) == 3
