"""Version of the package; shim and engine compare theirs before the first call."""

__version__ = "0.1.0"
WRITER = f"statestore {__version__}"
"""The writer that files of the package name."""
SPARK_MINORS = ("4.0", "4.1", "4.2", "4.3")
"""Minors of Spark that there is a jar for, oldest first."""
MIN_PYTHON = (3, 11)
"""Oldest Python that the package runs in."""
