"""Runs queries whose rows are outside of the JVM's heap, in an application that has memory there.

python -m tests.spark.off_heap_job ROOT MIB ROWS: compares each batch, of so many rows, with that of
Spark's own provider. It prints the bytes outside of the heap, with the rows of each query and after
all stores were closed; then those that are left a while after the queries have ended; then the
error of each query that found no memory left. Such a query goes on on the heap.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from statestore.io.shim_jar import find_jar

from .application import start_application
from .harness import FILESYSTEM, HDFS, ROCKSDB_BACKEND, STATE_STORE, Lane, assert_same, run_plan
from .queries import AGGREGATION, WINDOW_APPEND, one_input

OFF_HEAP = f"{STATE_STORE}.offHeap.enabled"
RUNS = [
    (AGGREGATION, FILESYSTEM),
    (WINDOW_APPEND, FILESYSTEM),
    (AGGREGATION, ROCKSDB_BACKEND),
]
FAILURE = "the sink failed once"


def main() -> None:
    """Run the queries, compare, and print what was measured."""
    root, mib, num_rows = Path(sys.argv[1]), *map(int, sys.argv[2:])
    plan = one_input(2, 1, num_rows=num_rows, num_keys=num_rows)
    conf = {
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": f"{mib}m",
        # Spark closes the stores of a query that has ended with its next maintenance.
        f"{STATE_STORE}.maintenanceInterval": "1h",
    }
    spark = start_application(root / "application", [find_jar()], conf=conf)
    jvm: Any = spark._jvm
    held = jvm.io.statestore.provider.OffHeap.bytes
    used, errors = [], []
    references: dict[str, Lane] = {}
    for small, provider in RUNS:
        query = replace(small, plan=plan)
        if query.name not in references:
            references[query.name] = Lane(spark, query, HDFS, root / f"{query.name}-spark")
            run_plan(references[query.name])
        place = root / f"{query.name}-{provider.rpartition('.')[2]}"
        ours = Lane(spark, query, provider, place, {OFF_HEAP: "true"})
        errors += run(ours)
        used.append(held())
        assert_same(references[query.name], ours)
    await_nothing(held)
    left = held()
    stores = getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
    getattr(stores, "MODULE$").stop()
    await_nothing(held)
    sys.stdout.write(json.dumps([*used, held()]) + "\n")
    sys.stdout.write(json.dumps(left) + "\n")
    sys.stdout.write(json.dumps(errors) + "\n")


def await_nothing(held: Any) -> None:
    """Wait until no byte is taken; memory that was freed is given back 10 seconds later."""
    end = time.monotonic() + 60
    while held() and time.monotonic() < end:
        time.sleep(0.5)


def run(lane: Lane) -> list[str]:
    """Run a plan; the sink of its third batch fails once, behind the commit of all stores."""
    errors = []

    def fail(batch_id: int) -> None:
        if batch_id == 2 and lane.attempts[batch_id] == 1:
            raise RuntimeError(FAILURE)

    lane.on_batch = fail
    for batches in lane.query.plan:
        lane.feed(*batches)
        while True:
            try:
                lane.run()
                break
            except StreamingQueryException as error:
                if FAILURE not in str(error):
                    if lane.conf[OFF_HEAP] == "false":
                        raise
                    errors.append(str(error))
                    lane.conf[OFF_HEAP] = "false"
    return errors


if __name__ == "__main__":
    main()
