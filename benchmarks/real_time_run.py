"""One query in real-time mode between two topics, under a constant load: one call, one JVM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.processes import engines_of, resident_bytes
from benchmarks.sessions import benchmark_jar, load_jars, start_session
from benchmarks.workloads import Provider
from examples.wikipedia_edits.jars import connector_jars
from examples.wikipedia_edits.topics import KAFKA
from statestore.core.clock import SystemClock

PARTITIONS = 2
"""Of both topics, and of the state."""
SLOTS = 2 * PARTITIONS
DRAIN_S = 120.0
SAMPLE_S = 1.0
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """What a run is made of.

    Attributes:
        query: `aggregation`, a count by key, or `variable`, the same by transformWithState.
        rate: Rows a second.
        keys: How many keys they have, in random order.
        warm_up_s: Seconds whose rows do not count; they are all told, and their batch has ended,
            before those that do are sent: the first batch and its end are slow in every store.
        seconds: Seconds of the rows that count.
        batch_s: Seconds of a batch.
    """

    query: str
    rate: int
    keys: int
    warm_up_s: int
    seconds: int
    batch_s: int

    @property
    def rows(self) -> int:
        """How many rows are sent."""
        return self.rate * (self.warm_up_s + self.seconds)


def measure(provider: Provider, load: Load, servers: str) -> dict[str, Any]:
    """Run a query over a provider while rows are sent to it.

    Returns:
        `p50`, `p99`, `p999`, `max`: ms from the time of a row to the time when the broker took
        what it was told. `silence`: the longest time between two such records, in ms. `rows`: how
        many were measured. `cpu_us`: CPU of the JVM and its engines for each of them. `others`:
        share of the machine's CPU that none of this benchmark had, and `load`, of one minute,
        before and after. `jvm_mib`, `engine_mib`: resident memory each second. `batches`: what
        Spark says of each.

    Raises:
        RuntimeError: The query failed, or does not tell every row once.
    """
    spark = start_session(
        provider, (benchmark_jar(), *connector_jars()), slots=SLOTS, real_time=True
    )
    jvm: Any = spark._jvm
    pid = int(jvm.ProcessHandle.current().pid())
    name = f"{provider.id}-{load.query}-{load.rate}-{pid}"
    source, sink = f"{name}-in", f"{name}-out"
    _create_topics(spark, servers, source, sink)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="statestore-real-time-") as work:
        query = _start(spark, load, servers, source, sink, Path(work))
        _send(load, load.warm_up_s, servers, source)
        warmed = load.rate * load.warm_up_s
        _wait_until_told(spark, query, servers, sink, warmed)
        _wait_for_batch(query, load, warmed)
        begin_ms = SystemClock().now_ms()
        watch = Watch(pid)
        with watch.running():
            _send(load, load.seconds, servers, source)
            _wait_until_told(spark, query, servers, sink, load.rows)
        batches = _wait_for_batch(query, load, load.rows)
        query.stop()
        measured = _times(spark, servers, sink, load, begin_ms)
    spark.stop()
    return {
        **measured,
        "cpu_us": watch.cpu_s * 1e6 / measured["rows"],
        "others": watch.others,
        "load": [before, os.getloadavg()[0]],
        "jvm_mib": watch.jvm_mib,
        "engine_mib": watch.engine_mib,
        "batches": batches,
    }


def _start(
    spark: SparkSession, load: Load, servers: str, source: str, sink: str, work: Path
) -> StreamingQuery:
    reader = spark.readStream.format("kafka").option(KAFKA, servers).option("subscribe", source)
    records = reader.option("startingOffsets", "earliest").load()
    rows = records.selectExpr("CAST(key AS STRING) AS key", "timestamp AS sent")
    if load.query == "aggregation":
        told = rows.groupBy("key").agg(sf.count("*").alias("count"), sf.max("sent").alias("sent"))
    else:
        jvm: Any = spark._jvm
        told = DataFrame(jvm.io.statestore.bench.RealTimeQueries.count(rows._jdf), spark)
    value = "concat(count, ' ', unix_millis(sent)) AS value"
    writer: Any = told.selectExpr("key", value).writeStream.format("kafka").outputMode("update")
    writer = writer.option(KAFKA, servers).option("topic", sink)
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    query: StreamingQuery = writer.trigger(realTime=f"{load.batch_s} seconds").start()
    if error := query.exception():
        raise error
    return query


def _send(load: Load, seconds: int, servers: str, topic: str) -> None:
    """Send rows for so long, and wait for the end."""
    command = ["java", "-cp", ":".join(map(str, load_jars())), "io.statestore.bench.KafkaLoad"]
    shape = (load.rate, seconds, load.keys)
    subprocess.run([*command, servers, topic, *map(str, shape)], check=True)


def _times(
    spark: SparkSession, servers: str, sink: str, load: Load, begin_ms: float
) -> dict[str, Any]:
    """Return what the topic says of the rows sent since then; the counts tell all rows apart."""
    reader = spark.read.format("kafka").option(KAFKA, servers).option("subscribe", sink).load()
    told = reader.selectExpr(
        "key",
        "CAST(split(CAST(value AS STRING), ' ')[0] AS LONG) AS count",
        "CAST(split(CAST(value AS STRING), ' ')[1] AS LONG) AS sent",
        "unix_millis(timestamp) AS told",
    ).toArrow()
    num_keys, highest = (
        len(told["key"].unique()),
        told.group_by("key").aggregate([("count", "max")]),
    )
    counted = sum(map(int, highest["count_max"].to_numpy()))
    if not len(told) == counted == load.rows or num_keys > load.keys:
        raise RuntimeError(f"told {len(told)} and counted {counted} rows of {load.rows}")
    sent, appended = told["sent"].to_numpy(), told["told"].to_numpy()
    ms = (appended - sent)[sent >= begin_ms]
    p50, p99, p999 = np.percentile(ms, [50, 99, 99.9], method="higher").tolist()
    within = np.sort(appended[sent >= begin_ms])
    return {
        "rows": len(ms),
        "p50": p50,
        "p99": p99,
        "p999": p999,
        "max": int(ms.max()),
        "silence": int(np.diff(within).max()),
    }


def _wait_until_told(
    spark: SparkSession, query: StreamingQuery, servers: str, sink: str, num_rows: int
) -> None:
    deadline = time.monotonic() + DRAIN_S
    while (told := _end(spark, servers, sink)) < num_rows:
        if error := query.exception():
            raise error
        if time.monotonic() > deadline:
            raise RuntimeError(f"told {told} of {num_rows} rows after {DRAIN_S:.0f} s")
        time.sleep(0.5)


def _wait_for_batch(query: StreamingQuery, load: Load, num_rows: int) -> list[dict[str, Any]]:
    """Wait until rows are committed; return what each batch with rows says of its state."""
    deadline = time.monotonic() + load.batch_s + DRAIN_S
    while sum([batch["numInputRows"] for batch in _batches(query)]) < num_rows:
        if error := query.exception():
            raise error
        if time.monotonic() > deadline:
            raise RuntimeError("the last batch does not end")
        time.sleep(0.2)
    found = []
    for batch in _batches(query):
        operator = batch["stateOperators"][0]
        custom = operator["customMetrics"]
        found.append(
            {
                "rows": batch["numInputRows"],
                "keys": operator["numRowsTotal"],
                "updated": operator["numRowsUpdated"],
                "durations_ms": batch["durationMs"],
                "commit_ms": operator["commitTimeMs"],
                "memory_bytes": operator["memoryUsedBytes"],
                "overlay_bytes": custom.get("statestoreOverlayBytes"),
                "spilled_runs": custom.get("statestoreSpilledRuns"),
            }
        )
    return [batch for batch in found if batch["rows"]]


def _batches(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(batch.json) for batch in query.recentProgress]


def _create_topics(spark: SparkSession, servers: str, source: str, sink: str) -> None:
    """Make both; the broker says when it took a record of the sink's."""
    jvm: Any = spark._jvm
    topics = jvm.java.util.ArrayList()
    for name, kind in ((source, "CreateTime"), (sink, "LogAppendTime")):
        topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, PARTITIONS, 1)
        topics.add(topic.configs(jvm.java.util.Map.of("message.timestamp.type", kind)))
    with _admin(spark, servers) as admin:
        admin.createTopics(topics).all().get()


def _end(spark: SparkSession, servers: str, topic: str) -> int:
    """Return how many records a topic has."""
    jvm: Any = spark._jvm
    latest = jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
    asked = jvm.java.util.HashMap()
    for partition in range(PARTITIONS):
        asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), latest)
    with _admin(spark, servers) as admin:
        return sum(found.offset() for found in admin.listOffsets(asked).all().get().values())


@contextmanager
def _admin(spark: SparkSession, servers: str) -> Iterator[Any]:
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()


@dataclass
class Watch:
    """Looks at a JVM and its engines, and at what else the machine does.

    Attributes:
        pid: The JVM.
        jvm_mib, engine_mib: Resident memory, each second.
        cpu_s: CPU of both together.
        others: Share of the machine's CPU that none of the processes of this program had.
    """

    pid: int
    jvm_mib: list[int] = field(default_factory=list)
    engine_mib: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    others: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch as long as the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._sample, args=(ended,), daemon=True)
        began, store, own, busy = time.monotonic(), self._store_s(), _own_s(), _busy_s()
        thread.start()
        yield
        ended.set()
        thread.join()
        self.cpu_s = self._store_s() - store
        machine_s = (time.monotonic() - began) * (os.cpu_count() or 1)
        self.others = max(0.0, (_busy_s() - busy) - (_own_s() - own)) / machine_s

    def _sample(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_S):
            with suppress(OSError, StopIteration):  # an engine may be gone
                self.jvm_mib.append(resident_bytes(self.pid) >> 20)
                self.engine_mib.append(sum(map(resident_bytes, engines_of(self.pid))) >> 20)

    def _store_s(self) -> float:
        return sum(map(_cpu_s, (self.pid, *engines_of(self.pid))))


def _cpu_s(pid: int) -> float:
    """Return CPU seconds of a process and of its children that have ended; 0 when it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS_S
    return 0.0


def _own_s() -> float:
    """Return CPU seconds of what this program's parent started: broker, load, JVM, engines."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (path / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(path.name)] = int(stat[1])
    own = {os.getppid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(map(_cpu_s, own))


def _busy_s() -> float:
    """Return CPU seconds that the machine was not idle."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / TICKS_S
