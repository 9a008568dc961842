"""The exception that a `foreachBatch` raised, which an error of Spark's holds as text only."""

from __future__ import annotations

from pyspark.sql.utils import ForeachBatchFunction
from pyspark.util import is_remote_only


def find_sink_error(text: str) -> Exception | None:
    """Return the error of the `foreachBatch` of a failed query, None where no sink raised one.

    PySpark keeps it on the function that the JVM calls back, and py4j keeps that function.

    Args:
        text: All of the query's error, in which Spark prints the exception.
    """
    if is_remote_only():  # a client of Spark Connect, whose sinks run elsewhere
        return None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 (there is no public way)
    gateway = None if context is None else context._gateway  # noqa: SLF001
    if gateway is None:
        return None
    proxies = list(gateway.gateway_property.pool.dict.values())
    for proxy in reversed(proxies):
        error = getattr(proxy, "error", None)
        if not isinstance(proxy, ForeachBatchFunction) or not isinstance(error, Exception):
            continue
        if f"{type(error).__name__}: {error}".rstrip(": ") in text:
            return error
    return None
