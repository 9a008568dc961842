"""The shim's calls about one store, made from Python."""

import json
import shutil
import struct
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

import google_crc32c
import pyarrow as pa
from rocksdict import SstFileWriter

from statestore.backends.rocksdb.database_memory import DatabaseMemory
from statestore.backends.rocksdb.merging import database_of
from statestore.backends.rocksdb.sst import encode_key
from statestore.backends.rocksdb.view import View
from statestore.codec.merge import merge_rows
from statestore.codec.rows import DELETE, PUT, Row
from statestore.core.options import StateStoreOptions
from statestore.engine.service import EngineService
from statestore.testing.deltas import write_stream

G = 8
OPTIONS = {"fsync_enabled": False, "min_versions_to_retain": 2, "snapshot_max_chain_length": 4}
FAMILIES = [{"id": 0, "name": "default", "key_schema": "{}", "value_schema": "{}"}]


class Engine(EngineService):
    """The engine's service in this process, called as EngineProcess is.

    Those that a test made end with it, and with them what goes on beside their calls.
    """

    made: ClassVar[list["Engine"]] = []

    def __init__(self, scratch, io=None, clock=None):
        Path(scratch).mkdir(parents=True, exist_ok=True)
        super().__init__(scratch, io, clock)
        self.made.append(self)

    def settle(self):
        """Wait for what goes on beside the calls."""
        done = threading.Event()
        self._sessions._pool.submit(done.set)
        assert done.wait(60)

    def end(self):
        """End when what goes on beside the calls has ended."""
        self._sessions._pool.shutdown(wait=True)
        super().end()

    def request(self, op, **fields):
        """Send a call and return the whole reply."""
        return json.loads(super().call(json.dumps({"op": op, **fields})))

    def call(self, op, **fields):
        """Send a call and return what it answered under `ok`."""
        reply = self.request(op, **fields)
        assert "ok" in reply, reply
        return reply["ok"]


class Shim:
    """Makes the shim's calls for one store; holds what a provider would hold."""

    backend = "filesystem"

    def __init__(self, directory, checkpoint_format=1, partition=0, root=None, run="", **options):
        self.directory = directory
        self.store = {
            "root": root or f"file:{directory}/ck/state",
            "operator": 0,
            "partition": partition,
            "run": run,
        }
        self.options = {**OPTIONS, **options}
        self.format = checkpoint_format
        self.parent = None
        self.num_keys = 0

    @property
    def num_partitions(self):
        """As few state partitions as there can be."""
        return self.store["partition"] + 1

    @property
    def scratch(self):
        """The scratch directory shared with the engine."""
        return f"{self.directory}/statestore-scratch-1"

    def request(self, rows):
        """A commit of rows as the next version, with a delta in the scratch directory."""
        version = (self.parent["version"] if self.parent else 0) + 1
        path = f"{self.scratch}/{self.store['partition']}-{version}.arrows"
        length = write_stream(path, rows, G)
        return {
            "store": self.store,
            "backend": self.backend,
            "version": version,
            "parent": self.parent,
            "checkpoint_id": f"{version:032x}",
            "checkpoint_format": self.format,
            "delta": {"path": path, "length": length, "put": len(rows), "delete": 0, "merge": 0},
            "num_keys": self.num_keys + len(rows),
            "max_parallelism": G,
            "num_partitions": self.num_partitions,
            "rescalable": True,
            "column_families": FAMILIES,
            "force_snapshot": False,
            "options": self.options,
        }

    def committed(self, request, reply):
        """Take over what a commit made."""
        self.num_keys = request["num_keys"]
        self.parent = {
            "version": request["version"],
            "checkpoint_id": reply["checkpoint_id"],
            "lineage": reply["lineage"],
        }

    def commit(self, engine, rows):
        """Commit rows as the next version."""
        request = self.request(rows)
        reply = engine.call("commit", **request)
        self.committed(request, reply)
        return reply

    def view(self, engine):
        """The reply that names the view of what was committed last."""
        return engine.call(
            "view",
            store=self.store,
            backend=self.backend,
            version=self.parent,
            checkpoint_format=self.format,
            options=self.options,
        )

    def load(self, version=None, **changes):
        """Arguments of a load of a version, the newest by default."""
        version = self.parent["version"] if version is None else version
        known = self.parent["checkpoint_id"] if self.parent and self.format == 2 else None
        return {
            "store": self.store,
            "backend": self.backend,
            "version": version,
            "checkpoint_id": known,
            "num_partitions": self.num_partitions,
            "checkpoint_format": self.format,
            "options": self.options,
            **changes,
        }


class RocksDBShim(Shim):
    """The shim's calls about a store of the rocksdb backend."""

    backend = "rocksdb"


def in_view(reply):
    """Every row of the view that a reply names."""
    return {key: value for _, key, value in View(reply["view"]).scan(0, b"")}


def rows_in_files(loaded, max_parallelism=G):
    """Rows of a version as the shim reads them: slices of files, and of those what clips let by."""
    pieces, ages = [], []
    for age, named in enumerate(loaded["files"]):
        data = Path(named["path"]).read_bytes()
        stream = b"".join(data[start : start + length] for start, length in named["slices"])
        modulus, remainder = named["clip"] or (1, 0)
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            for batch in reader:
                rows = [
                    n for n, g in enumerate(batch.column(0)) if g.as_py() % modulus == remainder
                ]
                pieces.append(batch.take(pa.array(rows, pa.int64())))
                ages.append(age)
    return {
        row["key"]: row["value"] for row in merge_rows(pieces, ages, max_parallelism).to_pylist()
    }


def changes_in(file):
    """What a file of a change feed puts under each key; None for a key that it deletes."""
    with pa.OSFile(file["path"]) as data, pa.ipc.open_stream(data) as stream:
        found = stream.read_all().to_pylist()
    assert {row["op"] for row in found} <= {PUT, DELETE}
    rows = {row["key"]: row["value"] for row in found}
    if file["sst"]:
        assert {row["op"] for row in found} <= {DELETE}
        with tempfile.TemporaryDirectory() as directory:
            copy = shutil.copy(file["sst"], directory)
            options = DatabaseMemory(1 << 20).options(StateStoreOptions())
            database = database_of([copy], directory, options)
            rows |= {key[2:]: value[2:] for key, value in database.items()}
            database.close()
    return rows


def write_sst(path, rows):
    """Write rows, puts and deletes, as an SST; return what a commit says of it as its delta."""
    deletes = [row for row in rows if row.op == DELETE]
    encoded = {encode_key(row.column_family, row.key): row for row in rows}
    rows_length = checksum = 0
    Path(path).touch()
    if encoded:
        writer = SstFileWriter(DatabaseMemory(1 << 20).options(StateStoreOptions()))
        writer.open(path)
        for key, row in sorted(encoded.items()):
            if row.op == DELETE:
                del writer[key]
                summed = struct.pack("<ii", len(key), -1) + key
            else:
                writer[key] = value = row.key_group.to_bytes(2) + row.value
                summed = struct.pack("<ii", len(key), len(value)) + key + value
            rows_length += len(summed)
            checksum = google_crc32c.extend(checksum, summed)
        writer.finish()
    described = {"rows_length": rows_length, "checksum": checksum}
    if deletes:
        length = write_stream(f"{path}.deletes", deletes, G)
        described["deletes"] = {"path": f"{path}.deletes", "length": length}
    return {
        "path": path,
        "length": Path(path).stat().st_size,
        "put": len(rows) - len(deletes),
        "delete": len(deletes),
        "merge": 0,
        "sst": described,
    }


def rows(*numbers):
    """One put for each number."""
    return [Row(number % G, 0, PUT, b"%08d" % number, b"v") for number in numbers]
