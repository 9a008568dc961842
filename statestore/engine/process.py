"""The life of a process that the shim starts, an engine or the checkpoint memory.

Token and handshake on stdin, READY on stdout, service, end of stdin, gone.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from statestore.core.clock import SystemClock
from statestore.core.errors import ProtocolError, StateStoreError
from statestore.core.version import __version__
from statestore.engine import PROTOCOL_VERSION
from statestore.engine.scratch import NAME_PATTERN
from statestore.io.local import named_errors
from statestore.io.scratch import ScratchDirectory

EXIT_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    """The shim's greeting to a process that it starts.

    Attributes:
        token: Shown by callers.
        scratch: Scratch directory.
        engine: Name of the process among those of the scratch directory.
        application: ID of the Spark application that it serves; "" where none is known.
        executor: ID of the executor, likewise.
        beside: Directories in any of which another JVM may have its scratch directory.
    """

    token: str
    scratch: str
    engine: str
    application: str = ""
    executor: str = ""
    beside: tuple[str, ...] = ()


def read_handshake(stdin: BinaryIO) -> Handshake:
    """Read the shim's two lines and check them.

    Raises:
        ProtocolError: A line is missing, or the shim has another version or protocol.
    """
    token = stdin.readline().decode().strip()
    line = stdin.readline().decode()
    try:
        handshake = json.loads(line)
        version, protocol, scratch, engine = (
            handshake[name] for name in ("version", "protocol", "scratch", "engine")
        )
        serves = {name: handshake.get(name, "") for name in ("application", "executor")}
        beside = tuple(map(str, handshake.get("beside", ())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
            to_fix="set spark.jars to the output of `statestore jar` of this Python, or "
            "spark.sql.streaming.stateStore.engine.package to embedded",
        )
    return Handshake(token, scratch, engine, **serves, beside=beside)


def run_process(serve: Callable[[Handshake], tuple[int, Callable[[], bool]]]) -> int:
    """Run a service until stdin ends; never returns in that case.

    Args:
        serve: Starts the service in the background; returns the port on which it listens by then,
            and a call for the end of stdin, which returns whether its threads write to storage no
            more.

    Returns:
        The exit code of a process that was refused.
    """
    # Ctrl-C in a PySpark shell reaches the whole process group; the JVM decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        handshake = read_handshake(sys.stdin.buffer)
        with named_errors("use the scratch directory", handshake.scratch):
            scratch = ScratchDirectory(handshake.scratch)
        port, end = serve(handshake)
    except (StateStoreError, OSError, pa.ArrowException) as error:
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
    scratch.sweep_beside(NAME_PATTERN, SystemClock(), handshake.beside)
    while sys.stdin.buffer.read(65536):
        pass
    # The JVM is gone; threads in the middle of a snapshot report to none.
    if end():
        scratch.remove()
    # Else it takes what still writes along; the next engine removes the directory.
    os._exit(0)
