"""An engine's metrics and traces at a collector, and an engine whose collector is away."""

import socket
import sys
from pathlib import Path

import pytest

from statestore.engine.telemetry import Telemetry
from tests.engine_process import EngineProcess
from tests.otlp_collector import attributes_of, named_by_docs, running
from tests.shim import RocksDBShim, Shim, rows


@pytest.fixture
def collector():
    """A collector that runs."""
    with running() as collector:
        yield collector


def value(metric):
    """The number of a metric, or how many a histogram holds."""
    if metric.HasField("histogram"):
        return sum(point.count for point in metric.histogram.data_points)
    return sum(point.as_int for point in metric.sum.data_points)


@pytest.mark.parametrize("make", [Shim, RocksDBShim])
def test_every_metric_of_the_page_and_a_trace_of_each_commit_reach_a_collector(
    tmp_path, collector, make, monkeypatch
):
    """Catches a metric that only JMX has, times of a trace that are none of its commit.

    And a trace of a commit that an engine before has made durable.
    """
    shim = make(tmp_path, run="run", engine_otlp_endpoint=f"{collector.endpoint}/")
    with EngineProcess(shim.scratch) as killed:
        killed.process.kill()
        killed.process.wait()
    with EngineProcess(shim.scratch, application="app-1", executor="7") as engine:
        sizes = []
        for number in range(3):
            request = {**shim.request(rows(number)), "write_ms": 2}
            delta = Path(request["delta"]["path"])
            written = delta.read_bytes()
            reply = engine.call("commit", **request)
            shim.committed(request, reply)
            sizes.append(reply["size"])
        assert engine.call("load", **shim.load())["num_keys"] == 3
        assert engine.end_stdin() == 0
    metrics = dict(collector.metrics)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    resources = [*collector.resources]
    with EngineProcess(shim.scratch) as repeated:
        delta.write_bytes(written)
        assert repeated.call("commit", **request)["checkpoint_id"] == reply["checkpoint_id"]
        assert repeated.end_stdin() == 0
    named = collector.resources[len(resources) :]
    collector.resources[len(resources) :] = []
    assert {of["service.name"] for of in named} == {"orders"}

    assert metrics.keys() == named_by_docs()
    found = {name.partition(".")[2]: value(of) for name, of in metrics.items()}
    assert found["commit_ms"] == found["commit_write_ms"] == found["commit_sync_ms"] == 3
    assert found["delta_bytes"] == sum(sizes)
    assert (found["engines_running"], found["engine_restarts"]) == (1, 1)
    assert found["storage_puts"] >= 3
    assert found["engine_rss_bytes"] > 1 << 20
    assert {of["service.name"] for of in collector.resources} == {"statestore"}
    (resource, *_) = collector.resources
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


@pytest.mark.parametrize("is_silent", [False, True], ids=["absent", "silent"])
def test_commits_go_on_when_no_collector_answers(tmp_path, request, is_silent):
    """Catches an engine that waits for its collector, in a commit or at its end."""
    endpoint = "http://127.0.0.1:9"
    if is_silent:
        silent = socket.create_server(("127.0.0.1", 0))
        request.addfinalizer(silent.close)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
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
