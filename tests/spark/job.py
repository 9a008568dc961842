"""Jobs that need a process of their own: `python -m tests.spark.job NAME ARGUMENTS`.

ARGUMENTS is JSON with `root`, the folder of everything the job writes, and `jars`. A job that ends
writes `report.json` there; its lanes are folders named by their query.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import statestore
from statestore.checkpoint.lease import Leases
from statestore.core.errors import NotFoundError
from statestore.io.local import LocalFileIO
from statestore.operations.in_use import exclusive_directory

from .application import start_application
from .harness import HEAP, STATE_STORE, Lane, Query, wait_for
from .processes import (
    MARK_NAME,
    checkpoint_memories,
    command_and_environment,
    descendants,
    engines,
    executor_directories,
    executors,
    scratch_directories,
)
from .queries import AGGREGATION, OPERATORS, one_input
from .state_variables import EVENT_TIME

KILL_DELAY_S = 0.15
BY_NAME = {query.name: query for query in (*OPERATORS, EVENT_TIME)}
SHORT = replace(AGGREGATION, name="short", plan=one_input(4))
ENDLESS = replace(AGGREGATION, name="endless", plan=one_input(300))


def cluster(
    root: Path, jars: list[Path], provider: str, lanes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Run queries on two executors, one after the other, and kill processes under them.

    A lane is the name of a `query`, its `conf`, and `kills`: at which batch, what, and whether
    while the batch runs instead of before it.
    """
    session = start_application(root, jars, "local-cluster[2,1,1024]")
    kinds = {"engine": engines, "executor": executors}
    killed = []
    made = []
    for given in lanes:
        lane = _lane(session, root, BY_NAME[given["query"]], provider, given["conf"])
        killed += [
            _kill_before(lane, batch_id, kinds[kind], during=during)
            for batch_id, kind, during in given["kills"]
        ]
        made.append(lane)
    num_leases = []
    for lane in made:
        leases = Leases(LocalFileIO(), f"{lane.checkpoint}/state")
        lane.on_batch = lambda _, leases=leases: num_leases.append(len(leases.list()))
        for batches in lane.query.plan:
            lane.run(*batches)
        if provider.startswith("io.statestore."):
            # Executors ask the driver which runs have ended; that of a killed one expires.
            wait_for(lambda: _num_alive(leases) == 0, "the end of the leases")  # noqa: B023
    session.stop()
    return {
        "num_leases": num_leases,
        "batches": {lane.query.name: lane.batches for lane in made},
        "failed_tasks": {lane.query.name: lane.failed_tasks for lane in made},
        "killed": killed,
        "engines_left": engines(descendants(os.getpid())),
        "scratch_left": [str(path) for path in scratch_directories(root)],
    }


def _num_alive(leases: Leases) -> int:
    """Return how many leases there are of processes that live."""
    found = map(leases.read, leases.list())
    return sum(one is not None and one.holder.process.state() == "alive" for one in found)


def heap_cluster(root: Path, jars: list[Path]) -> dict[str, Any]:
    """Run a query over the heap backend on two executors; kill an engine, then an executor."""
    session = start_application(root, jars, "local-cluster[2,1,1024]")
    lane = _lane(session, root, SHORT, HEAP)
    killed = [
        _kill_before(lane, 1, engines, during=True),
        _kill_before(lane, 2, executors, during=False),
    ]
    for batches in lane.query.plan:
        lane.run(*batches)
    state = session.read.format("statestore").load(str(lane.checkpoint)).count()
    address = session._jvm.io.statestore.engine.CheckpointMemory.address("embedded")
    token = address.get("token").asText()
    pids = descendants(os.getpid())
    memories = checkpoint_memories(pids)
    shown = [pid for pid in pids if token.encode() in command_and_environment(pid)]
    session.stop()
    left = descendants(os.getpid())
    of_executors = executor_directories(os.environ[MARK_NAME])
    logs = [root / "spark.log", *(log for path in of_executors for log in path.glob("*/std*"))]
    return {
        "batches": lane.batches,
        "killed": killed,
        "state_rows": state,
        "memories": memories,
        "token_in_processes": shown,
        "num_executor_logs": len(logs) - 1,
        "token_in_logs": [str(path) for path in logs if token in path.read_text()],
        "left": [*engines(left), *checkpoint_memories(left)],
        "scratch_left": [str(path) for path in scratch_directories(root)],
    }


def endless(root: Path, jars: list[Path], provider: str, master: str) -> dict[str, Any]:
    """Run a query of many batches, to be killed; `progress` holds the last batch's ID."""
    session = start_application(root, jars, master)
    lane = _lane(session, root, ENDLESS, provider)
    lane.on_batch = lambda batch_id: (root / "progress").write_text(str(batch_id))
    lane.run(*ENDLESS.plan[0])
    return {}


def refused(root: Path, jars: list[Path], provider: str) -> dict[str, Any]:
    """Start a query on an executor while an operation runs; feed it when that has ended."""
    session = start_application(root, jars, "local-cluster[1,1,1024]")
    lane = _lane(session, root, SHORT, provider)
    first, second, *_ = SHORT.plan[0]
    lane.run(first)
    with exclusive_directory(LocalFileIO(), str(lane.checkpoint), "rescale"):
        handle = lane.start(available_now=False)
        log = root / "spark.log"
        wait_for(lambda: "lease is refused" in log.read_text(), "the refusal")
    lane.feed(second)
    with suppress(StreamingQueryException):
        handle.processAllAvailable()
    error = str(handle.exception())
    handle.stop()
    lane.run()
    session.stop()
    return {"error": error, "batches": sorted(lane.batches)}


def resume(root: Path, jars: list[Path], provider: str) -> dict[str, Any]:
    """Restart the endless query with a few more files than it had processed."""
    processed = int((root / "progress").read_text())
    for path in (root / ENDLESS.name / "input" / "events").iterdir():
        if int(path.stem) > processed + 3:
            path.unlink()
    session = start_application(root, jars)
    lane = _lane(session, root, ENDLESS, provider)
    lane.run()
    scratch = [str(path) for path in scratch_directories(root)]
    session.stop()
    return {"batches": lane.batches, "scratch": scratch}


def resume_lost(root: Path, jars: list[Path]) -> dict[str, Any]:
    """Restart the endless query without the driver that held its state, twice; feed little."""
    processed = int((root / "progress").read_text())
    for path in (root / ENDLESS.name / "input" / "events").iterdir():
        if int(path.stem) > processed + 3:
            path.unlink()
    session = start_application(root, jars)
    lane = _lane(session, root, ENDLESS, HEAP)
    try:
        lane.run()
        error = ""
    except StreamingQueryException as refused:
        error = str(refused)
    lane.conf[f"{STATE_STORE}.heap.onDriverLoss"] = "empty"
    before = dict(lane.batches)
    lane.run()
    session.stop()
    return {"error": error, "batches_before": before, "batches": lane.batches}


def ended(root: Path, jars: list[Path], checkpoint: str) -> dict[str, Any]:
    """Read state of the heap backend by the session of an application that has ended."""
    session = start_application(root, jars)
    rows = statestore.Checkpoint(checkpoint, spark=session).rows()
    session.stop()
    try:
        rows.read()
    except NotFoundError as error:
        return {"error": str(error)}
    return {"error": ""}


def interpreters(
    root: Path, jars: list[Path], provider: str, confs: list[dict[str, str]]
) -> dict[str, Any]:
    """Run one query through applications, each with a conf but the first and the last."""
    errors = []
    batches: dict[int, list[str]] = {}
    conf_of_lane = {f"{STATE_STORE}.maintenanceInterval": "100ms"}
    query = replace(AGGREGATION, plan=one_input(1, 2))
    first, rest = query.plan
    for conf in ({}, *confs, {}):
        session = start_application(root, jars, conf=conf)
        lane = _lane(session, root, query, provider, conf_of_lane)
        try:
            if batches:
                lane.run()
            else:
                lane.run(*first)
                lane.feed(*rest)
        except StreamingQueryException as error:
            errors.append(str(error))
        batches.update(lane.batches)
        session.stop()
    return {"errors": errors, "batches": batches}


def supervised(root: Path, jars: list[Path], provider: str) -> dict[str, Any]:
    """Supervise a query that SIGTERM stops with a savepoint, and one that Ctrl-C interrupts."""
    session = start_application(root, jars)
    lane = _lane(session, root, SHORT, provider)
    lane.on_batch = lambda batch_id: (root / "progress").write_text(str(batch_id))
    lane.feed(*SHORT.plan[0][:1])
    handles: list[Any] = []

    def start() -> Any:
        handles.append(lane.start(available_now=False))
        return handles[-1]

    def stop(*_: object) -> None:
        statestore.stop_with_savepoint(handles[-1], root / "savepoint")

    signal.signal(signal.SIGTERM, stop)
    past = statestore.run(start)
    version = statestore.Savepoint(root / "savepoint").info.version
    lane.feed(*SHORT.plan[0][1:2])
    is_interrupted = False
    try:
        statestore.run(start)
    except KeyboardInterrupt:
        is_interrupted = True
    is_active = handles[-1].isActive
    session.stop()
    return {
        "attempts": past.attempts,
        "version": version,
        "is_interrupted": is_interrupted,
        "is_active": is_active,
        "starts": len(handles),
    }


def connect_server(root: Path, jars: list[Path]) -> dict[str, Any]:
    """Serve Spark Connect until it is killed; `port` holds where."""
    package = "org.apache.spark.sql.connect"
    conf = {
        "spark.plugins": f"{package}.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    session = start_application(root, jars, conf=conf)
    # A Scala object, which py4j takes for no class.
    service = getattr(getattr(session._jvm, f"{package}.service.SparkConnectService$"), "MODULE$")
    (root / "port.partial").write_text(str(service.localPort()))
    (root / "port.partial").rename(root / "port")
    threading.Event().wait()
    return {}


def _lane(session: SparkSession, root: Path, query: Query, provider: str, conf: Any = None) -> Lane:
    return Lane(session, query, provider, root / query.name, conf)


def _kill_before(
    lane: Lane, batch_id: int, kind: Callable[[list[int]], list[int]], *, during: bool
) -> list[int]:
    """Kill one process of a kind before a batch of the lane, or while it runs; return its ID."""
    killed: list[int] = []

    def kill() -> None:
        found = kind(descendants(os.getpid()))
        if found:
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    before = lane.before_batch

    def before_batch(started: int) -> None:
        before(started)
        if started == batch_id and not killed:
            if during:
                threading.Timer(KILL_DELAY_S, kill).start()
            else:
                kill()

    lane.before_batch = before_batch
    return killed


def main(name: str, text: str) -> None:
    """Run a job by its name and write its report."""
    arguments = json.loads(text)
    root = Path(arguments.pop("root"))
    jars = [Path(jar) for jar in arguments.pop("jars")]
    known = (
        cluster, heap_cluster, endless, refused, resume, resume_lost, interpreters, supervised,
        connect_server, ended,
    )  # fmt: skip
    jobs: dict[str, Any] = {job.__name__: job for job in known}
    report = jobs[name](root, jars, **arguments)
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
