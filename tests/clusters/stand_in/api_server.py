"""A stand-in for the API server of Kubernetes: `api_server.py CERTIFICATE KEY NODE...`.

It keeps objects, lists them, tells watchers of changes, gives each new pod a node in turn, and
deletes what an object owned that is gone: what Spark's client and `kubelet.py` ask for. It stands
in for Kubernetes alone. It does not look at who asks, at what a pod needs, and at whether an object
is well formed: there is no RBAC, no scheduler, no admission. It needs no more than Python.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

PORTS = (6443, 443)
"""The second is what pods reach as `kubernetes.default.svc`."""
_PATH = re.compile(
    r"/(?:api|apis/[\w.]+)/\w+(?:/namespaces/(?P<namespace>[\w.-]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[\w.-]+))?(?:/status)?"
)
_TERM = re.compile(r"([\w./-]+) *(?:(==?|!=) *([\w.-]*)|(in|notin) *\(([^)]*)\))?(?:,|$)")
_ADDED, _MODIFIED, _DELETED = "ADDED", "MODIFIED", "DELETED"
_PODS = "pods"
Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""


class Selection:
    """Which objects a request is about.

    Args:
        plural: Their kind, as it is in a path.
        namespace: Their namespace; None for all.
        query: Parameters of the request: `labelSelector`, `fieldSelector`.
    """

    def __init__(self, plural: str, namespace: str | None, query: dict[str, list[str]]) -> None:
        self._plural = plural
        self._namespace = namespace
        self._labels, self._fields = (
            _TERM.findall(",".join(query.get(name, [])))
            for name in ("labelSelector", "fieldSelector")
        )

    def has(self, key: Key, found: Object) -> bool:
        """Whether an object is one of them."""
        labels = found["metadata"].get("labels") or {}
        return (
            key[0] == self._plural
            and self._namespace in (None, key[1])
            and all(_holds(labels.get(term[0]), *term[1:]) for term in self._labels)
            and all(_holds(_field(found, term[0]), *term[1:]) for term in self._fields)
        )


def _holds(found: str | None, sign: str, value: str, word: str, values: str) -> bool:
    if not sign and not word:
        return found is not None
    wanted = [each.strip() for each in values.split(",")] if word else [value]
    return (found in wanted) == ((sign or word) in ("=", "==", "in"))


def _field(found: Object, path: str) -> str | None:
    value: Any = found
    for name in path.split("."):
        value = value.get(name, {})
    return value or None


class Store:
    """All objects, and every change of them in order. Its methods may be called by any thread.

    A resource version is the number of changes so far.

    Args:
        nodes: Names of the nodes, which pods come to in turn.
    """

    def __init__(self, nodes: list[str]) -> None:
        self._nodes = itertools.cycle(nodes)
        self._objects: dict[Key, Object] = {}
        self._changes: list[tuple[str, Key, Object]] = []
        self._changed = threading.Condition(threading.RLock())

    def get(self, key: Key) -> Object | None:
        """Return an object, None if there is none."""
        with self._changed:
            return self._objects.get(key)

    def select(self, selection: Selection) -> tuple[int, list[Object]]:
        """Return the resource version and the objects of a selection."""
        with self._changed:
            found = [each for key, each in self._objects.items() if selection.has(key, each)]
            return len(self._changes), found

    def watch(self, selection: Selection, version: int) -> Iterator[Object]:
        """Yield the changes of a selection after a resource version, for ever."""
        for index in itertools.count(version):
            with self._changed:
                while len(self._changes) <= index:
                    self._changed.wait()
                kind, key, found = self._changes[index]
            if selection.has(key, found):
                yield {"type": kind, "object": found}

    def create(self, key: Key, given: Object) -> Object:
        """Add an object."""
        with self._changed:
            metadata = {"uid": f"uid-{len(self._changes)}", **given.get("metadata", {})}
            created = {**given, "metadata": {**metadata, "namespace": key[1], "name": key[2]}}
            if key[0] == _PODS:
                created["status"] = {"phase": "Pending"}
                created["spec"] = {**created["spec"], "nodeName": next(self._nodes)}
            return self._put(_ADDED, key, created)

    def patch(self, key: Key, patch: Object | list[Object]) -> Object | None:
        """Change an object by a merge patch or a JSON patch; return it, None if there is none."""
        with self._changed:
            found = self._objects.get(key)
            if found is None:
                return None
            changed = json.loads(json.dumps(found))
            if isinstance(patch, list):
                for step in patch:
                    _take_step(changed, step)
            else:
                _merge(changed, patch)
            return self._put(_MODIFIED, key, changed)

    def delete(self, key: Key, *, at_once: bool) -> Object | None:
        """Delete an object and what it owns; a pod is only marked, unless it is at once.

        Returns:
            The object, None if there is none.
        """
        with self._changed:
            found = self._objects.get(key)
            if found is None:
                return None
            if key[0] == _PODS and not at_once:
                return self.patch(key, {"metadata": {"deletionTimestamp": "2000-01-01T00:00:00Z"}})
            gone = self._put(_DELETED, key, found)
            del self._objects[key]
            owner = gone["metadata"]["uid"]
            for other, each in list(self._objects.items()):
                owners = each["metadata"].get("ownerReferences") or []
                if any(reference["uid"] == owner for reference in owners):
                    self.delete(other, at_once=False)
            return gone

    def _put(self, kind: str, key: Key, changed: Object) -> Object:
        version = str(len(self._changes) + 1)
        changed = {**changed, "metadata": {**changed["metadata"], "resourceVersion": version}}
        self._objects[key] = changed
        self._changes.append((kind, key, changed))
        self._changed.notify_all()
        return changed


def _merge(target: Object, patch: Object) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value


def _take_step(target: Any, step: Object) -> None:
    *path, last = (
        name.replace("~1", "/").replace("~0", "~") for name in step["path"].split("/")[1:]
    )
    for name in path:
        target = target[int(name)] if isinstance(target, list) else target.setdefault(name, {})
    if isinstance(target, list):
        target.insert(len(target) if last == "-" else int(last), step["value"])
    elif step["op"] == "remove":
        target.pop(last, None)
    else:
        target[last] = step["value"]


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a connection."""

    protocol_version = "HTTP/1.1"
    store: Store

    def _answer(self) -> None:
        url = urlparse(self.path)
        query = parse_qs(url.query)
        body = self._body()
        print(self.command, self.path, flush=True)
        matched = _PATH.fullmatch(url.path)
        if matched is None:
            self._send(HTTPStatus.NOT_FOUND, _status(HTTPStatus.NOT_FOUND))
            return
        namespace, plural, name = matched["namespace"], matched["plural"], matched["name"]
        if "watch" in query and query["watch"] != ["false"]:
            self._watch(Selection(plural, namespace, query), query.get("resourceVersion", ["0"])[0])
        elif name is None and self.command == "GET":
            version, found = self.store.select(Selection(plural, namespace, query))
            metadata = {"resourceVersion": str(version)}
            self._send(HTTPStatus.OK, {"apiVersion": "v1", "metadata": metadata, "items": found})
        elif name is None and self.command == "DELETE":
            _, found = self.store.select(Selection(plural, namespace, query))
            for each in found:
                metadata = each["metadata"]
                self.store.delete((plural, metadata["namespace"], metadata["name"]), at_once=False)
            self._send(HTTPStatus.OK, _status(HTTPStatus.OK))
        else:
            key = (plural, namespace or "", name or body["metadata"]["name"])
            self._send_one(self._one(key, body, at_once=query.get("gracePeriodSeconds") == ["0"]))

    def _one(self, key: Key, body: Any, *, at_once: bool) -> Object | None:
        if self.command == "GET":
            return self.store.get(key)
        if self.command == "DELETE":
            return self.store.delete(key, at_once=at_once)
        if self.command == "POST":
            return self.store.create(key, body)
        # An apply creates what is not there.
        return self.store.patch(key, body) or self.store.create(key, body)

    def _send_one(self, found: Object | None) -> None:
        status = HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK
        self._send(status, found or _status(status))

    def _watch(self, selection: Selection, version: str) -> None:
        # Spark's client asks for a WebSocket first, and without one goes on by HTTP.
        if "Upgrade" in self.headers:
            self.close_connection = True
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, _status(HTTPStatus.SERVICE_UNAVAILABLE))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # whoever watched went away
            for change in self.store.watch(selection, int(version)):
                line = json.dumps(change).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

    def _send(self, status: HTTPStatus, answer: Object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing: each request is printed when it comes."""

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer


def _status(status: HTTPStatus) -> Object:
    outcome = "Success" if status == HTTPStatus.OK else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": outcome, "code": int(status)}


def main(certificate: str, key: str, *nodes: str) -> None:
    """Serve for ever."""
    Handler.store = Store(list(nodes))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    threads = []
    for port in PORTS:
        server = ThreadingHTTPServer(("", port), Handler)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        threads.append(threading.Thread(target=server.serve_forever))
        threads[-1].start()
    print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
