"""Runs queries in real-time mode, fed by rows whose offsets count them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from examples.wikipedia_edits.topics import KAFKA

from .features import missing
from .harness import STATE_STORE

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER_KEY = "spark.statestore.providerClass"
ALLOWLIST_KEY = "spark.sql.streaming.realTimeMode.allowlistCheck"
BATCH = "10 seconds"
TIMEOUT_S = 150.0
QUERY = "told"
NUM_TOPIC_PARTITIONS = 2


class RealTimeLane:
    """One query on one provider: its checkpoint, what it was fed, and the rows that came out.

    Attributes:
        conf: What its sessions set; None is to be as if it was never set.
        fed: How many rows the query's source has had, over all runs.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        root: Path,
        conf: Mapping[str, str | None] | None = None,
        num_keys: int = 50,
    ) -> None:
        self.spark = spark
        self.query = query
        self.checkpoint = root / "checkpoint"
        self.conf = dict(conf or {})
        self.num_keys = num_keys
        self.fed = 0
        self._lines = root / "lines"
        self._lines.mkdir(parents=True, exist_ok=True)

    def session(self) -> SparkSession:
        """Return a new session with the lane's configuration only."""
        session = self.spark.newSession()
        for key, value in self.conf.items():
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)
        return session

    def start(self, sink: str | None = None, **trigger: str | bool) -> tuple[Any, Any]:
        """Start the query with a source that has what it was fed before; return both.

        Args:
            sink: A format of Spark's; None for one that keeps the rows.
            trigger: As for PySpark.
        """
        session = self.session()
        queries = session._jvm.io.statestore.testing.RealTimeQueries
        source = self._open_source(session)
        source.feed(self.fed)
        result = DataFrame(queries.over(source.frame(), self.query), session)
        writer = result.writeStream.format(sink) if sink else self._keep_rows(result)
        writer = (
            writer.queryName(QUERY)
            .outputMode("update")
            .option("checkpointLocation", str(self.checkpoint))
        )
        if "realTime" in trigger and missing("real-time-in-python"):
            of_scala = session._jvm.org.apache.spark.sql.streaming.Trigger
            writer._jwrite.trigger(of_scala.RealTime(trigger["realTime"]))
            return source, writer.start()
        return source, writer.trigger(**trigger).start()

    def _open_source(self, session: SparkSession) -> Any:
        """Return a source: its `frame()` of the JVM, of rows key and i, and `feed(until)`."""
        memory = session._jvm.io.statestore.testing.MemoryRows
        return memory(session._jsparkSession, self.num_keys)

    def _keep_rows(self, result: DataFrame) -> Any:
        """Return a writer to a sink that keeps what it is handed."""
        writer = result.writeStream
        lines = self.spark._jvm.io.statestore.testing.Lines
        writer._jwrite = writer._jwrite.foreach(lines(str(self._lines)))
        return writer

    @contextmanager
    def running(self, sink: str | None = None, **trigger: str | bool) -> Iterator[Any]:
        """Run the query, and stop it when it has committed all that it was fed by then."""
        source, query = self.start(sink, **trigger)
        try:
            yield source
            self._wait_until_committed(query)
        finally:
            query.stop()

    def run(self, num_rows: int, sink: str | None = None, **trigger: str | bool) -> None:
        """Feed rows to the query, in real-time mode half of them later, until they count."""
        later = num_rows // 2 if "realTime" in trigger else 0
        self.fed += num_rows - later
        with self.running(sink, **trigger) as source:
            self.fed += later
            source.feed(self.fed)

    def _wait_until_committed(self, query: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while committed_rows(self.checkpoint) < self.fed:
            if not query.isActive and committed_rows(self.checkpoint) < self.fed:
                raise query.exception() or AssertionError("the query has ended")
            assert time.monotonic() < deadline, f"not committed in time: {query.lastProgress}"
            time.sleep(0.1)

    def num_known(self) -> int:
        """Return how many rows the query may have seen the last time."""
        return committed_rows(self.checkpoint)

    def lines(self) -> Counter[str]:
        """Return what the sink was handed, each row with how many times."""
        texts = (path.read_text() for path in self._lines.iterdir())
        return Counter(line for text in texts for line in text.splitlines())

    def rows(self, variable: str | None = None) -> list[Any]:
        """Return the rows of the newest version by Spark's state reader."""
        session = self.spark.newSession()
        session.conf.set(f"{STATE_STORE}.checkpointFormatVersion", "2")
        reader = session.read.format("statestore")
        if variable:
            reader = reader.option("stateVarName", variable)
        return reader.load(str(self.checkpoint)).drop("partition_id").collect()

    def state(self, variable: str | None = None) -> list[str]:
        """Return the rows as text, sorted."""
        return sorted(map(repr, self.rows(variable)))


class KafkaLane(RealTimeLane):
    """One whose source and sink are topics of a broker, which the rows of its source outlive."""

    def __init__(self, servers: str, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._servers = servers
        name = self.checkpoint.parent.name
        self._input, self._output = f"{name}-in", f"{name}-out"
        create_topics(self.spark, servers, self._input, self._output)

    def _open_source(self, session: SparkSession) -> Any:
        return KafkaRows(session, self._servers, self._input, self.num_keys)

    def _keep_rows(self, result: DataFrame) -> Any:
        columns = [sf.col(name).cast("string") for name in result.columns]
        records = result.select(columns[0].alias("key"), sf.concat_ws(",", *columns).alias("value"))
        writer = records.writeStream.format("kafka").option(KAFKA, self._servers)
        return writer.option("topic", self._output)

    def num_known(self) -> int:
        """Return how many rows the topic of its source may have."""
        rows = read_topic(self.spark, self._servers, self._input).collect()
        return 1 + max((int(row.value) for row in rows), default=-1)

    def lines(self) -> Counter[str]:
        """Return the records of the topic, each with how many there are."""
        records = read_topic(self.spark, self._servers, self._output)
        return Counter(row.value for row in records.collect())


class KafkaRows:
    """A topic of rows (i modulo a number of keys, i); those of a key are in one partition.

    What is in the topic already, also a part of what somebody was killed over, is not fed again.
    """

    def __init__(self, session: SparkSession, servers: str, topic: str, num_keys: int) -> None:
        self._session, self._servers, self._topic = session, servers, topic
        self._num_keys = num_keys
        self._present: set[int] | None = None

    def frame(self) -> Any:
        """Return the rows as Spark reads them, from the first one on."""
        reader = self._session.readStream.format("kafka").option(KAFKA, self._servers)
        records = reader.option("subscribe", self._topic)
        rows = records.option("startingOffsets", "earliest").load()
        return rows.selectExpr(
            "CAST(CAST(key AS STRING) AS LONG) AS key", "CAST(CAST(value AS STRING) AS LONG) AS i"
        )._jdf

    def feed(self, until: int) -> None:
        """Add the rows up to one."""
        if self._present is None:
            found = read_topic(self._session, self._servers, self._topic)
            self._present = {int(row.value) for row in found.collect()}
        missing = sorted(set(range(until)) - self._present)
        rows = [(str(i % self._num_keys), str(i)) for i in missing]
        frame = self._session.createDataFrame(rows, "key STRING, value STRING").coalesce(1)
        frame.write.format("kafka").option(KAFKA, self._servers).option("topic", self._topic).save()
        self._present.update(missing)


def create_topics(session: SparkSession, servers: str, *names: str) -> None:
    """Have topics of two partitions each, with no record yet where they were not there."""
    jvm: Any = session._jvm
    clients = jvm.org.apache.kafka.clients.admin
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    admin = clients.AdminClient.create(settings)
    try:
        known = admin.listTopics().names().get()
        wanted = jvm.java.util.ArrayList()
        for name in names:
            if not known.contains(name):
                wanted.add(clients.NewTopic(name, NUM_TOPIC_PARTITIONS, 1))
        admin.createTopics(wanted).all().get()
    finally:
        admin.close()


def read_topic(session: SparkSession, servers: str, topic: str) -> DataFrame:
    """Return the records that are in a topic now, as texts."""
    reader = session.read.format("kafka").option(KAFKA, servers).option("subscribe", topic)
    return reader.load().selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value")


def committed_rows(checkpoint: Path) -> int:
    """Return how many rows the query's newest committed batch ends with."""
    commits = checkpoint / "commits"
    names = [path.name for path in commits.iterdir()] if commits.exists() else []
    done = [int(name) for name in names if name.isdigit()]
    if not done:
        return 0
    offsets = json.loads((checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1])
    of_topics = [value for value in offsets.values() if isinstance(value, dict)]
    return sum(sum(partitions.values()) for partitions in of_topics or [offsets])
