"""Checkpoint memory as storage: what is lost with it, and that nothing else is taken for lost."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from statestore.codec.rows import PUT, Row
from statestore.core.errors import FencedError, NotFoundError, StorageError
from statestore.engine.service import EngineService
from statestore.io.checkpoint_memory import (
    SLICE_BYTES,
    CheckpointMemoryFileIO,
    CheckpointMemoryServer,
)
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress
from statestore.io.fetch_cache import FetchCache
from statestore.io.memory import MemoryFileIO
from statestore.testing.deltas import write_stream
from tests.engine_process import TOKEN, CheckpointMemory

G = 8
FAMILIES = [{"id": 0, "name": "default", "key_schema": "{}", "value_schema": "{}"}]


@pytest.fixture
def start_memory(tmp_path):
    """Returns a function that starts a checkpoint memory; they end with the test."""
    started = []

    def start():
        started.append(CheckpointMemory(f"{tmp_path}/memory-{len(started)}"))
        return started[-1]

    yield start
    for memory in started:
        memory.kill()


@pytest.fixture
def open_memory(tmp_path):
    """Returns a function that makes a client of a memory."""

    def open_at(address):
        (tmp_path / "cache").mkdir(exist_ok=True)
        return CheckpointMemoryFileIO(address, FetchCache(str(tmp_path / "cache"), 0))

    return open_at


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_address_of_ipv6_may_be_in_brackets(open_memory, tmp_path, host):
    """Catches a heap backend that no cluster of IPv6 has: Spark writes brackets into its hosts."""
    open_memory(CheckpointMemoryAddress(host, 9, TOKEN))
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:  # this machine has no IPv6
        return
    with CheckpointMemoryServer(host, TOKEN, MemoryFileIO(str(tmp_path))) as server:
        io = open_memory(CheckpointMemoryAddress(host, server.port, TOKEN))
        io.write("/ck/a", b"rows", sync=False, overwrite=False)
        assert io.read_tail("/ck/a", 4) == (b"rows", 4)


class HeapStore:
    """Makes the shim's calls for one store of the heap backend; holds what a provider would."""

    def __init__(self, directory, memory, checkpoint_format=1):
        (directory / "engine").mkdir(exist_ok=True)
        self.service = EngineService(str(directory / "engine"))
        self.directory = directory
        self.memory = memory
        self.format = checkpoint_format
        self.options = {"min_versions_to_retain": 2, "snapshot_max_chain_length": 2}
        self.parent = None
        self.num_keys = 0

    def follow(self, other):
        """Go on from what another one committed."""
        self.parent, self.num_keys = other.parent, other.num_keys

    def request(self, op, **fields):
        """Make a call; return what is under `ok` or `error`."""
        store = {"root": f"file:{self.directory}/ck/state", "operator": 0, "partition": 0}
        address = self.memory.address
        store["memory"] = {"host": address.host, "port": address.port, "token": address.token}
        fields = {"op": op, "store": store, "backend": "heap", "options": self.options, **fields}
        reply = json.loads(self.service.call(json.dumps(fields)))
        return reply.get("ok") or reply["error"]

    def load(self, version, **fields):
        """Load a version as a query of one state partition."""
        known = self.parent["checkpoint_id"] if self.parent and self.format == 2 else None
        arguments = {"checkpoint_id": known, "num_partitions": 1, **fields}
        return self.request("load", version=version, **arguments)

    def commit(
        self, version, *, parent="last", state_bytes=0, backend="heap", value=b"v", attempt=0
    ):
        """Commit one more row; remember the version when it was made."""
        path = str(self.directory / f"{version}.arrows")
        row = Row(version % G, 0, PUT, b"%08d" % version, value)
        length = write_stream(path, [row], G)
        reply = self.request(
            "commit",
            backend=backend,
            version=version,
            parent=self.parent if parent == "last" else parent,
            checkpoint_id=f"{attempt}{version:031x}",
            checkpoint_format=self.format,
            delta={"path": path, "length": length, "put": 1, "delete": 0, "merge": 0},
            num_keys=self.num_keys + 1,
            state_bytes=state_bytes,
            max_parallelism=G,
            num_partitions=1,
            rescalable=True,
            column_families=FAMILIES,
        )
        if "lineage" in reply:
            self.num_keys += 1
            self.parent = {"version": version, "lineage": reply["lineage"]}
            self.parent["checkpoint_id"] = reply["checkpoint_id"]
        return reply

    def maintain(self):
        """Take the snapshots and delete the files that policy says, once none is in flight."""
        while self.request("status")["snapshots_in_flight"]:
            time.sleep(0.01)
        known = self.parent["checkpoint_id"] if self.format == 2 else None
        fields = {"version": self.parent["version"], "checkpoint_id": known}
        return self.request("maintain", snapshot=True, cleanup=True, **fields)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def store(request, tmp_path, start_memory):
    """A store with three versions in a memory, in each of Spark's checkpoint formats."""
    found = HeapStore(tmp_path, start_memory(), request.param)
    for version in (1, 2, 3):
        assert "lineage" in found.commit(version)
    return found


def test_large_file_arrives_whole_when_many_send_at_once(tmp_path, start_memory, open_memory):
    """Catches slices out of place, and calls of two threads mixed up."""
    io = open_memory(start_memory().address)
    contents = [os.urandom(size) for size in (0, 1, SLICE_BYTES, SLICE_BYTES + 1, 5_000_000)]

    def send(number):
        local_path = tmp_path / f"{number}.local"
        local_path.write_bytes(contents[number])
        io.publish(str(local_path), f"/ck/{number}", sync=True, overwrite=False)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not list(tmp_path.glob("*.local"))
    assert sorted((info.name, info.size) for info in io.list("/ck")) == [
        (str(number), len(content)) for number, content in enumerate(contents)
    ]
    for number, content in enumerate(contents):
        fetched = Path(io.fetch(f"/ck/{number}"))
        assert fetched.read_bytes() == content
        assert io.read_range(f"/ck/{number}", 0, 7) == content[:7]
        io.delete(f"/ck/{number}")


def test_copies_of_files_that_others_delete_go(tmp_path, start_memory, open_memory):
    """Catches a disk that fills where a partition's engine changes: the next one deletes."""
    address = start_memory().address
    io, other = open_memory(address), open_memory(address)
    for number in range(20):
        io.write(f"/ck/{number}", b"x" * 1000, sync=False, overwrite=False)
        assert Path(io.fetch(f"/ck/{number}")).read_bytes() == b"x" * 1000
        other.delete(f"/ck/{number}")

    assert len(list((tmp_path / "cache").iterdir())) <= 1


def test_replaced_file_is_fetched_anew(start_memory, open_memory):
    """Catches a copy of the attempt before."""
    io = open_memory(start_memory().address)
    held = []
    for content in (b"first", b"second", b"second"):
        io.write("/ck/1", content, sync=False, overwrite=True)
        held.append(io.fetch("/ck/1"))
        assert Path(held[-1]).read_bytes() == content
    assert Path(held[0]).read_bytes() == b"first"


def test_refusals_are_those_of_every_storage(start_memory, open_memory):
    """Catches errors that callers tell apart arriving as one."""
    io = open_memory(start_memory().address)
    io.write("/ck/1", b"first", sync=True, overwrite=False)

    with pytest.raises(FencedError) as caught:
        io.write("/ck/1", b"second", sync=True, overwrite=False)
    assert caught.value.kind == "file-exists"
    for call in (io.fetch, lambda path: io.read_tail(path, 8)):
        with pytest.raises(NotFoundError) as missing:
            call("/ck/2")
        assert missing.value.kind == "file-not-found"
    assert io.read_tail("/ck/1", 3) == (b"rst", 5)


def test_file_cut_short_by_a_dying_client_is_not_kept(start_memory, open_memory):
    """Catches half a delta published as a version."""
    address = start_memory().address
    options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {address.token}".encode())]
    )
    client = flight.FlightClient(f"grpc://{address}")
    schema = pa.schema([pa.field("bytes", pa.binary(), nullable=False)])
    request = json.dumps({"path": "/ck/1", "size": 9, "overwrite": True})

    writer, _ = client.do_put(flight.FlightDescriptor.for_command(request), schema, options)
    writer.write_batch(pa.record_batch([pa.array([b"half"])], schema=schema))
    with pytest.raises(flight.FlightServerError, match="incomplete"):
        writer.close()

    assert open_memory(address).list("/ck") == []


def test_nothing_is_served_without_the_token(start_memory, open_memory):
    """Catches state that everybody on the driver's network can read or replace."""
    address = start_memory().address
    open_memory(address).write("/ck/1", b"state", sync=True, overwrite=True)
    wrong = open_memory(CheckpointMemoryAddress(address.host, address.port, "0" * 64))

    for call in (
        lambda: wrong.list("/ck"),
        lambda: wrong.fetch("/ck/1"),
        lambda: wrong.read_tail("/ck/1", 8),
        lambda: wrong.delete("/ck/1"),
        lambda: wrong.write("/ck/1", b"other", sync=True, overwrite=True),
    ):
        with pytest.raises(StorageError) as caught:
            call()
        assert address.token not in str(caught.value)
        assert "0" * 64 not in str(caught.value)
    bare = flight.FlightClient(f"grpc://{address}")
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(bare.do_action(flight.Action("list", b'{"path": "/ck"}')))

    assert open_memory(address).read_tail("/ck/1", 8) == (b"state", 5)
    assert address.token not in repr(address)


def test_memory_ends_with_its_driver(start_memory):
    """Catches a process, and its scratch directory, that outlive the application."""
    memory = start_memory()

    assert memory.end_stdin() == 0
    assert not Path(memory.scratch_directory).exists()


def test_lost_memory_is_told_by_name_at_once(store):
    """Catches a call that hangs or that blames the network."""
    store.memory.kill()

    for reply in (store.commit(4), store.load(3), store.maintain()):
        assert reply["kind"] == "driver-lost"
        assert "filesystem or rocksdb" in reply["message"]


def test_new_memory_is_not_taken_for_the_lost_one(store, start_memory):
    """Catches a commit upon versions that are gone, from what the engine remembers of them."""
    store.memory.kill()
    store.memory = start_memory()

    for reply in (store.commit(4), store.load(3), store.maintain()):
        assert reply["kind"] == "driver-lost"


def test_lost_state_is_empty_when_the_user_says_so(store, start_memory):
    """Catches a retried batch that finds its successor, and a reader that is shown nothing."""
    store.memory.kill()
    store.memory = start_memory()
    store.options["heap_on_driver_loss"] = "empty"

    reader = store.load(3, num_partitions=None)
    loaded = store.load(3)
    store.num_keys = 0
    store.commit(4, parent=None)
    again = store.load(3)
    store.num_keys = 0
    retried = store.commit(4, parent=None)
    store.commit(5)
    newest = store.load(5)

    assert reader["kind"] == "driver-lost"
    assert "lineage" in retried
    for reply in (loaded, again):
        assert (reply["version"], reply["num_keys"], reply["files"]) == (3, 0, [])
        assert reply["max_parallelism"] > 0
    assert (newest["num_keys"], len(newest["files"])) == (2, 2)


def test_expired_version_is_not_taken_for_a_lost_one(store):
    """Catches `empty` turning a version that retention deleted into an empty store."""
    store.options["heap_on_driver_loss"] = "empty"
    for version in range(4, 14):
        store.commit(version)
        store.maintain()

    reply = store.load(2, checkpoint_id=f"{2:032x}" if store.format == 2 else None)

    assert reply["kind"] == "version-not-found"
    assert reply["fields"]["oldest_version"] > 2


def test_state_beyond_the_limit_is_refused_and_nothing_is_lost(store):
    """Catches a limit that is not one, or that costs the version before."""
    store.options["heap_max_state_bytes"] = 1000

    refused = store.commit(4, state_bytes=1001)

    assert (refused["class"], refused["kind"]) == ("StorageError", "state-too-large")
    assert (refused["fields"]["state_bytes"], refused["fields"]["max_state_bytes"]) == (1001, 1000)
    assert store.load(3)["num_keys"] == 3
    assert "lineage" in store.commit(4, state_bytes=1000)


def test_backends_refuse_each_others_directories(tmp_path, start_memory):
    """Catches lost state taken for no state by another backend, and the other way round."""
    heap = HeapStore(tmp_path, start_memory())
    heap.commit(1)
    (tmp_path / "other").mkdir()
    other = HeapStore(tmp_path / "other", heap.memory)
    other.commit(1, backend="filesystem")
    other.options["heap_on_driver_loss"] = "empty"

    for version in (0, 1):
        reply = heap.load(version, backend="filesystem")
        assert (reply["class"], reply["kind"]) == ("IncompatibleError", "other-provider")
        assert "io.statestore.HeapStateStoreProvider" in reply["message"]
        reply = other.load(version)
        assert (reply["class"], reply["kind"]) == ("IncompatibleError", "backend-changed")


def test_closed_store_is_opened_again(store):
    """Catches a close that the engine does not understand, as it names no memory."""
    name = {"root": f"file:{store.directory}/ck/state", "operator": 0, "partition": 0}

    assert json.loads(
        store.service.call(json.dumps({"op": "close", "backend": "heap", "store": name}))
    ) == {"ok": {}}
    assert store.load(3)["num_keys"] == 3


def test_committed_version_keeps_its_rows_when_a_late_attempt_commits_others(
    tmp_path, start_memory
):
    """Catches a late attempt whose rows replace those that the query's sink has."""
    memory = start_memory()
    winner, late = HeapStore(tmp_path, memory), HeapStore(tmp_path, memory)
    winner.commit(1)
    late.follow(winner)
    lineage = winner.commit(2)["lineage"]
    (tmp_path / "ck/commits").mkdir()
    (tmp_path / "ck/commits/1").write_text("v1\n{}")

    refused = late.commit(2, value=b"late", attempt=1)

    assert (refused["class"], refused["kind"]) == ("FencedError", "fenced")
    assert HeapStore(tmp_path, memory).load(2)["lineage"] == lineage
