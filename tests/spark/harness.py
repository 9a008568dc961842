"""Runs one streaming query on one provider, file by file, and keeps what every batch returned.

A lane is a checkpoint with its input folders. One file of every input makes one batch
(`maxFilesPerTrigger` 1), a run processes all fed files and stops, and the next run is a restart
from the checkpoint. Lanes on different providers that are fed the same files must return the same
rows batch by batch.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore import Checkpoint

from .features import missing

STATE_STORE = "spark.sql.streaming.stateStore"
FORMAT = f"{STATE_STORE}.checkpointFormatVersion"
FORMAT_2 = {FORMAT: "2"}
NO_CHANGELOG = {f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "false"}
PROVIDER_CLASS = f"{STATE_STORE}.providerClass"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILESYSTEM = "io.statestore.FileSystemStateStoreProvider"
ROCKSDB_BACKEND = "io.statestore.RocksDBStateStoreProvider"
HEAP = "io.statestore.HeapStateStoreProvider"
LEASES = "statestore-leases"
"""Directory of leases in a checkpoint."""
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
NUM_PARTITIONS = 3
INTERPRETED = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""Compiling code for each query takes an eighth of the CPU of a short one."""
RUN_TIMEOUT_S = 240

Event = Mapping[str, Any]
Files = Mapping[str, Sequence[Event]]
Plan = Sequence[Sequence[Files]]
Build = Callable[[SparkSession, Mapping[str, DataFrame]], DataFrame]


@dataclass(frozen=True)
class Query:
    """A streaming query: what it does with its inputs, in which output mode, under which confs.

    Attributes:
        build: Makes the streaming frame from the session and a frame per input.
        schemas: DDL schema per input.
        plan: Runs of a restarted query, each a list of batches, each the rows of a file per input.
        built_in: Spark's own provider that it is compared with.
    """

    name: str
    build: Build
    mode: str
    schemas: Mapping[str, str]
    plan: Plan
    conf: Mapping[str, str] = field(default_factory=dict)
    built_in: str = HDFS


class Lane:
    """One query on one provider: its checkpoint, its inputs, and what came out.

    Attributes:
        batches: Sorted rows per batch ID, as of the batch's last attempt.
        attempts: Number of times the sink was handed each batch ID.
        progress: The progress report of every batch that ran, in order, over all runs.
        failed_tasks: Number of task attempts that failed, over all runs.
        before_batch, on_batch: Called with the batch ID around the computation of its rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        provider: str,
        root: Path,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.query = query
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.conf = {PROVIDER_CLASS: provider, **query.conf, **(conf or {})}
        self.batches: dict[int, list[str]] = {}
        self.attempts: dict[int, int] = {}
        self.progress: list[dict[str, Any]] = []
        self.failed_tasks = 0
        self.before_batch: Callable[[int], None] = lambda batch_id: None
        self.on_batch: Callable[[int], None] = lambda batch_id: None
        self._fed = 0
        for name in query.schemas:
            (root / "input" / name).mkdir(parents=True, exist_ok=True)

    def feed(self, *batches: Files) -> None:
        """Add one file per input and batch; the names and times keep the files in order."""
        for batch in batches:
            for name, rows in batch.items():
                path = self.root / "input" / name / f"{self._fed:05d}.json"
                partial = self.root / f"{name}.partial"
                partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
                os.utime(partial, (1_700_000_000 + self._fed,) * 2)
                partial.rename(path)
            self._fed += 1

    def begin_after(self, batches: Sequence[Files]) -> None:
        """Name what is fed next as if these had been fed: the checkpoint is of who read them."""
        self._fed += len(batches)

    def session(self) -> SparkSession:
        """Return a new session of the shared application with this lane's confs only."""
        session = self.spark.newSession()
        for key in INTERPRETED:
            session.conf.set(key, self.spark.conf.get(key))
        for key, value in self.conf.items():
            session.conf.set(key, value)
        return session

    def start(
        self,
        *,
        available_now: bool = True,
        once: bool = False,
        every: str | None = None,
        name: str | None = None,
    ) -> Any:
        """Start the query from its checkpoint, under a name if given, and return its handle."""
        session = self.session()
        streams = {
            name: self._reader(session, name)
            .schema(schema)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.root / "input" / name))
            for name, schema in self.query.schemas.items()
        }
        writer = (
            self._keep_rows(self.query.build(session, streams))
            .outputMode(self.query.mode)
            .option("checkpointLocation", str(self.checkpoint))
        )
        if name is not None:
            writer = writer.queryName(name)
        if every is not None:
            return writer.trigger(processingTime=every).start()
        if once:
            return writer.trigger(once=True).start()
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _reader(self, session: SparkSession, name: str) -> Any:
        """Return what reads an input; it has a name where Spark wants one of every source."""
        is_named = self.conf.get(SOURCE_EVOLUTION) == "true"
        return session.readStream.name(name) if is_named else session.readStream

    def run(self, *batches: Files) -> None:
        """Feed batches, start the query, and return when it has processed them all.

        Raises:
            StreamingQueryException: The query failed; `batches` and `progress` hold what ran.
        """
        self.feed(*batches)
        handle = self.start()
        try:
            if not handle.awaitTermination(RUN_TIMEOUT_S):
                message = f"the query did not end: name={self.query.name}, status={handle.status}"
                raise TimeoutError(message)
        finally:
            handle.stop()
            self._keep_progress(handle)

    def _keep_progress(self, handle: Any) -> None:
        reports = [json.loads(report.json) for report in handle.recentProgress]
        self.progress += [report for report in reports if "addBatch" in report["durationMs"]]
        self._keep_failed_tasks(handle)

    def _keep_failed_tasks(self, handle: Any) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        for job_id in tracker.getJobIdsForGroup(str(handle.runId)):
            for stage_id in tracker.getJobInfo(job_id).stageIds:
                stage = tracker.getStageInfo(stage_id)
                self.failed_tasks += stage.numFailedTasks if stage else 0

    def counts(self, field_name: str) -> dict[int, list[int]]:
        """Return a counter of every stateful operator per batch ID."""
        return {
            report["batchId"]: [operator[field_name] for operator in report["stateOperators"]]
            for report in self.progress
        }

    def custom_metrics(self) -> list[dict[str, int]]:
        """Return the first operator's custom metrics, batch by batch."""
        return [report["stateOperators"][0]["customMetrics"] for report in self.progress]

    def _keep_rows(self, frame: DataFrame) -> Any:
        """Give the query a sink that keeps what every batch returns."""
        return frame.writeStream.foreachBatch(self._collect)

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        self.attempts[batch_id] = self.attempts.get(batch_id, 0) + 1
        self.before_batch(batch_id)
        rows = sorted(repr(tuple(row)) for row in frame.collect())
        self.on_batch(batch_id)
        self.batches[batch_id] = rows


def default_mount(root: Path) -> tuple[str, dict[str, str]]:
    """Return a file system over a folder, and the conf that makes it a session's default.

    It has the folder as `/data`; of the disk it has inputs of lanes below `root`, where they are.
    """
    name = uuid.uuid4().hex  # Hadoop keeps a file system, with its mounts, by its name
    links = {"/data": root / "mounted", **{str(path): path for path in root.glob("**/input")}}
    links["/data"].mkdir()
    table = f"fs.viewfs.mounttable.{name}"
    conf = {f"{table}.link.{path}": folder.as_uri() for path, folder in links.items()}
    return f"viewfs://{name}", {**conf, "fs.defaultFS": f"viewfs://{name}"}


def run_plan(*lanes: Lane) -> None:
    """Run every lane through its query's plan, all lanes at the same time."""

    def run(lane: Lane) -> None:
        for batches in lane.query.plan:
            lane.run(*batches)

    with ThreadPoolExecutor(len(lanes)) as pool:
        for future in [pool.submit(run, lane) for lane in lanes]:
            future.result()


COUNTS = ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")


def comparable_counts(reference: Lane) -> Sequence[str]:
    """Return the counters of a lane on Spark's provider that ours must report too."""
    miscounts = reference.conf[PROVIDER_CLASS] == ROCKSDB and missing("merged-row-counts")
    return COUNTS[1:] if miscounts else COUNTS


def assert_same(reference: Lane, candidate: Lane) -> None:
    """Assert that two lanes returned the same rows and hold as many, batch by batch."""
    assert candidate.batches.keys() == reference.batches.keys()
    for batch_id, rows in reference.batches.items():
        assert candidate.batches[batch_id] == rows, f"batch {batch_id} of {candidate.query.name}"
    assert candidate.counts(COUNTS[0]).keys() == reference.counts(COUNTS[0]).keys()
    assert_counts(reference, candidate)


def assert_counts(reference: Lane, candidate: Lane) -> None:
    """Assert that a lane reports what one on Spark's provider does, of the batches that it ran.

    Spark's own counters of state variables were wrong in two of some thousand runs, whose rows and
    state were right. So where they differ, Spark's provider runs the query once more: the lane must
    report what that run does.
    """
    differences = _differences(reference, candidate)
    if differences and Checkpoint(reference.checkpoint).info.operators[0].variables:
        root = reference.root.with_name(f"{reference.root.name}-{uuid.uuid4().hex}")
        again = Lane(reference.spark, reference.query, reference.conf[PROVIDER_CLASS], root)
        run_plan(again)
        warnings.warn(f"Spark's counters: {_differences(again, reference)}", stacklevel=2)
        differences = _differences(again, candidate)
    assert not differences, differences


def _differences(reference: Lane, candidate: Lane) -> dict[str, tuple[Any, Any]]:
    """Counters that are not those of a reference, with both values by batch."""
    found = {}
    for name in comparable_counts(reference):
        expected, counts = reference.counts(name), candidate.counts(name)
        wrong = [batch for batch in counts if counts[batch] != expected.get(batch)]
        if wrong:
            found[name] = tuple({n: c.get(n) for n in wrong} for c in (expected, counts))
    return found


def engine_calls(spark: SparkSession) -> dict[str, int]:
    """Return how many loads and commits engines of the application were called for, so far."""
    counts: Any = spark._jvm.io.statestore.engine.Engines.callCounts()
    return {op: counts.apply(op) for op in ("load", "commit") if counts.contains(op)}


def files_read(
    checkpoint: str | Path, batch_ids: Iterable[int], files: Sequence[Files]
) -> tuple[list[Files], list[Files]]:
    """Return what a query of one input had read before some batches, and what each of them read.

    A batch reads one file, unless Spark was killed between its log of files and its log of offsets:
    then a batch reads two.

    Args:
        checkpoint: The query's.
        batch_ids: Successive batches, none of them the first.
        files: All that it was fed, in order.

    Returns:
        The files before; and for each batch one file with all the rows that it read.
    """

    def newest(batch_id: int) -> int:
        planned = Path(checkpoint, "offsets", str(batch_id)).read_text()
        return int(json.loads(planned.splitlines()[-1])["logOffset"])

    ordered = sorted(batch_ids)
    ends = [newest(batch_id) + 1 for batch_id in (ordered[0] - 1, *ordered)]
    (name,) = files[0]
    read = [
        {name: [row for file in files[start:end] for row in file[name]]}
        for start, end in pairwise(ends)
    ]
    return list(files[: ends[0]]), read


def engine_pool(session: SparkSession) -> Any:
    """Return the engines of a session's options, of an executor here."""
    jvm: Any = session._jvm
    shim = jvm.io.statestore
    state = jvm.org.apache.spark.sql.execution.streaming.state
    conf = state.StateStoreConf.apply(session._jsparkSession.sessionState().conf())
    return shim.engine.Engines.forOptions(shim.ShimOptions.parse(conf.sqlConfs()))


def open_stores(session: SparkSession) -> int:
    """Return how many stores the engine of a session's options has open."""
    jvm: Any = session._jvm
    request = jvm.io.statestore.Json.readObject('{"op": "status"}')
    status = engine_pool(session).call("", request)
    return int(status.get("stores").asInt())


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 180.0) -> Any:
    """Return the first true value of a condition; fail with `what` after timeout_s seconds."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return value


def tree(directory: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint but for leases: a query that was stopped drops its late."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in files
        if path.parent.name != LEASES
    }


def assert_not_startable(lane: Lane, checkpoint: Path) -> None:
    """Check that no query starts from a checkpoint that is not whole."""
    kept, lane.checkpoint = lane.checkpoint, checkpoint
    try:
        with pytest.raises(Exception, match="No usable value for id"):
            lane.start()
    finally:
        lane.checkpoint = kept
