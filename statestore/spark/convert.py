"""Converts a checkpoint to one of Spark's own providers.

Spark jobs copy the rows of the newest committed version store by store and compare them. What a
query needs to go on with them is written afterwards, the file `metadata` last: until then it holds
a text that no query starts from.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.text_files import read_text
from statestore.core.errors import IncompatibleError, InternalError, NotFoundError, StorageError
from statestore.core.options import PREFIX, spark_conf
from statestore.core.providers import PROVIDER_KEY, SPARK_PROVIDERS
from statestore.io.hadoop_process import use
from statestore.io.shim_jar import find_jar
from statestore.io.spark_home import require_own_spark
from statestore.io.storage import hadoop_uri
from statestore.operations.checkpoint import OpenCheckpoint, open_checkpoint
from statestore.operations.committed_version import find_version
from statestore.operations.conversion import (
    CONVERT,
    Convert,
    decide_convert,
)
from statestore.operations.copied_files import copy_operators, copy_spark_files, write_logs
from statestore.operations.copying import begin_history
from statestore.operations.in_use import require_not_in_use, same_batches
from statestore.operations.metadata_file import METADATA_NAME
from statestore.operations.new_directory import begin_directory
from statestore.operations.result import no_progress
from statestore.spark.connect import require_driver
from statestore.spark.driver_files import DriverFiles
from statestore.spark.driver_session import jar_needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from statestore.core.options import StateStoreOptions
    from statestore.io.place import Place
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.new_directory import NewDirectory
    from statestore.operations.result import Made, Progress

_LOG4J = Path(__file__).with_name("log4j2.properties")
_POLL_S = 0.2


@contextmanager
def open_conversion(
    place: Place,
    new: Place,
    provider: str,
    *,
    spark: SparkSession | None = None,
    session_conf: Mapping[str, str] | None = None,
) -> Iterator[Conversion]:
    """Decide a conversion; nothing is written before `Conversion.make`.

    Args:
        place: Checkpoint of a query that does not run, which Spark's Hadoop can open.
        new: Where the new checkpoint is to be, likewise.
        provider: spark-hdfs or spark-rocksdb.
        spark: A session with the jar of this package. When None, the active one, or a local one
            that is started when it is needed, and stopped at the end.
        session_conf: Configuration of a session that is started here.

    Yields:
        The conversion. Errors as `Checkpoint.convert`.
    """
    with ExitStack() as stack:
        sessions = _Sessions(stack, spark, place.options, session_conf or {})
        stack.enter_context(use(DriverFiles(sessions.get)))
        source = stack.enter_context(open_checkpoint(place))
        source.check_of_query()
        yield Conversion(decide_convert(source, new, provider), source, new, sessions)


class Conversion:
    """A conversion that was decided; made by `open_conversion`."""

    def __init__(
        self, decided: Convert[Any], checkpoint: OpenCheckpoint, new: Place, sessions: _Sessions
    ) -> None:
        self._decided = decided
        self._checkpoint = checkpoint
        self._new = new
        self._sessions = sessions
        self._uri = hadoop_uri(decided.source)
        self._new_uri = hadoop_uri(decided.target)

    def make(
        self, made: Made, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Convert[Made]:
        """Make the new checkpoint, unless `dry_run`, and return what was made and how.

        Args:
            made: What stands for the new checkpoint.
            dry_run: Whether to change nothing.
            progress: Called a few times a second with the stores that are copied and compared, and
                their number.

        Guarantee and errors as `Checkpoint.convert`.
        """
        self._sessions.check()
        if dry_run:
            return self._decided
        rows = self._run(progress or no_progress)
        return replace(self._decided, rows=rows).done_with(made)

    def _run(self, progress: Progress) -> dict[tuple[int, str], int]:
        """Make it, and return rows by operator ID and store name, of all state partitions."""
        source = self._checkpoint
        require_not_in_use(source)
        metadata = read_text(source.io, f"{source.path}/{METADATA_NAME}")
        spark = self._sessions.get()
        _require_spark(self._decided, source.conf, spark)
        copy = self._state_copy(spark)
        with begin_directory(self._new, CONVERT, self._decided.source) as target:
            require_same = same_batches(source)
            version = find_version(source, self._decided.version, has_heads=False)
            copied = self._copy_state(copy, progress)
            self._check(copied)
            self._copy_metadata(version, target)
            self._write_logs(version, target, [store["checkpoint_id"] for store in copied])
            decided = self._decided
            result = {"provider": decided.provider}
            begin_history(target, CONVERT, decided.source, decided.version, result)
            require_same()
            require_not_in_use(source)
            target.finish(metadata)
        rows: dict[tuple[int, str], int] = {}
        for (operator, _, name), store in zip(self._stores(), copied, strict=True):
            rows[operator, name] = rows.get((operator, name), 0) + int(store["rows"])
        return rows

    def _stores(self) -> list[tuple[int, int, str]]:
        """Operator, state partition and name of every store, in the order they are copied in."""
        return [
            (operator.info.id, partition, store.name)
            for operator in self._decided.operators
            for partition in range(operator.num_partitions)
            for store in operator.info.stores
        ]

    def _state_copy(self, spark: SparkSession) -> Any:
        """Return the JVM's side, io.statestore.convert.StateCopy."""
        source = self._checkpoint
        entry = source.commit_entry(self._decided.batch)
        operators = source.operators_at(self._decided.version)
        stores = []
        for operator, partition, name in self._stores():
            info = operators[operator]
            number = [store.name for store in info.stores].index(name)
            ids = entry.checkpoint_ids.get(str(operator))
            stores.append(
                {
                    "operator": operator,
                    "partition": partition,
                    "name": name,
                    "num_prefix_columns": info.stores[number].num_prefix_columns,
                    "schema_files": [
                        f"{operator}/{file}" for file in info.stores[number].schema_paths
                    ],
                    "lists": sorted(info.lists),
                    "indexes": sorted(info.indexes),
                    "checkpoint_id": ids[partition][number] if ids else None,
                }
            )
        request = {
            "version": self._decided.version,
            "conf": dict(source.conf),
            "source": {
                "checkpoint": self._uri,
                "provider": source.provider,
                "checkpoint_format": entry.checkpoint_format,
            },
            "target": {
                "checkpoint": self._new_uri,
                "provider": SPARK_PROVIDERS[self._decided.provider],
                "checkpoint_format": self._decided.checkpoint_format,
            },
            "stores": stores,
        }
        jvm: Any = spark._jvm  # noqa: SLF001
        session = spark._jsparkSession  # noqa: SLF001
        with jar_needed(spark):
            return jvm.io.statestore.convert.StateCopy(session, json.dumps(request))

    def _copy_state(self, copy: Any, progress: Progress) -> list[dict[str, Any]]:
        """Run the job and return what it says of every store."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(copy.run)
            try:
                while not wait([running], _POLL_S).done:
                    progress(copy.storesDone(), self._decided.num_stores)
            except BaseException:
                copy.cancel()
                raise
            reply = json.loads(running.result())
        progress(copy.storesDone(), self._decided.num_stores)
        if "error" in reply:
            raise StorageError(
                "cannot copy the state",
                checkpoint=self._decided.source,
                new=self._decided.target,
                reason=reply["error"],
                to_fix="mend what the reason names; the conversion can be run again",
            )
        found: list[dict[str, Any]] = reply["ok"]
        return found

    def _check(self, copied: list[dict[str, Any]]) -> None:
        for (operator, partition, name), store in zip(self._stores(), copied, strict=True):
            if store["missing"] or store["different"] or store["foreign"]:
                raise InternalError(
                    "the converted state is not what it was made from",
                    operator=operator,
                    partition=partition,
                    store=name,
                    **{key: store[key] for key in ("missing", "different", "foreign", "key")},
                    to_fix="report it; the checkpoint is as it was, and nothing starts from the "
                    "new one",
                )

    def _copy_metadata(self, version: CommittedVersion, target: NewDirectory) -> None:
        """Copy what no provider writes: sources, operator metadata and state schemas."""
        copy_spark_files(version, target)
        copy_operators(
            version.checkpoint,
            target,
            {one.info.id: one.info.id for one in self._decided.operators},
            self._decided.num_partitions,
            self._decided.batch,
        )

    def _write_logs(
        self, version: CommittedVersion, target: NewDirectory, ids: list[str | None]
    ) -> None:
        """Write the entries of the newest committed batch and of those beside it."""
        commit = version.commits[version.batch]
        if self._decided.checkpoint_format == 2:
            by_operator: dict[str, list[list[str]]] = {}
            for (operator, partition, _), made in zip(self._stores(), ids, strict=True):
                partitions = by_operator.setdefault(str(operator), [])
                if len(partitions) == partition:
                    partitions.append([])
                partitions[partition].append(str(made))
            commit = commit.with_checkpoint_ids(by_operator)
        else:
            commit = commit.in_format_1()
        conf = {PROVIDER_KEY: SPARK_PROVIDERS[self._decided.provider]}
        offsets = {batch: entry.with_conf(conf) for batch, entry in version.offsets.items()}
        write_logs(target, offsets, {version.batch: commit})


def _require_spark(decided: Convert[Any], pinned: Mapping[str, str], spark: SparkSession) -> None:
    """Refuse a Spark that lacks a pinned setting of state stores, or what one before 4.2 lacks.

    The RocksDB provider of such a one makes no empty store to fill, and no store tells its column
    families.

    Raises:
        IncompatibleError: The session's Spark lacks what the conversion needs.
    """
    version = spark.version
    for key, value in pinned.items():
        if key.startswith(PREFIX) and not spark.conf.isModifiable(key):
            raise IncompatibleError(
                "this Spark does not know a setting that the checkpoint pins",
                kind="wrong-spark",
                key=key,
                value=value,
                spark=version,
                to_fix="convert with the Spark that wrote the checkpoint last, or a later one",
            )
    if not version.startswith(("4.0.", "4.1.")):
        return
    message, to_fix = "", "convert with Spark 4.2 or later"
    if any(operator.info.has_families for operator in decided.operators):
        message = "this Spark's providers do not tell the column families of a store"
    elif decided.provider == "spark-rocksdb":
        message = "this Spark's RocksDB provider takes no state from elsewhere"
        to_fix += ", or to spark-hdfs"
    if message:
        raise IncompatibleError(
            message, kind="wrong-spark", provider=decided.provider, spark=version, to_fix=to_fix
        )


class _Sessions:
    """The session to use, started when it is first asked for."""

    def __init__(
        self,
        stack: ExitStack,
        given: SparkSession | None,
        options: StateStoreOptions,
        conf: Mapping[str, str],
    ) -> None:
        self._stack = stack
        self._session = given
        self._options = options
        self._conf = conf

    def check(self) -> None:
        """Check that this pyspark can start a session, where none is given.

        Raises:
            IncompatibleError: As `require_own_spark`.
        """
        with suppress(ModuleNotFoundError):  # a dry run needs no pyspark
            import pyspark

            if self._session is None:
                require_own_spark(pyspark.__version__)

    def get(self) -> SparkSession:
        """Return the session.

        Raises:
            IncompatibleError: As `check`.
            InvalidArgumentError: It is one of Spark Connect (kind spark-connect).
            NotFoundError: The jar is not there, or pyspark.
            StorageError: The session's JVM does not start.
        """
        # Imported here because it is an extra, and a dry run rarely needs it.
        try:
            from pyspark.errors import PySparkRuntimeError
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise NotFoundError(
                "a conversion needs Spark, which is not installed",
                kind="file-not-found",
                missing=error.name,
                python=sys.executable,
                to_fix="pip install 'statestore[spark]'",
            ) from error

        if self._session is None:
            # Also where another thread made it: it is the program's, and not to be stopped.
            with suppress(PySparkRuntimeError):
                self._session = SparkSession.active()
        require_driver(
            self._session,
            "convert",
            "run `statestore convert`, without SPARK_REMOTE, where the checkpoint can be opened",
        )
        if self._session is None:
            try:
                self._session = self._start(SparkSession.builder)
            except PySparkRuntimeError as error:
                if error.getCondition() != "JAVA_GATEWAY_EXITED":
                    raise
                raise StorageError(
                    "the JVM of the conversion's session does not start",
                    reason=str(error),
                    to_fix="remove the reason, which the JVM has printed; `statestore doctor` "
                    "checks Java, Spark and the jar",
                ) from error
            self._stack.callback(self._session.stop)
        return self._session

    def _start(self, builder: SparkSession.Builder) -> SparkSession:
        self.check()
        changed = {
            field.name: getattr(self._options, field.name)
            for field in dataclasses.fields(self._options)
            if getattr(self._options, field.name) != field.default
        }
        conf: dict[str, bool | float | int | str | None] = {
            "spark.app.name": "statestore convert",
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
            **spark_conf(changed),
            **self._conf,
        }
        conf["spark.jars"] = ",".join(filter(None, [self._conf.get("spark.jars"), str(find_jar())]))
        with warnings.catch_warnings():
            # A warning of PySpark about the installed pandas is not about a conversion.
            warnings.simplefilter("ignore", FutureWarning)
            return builder.config(map=conf).getOrCreate()
