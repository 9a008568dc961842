"""Finds the shim jar: of the environment variable, of the wheel, or of the checkout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from statestore.core.errors import NotFoundError
from statestore.core.version import __version__

JAR_VARIABLE = "STATESTORE_JAR"
"""Environment variable that names the jar to use instead of the package's own."""
JAR_DIRECTORY = Path(__file__).resolve().parents[1] / "jars"
"""Where the wheel, or `./build.sh jar` in a checkout, put the jar."""


def find_jar(environment: Mapping[str, str] = os.environ, directory: Path = JAR_DIRECTORY) -> Path:
    """Return the absolute path of the jar that goes into `spark.jars`.

    Args:
        environment: Looked up for STATESTORE_JAR, which wins where it is set.
        directory: Where the package's own jar is looked for.

    Raises:
        NotFoundError: There is no jar of this version; install the wheel or build the jar.
    """
    named = environment.get(JAR_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise NotFoundError(
                "the shim jar is not there",
                kind="file-not-found",
                path=named,
                named_by=JAR_VARIABLE,
                to_fix=f"correct or unset {JAR_VARIABLE}",
            )
        return Path(named).resolve()
    jars = sorted(directory.glob(f"statestore-shim_*-{__version__}.jar"))
    if not jars:
        raise NotFoundError(
            "the shim jar is not there",
            kind="file-not-found",
            directory=str(directory),
            version=__version__,
            to_fix="install the wheel of statestore, or run ./build.sh jar in a checkout",
        )
    return jars[-1]
