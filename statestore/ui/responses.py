"""Responses of the server: who is refused, what a page or a question gets, errors in words.

Needs a package that is an extra.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from statestore.core.errors import InUseError, StateStoreError
from statestore.core.text import to_json
from statestore.ui.plans import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from statestore.ui.guard import Guard

_MOST_BYTES = 200_000
"""Of the body of a request."""


class Responses:
    """Makes of a function the one that a request is answered by, unless it is refused.

    Args:
        guard: Says who is refused.
        num_checkpoints: Their number; `number` in the path of a request is one from 0.
    """

    def __init__(self, guard: Guard, num_checkpoints: int) -> None:
        self._guard = guard
        self._num_checkpoints = num_checkpoints

    def html(self, make: Callable[..., str], *, is_page: bool) -> Callable[[Request], Response]:
        """Return what answers with a text, made of what the path has; of a page with its nonce."""

        def respond(request: Request) -> Response:
            if (refusal := self._refused(request)) is not None:
                return refusal
            nonce = secrets.token_urlsafe(16)
            arguments = (*request.path_params.values(), *([nonce] if is_page else []))
            try:
                page = make(*arguments).encode(errors="backslashreplace")
                return HTMLResponse(page, headers=_headers(nonce))
            except StateStoreError as error:
                return PlainTextResponse(str(error), 409, _headers())

        return respond

    def look(self, make: Callable[[int], dict[str, Any]]) -> Callable[[Request], Response]:
        """Return what answers with fields of a checkpoint, as JSON."""
        return lambda request: (
            self._refused(request) or _as_json(lambda: make(request.path_params["number"]))
        )

    def ask(
        self, make: Callable[[int, str, dict[str, Any]], dict[str, Any]], what: str
    ) -> Callable[[Request], Any]:
        """Return what answers a question with fields, made of the JSON in the body."""

        async def respond(request: Request) -> Response:
            refusal = self._refused(request)
            if refusal is not None:
                return refusal
            length = request.headers.get("content-length", "")
            if not length.isdigit() or int(length) > _MOST_BYTES:
                return PlainTextResponse("It is too long.", 413, _headers())
            try:
                fields = json.loads(await request.body())
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                return PlainTextResponse("It is no JSON object.", 400, _headers())
            number = request.path_params["number"]
            return await run_in_threadpool(_as_json, lambda: make(number, what, fields))

        return respond

    def _refused(self, request: Request) -> Response | None:
        if (why := self._guard.refusal(request)) is not None:
            return PlainTextResponse(why, 403, _headers())
        number = request.path_params.get("number", 0)
        if not 0 <= number < self._num_checkpoints:
            return PlainTextResponse("There is no such checkpoint.", 404, _headers())
        return None


def _as_json(make: Callable[[], dict[str, Any]]) -> Response:
    try:
        fields = make()
        status = 400 if "problem" in fields else 200
    except (InUseError, BusyError) as error:
        fields, status = {"problem": str(error)}, 409
    except StateStoreError as error:
        fields, status = {"problem": str(error)}, 400
    return Response(to_json(fields), status, _headers(), "application/json")


def _headers(nonce: str = "") -> dict[str, str]:
    script = f"'nonce-{nonce}'" if nonce else "'none'"
    return {
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src {script}; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    }
