"""What a checkpoint directory may hold beside deltas: written the same way each time.

Each form of `docs/format.md` that golden checkpoints of a query lack is written here, with fixed
IDs, times and rows, and compared by `fixed_bytes` with what an earlier release wrote.
"""

import json
import re
import shutil
import struct
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

from statestore.checkpoint.history import Event
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.lease import Holder, Lease
from statestore.checkpoint.pins import pinned
from statestore.checkpoint.placement import make_placement, mark_home
from statestore.codec.references import StoreName
from statestore.core.clock import ManualClock
from statestore.core.ids import CountingIds
from statestore.core.options import StateStoreOptions
from statestore.core.process import Process
from statestore.io.local import LocalFileIO
from statestore.operations.trial.record import HISTORY, Compared, Record, State, write_record
from tests.checkpoints import query_of, run_versions
from tests.seams import at

OPTIONS = StateStoreOptions(fsync_enabled=False, file_compression="none")
IDS = [f"{number:032x}" for number in range(0xF0, 0xF3)]
PINNED = 2
PARTITIONS = (2, 4)
"""Before and after the rescale."""
ELSEWHERE = Process("a-host", "a-boot a-namespace", 7, 1234)
HOLDERS = (Holder(ELSEWHERE, "app-1", "driver", "run-1"), Holder(ELSEWHERE, operation="rescale"))
LEASE_MS = 10_000
TRIAL = Record(
    checkpoint="file:///data/checkpoint",
    query_id="00000000-0000-0000-0000-0000000000f4",
    asked={"job": "new.py", "of": [["new.py", "ab" * 32]], "rows": {"sales": "append"}},
    state=State.PROMOTING,
    first_version=2,
    version=4,
    compared=(
        Compared("batch 3", is_same=True, num_old=5, num_new=5),
        Compared(
            "state 0",
            is_same=False,
            changed=1,
            columns=("value.b",),
            rows=({"change": "changed", "key": {"k": 7}, "old": {"n": 1}, "new": {"n": 2}},),
        ),
    ),
    savepoint="file:///data/before",
    ignored=("at",),
    attempt=IDS[0],
    trial="file:///data/trial",
    num_operations=1,
)
TRAILER_END = struct.Struct("<II8s")
PLACE = "/place-of-the-golden-files"
"""Stands in a placement for the directory that the golden files are copied to."""
SPACES = re.compile(rb"([:,]) ")
"""Between the parts of JSON, where an earlier writer of Spark's files had some."""
VARIES = re.compile(rb"statestore \d+\.\d+\.\d+")
DIGEST = re.compile(rb'"[0-9a-f]{32}"')
"""A lineage, or an ID that a rescale makes of some."""
WHO = re.compile(rb'"user":(null|"[^"]*"),"host":"[^"]*"')
SOMEBODY = b'"user":"somebody","host":"somewhere"'


def fixed():
    """IDs and a clock, the same for each checkpoint."""
    return {"ids": CountingIds(), "clock": ManualClock()}


def rows_of(number):
    """Rows that a query puts, and deletes, in a batch."""
    return {f"key-{key}": f"{number}/{key}" for key in range(3 * number, 3 * number + 24)} | {
        f"key-{number}": None
    }


def write_merged(root):
    """Six versions on RocksDB: a snapshot of 2, 3 to 5 in a merged file; 2 is pinned, two leases.

    Returns:
        The rows of each version.
    """
    found = {}
    options = replace(OPTIONS, rocksdb_merge_min_files=3)
    with at(root, options=options, **fixed()).open_store(
        backend="rocksdb", checkpoint_format=2
    ) as store:
        for number in run_versions(store, Random(7)):
            rows = {key.hex(): value.hex() for key, value in store.scan()}
            found[number] = {"checkpoint_id": store.checkpoint_id, "rows": rows}
    for holder, lease_id in zip(HOLDERS, IDS, strict=False):
        Lease(LocalFileIO(), f"{root}/state", lease_id, holder, LEASE_MS, ManualClock()).take()
    return found


def with_pin(root, stack):
    """Pin a version for as long as a stack is open."""
    location = StoreLocation(LocalFileIO(), f"{root}/state", StoreName(0, 0, "default"), "sst")
    stack.enter_context(pinned([location], PINNED, IDS[2]))


def write_rescaled(root, backend):
    """A query whose second version is dealt to more state partitions, and a batch upon that.

    Returns:
        Its rows.
    """
    before, after = PARTITIONS
    how = {"backend": backend, "options": OPTIONS, **fixed()}
    query = query_of(root, num_partitions=before, **how)
    query.run_batch(rows_of(0))
    query.run_batch(rows_of(1))
    at(root, **fixed()).rescale(after)
    query.run_batch(rows_of(2))
    return {key.hex(): value.hex() for key, value in sorted(query.expected()[0, "default"].items())}


def write_placed(root):
    """A query whose state lies on another storage; return its rows."""
    home = StoreLocation(
        LocalFileIO(), f"{root}/checkpoint/state", StoreName(0, 0, "default"), "arrows"
    )
    storage = f"{root}/storage"
    placement = make_placement(home, home.root, LocalFileIO(), storage, storage, sync=False)
    mark_home(replace(home, root=f"{storage}/{placement.id}"), home, "filesystem")
    query = query_of(f"{root}/checkpoint", num_partitions=2, options=OPTIONS, **fixed())
    query.run_batch(rows_of(0))
    return {key.hex(): value.hex() for key, value in sorted(query.expected()[0, "default"].items())}


def write_heap(root):
    """The file that a store of the heap backend leaves in the checkpoint directory."""
    for partition in range(2):
        store = StoreName(0, partition, "default")
        home = StoreLocation(LocalFileIO(), f"{root}/state", store, "arrows")
        mark_home(home, home, "heap")


def write_trial(root):
    """The record of a trial that is being promoted, and the history that is kept meanwhile."""
    root.mkdir()
    write_record(LocalFileIO(), str(root), TRIAL)
    event = Event(IDS[1], "edit", 1_000, 1, 2, options={"watermark_ms": 9})
    (root / HISTORY).write_bytes(event.encode())


def write_forms(root):
    """Write them all below a directory."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        merged = Path(made, "merged")
        expected = {"merged": write_merged(merged)}
        with_pin(merged, stack)
        for backend in ("filesystem", "rocksdb"):
            name = f"rescaled-{backend}"
            expected[name] = write_rescaled(Path(made, name), backend)
        expected["placed"] = write_placed(Path(made, "placed"))
        write_heap(Path(made, "heap"))
        write_trial(Path(made, "trial"))
        shutil.copytree(made, root, dirs_exist_ok=True)
        for path in (path for path in root.rglob("*.json") if path.is_file()):
            path.write_text(path.read_text().replace(made, PLACE))
        for path in root.rglob("*.jsonl"):
            path.write_bytes(WHO.sub(SOMEBODY, path.read_bytes()))
    (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def placed_at(root, target):
    """Copy the forms to where a test may change them; the placement leads there."""
    shutil.copytree(root, target)
    for path in target.rglob("*.json"):
        path.write_text(path.read_text().replace(PLACE, str(target)))
    return target


def fixed_bytes(root):
    """Return of every file below a directory what each run writes the same, by path.

    That is all of it but for spaces in JSON, the number of the release, the random ID of a
    placement, who changed a checkpoint and where, how long commits took, and bytes of an SST:
    RocksDB writes into it when and by which process it was made. A digest counts as the number of
    those before it, since readers only compare them: the first files had others.
    """
    numbers = {}
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    (placement,) = (data for name, data in files.items() if name.endswith("statestore.json"))
    placed = json.loads(placement)["id"]
    return {
        name.replace(placed, "PLACED"): (
            fixed_trailer(data, numbers, name.endswith(".sst"))
            if name.endswith((".arrows", ".sst"))
            else _settled(data).replace(placed.encode(), b"PLACED")
        )
        for name, data in files.items()
    }


def _settled(data):
    """Return a file of JSON without what the release, people or another writer of JSON vary."""
    return WHO.sub(SOMEBODY, SPACES.sub(rb"\1", VARIES.sub(b"WRITER", data)))


def fixed_trailer(data, numbers, is_sst):
    """Return body and trailer of a state file, those parts that each run writes the same.

    Args:
        data: The file.
        numbers: The number of each digest that was found before; those of the file are added.
        is_sst: Whether the body is one.
    """
    length, _, magic = TRAILER_END.unpack(data[-TRAILER_END.size :])
    start = len(data) - TRAILER_END.size - length
    text = DIGEST.sub(
        lambda found: b"%d" % numbers.setdefault(found[0], len(numbers)),
        data[start : start + length],
    )
    trailer = json.loads(text)
    trailer["writer"] = VARIES.sub(b"WRITER", trailer["writer"].encode()).decode()
    trailer.pop("parent_commit", None)
    for file in trailer["files"]:
        file.pop("size")
        if is_sst and file["kind"] != "delta":
            file.pop("lineage")
    if is_sst:
        if trailer["kind"] != "delta":
            trailer.pop("lineage")
        trailer["blocks"] = [block[2:3] for block in trailer["blocks"]]
    return [b"" if is_sst else data[:start], list(trailer.items()), magic]
