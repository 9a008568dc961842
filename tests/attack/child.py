"""Runs one operation in a process of its own, which may be killed or stopped at a storage call.

Processes come from a server that has imported the package already, so that one takes milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

CHANGING = ("publish", "write", "delete", "delete_files", "link", "delete_tree", "make_directory")
"""Calls of a storage that change it."""
_PARTS = ("statestore-leases", "state", "offsets", "commits", "sources")
TIMEOUT_S = 240.0
POLL_S = 0.02
Disturbance = Literal["", "kill", "stop"]
Ending = Literal["done", "refused", "failed", "killed"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.attack.preloaded"])


@dataclass(frozen=True)
class Call:
    """An operation as a user calls it.

    Attributes:
        argv: Words behind `statestore` on the command line; empty for a call of Python's API.
        directory: Of the API: the directory that it is called on.
        is_savepoint: Whether that is a savepoint.
        method: Name of the method.
        arguments, keywords: What it gets.
        options: Storage options.
    """

    argv: tuple[str, ...] = ()
    directory: str = ""
    is_savepoint: bool = False
    method: str = ""
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return it as a line."""
        if self.argv:
            return "statestore " + " ".join(map(repr, self.argv))
        given = [*map(_short, self.arguments)]
        given += [f"{name}={_short(value)}" for name, value in self.keywords.items()]
        kind = "Savepoint" if self.is_savepoint else "Checkpoint"
        return f"{kind}({self.directory!r}).{self.method}({', '.join(given)})"


def _short(value: Any) -> str:
    text = repr(value.to_pydict()) if hasattr(value, "to_pydict") else repr(value)
    return text if len(text) < 300 else f"{text[:300]}…"


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        ending: done; refused by an error of the package; failed by any other; or killed.
        text: What it printed or returned, or the error.
        kind: Kind of the error.
        calls: Of each call that changed the storage, the part of the directory that it changed.
        value: What it returned, where that can be sent.
    """

    ending: Ending
    text: str = ""
    kind: str = ""
    calls: tuple[str, ...] = ()
    value: Any = None


class Child:
    """An operation under way."""

    def __init__(
        self, call: Call, disturbance: Disturbance = "", at: int = 0, bug: str = ""
    ) -> None:
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(call, disturbance, at, bug, theirs))
        self._process.start()
        self._pid = cast("int", self._process.pid)
        theirs.close()

    def end(
        self, timeout_s: float = TIMEOUT_S, serve: Callable[[Child], None] | None = None
    ) -> Outcome:
        """Wait until it has ended.

        Args:
            timeout_s: At most so long, where it has not to be served.
            serve: Called again and again meanwhile.

        Raises:
            TimeoutError: It does not.
        """
        while serve is not None and not self._connection.poll(POLL_S):
            serve(self)
        if not self._connection.poll(timeout_s):
            self._process.kill()
            raise TimeoutError(f"an operation did not end within {timeout_s} s")
        try:
            outcome: Outcome = self._connection.recv()
        except EOFError:
            outcome = Outcome("killed")
        self._process.join(timeout_s)
        return outcome

    def is_stopped(
        self, timeout_s: float = TIMEOUT_S, serve: Callable[[Child], None] | None = None
    ) -> bool:
        """Wait until it has stopped itself, served as by `end`; False when it ended before."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if serve is not None:
                serve(self)
            if self._connection.poll(POLL_S):
                return False
            try:
                stat = Path(f"/proc/{self._pid}/stat").read_bytes()
            except OSError:
                return False
            if stat.rpartition(b")")[2].split()[0] == b"T":
                return True
        raise TimeoutError(f"an operation neither stopped nor ended within {timeout_s} s")

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def go_on(self) -> None:
        """Let it go on when it has stopped itself."""
        os.kill(self._pid, signal.SIGCONT)


def run(
    call: Call,
    disturbance: Disturbance = "",
    at: int = 0,
    bug: str = "",
    serve: Callable[[Child], None] | None = None,
) -> Outcome:
    """Run a call in a process of its own, serve it, and wait until it has ended."""
    return Child(call, disturbance, at, bug).end(serve=serve)


def in_this_process(action: Callable[[], Any]) -> Outcome:
    """Run what needs the application of this process."""
    from statestore import StateStoreError

    try:
        action()
    except StateStoreError as error:
        return Outcome("refused", str(error), error.kind)
    except Exception:  # noqa: BLE001 - whatever it is, it is what the lane looks for
        return Outcome("failed", traceback.format_exc())
    return Outcome("done")


def _run(call: Call, disturbance: Disturbance, at: int, bug: str, connection: Connection) -> None:
    counter = Counter(disturbance, at)
    counter.watch_storage()
    if bug:
        from . import planted_bugs

        planted_bugs.plant(bug)
    try:
        ending, text, kind, value = _on_command_line(call) if call.argv else _in_python(call)
    except BaseException:  # noqa: BLE001 - whatever it is, it is what the lane looks for
        ending, text, kind, value = "failed", traceback.format_exc(), "", None
    connection.send(Outcome(ending, text, kind, tuple(counter.calls), value))
    connection.close()


class Counter:
    """Counts the calls that change the storage, and disturbs one of them.

    Args:
        disturbance: How.
        at: Which: an even number is before the call of its half, an odd one behind it.

    Attributes:
        calls: Of each call the part of the directory that it changed.
    """

    def __init__(self, disturbance: Disturbance, at: int) -> None:
        self._signal = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "": None}[disturbance]
        self._at = at
        self._lock = threading.Lock()
        self.calls: list[str] = []

    def watch_storage(self) -> None:
        """Count the calls of local disks from now on."""
        from statestore.io.local import LocalFileIO

        for name in CHANGING:
            at = 2 if name in ("publish", "link") else 1
            self.watch(LocalFileIO, name, partial(_part_of, at=at))

    def watch(self, of: Any, name: str, part_of: Callable[[Any], str]) -> None:
        """Count the calls of a function of an object, class or module from now on."""
        call = getattr(of, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                number = len(self.calls)
                self.calls.append(part_of(arguments))
            if number * 2 == self._at and self._signal:
                os.kill(os.getpid(), self._signal)
            found = call(*arguments, **more)
            if number * 2 + 1 == self._at and self._signal:
                os.kill(os.getpid(), self._signal)
            return found

        setattr(of, name, watched)


def _part_of(arguments: Any, at: int) -> str:
    """Return the part of a checkpoint that the path at a place of arguments is of, or its name."""
    parts = Path(arguments[at]).parts
    return next((part for part in _PARTS if part in parts), parts[-1])


def _on_command_line(call: Call) -> tuple[Ending, str, str, Any]:
    from statestore.cli.commands import cli
    from statestore.core.errors import KINDS

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            cli.main(list(call.argv), prog_name="statestore", standalone_mode=True)
            status: Any = 0
        except SystemExit as error:
            status = error.code
    text = printed.getvalue()
    # A certificate that says where a key was found all the same ends with status 1.
    if status in (0, None) or '"done": true' in text:
        return "done", text, "", text
    kind = next((kind for kind in KINDS if f"[{kind}]" in text), "")
    return "refused", f"exit status {status}: {text}", kind or "usage", text


def _in_python(call: Call) -> tuple[Ending, str, str, Any]:
    from statestore import Checkpoint, Savepoint, StateStoreError, try_job, write_savepoint

    made: Any = Savepoint if call.is_savepoint else Checkpoint
    try:
        directory = made(call.directory, storage_options=dict(call.options))
        value: Any
        if call.method == "write_savepoint":
            value = write_savepoint(*call.arguments, like=directory, **call.keywords)
        elif call.method == "try_job":
            value = try_job(directory, *call.arguments, **call.keywords).result
        else:
            of, _, method = call.method.rpartition(".")
            if of:
                address, version, *more = call.arguments
                directory = directory.rows(address, version=version)
                if method == "diff":
                    more = [made(call.directory).rows(address, version=more[0])]
            value = getattr(directory, method)(*(more if of else call.arguments), **call.keywords)
    except StateStoreError as error:
        return "refused", str(error), error.kind, None
    sent = _sendable(value)
    return "done", str(sent)[:2000], "", sent


def _sendable(value: Any) -> Any:
    fields = getattr(value, "fields", None)
    if callable(fields):
        return fields()
    if hasattr(value, "to_pylist"):
        return value
    return None
