"""A collector of OTLP over HTTP that keeps what reached it, and the names that it should get."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

METRICS_PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


class Collector(ThreadingHTTPServer):
    """What reached a collector of OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.metrics: dict[str, Any] = {}
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The address for the option."""
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, body: bytes) -> None:
        """Take in one request."""
        if path == "/v1/metrics":
            for of_engine in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(attributes_of(of_engine.resource))
                for scope in of_engine.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}
        else:
            assert path == "/v1/traces"
            for of_engine in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in of_engine.scope_spans:
                    self.spans += scope.spans


class Taker(BaseHTTPRequestHandler):
    """Answers with success, silently."""

    server: Collector

    def do_POST(self) -> None:
        """One request of an exporter."""
        self.server.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def attributes_of(message: Any) -> dict[str, str]:
    """Attributes as text."""
    return {
        one.key: str(one.value.string_value or one.value.int_value) for one in message.attributes
    }


@contextmanager
def running() -> Iterator[Collector]:
    """A collector that runs until the end of the block."""
    server = Collector()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def named_by_docs() -> set[str]:
    """Names in the table of the source `statestore`, as OpenTelemetry writes them."""
    page = METRICS_PAGE.read_text().partition("## The source `statestore`")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    return {
        "statestore." + re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        for name in names
    }
