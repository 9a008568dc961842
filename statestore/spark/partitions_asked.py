"""Rescales a query that asks for another number of state partitions, before it starts."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import cache
from typing import Any

from statestore.core.options import StateStoreOptions
from statestore.io.hadoop_process import use
from statestore.io.local import resolve_local_path
from statestore.io.place import Place
from statestore.io.storage import scheme_of
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.rescale.rescale import rescale
from statestore.spark.checkpoint_memory import checkpoint_memory
from statestore.spark.driver_files import DriverFiles
from statestore.spark.driver_session import options_of
from statestore.spark.failures import chain_of

_log = logging.getLogger(__name__)
_REFUSED = "io.statestore.PartitionsAskedException"
"""The exception by which the shim refuses to start the query."""


def rescale_as_asked(error: BaseException) -> bool:
    """Rescale the query whose start was refused since it asks for another number.

    Args:
        error: What the start raised.

    Returns:
        Whether it was that; then its checkpoint has the number that it asks for.

    Raises:
        As `Checkpoint.rescale`.
    """
    refused = _refusal(error)
    if refused is None:
        return False
    num_partitions, directory = int(refused.asked()), str(refused.checkpoint())
    from pyspark.sql import SparkSession

    context = SparkSession.active().sparkContext
    session = SparkSession(context, refused.session())  # with the options of the query
    with ExitStack() as stack:
        stack.enter_context(use(DriverFiles(lambda: session)))
        memory = cache(lambda: stack.enter_context(checkpoint_memory(session)))
        if scheme_of(directory) == "file":  # Hadoop's URI, which is not encoded
            directory = resolve_local_path(directory, is_encoded=False)
        options = StateStoreOptions.from_spark_conf(options_of(session))
        place = Place(directory, options, memory=memory)
        checkpoint = stack.enter_context(open_checkpoint(place))
        done = rescale(checkpoint, num_partitions, reason="the configuration asks for it")
    _log.warning("the query was rescaled before its start: %r", done)
    return True


def _refusal(error: BaseException) -> Any:
    """Return the shim's exception in the JVM, None where it is another failure."""
    for link in chain_of(error):
        origin: Any = getattr(link, "_origin", None)
        if origin is not None and origin.getClass().getName() == _REFUSED:
            return origin
    return None
