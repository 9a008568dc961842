"""Nexmark as a benchmark that compares stores, and the words of its page."""

from __future__ import annotations

from benchmarks.comparison.benchmark import Benchmark, Page
from benchmarks.nexmark.expected import expect
from benchmarks.nexmark.generator import AUCTIONS, BIDS, PERSONS, event_files
from benchmarks.nexmark.queries import LEFT_OUT, QUERIES, find_query, stream

ABOUT = (
    f"Nexmark has people, auctions and bids, {PERSONS} : {AUCTIONS} : {BIDS}, and asks for what an"
    " auction house wants to know. This is it for Spark Structured Streaming."
)
NOTES = (
    "Joins are in state format 4. The HDFS-backed store has them in 2, the only one it can; so has"
    " RocksDB without a changelog, since that is its default."
)


def _written() -> str:
    rows = [["query", "asks for", "in Spark", "differs from the reference"], ["---"] * 4]
    rows += [[query.name, query.title, query.written, query.differs] for query in QUERIES]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


NEXMARK = Benchmark(
    name="nexmark",
    rows="events",
    choice="queries",
    column="query",
    num_rows=5_000_000,
    rows_per_file=100_000,
    queries=tuple(query.name for query in QUERIES),
    find_query=find_query,
    input_files=event_files,
    stream=stream,
    expect=expect,
    page=Page(
        title="Nexmark",
        about=ABOUT,
        origin="DuckDB computes over the same files",
        notes=NOTES,
        end=(
            "## The queries",
            f"{LEFT_OUT} The HDFS-backed store has no transformWithState.",
            _written(),
        ),
    ),
)
