"""Finds the shim jar: by the environment variable, in the wheel, or in the checkout."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from statestore.core.errors import IncompatibleError, NotFoundError
from statestore.core.version import SPARK_MINORS, __version__
from statestore.io.link_check import find_missing
from statestore.io.spark_home import HOME_VARIABLE, find_spark_jars, find_spark_minor

logger = logging.getLogger(__name__)

JAR_VARIABLE = "STATESTORE_JAR"
"""Environment variable that names the jar to use instead of the package's own."""
JAR_DIRECTORY = Path(__file__).resolve().parents[1] / "jars"
"""Where the wheel, or `./build.sh jar` in a checkout, put the jars: one for each Spark minor."""


def find_jar(*, spark: str | None = None) -> Path:
    """Return the absolute path of the jar that goes into `spark.jars`.

    If no Spark is asked for, the one that STATESTORE_JAR names wins. A Spark without a jar of its
    own gets the nearest one, with a warning, where all that the jar names is there.

    Args:
        spark: Its Spark minor, such as 4.1; None for the Spark that programs of this Python start.

    Raises:
        NotFoundError: There is no jar of this version for that Spark, or no Spark.
        IncompatibleError: The Spark has no jar of its own, and the nearest does not fit (kind
            wrong-spark).
    """
    named = os.environ.get(JAR_VARIABLE) if spark is None else None
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
    minor = spark or find_spark_minor()
    if minor is None:
        home = os.environ.get(HOME_VARIABLE)
        raise NotFoundError(
            "no Spark is installed to find the shim jar for",
            kind="file-not-found",
            spark_home=home,
            to_fix=(
                f"correct or unset {HOME_VARIABLE}, which has no Spark in `jars`"
                if home
                else "pip install 'statestore[spark]'"
            )
            + f", or name the Spark of the cluster: statestore jar --spark {SPARK_MINORS[-1]}",
        )
    is_listed = minor in SPARK_MINORS
    jar_minor = minor if is_listed else _nearest(minor)
    jar = JAR_DIRECTORY / f"statestore-shim_2.13-spark{jar_minor}-{__version__}.jar"
    if not jar.is_file():
        build = "./build.sh jars" if spark else "./build.sh jar"
        raise NotFoundError(
            "the shim jar is not there",
            kind="file-not-found",
            spark=minor,
            directory=str(JAR_DIRECTORY),
            version=__version__,
            to_fix=f"install the wheel of statestore, or run {build} in a checkout"
            if is_listed
            else f"use Spark {SPARK_MINORS[0]} to {SPARK_MINORS[-1]}",
        )
    if not is_listed:
        require_fit(jar, jar_minor)
        logger.warning(
            "no jar is made for this Spark, and the nearest has all that it needs: spark=%s jar=%s",
            minor,
            jar_minor,
        )
    return jar


def require_fit(jar: Path, jar_minor: str) -> list[Path]:
    """Return the jars of the Spark that programs start, which have all that a jar names.

    Args:
        jar: A jar of the shim.
        jar_minor: The Spark that it is made for, for the error text.

    Raises:
        NotFoundError: There are no jars of Spark.
        IncompatibleError: Something is missing (kind wrong-spark); names it.
    """
    jars = find_spark_jars()
    if not jars:
        raise NotFoundError(
            "no jars of Spark are there to compare the jar with",
            spark_home=os.environ.get(HOME_VARIABLE),
            to_fix=f"name by {HOME_VARIABLE} the directory that has `jars` of Spark in it",
        )
    missing = sorted(find_missing(jar, jars))
    if missing:
        raise IncompatibleError(
            "the jar does not fit this Spark, which lacks what its code names",
            kind="wrong-spark",
            spark=find_spark_minor(),
            jar=jar_minor,
            missing=len(missing),
            first="; ".join(thing.partition("(")[0] for thing in missing[:3]),
            to_fix=f"use Apache Spark {SPARK_MINORS[0]} to {SPARK_MINORS[-1]}, or a release of "
            "statestore that has a jar for this one",
        )
    return jars


def _nearest(minor: str) -> str:
    """Return the Spark with a jar that a Spark without one is nearest to."""
    number = _number(minor)
    return min(SPARK_MINORS, key=lambda of: abs(_number(of) - number))


def _number(minor: str) -> int:
    major, number = map(int, minor.split("."))
    return 1000 * major + number
