"""State stores of Spark Structured Streaming, owned by Python.

`configure` puts the state of a PySpark program's queries into the state store; `run` supervises a
query with a restart strategy, and `listen` tells a program which versions are committed. `rescale`,
`take_savepoint`, `plan_restore` and `plan_branch` operate on checkpoints, `read` reads state as
typed columns and `open_store` opens a store, all without Spark. Everything else is for the shim,
the command line and tests. Names resolve on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore.core.version import __version__

if TYPE_CHECKING:
    from statestore.core.errors import QueryFailedError, StateStoreError
    from statestore.core.options import StateStoreOptions
    from statestore.core.restart_strategies import (
        ExponentialDelay,
        FailureRate,
        FixedDelay,
        NoRestart,
    )
    from statestore.core.restarts import Restart
    from statestore.operations.reading.read import read, read_batches
    from statestore.operations.rescale.rescale import plan_rescale, plan_undo, rescale, undo_rescale
    from statestore.operations.savepoint.branch import plan_branch
    from statestore.operations.savepoint.restore import plan_restore
    from statestore.operations.savepoint.savepoint import take_savepoint
    from statestore.spark.configuration import configure
    from statestore.spark.convert import convert
    from statestore.spark.driver_files import driver_files
    from statestore.spark.driver_memory import driver_memory
    from statestore.spark.failures import find_obstacle
    from statestore.spark.listener import CheckpointListener, listen
    from statestore.spark.savepoint import stop_with_savepoint
    from statestore.spark.supervision import run
    from statestore.store.batch import Batch
    from statestore.store.store import Store, open_store


__all__ = [
    "Batch",
    "CheckpointListener",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "QueryFailedError",
    "Restart",
    "StateStoreError",
    "StateStoreOptions",
    "Store",
    "__version__",
    "configure",
    "convert",
    "driver_files",
    "driver_memory",
    "find_obstacle",
    "listen",
    "open_store",
    "plan_branch",
    "plan_rescale",
    "plan_restore",
    "plan_undo",
    "read",
    "read_batches",
    "rescale",
    "run",
    "stop_with_savepoint",
    "take_savepoint",
    "undo_rescale",
]

_HOMES = {
    "Batch": "statestore.store.batch",
    "Store": "statestore.store.store",
    "open_store": "statestore.store.store",
    "plan_rescale": "statestore.operations.rescale.rescale",
    "plan_undo": "statestore.operations.rescale.rescale",
    "rescale": "statestore.operations.rescale.rescale",
    "undo_rescale": "statestore.operations.rescale.rescale",
    "read": "statestore.operations.reading.read",
    "read_batches": "statestore.operations.reading.read",
    "configure": "statestore.spark.configuration",
    "convert": "statestore.spark.convert",
    "driver_files": "statestore.spark.driver_files",
    "driver_memory": "statestore.spark.driver_memory",
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
    "plan_branch": "statestore.operations.savepoint.branch",
    "plan_restore": "statestore.operations.savepoint.restore",
    "stop_with_savepoint": "statestore.spark.savepoint",
    "take_savepoint": "statestore.operations.savepoint.savepoint",
    "StateStoreError": "statestore.core.errors",
    "StateStoreOptions": "statestore.core.options",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
