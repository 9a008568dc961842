"""Jobs with an application of their own whose queries run in real-time mode.

A query needs a slot for every task of all its stages at once: the applications have many.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import statestore

from .application import start_application
from .harness import FILESYSTEM, PROVIDER_CLASS, ROCKSDB
from .processes import descendants, engines, executors
from .real_time import (
    ALLOWLIST_KEY,
    BATCH,
    PROVIDER_KEY,
    TIMEOUT_S,
    KafkaLane,
    RealTimeLane,
    committed_rows,
)

MASTER = "local[100]"
ROWS = 600
"""Rows of a run."""
WITHIN_BATCH_S, FEED_EVERY_S, FED_AT_ONCE = 3.0, 0.05, 20
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


def _configured(root: Path, jars: list[Path], master: str = MASTER) -> SparkSession:
    """Start an application as `configure` does for queries in real-time mode."""
    builder = SparkSession.Builder().config("spark.jars", ",".join(map(str, jars)))
    options = statestore.configure(builder, "filesystem", real_time=True)._options
    return start_application(root, jars, master, {key: str(options[key]) for key in options})


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
    evicting = {
        "spark.sql.streaming.statefulOperator.incrementalCleanupFactor": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    runs = {
        "windows": [(MICRO, own | evicting), (REAL, other | evicting)],
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
    lane.fed = lane.num_known()
    source, query = lane.start(**REAL)
    while query.isActive:
        _feed_for(lane, source, FEED_EVERY_S)
    raise query.exception() or AssertionError("the query has ended")


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


def killed(root: Path, jars: list[Path], provider: str, victims: list[str]) -> dict[str, Any]:
    """Kill processes of a local cluster, each within a batch of a query that is fed all the time.

    A query that ends is started again.
    """
    session = _configured(root, jars, "local-cluster[2,5,1024]")
    lane = RealTimeLane(session, "aggregation", root / "lane", {PROVIDER_KEY: provider})
    kinds = {"engine": engines, "executor": executors}
    survived = []
    for victim in victims:
        source, query = lane.start(**REAL)
        _feed_into_batch(lane, source, query)
        before = lane.num_known()
        os.kill(kinds[victim](descendants(os.getpid()))[0], signal.SIGKILL)
        while query.isActive and lane.num_known() <= before:
            _feed_for(lane, source, FEED_EVERY_S)
        survived.append(query.isActive)
        query.stop()
    lane.run(ROWS, **REAL)
    report = {"survived": survived, **_exact_report(lane)}
    session.stop()
    return report


def _feed_into_batch(lane: RealTimeLane, source: Any, query: Any) -> None:
    """Feed a query into the batch after the next one that it commits."""
    before = lane.num_known()
    _feed_until(lane, source, lambda: not query.isActive or lane.num_known() > before)
    _feed_for(lane, source, WITHIN_BATCH_S)
    assert query.isActive, query.exception()


def _feed_for(lane: RealTimeLane, source: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    _feed_until(lane, source, lambda: time.monotonic() > end)


def _feed_until(lane: RealTimeLane, source: Any, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        lane.fed += FED_AT_ONCE
        source.feed(lane.fed)
        time.sleep(FEED_EVERY_S)


def operate(root: Path, jars: list[Path], provider: str) -> dict[str, Any]:
    """Operate on a checkpoint within a batch, and between two runs; return what was found."""
    session = _configured(root, jars)
    lane = RealTimeLane(session, "aggregation", root / "lane", {PROVIDER_KEY: provider})
    checkpoint = statestore.Checkpoint(lane.checkpoint)
    source, query = lane.start(**REAL)
    _feed_into_batch(lane, source, query)
    within = {
        "committed": lane.num_known(),
        "reader": _totals(lane),
        "read": _read(checkpoint),
        "versions": [version.batch for version in checkpoint.versions()],
        "findings": len(checkpoint.verify(deep=True).findings),
        "is_running": checkpoint.query.is_running,
        "savepoint": _read_savepoint(checkpoint, root / "within"),
        "committed_after": lane.num_known(),
        "rescale": _refusal(lambda: checkpoint.rescale(5)),
    }
    query.stop()
    stopped = {"committed": lane.num_known(), "read": _read(checkpoint)}
    checkpoint.rescale(5)
    rescaled = {"committed": lane.num_known(), "read": _read(checkpoint)}
    lane.run(ROWS, **REAL)
    other = RealTimeLane(session, "aggregation", root / "other")
    statestore.Savepoint(root / "within").restore(other.checkpoint, num_partitions=2)
    other.fed = within["committed"]
    other.run(ROWS, **REAL)
    report = {
        "within": within,
        "stopped": stopped,
        "rescaled": rescaled,
        "exact": _exact_report(lane),
        "other": _exact_report(other),
        "partitions": checkpoint.info.num_partitions,
    }
    session.stop()
    return report


def _read(directory: statestore.Checkpoint | statestore.Savepoint) -> dict[str, list[int]]:
    rows = directory.rows().read().to_pylist()
    return {str(row["key"]["key"]): list(row["value"].values()) for row in rows}


def _read_savepoint(checkpoint: statestore.Checkpoint, target: Path) -> dict[str, list[int]]:
    checkpoint.savepoint(target)
    return _read(statestore.Savepoint(target))


def _refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except statestore.StateStoreError as error:
        return str(error)
    return "nothing"


def console(root: Path, jars: list[Path], providers: list[str]) -> dict[str, Any]:
    """Run a query over each provider to the console; return the states."""
    session = _configured(root, jars)
    states = {}
    for provider in providers:
        conf: Conf = {PROVIDER_KEY: provider}
        lane = RealTimeLane(session, "aggregation", root / provider, conf)
        lane.run(ROWS, "console", **REAL)
        states[provider] = _totals(lane)
    session.stop()
    return {"rows": ROWS, "states": states}


def older(root: Path, jars: list[Path], provider: str) -> dict[str, Any]:
    """Run what a Spark can whose real-time mode has no state; return that, and why not more."""
    session = _configured(root, jars)
    conf: Conf = {PROVIDER_KEY: provider}
    plain = RealTimeLane(session, "plain", root / "plain", conf)
    plain.run(ROWS, **REAL)
    counted = RealTimeLane(session, "aggregation", root / "counted", conf)
    counted.run(ROWS, **MICRO)
    counted.run(ROWS, **MICRO)
    report = {
        "plain": plain.lines(),
        "provider": _pinned(counted.checkpoint),
        "rows": counted.fed,
        "counted": _totals(counted),
        "refused": _start_error(counted),
    }
    session.stop()
    return report


def _start_error(lane: RealTimeLane, sink: str | None = None) -> str:
    try:
        _, query = lane.start(sink, **REAL)
        query.awaitTermination(60)
        query.stop()
    except Exception as error:  # noqa: BLE001
        return str(error)
    return "nothing"


def refusals(root: Path, jars: list[Path]) -> dict[str, str]:
    """Start what is refused; return why."""
    session = _configured(root, jars)
    told = {}

    def refuse(name: str, query: str, conf: Conf, sink: str | None = None) -> None:
        told[name] = _start_error(RealTimeLane(session, query, root / name, conf), sink)

    refuse("spark-key", "aggregation", {PROVIDER_CLASS: FILESYSTEM})
    refuse("no-provider", "aggregation", {PROVIDER_KEY: "io.statestore.Other"})
    refuse("operator", "within-watermark", {})
    for sink in ("noop", "memory"):
        refuse(sink, "aggregation", {}, sink)
    refuse("allowlist", "variables", {ALLOWLIST_KEY: "true"})
    session.stop()
    return told


def main(name: str, text: str) -> None:
    """Run a job by its name and write its report."""
    arguments = json.loads(text)
    root = Path(arguments.pop("root"))
    jars = [Path(jar) for jar in arguments.pop("jars")]
    known = (compare, endless, resume, killed, operate, console, older, refusals)
    jobs: dict[str, Callable[..., dict[str, Any]]] = {job.__name__: job for job in known}
    report = jobs[name](root, jars, **arguments)
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
