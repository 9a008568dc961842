"""The pages of several checkpoints, served to one user's browser.

Every address needs the token of this server. Nothing can be changed by a page, unless that was
allowed; then by a plan that was shown, once.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    StateStoreError,
)
from statestore.report.page import (
    IndexRow,
    Server,
    render,
    render_facts,
    render_index,
    render_rows,
    render_waiting,
)
from statestore.ui.answers import LIMITS
from statestore.ui.asked import answer
from statestore.ui.guard import Guard
from statestore.ui.looks import Kept, Looks, look_at_all
from statestore.ui.plans import BusyError, Plans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from starlette.applications import Starlette

    from statestore.api.checkpoint import Checkpoint
    from statestore.core.clock import Clock
    from statestore.report.facts import Facts

_QUESTIONS = {"sql": ("sql",), "key": ("rows", "key")}


class _Pages:
    """The texts that the server answers with, by address."""

    def __init__(
        self,
        looks: Sequence[Looks],
        token: str,
        clock: Clock,
        *,
        allows_changes: bool,
        storage_options: Mapping[str, str],
    ) -> None:
        self._looks = looks
        self.plans = Plans(allows_changes=allows_changes, storage_options=tuple(storage_options))
        self._token = token
        self._allows_changes = allows_changes
        self._storage_options = storage_options
        self._asking, self._planning = threading.Lock(), threading.Lock()
        self._index = Kept(lambda: look_at_all(looks), clock)

    def index(self, nonce: str) -> str:
        return render_index(self._rows(), Server("/", self._token, nonce))

    def index_part(self) -> str:
        return render_rows(self._rows())

    def _rows(self) -> list[IndexRow]:
        seen = self._index.get()
        return [
            IndexRow(
                one.checkpoint.uri,
                f"/checkpoints/{number}?token={self._token}",
                query,
                one.facts.last,
                problem,
            )
            for number, (one, (query, problem)) in enumerate(zip(self._looks, seen, strict=True))
        ]

    def page(self, number: int, nonce: str) -> str:
        home = f"/?token={self._token}" if len(self._looks) > 1 else None
        address = f"/checkpoints/{number}"
        server = Server(address, self._token, nonce, home, self._allows_changes, LIMITS)
        try:
            return render(self._looks[number].facts.get(), server)
        except StateStoreError as error:
            return render_waiting(self._looks[number].checkpoint.uri, str(error), server)

    def part(self, number: int) -> str:
        return render_facts(self._looks[number].facts.get())

    def live(self, number: int) -> dict[str, Any]:
        query = self._looks[number].query.get()
        return {"query": asdict(query), "told": query.words()}

    def tables(self, number: int) -> dict[str, Any]:
        return {"tables": [one.name for one in self._looks[number].checkpoint.tables()]}

    def ask(self, number: int, what: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer what a page asks by a POST.

        Raises:
            BusyError: Another one is being answered.
            StateStoreError: It is refused, or fails.
        """
        one = self._looks[number]
        text = {name: value for name, value in fields.items() if isinstance(value, str)}
        if what != "do":
            # The plan of a repair reads all state: no question waits for that.
            one_at_a_time = self._planning if what == "plan" else self._asking
            if not one_at_a_time.acquire(blocking=False):
                raise BusyError("Another question is being answered: ask again in a moment.")
            try:
                if what == "plan":
                    return self.plans.plan(one.checkpoint, text)
                wanted = {name: text.get(name, "") for name in _QUESTIONS[what]}
                return answer(one.checkpoint, self._storage_options, what, **wanted)
            finally:
                one_at_a_time.release()
        try:
            return self.plans.do(one.checkpoint, text.get("confirmation", ""))
        finally:
            one.forget()


def make_application(
    checkpoints: Sequence[Checkpoint],
    report: Callable[[Checkpoint], Facts],
    token: str,
    clock: Clock,
    *,
    host: str,
    allows_changes: bool,
    storage_options: Mapping[str, str],
) -> Starlette:
    """Return the pages of some checkpoints as an ASGI application.

    Args:
        checkpoints: The page of number N, from 0, is that of checkpoint N.
        report: Returns the facts of one; called by several threads.
        token: Word that `?token=` of every address, or the header, has to have.
        clock: Says how old what was looked at is.
        host: Address that is listened at: requests under other names are refused.
        allows_changes: Whether operations may be done by a page.
        storage_options: Those by which the checkpoints are reached.

    Raises:
        IncompatibleError: A package that serves pages is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route

        from statestore.ui.responses import Responses
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    looks = [Looks(one, report, clock) for one in checkpoints]
    pages = _Pages(
        looks, token, clock, allows_changes=allows_changes, storage_options=storage_options
    )
    respond = Responses(Guard(token, host), len(looks))
    at = "/checkpoints/{number:int}"
    asked = ["sql", "key", "plan", *(["do"] if allows_changes else [])]
    application = Starlette(
        routes=[
            Route("/", respond.html(pages.index, is_page=True)),
            Route("/part", respond.html(pages.index_part, is_page=False)),
            Route(at, respond.html(pages.page, is_page=True)),
            Route(f"{at}/part", respond.html(pages.part, is_page=False)),
            Route(f"{at}/live", respond.look(pages.live)),
            Route(f"{at}/tables", respond.look(pages.tables)),
            *(
                Route(f"{at}/{what}", respond.ask(pages.ask, what), methods=["POST"])
                for what in asked
            ),
        ]
    )
    application.state.plans = pages.plans
    return application


def serve(
    checkpoints: Sequence[Checkpoint],
    report: Callable[[Checkpoint], Facts],
    *,
    host: str,
    port: int,
    clock: Clock,
    announce: Callable[[str], Any],
    allows_changes: bool = False,
    storage_options: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Serve pages until the process is asked to end.

    What is looked at then is given up: its thread may go on. An operation is waited for.

    Args:
        checkpoints: At least one.
        report: As `make_application`, and so are the others.
        host: Address to listen at: the loopback's, unless others are to see the state.
        port: Port; 0 for any that is free.
        clock: Likewise.
        announce: Called with the address to open, once it answers.
        allows_changes: Likewise.
        storage_options: Likewise.

    Raises:
        IncompatibleError: A package that serves pages is not installed.
        InvalidArgumentError: The address cannot be listened at.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    token = secrets.token_urlsafe(16)
    application = make_application(
        checkpoints,
        report,
        token,
        clock,
        host=host,
        allows_changes=allows_changes,
        storage_options=storage_options,
    )
    if not host.strip():
        raise _cannot_listen(host, port, "an empty address is every one of this machine")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise _cannot_listen(host, port, error.strerror or str(error)) from error
    with listening:
        shown = f"[{host}]" if ":" in host else host
        where = "checkpoints/0" if len(checkpoints) == 1 else ""
        announce(f"http://{shown}:{listening.getsockname()[1]}/{where}?token={token}")
        config = uvicorn.Config(
            application, log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )

        class Serving(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                # What is given up from now on is no error.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                super().handle_exit(sig, frame)

        try:
            Serving(config).run(sockets=[listening])
        finally:
            application.state.plans.finish()


def _cannot_listen(host: str, port: int, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "cannot listen at the address",
        host=host,
        port=port,
        reason=reason,
        to_fix="name an address of this machine, and a port that is free; --port 0 is any",
    )


def _missing(error: ModuleNotFoundError) -> IncompatibleError:
    return IncompatibleError(
        "pages are served by a package that is not installed",
        missing=error.name,
        to_fix="pip install 'statestore[ui]', or write a page to a file: statestore report",
    )
