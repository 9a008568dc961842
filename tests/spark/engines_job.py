"""Counts the engines of one executor, whose JVM is told that its machine has 16 processors.

python -m tests.spark.engines_job ROOT CORES: with so many cores of the executor; prints the number.
"""

import os
import sys
from pathlib import Path

from statestore.io.shim_jar import find_jar

from .application import start_application
from .harness import FILESYSTEM, Lane
from .processes import EXECUTOR, command_line, descendants, engines
from .queries import AGGREGATION


def main() -> None:
    """Run a batch of 16 state partitions, and count."""
    root, cores = Path(sys.argv[1]), sys.argv[2]
    conf = {
        "spark.executor.cores": cores,
        "spark.executor.extraJavaOptions": "-XX:ActiveProcessorCount=16",
    }
    spark = start_application(root / "application", [find_jar()], "local-cluster[1,4,1024]", conf)
    spark.conf.set("spark.sql.shuffle.partitions", "16")
    lane = Lane(
        spark, AGGREGATION, FILESYSTEM, root / "lane", {"spark.sql.shuffle.partitions": "16"}
    )
    lane.run(*AGGREGATION.plan[0])
    (executor,) = (pid for pid in descendants(os.getpid()) if EXECUTOR in command_line(pid))
    sys.stdout.write(f"{len(engines(descendants(executor)))}\n")


if __name__ == "__main__":
    main()
