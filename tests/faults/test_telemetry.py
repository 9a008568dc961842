"""An engine's metrics and traces at a collector, and an engine whose collector is away."""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from statestore.engine.telemetry import Telemetry
from statestore.testing.engine_process import EngineProcess
from tests.shim import RocksDBShim, Shim, rows

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


class Collector(ThreadingHTTPServer):
    """What reached a collector of OTLP over HTTP."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Taker)
        self.metrics, self.spans, self.resources = {}, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self):
        """The address for the option."""
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path, body):
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

    def do_POST(self):
        """One request of an exporter."""
        self.server.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


def attributes_of(message):
    """Attributes as text."""
    return {
        one.key: str(one.value.string_value or one.value.int_value) for one in message.attributes
    }


@pytest.fixture
def collector():
    """A collector that runs."""
    server = Collector()
    yield server
    server.shutdown()
    server.server_close()


def value(metric):
    """The number of a metric, or how many a histogram holds."""
    if metric.HasField("histogram"):
        return sum(point.count for point in metric.histogram.data_points)
    return sum(point.as_int for point in metric.sum.data_points)


def named_by_docs():
    """Names in the table of the source `statestore`."""
    page = METRICS_PAGE.read_text().partition("## The source `statestore`")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("make", [Shim, RocksDBShim])
def test_every_metric_of_the_page_and_a_trace_of_each_commit_reach_a_collector(
    tmp_path, collector, make
):
    """Catches a metric that only JMX has, times of a trace that are none of its commit."""
    shim = make(tmp_path, run="run", engine_otlp_endpoint=f"{collector.endpoint}/")
    with EngineProcess(shim.scratch) as killed:
        killed.process.kill()
        killed.process.wait()
    with EngineProcess(shim.scratch) as engine:
        engine.call(
            "lease", store=shim.store, backend=shim.backend, options=shim.options,
            action="take", id="a" * 32, pid=1, application="app-1", executor="7",
        )  # fmt: skip
        sizes = []
        for number in range(3):
            request = {**shim.request(rows(number)), "write_ms": 2}
            reply = engine.call("commit", **request)
            shim.committed(request, reply)
            sizes.append(reply["size"])
        assert engine.call("load", **shim.load())["num_keys"] == 3
        assert engine.end_stdin() == 0

    names = {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", n): n for n in named_by_docs()}
    assert {f"statestore.{name}" for name in names} == collector.metrics.keys()
    found = {name: value(collector.metrics[f"statestore.{of}"]) for of, name in names.items()}
    assert found["commitMs"] == found["commitWriteMs"] == found["commitSyncMs"] == 3
    assert found["deltaBytes"] == sum(sizes)
    assert (found["enginesRunning"], found["engineRestarts"]) == (1, 1)
    assert found["storagePuts"] >= 4
    assert found["engineRssBytes"] > 1 << 20
    (resource, *_) = collector.resources
    assert resource["service.name"] == "statestore"
    assert (resource["spark.app.id"], resource["spark.executor.id"]) == ("app-1", "7")

    commits = [span for span in collector.spans if span.name == "commit"]
    assert [attributes_of(span)["statestore.version"] for span in commits] == ["1", "2", "3"]
    for commit in commits:
        inside = {s.name: s for s in collector.spans if s.parent_span_id == commit.span_id}
        assert inside.keys() == {"write", "checksum", "publish"}
        write = inside["write"]
        assert write.end_time_unix_nano - write.start_time_unix_nano == 2_000_000
        assert commit.start_time_unix_nano == write.start_time_unix_nano
        assert commit.end_time_unix_nano == inside["publish"].end_time_unix_nano
        (sync,) = (s for s in collector.spans if s.parent_span_id == inside["publish"].span_id)
        assert sync.start_time_unix_nano >= inside["publish"].start_time_unix_nano


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://10.255.255.1:4318", "no address"]
)
def test_commits_go_on_when_no_collector_answers(tmp_path, endpoint):
    """Catches an engine that waits for its collector, in a commit or at its end."""
    shim = Shim(tmp_path, run="run", engine_otlp_endpoint=endpoint)
    with EngineProcess(shim.scratch) as engine:
        for number in range(5):
            shim.commit(engine, rows(number))
        assert engine.call("load", **shim.load())["num_keys"] == 5
        assert engine.end_stdin() == 0


def test_missing_packages_are_named_once(monkeypatch, caplog):
    """Catches an engine that fails, or fills the log, where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    telemetry = Telemetry(dict, dict)

    for _ in range(2):
        telemetry.begin("http://127.0.0.1:9")
    telemetry.loaded(1.0, 1)
    telemetry.end()

    (record,) = caplog.records
    assert "statestore[otel]" in record.message
