"""Random histories of a store in many state partitions, rescaled again and again."""

import json
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from rocksdict import AccessType, Options, Rdict

from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of
from statestore.checkpoint.layout import (
    StoreLocation,
    parse_rescale_ref_name,
    parse_state_file_name,
)
from statestore.checkpoint.rescaling import (
    RescaledStores,
    undo_rescaled_version,
    write_rescaled_version,
)
from statestore.checkpoint.trailers import read_delta_trailer
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, MERGE, PUT, Row
from statestore.core.clock import SystemClock
from statestore.core.errors import StorageError
from statestore.engine.service import EngineService
from statestore.io.local import LocalFileIO
from statestore.testing.deltas import write_stream
from tests.fault_io import Fault, FaultFileIO
from tests.models import keys, values
from tests.shim import rows_in_files
from tests.stateful.histories import case_of

G = 24
DIVISORS = [1, 2, 3, 4, 6, 8, 12]
NUM_RETAINED = 3
OPTIONS = {
    "fsync_enabled": False,
    "snapshot_max_chain_length": 4,
    "min_versions_to_retain": NUM_RETAINED,
    "orphan_age_ms": 0,
    "rocksdb_merge_min_files": 3,
}
LAZY = {"snapshot_max_chain_length": 1000, "rocksdb_merge_min_files": 100}
"""State partitions differ in what they have summarised where only maintenance does."""


def changes():
    """Changes of a batch: operation and value by key."""
    return st.dictionaries(keys(), st.tuples(st.sampled_from([PUT, DELETE, MERGE]), values()))


def group_of(key):
    """Key group of a key."""
    return sum((place + 1) * byte for place, byte in enumerate(key)) % G


@dataclass
class Version:
    """A version of the model: its layout, rows by key, and what each partition's parent is."""

    num_partitions: int
    rows: dict
    made: dict = field(default_factory=dict)
    is_rescaled: bool = False


class RescaleMachine(RuleBasedStateMachine):
    """Commits, loads, maintenance, engine restarts; rescales: also undone, repeated, given up."""

    backend = "filesystem"
    body = "arrows"

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="rescale-machine-")
        self.root = f"{self.directory}/ck/state"
        self.io = FaultFileIO(LocalFileIO())
        self.num_engines = 0
        self.num_attempts = 0
        self.versions = {}
        self.newest = 0
        self.before_rescale = 0
        self.oldest = 1
        self.oldest_to_repair = 1
        self.can_undo = False
        self.cut_off = set()
        self.engine = self.start_engine()

    @initialize(
        checkpoint_format=st.sampled_from([1, 2]),
        name=st.sampled_from(["default", "left"]),
        num_partitions=st.sampled_from([1, 2, 4]),
        incremental=st.booleans(),
        lazy=st.booleans(),
        tells=st.booleans(),
        first=changes(),
    )
    def choose(self, checkpoint_format, name, num_partitions, incremental, lazy, tells, first):
        """Choose options, and commit once: the simplest history is of rules without arguments."""
        self.tells_key_groups = tells
        self.format, self.name = checkpoint_format, name
        self.options = {**OPTIONS, "rocksdb_incremental": incremental}
        self.commit_options = {**self.options, **(LAZY if lazy else {})}
        self.versions[0] = Version(num_partitions, {}, dict.fromkeys(range(num_partitions)))
        self.commit(first)

    def start_engine(self):
        self.num_engines += 1
        scratch = f"{self.directory}/scratch-{self.num_engines}"
        Path(scratch).mkdir()
        return EngineService(scratch, self.io)

    def call(self, op, partition, **fields):
        request = {
            "op": op,
            "store": {
                "root": self.root, "operator": 0, "partition": partition, "name": self.name,
            },
            "backend": self.backend,
            "checkpoint_format": self.format,
            "options": self.options,
            **fields,
        }  # fmt: skip
        reply = json.loads(self.engine.call(json.dumps(request)))
        assert "ok" in reply, reply
        return reply["ok"]

    def location(self, partition):
        return StoreLocation(self.io, self.root, StoreName(0, partition, self.name), self.body)

    def asked_id(self, version, partition):
        made = self.versions[version].made[partition]
        return made["checkpoint_id"] if self.format == 2 else None

    @property
    def current(self):
        return self.versions[self.newest]

    @rule(changes=changes())
    def commit(self, changes):
        before = self.current
        after = Version(before.num_partitions, dict(before.rows))
        for key, (op, value) in changes.items():
            if op == DELETE:
                after.rows.pop(key, None)
            else:
                after.rows[key] = (after.rows.get(key, b"") if op == MERGE else b"") + value
        for partition in range(after.num_partitions):
            rows = [
                Row(group_of(key), 0, op, key, None if op == DELETE else value)
                for key, (op, value) in changes.items()
                if group_of(key) % after.num_partitions == partition
            ]
            after.made[partition] = self.commit_partition(partition, before, after, rows)
        self.newest += 1
        self.versions = {v: kept for v, kept in self.versions.items() if v < self.newest}
        self.versions[self.newest] = after
        self.forgets_below(self.newest - NUM_RETAINED + 1)
        self.can_undo = False

    def commit_partition(self, partition, before, after, rows):
        self.num_attempts += 1
        path = f"{self.directory}/{self.num_attempts}.arrows"
        ops = [row.op for row in rows]
        owned = [key for key in after.rows if group_of(key) % after.num_partitions == partition]
        growth = [0] * NUM_CLASSES
        for sign, those in ((-1, before.rows), (1, after.rows)):
            for group in map(group_of, those):
                if group % after.num_partitions == partition:
                    growth[class_of(group, after.num_partitions)] += sign
        reply = self.call(
            "commit",
            partition,
            version=self.newest + 1,
            parent=before.made[partition],
            checkpoint_id=f"{self.num_attempts:032x}",
            delta={
                "path": path,
                "length": write_stream(path, rows, G, block_rows=2),
                "put": ops.count(PUT),
                "delete": ops.count(DELETE),
                "merge": ops.count(MERGE),
            },
            num_keys=len(owned),
            key_group_growth=growth if self.tells_key_groups else None,
            max_parallelism=G,
            num_partitions=after.num_partitions,
            rescalable=True,
            column_families=[{"id": 0, "name": "default"}],
            force_snapshot=False,
            options=self.commit_options,
        )
        return {
            "version": self.newest + 1,
            "checkpoint_id": reply["checkpoint_id"],
            "lineage": reply["lineage"],
        }

    @precondition(lambda self: self.newest > 0)
    @rule(
        num_partitions=st.sampled_from(DIVISORS),
        fails_at=st.none() | st.integers(0, 30),
        happens=st.booleans(),
    )
    def rescale(self, num_partitions, fails_at, happens):
        """Rescale, once more after a call to the storage failed or lost its reply."""
        before = self.current
        plan = self.plan_rescale(num_partitions)
        if fails_at is not None:
            self.write_until(plan, Fault(fails_at, happens, ("write", "publish")))
        published = self.write(plan)
        assert self.write(plan) == published
        made = {
            partition: {
                "version": file.trailer.version,
                "checkpoint_id": file.trailer.checkpoint_id,
                "lineage": file.trailer.lineage,
            }
            for partition, file in published.items()
        }
        self.before_rescale, self.newest = self.newest, self.newest + 1
        self.versions = {v: kept for v, kept in self.versions.items() if v < self.newest}
        self.versions[self.newest] = Version(num_partitions, dict(before.rows), made, True)
        self.oldest = self.newest
        self.can_undo = True

    @precondition(lambda self: self.newest > 0 and 12 % self.current.num_partitions == 0)
    @rule(batches=st.lists(changes(), min_size=3, max_size=4))
    def split_and_join(self, batches):
        """Some partitions summarise the files they share with others, which go on to name them."""
        num_partitions = self.current.num_partitions
        self.rescale(2 * num_partitions, None, happens=False)
        for batch in batches:
            self.commit(batch)
        self.maintain_some(range(num_partitions))
        self.commit(batches[0])
        self.rescale(num_partitions, None, happens=False)

    def plan_rescale(self, num_partitions):
        heads = {
            partition: read_delta_trailer(
                self.location(partition), self.newest, self.asked_id(self.newest, partition)
            )
            for partition in range(self.current.num_partitions)
        }
        return RescaledStores(heads, self.newest + 1, num_partitions)

    def write_until(self, plan, fault):
        self.io.arm(fault)
        try:
            self.write(plan)
        except StorageError:
            assert self.io.has_failed
        self.io.arm(None)

    def write(self, plan):
        self.settle()
        return {
            partition: write_rescaled_version(
                self.location(partition), store, self.directory, clock=SystemClock()
            )
            for partition, store in plan.items()
        }

    @precondition(lambda self: self.can_undo)
    @rule()
    def undo(self):
        for partition in range(self.current.num_partitions):
            undo_rescaled_version(self.location(partition), self.newest)
            undo_rescaled_version(self.location(partition), self.newest)
        self.versions.pop(self.newest)
        self.oldest = self.newest = self.before_rescale
        self.can_undo = False
        self.check_version(self.newest)

    @precondition(lambda self: self.newest > 0)
    @rule(num_partitions=st.sampled_from(DIVISORS), fails_at=st.integers(0, 30))
    def give_up_rescale(self, num_partitions, fails_at):
        """A rescale was killed before it planned its batch; the query goes on without it."""
        fault = Fault(fails_at, False, ("write", "publish"))
        self.write_until(self.plan_rescale(num_partitions), fault)
        self.cut_off.update(filter(self.is_cut_off, Path(self.root).rglob("*.ref")))
        self.give_up_later_versions()

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def repair(self, data):
        """The logs go back to a version, also behind a rescale; no query runs."""
        retained = [v for v in self.versions if self.oldest_to_repair <= v <= self.newest]
        self.go_back_to(data.draw(st.sampled_from(retained)))

    def go_back_to(self, version):
        self.newest = self.oldest = version
        self.give_up_later_versions()
        self.restart_engine()
        self.check_version(self.newest)
        self.forgets_below(self.newest - NUM_RETAINED + 1)

    def give_up_later_versions(self):
        self.versions = {v: kept for v, kept in self.versions.items() if v <= self.newest}
        self.can_undo = False

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def load(self, data):
        """A batch failed: any version that is retained."""
        retained = [number for number in self.versions if number >= max(self.oldest, 1)]
        version = data.draw(st.sampled_from(retained))
        self.settle()  # a cleanup after a snapshot would take what follows for old attempts'
        self.check_version(version)
        self.newest = version
        self.forgets_below(version - NUM_RETAINED + 1)

    def forgets_below(self, version):
        """A cleanup may have come: versions below do not come back."""
        self.oldest = max(self.oldest, version)
        self.oldest_to_repair = max(self.oldest_to_repair, version)

    def check_version(self, version):
        of = self.versions[version]
        found = {}
        for partition in range(of.num_partitions):
            rows = self.rows_of(version, partition, of.num_partitions)
            assert all(group_of(key) % of.num_partitions == partition for key in rows)
            found |= rows
        assert found == of.rows

    def rows_of(self, version, partition, num_partitions):
        loaded = self.call(
            "load",
            partition,
            version=version,
            checkpoint_id=self.asked_id(version, partition),
            num_partitions=num_partitions,
        )
        is_in_files = loaded["view"] is None
        rows = rows_in_files(loaded, G) if is_in_files else rows_in_view(loaded, partition)
        # Of what a rescale made, who reads the rows counts them.
        is_unknown = self.versions[version].is_rescaled and loaded["num_keys"] is None
        assert is_unknown or loaded["num_keys"] == len(rows)
        return rows

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def maintain(self, data):
        num_partitions = self.current.num_partitions
        some = data.draw(st.sets(st.integers(0, num_partitions - 1), min_size=1))
        self.maintain_some(some)

    def settle(self):
        """Wait for what runs beside the calls: to this engine every file of no use is old."""
        while json.loads(self.engine.call('{"op": "status"}'))["ok"]["snapshots_in_flight"]:
            time.sleep(0.001)

    def maintain_some(self, partitions):
        self.settle()
        for partition in sorted(partitions):
            self.call(
                "maintain",
                partition,
                version=self.newest,
                checkpoint_id=self.current.made[partition]["checkpoint_id"],
                snapshot=True,
                cleanup=True,
            )
        self.forgets_below(self.newest - NUM_RETAINED + 1)

    @rule()
    def restart_engine(self):
        """Another executor: it knows nothing and has nothing local."""
        self.settle()  # one that is gone cleans nothing up, as this process would go on to do
        self.engine = self.start_engine()

    def teardown(self):
        """Retained versions load; then the old layouts' files go, with all that kept them."""
        if self.newest > 0:
            type(self).num_lived += 1
            # Later ones were given up: to load one would clean up what goes on here.
            for version in self.versions:
                if max(self.oldest, 1) <= version <= self.newest:
                    self.check_version(version)
            for number in range(2 * NUM_RETAINED + 6):
                self.commit({b"a": (PUT, bytes([number]))})
                self.maintain_some(range(self.current.num_partitions))
            self.check_version(self.newest)
            self.check_files()
            self.settle()
        shutil.rmtree(self.directory)

    def check_files(self):
        rescaled = [number for number, of in self.versions.items() if of.is_rescaled]
        last_rescale = max(rescaled, default=0)
        alive = {self.location(p).directory for p in range(self.current.num_partitions)}
        paths = [path for path in Path(self.root).rglob("*") if path.is_file()]
        cut_off = {path.parent for path in self.cut_off.intersection(paths)}
        for path in paths:
            if str(path.parent) not in alive and path.parent in cut_off:
                continue
            assert str(path.parent) in alive, sorted(map(str, paths))
            name = parse_state_file_name(path.name)
            assert name is not None, sorted(map(str, paths))
            assert name.version >= last_rescale
        for partition in range(self.current.num_partitions):
            asked = self.asked_id(self.newest, partition)
            head = read_delta_trailer(self.location(partition), self.newest, asked)
            assert not any(ref.is_foreign for ref in head.trailer.files)

    def is_cut_off(self, path):
        """Return whether a rescale was killed when it had made a directory and nothing else."""
        ref = parse_rescale_ref_name(path.name)
        if ref is None or path.parent != Path(self.location(ref.partition).directory):
            return False
        others = {*json.loads(path.read_text())["sources"]} - {ref.partition}
        return not any(Path(self.location(p).path(path.name)).exists() for p in others)


def rows_in_view(loaded, partition):
    """Rows of a version in the view that the engine names."""
    modulus = loaded["num_partitions"] if loaded["key_group_filter"] else 1
    database = Rdict(loaded["view"], Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return {
            key[2:]: value[2:]
            for key, value in database.items()
            if int.from_bytes(value[:2]) % modulus == partition % modulus
        }
    finally:
        database.close()


class RocksDBRescaleMachine(RescaleMachine):
    """The same with local databases and merged files."""

    backend = "rocksdb"
    body = "sst"


TestRescale = pytest.mark.timeout(600)(case_of(RescaleMachine, divisor=5, steps=20))
TestRocksDBRescale = pytest.mark.timeout(600)(case_of(RocksDBRescaleMachine, divisor=16, steps=15))


@pytest.mark.parametrize("machine", [RescaleMachine, RocksDBRescaleMachine])
def test_files_of_a_partition_that_came_back_go(machine):
    """Catches references of a state partition's earlier life that keep files for ever."""
    machine.num_lived = 0
    history = machine()
    batch = {b"key-%d" % number: (PUT, b"v") for number in range(24)}
    history.choose(1, "default", 1, incremental=True, lazy=False, tells=True, first={})
    history.rescale(12, None, happens=False)
    history.split_and_join([batch] * 3)
    history.commit({})
    history.commit({})
    history.rescale(3, None, happens=False)
    history.split_and_join([batch] * 4)
    history.commit({})
    history.rescale(12, None, happens=False)
    history.commit({})
    history.teardown()


def repair_behind_a_rescale(history):
    history.rescale(4, None, happens=False)
    for _ in range(2):
        history.commit({b"b": (PUT, b"v")})
    history.go_back_to(3)


def repair_far_behind_a_rescale(history):
    """Versions that are given up are newer than those that follow, when these need no reference."""
    history.commit_options = {**history.options, **LAZY}
    history.rescale(4, None, happens=False)
    for _ in range(9):
        history.commit({b"b": (PUT, b"v")})
    history.commit_options = history.options
    history.go_back_to(3)


def give_up_a_rescale(history):
    history.give_up_rescale(4, fails_at=100)


def repair_and_rescale_to_fewer(history):
    history.go_back_to(1)
    history.rescale(1, None, happens=False)


@pytest.mark.parametrize("machine", [RescaleMachine, RocksDBRescaleMachine])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize(
    "happens",
    [
        repair_behind_a_rescale,
        repair_far_behind_a_rescale,
        give_up_a_rescale,
        repair_and_rescale_to_fewer,
    ],
)
def test_files_that_were_given_up_go(machine, checkpoint_format, happens):
    """Catches files of versions that are no longer, in state partitions that are no longer."""
    machine.num_lived = 0
    history = machine()
    batch = {b"key-%d" % number: (PUT, b"v") for number in range(24)}
    history.choose(
        checkpoint_format, "default", 2, incremental=True, lazy=False, tells=True, first=batch
    )
    for _ in range(2):
        history.commit(batch)
    happens(history)
    history.commit(batch)
    history.teardown()
