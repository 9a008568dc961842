"""The package rocksdict, which only the rocksdb backend needs."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
from functools import cache

from statestore.core.errors import InvalidArgumentError
from statestore.core.version import OLDEST, is_too_old

_LOCK = threading.Lock()


def require_rocksdict() -> None:
    """Import rocksdict, which the other modules of this backend import.

    Call it before them: a thread that imports a module while its import fails in another one gets
    half a module, and an error without the cause.

    Raises:
        InvalidArgumentError: It is not installed, is too old, or cannot be loaded; the same error
            every time.
    """
    with _LOCK:
        try:
            import rocksdict  # noqa: F401 (for those that import it next)
        except ImportError as error:
            raise InvalidArgumentError(
                "the rocksdb backend needs a package that is not installed",
                missing="rocksdict",
                python=sys.executable,
                reason=str(error),
                to_fix="pip install 'statestore[rocksdb]' for that Python, on every executor",
            ) from error
        found = _installed()
    if is_too_old("rocksdict", found):
        raise InvalidArgumentError(
            "the rocksdb backend needs a later rocksdict",
            found=found,
            python=sys.executable,
            to_fix=f"pip install 'rocksdict>={OLDEST['rocksdict']}' for that Python, on every "
            "executor",
        )


@cache
def _installed() -> str:
    """Return the version, which the module does not tell; nothing where it was not installed."""
    try:
        return importlib.metadata.version("rocksdict")
    except importlib.metadata.PackageNotFoundError:
        return ""
