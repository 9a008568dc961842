"""What not every Spark can do. A test that needs it names it: `@pytest.mark.needs("row-api")`."""

from __future__ import annotations

from dataclasses import dataclass

import pyspark


@dataclass(frozen=True)
class Feature:
    """Something of Spark's, of this package, or of the tests.

    Attributes:
        since: The first minor with it.
        reason: Why it is not there before.
        shown: What docs/spark.md says that it is; None where it is of no interest to users.
        older, newer: What that page says of the minors without and with it.
    """

    since: str
    reason: str
    shown: str | None = None
    older: str = "no"
    newer: str = "yes"

    def is_in(self, version: str) -> bool:
        """Whether a Spark has it, a minor or a release."""
        return _number(version) >= _number(self.since)


FEATURES = {
    "row-api": Feature(
        "4.1",
        "transformWithState in Python has pandas frames only",
        "`transformWithState` in Python",
        older="pandas",
        newer="pandas, rows",
    ),
    "connect-variables": Feature(
        "4.1",
        "a session of Spark Connect has no transformWithState",
        "`transformWithState` through Spark Connect",
        older="Spark has none",
    ),
    "pipelines": Feature("4.1", "it has no declarative pipelines"),
    "source-start": Feature("4.2", "it does not tell a source of Python where a batch starts"),
    "commit-reports": Feature(
        "4.1",
        "Spark's driver asks for no reports of commits and snapshots",
        "commits are validated, lagging stores told",
    ),
    "outlier-metrics": Feature(
        "4.3",
        "each metric of a single store goes from the driver with every task",
        "slowest and largest stores in a batch's progress",
    ),
    "partition-warning": Feature(
        "4.1",
        "Spark forgets the number of state partitions that a session asked for",
        "a warning that `spark.sql.shuffle.partitions` changes no state partitions",
        older="Spark's own",
    ),
    "unload-on-commit": Feature(
        "4.1", "it knows no such option", "`unloadOnCommit`", older="an unknown option"
    ),
    "damage-condition": Feature(
        "4.1",
        "Spark's table of errors has no condition for it",
        "a damaged file or a broken lineage has a [condition](#errors) of its own",
        older="`UNCATEGORIZED`",
    ),
    "repartition-check": Feature(
        "4.2",
        "Spark knows of no batch that changes the number of state partitions",
        "who refuses a query whose `rescale` is unfinished",
        older="the provider",
        newer="Spark",
    ),
    "reader-of-fewer": Feature(
        "4.2",
        "Spark counts the directories of state partitions, also those that a rescale left",
        "Spark's state reader after a `rescale` to fewer state partitions",
        older="fails: `statestore read`",
    ),
    "reader-of-ids": Feature(
        "4.1",
        "Spark's state reader looks for the files of checkpoint format v1, whoever wrote them",
        "Spark's state reader on a checkpoint of format v2",
        older="fails: `statestore read`",
    ),
    "to-spark-rocksdb": Feature(
        "4.2",
        "Spark's RocksDB provider has no empty store of a later version to fill",
        "`convert --provider spark-rocksdb`",
        older="refused",
    ),
    "join-format-3": Feature(
        "4.1", "it knows no such format", "joins of state format 3", older="Spark has none"
    ),
    "join-format-4": Feature(
        "4.2", "it knows no such format", "joins of state format 4", older="Spark has none"
    ),
    "join-guardrail": Feature(
        "4.3",
        "Spark gives a join of any provider the state format that it asks for",
    ),
    "real-time": Feature(
        "4.3",
        "its real-time mode has no stateful operator",
        "stateful queries in [real-time mode](real-time.md)",
        older="Spark has none",
    ),
    "real-time-trigger": Feature("4.1", "it has no real-time mode"),
    "real-time-in-python": Feature("4.2", "only the trigger of Scala and Java knows the mode"),
    "later-format": Feature(
        "4.2",
        "it reads no commit of another format than the session's",
        "a checkpoint of format v1 in a session that asks for v2",
        older="refused by Spark: name it, `checkpoint_format`",
        newer="goes on",
    ),
    "pinned-format": Feature(
        "4.3",
        "the session, not the commit log, says the checkpoint format",
        "a checkpoint of format v2 in a session that asks for v1",
        older="refused: name it, `checkpoint_format`",
        newer="goes on",
    ),
    "merged-row-counts": Feature(
        "4.2", "Spark's RocksDB provider miscounts rows once a restart has merged values"
    ),
    "widened-arrays": Feature(
        "4.1", "Spark's RocksDB provider rounds the elements of an array that became DOUBLE"
    ),
    "feed-of-lists": Feature(
        "4.3", "the change feed of Spark's RocksDB provider has one value of a list that is put"
    ),
    "every-encoder": Feature("4.2", "it has not got every type and key encoder of the golden rows"),
    "store-calls": Feature("4.2", "the test calls methods that a state store has not got"),
}


def missing(name: str) -> str | None:
    """Return why the installed Spark has not got a feature; None where it has.

    Raises:
        KeyError: No feature is called so.
    """
    feature = FEATURES[name]
    if feature.is_in(pyspark.__version__):
        return None
    return f"Spark {feature.since} or later: {feature.reason}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
