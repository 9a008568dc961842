"""State stores of Spark Structured Streaming, owned by Python.

`configure` puts the state of a PySpark program's queries into the state store; `open_store` opens a
store of a checkpoint without Spark, and `read` reads state as typed columns. Everything else is for
the shim, the command line and tests. Names resolve on first use, so that importing the package
costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore.core.version import __version__

if TYPE_CHECKING:
    from statestore.core.errors import StateStoreError
    from statestore.core.options import StateStoreOptions
    from statestore.operations.reading import read, read_batches
    from statestore.operations.rescale import plan_rescale, plan_undo, rescale, undo_rescale
    from statestore.spark.configuration import configure
    from statestore.spark.driver_memory import driver_memory
    from statestore.store.batch import Batch
    from statestore.store.store import Store, open_store


__all__ = [
    "Batch",
    "StateStoreError",
    "StateStoreOptions",
    "Store",
    "__version__",
    "configure",
    "driver_memory",
    "open_store",
    "plan_rescale",
    "plan_undo",
    "read",
    "read_batches",
    "rescale",
    "undo_rescale",
]

_HOMES = {
    "Batch": "statestore.store.batch",
    "Store": "statestore.store.store",
    "open_store": "statestore.store.store",
    "plan_rescale": "statestore.operations.rescale",
    "plan_undo": "statestore.operations.rescale",
    "rescale": "statestore.operations.rescale",
    "undo_rescale": "statestore.operations.rescale",
    "read": "statestore.operations.reading",
    "read_batches": "statestore.operations.reading",
    "configure": "statestore.spark.configuration",
    "driver_memory": "statestore.spark.driver_memory",
    "StateStoreError": "statestore.core.errors",
    "StateStoreOptions": "statestore.core.options",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
