"""A job runs on a branch: its query repeats the batches that it is handed, and writes no sink.

`DataStreamWriter.start` is replaced while the job runs. The query whose checkpoint is tried is
started on the branch in its place, once for each batch, with a sink that keeps the rows as Parquet.
The job ends there. No other query of the job is started: one of Spark Connect, whose batches this
process cannot repeat, is refused.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.core.options import StateStoreOptions
from statestore.io.hadoop_process import HADOOP_PREFIXES, use
from statestore.io.local import written_scheme
from statestore.io.place import Place
from statestore.io.storage import hadoop_uri, is_same_directory, scheme_of
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.trial.branching import hand
from statestore.spark.connect import require_driver
from statestore.spark.driver_files import DriverFiles
from statestore.spark.driver_session import qualified
from statestore.spark.failures import reason_of, text_of
from statestore.spark.old_sink_rows import FILE_SINKS, keep_old, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_REPLACED = (
    "foreach",
    "foreachBatch",
    "format",
    "option",
    "options",
    "outputMode",
    "queryName",
    "start",
    "toTable",
    "trigger",
)
"""Methods of a writer that are others while a job runs."""
_AWAITED_S = 20.0
"""How long threads of a job that has ended may take to start its query."""
_POLL_S = 0.05
_ONE_AT_A_TIME = threading.Lock()
"""Held while a job is tried: the methods that are replaced are those of every thread."""
_LOCATION = "checkpointlocation"
_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"
_SCHEMA_REFUSED = re.compile(r"\[STATE_STORE_\w*SCHEMA\w*[\].]")
_NEW_SCHEMA = re.compile(r"\bnew (?:key|value)_schema=(StructType\(.+\))")


@dataclass(frozen=True, slots=True)
class Repeat:
    """Batches that a job is to repeat, and where.

    Attributes:
        checkpoint: URI of the checkpoint whose query it is.
        branch: URI of the branch.
        version: Version that the branch is to reach.
        rows: URI of the directory for rows that the query gives its sink, by batch.
        old_rows: URI of the directory for those that are in its file sink; None to look for none.
        first_version: First batch whose rows are looked for there.
        options: Options of the query, by key.
    """

    checkpoint: str
    branch: str
    version: int
    rows: str
    old_rows: str | None
    first_version: int
    options: dict[str, str] = field(default_factory=dict)

    def named_as(self, location: str) -> Repeat:
        """Return it with the scheme for S3 by which the job names a location: Spark opens these."""
        scheme = written_scheme(location) if scheme_of(location) == "s3" else "s3a"

        def named(uri: str) -> str:
            return f"{scheme}:{uri.partition(':')[2]}" if scheme_of(uri) == "s3" else uri

        old_rows = self.old_rows and named(self.old_rows)
        return replace(self, branch=named(self.branch), rows=named(self.rows), old_rows=old_rows)

    def place(self, uri: str) -> Place:
        """Return the place of a directory."""
        of_query = {
            key: value for key, value in self.options.items() if not key.startswith(HADOOP_PREFIXES)
        }
        return Place(uri, StateStoreOptions.from_options(of_query))


@dataclass
class _Asked:
    """Settings that a job gave a DataStreamWriter before it starts it."""

    output_mode: str = "append"
    format: str = ""
    query_name: str = ""
    options: dict[str, str] = field(default_factory=dict)
    trigger: dict[str, Any] = field(default_factory=dict)

    def location(self, spark: SparkSession) -> str | None:
        """Return the checkpoint directory, None where it has none of its own."""
        given = self.options.get(_LOCATION)
        default = spark.conf.get(_DEFAULT_LOCATION, None)
        if not given and default and self.query_name:
            given = f"{default}/{self.query_name}"
        return qualified(given, spark) if given else None


class _Ended(BaseException):
    """The job ends, whatever it does about failures: nothing that it does is needed any more."""


def run_job(repeat: Repeat, job: Callable[[], object]) -> None:
    """Run a job on a branch.

    Args:
        repeat: The batches that it repeats.
        job: Starts the query.

    Guarantee: on return the branch has the version, and rows of each of its batches are kept. After
    a raise or a kill the branch is at one of the versions between; the same call goes on. No sink
    of the job's was written, and no query of it runs.

    Raises:
        InvalidArgumentError: The job failed, or starts no query of the checkpoint (kind
            trial-failed); the session is one of Spark Connect (kind spark-connect); or another job
            of this program is tried.
        StateStoreError: The branch cannot be read or written.
    """
    passed: list[str] = []
    failure: BaseException | None = None
    is_taken = is_done = False

    def take(writer: Any, asked: _Asked, start: Callable[[Any], Any]) -> None:
        nonlocal failure, is_taken, is_done
        spark = writer._spark  # noqa: SLF001
        location = asked.location(spark)
        with use(DriverFiles(lambda: spark)):
            if location is None or not is_same_directory(location, repeat.checkpoint):
                passed.append(location or "none")
                return
        is_taken = True
        try:
            _repeat_all(repeat.named_as(location), writer._df, asked, start)  # noqa: SLF001
            is_done = True
        except Exception as error:  # noqa: BLE001, it is raised behind the job
            failure = error
        raise _Ended

    with _alone(), _starts(take, before := {*threading.enumerate()}):
        try:
            job()
        except _Ended:
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001, it is raised below
            failure = failure or error
        until = time.monotonic() + _AWAITED_S
        # As Python waits for its threads, one of which may be about to start the query.
        while (
            not is_done
            and failure is None
            and (is_taken or time.monotonic() < until)
            and _threads_since(before)
        ):
            time.sleep(_POLL_S)
    if is_done:
        return
    if failure is not None and (is_taken or not passed):
        if isinstance(failure, StateStoreError):
            raise failure
        raise _failed(reason_of(failure), repeat, **_change_of_schema(failure)) from failure
    raise InvalidArgumentError(
        "the job starts no query of the checkpoint",
        kind="trial-failed",
        checkpoint=repeat.checkpoint,
        started=", ".join(passed) or "none",
        **({"reason": reason_of(failure)} if failure else {}),
        to_fix="name the directory that the job has as its checkpointLocation; a query that "
        "is started only when another one has ended cannot be tried",
    ) from failure


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other job of this program be tried meanwhile.

    Raises:
        InvalidArgumentError: One is tried.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise InvalidArgumentError(
            "another job is tried in this program",
            to_fix="call try_job for each of them, one after the other",
        )
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def _threads_since(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """Return the threads of a job: begun since, and such as Python would wait for."""
    return [each for each in threading.enumerate() if each not in before and not each.daemon]


def _failed(
    reason: str, repeat: Repeat, to_fix: str = "mend the job and try it again", **fields: str
) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the job failed on the branch",
        kind="trial-failed",
        checkpoint=repeat.checkpoint,
        branch=repeat.branch,
        reason=reason,
        **fields,
        to_fix=f"{to_fix}; the checkpoint is as it was",
    )


def _change_of_schema(error: BaseException) -> dict[str, str]:
    """Return the fix where Spark refuses the old state for its schema; else nothing."""
    text = text_of(error)
    if not _SCHEMA_REFUSED.search(text):
        return {}
    new = _NEW_SCHEMA.search(text)
    return {
        **({"new_schema": new[1]} if new else {}),
        "to_fix": "where the state is to change, say what becomes of its rows by --sql "
        "NAME=SELECT, or rows=, as in docs/try.md; else mend the job",
    }


def _repeat_all(
    repeat: Repeat, frame: DataFrame, asked: _Asked, start: Callable[[Any], Any]
) -> None:
    """Repeat the batches that the branch lacks, and keep the old's rows of each."""
    if {"realTime", "continuous"} & asked.trigger.keys():
        raise InvalidArgumentError(
            "a query without batches cannot be tried",
            trigger=", ".join(asked.trigger),
            to_fix="give the job another trigger while it is tried",
        )

    def keep(batch: DataFrame, batch_id: int) -> None:
        write_rows(batch, f"{hadoop_uri(repeat.rows)}/{batch_id}")

    with ExitStack() as stack:
        stack.enter_context(use(DriverFiles(lambda: frame.sparkSession)))
        old = stack.enter_context(open_checkpoint(repeat.place(repeat.checkpoint)))
        while True:
            with open_checkpoint(repeat.place(repeat.branch)) as branch:
                batch = branch.newest_version
                if batch >= repeat.version:
                    break
                if branch.is_between_batches:
                    hand(old, branch, batch)
            writer = frame.writeStream.outputMode(asked.output_mode).foreachBatch(keep)
            writer = writer.option("checkpointLocation", hadoop_uri(repeat.branch))
            query = start(writer.trigger(once=True))
            try:
                query.awaitTermination()
            finally:
                query.stop()
            with open_checkpoint(repeat.place(repeat.branch)) as branch:
                if branch.newest_version == batch:
                    raise _failed(f"batch {batch} was not repeated", repeat)
        if not asked.format:
            asked.format = str(frame.sparkSession.conf.get("spark.sql.sources.default")).lower()
        is_of_files = asked.format in FILE_SINKS and asked.options.get("path")
        if repeat.old_rows is not None and is_of_files:
            batches = range(repeat.first_version, repeat.version)
            options = {name: of for name, of in asked.options.items() if name != _LOCATION}
            keep_old(batches, repeat.place(repeat.old_rows), frame, asked.format, options)


@contextmanager
def _starts(
    take: Callable[[Any, _Asked, Callable[[Any], Any]], None],
    before_it: Collection[threading.Thread],
) -> Iterator[None]:
    """Have every start of a query within a block taken by a function, in place of Spark.

    Where this thread waits for one of them for ever, the job ends: none runs that could end. Behind
    the block no other thread starts one that is left of it: not one of those before it.
    """
    from pyspark.sql.streaming.query import StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    before = {name: getattr(DataStreamWriter, name) for name in _REPLACED}
    wait: Callable[..., Any] = StreamingQueryManager.awaitAnyTermination

    def asked_of(writer: Any) -> _Asked:
        found: _Asked = writer.__dict__.setdefault("_statestore_asked", _Asked())
        return found

    def note(writer: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        asked, values = asked_of(writer), [*args, *named.values()]
        match name:
            case "format":
                asked.format = str(values[0]).lower()
            case "foreach" | "foreachBatch":
                asked.format = name
            case "outputMode":
                asked.output_mode = values[0]
            case "queryName":
                asked.query_name = values[0]
            case "option":
                _note_options(asked, {values[0]: values[1]})
            case "options":
                _note_options(asked, named)
            case "trigger":
                asked.trigger = {each: of for each, of in named.items() if of is not None}

    def noting(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            note(self, name, args, named)
            return before[name](self, *args, **named)

        return call

    def start(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        del partitionBy
        asked = asked_of(self)
        given = {"format": format, "outputMode": outputMode, "queryName": queryName}
        for name, value in given.items():
            if value is not None:
                note(self, name, [value], {})
        _note_options(asked, options if path is None else {**options, "path": path})
        take(self, asked, before["start"])

    def to_table(self: Any, tableName: str, *args: Any, **options: Any) -> None:  # noqa: N803
        del tableName
        names = ("format", "outputMode", "partitionBy", "queryName")
        named = {**dict(zip(names, args, strict=False)), **options}
        start(self, None, **named)

    thread = threading.get_ident()
    left: WeakSet[threading.Thread] = WeakSet()

    def unless_left(start: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            current = threading.current_thread()
            if current in left:
                raise InvalidArgumentError(
                    "this thread was begun while a job was tried: what it starts may be the job's",
                    thread=current.name,
                    to_fix="start the query in a thread that is begun after try_job has returned",
                )
            return start(self, *args, **named)

        return call

    def await_any(self: Any, timeout: int | None = None) -> Any:
        if timeout is None and threading.get_ident() == thread:
            raise _Ended
        return wait(self, timeout)

    made = {name: noting(name) for name in before} | {"start": start, "toTable": to_table}
    replaced: list[tuple[type, str, Callable[..., Any]]] = [
        (DataStreamWriter, name, function) for name, function in made.items()
    ]
    replaced.append((StreamingQueryManager, "awaitAnyTermination", await_any))
    for writer, name in itertools.product(_writers_of_connect(), ("start", "toTable")):
        replaced.append((writer, name, _refuse_connect))
    kept = [(writer, name, getattr(writer, name)) for writer, name, _ in replaced]
    for writer, name, function in replaced:
        setattr(writer, name, function)
    try:
        yield
    finally:
        left.update(_threads_since(before_it))
        for writer, name, function in kept:
            is_start = bool(left) and name in ("start", "toTable")
            setattr(writer, name, unless_left(function) if is_start else function)


def _writers_of_connect() -> list[type]:
    """Return the class of writers that Spark Connect has; none where it cannot be used."""
    try:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter
    except ImportError:  # of what a session of it needs, too
        return []
    return [DataStreamWriter]


def _refuse_connect(writer: Any, *_: Any, **__: Any) -> None:
    require_driver(
        writer._session,  # noqa: SLF001
        "try_job",
        "have the job make its session without remote() and SPARK_REMOTE while it is tried",
    )


def _note_options(asked: _Asked, options: Mapping[str, Any]) -> None:
    asked.options |= {
        str(name).lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def main(arguments: list[str]) -> int:
    """Run a job's script in a process of its own.

    Args:
        arguments: A local file with a `Repeat` as JSON, one for the reply, the script, and what the
            script is given.

    Returns:
        0 when the branch has the version; else 1, with the error in the reply.
    """
    request, reply, script, *given = arguments
    repeat = Repeat(**json.loads(Path(request).read_text()))
    sys.argv = [script, *given]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)  # as of a script that is run by itself
    try:
        run_job(repeat, lambda: runpy.run_path(script, run_name="__main__"))
    except StateStoreError as error:
        said = {"problem": error.problem, "kind": error.kind, "to_fix": error.to_fix}
        Path(reply).write_text(json.dumps({**said, **error.to_json()["fields"]}))
        return 1
    finally:
        _stop()
    Path(reply).write_text("{}")
    return 0


def _stop() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the job ends here, whatever its threads wait for
