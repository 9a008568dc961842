"""What an import brings along: a new process must not pay for what it does not use."""

from __future__ import annotations

import subprocess
import sys


def test_package_is_imported_without_pyspark() -> None:
    """Catches an import that every engine and every command would pay for."""
    command = "import sys, statestore; statestore.configure; print('pyspark' in sys.modules)"

    found = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "False"


def test_options_import_nothing_heavy() -> None:
    """Catches an import that would slow down every start of the command line."""
    command = (
        "import sys, statestore.core.options;"
        "print(sorted({'pyarrow', 'numpy', 'py4j'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "[]"
