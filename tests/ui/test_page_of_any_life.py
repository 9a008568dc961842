"""A page tells of a checkpoint what a plain model of it says, whatever was done to it."""

import json
from random import Random

import pytest

from statestore import Checkpoint
from statestore.testing.checkpoints import MadeCheckpoint
from tests.cases_of_ci import IS_LONG
from tests.ui.served import serve, until

STEPS = 14 if IS_LONG else 4
KEYS = 30


class Life:
    """A checkpoint, its page, and the rows that each of its versions has.

    Attributes:
        rows: Values by key, of the first operator, by version.
        copies: How many directories the page made.
    """

    def __init__(self, root, rng, server, made):
        self.root, self.rng, self.server, self.made = root, rng, server, made
        self.rows = {made.version: dict(made.numbers)}
        self.copies = 0

    def live_on(self):
        """Do one thing to the checkpoint: a batch, an operation, or one by a button."""
        checkpoint = Checkpoint(self.made.path)
        what = self.rng.choice(("batch", "batch", "batch", "upkeep", "rescale", "copy"))
        if what == "upkeep":
            self.rng.choice((checkpoint.compact, lambda: checkpoint.expire(keep=3)))()
            self.made.restart()
        elif what == "rescale":
            known = checkpoint.info.num_partitions
            wanted = self.rng.choice([one for one in (1, 2, 4, 8) if one != known])
            self.push("rescale", num_partitions=str(wanted))
            assert Checkpoint(self.made.path).info.num_partitions == wanted
        elif what == "copy":
            self.copies += 1
            operation = self.rng.choice(("savepoint", "branch"))
            copy = self.root / f"{operation}-{self.copies}"
            self.push(operation, destination=str(copy))
            assert {
                row["key"]["k"]: row["value"]["value"]
                for row in Checkpoint(copy).rows(0).read().to_pylist()
            } == self.made.numbers
        else:
            values = (None, *range(5))
            keys = self.rng.sample(range(KEYS), self.rng.randint(0, 10))
            self.made.run_batch({key: self.rng.choice(values) for key in keys})
        self.rows[self.made.version] = dict(self.made.numbers)

    def push(self, operation, **fields):
        """Plan an operation on the page, and confirm it."""
        status, planned = self.server.ask("plan", operation=operation, **fields)
        assert status == 200, planned
        status, done = self.server.ask("do", confirmation=planned["confirmation"])
        assert status == 200, done

    def compare(self):
        """Compare what the page tells: the query, all rows by SQL, a key over the versions."""
        until(lambda: self.server.live()["query"]["newest_version"] == self.made.version)

        sql = 'SELECT key.k, value.value FROM "0" ORDER BY 1'
        status, told = self.server.ask("sql", sql=sql)
        assert status == 200, told
        assert told["rows"] == [
            [str(key), str(value)] for key, value in sorted(self.made.numbers.items())
        ]

        key = self.rng.randrange(KEYS)
        status, told = self.server.ask("key", rows="0", key=f"[{key}]")
        assert status == 200, told
        found = {}
        for span, _, shown, value in told["rows"]:
            first, _, last = span.partition(" to ")
            for version in range(int(first), int(last or first) + 1):
                found[version] = None if shown == "no row" else json.loads(value)["value"]
        for version in Checkpoint(self.made.path).versions():
            if version.kind == "expired":
                found.pop(version.version, None)  # it may lie between two that are the same
            else:
                assert found.pop(version.version) == self.rows[version.version].get(key)
        assert found == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(8) if IS_LONG else [1])
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.each_once("backend")
def test_page_tells_what_a_model_says(tmp_path, backend, seed):
    """Catches a page that tells of another version, other rows, or a change that was none."""
    rng = Random(f"{seed} {backend}")
    made = MadeCheckpoint(str(tmp_path / "query"), backend=backend)
    made.run_batch({key: rng.randrange(5) for key in range(rng.randint(1, KEYS))})
    with serve(made.path, "--allow-changes") as server:
        life = Life(tmp_path, rng, server, made)
        life.compare()
        for _ in range(STEPS):
            life.live_on()
            life.compare()
