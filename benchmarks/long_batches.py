"""What a batch of minutes asks of a store: many updates of few keys in one version.

    $ python -m benchmarks.long_batches [--updates 18000000] [--keys 100000] [--batches 10]

The defaults are half an hour of 10,000 rows a second, in each of ten batches. A store of one state
partition reads and writes random keys, as fast as it can: the clock is left out, so a batch takes
less than a minute. A line is a batch: µs of the thread's CPU for each update; the longest pair
of calls, in which the heap is collected, too; what the writes take on the heap (overlay), and on
disk (runs); the commit and the opening of the next version, which are the gap between two batches;
what lives on the heap after that; and the resident memory of JVM and engines.

Under the lines of a provider is how much larger its writes are than those of one update a key.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.processes import engines_of, resident_bytes, run_for_each
from benchmarks.store_runs import StoreDriver
from benchmarks.workloads import STATE_STORE, Provider, find_provider

PROVIDERS = "rocksdb-changelog,filesystem,rocksdb-backend"
MS, MIB = 1_000_000, 1 << 20


def main() -> int:
    """Run every provider and print its lines; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--updates", type=int, default=18_000_000, help="of a batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--providers", default=PROVIDERS)
    parser.add_argument("--overlay", type=int, default=-1, help="overlay.maxBytes, to see it spill")
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = (arguments.keys, arguments.updates, arguments.batches)
    if arguments.application:
        found = find_provider(arguments.application)
        overlay = (f"{STATE_STORE}.overlay.maxBytes", str(arguments.overlay))
        measure(replace(found, conf=(*found.conf, overlay)) if found.is_ours else found, *sizes)
        return 0
    given = [f"--keys={sizes[0]}", f"--updates={sizes[1]}", f"--batches={sizes[2]}"]
    given += [f"--overlay={arguments.overlay}"]
    return run_for_each("long_batches", arguments.providers, given)


def measure(provider: Provider, num_keys: int, num_updates: int, num_batches: int) -> None:
    """Run the batches of one provider in this process and print its lines."""
    work = Path(tempfile.mkdtemp(prefix="statestore-long-"))
    try:
        driver = StoreDriver(provider, work)
        driver.open("aggregation")
        driver.write(num_keys)
        once = overlay_bytes(driver.write(num_keys, update=1))
        say(
            provider.title,
            *("µs", "longest", "overlay", "runs", "commit", "open", "heap", "JVM", "engines"),
        )
        largest = 0
        for batch in range(num_batches):
            done = driver.long_batch(num_keys, num_updates, batch)
            largest = max(largest, overlay_bytes(done))
            custom = done["custom_metrics"]
            jvm = resident_bytes(driver.jvm_pid)
            engines = sum(map(resident_bytes, engines_of(driver.jvm_pid)))
            say(
                f"batch {batch}, {num_updates:,} updates of {num_keys:,} keys",
                f"{done['cpu_ns'] / 1000 / num_updates:.2f}",
                f"{done['longest_ns'] / MS:,.0f} ms",
                f"{overlay_bytes(done) / MIB:,.1f} MiB",
                str(custom.get("statestoreSpilledRuns", "")),
                f"{done['commit_ns'] / MS:,.0f} ms",
                f"{done['open_ns'] / MS:,.0f} ms",
                f"{driver.used_heap_bytes() / MIB:,.0f} MiB",
                f"{jvm / MIB:,.0f} MiB",
                f"{engines / MIB:,.0f} MiB",
            )
        if once:
            say(f"overlay of a batch beside one update a key: {largest / once:.2f}")
        driver.close_stores()
        driver.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def overlay_bytes(done: dict[str, Any]) -> int:
    """Return what the writes of a version took on the heap; 0 where the provider does not say."""
    return int(done["custom_metrics"].get("statestoreOverlayBytes", 0))


def say(text: str, *figures: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text:<56}" + "".join(figure.rjust(12) for figure in figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
