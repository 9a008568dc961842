"""Storage in checkpoint memory: a server beside the driver, and its client in every engine.

The wire contract is Arrow Flight, see docs/protocol.md: a file travels as record batches of one
row, a slice of its bytes; every call carries the token. The server keeps files in a MemoryFileIO
and knows nothing of state.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from statestore.core.digest import digest_of
from statestore.core.errors import StateStoreError, StorageError
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress
from statestore.io.file_io import FileInfo, existing_file, missing_file, replaced_file
from statestore.io.local import named_errors
from statestore.io.memory import MemoryFileIO

if TYPE_CHECKING:
    from statestore.io.fetch_cache import FetchCache

CALL_TIMEOUT_S = 120.0
SLICE_BYTES = 1 << 20
TO_FIX_LOSS = (
    "start the query with a new checkpoint directory, or with "
    "spark.sql.streaming.stateStore.heap.onDriverLoss=empty to go on from empty state; use the "
    "filesystem or rocksdb backend for state that must outlive its driver"
)
_SCHEMA = pa.schema([pa.field("bytes", pa.binary(), nullable=False)])
_REFUSALS: dict[str, Callable[[str], StateStoreError]] = {
    "file-not-found": missing_file,
    "file-exists": existing_file,
}


class CheckpointMemoryServer(flight.FlightServerBase):
    """Serves the files of a MemoryFileIO from the moment it is made.

    Args:
        host: Address to listen on, at any free port, which `port` tells.
        token: To be carried by every call.
        files: The files.
    """

    def __init__(self, host: str, token: str, files: MemoryFileIO) -> None:
        super().__init__(_location(host, 0), middleware={"token": _TokenCheck(token)})
        self._files = files

    def do_put(
        self,
        context: flight.ServerCallContext,  # noqa: ARG002
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,  # noqa: ARG002
    ) -> None:
        """Keep a file: `{path, size, overwrite}`, then its slices."""
        request = json.loads(descriptor.command or b"{}")
        data = b"".join(_parts(reader))
        # The stream of a client that dies ends like any other.
        if len(data) != request["size"]:
            raise flight.FlightServerError(
                f"file is incomplete: expected={request['size']}, found={len(data)}"
            )
        with _told_to_client():
            self._files.write(request["path"], data, sync=False, overwrite=request["overwrite"])

    def do_get(
        self,
        context: flight.ServerCallContext,  # noqa: ARG002
        ticket: flight.Ticket,
    ) -> flight.FlightDataStream:
        """Return the slices of the file `{path}`."""
        with _told_to_client():
            data = self._files.read(json.loads(ticket.ticket)["path"])
        return flight.GeneratorStream(_SCHEMA, _slices(pa.py_buffer(data)))

    def do_action(
        self,
        context: flight.ServerCallContext,  # noqa: ARG002
        action: flight.Action,
    ) -> list[bytes]:
        """Do a call that moves no whole file; see docs/protocol.md."""
        request = json.loads(action.body.to_pybytes())
        path = request["path"]
        with _told_to_client():
            if action.type == "read_tail":
                data, size = self._files.read_tail(path, request["num_bytes"])
                return [str(size).encode(), data]
            if action.type == "identify":
                size, number = self._files.identify(path)
                return [str(size).encode(), str(number).encode()]
            if action.type == "read_range":
                return [self._files.read_range(path, request["offset"], request["length"])]
            if action.type == "delete":
                self._files.delete(path)
                return []
            if action.type == "delete_files":
                self._files.delete_files(path, request["names"])
                return []
            if action.type == "list":
                files = self._files.list(path)
                found = [[info.name, info.size, info.modified_ms] for info in files]
                return [json.dumps(found).encode()]
        raise flight.FlightServerError(f"no such action: type={action.type}")


class CheckpointMemoryFileIO:
    """FileIO of the files in checkpoint memory.

    Args:
        address: Where they are served.
        cache: Local copies of fetched files.
    """

    def __init__(self, address: CheckpointMemoryAddress, cache: FetchCache) -> None:
        self._address = address
        self._cache = cache
        self._client = flight.FlightClient(
            _location(address.host, address.port),
            # A proxy for the web does not lead to the driver.
            generic_options=[("grpc.enable_http_proxy", 0)],
        )
        header = (b"authorization", f"Bearer {address.token}".encode())
        self._options = flight.FlightCallOptions(timeout=CALL_TIMEOUT_S, headers=[header])  # type: ignore[list-item]

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:  # noqa: ARG002
        """See FileIO; memory has no disk to wait for."""
        with named_errors("read a file to publish", local_path):
            size = os.path.getsize(local_path)
            data = pa.memory_map(local_path).read_buffer() if size else pa.py_buffer(b"")
        self._put(path, data, overwrite=overwrite)
        with named_errors("delete a published file", local_path):
            os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:  # noqa: ARG002
        """See FileIO."""
        self._put(path, pa.py_buffer(data), overwrite=overwrite)

    def sync(self, path: str) -> None:
        """See FileIO; nothing to wait for."""

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        size, data = self._do("read_tail", path, num_bytes=num_bytes)
        return data, int(size)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        (data,) = self._do("read_range", path, offset=offset, length=length)
        return data

    def fetch(self, path: str) -> str:
        """See FileIO; one local file for each time the path was written."""
        size, number = self._do("identify", path)

        def write(local_path: str) -> None:
            with open(local_path, "wb") as file, self._named_errors("read a file", path):
                file.writelines(_parts(self._client.do_get(_ticket(path), self._options)))
            if self._do("identify", path)[1] != number:
                raise replaced_file(path)

        # Another driver's memory has other files under the same paths and numbers.
        place = f"{self._address.token} {number.decode()} {path}"
        digest = digest_of(place.encode())
        with named_errors("keep a fetched file", self._cache.directory):
            return self._cache.get(f"{digest}-{os.path.basename(path)}", int(size), write)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:  # noqa: ARG002
        """See FileIO; the whole file, which is small."""
        return self.fetch(path)

    def delete(self, path: str) -> None:
        """See FileIO."""
        self._do("delete", path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO."""
        self._do("delete_files", directory, names=list(names))

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        (found,) = self._do("list", directory)
        return [FileInfo(*fields) for fields in json.loads(found)]

    def make_directory(self, directory: str) -> None:
        """See FileIO; directories exist by being named."""

    def _put(self, path: str, data: pa.Buffer, *, overwrite: bool) -> None:
        request = {"path": path, "size": data.size, "overwrite": overwrite}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request))
        with self._named_errors("publish a file", path):
            writer, _ = self._client.do_put(descriptor, _SCHEMA, self._options)
            with writer:
                for batch in _slices(data):
                    writer.write_batch(batch)

    def _do(self, action: str, path: str, **arguments: Any) -> tuple[bytes, ...]:
        body = json.dumps({"path": path, **arguments}).encode()
        with self._named_errors(action.replace("_", " "), path):
            results = self._client.do_action(flight.Action(action, body), self._options)
            return tuple(result.body.to_pybytes() for result in results)

    @contextmanager
    def _named_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException) as error:
            kind = getattr(error, "extra_info", b"").decode()
            if kind in _REFUSALS:
                raise _REFUSALS[kind](path) from error
            # A broken connection has many names; whether anybody is there has one answer.
            if not self._is_served():
                raise self._lost(action, path) from error
            raise StorageError(
                f"cannot {action} in checkpoint memory",
                file=path,
                address=str(self._address),
                reason=str(error).partition("\n")[0],
                to_fix="look at the driver's log and its machine's memory; the batch can be "
                "retried",
            ) from error

    def _is_served(self) -> bool:
        try:
            body = json.dumps({"path": ""}).encode()
            tuple(self._client.do_action(flight.Action("list", body), self._options))
        except (flight.FlightUnavailableError, flight.FlightUnauthenticatedError):
            return False
        except (flight.FlightError, pa.ArrowException):
            return True
        return True

    def _lost(self, action: str, path: str) -> StateStoreError:
        return StorageError(
            f"cannot {action}: the process that has the heap backend's checkpoints in the "
            "checkpoint memory does not answer; where it is gone, they are, too",
            kind="driver-lost",
            file=path,
            address=str(self._address),
            to_fix="where the driver still runs, let this machine reach the address (network "
            f"policies, firewalls); where it is gone, {TO_FIX_LOSS}",
        )


class _TokenCheck(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(
        self,
        info: flight.CallInfo,  # noqa: ARG002
        headers: dict[str, list[str] | list[bytes]],
    ) -> None:
        shown = str(headers.get("authorization", [""])[0])
        if not hmac.compare_digest(shown.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


@contextmanager
def _told_to_client() -> Iterator[None]:
    """Tell the client the kind of an error, from which it makes the same error."""
    try:
        yield
    except StateStoreError as error:
        kind = error.kind.encode()
        raise flight.FlightServerError(str(error), extra_info=kind) from error  # type: ignore[call-arg]


def _location(host: str, port: int) -> str:
    bare = host.strip("[]")  # Spark puts an address of IPv6 in brackets
    return f"grpc://[{bare}]:{port}" if ":" in bare else f"grpc://{bare}:{port}"


def _ticket(path: str) -> flight.Ticket:
    return flight.Ticket(json.dumps({"path": path}).encode())


def _parts(reader: flight.FlightStreamReader | flight.MetadataRecordBatchReader) -> Iterator[Any]:
    """Yield the bytes of each slice that a reader gives."""
    for slice_ in reader:
        if slice_.data is not None:
            yield slice_.data.column(0)[0].as_buffer()


def _slices(data: pa.Buffer) -> Iterator[pa.RecordBatch]:
    for start in range(0, data.size, SLICE_BYTES):
        part = data.slice(start, min(SLICE_BYTES, data.size - start))
        offsets = pa.array([0, part.size], pa.int32()).buffers()[1]
        row = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, part])
        yield pa.record_batch([row], schema=_SCHEMA)
