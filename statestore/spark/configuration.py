"""Selects a state backend for a PySpark program, before its session is made."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from statestore.backends.rocksdb.requirement import require_rocksdict
from statestore.checkpoint.query_log import JOIN_FORMAT_KEY
from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.options import PREFIX, spark_conf
from statestore.core.providers import IN_LOCAL_DATABASE, PROVIDER_KEY, PROVIDERS, REAL_TIME_KEY
from statestore.io.shim_jar import find_jar
from statestore.io.spark_home import require_own_spark
from statestore.spark.connect import is_served_elsewhere

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_JARS = "spark.jars"
_JARS_OF_YARN = "spark.yarn.dist.jars"
_GATEWAY = "PYSPARK_GATEWAY_PORT"  # of a JVM that started this Python
_DEFAULTS = {
    # Metrics that Spark's page of a query draws beside its own charts.
    "spark.sql.streaming.ui.enabledCustomMetricList": ",".join(
        (
            "rocksdbChangeLogWriterCommitLatencyMs",
            "statestoreCommitPublishMs",
            "rocksdbCommitFileSyncLatencyMs",
            "rocksdbLoadLatencyMs",
            "statestoreDeltaBytes",
            "statestoreVersionBytes",
            "statestoreEngineRssBytes",
        )
    ),
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink."
    "PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}
"""Defaults of what Spark shows; a builder that sets one of these keys keeps its own value."""
_FORMAT = f"{PREFIX}checkpointFormatVersion"
_ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"


def configure(
    builder: SparkSession.Builder,
    backend: str = "filesystem",
    *,
    checkpoint_format: int | None = None,
    real_time: bool = False,
    **options: object,
) -> SparkSession.Builder:
    """Keep the state of a session's streaming queries in the state store.

    Sets `spark.jars`, the provider class, the checkpoint format and the options on the builder;
    what it already has in `spark.jars` stays. Where the builder does not say otherwise, a few
    metrics of the state are shown on Spark's page of a query, and all at /metrics/prometheus; and
    joins of new queries are of state format 4 under Spark 4.3, which takes less for a batch. Jar
    and metrics are of the application's start: on a builder whose `getOrCreate` returns a running
    one, they must be there already. So they must on a server of Spark Connect: a builder with
    `remote("sc://...")` gets all but these.

    Args:
        builder: `SparkSession.builder`, with any other configuration.
        backend: State backend: heap, filesystem or rocksdb.
        checkpoint_format: Spark's checkpointFormatVersion, 1 or 2, in which no attempt of a task
            replaces another's files; None leaves what the builder says, and is 2 where it does not.
        real_time: The session's queries may also run in real-time mode. The backend is named by a
            key of this package then, since Spark refuses the mode where its own is set; and the
            shim asks Spark which operators and sinks the mode has, since Spark by itself would
            refuse transformWithState.
        options: Values by field of StateStoreOptions, such as `fsync_enabled=False`, or by key
            without the prefix, such as `**{"fsync.enabled": False}`.

    Returns:
        The same builder.

    Raises:
        InvalidArgumentError: The backend or an option does not exist (names the nearest one), or
            a value, the checkpoint format among them, is out of range. The engines of the rocksdb
            backend run in this Python, which has no rocksdict. Or real-time mode is asked for
            with format 1, or where the builder, or the session or JVM that runs already, has
            Spark's key for the provider.
        NotFoundError: There is no jar, where one is to be set; install the wheel or build the jar.
            Or a JVM runs already, as that of `spark-submit`, and was started without it.
        IncompatibleError: This pyspark is of another Spark than that of SPARK_HOME, or no jar fits
            that (kind wrong-spark).

    Guarantee: after a raise the builder is as it was.
    """
    if backend not in PROVIDERS:
        raise InvalidArgumentError(
            "unknown state backend",
            kind="invalid-option",
            backend=backend,
            nearest=_nearest_backend(backend),
            to_fix=f"use one of {', '.join(PROVIDERS)}",
        )
    if checkpoint_format not in (None, 1, 2):
        raise InvalidArgumentError(
            "no such checkpoint format",
            kind="invalid-option",
            key=_FORMAT,
            value=checkpoint_format,
            to_fix="use 2, or 1",
        )
    conf = spark_conf(options)
    # The builder has no public way to be asked what it holds.
    before = builder._options  # noqa: SLF001
    chosen_format = str(checkpoint_format or before.get(_FORMAT, 2))
    if real_time:
        _require_real_time(before, chosen_format)
    if backend in IN_LOCAL_DATABASE and _runs_engines_here(before):
        require_rocksdict()
    if not is_served_elsewhere(before):
        require_own_spark(_pyspark())
        # What Spark's session takes from a builder stands in place of what its JVM was given.
        jars = [*_listed(before.get(_JARS)), *_jars_of_jvm(PROVIDERS[backend])]
        conf[_JARS] = ",".join({_path(each): each for each in jars}.values())
        conf |= {key: value for key, value in _DEFAULTS.items() if key not in before}
    conf[REAL_TIME_KEY if real_time else PROVIDER_KEY] = PROVIDERS[backend]
    if _is_spark_4_3():
        if real_time:  # older ones have no stateful operators in the mode
            conf[_ALLOWLIST] = "false"  # the shim asks instead
        if JOIN_FORMAT_KEY not in before:
            conf[JOIN_FORMAT_KEY] = "4"
    conf[_FORMAT] = chosen_format
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


def _jars_of_jvm(provider: str) -> list[str]:
    """Return the jars of a JVM that runs already, as below `spark-submit`, or else the jar.

    Its shim is among them: driver and executors have what the application began with, and no second
    one. Nothing else is looked for then: a container of YARN's has no Spark that `find_jar` sees.

    Raises:
        NotFoundError: It has no shim, and does not take one from a builder any more; or, without a
            JVM, as `find_jar`.
        IncompatibleError: Without a JVM, as `find_jar`.
    """
    jvm = _running_jvm()
    if jvm is None:
        return [str(find_jar())]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    resource = loader.getResource(f"{provider.replace('.', '/')}.class")
    if resource is None:
        raise NotFoundError(
            "the JVM of this program runs already, without the jar",
            kind="file-not-found",
            provider=provider,
            to_fix="name the jar where the JVM is started: spark-submit --jars "
            '"$(statestore jar)"; in a program that starts it itself, configure before the first '
            "session",
        )
    given = jvm.org.apache.spark.SparkConf()
    jars = _listed(given.get(_JARS, ""))
    shipped = [*jars, *_listed(given.get(_JARS_OF_YARN, ""))]
    # In a cluster the driver may have a copy of it, by the same name.
    found = _path(resource.toString().removeprefix("jar:").partition("!")[0])
    is_shipped = Path(found).name in {Path(_path(each)).name for each in shipped}
    return jars if is_shipped else [*jars, found]


def _listed(jars: object) -> list[str]:
    return [jar for jar in str(jars or "").split(",") if jar]


def _path(jar: str) -> str:
    """Return the path of a jar that is named by that, or by a URI."""
    return unquote(urlsplit(jar).path) if re.match("[a-z0-9]+:", jar) else jar


def _require_real_time(before: Mapping[str, object], checkpoint_format: str) -> None:
    """Raise InvalidArgumentError where Spark would refuse real-time mode in a builder's session."""
    key, value = PROVIDER_KEY, before.get(PROVIDER_KEY)
    to_fix = "leave it out, or leave out real_time"
    if value is None and checkpoint_format != "2":
        key, value = _FORMAT, before.get(_FORMAT, checkpoint_format)
    if value is None and not is_served_elsewhere(before):
        value = _provider_of_running()
        to_fix = f"spark.conf.unset({PROVIDER_KEY!r}) in the session that runs, or a new process"
    if value is not None:
        raise InvalidArgumentError(
            "Spark refuses real-time mode in a session that says this",
            kind="invalid-option",
            key=key,
            value=value,
            to_fix=to_fix,
        )


def _provider_of_running() -> str | None:
    """Return what Spark's key for the provider says in the session that a builder would return.

    Where none runs, a JVM that does has what the application was started with.
    """
    jvm = _running_jvm()
    if jvm is None:
        return None
    from pyspark.sql import SparkSession

    session: Any = SparkSession._instantiatedSession  # noqa: SLF001
    if session is not None and session._sc._jsc is not None:  # noqa: SLF001
        found = session.conf.get(PROVIDER_KEY, None)
    else:
        found = jvm.org.apache.spark.SparkConf().get(PROVIDER_KEY, None)
    return None if found is None else str(found)


def _running_jvm() -> Any:
    """Return the JVM of this program, also where that was started below `spark-submit`, or None."""
    from pyspark import SparkContext

    if _GATEWAY in os.environ:
        SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkContext._jvm  # noqa: SLF001


def _is_spark_4_3() -> bool:
    """Return whether this Spark is 4.3 or later."""
    return tuple(map(int, _pyspark().split(".")[:2])) >= (4, 3)


def _pyspark() -> str:
    """Return the version of this pyspark."""
    import pyspark  # that a program names this package costs no import of Spark

    return pyspark.__version__


def _nearest_backend(backend: str) -> str:
    return difflib.get_close_matches(str(backend), PROVIDERS, n=1, cutoff=0.0)[0]


def _runs_engines_here(conf: Mapping[str, object]) -> bool:
    """Return whether the engines of a session will run in this Python, as far as is known."""
    is_submitted = _GATEWAY in os.environ  # Spark knows more than the builder
    if is_submitted or is_served_elsewhere(conf):
        return False
    named = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(str(named))
    is_local = str(conf.get("spark.master", "local")).startswith("local")
    return is_local and found is not None and Path(found).absolute() == Path(sys.executable)
