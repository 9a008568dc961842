"""Tells Spark Connect apart: its clients have no driver's JVM, and often no Spark at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_REMOTE = "SPARK_REMOTE"


def is_served_elsewhere(options: Mapping[str, object]) -> bool:
    """Return whether a builder's session is one with a Spark Connect server that runs already.

    Args:
        options: What the builder holds; without a URL in it SPARK_REMOTE counts.
    """
    url = options.get("spark.remote", os.environ.get(_REMOTE, ""))
    return str(url).startswith("sc://")


def require_driver(made: SparkSession | StreamingQuery | None, helper: str, to_fix: str) -> None:
    """Refuse a session or a query of Spark Connect.

    Args:
        made: A session, or a query that was started; None for a session that this process would
            start.
        helper: What was called with it.
        to_fix: What to do instead.

    Raises:
        InvalidArgumentError: It is one of Spark Connect (kind spark-connect).
    """
    if made is None:
        # Imported here because it is an extra.
        from pyspark.sql import is_remote

        has_driver = not (is_remote() or _REMOTE in os.environ)
    else:  # those of the driver's own process hold the JVM's object
        has_driver = hasattr(made, "_jsparkSession") or hasattr(made, "_jsq")
    if not has_driver:
        raise InvalidArgumentError(
            "a client of Spark Connect has not got the driver's JVM",
            kind="spark-connect",
            helper=helper,
            to_fix=to_fix,
        )
