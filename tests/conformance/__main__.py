"""Spark's own test suites on the providers: `./build.sh conformance [SUITE...]`.

Each suite runs first on a provider that does not exist: what passes there proves nothing of a
store, and is not run again. The rest runs on the providers asked for; then what did not pass, on
the provider that the suite itself chooses. Results are kept, a line a test, in `build/conformance`,
or where `--results` says, and a page is made of them: `build/conformance.md`, or, of the published
ones, docs/conformance.md. A second run goes on where the first one stopped, and repeats what failed
for no known reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from examples.wikipedia_edits.jars import JarsUnreachableError
from statestore.core.version import SPARK_MINORS
from tools.shim_jar import ROOT

from .jvm import SparkTests
from .page import PAGE, render
from .results import OURS, PUBLISHED, Known, Results, results_file

_CLASSES = {
    "control": "io.statestore.NoSuchProvider",
    "filesystem": "io.statestore.FileSystemStateStoreProvider",
    "rocksdb": "io.statestore.RocksDBStateStoreProvider",
    "heap": "io.statestore.HeapStateStoreProvider",
    "spark": None,
}
_OWN = ROOT / "build" / "conformance"
_LOG = ROOT / "build" / "conformance.log"
_GO_ON = 3
"""Status of a process that leaves tests to another: `RunSuite`."""


class Lane:
    """Runs suites on one Spark.

    Args:
        known: What is known of suites and their failures.
        minor: Of Spark.
        kept: Folder of the results.
    """

    def __init__(self, known: Known, minor: str, kept: Path) -> None:
        self.known = known
        self.minor = minor
        self._kept = kept
        self._tests = SparkTests(known, minor)
        self.suites = self._tests.suites

    def run(self, suite: str, providers: list[str]) -> Results:
        """Run what is not done of a suite; return all that is known of it."""
        file = results_file(self._kept, self.minor, suite)
        file.parent.mkdir(parents=True, exist_ok=True)
        Results.read(self._kept, self.minor, suite).forget_unexplained(self.known)
        for stage in (["control"], providers, ["spark"]):
            while not self._start(suite, self._plan(suite, stage), file):
                pass
        return Results.read(self._kept, self.minor, suite)

    def _plan(self, suite: str, providers: list[str]) -> list[dict[str, object]]:
        """Return what is left to run of a suite, a run for each provider."""
        results = Results.read(self._kept, self.minor, suite)
        runs: list[dict[str, object]] = []
        for provider in providers:
            done, only = results.done(provider), None
            if provider == "spark":
                only = sorted(results.not_passed() - done)
                ended = not only
            else:
                ended = results.ended(provider)
                if provider != "control" and not self.known.runs_whole(suite):
                    done |= results.passed("control")
            if not ended:
                run = {"provider": provider, "key": self.known.key(suite), "only": only}
                run |= {"class": _CLASSES[provider], "done": sorted(done)}
                runs.append(run | {"messages": provider != "control"})
        return runs

    def _start(self, suite: str, runs: list[dict[str, object]], file: Path) -> bool:
        """Run a plan; return whether it came to its end."""
        if not runs:
            return True
        print(
            f"{self.minor} {suite}: {', '.join(str(run['provider']) for run in runs)}", flush=True
        )
        plan = {
            "suite": self.suites[suite],
            "left_out": self.known.left_out,
            "extensions": self._tests.extensions,
            "runs": runs,
        }
        with tempfile.TemporaryDirectory(prefix="conformance-") as work:
            Path(work, "plan.json").write_text(json.dumps(plan))
            arguments = ["plan.json", str(file.resolve())]
            with _LOG.open("ab") as log:
                status = self._tests.run("conformance.RunSuite", arguments, Path(work), log)
        if status not in {0, _GO_ON}:
            sys.exit(f"the process of {suite} ended with {status}: log={_LOG}")
        return status == 0


def _main() -> int:
    known = Known.read()
    parser = argparse.ArgumentParser(prog="build.sh conformance", description=__doc__)
    parser.add_argument("suites", metavar="SUITE", nargs="*", help="class name; none: all")
    parser.add_argument("--spark", choices=SPARK_MINORS, default="4.2")
    parser.add_argument("--providers", default="filesystem,rocksdb", help="also heap")
    parser.add_argument(
        "--results", type=Path, default=_OWN, help=f"folder; published: {PUBLISHED}"
    )
    arguments = parser.parse_args()
    providers = arguments.providers.split(",")
    if not set(providers) <= set(OURS):
        parser.error(f"no such provider: providers={providers}. To fix: of {', '.join(OURS)}")
    kept = arguments.results.resolve()
    _LOG.parent.mkdir(exist_ok=True)
    try:
        lane = Lane(known, arguments.spark, kept)
    except JarsUnreachableError as error:
        sys.exit(f"Spark's tests cannot be fetched: {error}")
    for suite in arguments.suites or lane.suites:
        if suite not in lane.suites:
            parser.error(f"no such suite: suite={suite}. To fix: one of {', '.join(lane.suites)}")
        print(lane.run(suite, providers).summary(), flush=True)
    page = PAGE if kept == PUBLISHED else kept.parent / f"{kept.name}.md"
    page.write_text(render(known, kept))
    print(page)
    unexplained = [
        line for results in Results.read_all(kept) for line in results.unexplained(known)
    ]
    for line in unexplained:
        print(f"no known reason: {line}")
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(_main())
