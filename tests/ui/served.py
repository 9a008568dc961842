"""The live page of checkpoints as users start it, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from statestore.checkpoint.lease import Holder, Lease
from statestore.core.clock import SystemClock
from statestore.core.ids import RandomIds
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore.testing.checkpoints import MadeCheckpoint


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something is so; fail where it does not become so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Served:
    """A server of pages.

    Args:
        address: What it has printed.
        process: Its process.
    """

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.process = process
        parts = urlsplit(address)
        self.port = parts.port or 0
        self.token = parts.query.removeprefix("token=")
        self.root = f"http://127.0.0.1:{self.port}"

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Get what is at a path; return status and text."""
        return self.send("GET", path, None, {} if headers is None else headers)

    def page(self, path: str) -> str:
        """Get a page with the token."""
        status, text = self.get(f"{path}?token={self.token}")
        assert status == 200, text
        return text

    def live(self, number: int = 0) -> Any:
        """Get what is told of a query."""
        return json.loads(self.page(f"/checkpoints/{number}/live"))

    def ask(self, what: str, number: int = 0, **fields: str) -> tuple[int, Any]:
        """Ask by POST as the page does; return status and what JSON says."""
        headers = {"X-Statestore-Token": self.token, "Content-Type": "application/json"}
        path = f"/checkpoints/{number}/{what}"
        status, text = self.send("POST", path, json.dumps(fields).encode(), headers)
        return status, json.loads(text)

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Send a request with these headers; return status and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()


@contextmanager
def serve(*arguments: object, stderr: int | None = None) -> Iterator[Served]:
    """Serve checkpoints for a block; stderr as of a process."""
    command = [sys.executable, "-m", "statestore.cli", "ui", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            yield Served(process.stdout.readline().strip(), process)
        finally:
            process.kill()


def lease_of(made: MadeCheckpoint) -> Lease:
    """Return the lease of a query that runs in this process."""
    holder = Holder(find_process(), application="app", run="run", executor="driver")
    root = f"{made.path}/state"
    return Lease(LocalFileIO(), root, RandomIds().new_id(), holder, 10_000, SystemClock())
