"""Restart at size: the first batch of a query on a machine that has none of its state.

    $ python -m benchmarks.large_state --keys 100000000 --work DIRECTORY
    $ python -m benchmarks.large_restart --work DIRECTORY [--providers ...] [--s3] [--rounds 2]

Every restart has an application of its own, bounded as in `large_state` and warmed by another
query: what a batch of 100,000 random keys takes from the call of `start()`, and the two batches
after it. The files of the checkpoint are dropped from the page cache before. With `--s3` the
checkpoint is first copied to a bucket of SeaweedFS on this machine, Spark goes to it through `s3a`.
A line tells the times, the bytes of the checkpoint, the bytes that came from the disk until the
first result and, with `--s3`, those that came through the network, and the largest resident memory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.large_state import (
    MIB,
    UPDATED_KEYS,
    batch_ms,
    bounded,
    say,
    start_query,
    write_batch,
)
from benchmarks.processes import engines_of, resident_bytes, run_for_each
from benchmarks.sessions import start_session
from benchmarks.workloads import STATE_STORE, Provider, find_provider
from examples.wikipedia_edits.jars import SPARK_JARS, fetch
from tests.seaweed import KEY, REGION, Seaweed

HADOOP_AWS = ("org.apache.hadoop", "hadoop-aws")
BUCKET = "checkpoints"
BATCHES = 3
POLL_S = 0.1


def main() -> int:
    """Restart every provider and print its lines; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="that of large_state")
    parser.add_argument("--keys", type=int, default=100_000_000, help="how many it loaded")
    parser.add_argument("--providers", default="rocksdb-backend,rocksdb-changelog")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--s3", action="store_true", help="with the checkpoint in a bucket")
    parser.add_argument("--application", help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    provider = arguments.application and find_provider(arguments.application)
    if provider:
        restart(provider, arguments.work / provider.id, arguments.keys, arguments.endpoint)
        return 0
    options = ["--work", str(arguments.work.resolve()), "--keys", str(arguments.keys)]
    say(f"{'':32}  {'first result':>12}", *("then", "checkpoint", "from disk", "network", "JVM"))
    failed = 0
    with ExitStack() as stack:
        if arguments.s3:
            os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
            options += ["--endpoint", stack.enter_context(_s3_of(arguments))]
        for _ in range(arguments.rounds):
            failed |= run_for_each("large_restart", arguments.providers, options)
    return failed


def restart(provider: Provider, work: Path, num_keys: int, endpoint: str | None) -> None:
    """Restart the query of a provider in this process and print its line."""
    spark = start_session(_in_a_bucket(bounded(provider), endpoint), _jars(endpoint))
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    checkpoint = f"s3a://{BUCKET}/{provider.id}/checkpoint" if endpoint else work / "checkpoint"
    folder = work / "input"
    generator = np.random.default_rng()

    def put_batch(into: Path) -> None:
        keys = generator.choice(num_keys, UPDATED_KEYS, replace=False)
        write_batch(into / f"restart-{time.time_ns()}.parquet", work, keys, generator)

    _warm_up(spark, put_batch)
    size = _forget_pages(work / "checkpoint")
    put_batch(folder)
    network = _bytes_of_network()
    with _largest(pid) as most:
        started = time.perf_counter()
        query = start_query(spark, folder, str(checkpoint))
        first = _first_batch(query)
        first_ms = (time.perf_counter() - started) * 1000
    network = _bytes_of_network() - network
    later = []
    for number in range(first + 1, first + BATCHES):
        put_batch(folder)
        later.append(batch_ms(query, number))
    query.stop()
    spark.stop()
    for file in folder.iterdir():
        file.unlink()
    say(
        f"{provider.title:>32}  {first_ms:9,.0f} ms",
        "/".join(f"{each:,}" for each in later),
        *(f"{each // MIB:,}" for each in (size, most["disk"], network if endpoint else 0)),
        "/".join(f"{most[each] // MIB:,}" for each in ("JVM", "engines")),
    )


def _warm_up(spark: SparkSession, put_batch: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="statestore-warm-up-") as directory:
        folder = Path(directory, "input")
        folder.mkdir()
        put_batch(folder)
        query = start_query(spark, folder, str(Path(directory, "checkpoint")))
        for number in range(BATCHES):
            batch_ms(query, number)
            put_batch(folder)
        query.stop()


def _first_batch(query: StreamingQuery) -> int:
    """Wait for the first batch and return its number."""
    while True:
        failure: Any = query.exception()
        if failure is not None:
            raise failure
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                return int(progress["batchId"])
        time.sleep(0.02)


def _forget_pages(directory: Path) -> int:
    """Drop files from the page cache and return how large they are."""
    os.sync()
    size = 0
    for file in directory.rglob("*"):
        if file.is_file():
            size += file.stat().st_size
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    return size


@contextmanager
def _largest(pid: int) -> Iterator[dict[str, int]]:
    """Look at a JVM and its engines until the block ends; yields what was largest, in bytes."""
    most = dict.fromkeys(("JVM", "engines", "disk"), 0)
    before = _read_bytes(pid)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(POLL_S):
            with suppress(OSError, StopIteration):
                engines = engines_of(pid)
                most["JVM"] = max(most["JVM"], resident_bytes(pid))
                most["engines"] = max(most["engines"], sum(map(resident_bytes, engines)))
                read = sum(map(_read_bytes, (pid, *engines))) - before
                most["disk"] = max(most["disk"], read)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


def _read_bytes(pid: int) -> int:
    """Return what a process has read from the disk itself, not from the page cache."""
    found = re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _bytes_of_network() -> int:
    """Return what was received over the loopback device."""
    found = re.search(r"^\s*lo:\s*(\d+)", Path("/proc/net/dev").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextmanager
def _s3_of(arguments: argparse.Namespace) -> Iterator[str]:
    """Serve the checkpoints from a bucket until the block ends; yields the server's URL."""
    directory = arguments.work / "s3"
    directory.mkdir(exist_ok=True)
    server = Seaweed(directory)
    client = server.client()
    try:
        client.create_bucket(Bucket=BUCKET)
        for name in arguments.providers.split(","):
            root = arguments.work / name
            files = [file for file in (root / "checkpoint").rglob("*") if file.is_file()]
            keys = [f"{name}/{file.relative_to(root)}" for file in files]
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(client.upload_file, map(str, files), [BUCKET] * len(files), keys))
        yield server.endpoint
    finally:
        server.stop()
        shutil.rmtree(directory)


def _in_a_bucket(provider: Provider, endpoint: str | None) -> Provider:
    if endpoint is None:
        return provider
    settings = {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": KEY,
    }
    if provider.is_ours:
        settings[f"{STATE_STORE}.s3.endpoint"] = endpoint
        settings[f"{STATE_STORE}.s3.region"] = REGION
        settings[f"{STATE_STORE}.s3.pathStyle"] = "true"
    return replace(provider, conf=(*provider.conf, *settings.items()))


def _jars(endpoint: str | None) -> tuple[Path, ...]:
    if endpoint is None:
        return ()
    (client,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    return tuple(fetch(*HADOOP_AWS, client.stem.rpartition("-")[2]))


if __name__ == "__main__":
    sys.exit(main())
