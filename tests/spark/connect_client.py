"""What a client of Spark Connect does: `python -m tests.spark.connect_client NAME ARGUMENTS`.

A process of its own, since PySpark has one kind of session in a process. ARGUMENTS is JSON with
`root`, the folder of everything the client writes, and `url`, the server's; the client writes
`report.json` there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import statestore
from statestore import Checkpoint, FixedDelay

from .features import missing
from .harness import NUM_PARTITIONS, STATE_STORE, Files, Lane, Query, run_plan
from .queries import AGGREGATION, OPERATORS
from .state_variables import CHAINED, everything

VARIABLES = [everything("pandas"), everything("row"), everything("row", initial=True)]
QUERIES = {
    query.name: query
    for query in (*OPERATORS, *VARIABLES, *CHAINED)
    if "map-groups" not in query.name  # which are in Scala
}
"""What a client can say in Python."""


class _RowFiles:
    """Keeps the rows of every batch in a folder, from the tasks that return them.

    Not by foreachBatch: Spark gives its Python process ten seconds to come up, however busy the
    machine is.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition: int, batch: int) -> bool:
        self.name, self.rows = f"{batch}-{partition}", []
        return True

    def process(self, row: Any) -> None:
        self.rows.append(repr(tuple(row[0])))

    def close(self, error: Exception | None) -> None:
        if error is None:
            Path(self.folder, self.name).write_text(json.dumps(self.rows))


class ConnectLane(Lane):
    """A lane whose every run has a session of its own with the server.

    Attributes:
        rows: The folder with the rows of every batch.
        made: The newest session.
    """

    def __init__(self, url: str, query: Query, backend: str, root: Path) -> None:
        super().__init__(None, query, "", root)
        self.url = url
        self.backend = backend
        self.rows = root / "rows"
        self.rows.mkdir(exist_ok=True)
        self.made: Any = None

    def session(self) -> Any:
        builder = statestore.configure(SparkSession.builder.remote(self.url), self.backend)
        self.made = builder.create()
        for key, value in self.query.conf.items():
            self.made.conf.set(key, value)
        return self.made

    def run(self, *batches: Files) -> None:
        try:
            super().run(*batches)
        finally:
            self.made.stop()

    def _keep_rows(self, frame: Any) -> Any:
        # Spark's sink cannot take the rows of applyInPandasWithState as they are.
        return frame.select(sf.struct("*")).writeStream.foreach(_RowFiles(str(self.rows)))

    def _keep_failed_tasks(self, handle: Any) -> None:
        """Do nothing: a client sees no tasks."""

    def report(self) -> dict[str, Any]:
        """Return the rows of every batch, and the progress of those that were run to their end."""
        batches: dict[int, list[str]] = {}
        for path in self.rows.iterdir():
            batch, _, _ = path.name.partition("-")
            batches.setdefault(int(batch), []).extend(json.loads(path.read_text()))
        rows = {batch: sorted(of_batch) for batch, of_batch in batches.items()}
        return {"batches": rows, "progress": self.progress}


def run_query(root: Path, url: str, query: str, backend: str) -> dict[str, Any]:
    """Run a query through its plan."""
    lane = ConnectLane(url, QUERIES[query], backend, root)
    run_plan(lane)
    return lane.report()


def use_helpers(root: Path, url: str, backend: str) -> dict[str, Any]:
    """Call what the package has for programs; return what it returns, or how it is refused."""
    lane = ConnectLane(url, AGGREGATION, backend, root)
    (first, *later), *rest = AGGREGATION.plan
    lane.feed(first)
    attempts = iter([_fail, lane.start])
    past = statestore.run(lambda: next(attempts)(), FixedDelay(1, 0))
    checkpoint, new = str(lane.checkpoint), str(root / "new")
    worked = {
        "run": past.attempts,
        "read": Checkpoint(checkpoint).rows().read().num_rows,
        "open_store": sum(map(_num_stored, [checkpoint] * NUM_PARTITIONS, range(NUM_PARTITIONS))),
        "savepoint": Checkpoint(checkpoint).savepoint(root / "savepoint").made.info.version,
    }
    if not missing("reader-of-ids"):
        reader = lane.made.read.format("statestore")
        worked["state reader"] = reader.load(checkpoint).count()
        lane.made.conf.set("spark.sql.catalog.state", "io.statestore.StateCatalog")
        worked["catalog"] = lane.made.table(f"state.`{checkpoint}`.state").count()
    lane.made.stop()

    lane.feed(*later)
    query = lane.start(available_now=False)
    listener = statestore.CheckpointListener()
    refused = {
        "listen": _refusal(lambda: statestore.listen(query, listener)),
        "stop_with_savepoint": _refusal(lambda: statestore.stop_with_savepoint(query, new)),
        "Checkpoint": _refusal(lambda: Checkpoint(checkpoint, spark=lane.made)),
    }
    query.processAllAvailable()
    query.stop()
    # Else it would go on with the checkpoint itself.
    refused["try_job"] = _refusal(
        lambda: statestore.try_job(checkpoint, lane.start, trial=root / "trial")
    )
    refused["convert"] = _refusal(lambda: Checkpoint(checkpoint).convert(new, "spark-rocksdb"))
    lane.made.stop()
    for batches in rest:
        lane.run(*batches)
    return {
        "worked": worked,
        "refused": refused,
        "made": Path(new).exists(),
        "batches": lane.report()["batches"],
    }


def fail_queries(root: Path, url: str, backend: str) -> dict[str, str | None]:
    """Return what `find_obstacle` says of failures."""
    lane = ConnectLane(url, AGGREGATION, backend, root)
    (first, second), *_ = AGGREGATION.plan
    lane.run(first)
    lane.feed(second)

    def other(expression: str) -> Query:
        return replace(
            AGGREGATION, build=lambda _, streams: streams["events"].groupBy(expression).count()
        )

    out_of_range = {f"{STATE_STORE}.snapshot.maxChainLength": "-1"}
    found = {
        "a column that is not there": _obstacle(lane, other("nothing")),
        "another key": _obstacle(lane, other("value")),
        "an option out of range": _obstacle(lane, replace(AGGREGATION, conf=out_of_range)),
    }
    lane.rows.rename(root / "aside")
    found["a sink that fails"] = _obstacle(lane, AGGREGATION)
    for path in lane.checkpoint.rglob("*.delta.*"):
        path.write_bytes(b"damaged")
    found["state that is damaged"] = _obstacle(lane, AGGREGATION)
    return found


def _obstacle(lane: ConnectLane, query: Query) -> str | None:
    lane.query = query
    try:
        lane.run()
    except Exception as error:  # noqa: BLE001, the package judges whatever it is
        return statestore.find_obstacle(error)
    raise AssertionError("the query did not fail")


def _fail() -> Any:
    message = "the server does not answer"
    raise ConnectionError(message)


def _num_stored(checkpoint: str, partition: int) -> int:
    with Checkpoint(checkpoint).open_store(partition=partition) as store:
        return sum(1 for _ in store.scan())


def _refusal(call: Callable[[], Any]) -> Sequence[str]:
    """Return kind and advice of the error that a call raises."""
    try:
        call()
    except statestore.StateStoreError as error:
        return error.kind, error.to_fix
    return ()


def main(name: str, text: str) -> None:
    """Run what is named and write its report."""
    arguments = json.loads(text)
    root = Path(arguments.pop("root"))
    del arguments["jars"]
    known = (run_query, use_helpers, fail_queries)
    jobs: dict[str, Any] = {job.__name__: job for job in known}
    report = jobs[name](root, **arguments)
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
