"""Jobs with an application of their own whose queries run in real-time mode.

A query needs a slot for every task of all its stages at once: the applications have many.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import statestore

from .application import start_application
from .harness import FILESYSTEM, PROVIDER_CLASS, ROCKSDB
from .real_time import ALLOWLIST_KEY, BATCH, PROVIDER_KEY, KafkaLane, RealTimeLane, committed_rows

MASTER = "local[100]"
ROWS = 600
"""Rows of a run."""
VARIABLES = {"plain": (), "variables": ("count", "sums", "list"), "timers": ("first", "short")}
REAL, MICRO = {"realTime": BATCH}, {"availableNow": True}
Conf = dict[str, str | None]
"""What a session sets, None for nothing."""


def compare(
    root: Path, jars: list[Path], lanes: list[tuple[str, str]], servers: str | None = None
) -> dict[str, Any]:
    """Run queries on providers, at the same time; return the rows of sinks and stores.

    Args:
        root: Folder of it all.
        jars: Of the application.
        lanes: Each a query and a provider.
        servers: The broker that sources and sinks are topics of; None for memory and files.
    """
    session = _configured(root, jars)
    made = [
        (_lane(session, query, root / f"{query}-{provider}", servers), provider)
        for query, provider in lanes
    ]
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(lambda lane: _run(*lane), made))
    report = [_report(lane) for lane, _ in made]
    session.stop()
    return {"lanes": report}


def _configured(root: Path, jars: list[Path]) -> SparkSession:
    """Start an application as `configure` does for queries in real-time mode."""
    builder = SparkSession.Builder().config("spark.jars", ",".join(map(str, jars)))
    options = statestore.configure(builder, "filesystem", real_time=True)._options
    return start_application(root, jars, MASTER, {key: str(options[key]) for key in options})


def _lane(
    session: SparkSession,
    query: str,
    root: Path,
    servers: str | None,
    conf: Conf | None = None,
) -> RealTimeLane:
    if servers:
        return KafkaLane(servers, session, query, root, conf)
    return RealTimeLane(session, query, root, conf)


def _run(lane: RealTimeLane, provider: str) -> None:
    """Run a query once and again, and where it may in micro-batches, too.

    Once it has begun, its checkpoint says on which provider it goes on, not the session.
    """
    nothing: Conf = {PROVIDER_KEY: None}
    own = {PROVIDER_KEY: provider}
    if provider == ROCKSDB:
        own = {**nothing, PROVIDER_CLASS: ROCKSDB}
    other: Conf = {PROVIDER_KEY: FILESYSTEM}
    runs = {
        "deduplication": [(MICRO, own), (REAL, other)],
        "aggregation": [(REAL, own), (REAL, nothing), (MICRO, other)],
    }
    for trigger, conf in runs.get(lane.query, [(REAL, own), (REAL, other)]):
        lane.conf = conf
        lane.run(ROWS, **trigger)


def _report(lane: RealTimeLane) -> dict[str, Any]:
    variables: tuple[str | None, ...] = VARIABLES.get(lane.query, (None,))
    return {
        "lines": lane.lines(),
        "state": {str(name): lane.state(name) for name in variables if name != "short"},
        "provider": _pinned(lane.checkpoint),
    }


def _pinned(checkpoint: Path) -> str:
    """Return the provider that the newest entry of the offset log names."""
    offsets = checkpoint / "offsets"
    newest = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    metadata = json.loads((offsets / str(newest)).read_text().splitlines()[1])
    return str(metadata["conf"][PROVIDER_CLASS])


def endless(
    root: Path, jars: list[Path], provider: str, servers: str | None = None
) -> dict[str, Any]:
    """Run an aggregation, fed all the time, to be killed."""
    session = _configured(root, jars)
    lane = _lane(session, "aggregation", root / "lane", servers, {PROVIDER_KEY: provider})
    source, query = lane.start(**REAL)
    for fed in count(20, 20):
        assert query.isActive, query.exception()
        source.feed(fed)
        query.awaitTermination(0.05)
    return {}


def resume(root: Path, jars: list[Path], servers: str | None = None) -> dict[str, Any]:
    """Go on with that query, with more rows; return its state before and after."""
    session = _configured(root, jars)
    lane = _lane(session, "aggregation", root / "lane", servers)
    committed = committed_rows(lane.checkpoint)
    before = _totals(lane)
    lane.fed = lane.num_known() + 4 * ROWS
    lane.run(ROWS, **REAL)
    report = {"committed": committed, "before": before, **_exact_report(lane)}
    session.stop()
    return report


def _exact_report(lane: RealTimeLane) -> dict[str, Any]:
    return {"rows": lane.fed, "after": _totals(lane), "lines": lane.lines()}


def _totals(lane: RealTimeLane) -> dict[str, list[int]]:
    """Return the number of rows and their sum by key."""
    rows = lane.rows()
    return {str(row.key.key): [row["value"][0], row["value"][1]] for row in rows}


def refusals(root: Path, jars: list[Path]) -> dict[str, str]:
    """Start what is refused; return why."""
    session = _configured(root, jars)
    told = {}

    def refuse(name: str, query: str, conf: Conf, sink: str | None = None) -> None:
        lane = RealTimeLane(session, query, root / name, conf)
        try:
            _, handle = lane.start(sink, **REAL)
            handle.awaitTermination(60)
            handle.stop()
            told[name] = "nothing"
        except Exception as error:  # noqa: BLE001
            told[name] = str(error)

    refuse("spark-key", "aggregation", {PROVIDER_CLASS: FILESYSTEM})
    refuse("no-provider", "aggregation", {PROVIDER_KEY: "io.statestore.Other"})
    refuse("operator", "within-watermark", {})
    refuse("sink", "aggregation", {}, "noop")
    refuse("allowlist", "variables", {ALLOWLIST_KEY: "true"})
    session.stop()
    return told


def main(name: str, text: str) -> None:
    """Run a job by its name and write its report."""
    arguments = json.loads(text)
    root = Path(arguments.pop("root"))
    jars = [Path(jar) for jar in arguments.pop("jars")]
    known = (compare, endless, resume, refusals)
    jobs: dict[str, Callable[..., dict[str, Any]]] = {job.__name__: job for job in known}
    report = jobs[name](root, jars, **arguments)
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
