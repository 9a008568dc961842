"""The shim as a server of files: the way to file systems that Hadoop alone can open.

One JSON object a line each way over a loopback connection, after a line with the token. A
connection serves one request at a time and is kept for the next.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any

from statestore.core.errors import ProtocolError
from statestore.io.hadoop import HadoopRefusalError, HadoopSilenceError

_CONNECT_TIMEOUT_S = 10.0


class ShimFiles:
    """HadoopFiles of a JVM that serves them on this machine. Thread-safe.

    Args:
        port: Its loopback port, None if it does not listen yet.
        token: Shown by a connection.
    """

    def __init__(self, port: int | None = None, token: str = "") -> None:
        self._address = port, token
        self._idle: deque[_Connection] = deque()

    def listens_at(self, port: int, token: str) -> None:
        """Take in the JVM's address, for later requests."""
        self._address = port, token

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles; a JVM that cannot be reached is a refusal of kind storage.

        Raises:
            ProtocolError: The JVM's address is unknown (kind files-not-offered).
        """
        try:
            connection = self._connection()
            reply = connection.ask({"op": op, **arguments})
        except (OSError, ValueError) as error:
            raise HadoopSilenceError(str(error)) from error
        self._idle.append(connection)
        if "error" in reply:
            raise HadoopRefusalError(reply["error"]["kind"], reply["error"]["reason"])
        return dict(reply["ok"])

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> _Connection:
        try:
            return self._idle.pop()
        except IndexError:
            port, token = self._address
            if port is None:
                raise ProtocolError(
                    "the engine does not know where the shim serves files",
                    kind="files-not-offered",
                    to_fix="nothing, the shim tells it and calls again",
                ) from None
            return _Connection(port, token)


class _Connection:
    def __init__(self, port: int, token: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The shim gives up on a call of its own, and on the engine with it.
        self._socket.settimeout(None)
        self._stream = self._socket.makefile("rb")
        self._socket.sendall(f"{token}\n".encode())

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            return dict(json.loads(self._stream.readline()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
