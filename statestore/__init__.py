"""State stores of Spark Structured Streaming, owned by Python.

`configure` puts the state of a PySpark program's queries into the state store; `open_store` opens a
store of a checkpoint without Spark; `take_savepoint`, `stop_with_savepoint`, `plan_restore` and
`plan_branch` copy the state of a query. Everything else is for the shim, the command line and
tests. Names resolve on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore.core.version import __version__

if TYPE_CHECKING:
    from statestore.core.errors import StateStoreError
    from statestore.core.options import StateStoreOptions
    from statestore.operations.branch import plan_branch
    from statestore.operations.restore import plan_restore
    from statestore.operations.savepoint import take_savepoint
    from statestore.spark.configuration import configure
    from statestore.spark.savepoint import stop_with_savepoint
    from statestore.store.batch import Batch
    from statestore.store.store import Store, open_store


__all__ = [
    "Batch",
    "StateStoreError",
    "StateStoreOptions",
    "Store",
    "__version__",
    "configure",
    "open_store",
    "plan_branch",
    "plan_restore",
    "stop_with_savepoint",
    "take_savepoint",
]

_HOMES = {
    "Batch": "statestore.store.batch",
    "Store": "statestore.store.store",
    "open_store": "statestore.store.store",
    "configure": "statestore.spark.configuration",
    "plan_branch": "statestore.operations.branch",
    "plan_restore": "statestore.operations.restore",
    "stop_with_savepoint": "statestore.spark.savepoint",
    "take_savepoint": "statestore.operations.savepoint",
    "StateStoreError": "statestore.core.errors",
    "StateStoreOptions": "statestore.core.options",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
