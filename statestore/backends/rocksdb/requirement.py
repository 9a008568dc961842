"""The package rocksdict, which only the rocksdb backend needs."""

from __future__ import annotations

import sys
import threading

from statestore.core.errors import InvalidArgumentError

_LOCK = threading.Lock()


def require_rocksdict() -> None:
    """Import rocksdict, which the other modules of this backend import.

    Call it before them: a thread that imports a module while its import fails in another one gets
    half a module, and an error without the cause.

    Raises:
        InvalidArgumentError: It is not installed, or cannot be loaded; the same error every time.
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
