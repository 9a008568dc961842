"""The engine process: `python -m statestore.engine`, started and ended by the shim."""

from __future__ import annotations

import copy
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from py4j.clientserver import (
    ClientServer,
    ClientServerConnection,
    JavaParameters,
    PythonParameters,
    PythonServer,
)
from py4j.java_gateway import server_started
from py4j.protocol import ERROR_RETURN_MESSAGE, OUTPUT_VOID_COMMAND

from statestore.core.errors import ProtocolError
from statestore.engine.process import Handshake, run_process
from statestore.engine.service import EngineService
from statestore.engine.strangers import Strangers
from statestore.io.shim_files import ShimFiles

_START_TIMEOUT_S = 30.0

_SWITCH_INTERVAL_S = 0.0005
"""How long a merge or a snapshot may keep the interpreter while a commit waits for it."""


_BACKLOG = 128
_PAUSE_S = 0.2


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
        self.strangers = Strangers(python.auth_token)
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
