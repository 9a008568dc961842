"""The checkpoint memory: `python -m statestore.engine.checkpoint_memory ADDRESS`.

One process for each Spark application, started and ended by the shim in the driver: it holds the
heap backend's files in its memory and serves them to the engines of every executor. It listens on
ADDRESS, the driver's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from statestore.engine.process import Handshake, run_process
from statestore.io.checkpoint_memory import CheckpointMemoryServer
from statestore.io.memory import MemoryFileIO

_servers: list[CheckpointMemoryServer] = []
"""Keeps the server alive while the main thread waits."""


def serve(handshake: Handshake) -> tuple[int, Callable[[], bool]]:
    """Serve an empty memory on any free port of the address; return the port and a call to end."""
    server = CheckpointMemoryServer(sys.argv[1], handshake.token, MemoryFileIO(handshake.scratch))
    _servers.append(server)
    return server.port, lambda: True


if __name__ == "__main__":
    os._exit(run_process(serve))
