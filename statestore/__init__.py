"""State stores of Spark Structured Streaming, owned by Python.

`configure` puts the state of a PySpark program's queries into the state store; `run` supervises a
query with a restart strategy, and `listen` tells a program which versions are committed.
`try_job` tries new code on real state. `Checkpoint` and `Savepoint` are what is seen and done of a
query's state: read, verified, rescaled, copied, without Spark. Everything else is for the shim, the
command line and tests. Names resolve on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore.core.version import __version__

if TYPE_CHECKING:
    from statestore.api.checkpoint import Checkpoint, Savepoint
    from statestore.api.rows import Rows
    from statestore.api.scaling import Between
    from statestore.api.schedule import Every
    from statestore.api.sql_rows import SqlRows
    from statestore.api.stopping import stop_with_savepoint
    from statestore.api.trial import Trial
    from statestore.api.try_job import try_job
    from statestore.api.writing import write_savepoint
    from statestore.core.errors import QueryFailedError, StateStoreError
    from statestore.core.restart_strategies import (
        ExponentialDelay,
        FailureRate,
        FixedDelay,
        NoRestart,
    )
    from statestore.core.restarts import Restart
    from statestore.operations.writing.edited import Edited
    from statestore.spark.capture import CapturedQuery, capture_query
    from statestore.spark.configuration import configure
    from statestore.spark.failures import find_obstacle
    from statestore.spark.listener import CheckpointListener, listen
    from statestore.spark.supervision import run
    from statestore.store.batch import Batch
    from statestore.store.store import Store


__all__ = [
    "Batch",
    "Between",
    "CapturedQuery",
    "Checkpoint",
    "CheckpointListener",
    "Edited",
    "Every",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "QueryFailedError",
    "Restart",
    "Rows",
    "Savepoint",
    "SqlRows",
    "StateStoreError",
    "Store",
    "Trial",
    "__version__",
    "capture_query",
    "configure",
    "find_obstacle",
    "listen",
    "run",
    "stop_with_savepoint",
    "try_job",
    "write_savepoint",
]

_HOMES = {
    "Batch": "statestore.store.batch",
    "Between": "statestore.api.scaling",
    "CapturedQuery": "statestore.spark.capture",
    "capture_query": "statestore.spark.capture",
    "Checkpoint": "statestore.api.checkpoint",
    "Edited": "statestore.operations.writing.edited",
    "Every": "statestore.api.schedule",
    "Rows": "statestore.api.rows",
    "Savepoint": "statestore.api.checkpoint",
    "SqlRows": "statestore.api.sql_rows",
    "Store": "statestore.store.store",
    "configure": "statestore.spark.configuration",
    "run": "statestore.spark.supervision",
    "find_obstacle": "statestore.spark.failures",
    "listen": "statestore.spark.listener",
    "CheckpointListener": "statestore.spark.listener",
    "ExponentialDelay": "statestore.core.restart_strategies",
    "FailureRate": "statestore.core.restart_strategies",
    "FixedDelay": "statestore.core.restart_strategies",
    "NoRestart": "statestore.core.restart_strategies",
    "Restart": "statestore.core.restarts",
    "QueryFailedError": "statestore.core.errors",
    "stop_with_savepoint": "statestore.api.stopping",
    "Trial": "statestore.api.trial",
    "try_job": "statestore.api.try_job",
    "write_savepoint": "statestore.api.writing",
    "StateStoreError": "statestore.core.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
