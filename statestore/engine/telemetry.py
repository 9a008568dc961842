"""What an engine did, pushed by OTLP over HTTP: metrics, and a trace of each commit's phases.

Off unless `engine.otlpEndpoint` names a collector. The packages are those of the extra `otel`:
where they are missing the engine says so once and works as before. All sending is on the SDK's own
threads: no call waits for a collector, and one that is away costs the newest measurements.

Sources: OpenTelemetry's specification of OTLP/HTTP, and its environment variables, which the SDK
reads (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_TRACES_SAMPLER` …).
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from statestore.core.version import __version__

if TYPE_CHECKING:
    from statestore.codec.commit_times import CommitTimes

logger = logging.getLogger(__name__)

_FLUSH_S = 0.6
"""How long the end of an engine waits for a collector."""
_SAY_AGAIN_S = 3600.0
_NS = 1_000_000
_SPAN = "commit"

Gauges = Callable[[], Mapping[str, int]]


class Telemetry:
    """Measurements of one engine, on their way to a collector. Thread-safe; never raises.

    Args:
        gauges: What is true now, by the names of docs/metrics.md.
        totals: What was counted since the engine started, by the names of docs/metrics.md.
        resource: Attributes of the engine; empty ones are left out.
    """

    def __init__(self, gauges: Gauges, totals: Gauges, **resource: str) -> None:
        self._gauges, self._totals, self._resource = gauges, totals, resource
        self._lock = threading.Lock()
        self._was_asked = False
        self._sending: _Sending | None = None

    def begin(self, endpoint: str) -> None:
        """Send to a collector from now on; the first call with an endpoint counts.

        Args:
            endpoint: The collector's address, without `/v1/metrics`; "" for none.
        """
        if not endpoint or self._was_asked:
            return
        with self._lock:
            if self._was_asked:
                return
            self._was_asked = True
            try:
                self._sending = _Sending(endpoint, self._resource, self._gauges, self._totals)
            except ImportError as error:
                logger.warning(
                    "no telemetry: error=%s. To fix: install the packages of "
                    "`statestore[otel]` in the executors' Python, or leave out "
                    "spark.sql.streaming.stateStore.engine.otlpEndpoint",
                    error,
                )
            except Exception:
                logger.exception("no telemetry: endpoint=%s", endpoint)

    def committed(
        self, store: str, version: int, times: CommitTimes, num_bytes: int, engine_ms: float
    ) -> None:
        """Take in a commit.

        Args:
            store: The store's directory.
            version: The version that is durable.
            times: Its phases.
            num_bytes: Bytes of the file that was published.
            engine_ms: Milliseconds of the engine's call, without `times.write_ms`.
        """
        if self._sending is not None:
            self._sending.committed(store, version, times, num_bytes, engine_ms)

    def loaded(self, load_ms: float, num_bytes: int) -> None:
        """Take in a load of a version from files: milliseconds, and bytes of state files."""
        if self._sending is not None:
            self._sending.loaded(load_ms, num_bytes)

    def end(self) -> None:
        """Send what is left, if that takes little time."""
        if self._sending is not None:
            flushing = threading.Thread(target=self._sending.flush, daemon=True)
            flushing.start()
            flushing.join(_FLUSH_S)


_said: dict[tuple[str, int], float] = {}
"""When each logger of the SDK's last said something, seconds, by its level."""


def _is_new(record: logging.LogRecord) -> bool:
    """Return whether to log a record: of the SDK, which says again and again what is away, few."""
    if not record.name.startswith("opentelemetry"):
        return True
    said = record.name, record.levelno
    before = _said.get(said)
    if before is not None and record.created - before < _SAY_AGAIN_S:
        return False
    _said[said] = record.created
    return True


class _Sending:
    """The SDK's instruments.

    Raises:
        ImportError: The packages are not installed.
    """

    def __init__(
        self, endpoint: str, attributes: Mapping[str, str], gauges: Gauges, totals: Gauges
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        for handler in logging.getLogger().handlers:
            handler.addFilter(_is_new)
        base = endpoint.rstrip("/")
        told = str(Resource.create().attributes.get("service.name", "unknown_service"))
        is_named = not told.startswith("unknown_service")
        resource = Resource.create(
            {
                "service.name": told if is_named else "statestore",
                "service.version": __version__,
                "host.name": os.uname().nodename,
                "process.pid": os.getpid(),
                **{name: value for name, value in attributes.items() if value},
            }
        )
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics"))
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces"))
        )
        self._tracer = self._spans.get_tracer("statestore", __version__)

        meter = self._meters.get_meter("statestore", __version__)

        def histogram(name: str) -> Any:
            return meter.create_histogram(_otel_name(name), unit="ms")

        self._commit, self._write = histogram("commitMs"), histogram("commitWriteMs")
        self._publish, self._sync = histogram("commitPublishMs"), histogram("commitSyncMs")
        self._load = histogram("loadMs")
        self._written = meter.create_counter(_otel_name("deltaBytes"), unit="By")
        self._read = meter.create_counter(_otel_name("loadedBytes"), unit="By")

        def observed(read: Gauges, name: str) -> Callable[..., list[Any]]:
            return lambda _options: [Observation(read()[name])]

        for name in gauges():
            unit = "By" if name.endswith("Bytes") else ""
            meter.create_observable_up_down_counter(
                _otel_name(name), [observed(gauges, name)], unit=unit
            )
        for name in totals():
            meter.create_observable_counter(_otel_name(name), [observed(totals, name)])

    def committed(
        self, store: str, version: int, times: CommitTimes, num_bytes: int, engine_ms: float
    ) -> None:
        self._commit.record(times.write_ms + engine_ms)
        self._write.record(times.write_ms)
        self._publish.record(times.publish_ms)
        self._sync.record(times.sync_ms)
        self._written.add(num_bytes)
        self._trace(store, version, times, num_bytes)

    def _trace(self, store: str, version: int, times: CommitTimes, num_bytes: int) -> None:
        from opentelemetry.trace import set_span_in_context

        end_ns = times.committed_ms * _NS
        sync_ns, publish_ns = int(times.sync_ms * _NS), int(times.publish_ms * _NS)
        publish_at = end_ns - publish_ns
        checksum_at = publish_at - int(times.checksum_ms * _NS)
        write_at = checksum_at - int(times.write_ms * _NS)
        commit = self._tracer.start_span(
            _SPAN,
            start_time=write_at,
            attributes={
                "statestore.store": store,
                "statestore.version": version,
                "statestore.delta_bytes": num_bytes,
            },
        )
        inside = set_span_in_context(commit)
        phases = (
            ("write", write_at, checksum_at),
            ("checksum", checksum_at, publish_at),
            ("publish", publish_at, end_ns),
        )
        for name, start, end in phases:
            phase = self._tracer.start_span(name, inside, start_time=start)
            if name == "publish":
                sync = self._tracer.start_span(
                    "sync", set_span_in_context(phase), start_time=end - sync_ns
                )
                sync.end(end)
            phase.end(end)
        commit.end(end_ns)

    def loaded(self, load_ms: float, num_bytes: int) -> None:
        self._load.record(load_ms)
        self._read.add(num_bytes)

    def flush(self) -> None:
        self._meters.force_flush()
        self._spans.force_flush()


def _otel_name(name: str) -> str:
    """Return a name of docs/metrics.md as OpenTelemetry writes names, where case says nothing."""
    return "statestore." + re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
