"""docs/conformance.md, of the results that are kept."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from statestore.core.version import SPARK_MINORS
from tools.shim_jar import ROOT

from .results import OURS, PUBLISHED, Known, Results

PAGE = ROOT / "docs" / "conformance.md"

_HEAD = """\
# Spark's own test suites

Spark publishes its tests. Here they run on the state backends of this package:

```sh
./build.sh conformance StreamingOuterJoinV4Suite
./build.sh conformance --spark 4.2 --providers filesystem,rocksdb,heap
```

Without a name it runs all suites below. It fetches Spark's tests, keeps what it found in
`build/conformance`, writes `build/conformance.md`, goes on where it stopped, and fails where a test
does not pass for no known reason. This page shows the published results: `--results FOLDER` says
of which folder.

- **Redirected.** Many suites name a provider of Spark's. A class over each suite puts the asked one
  in its place: in `withSQLConf`, in the session, in the application. Nothing else changes.
- **Control.** Each suite runs first on a provider that does not exist. A test that passes there
  proves nothing of a store: it does not run on the state backends, and is not counted. A suite
  without any other is marked. Tests of real-time mode run all the same.
- **Built-in.** What does not pass runs once more as it is, on the provider that the suite names.
- **Files.** Spark's own offset and commit logs are written by
  `FileSystemBasedCheckpointFileManager`, which is faster on a local disk. State is not.

What does not pass is one of these:

| | |
|---|---|
| documented | the provider differs from Spark's, and the page that is linked says so |
| a name of Spark's | the test wants a class, a file or an error of one of Spark's own providers |
| Spark's gate | Spark gives it to its own provider only, by the name of the class |
| not of the store | the built-in provider does not pass it here either, or the machine is slow |
| another Spark | the test is of another release than the Spark that runs |

| Spark | that runs | tests of |
|---|---|---|
"""

_SKEW = ": the registry has no newer ones. What this Spark added is not tested"


def render(known: Known, kept: Path = PUBLISHED) -> str:
    """Return the page of the results in a folder."""
    lines = [_HEAD.rstrip()]
    for minor in SPARK_MINORS:
        spark, tests = known.releases(minor)
        other = (
            ""
            if spark == tests
            else ": the registry has no newer ones. What 4.3 added is not tested here"
        )
        lines.append(f"| {minor} | {spark} | {tests}{other} |")
    for minor in reversed(SPARK_MINORS):
        lines += _minor(known, minor, kept)
    lines += ["", "## Not run", "", "| tests | why |", "|---|---|"]
    lines += [f"| `{name.replace(chr(92), '')}` | {why} |" for name, why in known.not_run.items()]
    return "\n".join(lines) + "\n"


def _minor(known: Known, minor: str, kept: Path) -> Iterator[str]:
    run = {suite: Results.read(kept, minor, suite) for suite in known.suites}
    run = {suite: results for suite, results in run.items() if results.tests()}
    if not run:
        return
    providers = [p for p in OURS if any(results.of(p) for results in run.values())]
    yield from (
        "",
        f"## On Spark {minor}",
        "",
        "Passed of those that ran and need a store; an empty field was not run:",
        "",
    )
    yield f"| suite | tests | need a store | {' | '.join(providers)} |"
    yield "|---" * (3 + len(providers)) + "|"
    for group, suites in known.groups.items():
        if any(suite in run for suite in suites):
            note = f": {known.notes[group]}" if group in known.notes else ""
            yield f"| **{group}**{note} | | {'| ' * len(providers)}|"
        for suite in filter(run.__contains__, suites):
            yield _suite(run[suite], providers)
    missing = [suite for suite in known.suites if suite not in run]
    if missing:
        yield from (
            "",
            f"{len(missing)} of {len(known.suites)} suites have not run here, or are not among the "
            f"tests of {known.releases(minor)[1]}:",
            "",
            "| group | suites that have not run |",
            "|---|---|",
        )
        for group, suites in known.groups.items():
            names = [f"`{suite}`" for suite in suites if suite not in run]
            if names:
                yield f"| {group} | {'<br>'.join(names)} |"
    if any(results.failures() for results in run.values()):
        yield from ("", f"### Did not pass on {minor}", "")
        yield from _failures(known, run)


def _suite(results: Results, providers: list[str]) -> str:
    tests = results.tests()
    needed = len(tests - results.passed("control"))
    cells = [
        results.suite,
        str(len(tests)),
        str(needed) if needed else "**none: proves nothing**",
    ]
    for provider in providers:
        ran, passed = results.of(provider), results.passed(provider)
        text = f"{len(passed)} of {len(ran)}" if ran else ""
        if ran and not results.ended(provider):
            text += ", not all run"
        cells.append(text)
    return f"| {' | '.join(cells)} |"


def _failures(known: Known, run: dict[str, Results]) -> Iterator[str]:
    yield from ("| suite, test | on | why | built-in |", "|---|---|---|---|")
    for suite, results in run.items():
        found: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in results.failures():
            found[row["test"]].append(row)
        for test, rows in found.items():
            reasons = dict.fromkeys(known.reason(results.minor, suite, row) for row in rows)
            why = "; ".join(
                "**no known reason**" if r is None else f"{known.kinds[r.kind]}: {r.why}"
                for r in reasons
            )
            builtin = results.of("spark").get(test, "not run")
            name = _short(test) or "the whole suite"
            on = ", ".join(row["provider"] for row in rows)
            yield f"| {suite}: {name} | {on} | {why} | {builtin} |"


def _short(test: str) -> str:
    """Return a test's name as it fits a cell of a table."""
    test = test.replace("org.apache.spark.sql.execution.streaming.state.", "")
    return re.sub(r"[|<*_]", r"\\\g<0>", test)
