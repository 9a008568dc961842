"""W1, W2 and W3 on each Spark, in one table: own providers beside Spark's of the same minor.

    $ ./build.sh bench-spark 4.1 --rounds 1

measures on one Spark, into a folder of its own below `build/sparks`, and makes `sparks.md` there of
all such folders. A minor that has not been measured has an empty column.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.figures import Results
from benchmarks.processes import own_results
from benchmarks.report import FSYNC_NOTE
from benchmarks.workloads import OUR_ROCKSDB, OURS, find_provider
from statestore.core.version import SPARK_MINORS
from tools.spark_jars import INSTALLED

METRICS = (
    "W1 first batch",
    "W1 batch",
    "W1 commit",
    "W2-10k batch",
    "W2-1M batch",
    "W3 start to first result",
    "W3 restore",
)
PAIRS = (
    (OURS, "hdfs"),
    (OURS, "rocksdb-changelog"),
    (OUR_ROCKSDB, "rocksdb-changelog"),
    ("heap", "hdfs"),
)

OF_4_0 = (
    "The RocksDB provider of Spark 4.0 loads the state of an aggregation anew in every batch. So "
    "its batches are slow, and none stands out as the one that restores."
)


def render(results: dict[str, Results]) -> str:
    """Return the page; a pair of providers that no minor has measured is left out.

    Args:
        results: What was measured, by minor.
    """
    ratios = "Time of a provider of ours divided by that of one of the same Spark; medians."
    lines = ["# Each Spark", "", f"{ratios} {FSYNC_NOTE}", ""]
    for minor, measured in results.items():
        spark = measured.document["machine_info"]["spark"]
        rounds = measured.document["suite"].rpartition("rounds=")[2].rstrip(")")
        lines.append(f"- {minor}: Spark {spark}, runs of each: {rounds}")
    lines += ["", OF_4_0]
    header = ["metric", "of ours", "of Spark's", *SPARK_MINORS]
    rows = [
        [
            metric,
            find_provider(ours).title,
            find_provider(other).title,
            *(_ratio(results.get(minor), metric, ours, other) for minor in SPARK_MINORS),
        ]
        for metric in METRICS
        for ours, other in PAIRS
        if find_provider(ours).is_durable or not metric.startswith("W3")
    ]
    table = [header, ["---"] * len(header), *(row for row in rows if any(row[3:]))]
    return "\n".join([*lines, "", *(f"| {' | '.join(row)} |" for row in table)]) + "\n"


def _ratio(measured: Results | None, metric: str, ours: str, other: str) -> str:
    if measured is None or not (measured.find(metric, ours) and measured.find(metric, other)):
        return ""
    return f"{measured.ratio(metric, other, ours):.2f}"


def main() -> int:
    """Measure on the installed Spark with the given options of pytest, and write `sparks.md`."""
    results_of_all = own_results("sparks", "quick" if "--quick" in sys.argv else "full")
    folders = {minor: results_of_all / f"spark-{minor}" for minor in SPARK_MINORS}
    providers = dict.fromkeys(name for pair in PAIRS for name in pair)
    command = [sys.executable, "-m", "benchmarks", "--results", str(folders[INSTALLED])]
    command += [
        "--providers",
        ",".join(providers),
        "-k",
        "test_bench_query and not W7 and not W8 and not W9",
        *sys.argv[1:],
    ]
    done = subprocess.run(command, check=False)
    found = {minor: folder / "benchmark.json" for minor, folder in folders.items()}
    results = {minor: Results(path) for minor, path in found.items() if path.exists()}
    if results:
        (results_of_all / "sparks.md").write_text(render(results))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
