"""Version of the package; shim and engine compare theirs before the first call."""

__version__ = "0.1.0"
