"""Finds the shim jar: by the environment variable, in the wheel, or in the checkout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from statestore.core.errors import NotFoundError
from statestore.core.version import SPARK_MINORS, __version__
from statestore.io.spark_home import HOME_VARIABLE, find_spark_minor

JAR_VARIABLE = "STATESTORE_JAR"
"""Environment variable that names the jar to use instead of the package's own."""
JAR_DIRECTORY = Path(__file__).resolve().parents[1] / "jars"
"""Where the wheel, or `./build.sh jar` in a checkout, put the jars: one for each Spark minor."""


def find_jar(
    environment: Mapping[str, str] = os.environ,
    directory: Path = JAR_DIRECTORY,
    *,
    spark: str | None = None,
) -> Path:
    """Return the absolute path of the jar that goes into `spark.jars`.

    Args:
        environment: Looked up for STATESTORE_JAR, which wins if no Spark is asked for, and for
            SPARK_HOME.
        directory: The place of the package's own jars.
        spark: Its Spark minor, such as 4.1; None for the Spark that programs of this Python start.

    Raises:
        NotFoundError: There is no jar of this version for that Spark, or no Spark.
    """
    named = environment.get(JAR_VARIABLE) if spark is None else None
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
    minor = spark or find_spark_minor(environment)
    if minor is None:
        raise NotFoundError(
            "no Spark is installed to find the shim jar for",
            kind="file-not-found",
            spark_home=environment.get(HOME_VARIABLE),
            to_fix="pip install 'statestore[spark]', or name the Spark of the cluster: statestore "
            f"jar --spark {SPARK_MINORS[-1]}",
        )
    jar = directory / f"statestore-shim_2.13-spark{minor}-{__version__}.jar"
    if not jar.is_file():
        build = "./build.sh jars" if spark else "./build.sh jar"
        raise NotFoundError(
            "the shim jar is not there",
            kind="file-not-found",
            spark=minor,
            directory=str(directory),
            version=__version__,
            to_fix=f"install the wheel of statestore, or run {build} in a checkout"
            if minor in SPARK_MINORS
            else f"use Spark {SPARK_MINORS[0]} to {SPARK_MINORS[-1]}",
        )
    return jar
