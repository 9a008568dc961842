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
    """

    since: str
    reason: str


FEATURES = {
    "commit-reports": Feature("4.1", "Spark's driver asks for no reports of commits and snapshots"),
    "partition-warning": Feature(
        "4.1", "Spark forgets the number of state partitions that a session asked for"
    ),
    "merged-row-counts": Feature(
        "4.1", "Spark's RocksDB provider miscounts rows once a restart has merged values"
    ),
    "row-api": Feature("4.1", "transformWithState in Python has pandas frames only"),
    "store-calls": Feature("4.2", "the test calls methods that a state store has not got"),
    "to-spark-rocksdb": Feature(
        "4.2", "Spark's RocksDB provider has no empty store of a later version to fill"
    ),
    "pinned-format": Feature("4.3", "the session, not the commit log, says the checkpoint format"),
}


def missing(name: str) -> str | None:
    """Return why the installed Spark has not got a feature; None where it has.

    Raises:
        KeyError: No feature is called so.
    """
    feature = FEATURES[name]
    installed, since = (
        tuple(map(int, version.split(".")[:2])) for version in (pyspark.__version__, feature.since)
    )
    return None if installed >= since else f"Spark {feature.since} or later: {feature.reason}"
