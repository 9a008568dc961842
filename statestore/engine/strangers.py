"""Who has connected to an engine and not shown the token yet: every user of the machine can."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import AUTH_COMMAND_NAME, END

if TYPE_CHECKING:
    import socket

_MOST_STRANGERS = 32
_STRANGE_FOR_S = 0.5
_LINES = 3
_TOKEN_TIMEOUT_S = 30.0
"""Longer than a JVM stands still, which connects and then shows the token."""

_log = logging.getLogger(__name__)


class Strangers:
    """Connections that have not shown the token yet. Thread-safe.

    They cost a bounded number of threads, and no memory, as those of the shim's FileServer.

    Args:
        token: What they have to show.
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
            _log.warning(
                "a connection without the token was refused; later ones are, without a word"
            )
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
