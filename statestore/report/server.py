"""The pages of several checkpoints, served to one user's browser; nothing can be changed by them.

Every address needs the token of this server. A checkpoint is looked at anew for a request that
comes a while after the last look: the longer that took, the longer it is kept.
"""

from __future__ import annotations

import math
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from statestore.core.errors import IncompatibleError, InvalidArgumentError, StateStoreError
from statestore.report.page import render, render_index

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from statestore.core.clock import Clock
    from statestore.report.facts import Facts

REFRESH_SECONDS = 5
_KEEP_MS = 1000.0 * REFRESH_SECONDS / 2
_KEEP_TIMES = 4
"""How many times as long as a look took it is kept: looking is a fifth of the time at most."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; connect-src 'self'",
}


class _Looked:
    """What was seen of a checkpoint, kept for a while: several pages ask, again and again."""

    def __init__(self, look: Callable[[], Facts], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[Facts | None, str | None] = None, None
        self._kept_until_ms = -math.inf

    def facts(self) -> tuple[Facts | None, str | None]:
        """Return the facts, or what is wrong in their place."""
        with self._lock:
            began_ms = self._clock.elapsed_ms()
            if began_ms >= self._kept_until_ms:
                try:
                    self._seen = self._look(), None
                except StateStoreError as error:
                    self._seen = None, str(error)
                ended_ms = self._clock.elapsed_ms()
                keep_ms = max(_KEEP_MS, _KEEP_TIMES * (ended_ms - began_ms))
                self._kept_until_ms = ended_ms + keep_ms
            return self._seen


def make_application(
    checkpoints: Sequence[str], look: Callable[[str], Facts], token: str, clock: Clock
) -> Starlette:
    """Return the pages of some checkpoints as an ASGI application.

    Args:
        checkpoints: Their URIs; page N is that of number N, from 0.
        look: Returns the facts of one.
        token: What `?token=` of every address has to be.
        clock: Says how old what was looked at is.

    Raises:
        IncompatibleError: A package that serves pages is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, PlainTextResponse
        from starlette.routing import Route
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    looked = [_Looked(partial(look, uri), clock) for uri in checkpoints]

    def is_allowed(request: Request) -> bool:
        return secrets.compare_digest(
            request.query_params.get("token", "").encode(errors="replace"), token.encode()
        )

    def answer(request: Request, make: Callable[[], str]) -> Response:
        if not is_allowed(request):
            return PlainTextResponse("The address lacks this server's token.", 403, _HEADERS)
        return HTMLResponse(make(), headers=_HEADERS)

    def index(request: Request) -> Response:
        def make() -> str:
            rows = [
                (f"checkpoints/{number}?token={token}" if found else checkpoints[number],
                 found, problem)
                for number, (found, problem) in enumerate(one.facts() for one in looked)
            ]  # fmt: skip
            return render_index(rows, refresh_seconds=REFRESH_SECONDS)

        return answer(request, make)

    def page(request: Request) -> Response:
        number = request.path_params["number"]
        if not 0 <= number < len(looked):
            return PlainTextResponse("There is no such checkpoint.", 404, _HEADERS)

        def make() -> str:
            found, problem = looked[number].facts()
            if found is None:
                return render_index([(checkpoints[number], None, problem)])
            home = f"/?token={token}" if len(looked) > 1 else None
            return render(found, refresh_seconds=REFRESH_SECONDS, home=home)

        return answer(request, make)

    return Starlette(routes=[Route("/", index), Route("/checkpoints/{number:int}", page)])


def serve(
    checkpoints: Sequence[str],
    look: Callable[[str], Facts],
    *,
    host: str,
    port: int,
    clock: Clock,
    announce: Callable[[str], Any],
) -> None:
    """Serve pages until the process is asked to end.

    Args:
        checkpoints: Their URIs, at least one.
        look: Returns the facts of one; called by several threads.
        host: Address to listen at: the loopback's, unless others are to see the state.
        port: Port; 0 for any that is free.
        clock: As `make_application`.
        announce: Called with the address to open, once it answers.

    Raises:
        IncompatibleError: A package that serves pages is not installed.
        InvalidArgumentError: The address cannot be listened at.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    token = secrets.token_urlsafe(16)
    application = make_application(checkpoints, look, token, clock)
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise InvalidArgumentError(
            "cannot listen at the address",
            host=host,
            port=port,
            reason=error.strerror or str(error),
            to_fix="name another port, or 0 for any that is free",
        ) from error
    with listening:
        shown = f"[{host}]" if ":" in host else host
        where = "checkpoints/0" if len(checkpoints) == 1 else ""
        announce(f"http://{shown}:{listening.getsockname()[1]}/{where}?token={token}")
        config = uvicorn.Config(application, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


def _missing(error: ModuleNotFoundError) -> IncompatibleError:
    return IncompatibleError(
        "pages are served by a package that is not installed",
        missing=error.name,
        to_fix="pip install 'statestore[ui]', or write a page to a file: statestore report",
    )
