"""The engine process: `python -m statestore.engine`, started and ended by the shim.

Its life: token and handshake on stdin, READY on stdout, calls over py4j, end of stdin, gone.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import socket
import sys
import threading
from typing import Any, BinaryIO

import pyarrow as pa
from py4j.clientserver import (
    ClientServer,
    ClientServerConnection,
    JavaParameters,
    PythonParameters,
    PythonServer,
)
from py4j.java_gateway import server_started

from statestore.core.clock import SystemClock
from statestore.core.errors import ProtocolError, StateStoreError
from statestore.core.version import __version__
from statestore.engine import PROTOCOL_VERSION
from statestore.engine.scratch import ScratchDirectory
from statestore.engine.service import EngineService
from statestore.engine.shim_files import ShimFiles

logger = logging.getLogger("statestore.engine")

EXIT_REFUSED = 3
_START_TIMEOUT_S = 30.0


class _NoDelayServer(PythonServer):  # type: ignore[misc]
    """py4j's server, answering at once: a reply above 8 kB would else wait 40 ms for an ACK."""

    def _create_connection(self, accepted: socket.socket, stream: Any) -> ClientServerConnection:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return super()._create_connection(accepted, stream)


class _Gateway(ClientServer):  # type: ignore[misc]
    def _create_callback_server(self, parameters: PythonParameters) -> PythonServer:
        return _NoDelayServer(
            self._gateway_client, self.java_parameters, parameters, self.gateway_property
        )


def read_handshake(stdin: BinaryIO) -> tuple[str, str, ShimFiles | None]:
    """Read the shim's two lines and check them.

    Returns:
        Authentication token, scratch directory, and the shim's files where it offers any.

    Raises:
        ProtocolError: A line is missing, or the shim's version or protocol is another one.
    """
    token = stdin.readline().decode().strip()
    line = stdin.readline().decode()
    try:
        handshake = json.loads(line)
        version, protocol, scratch = (
            handshake[name] for name in ("version", "protocol", "scratch")
        )
        offer = handshake.get("files")
        files = ShimFiles(offer["port"], offer["token"]) if offer else None
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(
            "the engine was started without a handshake",
            to_fix="let the shim start it; it is not a command to run by hand",
        ) from error
    if len(token) < 32:
        raise ProtocolError(
            "the engine was started without an authentication token",
            to_fix="let the shim start it; it is not a command to run by hand",
        )
    if (version, protocol) != (__version__, PROTOCOL_VERSION):
        raise ProtocolError(
            "jar and package are of different versions",
            kind="version-apart",
            jar=version,
            package=__version__,
            jar_protocol=protocol,
            package_protocol=PROTOCOL_VERSION,
            python=sys.executable,
            to_fix="set spark.jars to what `statestore jar` of this Python prints, or "
            "spark.sql.streaming.stateStore.engine.package to embedded",
        )
    return token, scratch, files


def serve(service: EngineService, token: str) -> int:
    """Accept calls on a loopback port in the background; return the port once it listens."""
    started = threading.Event()
    server_started.connect(lambda **_: started.set())
    gateway = _Gateway(
        java_parameters=JavaParameters(auth_token=token, daemonize_memory_management=True),
        python_parameters=PythonParameters(
            port=0, auth_token=token, daemonize=True, daemonize_connections=True
        ),
        python_server_entry_point=service,
    )
    # The port is bound before the server listens; a connection between the two would be refused.
    if not started.wait(_START_TIMEOUT_S):
        raise ProtocolError(
            "the engine's loopback server did not start",
            to_fix="check that the executor may listen on 127.0.0.1",
        )
    return int(gateway.get_callback_server().get_listening_port())


def main() -> int:
    """Run the engine until its stdin ends; never returns in that case."""
    # Ctrl-C in a PySpark shell reaches the whole process group; the JVM decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        token, scratch_path, files = read_handshake(sys.stdin.buffer)
        scratch = ScratchDirectory(scratch_path)
        port = serve(EngineService(scratch_path, hadoop=files), token)
    except (StateStoreError, OSError) as error:
        refusal = (
            error.to_json()
            if isinstance(error, StateStoreError)
            else {"class": "StorageError", "kind": "storage", "message": str(error)}
        )
        stdout.write(f"FAILED {json.dumps(refusal)}\n")
        stdout.flush()
        return EXIT_REFUSED
    ready = {
        "port": port,
        "pid": os.getpid(),
        "version": __version__,
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    stdout.write(f"READY {json.dumps(ready)}\n")
    stdout.close()
    scratch.sweep_beside(SystemClock())
    while sys.stdin.buffer.read(65536):
        pass
    # The JVM is gone; threads in the middle of a snapshot have nobody left to report to.
    scratch.remove()
    os._exit(0)


if __name__ == "__main__":
    os._exit(main())
