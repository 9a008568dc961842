"""A real S3 server for tests: moto over HTTP, behind a layer that can make a request fail."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import Counter

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from statestore.io.s3 import S3Settings

REGION = "eu-central-1"


class S3Server:
    """Serves on a port of its own until `stop`.

    Attributes:
        requests: Requests by method since `forget`.
    """

    def __init__(self):
        self.requests = Counter()
        self._faults = []
        self._numbers = itertools.count(1)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def settings(self, **others):
        """What a client needs to reach this server, impatient."""
        mine = {"endpoint": self.endpoint, "region": REGION, "path_style": True}
        return S3Settings(**{**mine, "max_attempts": 3, "timeout_s": 5.0, **others})

    def make_bucket(self):
        """Create an empty bucket and return its name."""
        self._faults.clear()
        name = f"bucket-{next(self._numbers)}"
        boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION).create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.requests.clear()
        return name

    def fail(self, method, fault, times=1):
        """Let the next requests of a method be `throttled`, `reply-lost`, `truncated` or `refused`.

        A lost reply is one to a request that was carried out.
        """
        self._faults += [(method, fault)] * times

    def stop(self):
        """Close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, environ, start_response):
        method = environ["REQUEST_METHOD"]
        self.requests[method] += 1
        fault = self._take_fault(method)
        if fault == "throttled":
            return _answer(start_response, "503 Slow Down", "SlowDown")
        if fault == "refused":
            return _answer(start_response, "403 Forbidden", "InvalidAccessKeyId")
        if fault is None:
            return self._app(environ, start_response)
        body = b"".join(self._app(environ, start_response))
        if fault == "reply-lost":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return [body[: len(body) // 2]]

    def _take_fault(self, method):
        for index, (wanted, fault) in enumerate(self._faults):
            if wanted == method:
                del self._faults[index]
                return fault
        return None


def _answer(start_response, status, code):
    body = f"<Error><Code>{code}</Code><Message>as the test wants</Message></Error>".encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]
