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

from .harness import STATE_STORE

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER_KEY = "spark.statestore.providerClass"
ALLOWLIST_KEY = "spark.sql.streaming.realTimeMode.allowlistCheck"
BATCH = "10 seconds"
TIMEOUT_S = 150.0


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
            sink: A format of Spark's; None for one that keeps the rows in files.
            trigger: As for PySpark.
        """
        session = self.session()
        queries = session._jvm.io.statestore.testing
        source = queries.RealTimeQuery(session._jsparkSession, self.query, self.num_keys)
        source.feed(self.fed)
        writer = DataFrame(source.frame(), session).writeStream.outputMode("update")
        if sink:
            writer = writer.format(sink)
        else:
            writer._jwrite = writer._jwrite.foreach(queries.Lines(str(self._lines)))
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger)
        return source, writer.start()

    @contextmanager
    def running(self, **trigger: str | bool) -> Iterator[Any]:
        """Run the query, and stop it when it has committed all that it was fed by then."""
        source, query = self.start(**trigger)
        try:
            yield source
            self._wait_until_committed(query)
        finally:
            query.stop()

    def run(self, num_rows: int, **trigger: str | bool) -> None:
        """Feed rows to the query, half of them before it starts, and wait until they count."""
        self.fed += num_rows // 2
        with self.running(**trigger) as source:
            self.fed += num_rows - num_rows // 2
            source.feed(self.fed)

    def _wait_until_committed(self, query: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while committed_rows(self.checkpoint) < self.fed:
            if not query.isActive:
                raise query.exception() or AssertionError("the query has ended")
            assert time.monotonic() < deadline, f"not committed in time: {query.lastProgress}"
            time.sleep(0.1)

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


def committed_rows(checkpoint: Path) -> int:
    """Return how many rows the query's newest committed batch ends with."""
    commits = checkpoint / "commits"
    names = [path.name for path in commits.iterdir()] if commits.exists() else []
    done = [int(name) for name in names if name.isdigit()]
    if not done:
        return 0
    offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
    return sum(json.loads(offsets).values())
