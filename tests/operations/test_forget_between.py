"""Keys forgotten between other operations, killed anywhere, against a plain model of the rows."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.checkpoint.layout import lease_directory
from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.operations.forget import forget as module
from statestore.testing.checkpoints import OPERATORS, MadeCheckpoint, read_checkpoint
from tests.damaged import flip
from tests.faults.steps import Stepped
from tests.seams import at

from .test_edit_in_place import KEYS

STEPS = 14
"""Of a history. A killed forget is repeated by one of the next, or at the end."""
STEPS_OF_QUERY = ("batch", "batch", "edit", "rescale", "undo", "compact", "forget", "die", "die")
BETWEEN = ("batch", "edit", "rescale", "rescale", "undo", "compact", "forget", "die")
"""While a forget is not finished."""
REFUSED = ("unfinished", "same number", "has this many", "no rescale to undo")
"""What says why another operation has to wait for a forget, or has nothing to do."""
MOST_CHANGES = 30
"""Of the storage before a forget is killed; a whole one makes fewer."""


class KilledError(Exception):
    """The process ends here."""


class History:
    """A checkpoint of one aggregation, and the rows that it should have.

    Attributes:
        pending: Certificate and keys of the forget that was killed, None where none was.
        forgotten: Keys that were forgotten, and not put since.
    """

    def __init__(self, directory: Path, rng: random.Random, backend: str, of_format: int) -> None:
        (directory / "scratch").mkdir()
        self.directory = directory
        self.rng = rng
        self.made = MadeCheckpoint(
            str(directory / "query"),
            directory / "scratch",
            backend=backend,
            checkpoint_format=of_format,
            num_partitions=rng.choice([1, 2]),
            operators=OPERATORS[:1],
        )
        self.pending: tuple[Path, list[int]] | None = None
        self.forgotten: set[int] = set()
        self.is_rescaled = False
        self.before: dict[Any, Any] = {}
        self.run(dict.fromkeys(KEYS, 1))

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.made.path)

    def run(self, changes: dict[int, int | None]) -> None:
        """Run a batch of the query."""
        self.made.run_batch(changes)
        self.forgotten -= changes.keys()
        self.is_rescaled = False

    def step(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Do something; return its name."""
        rng = self.rng
        name = rng.choice(BETWEEN if self.pending else STEPS_OF_QUERY)
        if name == "batch":
            keys = rng.sample(KEYS, 5)
            self.run({key: rng.choice([None, rng.randrange(100)]) for key in keys})
        elif name == "compact":
            self.checkpoint.compact()
            if rng.random() < 0.5:
                self.made.restart()
        elif name in ("forget", "die"):
            self.forget(monkeypatch, rng.randrange(MOST_CHANGES) if name == "die" else None)
        else:
            self._change(name)
        return name

    def _change(self, name: str) -> None:
        """Change the checkpoint in place; a forget that planned a batch stands in the way."""
        before = dict(self.made.numbers)
        there = [key for key in KEYS if key in before]
        try:
            if name == "edit" and there:
                key = self.rng.choice(there)
                self.checkpoint.edit(delete=f"k = {key}")
                del self.made.numbers[key]
                self.is_rescaled = False
            elif name == "rescale":
                self.checkpoint.rescale(self.rng.choice([1, 2, 2, 4, 4, 3]))
                self.before, self.is_rescaled = before, True
            elif name == "undo" and self.is_rescaled:
                self.checkpoint.undo_rescale()
                self.made.numbers, self.is_rescaled = dict(self.before), False
        except InvalidArgumentError as error:
            if not any(word in str(error) for word in REFUSED):
                raise

    def forget(self, monkeypatch: pytest.MonkeyPatch, lives: int | None) -> None:
        """Forget some keys, or those of the call that was killed; be killed after some changes."""
        made = self.made
        number = len(list(self.directory.glob("*.json")))
        keys = self.rng.sample(KEYS, 2)
        file, keys = self.pending or (self.directory / f"{number}.json", keys)

        def before(change: int) -> None:
            if change == lives:
                raise KilledError

        io = Stepped(before)
        self.pending = file, keys
        with monkeypatch.context() as patch:
            if lives is not None and self.rng.random() < 0.5:
                io = Stepped(lambda _: None)
                patch.setattr(module, "search", self._killed)
            try:
                done = at(made.path, io=io).forget(
                    keys=pa.table({"key.k": keys}), all_rows=True, certificate=file
                )
            except KilledError:
                done = None
                shutil.rmtree(lease_directory(f"{made.path}/state"), ignore_errors=True)
                if file.exists() and json.loads(file.read_text())["status"] == "complete":
                    self.pending = None  # all but the line of the history is done
            except NotFoundError:
                done = None
                assert not made.numbers.keys() & set(keys)
                self.pending = None
        left = {key: value for key, value in made.numbers.items() if key not in keys}
        found = read_checkpoint(made.path)
        if done is not None or found != made.expected():
            made.numbers = left
            self.is_rescaled = False
            self.forgotten |= set(keys)
        if done is not None:
            self.pending = None
            search = done.certificate.search
            assert search is not None
            assert search.outcomes[0].verdict == "forgotten", str(search)

    @staticmethod
    def _killed(*_: Any) -> None:
        raise KilledError

    def check(self) -> None:
        """Check the rows."""
        assert read_checkpoint(self.made.path) == self.made.expected()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed in (2, 24) else [pytest.mark.extended])
        for seed in range(40)
    ],
)
def test_forget_between_other_operations_loses_no_other_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    checkpoint_format: int,
    seed: int,
) -> None:
    """Catches files of other versions that are deleted, and keys that stay in some file."""
    history = History(tmp_path, random.Random(seed), backend, checkpoint_format)
    steps = []
    for _ in range(STEPS):
        steps.append(history.step(monkeypatch))
        history.check()
    while history.pending is not None:
        history.forget(monkeypatch, None)
    history.run({KEYS[0]: 1})
    history.run({KEYS[1]: 1})
    history.checkpoint.expire(2)

    history.check()
    assert history.checkpoint.verify(deep=True).ok, steps
    if history.forgotten:
        keys = pa.table({"key.k": sorted(history.forgotten)})
        assert history.checkpoint.search_keys(keys).is_forgotten, steps
    history.made.restart()
    history.run({KEYS[2]: 1})
    history.check()


def test_a_forget_that_is_finished_after_a_rescale_keeps_the_files_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches references that are deleted, without which the next cleanup deletes the state."""
    history = History(tmp_path, random.Random(0), "filesystem", 1)
    keys = pa.table({"key.k": [KEYS[3]]})
    file = tmp_path / "certificate.json"
    with monkeypatch.context() as patch:
        patch.setattr(module, "search", history._killed)
        with pytest.raises(KilledError):
            history.checkpoint.forget(keys=keys, certificate=file)
    del history.made.numbers[KEYS[3]]
    history.checkpoint.rescale(4)  # by key groups: its files are those of the forget
    assert list(Path(history.made.path).glob("state/0/*/*.ref"))

    assert history.checkpoint.forget(keys=keys, certificate=file).certificate.is_forgotten

    assert history.checkpoint.history()[0].taken_back_by is None
    history.run({KEYS[0]: 5})
    history.run({KEYS[1]: 5})
    history.checkpoint.expire(2)
    assert history.checkpoint.verify(deep=True).ok
    history.check()


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_versions_that_a_repair_took_back_have_no_key_left(
    tmp_path: Path, checkpoint_format: int
) -> None:
    """Catches keys in files of later versions than the one that is made, damaged ones too."""
    history = History(tmp_path, random.Random(1), "filesystem", checkpoint_format)
    for number in range(6):
        history.run(dict.fromkeys(KEYS, number))
    old = next(Path(history.made.path).glob("state/0/0/2*.delta.arrows"))
    flip(old, 100)
    history.checkpoint.repair()
    history.made.restart()
    history.run(dict.fromkeys(KEYS, 9))
    late = max(Path(history.made.path).glob("state/0/0/6*.delta.arrows"))
    late.write_bytes(late.read_bytes()[:-10])
    assert history.checkpoint.search_keys(pa.table({"key.k": [KEYS[3]]})).outcomes

    done = history.checkpoint.forget(keys=pa.table({"key.k": [KEYS[3]]})).certificate

    assert done.is_forgotten
    assert not late.exists()
    del history.made.numbers[KEYS[3]]
    history.check()
    history.run({KEYS[0]: 1})
    history.check()
