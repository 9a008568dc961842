"""Random histories of one store through a real engine that is killed with -9 in between."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from rocksdict import AccessType, Options, Rdict

from statestore.backends.rocksdb.sst import split_row
from statestore.codec.rows import DELETE, MERGE, PUT, Row
from statestore.testing.deltas import write_stream
from tests.engine_process import EngineGoneError, EngineProcess
from tests.models import StoreModel, keys, values
from tests.shim import G, rows_in_files, write_sst
from tests.stateful.histories import case_of

OPTIONS = {
    "fsync_enabled": False,
    "snapshot_max_chain_length": 3,
    "orphan_age_ms": 0,
    "rocksdb_merge_min_files": 3,
}


def changes():
    """Changes of a batch: operation and value by key."""
    return st.dictionaries(keys(), st.tuples(st.sampled_from([PUT, DELETE, MERGE]), values()))


class EngineMachine(RuleBasedStateMachine):
    """Commits, repeats, loads and maintenance; the engine may die before any of them."""

    backend = "filesystem"

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="engine-machine-")
        self.scratch = f"{self.directory}/statestore-scratch-1"
        self.store = {"root": f"{self.directory}/ck/state", "operator": 0, "partition": 0}
        self.engine = EngineProcess(self.scratch)
        self.model = StoreModel()
        self.commits = {0: (None, None)}
        self.oldest = 1
        self.num_attempts = 0

    @initialize(
        checkpoint_format=st.sampled_from([1, 2]),
        incremental=st.booleans(),
        first=changes(),
        data=st.data(),
    )
    def choose(self, checkpoint_format, incremental, first, data):
        """Choose options, and commit once: the simplest history is of rules without arguments."""
        self.format = checkpoint_format
        self.options = {**OPTIONS, "rocksdb_incremental": incremental}
        self.commit(first, "once", data)

    def call(self, op, **fields):
        """What the shim does: a call whose engine died is sent again to a new one."""
        try:
            return self.engine.call(op, **fields)
        except EngineGoneError:
            self.engine.kill()
            self.engine = EngineProcess(self.scratch)
            return self.engine.call(op, **fields)

    def asked_id(self, version):
        return self.commits[version][1]["checkpoint_id"] if self.format == 2 else None

    @rule(
        changes=changes(),
        ending=st.sampled_from(["once", "twice", "killed before", "killed after"]),
        data=st.data(),
    )
    def commit(self, changes, ending, data):
        for key, (op, value) in changes.items():
            {PUT: self.model.put, MERGE: self.model.merge}.get(
                op, lambda key, _: self.model.delete(key)
            )(key, value)
        rows = [
            Row(sum(key) % G, 0, op, key, None if op == DELETE else value)
            for key, (op, value) in changes.items()
        ]
        _, parent = self.commits[self.model.version]
        version = self.model.commit()
        self.num_attempts += 1
        request = self.request(version, parent, rows, data)
        if ending == "killed before":
            self.engine.process.kill()
            self.engine.process.wait()
        reply = self.call("commit", **request)
        if ending == "killed after":
            self.engine.process.kill()
            self.engine.process.wait()
        if ending in ("twice", "killed after"):
            again = self.call("commit", **request)
            assert (again["lineage"], again["size"]) == (reply["lineage"], reply["size"])
        made = {
            "version": version,
            "checkpoint_id": reply["checkpoint_id"],
            "lineage": reply["lineage"],
        }
        self.commits = {v: made for v, made in self.commits.items() if v < version}
        self.commits[version] = (parent, made)

    def request(self, version, parent, rows, data):
        path = f"{self.scratch}/{self.num_attempts}.arrows"
        ops = [row.op for row in rows]
        length = write_stream(path, rows, G)
        return {
            "store": self.store,
            "backend": self.backend,
            "version": version,
            "parent": parent,
            "checkpoint_id": f"{self.num_attempts:032x}",
            "checkpoint_format": self.format,
            "delta": {
                "path": path,
                "length": length,
                "put": ops.count(PUT),
                "delete": ops.count(DELETE),
                "merge": ops.count(MERGE),
            },
            "num_keys": len(self.model.working),
            "max_parallelism": G,
            "num_partitions": 1,
            "rescalable": True,
            "column_families": [{"id": 0, "name": "default"}],
            "force_snapshot": False,
            "options": self.options,
        }

    @rule()
    def kill(self):
        self.engine.process.kill()
        self.engine.process.wait()

    @precondition(lambda self: self.model.version > 0)
    @rule(data=st.data())
    def load(self, data):
        retained = [version for version in self.commits if version >= self.oldest]
        version = data.draw(st.sampled_from(retained))
        self.model.load(version)
        assert self.rows_of(version) == sorted(self.model.versions[version].items())

    def rows_of(self, version):
        """Rows of a version, merged from the files the engine names, as the shim would."""
        loaded = self.call(
            "load",
            store=self.store,
            backend=self.backend,
            version=version,
            checkpoint_id=self.asked_id(version),
            num_partitions=1,
            checkpoint_format=self.format,
            options=self.options,
        )
        is_in_files = loaded["view"] is None
        found = [*rows_in_files(loaded, G).items()] if is_in_files else rows_in_view(loaded)
        assert loaded["num_keys"] == len(found)
        return sorted(found)

    @precondition(lambda self: self.model.version > 0)
    @rule(num_retained=st.integers(1, 6))
    def maintain(self, num_retained):
        self.call(
            "maintain",
            store=self.store,
            backend=self.backend,
            version=self.model.version,
            checkpoint_id=self.asked_id(self.model.version),
            snapshot=True,
            cleanup=True,
            options={**self.options, "min_versions_to_retain": num_retained},
        )
        self.oldest = max(self.oldest, self.model.version - num_retained + 1)

    def teardown(self):
        type(self).num_lived += self.model.version > 0
        for version in self.commits:
            if version >= self.oldest:
                assert self.rows_of(version) == sorted(self.model.versions[version].items())
        self.engine.kill()
        assert not list(Path(self.directory).rglob(".tmp-*"))
        shutil.rmtree(self.directory)


def rows_in_view(loaded):
    """Rows of a version, read from the view the engine names, as another process would."""
    database = Rdict(loaded["view"], Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        rows = [split_row(key, value) for key, value in database.items()]
    finally:
        database.close()
    assert all(group == sum(key) % G for _, key, group, _ in rows)
    return [(key, value) for _, key, _, value in rows]


class RocksDBEngineMachine(EngineMachine):
    """The same with the local database between the engine and the shim.

    The shim writes the SST of most commits itself. The local disk may be lost with the engine.
    """

    backend = "rocksdb"

    def request(self, version, parent, rows, data):
        request = super().request(version, parent, rows, data)
        if self.options["rocksdb_incremental"] and data.draw(st.booleans(), label="SST"):
            # Only the engine puts values together: there are no merges in it.
            working = self.model.working
            whole = [
                replace(row, op=PUT, value=working[row.key]) if row.op == MERGE else row
                for row in rows
            ]
            request["delta"] = write_sst(f"{request['delta']['path']}.sst", whole)
        return request

    @rule()
    def lose_local_disk(self):
        self.kill()
        shutil.rmtree(f"{self.scratch}/engine-0/rocksdb", ignore_errors=True)

    @precondition(lambda self: self.model.version > 0)
    @rule()
    def view(self):
        """What the shim reads when a row of the version it is at is not in its cache."""
        version = self.model.version
        reply = self.call(
            "view",
            store=self.store,
            backend=self.backend,
            version=self.commits[version][1],
            checkpoint_format=self.format,
            options=self.options,
        )
        assert sorted(rows_in_view(reply)) == sorted(self.model.versions[version].items())


TestEngine = pytest.mark.timeout(600)(case_of(EngineMachine, divisor=8, steps=10))
TestRocksDBEngine = pytest.mark.timeout(600)(case_of(RocksDBEngineMachine, divisor=12, steps=10))
