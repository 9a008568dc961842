"""Runs the assignment end to end on a broker of its own, and prints the answers as tables.

    python -m examples.wikipedia_edits.answers --edits FILE --directory DIR

Every result is compared with a plain sum over the file; a difference ends the script with an error.
What a run printed is in `DIR/*.log`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from examples.wikipedia_edits.broker import ROOT, Broker
from examples.wikipedia_edits.jars import SPARK_JARS
from examples.wikipedia_edits.topics import produce, read_edits, read_totals, start_spark
from statestore import Checkpoint

TIMEOUT_S = 600.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
CLUSTER = "local-cluster[2,1,1024]"
BACKENDS: dict[str, tuple[str, ...]] = {
    "filesystem": ("--backend=filesystem",),
    "rocksdb, full": (
        "--backend=rocksdb",
        "--conf=spark.sql.streaming.stateStore.rocksdb.incremental=false",
    ),
    "rocksdb, incremental": ("--backend=rocksdb",),
    "heap": ("--backend=heap",),
}
KILOBYTES = "SELECT key, {'sum': value.sum / 1024.0, 'count': 0::BIGINT} AS value FROM state"
MEASURED = ("backend", "batch", "bytes added", "bytes of a restore", "commit, ms", "batch, ms")
RECONFIGURED = ("what", "state partitions", "totals of users")
FEWEST_EDITS = 24
"""Half of them are read in twelve batches."""
NOT_COMPATIBLE = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"


class AnswerError(Exception):
    """Something is not as the answers say it must be."""


class Place:
    """The broker, a Spark session to fill and read its topics, and the edits.

    Args:
        directory: New directory for all that is written.
        edits: File of the edits.
    """

    def __init__(self, directory: Path, edits: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        with gzip.open(edits, "rt") if edits.suffix == ".gz" else edits.open() as lines:
            self.edits = [(edit["user"], edit["delta"]) for edit in map(json.loads, lines)]
        if len(self.edits) < FEWEST_EDITS:
            raise AnswerError(
                f"edits={len(self.edits)} are too few. To fix: name a file of {FEWEST_EDITS}"
                " or more"
            )
        self.broker = Broker(directory / "broker")
        self.spark: SparkSession = start_spark("local[1]")
        self._lines = read_edits(self.spark, edits)

    def produce(self, first: int, last: int) -> None:
        """Send the edits from a number up to another, that one not."""
        lines = self._lines.where(f"number >= {first} AND number < {last}")
        produce(lines, self.broker.servers, "edits")

    def totals(self, topic: str) -> tuple[dict[str, Any], int, int]:
        """Return the newest totals of a topic, and how many records it has and were repeated."""
        return read_totals(self.spark, self.broker.servers, topic)

    def sums(self, first: int, last: int) -> Counter[str]:
        """Return the plain sum of every user."""
        sums: Counter[str] = Counter()
        for user, delta in self.edits[first:last]:
            sums[user] += delta
        return sums

    def close(self) -> None:
        """Stop Spark, then the broker, and delete what executors left beside Spark's jars."""
        self.spark.stop()
        self.broker.process.terminate()
        self.broker.process.wait()
        for left in (SPARK_JARS.parent / "work").glob("app-wikipedia-*"):
            shutil.rmtree(left, ignore_errors=True)


class Run:
    """The job, in a process group of its own.

    Args:
        place: Where.
        name: Of the checkpoint, the log and the topic it writes.
        arguments: More of the job's.
    """

    def __init__(self, place: Place, name: str, *arguments: str) -> None:
        self.checkpoint = place.directory / name
        self._log = place.directory / f"{name}.jsonl"
        self._output = place.directory / f"{name}.log"
        command = [sys.executable, "-m", "examples.wikipedia_edits.job"]
        command += ["--servers", place.broker.servers, "--output", name, "--log", str(self._log)]
        command += ["--checkpoint", str(self.checkpoint), *arguments]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of `attempt` or of `batch` so far; one cut short is left out."""
        text = self._log.read_text() if self._log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if kind in line]

    def await_batches(self, number: int) -> None:
        """Wait until the job has processed so many more batches."""
        wanted, end_s = len(self.log("batch")) + number, time.monotonic() + TIMEOUT_S
        while len(self.log("batch")) < wanted:
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise AnswerError(f"batches={wanted} not seen. To fix: read {self._output}")
            time.sleep(0.05)

    def kill_executor(self) -> None:
        """Kill one executor with -9."""
        listed = subprocess.check_output(["ps", "-A", "-o", "pid=,pgid=,args="], text=True)
        rows = [line.split(None, 2) for line in listed.splitlines()]
        pids = [
            int(pid)
            for pid, group, args in rows
            if int(group) == self.process.pid and EXECUTOR in args
        ]
        os.kill(pids[0], signal.SIGKILL)

    def kill(self) -> None:
        """Kill driver and JVM with -9, and all that they started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> Run:
        """Wait for the end of the job; fail unless it ended well."""
        if self.process.wait(TIMEOUT_S) != 0:
            raise AnswerError(f"the job failed. To fix: read {self._output}")
        return self

    def fail(self) -> str:
        """Wait for the end of the job and return what it printed; fail when it ended well."""
        if self.process.wait(TIMEOUT_S) == 0:
            raise AnswerError("the job went on from state that it cannot understand")
        return self._output.read_text(errors="replace")


def survive(place: Place, last: int, *arguments: str) -> list[Sequence[Any]]:
    """Run the job to the edit `last`, kill all that can be killed, and compare the result.

    An executor is killed only where `arguments` have a master with executors.
    """
    rows: list[Sequence[Any]] = []

    def add(event: str, run: Run) -> None:
        batches = run.log("batch")
        rows.append((event, len(run.log("attempt")), batches[-1]["batch"] if batches else "-"))

    run = Run(place, "diffs", *arguments)
    run.await_batches(2)
    add("runs", run)
    if any(CLUSTER in argument for argument in arguments):
        run.kill_executor()
        run.await_batches(2)
        add("2 batches after kill -9 of an executor", run)
    place.broker.kill()
    place.broker.start()
    run.await_batches(2)
    add("2 batches after kill -9 of the broker", run)
    run.kill()
    run = Run(place, "diffs", *arguments).finish()
    add("end, after kill -9 of the driver", run)
    # What a driver leaves that dies after the records of a batch, and before its commit.
    commits = [path for path in (run.checkpoint / "commits").iterdir() if path.name.isdigit()]
    newest = max(commits, key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run = Run(place, "diffs", *arguments).finish()
    add("end, after the newest batch was repeated", run)
    wanted = {user: {"diff": diff} for user, diff in place.sums(0, last).items()}
    if compare(place, "diffs", wanted) == 0:
        raise AnswerError("no batch was repeated")
    return rows


def compare(place: Place, topic: str, wanted: dict[str, Any]) -> int:
    """Compare the newest totals of a topic with a plain computation; return repeated records."""
    totals, num_records, num_repeated = place.totals(topic)
    wrong = {user for user in wanted if totals.get(user, {}) != wanted[user]}
    if wrong or not totals.keys() <= wanted.keys():
        raise AnswerError(f"topic={topic}, wrong={len(wrong)}, such as {sorted(wrong)[:3]}")
    counts = f"records={num_records}, repeated={num_repeated}"
    print(f"{topic}: {len(wanted):,} users equal, {counts}", flush=True)
    return num_repeated


def measure(place: Place, last: int) -> list[Sequence[Any]]:
    """Return size and time of five checkpoints on every backend."""
    rows: list[Sequence[Any]] = []
    wanted = {user: {"diff": diff} for user, diff in place.sums(0, last).items()}
    for number, (title, arguments) in enumerate(BACKENDS.items()):
        per_batch = f"--per-batch={-(-last // 5)}"
        run = Run(place, f"backend-{number}", per_batch, *arguments).finish()
        times = {line["batch"]: line for line in run.log("batch")}
        sizes = {}
        if title != "heap":
            sizes = {version.batch: version for version in Checkpoint(run.checkpoint).versions()}
        for batch, line in sorted(times.items()):
            size = sizes.get(batch)
            added, full = (size.incremental_bytes, size.full_bytes) if size else ("-", "-")
            rows.append((title, batch, added, full, line["commit_ms"], line["batch_ms"]))
        compare(place, f"backend-{number}", wanted)
    return rows


def reconfigure(place: Place, half: int) -> list[Sequence[Any]]:
    """Take a savepoint at the edit `half`, and go on from it to the end in three ways."""
    num_edits = len(place.edits)
    checkpoint = Checkpoint(place.directory / "diffs")
    savepoint = checkpoint.savepoint(place.directory / "savepoint").made
    savepoint.restore(place.directory / "rescaled", num_partitions=8)
    savepoint.restore(place.directory / "refused")
    changed = checkpoint.transform(
        place.directory / "transformed", {0: KILOBYTES}, change_schema=True
    ).made
    changed.restore(place.directory / "kilobytes")
    place.produce(half, num_edits)

    rescaled = Run(place, "rescaled").finish()
    sums = place.sums(0, num_edits)
    later = Counter(user for user, _ in place.edits[half:])
    compare(place, "rescaled", {user: {"diff": sums[user]} for user in later})
    if NOT_COMPATIBLE not in Run(place, "refused", "--logic=kilobytes").fail():
        raise AnswerError(f"the changed logic did not end with {NOT_COMPATIBLE}")
    kilobytes = Run(place, "kilobytes", "--logic=kilobytes").finish()
    wanted = {user: {"diff": sums[user] / 1024, "edits": later[user]} for user in later}
    compare(place, "kilobytes", wanted)
    return [
        ("restore with 8 state partitions", rescaled.log("batch")[-1]["partitions"], "equal"),
        ("restore, then the changed logic", "-", f"refused: {NOT_COMPATIBLE}"),
        (
            "transform to kilobytes, restore, then the changed logic",
            kilobytes.log("batch")[-1]["partitions"],
            "equal, in kilobytes",
        ),
    ]


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(f'{v:,}' if isinstance(v, int) else str(v) for v in row)} |")


def main() -> None:
    """Parse the command line, run everything, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--edits", type=Path, required=True, help="JSON lines with user and delta")
    parser.add_argument("--directory", type=Path, required=True, help="new directory")
    parser.add_argument("--master", default=CLUSTER, help="of the query that is killed")
    parser.add_argument("--only-restarts", action="store_true", help="the first question alone")
    arguments = parser.parse_args()
    place = Place(arguments.directory.resolve(), arguments.edits)
    try:
        half = len(place.edits) // 2
        place.produce(0, half)
        rows = survive(place, half, f"--master={arguments.master}", f"--per-batch={half // 12}")
        print_table("Restarts", ("event", "attempt", "newest batch"), rows)
        if not arguments.only_restarts:
            print_table("Checkpoints", MEASURED, measure(place, half))
            print_table("Savepoints", RECONFIGURED, reconfigure(place, half))
    finally:
        place.close()


if __name__ == "__main__":
    main()
