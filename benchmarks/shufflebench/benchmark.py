"""ShuffleBench as a benchmark that compares stores, and the words of its page."""

from __future__ import annotations

from benchmarks.comparison.benchmark import Benchmark, Page
from benchmarks.shufflebench.expected import expect
from benchmarks.shufflebench.query import find_query, stream
from benchmarks.shufflebench.records import OUTPUT_RATE, RECORD_BYTES, SELECTIVITY, record_files

ABOUT = (
    f"ShuffleBench has records of {RECORD_BYTES:,} random bytes and rules. Each record is sent to"
    " the consumer of every rule that takes it. A consumer keeps a count, a checksum and two times"
    f" as state, and returns them every {OUTPUT_RATE} records. All rules are alike and together"
    f" take {SELECTIVITY:.0%} of the records: of a million records {SELECTIVITY * 1e6:,.0f} reach"
    " the state, whatever the number of rules. This is it for Spark Structured Streaming, with"
    " `flatMapGroupsWithState`."
)
NOTES = (
    "State that no consumer has returned yet is counted, not compared. With more rules than"
    " records that they take, nearly every one of those inserts a row, and few rows are updated."
)
END = """\
The original is [dynatrace-research/ShuffleBench][repository], described by Henning, Vogel,
Leichtfried, Ettl and Rabiser at [ICPE 2024][paper]. No code of it is used. Sizes are those of its
load generator and of its manifests for Kubernetes, which have a million rules. By default it has
1,000.

| | original | here |
| --- | --- | --- |
| machines | a cluster, Kafka and load generators on nodes of their own | one machine |
| input | a topic of Kafka with 100 partitions, a set number of records a second | Parquet files |
| output | a topic of Kafka | dropped |
| Spark | 3.4, RocksDB, 100 state partitions | as above, 4 state partitions |
| a batch | what came since the last one | a file |
| measured | records a second that the cluster keeps up with, latency | CPU, records a second |
| rule | takes records by a hash of 16 bytes | by a number in them, which is as random |
| search for rules | 65,536 slots, all rules of a slot asked | binary search |
| rows of Spark | Kryo | encoders of case classes |
| order | a consumer takes its records as they arrive | by their times, so that runs compare |
| first count | random, by a hash of the record | random, a number in the record |

It cannot show what the original is for: a shuffle over a network. Here it goes through files of one
machine and two cores. Nor does it show latency, or how throughput grows with machines.

[repository]: https://github.com/dynatrace-research/ShuffleBench
[paper]: https://doi.org/10.1145/3629526.3645036"""

SHUFFLEBENCH = Benchmark(
    name="shufflebench",
    rows="records",
    choice="rules",
    column="number of rules",
    num_rows=1_000_000,
    rows_per_file=100_000,
    queries=("1000", "100000", "1000000"),
    find_query=find_query,
    input_files=record_files,
    stream=stream,
    expect=expect,
    page=Page(
        title="ShuffleBench",
        about=ABOUT,
        origin="NumPy computes over the same files",
        notes=NOTES,
        end=("## What differs from the original", END),
    ),
)
