"""What is damaged: for each state backend every form of file, and what reads it.

All is made once, through the engine and the store; a trial writes one damaged file, reads, and puts
the whole one back.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

from statestore import Checkpoint
from statestore.checkpoint.layout import StoreLocation, lease_directory, pin_name
from statestore.checkpoint.lease import Holder, Lease
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.rescale_refs import find_refs, release
from statestore.codec.references import StoreName
from statestore.core.clock import ManualClock
from statestore.core.errors import InUseError
from statestore.core.process import Process
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import require_not_in_use
from statestore.operations.savepoint.savepoint import open_savepoint
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS
from tests.checkpoints import NUM_VERSIONS, run_versions
from tests.damage.reads import (
    OPTIONS,
    branched,
    described,
    every_version,
    expiry_planned,
    listed,
    read_checkpoint,
    repair_planned,
    repaired,
    rescale_planned,
    restored,
    taken,
    undo_planned,
    verified,
)
from tests.seams import at, place_of

ID = "0123456789abcdef" * 2

SEED = int(os.environ.get("STATESTORE_DAMAGE_SEED", SystemRandom().randrange(1 << 32)))


@dataclass
class Form:
    """Files of one form.

    Attributes:
        files: Those that are damaged, one at a time.
        others: Bytes that may stand in their place.
        read: Reads what the files are for, given a `random.Random` and which of them is damaged;
            returns a part of what there is, by name; None where damage was reported. All there is
            with `Everything` and None.
    """

    files: list[Path]
    others: list[bytes]
    read: Callable


def _store(root, backend, salt):
    """A checkpoint of one store: versions 1 to 6, 2 in a snapshot, 3 to 5 in a merged file."""
    with at(root, options=OPTIONS).open_store(backend=backend) as store:
        for _ in run_versions(store, Random(b"%d %s" % (SEED, salt)), salt + b" "):
            pass


def _of_store(directory, backend, pattern):
    for name in ("one", "two"):
        if not (directory / name).exists():
            _store(directory / name, backend, name.encode())
    root = directory / "one"
    files = sorted((root / "state/0/0").glob(pattern))
    pool = [path for path in directory.rglob("*.*") if path.is_file() and "state" in path.parts]

    def read(_rng, _path):
        with at(root, options=OPTIONS).open_store(version=NUM_VERSIONS) as store:
            return {"rows": dict(store.scan())}  # a part of these is no part of what there is

    return Form(files, [path.read_bytes() for path in pool], read)


def _checkpoint(directory, backend, checkpoint_format, num_partitions=2, **options):
    """A checkpoint of an aggregation and a join, or of the former where there are options."""
    scratch = Path(f"{directory}-scratch")
    scratch.mkdir(parents=True)
    made = MadeCheckpoint(
        str(directory), scratch, num_partitions, backend, checkpoint_format,
        OPERATORS[: 1 if options else 2],
        options={"fsync_enabled": False, **options},
    )  # fmt: skip
    for batch in range(3):
        made.run_batch({key: 100 * batch + key for key in range(4 * batch, 4 * batch + 12)})
    return made


def _of_checkpoint(root, files, read):
    pool = [path for path in root.rglob("*") if path.is_file()]
    kept = {path.suffix for path in files}
    others = [path.read_bytes() for path in pool if path.suffix in kept]
    return Form(files, others, read)


def _read(root, *operations, share=0.05):
    return lambda rng, path: read_checkpoint(root, rng, path, operations, share)


def _rescaled(directory, backend):
    root = directory / "rescaled"
    made = _checkpoint(root, backend, 2)
    Checkpoint(root).rescale(4)
    made.run_batch({key: -key for key in range(5, 15)})
    files = sorted(root.glob("state/*/*/**/*.delta.*"))
    return _of_checkpoint(root, files, _read(root, listed, repair_planned, verified))


def _of_spark(root):
    """Spark's own files."""
    logs = [*(root / "offsets").iterdir(), *(root / "commits").iterdir()]
    return sorted([*logs, *root.glob("state/*/_metadata/metadata"), root / "metadata"])


def _logs(directory, backend):
    """A batch is under way, which a restart would run again."""
    root = directory / "logs"
    _checkpoint(root, backend, 1, 1)
    offsets = root / "offsets"
    shutil.copy(offsets / "2", offsets / "3")
    looks = (listed, described, verified, repair_planned, repaired, expiry_planned, taken, branched)
    return _of_checkpoint(root, _of_spark(root), _read(root, *looks, every_version, share=0.1))


def _logs_rescaled(directory, backend):
    """The newest version is a rescale's, in checkpoint format v2."""
    root = directory / "logs-rescaled"
    _checkpoint(root, backend, 2, 1)
    Checkpoint(root).rescale(2)
    looks = (listed, described, verified, repair_planned, repaired, rescale_planned, undo_planned)
    looks += (taken, branched, every_version)
    return _of_checkpoint(root, _of_spark(root), _read(root, *looks, share=0.1))


def _savepoint(form):
    def make(directory, backend):
        _checkpoint(directory / form, backend, 2)
        root = directory / f"savepoint-{form}"
        at(directory / form, options=OPTIONS).savepoint(root, form=form)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        look = _read(root, listed, described, verified, restored)

        def read(rng, path):
            with open_savepoint(place_of(root)):
                return look(rng, path)

        return _of_checkpoint(root, files, read)

    return make


def _placement(directory, backend):
    root = directory / "placed"
    _checkpoint(root, backend, 2, checkpoint_storage=str(directory / "storage"))
    look = _read(root, listed, repair_planned, verified)
    return _of_checkpoint(root, [root / "statestore.json"], look)


def _lease(directory, backend):
    root = directory / "leased"
    _checkpoint(root, backend, 1)
    holder = Holder(Process("elsewhere", "", 7, 0), "app", "1", "run")
    Lease(LocalFileIO(), f"{root}/state", ID, holder, 10_000, ManualClock()).take()
    (file,) = Path(lease_directory(f"{root}/state")).iterdir()
    look = _read(root, listed, repair_planned, verified)

    def read(rng, path):
        clock = ManualClock()
        with open_checkpoint(place_of(root, clock=clock)) as checkpoint, suppress(InUseError):
            require_not_in_use(checkpoint)
        return look(rng, path)

    return _of_checkpoint(root, [file], read)


def _pin(directory, backend):
    root = directory / "pinned"
    _checkpoint(root, backend, 1)
    store = root / "state/0/0"
    (store / pin_name(2, ID)).touch()

    def read(_rng, _path):
        files = LocalFileIO().list(str(store))
        return {"oldest": oldest_to_retain(3, 1, files, files[0].modified_ms)[0]}

    # A pin is empty, and so are all others.
    anything = [path.read_bytes() for path in store.iterdir()]
    return Form([store / pin_name(2, ID)], anything, read)


def _ref(directory, backend):
    """Maintenance lets go of what the rescaled version was made of, by its reference files."""
    root, copy = directory / "released", directory / "copy"
    made = _checkpoint(root, backend, 2)
    Checkpoint(root).rescale(4)
    made.run_batch(dict.fromkeys(range(12), 7))
    made.take_snapshots()
    made.run_batch(dict.fromkeys(range(12), 8))
    newest = made.version
    shutil.copytree(root, copy)

    def read(_rng, path):
        """Let go of all, in a copy, then see what the newest version is made of."""
        source = (path or files[0]).parent
        partition = int(source.name)
        for before in source.parent.iterdir():
            if before.name.isdigit():
                shutil.rmtree(copy / "state/0" / before.name)
                shutil.copytree(before, copy / "state/0" / before.name)
        location = StoreLocation(LocalFileIO(), f"{copy}/state", StoreName(0, partition), body)
        refs = find_refs(location.io.list(location.directory))
        release(location, [ref for ref in refs if ref.partition == partition], 4, newest)
        # The partitions are more than before, and all need what is there.
        return {
            "files": {
                str(file): file.read_bytes()
                for file in (copy / "state/0").rglob("*")
                if file.is_file() and file.suffix != ".ref"
            }
        }

    body = "sst" if backend == "rocksdb" else "arrows"
    files = sorted(root.glob("state/0/*/*.ref"))
    return _of_checkpoint(root, files, read)


def _snapshot(directory, backend):
    return _of_store(directory, backend, "*.snapshot.*")


FORMS = {
    "delta": lambda directory, backend: _of_store(directory, backend, "*.delta.*"),
    "snapshot": _snapshot,
    "merged": lambda directory, backend: _of_store(directory, backend, "*.merged.*"),
    "rescaled": _rescaled,
    "logs": _logs,
    "logs-rescaled": _logs_rescaled,
    "savepoint-native": _savepoint("native"),
    "savepoint-canonical": _savepoint("canonical"),
    "placement": _placement,
    "lease": _lease,
    "pin": _pin,
    "ref": _ref,
}
ALL = [
    (backend, form)
    for backend in ("filesystem", "rocksdb")
    for form in FORMS
    if (backend, form) != ("filesystem", "merged")  # it has none
]
