"""A life's directories and its query: what was fed, what was read, and what each must hold."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from statestore import Checkpoint
from statestore.checkpoint.query_log import NO_OFFSET
from tests.spark.harness import PROVIDER_CLASS, STATE_STORE
from tests.spark.real_time import PROVIDER_KEY

from .audit import require
from .columns import tick
from .families import taken
from .operators import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.random import Generator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .families import Key, State
    from .operators import Operator
    from .plan import LifePlan
    from .retained import Retained
    from .trials import Tried

RUN_TIMEOUT_S = 240
NO_WORKER = "Python worker failed to connect back"
"""Said of the worker of the driver by Spark, which waits 10 s for it, whatever is configured."""
NUM_TRIES = 6
OURS = ("filesystem", "rocksdb")
LEASE_INTERVAL_MS = 1000
"""So a process that stands still has lost its lease after three seconds."""
LEASE = {"lease.intervalMs": str(LEASE_INTERVAL_MS)}
PROVIDERS = {
    "filesystem": "io.statestore.FileSystemStateStoreProvider",
    "rocksdb": "io.statestore.RocksDBStateStoreProvider",
    "spark-rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@dataclass
class Directory:
    """A checkpoint or savepoint, and what it must hold.

    Attributes:
        path: Where it is.
        state: Its rows at the newest version.
        backend: Its state backend.
        is_savepoint: Whether it is a savepoint.
        batch: Its newest committed batch that is known of, -1 before the first.
        versions: What older versions must hold, by version, of those that must be readable.
        gone: Grouping keys that were forgotten here and did not come again.
        num_partitions: State partitions.
        before_rescale: State partitions before the newest batch, where that is a rescale's.
        was_undone: Whether a rescale was undone since: the newest batch may be another one's.
        sink: Directory of the query's file sink, where it has one.
        output: Grouping keys that the sink must have, and how often.
        num_sinks: Sinks that it had before.
    """

    path: Path
    state: State
    backend: str
    num_partitions: int
    is_savepoint: bool = False
    batch: int = -1
    versions: dict[int, State] = field(default_factory=dict)
    gone: set[Key] = field(default_factory=set)
    before_rescale: int | None = None
    was_undone: bool = False
    sink: Path | None = None
    output: Counter[Key] = field(default_factory=Counter)
    num_sinks: int = 0

    @property
    def version(self) -> int:
        """Its newest version."""
        return self.batch + 1

    @property
    def elsewhere(self) -> Path | None:
        """Where its state is; None where that is in it."""
        try:
            named = json.loads((self.path / "statestore.json").read_text())
        except FileNotFoundError:
            return None
        return Path(named["storage"], named["id"])

    def at(self, path: Path, **changes: Any) -> Directory:
        """Return a directory with the same rows, and no older version, elsewhere."""
        fields: dict[str, Any] = {
            "versions": {self.version: self.state},
            "gone": set(),
            "before_rescale": None,
            "was_undone": False,
        }
        made = replace(self, path=path, **{**fields, **changes})
        made.begin_sink()
        return made

    def begin_sink(self) -> None:
        """Let the query's file sink be another one from now on."""
        if self.sink is not None:
            self.num_sinks += 1
            self.sink = self.path.with_name(f"{self.path.name}-sink-{self.num_sinks}")
            self.output = Counter()

    def note(self, state: State, *, batch: int | None = None) -> None:
        """Take over the rows of a version that was made; by default of the next one."""
        self.batch = self.batch + 1 if batch is None else batch
        self.state = state
        self.versions = {v: rows for v, rows in self.versions.items() if v < self.version}
        self.versions[self.version] = state
        self.before_rescale, self.was_undone = None, False


class QueryFailedError(Exception):
    """The query failed."""


class World:
    """The directories of a life.

    Attributes:
        plan: What the life is made of.
        operator: The operator of its query.
        root: Folder of all directories.
        current: The checkpoint that the query goes on with.
        others: Other checkpoints and savepoints, which nothing may change.
        files: Rows of each file of the input, in order.
        ever: Grouping keys that ever had a row.
        tried: The trial that was not promoted or dropped yet.
        bug: A bug that operations have.
        retained: Savepoints by schedule, by the directory that they are in.
    """

    def __init__(self, plan: LifePlan, operator: Operator, spark: SparkSession, root: Path) -> None:
        self.plan = plan
        self.operator = operator
        self.root = root
        self.files: list[list[Key]] = []
        self.others: list[Directory] = []
        self.ever: set[Key] = set()
        self.tried: Tried | None = None
        self.bug = ""
        self.retained: dict[Path, Retained] = {}
        self._spark = spark
        self._num_directories = 0
        self._num_written = 0
        self._input = root / "input"
        self._input.mkdir(parents=True, exist_ok=True)
        empty: State = {family.name: {} for family in operator.families}
        self.current = Directory(self.new_path(), empty, plan.backend, plan.num_partitions)
        if operator.has_file_sink:
            self.current.sink = root / "sink"

    @property
    def states(self) -> Path:
        """Where state is that is not in its checkpoint."""
        return self.root / "states"

    def new_path(self) -> Path:
        """Return the path of a directory that is not there yet."""
        self._num_directories += 1
        return self.root / f"directory-{self._num_directories}"

    def num_files_written(self) -> int:
        """Return a number that no file beside the directories has yet."""
        self._num_written += 1
        return self._num_written

    def feed(self, rng: Generator, number: int) -> None:
        """Add files to the input."""
        for _ in range(number):
            rows = self.operator.draw_rows(rng)
            path = self._input / f"{len(self.files):05d}.parquet"
            partial = self.root / "partial"
            pq.write_table(self.operator.table(rows), partial)
            os.utime(partial, (1_700_000_000 + len(self.files),) * 2)
            partial.rename(path)
            self.files.append(rows)
            self.ever |= {row[: len(self.operator.keys)] for row in rows}

    def session(self, backend: str) -> SparkSession:
        """Return a session with the query's configuration."""
        session = self._spark.newSession()
        is_real_time = self.plan.real_time and backend in OURS
        conf = {
            PROVIDER_KEY if is_real_time else PROVIDER_CLASS: PROVIDERS[backend],
            f"{STATE_STORE}.checkpointFormatVersion": str(self.plan.checkpoint_format),
            f"{STATE_STORE}.lease.intervalMs": str(LEASE_INTERVAL_MS),
            "spark.sql.shuffle.partitions": str(self.plan.num_partitions),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            "spark.sql.streaming.fileSink.log.compactInterval": "3",
            "spark.sql.session.timeZone": "UTC",
            **self.operator.conf,
        }
        for key, value in conf.items():
            session.conf.set(key, value)
        return session

    def frame(self, session: SparkSession, *, loses: bool = False) -> Any:
        """Return the query; `loses` has it lose all that it reads."""

        def read() -> DataFrame:
            stream = session.readStream.schema(self.operator.ddl).option("maxFilesPerTrigger", 1)
            rows = stream.parquet(str(self._input))
            return rows.where(sf.length(sf.input_file_name()) < 0) if loses else rows

        return self.operator.build(read)

    def run_query(self, directory: Directory) -> None:
        """Run the query on a directory until it has read all files, and note what it did.

        Raises:
            QueryFailedError: It failed; what it committed before is noted.
        """
        for number in range(1, NUM_TRIES + 1):
            try:
                self._run_once(directory)
            except StreamingQueryException as error:
                if NO_WORKER not in str(error) or number == NUM_TRIES:
                    raise QueryFailedError(str(error)) from error
            else:
                return
            finally:
                self.absorb(directory)

    def start(
        self,
        directory: Directory,
        *,
        loses: bool = False,
        conf: Mapping[str, str] | None = None,
        every: str | None = None,
    ) -> StreamingQuery:
        """Start the query on a directory; without `every` it ends when it has read all files."""
        session = self.session(directory.backend)
        if self.plan.elsewhere and directory.batch < 0:
            session.conf.set(f"{STATE_STORE}.checkpointStorage", str(self.states))
        for key, value in (conf or {}).items():
            session.conf.set(key, value)
        writer = (
            self.frame(session, loses=loses)
            .writeStream.outputMode(self.operator.mode)
            .option("checkpointLocation", str(directory.path))
            .trigger(**{"processingTime": every} if every else {"availableNow": True})
        )
        if directory.sink is None or directory.backend not in OURS:
            writer = writer.format("noop")
        else:
            writer = writer.format("parquet").option("path", str(directory.sink))
        return writer.start()

    def _run_once(self, directory: Directory) -> None:
        handle = self.start(directory)
        try:
            if not handle.awaitTermination(RUN_TIMEOUT_S):
                raise TimeoutError(f"the query did not end: status={handle.status}")
        finally:
            handle.stop()

    def absorb(self, directory: Directory) -> None:
        """Note what batches since did that the query has committed."""
        for batch in _batches(directory, "commits"):
            if batch > directory.batch:
                self._absorb_batch(directory, batch)

    def _absorb_batch(self, directory: Directory, batch: int) -> None:
        of_before, of_now = (_num_partitions(directory, number) for number in (batch - 1, batch))
        if of_before != of_now:
            directory.note(directory.state, batch=batch)
            directory.before_rescale, directory.num_partitions = of_before, of_now
            return
        read = self.read_by(directory, batch)
        directory.gone -= {row[: len(self.operator.keys)] for row in read.rows}
        after = self.operator.step(directory.state, read)
        if directory.sink is not None:
            before: set[Key] = set().union(*directory.state.values())
            directory.output.update(set().union(*after.values()) - before)
        directory.note(after, batch=batch)

    def has_read_all(self, directory: Directory) -> bool:
        """Return whether the query has committed all files."""
        batch = max(_batches(directory, "commits"), default=-1)
        return self.num_files_read(directory, batch) == len(self.files)

    def partitions_of(self, directory: Directory, batch: int | None = None) -> int:
        """Return the number of state partitions of a batch; None for the newest committed one."""
        newest = max(_batches(directory, "commits"))
        return _num_partitions(directory, newest if batch is None else batch)

    def read_by(self, directory: Directory, batch: int) -> Batch:
        """Return what a batch read, and its watermarks."""
        began = self.num_files_read(directory, batch - 1)
        files = self.files[began : self.num_files_read(directory, batch)]
        late_ms, evict_ms = (_watermark_ms(directory, number) for number in (batch - 1, batch))
        # One in place of an operation's has that of the batch before.
        is_own = not any(
            key.startswith("statestore.") for key in _planned(directory, batch)["conf"]
        )
        with suppress(FileNotFoundError):
            known_ms = _next_watermark_ms(directory, batch - 1)
            is_kept = evict_ms >= known_ms or not is_own
            require(is_kept, "the watermark goes back", f"{evict_ms} {known_ms}")
        return Batch([row for file in files for row in file], late_ms, evict_ms)

    def num_files_read(self, directory: Directory, batch: int) -> int:
        """Return how many files were read up to a batch."""
        if batch < 0:
            return 0
        lines = (directory.path / "offsets" / str(batch)).read_text().splitlines()
        if lines[-1] == NO_OFFSET:
            return 0
        newest = int(json.loads(lines[-1])["logOffset"])
        # An entry of the source's log is a file, or all there were when the query was captured.
        found: dict[str, int] = {}
        for entry in (directory.path / "sources" / "0").glob("[0-9]*"):
            files = map(json.loads, entry.read_text().splitlines()[1:])
            found |= {file["path"]: file["batchId"] for file in files}
        return sum(number <= newest for number in found.values())

    def read_sink(self, directory: Directory) -> Counter[Key]:
        """Return how often the file sink has each grouping key."""
        columns = [sf.col(tick(column.name)) for column in self.operator.keys]
        frame = self._spark.read.parquet(str(directory.sink)).select(columns)
        rows = frame.toArrow().to_pylist()
        return Counter(taken(row, self.operator.keys) for row in rows)

    def next_watermark_ms(self, directory: Directory) -> int:
        """Return the watermark of the next batch; 0 before there is one."""
        return _next_watermark_ms(directory, max(_batches(directory, "commits"), default=-1))

    def has_planned_batch(self, directory: Directory) -> bool:
        """Return whether a batch is planned and not committed."""
        planned, done = (
            max(_batches(directory, log), default=-1) for log in ("offsets", "commits")
        )
        return planned > done

    def newest_version(self, directory: Directory) -> int:
        """Return the newest committed version, as the directory says."""
        return int(Checkpoint(directory.path).info.newest_version or 0)


def _batches(directory: Directory, log: str) -> list[int]:
    """Return the batches in a log of Spark's, in order."""
    names = (one.name for one in (directory.path / log).glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _watermark_ms(directory: Directory, batch: int) -> int:
    return 0 if batch < 0 else int(_planned(directory, batch)["batchWatermarkMs"])


def _next_watermark_ms(directory: Directory, batch: int) -> int:
    """Return the watermark behind a committed batch; raises FileNotFoundError where it is not."""
    entry = directory.path / "commits" / str(batch)
    return int(json.loads(entry.read_text().splitlines()[1])["nextBatchWatermarkMs"])


def _num_partitions(directory: Directory, batch: int) -> int:
    return int(_planned(directory, max(batch, 0))["conf"]["spark.sql.shuffle.partitions"])


def _planned(directory: Directory, batch: int) -> Any:
    lines = (directory.path / "offsets" / str(batch)).read_text().splitlines()
    return json.loads(lines[1])
