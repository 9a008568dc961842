"""Every contract test runs once per backend and storage."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from statestore.codec.sealed_file import SealedFile
from statestore.core.clock import ManualClock
from statestore.core.ids import RandomIds
from statestore.core.options import StateStoreOptions
from statestore.io.checkpoint_memory import CheckpointMemoryFileIO
from statestore.io.fetch_cache import FetchCache
from statestore.io.file_io import FileIO
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.s3 import S3FileIO
from statestore.store.store import Store
from tests.engine_process import CheckpointMemory
from tests.seams import at


@dataclass
class StoreBench:
    """Opens stores of one checkpoint and closes them at the end."""

    io: FileIO
    root: str
    clock: ManualClock
    backend: str = "filesystem"
    checkpoint_format: int = 1
    opened: list[Store] = field(default_factory=list)

    @property
    def directory(self):
        """Directory of operator 0, partition 0, store default."""
        return f"{self.root}/state/0/0"

    def open(self, version=None, checkpoint_id=None, **how):
        """Open a store; options may be given by field name."""
        names = StateStoreOptions.__dataclass_fields__
        options = {name: how.pop(name) for name in list(how) if name in names}
        checkpoint = at(
            self.root,
            options=StateStoreOptions(**options),
            io=self.io,
            ids=RandomIds(),
            clock=self.clock,
        )
        store = checkpoint.open_store(
            version=version,
            checkpoint_id=checkpoint_id,
            checkpoint_format=self.checkpoint_format,
            backend=self.backend,
            **how,
        )
        self.opened.append(store)
        return store

    def files_before(self, store):
        """Kinds of the files that must be applied before the delta of the store's version."""
        checkpoint_id = store.checkpoint_id if self.checkpoint_format == 2 else ""
        stem = f"{store.version}_{checkpoint_id}".rstrip("_")
        (name,) = (name for name in self.file_names() if name.startswith(f"{stem}.delta."))
        trailer = SealedFile(self.io.fetch(f"{self.directory}/{name}")).trailer
        return [ref.kind for ref in trailer.files]

    def file_names(self):
        """Names of the store's files."""
        return sorted(info.name for info in self.io.list(self.directory))


def pytest_collection_modifyitems(items):
    """Leave what takes seconds on S3 to the long lane."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if item.get_closest_marker("slow_on_s3") and params.get("bench", "").endswith("s3"):
            item.add_marker(pytest.mark.extended)


@pytest.fixture(scope="session")
def driver_memory(tmp_path_factory):
    """A checkpoint memory in a process of its own."""
    with CheckpointMemory(str(tmp_path_factory.mktemp("scratch") / "memory")) as memory:
        yield memory


@pytest.fixture(
    params=[
        "filesystem-local",
        "filesystem-memory",
        "filesystem-s3",
        "heap-driver",
        "rocksdb-local",
        "rocksdb-s3",
    ]
)
def bench(request, tmp_path):
    """A checkpoint of the backend and storage the test runs on."""
    clock = ManualClock()
    root = str(tmp_path / "checkpoint")
    cache = tmp_path / "cache"
    cache.mkdir()
    if request.param.endswith("local"):
        io = LocalFileIO()
    elif request.param.endswith("memory"):
        io = MemoryFileIO(str(cache), clock)
    elif request.param.endswith("driver"):
        address = request.getfixturevalue("driver_memory").address
        io = CheckpointMemoryFileIO(address, FetchCache(str(cache), 0))
    else:
        io = S3FileIO(str(cache), request.getfixturevalue("s3_server").settings())
        root = f"/{request.getfixturevalue('bucket')}/checkpoint"
    backend = "rocksdb" if request.param.startswith("rocksdb") else "filesystem"
    found = StoreBench(io, root, clock, backend)
    yield found
    for store in found.opened:
        store.close()
    assert not list(Path(tmp_path).rglob(".tmp-*"))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def any_format(request, bench):
    """The same for each of Spark's checkpoint formats."""
    bench.checkpoint_format = request.param
    return bench
