"""Starts an engine process from Python and calls it, as the shim does from the JVM.

Speaks the few lines of py4j's text protocol that the calls need, over one connection a thread. For
`statestore doctor` and tests; an engine itself never uses it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, BinaryIO

from statestore.core.version import __version__
from statestore.engine import PROTOCOL_VERSION

_CONNECT_TIMEOUT_S = 10.0


class EngineRefusedError(Exception):
    """The engine answered FAILED to the handshake, or nothing; `refusal` is its answer."""

    def __init__(self, refusal: dict[str, Any]) -> None:
        super().__init__(refusal["message"])
        self.refusal = refusal


class EngineGoneError(Exception):
    """The engine closed the connection in the middle of a call."""


class EngineProcess:
    """A running engine. Use as a context manager, so that no engine outlives its caller.

    Args:
        command: The interpreter and its arguments.
        scratch_directory: Shared with the engine, which makes it and removes it when its stdin
            ends.
        token: Shown by every connection; at least 32 characters.
        environment: Of the process.
        stderr: Where its log goes; this process's stderr when None.
        start_timeout_s: Seconds after which a silent engine is killed; None waits for ever.
        claims: What the handshake says in place of, or besides, what is so of this package.

    Raises:
        EngineRefusedError: It refused, or ended without a word.
        OSError: The interpreter cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        scratch_directory: str,
        *,
        token: str,
        environment: Mapping[str, str],
        stderr: IO[bytes] | None = None,
        start_timeout_s: float | None = None,
        **claims: object,
    ) -> None:
        self.scratch_directory = scratch_directory
        self._token = token
        self._connections = threading.local()
        self._opened: list[EngineConnection] = []
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(environment),
        )
        handshake = {
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "scratch": scratch_directory,
            "engine": "0",
            **claims,
        }
        word, rest = self._shake_hands(json.dumps(handshake), start_timeout_s)
        if word != "READY":
            self.kill()
            raise EngineRefusedError(json.loads(rest or '{"message": "no answer"}'))
        self.ready: dict[str, Any] = json.loads(rest)

    def _shake_hands(self, handshake: str, timeout_s: float | None) -> tuple[str, str]:
        watch = threading.Timer(timeout_s or 0.0, self.process.kill)
        if timeout_s is not None:
            watch.start()
        try:
            self._stdin.write(f"{self._token}\n{handshake}\n".encode())
            self._stdin.flush()
        except BrokenPipeError:
            return "", ""
        else:
            word, _, rest = self._stdout.readline().decode().partition(" ")
            return word, rest
        finally:
            watch.cancel()

    @property
    def _stdin(self) -> BinaryIO:
        assert self.process.stdin is not None  # noqa: S101 (it was asked for)
        return self.process.stdin  # type: ignore[return-value]

    @property
    def _stdout(self) -> BinaryIO:
        assert self.process.stdout is not None  # noqa: S101 (it was asked for)
        return self.process.stdout  # type: ignore[return-value]

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a call on this thread's connection and return the whole reply.

        Raises:
            EngineGoneError: The engine died; the call may or may not have happened.
        """
        connection = getattr(self._connections, "connection", None)
        if connection is None:
            connection = EngineConnection(self.ready["port"], self._token)
            self._connections.connection = connection
            self._opened.append(connection)
        try:
            return connection.request({"op": op, **fields})
        except EngineGoneError:
            self._connections.connection = None
            raise

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a call and return the `ok` of its reply.

        Raises:
            AssertionError: It answered an error.
            EngineGoneError: The engine died.
        """
        reply = self.request(op, **fields)
        if "ok" not in reply:
            raise AssertionError(f"{op} failed: {reply['error']['message']}")
        return dict(reply["ok"])

    def kill(self) -> None:
        """Kill the engine with SIGKILL and wait until it is gone."""
        self.process.kill()
        self._release()

    def end_stdin(self, timeout_s: float = 10.0) -> int:
        """End stdin, as the end of the JVM does, and return the engine's exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end.
        """
        self._stdin.close()
        return self._release(timeout_s)

    def _release(self, timeout_s: float = 10.0) -> int:
        code = self.process.wait(timeout_s)
        for connection in self._opened:
            connection.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        return code


class EngineConnection:
    """One authenticated connection to an engine; for one thread at a time."""

    def __init__(self, port: int, token: str) -> None:
        """Connect and authenticate.

        Raises:
            PermissionError: The engine refused the token.
            EngineGoneError: No engine listens.
        """
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S)
        except OSError as error:
            raise EngineGoneError("connect") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._stream = self._socket.makefile("rb")
        if self._send(f"A\n{token}\ne\n") != "!yv":
            self.close()
            raise PermissionError("the engine refused the token")

    def request(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Send one call and return its reply.

        Raises:
            EngineGoneError: The connection ended before the reply.
            AssertionError: What answered is no engine.
        """
        text = json.dumps(fields).replace("\\", "\\\\")
        reply = self._send(f"c\nt\ncall\ns{text}\ne\n")
        if not reply.startswith("!ys"):
            raise AssertionError(f"the engine answered {reply!r}")
        return dict(json.loads(reply[3:].replace("\\\\", "\\")))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def _send(self, command: str) -> str:
        try:
            self._socket.sendall(command.encode())
            reply = self._stream.readline().decode()
        except OSError as error:
            self.close()
            raise EngineGoneError("send") from error
        if not reply.endswith("\n"):
            self.close()
            raise EngineGoneError("receive")
        return reply.rstrip("\n")
