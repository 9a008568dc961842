"""Checkpoint memory, where checkpoints of the heap backend are, for programs of the driver."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from statestore.core.errors import NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.io.checkpoint_memory import TO_FIX_LOSS, CheckpointMemoryFileIO
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress
from statestore.io.fetch_cache import FetchCache
from statestore.io.local import temporary_directory
from statestore.spark.connect import require_driver
from statestore.spark.driver_session import jar_needed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from statestore.io.file_io import FileIO


@contextmanager
def checkpoint_memory(spark: SparkSession) -> Iterator[FileIO]:
    """Open the memory that holds the heap backend's checkpoints, while its application runs.

    Args:
        spark: A session of the application whose queries made the checkpoints, in its driver.

    Yields:
        The memory, to be passed as `memory` to what works on checkpoints; it is of use until the
        application ends.

    Raises:
        InvalidArgumentError: The session is one of Spark Connect (kind spark-connect).
        NotFoundError: The session has not got the jar; or its application has ended, and its memory
            with it (kind driver-lost).
        Py4JJavaError: The application has no memory for lack of a Python.
    """
    require_driver(
        spark,
        "checkpoint_memory",
        "read state with spark.read.format('statestore'), or call it in the driver's own Python "
        "process",
    )
    context: Any = spark.sparkContext
    if context._jsc is None or context._jsc.sc().isStopped():  # noqa: SLF001
        raise NotFoundError(
            "the application of the session has ended, and with it what its driver's memory held",
            kind="driver-lost",
            application=context.appName,
            to_fix="give a session of the application whose query made the checkpoint; where that "
            f"has ended, {TO_FIX_LOSS}",
        )
    package = StateStoreOptions().engine_package
    jvm: Any = spark._jvm  # noqa: SLF001
    with jar_needed(spark):
        # A Scala object of the shim, which runs in the driver's JVM.
        found = jvm.io.statestore.engine.CheckpointMemory.address(package)
    fields = json.loads(found.toString())
    address = CheckpointMemoryAddress(fields["host"], fields["port"], fields["token"])
    with temporary_directory() as cache_directory:
        cache = FetchCache(cache_directory, StateStoreOptions().fetch_cache_bytes)
        yield CheckpointMemoryFileIO(address, cache)
