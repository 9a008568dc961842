"""Counts engines: of one executor, whose JVM is told that its machine has 16 processors, and of the
driver, whose queries ask for 4.

python -m tests.spark.engines_job ROOT CORES: with so many cores of the executor; prints both.
"""

import os
import sys
from pathlib import Path

from statestore.io.shim_jar import find_jar

from .application import start_application
from .harness import FILESYSTEM, STATE_STORE, Lane
from .processes import EXECUTOR, command_line, descendants, engines
from .queries import AGGREGATION


def main() -> None:
    """Run a batch of 16 state partitions, and count; then one of each of 6 queries more."""
    root, cores = Path(sys.argv[1]), sys.argv[2]
    conf = {
        "spark.executor.cores": cores,
        "spark.executor.extraJavaOptions": "-XX:ActiveProcessorCount=16",
    }
    spark = start_application(root / "application", [find_jar()], "local-cluster[1,4,1024]", conf)
    spark.conf.set("spark.sql.shuffle.partitions", "16")
    (executor,) = (pid for pid in descendants(os.getpid()) if EXECUTOR in command_line(pid))

    def run(name: str, conf: dict[str, str]) -> set[int]:
        Lane(spark, AGGREGATION, FILESYSTEM, root / name, conf).run(*AGGREGATION.plan[0][:1])
        return set(engines(descendants(executor)))

    of_executor = run("lane", {"spark.sql.shuffle.partitions": "16"})
    for number in range(6):
        of_all = run(f"lane-{number}", {f"{STATE_STORE}.engine.processes": "4"})
    of_driver = set(engines(descendants(os.getpid()))) - of_all
    sys.stdout.write(f"{len(of_executor)} {len(of_driver)}\n")


if __name__ == "__main__":
    main()
