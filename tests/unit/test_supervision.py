"""Supervision without Spark: attempts, obstacles, delays, and what is reported of them."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty
from py4j.protocol import get_return_value
from pyspark import SparkContext

from statestore.api.checkpoint import Checkpoint, Savepoint
from statestore.api.scaling import Between
from statestore.api.schedule import Every
from statestore.core.clock import ManualClock
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    InvalidArgumentError,
    QueryFailedError,
    StorageError,
)
from statestore.core.restart_strategies import ExponentialDelay, FixedDelay, NoRestart
from statestore.core.restarts import MAX_FAILURES_KEPT
from statestore.io.local import LocalFileIO
from statestore.spark.batch_end import stop_after_batch
from statestore.spark.failures import find_obstacle, reason_of
from statestore.spark.supervision import run
from tests.checkpoints import make_query
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at

SINK_TEXT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback:
  File "job.py", line 7, in call
{cause}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]

Logical Plan:
Project ['SQLSTATE: 42703', 'Error: [corruption]']"""


class EndedQuery:
    """A query that runs for a while and ends, with an error or without."""

    isActive = False  # noqa: N815

    def __init__(self, clock: ManualClock, run_ms: int, error: Exception | None) -> None:
        self._end = (clock, run_ms, error)

    def awaitTermination(self, *_: float) -> bool:
        clock, run_ms, error = self._end
        clock.advance(run_ms)
        if error is not None:
            raise error
        return True


def starts(clock: ManualClock, errors: Sequence[Exception | None]) -> Callable[[], EndedQuery]:
    """Return a start_query whose queries end after a second with these errors, in order."""
    left = iter(errors)
    return lambda: EndedQuery(clock, 1000, next(left))


def test_query_is_started_until_it_ends_well(caplog: pytest.LogCaptureFixture):
    """Catches lost attempts, delays that are not waited for, and restarts that nobody can see."""
    clock = ManualClock(now_ms=0)
    errors = [OSError("a reset"), RuntimeError("a sink"), None]

    with caplog.at_level(logging.WARNING, "statestore"):
        past = run(starts(clock, errors), FixedDelay(5, 10), clock=clock)

    assert past.attempts == 3
    assert [(f.attempt, f.at_ms, f.delay_ms, f.obstacle) for f in past.failures] == [
        (1, 1000, 10_000, None),
        (2, 12_000, 10_000, None),
    ]
    assert clock.now_ms() == 23_000
    assert [record.message for record in caplog.records] == [
        "query failed, starting it again: attempt=1, reason='OSError: a reset', delay_ms=10000",
        "query failed, starting it again: attempt=2, reason='RuntimeError: a sink', delay_ms=10000",
    ]


@pytest.mark.parametrize(
    ("strategy", "attempts"),
    [
        (NoRestart(), 1),
        (FixedDelay(2, 1), 3),
        (ExponentialDelay(attempts_before_reset_backoff=4), 5),
    ],
)
def test_last_error_is_the_cause_when_the_strategy_is_exhausted(strategy, attempts: int):
    """Catches a last failure that is swallowed, and one start too many or too few."""
    clock = ManualClock()
    errors = [OSError(str(n)) for n in range(10)]

    with pytest.raises(QueryFailedError) as raised:
        run(starts(clock, errors), strategy, clock=clock)

    assert raised.value.kind == "restarts-exhausted"
    assert raised.value.__cause__ is errors[attempts - 1]
    assert raised.value.restart.attempts == attempts
    assert raised.value.restart.failures[-1].delay_ms is None
    assert str(strategy) in str(raised.value)


def test_failures_of_the_start_count_like_those_of_the_query():
    """Catches a start_query whose own errors end the supervision."""
    clock = ManualClock()
    query = starts(clock, [None])
    left = [OSError("no route"), OSError("no route")]

    def start_query() -> EndedQuery:
        if left:
            raise left.pop()
        return query()

    assert run(start_query, FixedDelay(2, 1), clock=clock).attempts == 3


def test_memory_of_failures_is_bounded():
    """Catches a query that fails for months and keeps every failure."""
    clock = ManualClock()
    errors = [OSError(str(n)) for n in range(3 * MAX_FAILURES_KEPT)]

    past = run(starts(clock, [*errors, None]), ExponentialDelay(), clock=clock)

    assert past.attempts == len(errors) + 1
    assert len(past.failures) == MAX_FAILURES_KEPT
    assert past.failures[-1].attempt == len(errors)
    assert [one.attempt for one in past.failures[-2:]] == [len(errors) - 1, len(errors)]


@pytest.mark.parametrize("argument", ["restart", "savepoints", "scale"])
def test_an_argument_of_another_type_is_refused_before_the_start(argument: str):
    """Catches a query that runs on after its supervision failed by an AttributeError."""
    with pytest.raises(InvalidArgumentError, match=f"argument='{argument}', value=\"'always'\""):
        run(lambda: pytest.fail("started"), **{argument: "always"})


def test_a_start_that_returns_no_query_is_told():
    """Catches a forgotten return that is started again for ever, or told as an AttributeError."""
    with pytest.raises(QueryFailedError, match="return what `start") as raised:
        run(lambda: None, clock=ManualClock())
    assert raised.value.restart.attempts == 1


def test_interruption_passes_through():
    """Catches a program that cannot be ended with Ctrl-C."""

    def start_query() -> EndedQuery:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(start_query, FixedDelay(5, 1), clock=ManualClock())


class Jvm:
    """A socket that answers py4j's real client as a JVM does that runs a query."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_waiting, self.is_stopped = threading.Event(), threading.Event()
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        port = self._sockets[0].getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        self._client = JavaClient(
            JavaParameters(port=port), PythonParameters(port=0), GatewayProperty(False, None)
        )

    def call(self, name: str) -> Any:
        answer = self._client.send_command(f"c\no1\n{name}\ne\n")
        return get_return_value(answer, self._client, "o1", name)

    def die(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self.is_stopped.set()
        self.die()
        self._client.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self._sockets.append(self._sockets[0].accept()[0])
                answering = threading.Thread(
                    target=self._answer, args=(self._sockets[-1],), daemon=True
                )
                answering.start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as commands:
            while lines := [commands.readline().decode().strip() for _ in range(4)]:
                if not lines[0]:
                    return
                self.calls.append(lines[2])
                if lines[2] == "awaitTermination":
                    self.is_waiting.set()
                    self.is_stopped.wait()
                if lines[2] == "stop":
                    self.is_stopped.set()
                connection.sendall(b"!yv\n")


class JvmQuery:
    """A query of such a JVM."""

    def __init__(self, jvm: Jvm) -> None:
        jvm.call("start")
        self._jvm = jvm

    @property
    def isActive(self) -> bool:
        self._jvm.call("isActive")
        return True

    def awaitTermination(self) -> None:
        self._jvm.call("awaitTermination")

    def stop(self) -> None:
        self._jvm.call("stop")


@pytest.fixture
def jvm() -> Iterator[Jvm]:
    with closing(Jvm()) as jvm:
        yield jvm


@contextmanager
def on_interrupt(jvm: Jvm, do: Callable[[], Any]) -> Iterator[None]:
    """Send this process a signal when a query of the JVM is waited for; its handler is given."""

    def handle(*_: object) -> None:
        do()

    def interrupt() -> None:
        jvm.is_waiting.wait()
        time.sleep(0.2)  # until an answer of the JVM would be waited for
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        yield
    finally:
        jvm.is_waiting.set()
        interrupting.join()
        signal.signal(signal.SIGINT, before)


def test_query_that_is_interrupted_is_not_started_again(jvm: Jvm) -> None:
    """Catches a Ctrl-C that is taken for a failure: its handler has failed, and not the query."""

    def handle() -> None:  # as PySpark 4.0 does
        jvm.call("cancelAllJobs")
        raise KeyboardInterrupt

    with on_interrupt(jvm, handle), pytest.raises(KeyboardInterrupt):
        run(lambda: JvmQuery(jvm), NoRestart(), clock=ManualClock())

    assert jvm.calls == ["start", "awaitTermination", "cancelAllJobs"]


def test_what_a_handler_of_a_signal_raises_is_no_failure_of_the_query(jvm: Jvm) -> None:
    """Catches a query that is stopped within its batch, and started again, by a handler's error."""

    def handle() -> None:
        raise ValueError("the savepoint is there")

    with on_interrupt(jvm, handle), pytest.raises(ValueError, match="is there"):
        run(lambda: JvmQuery(jvm), FixedDelay(3, 1), clock=ManualClock())

    assert jvm.calls == ["start", "awaitTermination"]


def test_handler_of_a_signal_may_stop_the_query(jvm: Jvm) -> None:
    """Catches a program that goes on when it is told to end, as by systemd or Kubernetes."""
    with on_interrupt(jvm, lambda: jvm.call("stop")):
        past = run(lambda: JvmQuery(jvm), NoRestart(), clock=ManualClock())

    assert (past.attempts, past.failures) == (1, [])
    assert jvm.calls == ["start", "awaitTermination", "stop"]


def test_scaling_ends_with_a_run_that_is_interrupted(jvm: Jvm) -> None:
    """Catches a query that is changed when nobody would start it again."""
    ended = threading.Event()

    def handle() -> None:
        raise KeyboardInterrupt

    def wait(is_left: threading.Event) -> bool:
        jvm.is_waiting.set()
        if is_left.wait(30):
            ended.set()
        return True

    watching = SimpleNamespace(watch=lambda _: wait)
    scale: Any = SimpleNamespace(begin=lambda _: watching)
    with on_interrupt(jvm, handle), pytest.raises(KeyboardInterrupt):
        run(lambda: JvmQuery(jvm), scale=scale, clock=ManualClock())

    assert ended.wait(30)
    assert jvm.calls == ["start"]


def test_query_is_not_supervised_in_a_jvm_that_has_died(
    jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a program that lives on, and starts a query once a minute that nothing can run."""
    context = SimpleNamespace(isStopped=lambda: jvm.call("isStopped"))
    driver = SimpleNamespace(_gateway=None, _jsc=SimpleNamespace(sc=lambda: context))
    monkeypatch.setattr(SparkContext, "_active_spark_context", driver)

    def kill() -> None:
        jvm.is_waiting.wait()
        jvm.die()

    threading.Thread(target=kill).start()
    with pytest.raises(QueryFailedError) as raised:
        run(lambda: JvmQuery(jvm), FixedDelay(3, 1), clock=ManualClock())

    assert raised.value.restart.attempts == 1
    assert raised.value.fields["obstacle"] == "application stopped"


def test_program_may_judge_otherwise():
    """Catches a judgement that nobody can overrule."""
    clock = ManualClock()
    errors = [IncompatibleError("x", to_fix="y"), None]

    past = run(starts(clock, errors), FixedDelay(), obstacle=lambda error: None, clock=clock)

    assert past.attempts == 2


def _engine(error_class: str, kind: str) -> str:
    return (
        "Caused by: io.statestore.EngineReportedException: load failed: "
        f"store=file:/c/state/0/3, class={error_class}: [{kind}] it is so. To fix: do this"
    )


@pytest.mark.parametrize(
    ("error", "obstacle"),
    [
        (StorageError("x", to_fix="y"), None),
        (StorageError("x", kind="storage-full", to_fix="y"), None),
        (StorageError("x", kind="permission-denied", to_fix="y"), None),
        (StorageError("x", kind="driver-lost", to_fix="y"), "driver-lost"),
        (StorageError("x", kind="directory-gone", to_fix="y"), "directory-gone"),
        (FencedError("x", to_fix="y"), None),
        (FencedError("x", kind="lineage-broken", to_fix="y"), "lineage-broken"),
        (CorruptionError("x", kind="truncated", to_fix="y"), "truncated"),
        (OSError(5, "Input/output error"), None),
        (ConnectionResetError(), None),
        (ValueError("a reply that is not JSON"), None),
        (TypeError("run() got an unexpected keyword argument"), "TypeError"),
        (_engine("StorageError", "storage"), None),
        (_engine("IncompatibleError", "num-partitions-changed"), "num-partitions-changed"),
        (_engine("NotFoundError", "version-not-found"), "version-not-found"),
        (
            "io.statestore.EngineUnavailableException: [driver-lost] this driver holds no state",
            "driver-lost",
        ),
        ("RuntimeError: the text was cut [truncated] here", None),
        ("Py4JJavaError: ... SparkException: Python worker exited unexpectedly (crashed).", None),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", None),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred. SQLSTATE: 58030", None),
        ("[CONCURRENT_QUERY] Another instance was just started. SQLSTATE: 0A000", "0A000"),
        ("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `nope` SQLSTATE: 42703;", "42703"),
        (
            "org.apache.spark.sql.catalyst.ExtendedAnalysisException: no streaming source",
            "ExtendedAnalysisException",
        ),
        ("java.text.ParseException: Unparseable date", None),
        (
            "org.apache.spark.sql.AnalysisException: org.apache.hadoop.hive.ql.metadata."
            "HiveException: org.apache.thrift.transport.TTransportException: Read timed out",
            None,
        ),
        (
            "pyspark.errors.exceptions.captured.AnalysisException: [_LEGACY_ERROR_TEMP_3065] "
            "org.apache.thrift.transport.TTransportException: Read timed out",
            None,
        ),
        (
            "pyspark.errors.exceptions.captured.AnalysisException: [FAILED_JDBC.TABLE_EXISTS] "
            "Failed JDBC jdbc:postgresql://db/x on the operation: Check that the table `a` exists. "
            "SQLSTATE: HV000\nCaused by: java.net.ConnectException: Connection refused",
            None,
        ),
        (
            "org.apache.spark.sql.AnalysisException: [UNABLE_TO_FETCH_HIVE_TABLES] Unable to fetch "
            "tables of Hive database: a. SQLSTATE: 58030",
            None,
        ),
        (
            "org.apache.spark.sql.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed to create "
            "Python data source x: Traceback\n  ConnectionError: refused SQLSTATE: 38000",
            None,
        ),
        (
            "org.apache.spark.sql.AnalysisException: [INSERT_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_"
            "COLUMNS] Cannot write to `a`. SQLSTATE: 21S01",
            "AnalysisException",
        ),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "22012"),
        (
            "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema. SQLSTATE: XXKST",
            "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        ),
        (
            "[INVALID_LOG_VERSION.EXACT_MATCH_VERSION] UnsupportedLogVersion. SQLSTATE: KD002",
            "INVALID_LOG_VERSION",
        ),
        (
            "java.lang.IllegalArgumentException: [unknown-option] unknown option: key=a. To fix: b",
            "unknown-option",
        ),
        (
            "java.lang.IllegalArgumentException: open failed: store=a: too small. To fix: more",
            "invalid-option",
        ),
        ("java.lang.IllegalArgumentException: Wrong FS: s3a://x, expected: file:///", None),
        (
            "io.statestore.view.NoMemoryException: [state-too-large] the rows do not fit: taken=7 "
            "execution=1048576 spark.memory.offHeap.size=9",
            None,
        ),
        (
            "io.statestore.view.NoMemoryException: [state-too-large] the rows do not fit: taken=7 "
            "execution=0 spark.memory.offHeap.size=9",
            "state-too-large",
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "application stopped",
        ),
    ],
)
def test_only_what_lasts_is_an_obstacle(error: Exception | str, obstacle: str | None):
    """Catches lasting errors that are retried, passing ones that are not, and plans as errors."""
    failed = RuntimeError(SINK_TEXT.format(cause=error)) if isinstance(error, str) else error

    assert find_obstacle(failed) == obstacle
    if not isinstance(error, str) and not isinstance(error, TypeError):
        wrapped = RuntimeError("the start failed")
        wrapped.__cause__ = error
        assert find_obstacle(wrapped) == obstacle


def test_obstacle_ends_the_supervision_at_once():
    """Catches a restart that cannot help, and an error that does not say why there was none."""
    clock = ManualClock(now_ms=0)
    errors = [OSError("a reset"), CorruptionError("a block is damaged", to_fix="restore it")]

    with pytest.raises(QueryFailedError) as raised:
        run(starts(clock, errors), FixedDelay(9, 10), clock=clock)

    assert raised.value.kind == "query-failed"
    assert raised.value.__cause__ is errors[-1]
    assert raised.value.fields["obstacle"] == "corruption"
    assert [failure.obstacle for failure in raised.value.restart.failures] == [None, "corruption"]
    assert clock.now_ms() == 12_000


def test_reason_is_the_innermost_cause():
    """Catches a log that says of every failure that the sink's function failed."""
    cause = "RuntimeError: the disk of the sink is full"

    assert reason_of(RuntimeError(SINK_TEXT.format(cause=cause))) == cause
    assert reason_of(OSError("no route\nto host")) == "OSError: no route"


class RunningQuery:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    @property
    def isActive(self) -> bool:
        return not self.is_stopped

    def stop(self) -> None:
        self.is_stopped = True


class ToldToEnd(RunningQuery):
    """A query that is told to end by others, and whose last batch fails."""

    runId = "a run"  # noqa: N815
    status = {"isTriggerActive": False}  # noqa: RUF012
    _jsq = SimpleNamespace(streamingQuery=lambda: None)

    def awaitTermination(self, *_: float) -> bool:
        if self.isActive:
            stop_after_batch(self)  # type: ignore[arg-type]
        raise OSError("the sink is away")


def test_query_that_was_told_to_end_is_not_started_again_when_its_last_batch_fails():
    """Catches two queries that write to one sink: this one, and one from the savepoint."""
    with pytest.raises(QueryFailedError) as raised:
        run(ToldToEnd, FixedDelay(3, 1), clock=ManualClock())

    assert raised.value.restart.attempts == 1
    assert raised.value.fields["obstacle"] == "stopped"
    assert str(raised.value.__cause__) == "the sink is away"


class StoppedWithinBatch(RunningQuery):
    """A query that is stopped by itself, whose sink raises an error of its own about that."""

    runId = "another run"  # noqa: N815

    def awaitTermination(self, *_: float) -> bool:
        told = "Current State: TERMINATED\nThread State: RUNNABLE"
        raise OSError(f"gave up\n=== Streaming Query ===\nIdentifier: [id = 1]\n{told}")


def test_query_that_was_stopped_is_not_started_again_when_its_sink_complains():
    """Catches a program that runs on after the handler of SIGTERM has stopped its query."""
    with pytest.raises(QueryFailedError) as raised:
        run(StoppedWithinBatch, FixedDelay(3, 1), clock=ManualClock())

    assert raised.value.restart.attempts == 1
    assert raised.value.fields["obstacle"] == "stopped"


PROGRESS = {
    "batchId": 2,
    "batchDuration": 10,
    "durationMs": {"addBatch": 10},
    "numInputRows": 1,
    "inputRowsPerSecond": 1.0,
    "processedRowsPerSecond": 1.0,
    "sources": [],
}


class ScaledQuery(RunningQuery):
    """A query whose number of state partitions its scaling changes after its first batch.

    Args:
        error: What its last batch fails with; None where that ends well.
    """

    status = {"isTriggerActive": False}  # noqa: RUF012

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.runId = str(uuid4())
        self._error = error
        trigger = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getSimpleName=lambda: "ProcessingTimeTrigger"),
            intervalMs=lambda: 100,
        )
        conf = SimpleNamespace(get=lambda _, default: default)
        self._jsq = SimpleNamespace(
            streamingQuery=lambda: SimpleNamespace(trigger=lambda: trigger),
            lastProgress=lambda: SimpleNamespace(json=lambda: json.dumps(PROGRESS)),
            sparkSession=lambda: SimpleNamespace(conf=lambda: conf),
        )

    def awaitTermination(self, *_: float) -> bool:
        if self.is_stopped and self._error is not None:
            raise self._error
        return self.is_stopped


@pytest.mark.parametrize(
    ("of_batch", "of_change", "num_failures"),
    [
        (OSError("the sink is away"), None, 1),
        (None, MemoryError(), 1),
        (None, StorageError("the storage is away", to_fix="wait"), 0),
    ],
)
def test_query_is_started_again_when_a_change_fails(
    tmp_path: Path, of_batch: Exception | None, of_change: Exception | None, num_failures: int
) -> None:
    """Catches a query that ends for good by its last batch before a change, or by the change."""
    made, io = make_query(tmp_path, num_partitions=2), FaultFileIO(LocalFileIO())
    if of_change is not None:
        io.arm(Fault(0, calls=("publish",), error=of_change))
    ended = ScaledQuery()
    ended.stop()
    queries = iter([ScaledQuery(of_batch), ended])
    scale: Any = SimpleNamespace(
        begin=lambda clock: Between(4, 8).begin(clock, lambda _: at(made.path, io=io))
    )

    past = run(lambda: next(queries), FixedDelay(3, 1), scale=scale, clock=ManualClock())

    assert past.attempts == 2
    assert [failure.obstacle for failure in past.failures] == [None] * num_failures
    assert io.has_failed == (of_change is not None)
    assert Checkpoint(made.path).info.num_partitions == 2


class NoCommits(FaultFileIO):
    """A storage on which the commit log cannot be written for so many times."""

    num_left = 2

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        if "/commits/" in path and self.num_left:
            self.num_left -= 1
            raise StorageError("the disk is full", kind="storage-full", to_fix="make room")
        super().write(path, data, sync=sync, overwrite=overwrite)


def test_change_that_cannot_be_finished_yet_is_finished_later(tmp_path: Path) -> None:
    """Catches a query that ends for good: Spark refuses it while its change is half done."""
    made, io = make_query(tmp_path, num_partitions=2), NoCommits(LocalFileIO())

    def ended(error: Exception | None = None) -> ScaledQuery:
        query = ScaledQuery(error)
        query.stop()
        return query

    refusal = RuntimeError("[num-partitions-changed] a rescale is half done")
    queries = iter([ScaledQuery(), ended(refusal), ended(refusal), ended()])
    scale: Any = SimpleNamespace(
        begin=lambda clock: Between(4, 8).begin(clock, lambda _: at(made.path, io=io))
    )

    past = run(lambda: next(queries), FixedDelay(3, 1), scale=scale, clock=ManualClock())

    assert past.attempts == 4
    assert [failure.obstacle for failure in past.failures] == [None]
    assert "the disk is full" in past.failures[0].reason
    assert Checkpoint(made.path).info.num_partitions == 4


class NoSavepoints:
    """Takes no savepoints of such a query."""

    def beside(self) -> Any:
        return nullcontext(self._refuse)

    def _refuse(self, query: Any) -> None:
        raise InvalidArgumentError("no driver is here", kind="spark-connect", to_fix="leave it out")


def test_query_does_not_run_on_without_the_savepoints_that_were_asked_for() -> None:
    """Catches a query that runs when its supervisor has given up, or beside its next attempt."""
    queries: list[Any] = []

    def start_query() -> Any:
        queries.append(RunningQuery())
        return queries[-1]

    with pytest.raises(QueryFailedError) as raised:
        run(start_query, FixedDelay(3, 1), savepoints=NoSavepoints(), clock=ManualClock())

    assert raised.value.kind == "query-failed"
    assert [query.is_stopped for query in queries] == [True]


class LostQuery(RunningQuery):
    """A query that fails with its JVM, which then tells nothing of it."""

    @property
    def isActive(self) -> bool:
        raise ConnectionRefusedError

    def awaitTermination(self) -> None:
        raise OSError("the connection was closed")


def test_failure_of_a_query_is_not_hidden_by_what_is_asked_of_it_then() -> None:
    """Catches a cause that says nothing of why the query failed."""
    with pytest.raises(QueryFailedError) as raised:
        run(LostQuery, NoRestart(), clock=ManualClock())

    assert str(raised.value.__cause__) == "the connection was closed"


class BrokenScaling:
    """Looks at a query, and fails by something that nobody expects."""

    def begin(self, clock: ManualClock) -> BrokenScaling:
        del clock
        return self

    def watch(self, query: RunningQuery) -> Callable[[threading.Event], bool]:
        del query

        def wait(_: threading.Event) -> bool:
            raise RuntimeError("a bug")

        return wait


def test_query_is_stopped_when_what_looks_at_it_fails():
    """Catches a query that runs on after the error that says that it does not."""
    query = RunningQuery()

    with pytest.raises(QueryFailedError):
        run(lambda: query, NoRestart(), scale=BrokenScaling(), clock=ManualClock())

    assert query.is_stopped


class SlowSavepoints:
    """A schedule of a real checkpoint, whose first savepoint is under way until it may go on."""

    def __init__(self, root: Path) -> None:
        self._query, self._kept = make_query(root / "query").path, root / "kept"
        self._io = FaultFileIO(LocalFileIO())
        self._io.held_calls = ("publish",)
        self._io.gate.clear()
        self.may_go_on = self._io.gate

    def beside(self) -> AbstractContextManager[Callable[[Any], None]]:
        """Take savepoints onto a storage that stands still."""
        every = Every(3600, at(self._kept, kind=Savepoint, io=self._io))
        return every.beside(lambda _: Checkpoint(self._query))

    @property
    def is_under_way(self) -> bool:
        """Whether the first savepoint was begun."""
        return self._io.num_held > 0

    def fail(self, *_: float) -> None:
        """Fail as a query does, in the middle of a savepoint."""
        wait_until(lambda: self.is_under_way)
        raise OSError("a reset")

    def whole(self) -> int:
        """Return how many savepoints there are."""
        return len(Checkpoint(self._query).savepoints(self._kept))


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSavepoints]:
    slow = SlowSavepoints(tmp_path)
    yield slow
    slow.may_go_on.set()


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a thread has done something."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it has not come to that")


def test_failed_query_is_started_again_while_a_savepoint_is_under_way(slow: SlowSavepoints) -> None:
    """Catches a query that is down for as long as its savepoint takes, and a lost savepoint."""
    clock = ManualClock()
    whole_at_start: list[int | None] = []

    def start_query() -> Any:
        whole_at_start.append(slow.whole() if slow.is_under_way else None)
        if len(whole_at_start) == 1:
            return SimpleNamespace(awaitTermination=slow.fail, isActive=False)
        threading.Timer(0.3, slow.may_go_on.set).start()
        return EndedQuery(clock, 1000, None)

    run(start_query, FixedDelay(1, 1), savepoints=slow, clock=clock)

    assert whole_at_start == [None, 0]
    assert slow.whole() == 1


def test_savepoint_under_way_is_given_up_with_the_supervision(slow: SlowSavepoints) -> None:
    """Catches a Ctrl-C that waits for a savepoint, and a program that does so at its end."""
    queries = iter([SimpleNamespace(awaitTermination=slow.fail, isActive=False)])

    def start_query() -> Any:
        for query in queries:
            return query
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(start_query, FixedDelay(1, 1), savepoints=slow, clock=ManualClock())
    was_whole = slow.whole()
    slow.may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "savepoints":
            thread.join(10)

    assert (was_whole, slow.whole()) == (0, 0)


def test_destination_that_contradicts_the_query_is_refused_at_the_start() -> None:
    """Catches savepoints that are never taken, of which the log alone tells."""
    conf = type("Conf", (), {"getAll": {}})()
    session: Any = type("Session", (), {"_jsparkSession": 1, "conf": conf})()
    here = Checkpoint("hdfs:/here", spark=session)
    there = Savepoint("hdfs:/there", storage_options={"spark.hadoop.x": "y"})

    with (
        Every(60, there).beside(lambda _: here) as follow,
        pytest.raises(InvalidArgumentError, match=r"spark\.hadoop\.x"),
    ):
        follow(None)  # type: ignore[arg-type]


def test_savepoints_go_on_after_an_error_that_nobody_expects(tmp_path: Path) -> None:
    """Catches a thread that ends by it: the query would go on for weeks without savepoints."""
    checkpoint, kept = Checkpoint(make_query(tmp_path / "query").path), tmp_path / "kept"
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(0, calls=("publish",), error=OSError("no space left")))

    every = Every(1, at(kept, kind=Savepoint, io=io))
    with every.beside(lambda _: checkpoint) as follow:
        follow(None)  # type: ignore[arg-type]
        wait_until(lambda: io.has_failed)
        was_whole = len(checkpoint.savepoints(kept))
        wait_until(lambda: checkpoint.savepoints(kept))

    assert was_whole == 0
