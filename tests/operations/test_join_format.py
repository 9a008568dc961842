"""Random joins of state format 2 in format 4, against a plain model."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from statestore import Checkpoint
from statestore.core.errors import CorruptionError, IncompatibleError, InvalidArgumentError
from statestore.testing.checkpoints import MadeCheckpoint
from tests.made_joins import SIDES, MadeJoin, Row, column, small_join
from tests.operations.test_forget_random import KINDS
from tests.rescaled import KEYED, edit_conf

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WINDOW = {
    "type": "struct",
    "fields": [column("start", "timestamp"), column("end", "timestamp")],
}
TIMED = ("row", "row, ntz", "window", "key", "key of the left", "nothing")
"""What has the watermark, on both sides or on one of them."""


def _time(rng: Random) -> datetime:
    return EPOCH + timedelta(microseconds=rng.choice([-1, 0, 1, rng.randint(-(10**9), 10**15)]))


def _window(rng: Random) -> Row:
    start = EPOCH + timedelta(seconds=10 * rng.randint(-2, 2))
    return {"start": start, "end": start + timedelta(seconds=10)}


class RandomJoin:
    """A random join, its rows, and the time that format 4 has for each."""

    def __init__(self, rng: Random, directory: Path) -> None:
        self.rng = rng
        self.timed = rng.choice(TIMED)
        self.kinds = [rng.choice([*KINDS]) for _ in range(rng.randint(1, 3))]
        keys = [column(f"field{at}", KINDS[kind][0]) for at, kind in enumerate(self.kinds)]
        self.key_time: Any = None
        if self.timed in ("window", "key", "key of the left"):
            self.key_time = _window if self.timed == "window" else _time
            kind = WINDOW if self.timed == "window" else "timestamp"
            keys.insert(0, column("time", kind))
            keys = [{**one, "name": f"field{at}"} for at, one in enumerate(keys)]
        self.others = {
            side: [rng.choice([*KINDS]) for _ in range(rng.randint(0, 70) // 20)] for side in SIDES
        }
        values = {side: self._columns(side) for side in SIDES}
        self.join = MadeJoin.make(
            directory,
            keys,
            values,
            num_partitions=rng.randint(1, 4),
            backend=rng.choice(["filesystem", "rocksdb"]),
            checkpoint_format=rng.choice([1, 2]),
        )
        self.some_keys = [self._key() for _ in range(5)]

    def _columns(self, side: str) -> list[Row]:
        columns = [column(f"v{at}", KINDS[kind][0]) for at, kind in enumerate(self.others[side])]
        has_time = self.timed != "nothing"
        is_marked = has_time and not (self.timed == "key of the left" and side == "right")
        if has_time:
            kind: Any = "timestamp_ntz" if self.timed == "row, ntz" else "timestamp"
            kind = WINDOW if self.timed == "window" else kind
            columns.insert(len(columns) // 2, column("at", kind, watermark=is_marked))
        return columns

    def _key(self) -> Row:
        drawn = [
            None if self.rng.random() < 0.1 else KINDS[kind][1](self.rng) for kind in self.kinds
        ]
        times = [] if self.key_time is None else [self.key_time(self.rng)]
        return {f"field{at}": one for at, one in enumerate([*times, *drawn])}

    def row(self, side: str, key: Row) -> Row:
        """Draw a row of a side."""
        row = {
            f"v{at}": None if self.rng.random() < 0.2 else KINDS[kind][1](self.rng)
            for at, kind in enumerate(self.others[side])
        }
        row["matched"] = self.rng.random() < 0.5
        if self.timed.startswith("row"):
            row["at"] = _time(self.rng).replace(tzinfo=None if "ntz" in self.timed else UTC)
        elif self.timed == "key of the left" and side == "right":
            row["at"] = self.rng.choice([None, _time(self.rng)])
        elif self.timed != "nothing":
            row["at"] = key["field0"]
        return row

    def run(self) -> None:
        """Run a batch that adds rows and takes some away."""
        added = []
        for _ in range(self.rng.randint(0, 40)):
            side, key = self.rng.choice(SIDES), self.rng.choice(self.some_keys)
            added.append((side, key, self.row(side, key)))
        full = [of for of, rows in self.join.held.items() if rows]
        going = self.rng.sample(full, self.rng.randint(0, len(full)))
        self.join.run(added, {of: self.rng.randrange(len(self.join.held[of])) for of in going})

    def time_of(self, key: Row, row: Row) -> int | None:
        """Return the time of a row in microseconds; None where Spark draws a number."""
        if self.timed == "nothing":
            return None
        time = row["at"] if self.timed.startswith("row") else key["field0"]
        time = time["end"] if self.timed == "window" else time
        return (time.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)

    def expected(self, side: str) -> Counter[str]:
        """Return the rows of a side: key, time and row as text."""
        return Counter(
            _text(self.join.keys[text], self.time_of(self.join.keys[text], row), row)
            for (of, text), rows in self.join.held.items()
            if of == side
            for row in rows
        )


def _text(key: Row, time: int | None, row: Row) -> str:
    return repr((_plain(key), time, _plain(row)))


def _plain(value: Any) -> Any:
    """Return a value as it is told apart from others: times and decimals have several forms."""
    if isinstance(value, dict):
        return sorted((name, _plain(part)) for name, part in value.items())
    if isinstance(value, datetime):
        return str(value.astimezone(UTC) if value.tzinfo else value)
    return value.normalize() if isinstance(value, Decimal) else value


def rows_in_format_4(checkpoint: Checkpoint, side: str, *, is_drawn: bool) -> Counter[str]:
    """Return the rows of a side in format 4 as text, after a look at its index."""
    rows = checkpoint.rows(f"{side}-keyWithTsToValues").read().to_pylist()
    found = Counter[str]()
    for one in rows:
        time = one["key"].pop("__event_time")
        found[_text(one["key"], None if is_drawn else time, one["value"])] += 1
        one["key"]["__event_time"] = time
    index = checkpoint.rows(f"{side}-tsWithKey").read().to_pylist()
    wanted = Counter[str]() if is_drawn else Counter(repr(one["key"]) for one in rows)
    assert Counter(repr(one["key"]) for one in index) == wanted
    assert all(0 <= one["key"]["__event_time"] < 1024 for one in rows if is_drawn)
    return found


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.extended) for n in range(8, 400))]
)
def test_every_row_has_its_key_and_time(tmp_path: Path, seed: int) -> None:
    """Catches a row that is lost, changed, or found under another key or time."""
    rng = Random(seed)
    random = RandomJoin(rng, tmp_path / "checkpoint")
    for _ in range(rng.randint(1, 4)):
        random.run()
        if not any(random.join.held.values()) or not all(
            any(rows for (of, _), rows in random.join.held.items() if of == side) for side in SIDES
        ):
            random.join.run([(s, k := random.some_keys[0], random.row(s, k)) for s in SIDES], {})
    checkpoint = Checkpoint(random.join.made.path)
    before = [checkpoint.rows(f"{side}-keyWithIndexToValue").read() for side in SIDES]

    savepoint = checkpoint.transform(tmp_path / "savepoint", join_format=4).made
    number = rng.choice([None, 1, 3, 5])
    backend = rng.choice(["filesystem", "rocksdb"])
    restored = savepoint.restore(tmp_path / "new", backend=backend, num_partitions=number).made

    for of in (savepoint, restored):
        assert of.verify(deep=True).findings == ()
        for side in SIDES:
            is_drawn = random.timed == "nothing"
            assert rows_in_format_4(of, side, is_drawn=is_drawn) == random.expected(side)
    after = [checkpoint.rows(f"{side}-keyWithIndexToValue").read() for side in SIDES]
    assert after == before
    entry = (tmp_path / "new" / "offsets" / str(random.join.made.version - 1)).read_text()
    assert '"spark.sql.streaming.join.stateFormatVersion":"4"' in entry


def test_plan_changes_nothing_and_says_where_times_are(tmp_path: Path) -> None:
    """Catches a dry run that writes, and one that does not say by which column rows go."""
    join = small_join(tmp_path / "checkpoint")
    plan = Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4, dry_run=True)

    assert "rows by key and time, value.ts" in str(plan)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("found", ["1", "4", None])
def test_joins_of_another_format_are_refused(tmp_path: Path, found: str | None) -> None:
    """Catches rows of another layout that are taken for those of format 2."""
    join = small_join(tmp_path / "checkpoint", join_format=found)

    with pytest.raises(
        IncompatibleError, match=f"does not become format 4.*state_format=.?{found or 1}"
    ):
        Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4)


@pytest.mark.parametrize("wanted", [1, 2, 3, 5])
def test_another_format_is_refused(tmp_path: Path, wanted: int) -> None:
    """Catches a savepoint that says a format and is of another."""
    join = small_join(tmp_path / "checkpoint")

    with pytest.raises(InvalidArgumentError, match="no join can have this state format"):
        Checkpoint(join.made.path).transform(tmp_path / "new", join_format=wanted)


def test_query_without_a_join_is_refused(tmp_path: Path) -> None:
    """Catches a savepoint that is none of format 4 since nothing in it joins."""
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), operators=KEYED)
    made.run_batch({1: 1})

    with pytest.raises(InvalidArgumentError, match="the query has no join"):
        Checkpoint(made.path).transform(tmp_path / "new", join_format=4)


def test_rows_given_of_the_same_join_are_refused(tmp_path: Path) -> None:
    """Catches rows that are given and then left out."""
    join = small_join(tmp_path / "checkpoint")

    with pytest.raises(InvalidArgumentError, match="rows are given of a join"):
        Checkpoint(join.made.path).transform(
            tmp_path / "new", {"left-keyWithIndexToValue": "SELECT * FROM state"}, join_format=4
        )


@pytest.mark.parametrize("side", SIDES)
def test_row_without_a_time_is_refused(tmp_path: Path, side: str) -> None:
    """Catches a row that would expire at once, which never did before."""
    join = small_join(tmp_path / "checkpoint")
    join.run([(side, {"field0": "a"}, {"ts": None, f"{side}_n": 1, "matched": False})], {})

    with pytest.raises(IncompatibleError, match="a row of a join has no time"):
        Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4)


def test_counts_that_are_not_those_of_the_rows_are_refused(tmp_path: Path) -> None:
    """Catches rows that Spark does not see, and that would join from now on."""
    join = small_join(tmp_path / "checkpoint")
    join.made.run_batch({("left", repr({"field0": "a"})): {"value": 99}})
    edit_conf(join.made, **{"spark.sql.streaming.join.stateFormatVersion": "2"})

    with pytest.raises(CorruptionError, match="not as many rows as are counted"):
        Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4)


def _two_times(path: Path, *, marked: int) -> MadeJoin:
    """A join by a time, whose rows have a time of their own as well."""
    values = {
        side: [
            column("ts", "timestamp", watermark=True),
            column("n", "timestamp", watermark=marked > 1),
        ]
        for side in SIDES
    }
    return MadeJoin.make(path, [column("field0", "timestamp")], values)


def test_side_with_two_watermarks_is_refused(tmp_path: Path) -> None:
    """Catches a query that Spark does not start in format 4."""
    join = _two_times(tmp_path / "checkpoint", marked=2)
    join.run([("left", {"field0": 5}, {"ts": 5, "n": 5, "matched": False})], {})

    with pytest.raises(IncompatibleError, match="several columns with a watermark"):
        Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4)


def test_time_in_a_key_that_no_row_tells_is_refused(tmp_path: Path) -> None:
    """Catches rows of one side under their own time, where the query goes by that in the key."""
    join = _two_times(tmp_path / "checkpoint", marked=1)
    join.run([("left", {"field0": 5}, {"ts": 6, "n": 5, "matched": False})], {})
    checkpoint = Checkpoint(join.made.path)

    with pytest.raises(IncompatibleError, match="whether a join goes by the time in its key"):
        checkpoint.transform(tmp_path / "new", join_format=4)

    # A row on the other side, with another time as well: the query does not go by the key's.
    join.run([("right", {"field0": 5}, {"ts": 7, "n": 5, "matched": False})], {})
    made = checkpoint.transform(tmp_path / "new", join_format=4).made
    rows = made.rows("left-keyWithTsToValues").read().to_pylist()
    assert [one["key"]["__event_time"] for one in rows] == [6]
