"""Random attempts of each version, with snapshots of any and cleanups, against a dict a version."""

import random
from dataclasses import replace

import pytest

from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.backends.rocksdb.database_memory import DatabaseMemory
from statestore.backends.rocksdb.versions import RocksDBVersions
from statestore.checkpoint.layout import BODIES, StoreLocation
from statestore.codec.references import StoreName
from statestore.codec.rows import PUT, Row
from statestore.core.clock import SystemClock
from statestore.core.errors import FencedError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.testing.deltas import new_version, write_stream
from tests.seams import at

G = 8
NUM_STEPS = 40
OPTIONS = StateStoreOptions(
    fsync_enabled=False, snapshot_max_chain_length=5, rocksdb_merge_min_files=4
)


class Lives:
    """A store of two engines: each version has attempts, of which one is chosen."""

    def __init__(self, directory, backend, checkpoint_format, seed):
        self.directory, self.backend, self.format = directory, backend, checkpoint_format
        self.random = random.Random(seed)
        self.location = StoreLocation(
            LocalFileIO(), f"{directory}/ck/state", StoreName(0, 0), BODIES[backend]
        )
        self.num_engines = 0
        self.engines = [self.new_engine(), self.new_engine()]
        self.chosen = []
        self.attempts = []
        self.rows = [{}]
        self.oldest = 1

    def new_engine(self):
        """What an engine has of the store, which knows nothing of it yet."""
        self.num_engines += 1
        if self.backend == "filesystem":
            return FilesystemVersions(self.location, SystemClock())
        local = f"{self.directory}/local-{self.num_engines}"
        return RocksDBVersions(self.location, SystemClock(), local, DatabaseMemory(8 << 20))

    def attempt(self, value):
        """Commit the next version by one of the engines."""
        version = len(self.chosen) + 1
        parent = self.chosen[-1] if self.chosen else None
        rows = [Row(version % G, 0, PUT, b"k%d" % (version % G), value)]
        path = f"{self.directory}/delta-{version}"
        new = replace(
            new_version(
                version,
                parent and parent.trailer.version_ref,
                f"{self.random.getrandbits(128):032x}",
                rows,
                min(version, G),
                checkpoint_format=self.format,
            ),
            backend=self.backend,
        )
        length = write_stream(path, rows, G)
        engine = self.random.choice(self.engines)
        return engine.commit(new, path, length, OPTIONS)

    def commit(self):
        """Attempt a version once or twice; in format v1 the last attempt counts."""
        version = len(self.chosen) + 1
        values = [b"%d" % version]
        if self.random.random() < 0.5:
            values.append(values[0] if self.random.random() < 0.8 else b"other")
        self.attempts = self.attempts[-6:] + [self.attempt(value) for value in values]
        made = len(values)
        count = self.random.randrange(made) if self.format == 2 else made - 1
        self.chosen.append(self.attempts[count - made])
        key = b"k%d" % (version % G)
        self.rows.append({**self.rows[-1], key: values[count]})

    def take_snapshot(self):
        """Summarise one of the last attempts, whether it was chosen or not."""
        head = self.random.choice(self.attempts)
        try:
            self.random.choice(self.engines).take_snapshot(head, str(self.directory), OPTIONS)
        except (NotFoundError, FencedError):
            # Its files are gone, or were replaced in format v1.
            assert head not in self.chosen or head.trailer.version < self.oldest

    def clean_up(self):
        """Clean up by an attempt of the newest version, with a retention and an age of orphans."""
        newest = len(self.chosen)
        heads = [head for head in self.attempts if head.trailer.version == newest]
        num_retained = self.random.choice([1, 2, 3, 100])
        options = replace(
            OPTIONS,
            min_versions_to_retain=num_retained,
            orphan_age_ms=self.random.choice([0, 3_600_000]),
        )
        head = self.random.choice(heads) if self.format == 2 else self.chosen[-1]
        self.random.choice(self.engines).clean_up(head, options)
        # The version before the newest is kept in any case.
        self.oldest = max(self.oldest, newest - max(num_retained, 2) + 1)

    def start_again(self):
        """Start one of the engines anew."""
        self.engines[self.random.randrange(2)] = self.new_engine()

    def check(self):
        """Check that every retained version loads and has the model's rows."""
        for version in range(self.oldest, len(self.chosen) + 1):
            asked = self.chosen[version - 1].trailer.checkpoint_id if self.format == 2 else None
            with at(f"{self.directory}/ck", options=OPTIONS).open_store(
                version=version,
                checkpoint_id=asked,
                checkpoint_format=self.format,
                backend=self.backend,
            ) as store:
                assert dict(store.scan()) == self.rows[version]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_every_retained_version_loads_whatever_attempts_were_summarised(
    tmp_path, backend, checkpoint_format, seed
):
    """Catches the summary of an attempt that was not chosen in the files of one that was."""
    lives = Lives(tmp_path, backend, checkpoint_format, seed)
    steps = [lives.commit, lives.take_snapshot, lives.clean_up, lives.start_again]
    lives.commit()
    for _ in range(NUM_STEPS):
        lives.random.choices(steps, weights=[6, 2, 2, 1])[0]()
        lives.check()
