"""What the rocksdb backend needs beside what every backend does: the package rocksdict."""

from __future__ import annotations

import sys
import threading

from statestore.core.errors import InvalidArgumentError

_LOCK = threading.Lock()


def require_rocksdict() -> None:
    """Import rocksdict, which the other modules of this backend import.

    To be called before them: a module whose import fails is there half for another thread that
    imports it at that moment, whose error then tells nothing of the cause.

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
