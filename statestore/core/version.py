"""Versions: of the package, which shim and engine compare at first, and of what it needs."""

import re
import sys
from typing import TypeVar

from statestore.core.errors import ProtocolError

T = TypeVar("T")

__version__ = "0.1.0"
WRITER = f"statestore {__version__}"
"""The writer that files of the package name."""
SPARK_MINORS = ("4.0", "4.1", "4.2", "4.3")
"""Minors of Spark that there is a jar for, oldest first."""
MIN_PYTHON = (3, 11)
"""Oldest Python that the package runs in."""
OLDEST = {
    "boto3": "1.36",
    "google_crc32c": "1.6",
    "numpy": "2.0",
    "pyarrow": "18.0",
    "rocksdict": "0.3.29",
}
"""Oldest version of a module that does, as in pyproject.toml."""


def is_too_old(module: str, found: str) -> bool:
    """Return whether a version of a module is older than the oldest; not one without a number."""
    versions = [re.findall("[0-9]+", text)[:3] for text in (found, OLDEST.get(module, ""))]
    own, oldest = ([*map(int, numbers)] for numbers in versions)
    return bool(own) and own < oldest


def require_release(release: str) -> None:
    """Check that another process, which hands over pickled objects, has this one's release.

    Raises:
        ProtocolError: It has another one (kind version-apart).
    """
    if release != __version__:
        raise ProtocolError(
            "processes that work together have different releases of statestore",
            kind="version-apart",
            release_there=release,
            release_here=__version__,
            python=sys.executable,
            to_fix="install the same wheel where the program runs and in the Python of every "
            "executor, and start the program again",
        )


def unpickled(release: str, kind: type[T]) -> T:
    """Return an instance that has no attributes yet, for `__reduce__` of what another process gets.

    Pickle asks for it before it reads the attributes, which another release may not know.

    Args:
        release: Of the process that pickles.
        kind: Its class.

    Raises:
        ProtocolError: As `require_release`.
    """
    require_release(release)
    return kind.__new__(kind)
