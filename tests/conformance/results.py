"""What suites did, as it is kept, and what is known of their failures."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statestore.core.version import __version__
from tools.shim_jar import ROOT

PUBLISHED = ROOT / "benchmarks" / "results" / __version__ / "conformance"
"""Results that docs/conformance.md shows."""
OURS = ("filesystem", "rocksdb", "heap")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why tests do not pass.

    Attributes:
        tests: Expression that finds "SUITE: TEST".
        message: Expression that finds what the test says.
        sparks: Minors that it is so on; none: on all.
        kind: One of the kinds of suites.toml.
        why: A sentence.
    """

    tests: str
    message: str
    kind: str
    why: str
    sparks: tuple[str, ...] = ()

    def explains(self, minor: str, suite: str, row: dict[str, str]) -> bool:
        """Return whether it is of this failure."""
        return (
            (not self.sparks or minor in self.sparks)
            and re.search(self.tests, f"{suite}: {row['test']}") is not None
            and re.search(self.message, row["message"]) is not None
        )


class Known:
    """What suites.toml says."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.groups: dict[str, list[str]] = document["groups"]
        self.suites = [suite for group in self.groups.values() for suite in group]
        self.notes: dict[str, str] = document["notes"]
        self.left_out = "|".join(document["left_out"])
        self.not_run: dict[str, str] = {**document["left_out"], **document["not_run"]}
        self.kinds: dict[str, str] = document["kinds"]
        self.reasons = [
            Reason(**entry | {"sparks": tuple(entry.get("sparks", ()))})
            for entry in document["reason"]
        ]

    @classmethod
    def read(cls) -> Known:
        return cls(tomllib.loads((Path(__file__).parent / "suites.toml").read_text()))

    def releases(self, minor: str) -> tuple[str, str]:
        """Return the release of Spark, and that of its tests."""
        entry = self._document["sparks"][minor]
        return entry["spark"], entry["tests"]

    def runs_whole(self, suite: str) -> bool:
        """Return whether tests run on a provider that pass on none, too."""
        return suite in self.groups["Real-time mode"]

    def key(self, suite: str) -> str:
        """Return the key that a session names the provider by."""
        if suite in self.groups["Real-time mode"]:
            return "spark.statestore.providerClass"
        return "spark.sql.streaming.stateStore.providerClass"

    def reason(self, minor: str, suite: str, row: dict[str, str]) -> Reason | None:
        """Return why a test did not pass."""
        return next((r for r in self.reasons if r.explains(minor, suite, row)), None)


class Results:
    """What is known of a suite on a Spark: rows of provider, test, outcome, ms and message."""

    def __init__(self, file: Path, rows: list[dict[str, str]]) -> None:
        self._file = file
        self.minor = file.parent.name
        self.suite = file.stem
        self._rows = rows
        self._last = {(row["provider"], row["test"]): row for row in rows}

    @classmethod
    def read(cls, kept: Path, minor: str, suite: str) -> Results:
        file = results_file(kept, minor, suite)
        lines = file.read_text().splitlines() if file.exists() else []
        return cls(file, [json.loads(line) for line in lines])

    @classmethod
    def read_all(cls, kept: Path) -> Iterator[Results]:
        for file in sorted(kept.glob("*/*.jsonl")):
            yield cls.read(kept, file.parent.name, file.stem)

    def of(self, provider: str) -> dict[str, str]:
        """Return the outcome of each test that ran on a provider."""
        return {t: row["outcome"] for (p, t), row in self._last.items() if p == provider and t}

    def tests(self) -> set[str]:
        """Return all that ran on any provider."""
        return {test for _, test in self._last} - {""}

    def done(self, provider: str) -> set[str]:
        return set(self.of(provider))

    def passed(self, provider: str) -> set[str]:
        return {test for test, outcome in self.of(provider).items() if outcome == "passed"}

    def ended(self, provider: str) -> bool:
        """Return whether a suite came to its end, well or not."""
        return (provider, "") in self._last

    def failures(self) -> list[dict[str, str]]:
        """Return the rows of what did not pass on a provider of ours."""
        return [
            row
            for (provider, _), row in self._last.items()
            if provider in OURS and row["outcome"] not in {"passed", "ended"}
        ]

    def not_passed(self) -> set[str]:
        return {row["test"] for row in self.failures()} - {""}

    def unexplained(self, known: Known) -> list[dict[str, str]]:
        return [r for r in self.failures() if not known.reason(self.minor, self.suite, r)]

    def forget_unexplained(self, known: Known) -> None:
        """Take what failed for no known reason from the file: it runs again."""
        forgotten = self.unexplained(known)
        if not forgotten:
            return
        tests = {(row["provider"], row["test"]) for row in forgotten}
        again = {row["provider"] for row in forgotten}
        rows = [
            row
            for row in self._rows
            if (row["provider"], row["test"]) not in tests
            and not (row["provider"] in again and not row["test"])
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self._file.write_text(text)

    def summary(self) -> str:
        counts = [
            f"{provider} {len(self.passed(provider))} of {len(self.of(provider))}"
            for provider in ("control", *OURS, "spark")
            if self.of(provider)
        ]
        return f"  {self.suite}: passed on {', '.join(counts)}"


def results_file(kept: Path, minor: str, suite: str) -> Path:
    return kept / minor / f"{suite}.jsonl"
