"""Entry point of `statestore`; says what to install where its packages are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from io import TextIOWrapper

REQUIRED = ("click", "rich")
"""Packages of the extra `cli`."""


def main() -> None:
    """Run the command line; exit status 0 ok, 1 error, 2 usage."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"statestore: packages of the command line are missing: missing={','.join(missing)}. "
            "To fix: pip install statestore[cli]"
        )
    try:
        from statestore.cli.commands import cli
    except KeyboardInterrupt:
        sys.exit("\nAborted!")  # as click says it later on

    # State has letters that a terminal does not, and names of files need not be text.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    cli(prog_name="statestore")


if __name__ == "__main__":
    main()
