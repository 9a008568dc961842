"""Queries that are run, tried, promoted and operated on at random, against a model in dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore import Checkpoint, try_job
from statestore.core.errors import InvalidArgumentError

from .conftest import EXTENDED
from .harness import FORMAT_2
from .tried import MARKS, Tried, counted, counted_otherwise, counted_wrongly, files, tried_again

pytestmark = MARKS


class History:
    """A query that is run, tried, promoted and operated on at random, and a model of it in dicts.

    Attributes:
        tried: The query.
        states: What the model has of each version, by version.
        factor: What the running code multiplies values of k1 with.
    """

    def __init__(self, tried: Tried, seed: int) -> None:
        self.tried, self.random = tried, Random(seed)
        self.factor = 1
        self.num_fed = 0
        self.read: dict[int, int] = {}
        """The file that each batch read."""
        self.states: dict[int, dict[str, tuple[int, int]]] = {0: {}}
        self.oldest = 1
        """The version that a trial can begin with at the earliest: a promote keeps its newest."""

    @property
    def version(self) -> int:
        return max(self.states)

    def after(self, state: Mapping[str, tuple[int, int]], batch: int, factor: int) -> Any:
        """Return a state after one more batch."""
        found = dict(state)
        for key in range(3):
            number, total = found.get(f"k{key}", (0, 0))
            value = (self.read[batch] + key) * (factor if key == 1 else 1)
            found[f"k{key}"] = (number + 1, total + value)
        return found

    def job(self, factor: int) -> Callable[[], Any]:
        """Return a code as a job, which leaves the running one in its place."""
        new = counted_wrongly if factor == 2 else self.random.choice([counted, counted_otherwise])
        old = counted_wrongly if self.factor == 2 else counted
        return tried_again(self.tried, new, old)

    def run(self) -> None:
        """Run one to three batches."""
        number = self.random.randint(1, 3)
        self.tried.job(counted_wrongly if self.factor == 2 else counted)
        self.tried.run(*files(self.num_fed, number))
        for _ in range(number):
            batch = self.version
            self.read[batch] = self.num_fed
            self.num_fed += 1
            self.states[batch + 1] = self.after(self.states[batch], batch, self.factor)

    def operate(self) -> None:
        """Rescale, or delete a key: a batch that reads nothing."""
        ck = Checkpoint(self.tried.checkpoint)
        state = dict(self.states[self.version])
        if self.random.random() < 0.5:
            ck.rescale(ck.info.num_partitions % 4 + 1)
        else:
            key = self.random.choice(sorted(state))
            ck.edit(delete=f"key.key = '{key}'")
            del state[key]
        self.states[self.version + 1] = state

    def try_code(self) -> None:
        """Try the same code, or another; then promote or drop it."""
        factor, wanted = self.random.choice([1, 2]), self.random.randint(1, 4)
        first = self.version
        while first > max(self.version - wanted, self.oldest) and first - 1 in self.read:
            first -= 1
        call = partial(
            try_job,
            self.tried.checkpoint,
            self.job(factor),
            against=self.job(self.factor),
            batches=wanted,
        )
        if first == self.version:
            with pytest.raises(InvalidArgumentError, match="no batch"):
                call()
            return
        trial = call()
        assert (trial.result.first_version, trial.result.version) == (first, self.version)
        assert trial.is_same == (factor == self.factor)
        if self.random.random() < 0.3:
            trial.drop()
            return
        if not trial.is_same:
            with pytest.raises(InvalidArgumentError, match="differs"):
                trial.promote()
        trial.promote(accept=True)
        self.factor, self.oldest = factor, self.version
        for batch in range(first, self.version):
            self.states[batch + 1] = self.after(self.states[batch], batch, factor)

    def check(self) -> None:
        """Check state, sink and files."""
        assert self.tried.state == self.states[self.version]
        assert sorted(self.tried.batches) == sorted(self.read)
        assert set(self.tried.attempts.values()) == {1}
        ck = Checkpoint(self.tried.checkpoint)
        assert ck.info.newest_version == self.version
        assert ck.verify(deep=True).findings == ()


@EXTENDED
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, Random().randrange(1 << 32)])
@pytest.mark.parametrize("conf", [{}, FORMAT_2], ids=["v1", "v2"])
def test_random_histories_are_those_of_a_model(
    spark: SparkSession, tmp_path: Path, seed: int, conf: Mapping[str, str]
) -> None:
    """Catches a promote after which a row is there twice, or not, whatever was done before."""
    history = History(Tried(spark, tmp_path / "query", conf), seed)
    history.run()
    for _ in range(12):
        do = history.random.choice(
            [history.run, history.operate, history.try_code, history.try_code]
        )
        do()
        history.check()
