"""A lane: one query with its checkpoint, its input and its sink, as a plan and as a run."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import statestore
from statestore.core.options import StateStoreOptions, spark_conf
from statestore.core.providers import PROVIDERS
from tests.s3_server import REGION
from tests.spark.harness import PROVIDER_CLASS, STATE_STORE

from .queries import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Trigger = Literal["always", "once-a-batch"]
ORPHAN_AGE_MS = 20_000
CALL_TIMEOUT_MS = 10_000
RESTARTS = statestore.FixedDelay(attempts=200, delay=0.3)


@dataclass(frozen=True)
class LaneSpec:
    """A lane as it was planned; operations make another one of it.

    Attributes:
        name: Its folder, below the life's.
        query: Name of a ChaosQuery.
        backend: State backend, or a provider of Spark's while the lane is converted to it.
        checkpoint_format: 1 or 2.
        checkpoint_storage: URI of the state's directory, empty for the checkpoint's own.
        s3_endpoint: Where S3 is.
        trigger: Whether the query runs on, or is started anew for every batch.
        num_partitions: State partitions of a new checkpoint.
        retained: Spark's minBatchesToRetain.
        checkpoint: Name of the folder of the checkpoint.
    """

    name: str
    query: str
    backend: str
    checkpoint_format: int
    checkpoint_storage: str
    s3_endpoint: str
    trigger: Trigger
    num_partitions: int
    retained: int
    checkpoint: str = "checkpoint-0"

    @property
    def has_files(self) -> bool:
        """Whether its state is in files of this package's."""
        return self.backend in PROVIDERS and self.backend != "heap"

    def options(self) -> StateStoreOptions:
        """Return what operations on the checkpoint need to know."""
        return StateStoreOptions(**self.storage_options())

    def storage_options(self) -> dict[str, Any]:
        """Return the same as programs give it."""
        short: dict[str, Any] = {
            "min_versions_to_retain": self.retained,
            "snapshot_max_chain_length": 5,
            "snapshot_replay_ratio": 0.1,
            "rocksdb_merge_min_files": 3,
            "rocksdb_memory_bytes": 32 << 20,
            "orphan_age_ms": ORPHAN_AGE_MS,
            "lease_interval_ms": 500,
            "engine_call_timeout_ms": CALL_TIMEOUT_MS,
        }
        if self.checkpoint_storage:
            short |= {
                "checkpoint_storage": self.checkpoint_storage,
                "s3_endpoint": self.s3_endpoint,
                "s3_region": REGION,
                "s3_path_style": True,
                "s3_access_key": "test",
                "s3_secret_key": "test",
                "s3_max_attempts": 3,
                "s3_timeout_ms": 2_000,
            }
        return short

    def conf(self) -> dict[str, str]:
        """Return the configuration of the query's session."""
        found = {key: str(value) for key, value in spark_conf(self.storage_options()).items()}
        found[PROVIDER_CLASS] = PROVIDERS.get(self.backend, self.backend)
        found[f"{STATE_STORE}.checkpointFormatVersion"] = str(self.checkpoint_format)
        found["spark.sql.shuffle.partitions"] = str(self.num_partitions)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


class Lane:
    """A lane of a running application.

    Attributes:
        spec: What it is.
        attempts, failures: Starts of the query, and reasons of the starts that failed.
        obstacle: Why the query cannot go on without a hand; empty as long as it can.
    """

    def __init__(self, spark: SparkSession, root: Path, spec: LaneSpec) -> None:
        self.spec = spec
        self.attempts = 0
        self.failures: list[str] = []
        self.obstacle = ""
        self._spark = spark
        self._root = root / spec.name
        self._query: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        (self._root / "sink").mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint directory."""
        return self._root / self.spec.checkpoint

    def begin(self) -> None:
        """Run the query in the background until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the query, wherever it is."""
        self._stopping.set()
        while self._thread.is_alive():
            if self._query is not None:
                self._query.stop()
            self._thread.join(0.2)

    def finish(self) -> None:
        """Stop the query, then let it end the batch it was in and process all that was fed."""
        self.stop()
        self._stopping.clear()
        if not self.obstacle:
            self._supervise(available_now=True)

    def _run(self) -> None:
        if self.spec.trigger == "always":
            self._supervise(available_now=False)
            return
        while not self._stopping.is_set() and not self.obstacle:
            if self._take_input():
                self._supervise(available_now=True)
            else:
                time.sleep(0.05)

    def _take_input(self) -> bool:
        """Move one more file to where the query looks; whether there was one."""
        waiting = sorted((self._root / "waiting").iterdir())
        for path in waiting[:1]:
            path.rename(self._root / "input" / path.name)
        return bool(waiting)

    def _supervise(self, *, available_now: bool) -> None:
        def start() -> Any:
            if self._stopping.is_set():
                raise SystemExit
            self.attempts += 1
            self._query = self._start(available_now=available_now)
            return self._query

        try:
            past: Any = statestore.run(start, RESTARTS)
        except SystemExit:
            return
        except statestore.QueryFailedError as error:
            past = error.restart
            self.obstacle = f"{error}: {past.failures[-1].reason}"
        finally:
            self._query = None
        self.failures += [failure.reason for failure in past.failures]

    def _start(self, *, available_now: bool) -> Any:
        session = self._spark.newSession()
        for key, value in self.spec.conf().items():
            session.conf.set(key, value)
        query = QUERIES[self.spec.query]
        writer = (
            query.build(session, self._root / "input")
            .writeStream.outputMode(query.mode)
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self._write)
        )
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch's file, whole; a repeated batch replaces its own."""
        helper: Any = frame.sparkSession._jvm
        rows = helper.io.statestore.testing.TaskFaults.collect(
            frame._jdf, os.environ["STATESTORE_CHAOS"]
        )
        path = self._root / "sink" / f"{batch_id}.json"
        partial = path.with_suffix(".partial")
        partial.write_text("".join(f"{row}\n" for row in rows))
        partial.replace(path)
