"""Attacks checkpoints of queries in real-time mode, whose batches last seconds.

    $ ./build.sh attack real_time --seed 7 --minutes 10 [--record FILE] [--keep DIRECTORY]

A query counts and sums numbers by key. It is read and copied while it runs, killed with its engine
or alone, and operated on between two runs. The state is always that of the committed offsets.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore import Checkpoint
from statestore.io.shim_jar import find_jar
from tests.lives import Line, Lives, failure_of, main, say
from tests.spark.harness import FILESYSTEM, ROCKSDB_BACKEND
from tests.spark.helper_jar import compile_test_jar
from tests.spark.job_process import Job
from tests.spark.processes import descendants, engines

from .audit import require
from .child import Outcome, run
from .steps import by_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from numpy.random import Generator

KEYS = 50
"""Of the query: row i has key i modulo so many."""
PROVIDERS = {"filesystem": FILESYSTEM, "rocksdb": ROCKSDB_BACKEND}
START_S = 150.0
LIFE_S = 240.0
HEAD = """# Attack on queries in real-time mode

Aggregations whose batches last 10 seconds, fed all the time. Each run ends with a kill -9 of the
driver at a random moment; engines are killed within a batch. After each run and each operation the
state is compared with what the offsets of the newest commit say, row by row, and every byte is
verified. What is read or copied within a batch must be a version that was committed; what would
change the checkpoint then is refused. An operation that is *killed* is repeated.
"""
WITHIN = {"read": 4, "verify": 1, "savepoint": 2, "branch": 1, "rescale": 1, "edit": 1}
BETWEEN = {
    "rescale": 4, "undo": 1, "restore": 3, "savepoint, restore": 3, "branch": 1, "edit": 2,
    "forget": 1, "compact": 1, "expire": 1,
}  # fmt: skip
"""What is done while the query runs, and between two runs, and how often."""
State = dict[int, tuple[int, int]]
Offsets = dict[str, int]


@dataclass
class Model:
    """What the state of a checkpoint must be.

    Attributes:
        path: The checkpoint.
        base: State of when an operation changed its rows; none before.
        began: Rows that were read by then, by partition of the source.
    """

    path: Path
    base: State = field(default_factory=dict)
    began: Offsets = field(default_factory=dict)

    def after(self, version: int) -> State:
        """Return the number of rows and their sum by key, at a version."""
        state, offsets = dict(self.base), self.offsets(version)
        for partition, end in offsets.items():
            for number in range(self.began.get(partition, 0), end):
                row = int(partition) + number * len(offsets)  # they get rows in turn
                count, total = state.get(row % KEYS, (0, 0))
                state[row % KEYS] = count + 1, total + row
        return state

    def offsets(self, version: int) -> Offsets:
        """Return how many rows were read up to a version, by partition of the source."""
        if not version:
            return {}
        entry = self.path / "offsets" / str(version - 1)
        found: Offsets = json.loads(entry.read_text().splitlines()[-1])
        return found

    @property
    def version(self) -> int:
        """The newest committed version."""
        names = [one.name for one in (self.path / "commits").glob("[0-9]*")]
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


def rows_of(path: Path | str) -> State:
    """Return the rows of a checkpoint or savepoint."""
    rows = Checkpoint(path).rows().read().to_pylist()
    found = {row["key"]["key"]: tuple(row["value"].values()) for row in rows}
    require(len(found) == len(rows), "a key is there twice", str(path))
    return found


class Life:
    """One life; `live` it once.

    Attributes:
        steps: What was done, with how it ended.
        num_rows: Rows that were read in the end.
    """

    def __init__(self, root: Path, jars: list[Path], rng: Generator) -> None:
        self._root, self._jars, self._rng = root, jars, rng
        self._backend = str(rng.choice(list(PROVIDERS)))
        self._num_directories = 0
        self._model = Model(self._new_root() / "lane" / "checkpoint")
        self.steps: Counter[tuple[str, str, str]] = Counter()
        self.num_rows = 0
        self.num_kills = 0

    def live(self, is_over: Callable[[], bool]) -> None:
        """Run, kill, operate, until the time is over; at least twice."""
        number = 0
        while number < 2 or not is_over():
            number += 1
            with self._running() as job:
                self._within(job)
            self._audit()
            if is_over():
                break
            for _ in range(int(self._rng.integers(1, 3))):
                self._between()
                self._audit()

    def _new_root(self) -> Path:
        self._num_directories += 1
        return self._root / f"directory-{self._num_directories}"

    @contextmanager
    def _running(self) -> Iterator[Job]:
        """Run the query, fed all the time, and kill its driver in the end."""
        provider = PROVIDERS[self._backend]
        root = self._model.path.parents[1]
        module = "tests.spark.real_time_job"
        job = Job("endless", root, self._jars, module=module, provider=provider)
        try:
            yield job
        finally:
            job.end()
            self.num_kills += 1
            say("  the driver was killed")

    def _within(self, job: Job) -> None:
        version = self._model.version
        self._wait(job, lambda: (self._model.path / "offsets").exists())
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * 10)  # before anything is committed, mostly
            return
        self._wait(job, lambda: self._model.version > version)
        if self._rng.random() < 0.4:
            os.kill(self._rng.choice(engines(descendants(job.process.pid))), signal.SIGKILL)
            say("  an engine was killed")
            self.num_kills += 1
        for _ in range(int(self._rng.integers(0, 4))):
            self._look(_draw(self._rng, WITHIN))
        time.sleep(self._rng.random() * 8)

    def _wait(self, job: Job, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not reached():
            ended = job.process.poll()
            require(ended is None, "the query failed", job.output.read_text()[-4000:])
            require(time.monotonic() < deadline, "the query stands still", str(self._model.path))
            time.sleep(0.1)

    def _look(self, name: str) -> None:
        """Do something while a batch is under way: it finds a committed version, or is refused."""
        path, target = self._model.path, self._new_root()
        first = self._model.version
        if name == "verify":
            found = Checkpoint(path).verify(deep=True)
            require(not found.findings, "verify finds damage", found.describe())
        elif name == "read":
            self._require_committed(rows_of(path), first)
        else:
            words = {
                "savepoint": ("savepoint", path, target), "branch": ("branch", path, target),
                "rescale": ("rescale", path, "--num-partitions", 5, "--yes"),
                "edit": ("edit", path, "--where", "key.key = 1", "--yes"),
            }[name]  # fmt: skip
            outcome = run(by_words(*words))
            if name in ("rescale", "edit"):
                is_right = outcome.ending == "refused" and outcome.kind == "checkpoint-in-use"
                require(is_right, "beside a query it was not refused", f"{name}: {outcome.text}")
            else:
                require(outcome.ending == "done", "beside a query it failed", outcome.text)
                self._require_committed(rows_of(target), first)
                shutil.rmtree(target)
        ending = "refused" if name in ("rescale", "edit") else "done"
        self._note(name, "within a batch", ending)

    def _require_committed(self, found: State, first: int) -> None:
        versions = range(first, self._model.version + 1)
        right = [self._model.after(version) for version in versions]
        require(found in right, "what was read was never committed", f"{versions}: {found}")

    def _note(self, name: str, disturbance: str, ending: str) -> None:
        self.steps[name, disturbance, ending] += 1
        say(f"  {name}{disturbance and ', '}{disturbance}: {ending}")

    def _between(self) -> None:
        """Do something to the stopped query's checkpoint; at times it is killed, and repeated."""
        model, name = self._model, _draw(self._rng, BETWEEN)
        if model.version < 2:
            return
        root = self._new_root()
        target, savepoint = root / "lane" / "checkpoint", self._new_root()
        number, key = int(self._rng.integers(1, 7)), int(self._rng.integers(KEYS))
        where = f"key.key = {key}"
        restored = ("restore", model.path, target, "--num-partitions", number)
        backend = str(self._rng.choice(list(PROVIDERS)))
        calls: dict[str, list[tuple[Any, ...]]] = {
            "rescale": [("rescale", model.path, "--num-partitions", number, "--yes")],
            "undo": [("rescale", model.path, "--undo", "--yes")],
            "restore": [(*restored, "--backend", backend)],
            "savepoint, restore": [
                ("savepoint", model.path, savepoint),
                ("restore", savepoint, target, "--backend", backend),
            ],
            "branch": [("branch", model.path, target)],
            "edit": [("edit", model.path, "--where", where, "--yes")],
            "forget": [("forget", model.path, "--where", where, "--yes")],
            "compact": [("compact", model.path, "--yes")],
            "expire": [("expire", model.path, "--keep", 2, "--yes")],
        }
        before, offsets = rows_of(model.path), model.offsets(model.version)
        for words in calls[name]:
            disturbance, outcome = self._done(words)
            self._note(name, disturbance, outcome.ending)
            if outcome.ending == "refused":
                is_right = (
                    outcome.kind == "unfinished-batch" or name == "undo" or key not in before
                    or (name == "rescale" and number == Checkpoint(model.path).info.num_partitions)
                )  # fmt: skip
                require(is_right, "an operation was refused", f"{words}: {outcome.text}")
                return
        if name in ("edit", "forget"):
            model.base = {one: row for one, row in before.items() if one != key}
            model.began = offsets
        elif target.exists():
            shutil.rmtree(savepoint, ignore_errors=True)
            self._model = Model(target, model.base, model.began)
            self._backend = backend if "restore" in name else self._backend

    def _done(self, words: tuple[Any, ...]) -> tuple[str, Outcome]:
        call = by_words(*words)
        if self._rng.random() < 0.4:
            outcome = run(call, "kill", int(self._rng.integers(0, 60)))
            if outcome.ending != "killed":
                return "", outcome
            outcome = run(call)
            # What is done need not be done again; a directory that is whole is not made again.
            if outcome.kind in ("checkpoint-exists", "keys-not-found"):
                outcome = Outcome("done", outcome.text)
            return "killed", outcome
        return "", run(call)

    def _audit(self) -> None:
        model = self._model
        version = model.version
        if not version:
            return
        self.num_rows = sum(model.offsets(version).values())
        found, expected = rows_of(model.path), model.after(version)
        wrong = {
            key: (found.get(key), expected.get(key))
            for key in found.keys() | expected.keys()
            if found.get(key) != expected.get(key)
        }
        require(not wrong, "state is not that of the committed offsets", f"{model.path}: {wrong}")
        verified = Checkpoint(model.path).verify(deep=True)
        require(not verified.findings, "verify finds damage", verified.describe())


def _draw(rng: Generator, weights: dict[str, int]) -> str:
    total = sum(weights.values())
    return str(rng.choice(list(weights), p=[weight / total for weight in weights.values()]))


class RealTimeAttack(Lives):
    """Lives of queries in real-time mode."""

    name = "attack.real_time"
    minutes = 10.0
    head = HEAD

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        del parser

    @contextmanager
    def begun(self) -> Iterator[None]:
        self._jars = [compile_test_jar("queries"), compile_test_jar("realtime"), find_jar()]
        yield

    def live(self, number: int, is_over: Callable[[], bool]) -> Line:
        rng = np.random.default_rng([self.arguments.seed, number])
        root = self.disk / f"life-{number}"
        life = Life(root, self._jars, rng)
        until = time.monotonic() + LIFE_S
        say(f"life {number}")
        failure = failure_of(lambda: life.live(lambda: is_over() or time.monotonic() > until))
        if failure and self.arguments.keep:
            kept = self.arguments.keep / f"real-time-{self.arguments.seed}-{number}"
            shutil.copytree(root, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        shutil.rmtree(root)
        steps = [[*key, times] for key, times in life.steps.items()]
        return {
            "failure": failure, "steps": steps, "rows": life.num_rows, "kills": life.num_kills,
        }  # fmt: skip

    @staticmethod
    def table(lives: list[Line]) -> list[str]:
        counts: Counter[str] = Counter()
        for life in lives:
            for name, disturbance, ending, number in life["steps"]:
                counts[f"{name} | {disturbance} | {ending}"] += number
        rows = [f"| {name} | {number} |" for name, number in sorted(counts.items())]
        kills, num_rows = (sum(life[name] for life in lives) for name in ("kills", "rows"))
        return [
            "| operation | when | ended | times |", "|---|---|---|---:|", *rows,
            f"{len(lives)} lives, {kills} kills of drivers and engines, {num_rows:,} rows in the "
            "end",
        ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(RealTimeAttack, __doc__))
