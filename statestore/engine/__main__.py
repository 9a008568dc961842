"""The engine process: `python -m statestore.engine`, started and ended by the shim."""

from __future__ import annotations

import copy
import hmac
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.clientserver import (
    ClientServer,
    ClientServerConnection,
    JavaParameters,
    PythonParameters,
    PythonServer,
)
from py4j.java_gateway import server_started
from py4j.protocol import AUTH_COMMAND_NAME, END, ERROR_RETURN_MESSAGE, OUTPUT_VOID_COMMAND

from statestore.core.errors import ProtocolError
from statestore.engine.process import Handshake, run_process
from statestore.engine.service import EngineService
from statestore.io.shim_files import ShimFiles

_START_TIMEOUT_S = 30.0

_SWITCH_INTERVAL_S = 0.0005
"""How long a merge or a snapshot may keep the interpreter while a commit waits for it."""


_BACKLOG = 128
_PAUSE_S = 0.2
_MOST_STRANGERS = 32
_STRANGE_FOR_S = 0.5
_LINES = 3
_TOKEN_TIMEOUT_S = 30.0
"""Longer than a JVM stands still, which connects and then shows the token."""

_log = logging.getLogger(__name__)


class _Strangers:
    """Connections that have not shown the token yet: every user of the machine can connect.

    They cost a bounded number of threads, and no memory, as those of the shim's FileServer.
    """

    def __init__(self, token: str) -> None:
        self._shown = f"{AUTH_COMMAND_NAME}\n{token}\n{END}\n".encode()
        self._changed = threading.Condition()
        self._since: dict[socket.socket, float] = {}  # in the order they came in
        self._has_warned = False

    def admit(self, connection: socket.socket) -> None:
        """Take one in. The first of them makes room, when the shim would have shown the token."""
        with self._changed:
            while len(self._since) >= _MOST_STRANGERS:
                first, since = next(iter(self._since.items()))
                left_s = since + _STRANGE_FOR_S - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                else:
                    del self._since[first]
            self._since[connection] = time.monotonic()

    def is_known(self, connection: socket.socket) -> bool:
        """Return whether a connection shows the token, as py4j has it: its command, and the end.

        It is a stranger no more.
        """
        try:
            found = self._read(connection)
            connection.settimeout(None)
        except OSError:  # too late, or gone
            found = b""
        finally:
            with self._changed:
                self._since.pop(connection, None)
                self._changed.notify_all()
        if hmac.compare_digest(found, self._shown):
            return True
        if not self._has_warned:
            self._has_warned = True
            _log.warning("a connection without the token was refused; later ones are unsaid")
        return False

    def _read(self, connection: socket.socket) -> bytes:
        """Read as many bytes as the token takes, or three lines.

        Fewer of one that made room, or takes too long. What was sent in time is read, however late
        this thread comes to it.
        """
        deadline = time.monotonic() + _TOKEN_TIMEOUT_S
        connection.settimeout(_STRANGE_FOR_S)
        found = b""
        while (missing := len(self._shown) - len(found)) > 0 and found.count(b"\n") < _LINES:
            with suppress(TimeoutError):
                if not (more := connection.recv(missing)):
                    break
                found += more
            if connection not in self._since or time.monotonic() > deadline:
                break
        return found


class _Connection(ClientServerConnection):  # type: ignore[misc]
    """A connection that serves calls when it has shown the token."""

    def run(self) -> None:
        is_known = self.python_server.strangers.is_known(self.socket)
        try:
            answer = OUTPUT_VOID_COMMAND if is_known else ERROR_RETURN_MESSAGE
            self.socket.sendall(answer.encode())
        except OSError:  # gone, or never read
            is_known = False
        if is_known:
            super().run()
        else:
            self.close(reset=True)


class _Server(PythonServer):  # type: ignore[misc]
    """py4j's server, answering at once: a reply above 8 kB would else wait 40 ms for an ACK.

    A connection that cannot be accepted, for lack of a file descriptor or a thread, is not the end
    of those after it. py4j's own look at the token reads lines of any length, and prints them.
    """

    def __init__(
        self, client: Any, java: JavaParameters, python: PythonParameters, gateway: Any
    ) -> None:
        super().__init__(client, java, python, gateway)
        self.strangers = _Strangers(python.auth_token)
        self._of_known = copy.copy(python)
        self._of_known.auth_token = None

    def run(self) -> None:
        """Accept connections until the server is shut down."""
        super().run()
        while not self.is_shutdown:
            time.sleep(_PAUSE_S)
            super().run()

    def _create_connection(self, accepted: socket.socket, stream: Any) -> ClientServerConnection:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.strangers.admit(accepted)
        made = _Connection(
            self.java_parameters,
            self._of_known,
            self.gateway_property,
            self.gateway_client,
            python_server=self,
        )
        made.init_socket_from_python_server(accepted, stream)
        return made


def _listen_to_many(server: PythonServer, **_: Any) -> None:
    """Have more connections wait than py4j does: one that finds no place is lost for seconds."""
    server.server_socket.listen(_BACKLOG)


class _Gateway(ClientServer):  # type: ignore[misc]
    def _create_callback_server(self, parameters: PythonParameters) -> PythonServer:
        return _Server(
            self._gateway_client, self.java_parameters, parameters, self.gateway_property
        )


def serve(handshake: Handshake) -> tuple[int, Callable[[], bool]]:
    """Accept calls on a loopback port in the background; return the port when it listens."""
    token = handshake.token
    service = EngineService(
        handshake.scratch,
        hadoop=ShimFiles(),
        name=handshake.engine,
        application=handshake.application,
        executor=handshake.executor,
    )
    started = threading.Event()
    # In this order: what is told of the port may connect at once.
    server_started.connect(_listen_to_many)
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
            host="127.0.0.1",
            waited_s=_START_TIMEOUT_S,
            to_fix="check that the executor may listen on 127.0.0.1",
        )
    return int(gateway.get_callback_server().get_listening_port()), service.end


if __name__ == "__main__":
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    os._exit(run_process(serve))
