"""How a program reaches a directory: storage options, and a session where it has one."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.options import PREFIX, StateStoreOptions, spark_conf
from statestore.io.hadoop_process import HADOOP_PREFIXES, shared_process, use
from statestore.io.local import temporary_directory
from statestore.io.place import Place
from statestore.io.storage import absolute_uri, is_hadoop, require_unencoded
from statestore.operations.checkpoint import find_checkpoints, open_checkpoint
from statestore.spark.checkpoint_memory import checkpoint_memory
from statestore.spark.connect import require_driver
from statestore.spark.driver_files import DriverFiles
from statestore.spark.driver_session import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from statestore.io.hadoop import HadoopFiles
    from statestore.operations.checkpoint import OpenCheckpoint

_OF_ONE_ORIGIN = [
    {f"{PREFIX}s3.{name}" for name in names}
    for names in (
        ("endpoint", "region", "pathStyle", "accessKey", "secretKey", "sessionToken"),
        ("sse", "sseKmsKey"),
    )
]
"""Options that go together: where and who, and how what is written is encrypted."""
_MOST_LISTED = 10_000
"""Directories in which checkpoints are looked for."""


def _of_s3(options: Mapping[str, str], but_for: Mapping[str, str]) -> dict[str, str]:
    """Return options of a session for S3, without those that are given otherwise.

    Where one of these says which server, or who, all that say so are left out: credentials of two
    origins are nobody's. So with the two of encryption.
    """
    left_out = {*but_for}.union(*(group for group in _OF_ONE_ORIGIN if group & but_for.keys()))
    return {
        key: value
        for key, value in options.items()
        if key.startswith(f"{PREFIX}s3.") and key not in left_out
    }


class Reached:
    """An object that stands for a directory, with the options that reach it."""

    _reach: Reach


class Reach:
    """A place, and what opens it. Nothing is open between two calls.

    Args:
        directory: A path, also relative or below `~`, or a URI.
        storage_options: Options of the query; keys of Spark's own are for Hadoop's file systems.
        spark: The session whose driver this is. Its options `s3.*` count where none is given.

    Attributes:
        place: Where it is.
        given: The options, for another process.
        hadoop_conf: Spark configuration of the JVM that opens Hadoop's file systems.
        spark: As given.

    Raises:
        InvalidArgumentError: The directory is empty; an option does not exist, or its value is out
            of range; there are both a session and options that a session has already; or the
            session is one of Spark Connect (kind spark-connect).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None,
        spark: SparkSession | None,
    ) -> None:
        if spark is not None:
            require_driver(
                spark,
                "Checkpoint",
                "leave the session out: a JVM of this process opens Hadoop's file systems, and "
                "spark.read.format('statestore') reads state of the heap backend",
            )
        given = storage_options or {}
        self.hadoop_conf = {
            key: str(value) for key, value in given.items() if key.startswith(HADOOP_PREFIXES)
        }
        of_query = {key: value for key, value in given.items() if key not in self.hadoop_conf}
        if spark is not None and self.hadoop_conf:
            raise InvalidArgumentError(
                "a session has its own configuration of Hadoop's file systems",
                keys=", ".join(self.hadoop_conf),
                to_fix="set these on the session, or leave the session out",
            )
        if spark is not None:
            of_query = {**_of_s3(options_of(spark), but_for=spark_conf(of_query)), **of_query}
        options = StateStoreOptions.from_options(of_query)
        self.given = {key: str(value) for key, value in {**given, **of_query}.items()}
        self.place = Place(absolute_uri(os.fspath(directory)), options)
        self.spark = spark

    @classmethod
    def of(cls, place: Place) -> Reach:
        """Return the reach of a place; a seam for tests, which choose storage, IDs and time."""
        made = cls(place.uri, None, None)
        made.place = place
        return made

    def beside(self, directory: str | os.PathLike[str] | Reached) -> Reach:
        """Return the reach of another directory: as it says, or else by the same means."""
        if isinstance(directory, Reached):
            return directory._reach
        made = Reach.of(self.place.beside(absolute_uri(os.fspath(directory))))
        made.given, made.hadoop_conf, made.spark = self.given, self.hadoop_conf, self.spark
        return made

    def with_new_checkpoint(
        self, directory: str | os.PathLike[str] | Reached
    ) -> tuple[Reach, Reach]:
        """Return the same as `with_new`, for a directory in which a query is to start.

        Raises:
            InvalidArgumentError: As there; or a query would not find it by its URI.
        """
        if isinstance(directory, Reached):
            require_unencoded(directory._reach.place.uri)
        else:
            require_unencoded(os.fspath(directory))
        return self.with_new(directory)

    def with_new(self, directory: str | os.PathLike[str] | Reached) -> tuple[Reach, Reach]:
        """Return this reach for a call that reaches another directory too, and the reach of that.

        One JVM opens Hadoop's file systems for a call, by what either of the two was given.

        Raises:
            InvalidArgumentError: The two contradict each other.
        """
        other = self.beside(directory)
        if not other._is_on_hadoop():
            return self, other
        given, more = (self.hadoop_conf if self._is_on_hadoop() else {}), other.hadoop_conf
        keys = [key for key in given.keys() & more.keys() if given[key] != more[key]]
        if self._is_on_hadoop() and (self.spark is None) != (other.spark is None):
            keys = [*given, *more]  # a session has them all
        elif self.spark and other.spark and self.spark._jsparkSession != other.spark._jsparkSession:
            keys = ["spark"]
        if keys:
            raise InvalidArgumentError(
                "two directories are reached by options of Hadoop's that contradict each other",
                directory=self.place.uri,
                other=other.place.uri,
                keys=", ".join(sorted(keys)),
                to_fix="give both the same session, with the options set on it, or the same values",
            )
        made = Reach.of(self.place)
        made.given = self.given
        made.hadoop_conf, made.spark = {**given, **more}, self.spark or other.spark
        return made, other

    def _is_on_hadoop(self) -> bool:
        return any(map(is_hadoop, (self.place.uri, self.place.options.checkpoint_storage)))

    @contextmanager
    def opened(self) -> Iterator[Place]:
        """Yield the place with checkpoint memory, which is let go of at the end of the block.

        It is asked for when something needs it.
        """
        with ExitStack() as stack:
            place = self.place
            if (spark := self.spark) is not None:
                memory = cache(lambda: stack.enter_context(checkpoint_memory(spark)))
                place = replace(place, memory=memory)
            yield place

    def using(self) -> AbstractContextManager[None]:
        """Open Hadoop's file systems by the options, or by the session, in calls within a block."""
        files: HadoopFiles | None = None
        if self.hadoop_conf:
            files = shared_process(self.hadoop_conf)
        elif (spark := self.spark) is not None:
            files = DriverFiles(lambda: spark)
        return nullcontext() if files is None else use(files)

    def find(self) -> list[str]:
        """Return the URIs of the checkpoints at or below the place, at least one, sorted.

        Raises:
            NotFoundError: There is none (kind checkpoint-not-found).
            InvalidArgumentError, StorageError: As `find_checkpoints`.
        """
        with self.using(), self.opened() as place, temporary_directory() as fetched:
            found = find_checkpoints(*place.open(fetched), _MOST_LISTED)
        uri = self.place.uri.rstrip("/")
        if not found:
            raise NotFoundError(
                "there is no checkpoint of a streaming query at or below a directory",
                kind="checkpoint-not-found",
                directory=uri,
                to_fix="name the directory that the query has as its checkpointLocation, or one "
                "above it",
            )
        return [f"{uri}/{name}".rstrip("/") for name in found]

    @contextmanager
    def checkpoint(self) -> Iterator[OpenCheckpoint]:
        """Open the checkpoint or savepoint at the place, for a block of one call."""
        with self.using(), self.opened() as place, open_checkpoint(place) as checkpoint:
            yield checkpoint

    def enter(self, stack: ExitStack) -> OpenCheckpoint:
        """Open it for a generator, whose caller's thread goes on while it is open."""
        place = stack.enter_context(self.opened())
        with self.using():
            return stack.enter_context(open_checkpoint(place))
