"""Random histories of one store against a dict per version, files on disk included."""

import shutil
import tempfile
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.rescale_refs import References
from statestore.checkpoint.retention import KnownDeltas, plan_cleanup
from statestore.checkpoint.summaries import Summaries
from statestore.checkpoint.trailers import read_delta_trailer, read_trailer
from statestore.core.errors import StorageError, StoreClosedError
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from tests.fault_io import Fault, FaultFileIO
from tests.models import StoreModel, keys, values
from tests.seams import at

NUM_RETAINED = 3


class StoreMachine(RuleBasedStateMachine):
    """Puts, deletes, merges, scans, commit, abort, reload, retry, snapshot, cleanup."""

    def __init__(self):
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="store-machine-")
        self.io = FaultFileIO(LocalFileIO())
        self.model = StoreModel()
        self.ids = {0: None}
        self.oldest = 0

    @initialize(
        checkpoint_format=st.sampled_from([1, 2]), compression=st.sampled_from(["none", "zstd"])
    )
    def open(self, checkpoint_format, compression):
        self.format = checkpoint_format
        self.options = StateStoreOptions(
            file_compression=compression,
            fsync_enabled=False,
            min_versions_to_retain=NUM_RETAINED,
            orphan_age_ms=0,
        )
        self.store = self.reopen(0)
        self.batch = self.store.begin()

    def reopen(self, version):
        """A fresh handle, which knows nothing."""
        return at(self.root, options=self.options, io=self.io).open_store(
            version=version, checkpoint_id=self.asked_id(version), checkpoint_format=self.format
        )

    def asked_id(self, version):
        """The attempt Spark would name: none in checkpoint format v1."""
        return self.ids[version] if self.format == 2 else None

    @rule(key=keys(), value=values())
    def put(self, key, value):
        self.batch.put(key, value)
        self.model.put(key, value)

    @rule(key=keys())
    def delete(self, key):
        self.batch.delete(key)
        self.model.delete(key)

    @rule(key=keys(), value=values())
    def merge(self, key, value):
        self.batch.merge(key, value)
        self.model.merge(key, value)

    @rule(key=keys())
    def get(self, key):
        assert self.batch.get(key) == self.model.working.get(key)

    @rule(prefix=keys())
    def scan(self, prefix):
        assert list(self.batch.scan(prefix)) == self.model.scan(prefix)

    @rule(
        fault=st.sampled_from([None, Fault(0), Fault(0, happens=True)]), is_given_up=st.booleans()
    )
    def commit(self, fault, is_given_up=False):
        """Commit; with a fault the publish fails, or loses its reply; it is repeated, or not."""
        if fault is not None:
            self.io.arm(Fault(0, fault.happens, ("publish",)))
            with pytest.raises(StorageError):
                self.batch.commit()
            self.io.arm(None)
            with pytest.raises(StoreClosedError):
                self.batch.put(b"more", b"")
            if is_given_up:
                self.abort()
                return
        version = self.batch.commit()
        assert version == self.model.commit()
        self.ids = {v: id_ for v, id_ in self.ids.items() if v < version}
        self.ids[version] = self.store.checkpoint_id
        self.batch = self.store.begin()

    @rule()
    def abort(self):
        self.batch.abort()
        self.batch = self.store.begin()
        self.model.load(self.model.version)

    @rule(data=st.data(), fresh=st.booleans())
    def load(self, data, fresh):
        """Go to any retained version, by this handle or a new one: a failed batch, a restart."""
        version = data.draw(st.sampled_from([v for v in self.ids if v == 0 or v >= self.oldest]))
        if version == 0 and self.oldest > 0:
            return
        if fresh:
            self.store.close()
            self.store = self.reopen(version)
        else:
            self.store.load(version, self.asked_id(version))
        self.batch = self.store.begin()
        self.model.load(version)

    @precondition(lambda self: self.model.version > 0)
    @rule(fails=st.booleans())
    def snapshot(self, fails):
        if fails:
            self.io.arm(Fault(0, calls=("publish",)))
        try:
            self.store.snapshot()
        except StorageError:
            assert fails
        self.io.arm(None)

    @rule(num_versions=st.integers(1, 4))
    def go_on(self, num_versions):
        """Versions with snapshots, as many as a cleanup must look at."""
        for _ in range(num_versions):
            self.commit(None)
            self.snapshot(False)

    @precondition(lambda self: self.model.version > 0)
    @rule(num_retained=st.integers(1, 3 * NUM_RETAINED))
    def clean_up(self, num_retained):
        """Retention may be raised: files that it would keep are gone then."""
        options = replace(self.options, min_versions_to_retain=num_retained)
        self.store._versions.clean_up(self.store._head, options)
        self.oldest = max(self.oldest, self.model.version - num_retained + 1)

    @invariant()
    def rows_are_the_models(self):
        if not hasattr(self, "store"):
            return
        assert list(self.store.scan()) == sorted(self.model.versions[self.model.version].items())
        assert len(self.store) == len(self.model.versions[self.model.version])

    @invariant()
    def files_are_what_the_trailers_say(self):
        """Every retained version's files are there; nothing lies below the low-water mark."""
        if not hasattr(self, "store") or self.model.version == 0:
            return
        location = self.store._versions.location
        names = {info.name for info in self.io.list(location.directory)}
        for version, checkpoint_id in self.ids.items():
            if version == 0 or version < self.oldest:
                continue
            head = read_delta_trailer(location, version, self.asked_id(version))
            assert head.trailer.num_keys == len(self.model.versions[version])
            assert self.format == 1 or head.trailer.checkpoint_id == checkpoint_id
            for ref in head.trailer.files:
                assert ref.path in names
                found = read_trailer(location, ref.path)
                assert (found.trailer.lineage, found.ref.rows) == (ref.lineage, ref.rows)
        assert all(parse_state_file_name(name) for name in names)

    def teardown(self):
        """Every retained version restores; a last cleanup leaves nothing to clean."""
        if not hasattr(self, "store"):
            return
        for version in self.ids:
            if version >= max(self.oldest, 1):
                with self.reopen(version) as store:
                    assert list(store.scan()) == sorted(self.model.versions[version].items())
        if self.model.version > 0:
            self.store.clean_up()
            location = self.store._versions.location
            head = read_delta_trailer(
                location, self.model.version, self.asked_id(self.model.version)
            )
            files = self.io.list(location.directory)
            summaries = Summaries(location)
            plan = plan_cleanup(
                location,
                head,
                files,
                summaries,
                References(location),
                self.options,
                0,
                KnownDeltas(),
            )
            assert plan.delete == ()
        self.store.close()
        shutil.rmtree(self.root)


TestStore = pytest.mark.timeout(600)(StoreMachine.TestCase)
