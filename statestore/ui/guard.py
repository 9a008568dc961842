"""Who is answered: whoever has the token, by this server's own pages."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

TOKEN_HEADER = "x-statestore-token"  # noqa: S105 (its name)


class Guard:
    """Refuses requests.

    Args:
        token: Word that each has to show.
        host: Address that is listened at.
    """

    def __init__(self, token: str, host: str) -> None:
        self._token = token.encode()
        self._is_local = _is_loopback(host)
        self._names = {host.lower(), "localhost"}
        if not self._is_local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def refusal(self, request: Request) -> str | None:
        """Return why a request is refused, None where it is not.

        A page of another site can neither send the header nor read an answer; a name that somebody
        let point here is not this server's; and only the header lets a request ask for anything but
        a page, so that no link does.
        """
        if not self._is_own_name(request.headers.get("host", "")):
            return "This server is not known by that name."
        shown = request.headers.get(TOKEN_HEADER, "")
        if request.method == "GET":
            shown = shown or request.query_params.get("token", "")
        if not secrets.compare_digest(shown.encode(errors="replace"), self._token):
            return "The address lacks this server's token."
        if request.method != "GET":
            origin = request.headers.get("origin")
            own = f"{request.url.scheme}://{request.headers['host']}"
            site = request.headers.get("sec-fetch-site", "same-origin")
            if (origin is not None and origin != own) or site != "same-origin":
                return "Only this server's own pages may ask for that."
            if request.headers.get("content-type") != "application/json":
                return "It is not JSON."
        return None

    def _is_own_name(self, host: str) -> bool:
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
