"""The Spark that programs of this Python start: that of SPARK_HOME, or else of its pyspark."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from statestore.core.errors import IncompatibleError

HOME_VARIABLE = "SPARK_HOME"
_DEFAULT = re.compile(r"([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*)")
_CORE = re.compile(r"spark-core_2\.\d+-(\d+\.\d+\.\d+)\b.*\.jar")


def find_spark_home() -> Path | None:
    """Return the directory with Spark's `bin` and `jars`; None where there is no Spark.

    SPARK_HOME need not lead anywhere.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    found = find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else None


def read_spark_defaults() -> tuple[Path, dict[str, str]]:
    """Return the `spark-defaults.conf` that sessions begin with, and its values.

    Returns:
        Its path, which need not exist, and values by key; none if it cannot be read.
    """
    home = find_spark_home() or Path()
    path = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return path, {}
    found = (_DEFAULT.fullmatch(line.strip()) for line in lines)
    return path, {setting[1]: setting[2] for setting in found if setting is not None}


def find_spark_minor() -> str | None:
    """Return the minor of that Spark, such as 4.1, by its jars; None where there is none."""
    release = find_spark_release()
    return release and release.rpartition(".")[0]


def find_spark_release() -> str | None:
    """Return the release of that Spark, such as 4.1.4, by its jars; None where there is none."""
    names = (path.name for path in find_spark_jars())
    return next((found[1] for found in map(_CORE.fullmatch, names) if found), None)


def require_own_spark(pyspark: str) -> None:
    """Check that a pyspark is of the Spark that its programs start: of another one they hang.

    Args:
        pyspark: Its version, such as 4.3.0.

    Raises:
        IncompatibleError: It is of another minor (kind wrong-spark).
    """
    spark = find_spark_minor()
    if spark is not None and pyspark.split(".")[:2] != spark.split("."):
        raise IncompatibleError(
            "pyspark is of another Spark than the one that its programs start",
            kind="wrong-spark",
            pyspark=pyspark,
            spark=spark,
            spark_home=os.environ.get(HOME_VARIABLE),
            to_fix=f"pip install 'pyspark=={spark}.*', or unset {HOME_VARIABLE}; or start the "
            "program by spark-submit, which takes the pyspark of its Spark",
        )


def find_spark_jars() -> list[Path]:
    """Return all jars of that Spark, sorted; none where there is no Spark."""
    home = find_spark_home()
    return sorted(Path(home, "jars").glob("*.jar")) if home else []
