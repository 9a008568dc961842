"""Tells failures of a query that a restart may cure from those that it cannot.

An error of a streaming query is what is left of a chain through executor, driver and, with
`foreachBatch`, Python: its class says little, its text holds the whole chain. So the text is
searched for what has a fixed form in it: kinds of this package's errors, SQLSTATEs and conditions
of Spark's. What is not known to be lasting counts as worth a restart, as in Flink.
"""

from __future__ import annotations

import re
import sys

from statestore.core.errors import StateStoreError

LASTING_KINDS = frozenset(
    {
        "invalid-argument", "invalid-option", "unknown-option", "unsupported-scheme",
        "not-found", "version-not-found", "file-not-found", "directory-gone", "driver-lost",
        "incompatible", "other-provider", "other-store", "other-checkpoint", "newer-format",
        "schema-changed", "num-partitions-changed", "max-parallelism-changed",
        "backend-changed", "storage-changed", "wrong-spark",
        "lineage-broken", "corruption", "truncated", "checksum-mismatch", "state-too-large",
        "protocol", "version-apart", "spark-connect", "sink-apart",
        "partitions-asked", "not-rescalable", "unfinished-operation", "unfinished-batch",
    }
)  # fmt: skip
"""Kinds of errors that are there again after a restart. The others are about storage that failed,
was full or refused, other attempts, and processes that died."""

LASTING_SQLSTATES = {
    "0A": "a feature that is not supported",
    "22": "a row that an expression cannot take; the same rows come again",
    "42": "an analysis or plan error, or a setting or schema that changed",
    "46": "a class that cannot be used",
    "55": "an unfinished or invalid repartition",
}
"""Classes of SQLSTATEs, their first two characters, of Spark's errors that come again."""

_LASTING_CONDITIONS = (
    r"STATE_STORE_\w*SCHEMA\w*",
    r"STATE_STORE_\w*UNSUPPORTED_OPERATION\w*",
    r"TRANSFORM_WITH_STATE_SCHEMA\w*",
    r"\w*_CHECKSUM_VERIFICATION_FAILED",
    r"STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
    r"INVALID_LOG_VERSION",  # of another checkpoint format, or of a later Spark
    r"CONCURRENT_STREAM_LOG_UPDATE",  # another process writes this checkpoint
)
# Of programs, not of the world around them; others, such as ValueError, also come from bad replies.
_MISTAKES = (TypeError, AttributeError, NameError, SyntaxError, ImportError)

_KIND = re.compile(r"(?:Error|Exception): \[([a-z]+(?:-[a-z]+)*)\]")
_SQLSTATE = re.compile(r"\bSQLSTATE: ([0-9A-Z]{5})\b")
_CONDITION = re.compile(rf"\[({'|'.join(_LASTING_CONDITIONS)})(?:\.\w+)*\]")
# Memory that Spark's tasks held outside of the heap: they may be others by then.
_HELD_BY_TASKS = re.compile(r"\[state-too-large\][^\n]* execution=[1-9]")
_ARGUMENT = re.compile(r"\bIllegalArgumentException: [^\n]*To fix: ")  # the shim's own
_PLANNING = re.compile(  # some of them have no SQLSTATE
    r"\b(?:org\.apache\.spark|pyspark)\.(?:\w+\.)*(\w*AnalysisException|ParseException): "
    # What a catalog, or a source in Python, has raised says nothing of the plan: it may be down.
    r"(?!\[(?:FAILED_JDBC|PYTHON_DATA_SOURCE_ERROR|UNABLE_TO_FETCH_HIVE_TABLES)\b)"
    r"(?!(?:\[[\w.]+\] )?org\.apache\.(?:hadoop\.hive\.ql\.metadata\.HiveException|thrift\.))"
)
# A sink left a batch out, whose state Spark then has no ID of; it does so at each start.
_LEFT_OUT = re.compile(r"assertion failed: CheckpointInfo length: 0, numPartitions: \d")
_STOPPED = re.compile(r"stopped SparkContext|SparkContext was shut down")
_CAUSE = re.compile(r"^(?:Caused by: )?([\w.$]+(?:Error|Exception): \S.*)$", re.MULTILINE)
# Offsets and plan in an error of a streaming query: they hold the program's literals.
_PLAN = re.compile(r"\n=== Streaming Query ===.*?(?=\n\tat |\Z)", re.DOTALL)
_MAX_REASON = 500
# Of a query that has failed by itself it is ACTIVE, or INITIALIZING.
_TOLD_TO_END = re.compile(r"^Current State: TERMINATED\b", re.MULTILINE)


def find_obstacle(error: BaseException) -> str | None:
    """Return the obstacle that makes a restart after this failure useless; None if it may help.

    Args:
        error: What `start_query` or the query raised; its causes are looked at, too.

    Returns:
        A kind of errors (`num-partitions-changed`), an SQLSTATE (`42703`), a condition or exception
        of Spark's (`AnalysisException`), a mistake in the program (`TypeError`), or `application
        stopped`.
    """
    if isinstance(error, _MISTAKES):
        return type(error).__name__
    for link in chain_of(error):
        if isinstance(link, StateStoreError) and link.kind in LASTING_KINDS:
            return link.kind
    text = text_of(error)
    for kind in _KIND.findall(text):
        if kind in LASTING_KINDS and not (
            kind == "state-too-large" and _HELD_BY_TASKS.search(text)
        ):
            return str(kind)
    if _STOPPED.search(text) or _is_stopped():
        return "application stopped"
    if _LEFT_OUT.search(text):
        return "sink-apart"
    if _ARGUMENT.search(text):
        return "invalid-option"
    for state in _SQLSTATE.findall(text):
        if state[:2] in LASTING_SQLSTATES:
            return str(state)
    found = _CONDITION.search(text) or _PLANNING.search(text)
    return found[1] if found else None


def _is_stopped() -> bool:
    """Return whether the application of this driver was stopped, or its JVM has died."""
    pyspark = sys.modules.get("pyspark")
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return False
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception:  # noqa: BLE001, no other JVM takes the place of one that does not answer
        return True


def is_of_stopped(error: BaseException) -> bool:
    """Return whether a query had been stopped before its last batch failed."""
    traces = (f"{link}\n{getattr(link, '_stackTrace', None)}" for link in chain_of(error))
    return any(map(_TOLD_TO_END.search, traces))


def reason_of(error: BaseException) -> str:
    """Return the line of an error that says most: its innermost cause, at most 500 characters."""
    causes = _CAUSE.findall(text_of(error))
    reason = causes[-1] if causes else f"{type(error).__name__}: {error}".split("\n", 1)[0]
    return str(reason)[:_MAX_REASON]


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, outermost first."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__
    return links


def text_of(error: BaseException) -> str:
    """Return the chain, outermost first, each with the Java stack trace that PySpark keeps."""
    texts = []
    for link in chain_of(error):
        java_trace = getattr(link, "_stackTrace", None) or ""
        texts.append(f"{type(link).__name__}: {link}\n{java_trace}")
    return "\n".join(_PLAN.sub("", text) for text in texts)
