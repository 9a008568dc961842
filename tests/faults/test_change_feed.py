"""What the state reader asks of an engine: change feeds, replays from a snapshot."""

import re
import shutil
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS
from tests.engine_process import EngineProcess
from tests.shim import RocksDBShim, Shim, changes_in, in_view, rows


def test_changes_of_versions_written_whole_are_refused(tmp_path):
    """Catches a change feed that shows the state as changes."""
    shim = RocksDBShim(tmp_path, rocksdb_incremental=False)
    with EngineProcess(shim.scratch) as engine:
        for number in range(3):
            shim.commit(engine, rows(number))
        with pytest.raises(AssertionError, match="written whole"):
            engine.call(
                "changes",
                store=shim.store,
                backend="rocksdb",
                start_version=1,
                end_version=3,
                directory=f"{shim.scratch}/changes-1",
                options=shim.options,
            )


@pytest.mark.parametrize("shim_class", [Shim, RocksDBShim])
def test_changes_of_a_version_that_forget_wrote_are_refused(tmp_path, shim_class):
    """Catches a change feed that shows the rows that stay as updates, and no delete."""
    shim = shim_class(tmp_path, root=f"file:{tmp_path}/query/state")
    made = MadeCheckpoint(tmp_path / "query", num_partitions=1, backend=shim.backend)
    made.run_batch({1: 1, 2: 2})
    made.run_batch({1: 3})

    def changes(first, last):
        return engine.call(
            "changes",
            store=shim.store,
            backend=shim.backend,
            start_version=first,
            end_version=last,
            directory=f"{shim.scratch}/changes-1",
            options=shim.options,
        )["files"]

    with EngineProcess(shim.scratch) as engine:
        assert [file["version"] for file in changes(1, 2)] == [1, 2]
        Checkpoint(made.path).forget(keys=pa.table({"key.k": [1]}))
        for first in (3, 1):
            with pytest.raises(AssertionError, match=r"written whole.*version=3"):
                changes(first, 3)


@pytest.mark.parametrize("shim_class", [Shim, RocksDBShim])
def test_changes_of_a_rescale_to_partitions_without_rows_are_none(tmp_path, shim_class):
    """Catches a rescale by reference that is refused where a state partition gets no row."""
    shim = shim_class(tmp_path, root=f"file:{tmp_path}/query/state")
    made = MadeCheckpoint(tmp_path / "query", num_partitions=2, backend=shim.backend)
    made.run_batch({1: 1})
    made.run_batch({1: 3})
    Checkpoint(made.path).rescale(8)

    with EngineProcess(shim.scratch) as engine:
        for partition in range(8):
            answer = engine.call(
                "changes",
                store={**shim.store, "partition": partition},
                backend=shim.backend,
                start_version=3,
                end_version=3,
                directory=f"{shim.scratch}/changes-{partition}",
                options=shim.options,
            )
            assert [file["version"] for file in answer["files"]] == [3]
            assert changes_in(answer["files"][0]) == {}


@pytest.mark.parametrize("shim_class", [Shim, RocksDBShim])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.extended) for n in range(4, 60))]
)
def test_changes_lead_from_one_version_to_any_other_or_are_refused(tmp_path, shim_class, seed):
    """Catches a copy that follows a change feed and has other rows than the state.

    Histories of batches, edits, rescales by reference and by hashing, and forgets.
    """
    random = Random(seed)
    shim = shim_class(tmp_path, root=f"file:{tmp_path}/query/state")
    made = MadeCheckpoint(
        tmp_path / "query", num_partitions=2, backend=shim.backend, operators=OPERATORS[:1]
    )
    checkpoint = Checkpoint(made.path)
    states = [{}]
    for _ in range(9):
        what = random.choice(["batch", "batch", "batch", "edit", "rescale", "forget"])
        present = [key for key, number in made.numbers.items() if number is not None][:1]
        one = pa.table({"key.k": pa.array(present, pa.int64())})
        if not present or what == "batch":
            what = "batch"
            keys = random.sample(range(6), 2)
            made.run_batch({key: random.choice([None, key, 100 + key]) for key in keys})
        elif what == "edit":
            checkpoint.edit(delete=one, all_rows=True)
        elif what == "forget":
            checkpoint.forget(keys=one, all_rows=True)
        else:
            checkpoint.rescale(random.choice([1, 2, 3, 4, 6]))
        if what in ("edit", "forget"):
            made.numbers[present[0]] = None
        if made.version < len(states):
            continue  # a rescale to as many
        states.append(read_checkpoint(made.path)[0, "default"])
        assert states[-1] == made.expected()[0, "default"]
    last, num_partitions = len(states) - 1, checkpoint.info.num_partitions
    with EngineProcess(shim.scratch) as engine:
        num_shown = 0
        for first in range(1, last + 1):
            rows_of = dict(states[first - 1])
            answers = [
                engine.request(
                    "changes",
                    store={**shim.store, "partition": partition},
                    backend=shim.backend,
                    start_version=first,
                    end_version=last,
                    directory=f"{shim.scratch}/changes-{first}-{partition}",
                    options=shim.options,
                )
                for partition in range(num_partitions)
            ]
            refused = [answer["error"] for answer in answers if "error" in answer]
            if refused:
                assert {error["class"] for error in refused} <= {
                    "NotFoundError",
                    "IncompatibleError",
                }
                continue
            num_shown += 1
            for answer in answers:
                for file in answer["ok"]["files"]:
                    rows_of |= changes_in(file)
            assert {k: v for k, v in rows_of.items() if v is not None} == states[last], first
        assert num_shown or what not in ("batch", "edit")


def test_changes_leave_files_only_where_the_reader_removes_them(tmp_path):
    """Catches a change feed that leaves something on the local disk, done, failed or killed."""
    shim = RocksDBShim(tmp_path)
    directory = Path(shim.scratch, "changes-1")

    def changes(first):
        return engine.request(
            "changes",
            store=shim.store,
            backend="rocksdb",
            start_version=first,
            end_version=3,
            directory=str(directory),
            options=shim.options,
        )

    with EngineProcess(shim.scratch) as engine:
        for number in range(3):
            shim.commit(engine, rows(number))
        before = set(Path(shim.scratch).rglob("*"))
        assert changes(0)["error"]["class"] == "NotFoundError"
        shutil.rmtree(directory)
        assert set(Path(shim.scratch).rglob("*")) == before
        files = changes(2)["ok"]["files"]
        engine.kill()
    with EngineProcess(shim.scratch) as engine:
        repeated = changes(2)["ok"]["files"]
        left = set(Path(shim.scratch).rglob("*")) - before

    assert [file["version"] for file in files] == [2, 3]
    assert repeated == files
    assert left == {directory, *(Path(file[name]) for file in files for name in ("path", "sst"))}


def test_replay_starts_at_exactly_the_snapshot_asked_for(tmp_path):
    """Catches a replay that reads the version another way, which says nothing of the snapshot."""
    shim = RocksDBShim(tmp_path)
    folder = tmp_path / "ck/state/0/0"
    with EngineProcess(shim.scratch) as engine:

        def replay(version, snapshot_version):
            asked = {"version": snapshot_version, "checkpoint_id": None}
            return engine.call("load", **shim.load(version, from_snapshot=asked))

        for number in range(1, 7):
            request = {**shim.request(rows(number)), "force_snapshot": number == 4}
            shim.committed(request, engine.call("commit", **request))
            # A commit does not wait for its snapshot.
            while engine.call("status")["snapshots_in_flight"]:
                time.sleep(0.01)
        (snapshot,) = folder.glob("4_*.snapshot.sst")

        for version in (4, 6):
            replayed = replay(version, 4)
            assert len(in_view(replayed)) == version
            assert replayed["files_read"] == version - 3
        with pytest.raises(AssertionError, match=r"\[snapshot-not-found\].*5_\w{32}.snapshot.sst'"):
            replay(6, 5)
        with pytest.raises(AssertionError, match=r"\[version-not-found\]"):
            replay(4, 5)
        raw = bytearray(snapshot.read_bytes())
        raw[len(raw) // 3] ^= 0x10
        snapshot.write_bytes(raw)
        with pytest.raises(AssertionError, match=re.escape(str(snapshot))):
            replay(6, 4)
        assert len(in_view(shim.view(engine))) == 6


@pytest.mark.parametrize("shim_class", [Shim, RocksDBShim])
def test_replay_starts_at_no_snapshot_of_another_attempt(tmp_path, shim_class):
    """Catches a state reader that is told that an attempt has a snapshot, which another has."""
    shim = shim_class(tmp_path, checkpoint_format=2)
    with EngineProcess(shim.scratch) as engine:
        for number in (1, 2, 3):
            request = {**shim.request(rows(number)), "force_snapshot": number == 2}
            shim.committed(request, engine.call("commit", **request))
            while engine.call("status")["snapshots_in_flight"]:
                time.sleep(0.01)

        def replay(attempt, version=3):
            asked = {"version": 2, "checkpoint_id": f"{attempt:032x}"}
            of = {"checkpoint_id": f"{version:032x}"}
            return engine.call("load", **shim.load(version, from_snapshot=asked, **of))

        assert replay(2)["num_keys"] == 3
        if shim.backend == "rocksdb":  # two readers: each opens its view when both were told
            told = [replay(2), replay(2, version=2)]
            assert [len(in_view(one)) for one in told] == [3, 2]
        with pytest.raises(AssertionError, match=rf"\[snapshot-not-found\].*/2_{9:032x}.snapshot"):
            replay(9)
