"""Rows of the old and the new code are compared as a plain model compares them."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore import Checkpoint
from statestore.codec.column_family import NO_DEFAULT, ColumnFamily
from statestore.core.errors import InvalidArgumentError
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.database import open_database
from statestore.operations.trial.rule import Rule, compare_rows, compare_state, plain
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import schema_of
from tests.checkpoints import DEFAULT, WordStore, contents, write_checkpoint
from tests.seams import place_of

SCHEMA = pa.schema(
    {"key": pa.string(), "Key": pa.int64(), "list": pa.list_(pa.int64()), "real": pa.float64()}
)


def random_rows(random, number):
    """Rows of few values, so that some are there several times, and some are null or NaN."""
    return [
        {
            "key": random.choice(["a", "b", None]),
            "Key": random.choice([1, 2, None]),
            "list": random.choice([[], [1], [2, 1], [1, 2], [None, 1], None]),
            "real": random.choice([0.5, float("nan"), None]),
        }
        for _ in range(number)
    ]


def frozen(row, names):
    """A row as something that can be counted."""
    return tuple(repr(row[name]) for name in names)


def write(path, rows, schema=SCHEMA):
    """Write rows as two Parquet files."""
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        pq.write_table(pa.Table.from_pylist(part, schema=schema), f"{path}-{number}.parquet")
    return [f"{path}-{number}.parquet" for number in range(2)]


def test_rows_differ_as_counters_do(tmp_path):
    """Catches a row that is found equal by its other copy, or by a column that is ignored."""
    random = Random()
    for life in range(15):
        old = random_rows(random, random.randrange(30))
        new = random.sample(old, len(old))
        for _ in range(random.randrange(4)):
            if new and random.random() < 0.5:
                new.pop(random.randrange(len(new)))
            else:
                new += random_rows(random, 1)
        ignored = frozenset(random.sample(SCHEMA.names, random.randrange(5)))
        names = [name for name in SCHEMA.names if name not in ignored]
        counted = [Counter(frozen(row, names) for row in rows) for rows in (old, new)]

        found = compare_rows(
            "rows",
            write(tmp_path / f"old-{life}", old),
            write(tmp_path / f"new-{life}", new),
            Rule(ignored, shown=4),
        )

        removed, added = counted[0] - counted[1], counted[1] - counted[0]
        assert (found.removed, found.added) == (removed.total(), added.total())
        assert found.is_same == (counted[0] == counted[1])
        assert (found.num_old, found.num_new) == (len(old), len(new))
        assert len(found.rows) == min(4, removed.total() + added.total())
        for row in found.rows if names else ():
            side, among = ("old", removed) if row["change"] == "removed" else ("new", added)
            shown = {**row[side]}
            if isinstance(shown.get("real"), str):
                shown["real"] = float(shown["real"])
            assert frozen(shown, names) in among


def test_column_of_one_side_differs_unless_it_is_ignored(tmp_path):
    """Catches a column that is gone, or has another type, and nobody hears of it."""
    old = write(tmp_path / "old", [{"k": 1, "n": 2}], pa.schema({"k": pa.int64(), "n": pa.int64()}))
    more = pa.schema({"k": pa.int64(), "n": pa.int32(), "m": pa.int64()})
    new = write(tmp_path / "new", [{"k": 1, "n": 2, "m": 3}], more)

    found = compare_rows("rows", old, new, Rule())
    rule = Rule(frozenset({"m", "n"}))
    ignoring = compare_rows("rows", old, new, rule)

    assert not found.is_same
    assert found.num_different == 0
    assert found.columns == ("n: int64 became int32", "m: only the new has it")
    assert ignoring.is_same
    rule.check_ignored()
    with pytest.raises(InvalidArgumentError, match="neither in the rows of the sink"):
        Rule(frozenset({"other"}), columns=rule.columns).check_ignored()


@pytest.mark.parametrize("side", ["old", "new"])
def test_files_of_one_side_with_other_columns_are_not_compared(tmp_path, side):
    """Catches rows that are called equal by the columns of their first file."""
    plain = pa.schema({"k": pa.int64()})
    more = pa.schema({"k": pa.int64(), "n": pa.int64()})
    mixed = [
        *write(tmp_path / "plain", [{"k": 1}], plain),
        *write(tmp_path / "more", [{"k": 1, "n": 2}], more),
    ]
    alike = write(tmp_path / "alike", [{"k": 1}, {"k": 1}], plain)
    sides = (mixed, alike) if side == "old" else (alike, mixed)

    found = compare_rows("batch 1", *sides, Rule())

    assert not found.is_same
    assert found.why == f"files of the {side} rows have other columns"


def test_function_has_the_last_word_on_rows_that_differ(tmp_path):
    """Catches a function that is not asked, or not given all that differs."""
    schema = pa.schema({"real": pa.float64()})
    old = write(tmp_path / "old", [{"real": 0.1}, {"real": 7.0}], schema)
    new = write(tmp_path / "new", [{"real": 0.1 + 1e-12}, {"real": 7.0}], schema)

    def is_near(of, one, other):
        assert of == "batch 1"
        pairs = zip(one["real"].to_pylist(), other["real"].to_pylist(), strict=True)
        return all(abs(before - after) < 1e-9 for before, after in pairs)

    found = compare_rows("batch 1", old, new, Rule(judge=is_near))

    assert found.is_same
    assert (found.removed, found.added) == (1, 1)
    assert not compare_rows("batch 1", old, new, Rule(judge=lambda *_: False)).is_same


def test_rows_that_differ_are_not_fetched_for_nobody(tmp_path, monkeypatch):
    """Catches a comparison that holds all that differs, where no function judges it."""
    fetched = []

    class Watched:
        """A connection of which is noted what it fetches as Arrow data."""

        def __init__(self, connection):
            self._connection = connection

        def sql(self, text):
            fetched.append(text)
            return self._connection.sql(text)

        def __getattr__(self, name):
            return getattr(self._connection, name)

    def opened(*directory, **settings):
        return Watched(open_database(*directory, **settings))

    monkeypatch.setattr("statestore.operations.trial.rule.open_database", opened)
    old, new = (write(tmp_path / side, random_rows(Random(side), 30)) for side in ("old", "new"))

    assert not compare_rows("rows", old, new, Rule()).is_same

    assert len(fetched) == 2
    assert all("LIMIT" in text for text in fetched)


def function_of_the_page():
    """Return the function that docs/try.md gives as `same`."""
    page = Path(__file__).parents[2] / "docs" / "try.md"
    (block,) = re.findall(r"```python\n(def is_near.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(block.partition("\n\n\n")[0], names)  # noqa: S102
    return names["is_near"]


def test_the_function_of_the_page_judges_rows_of_a_sink(tmp_path):
    """Catches an example that fails, or that finds any two tables near."""
    schema = pa.schema({"shop": pa.string(), "total": pa.float64()})
    rows = [{"shop": "a", "total": 0.1}, {"shop": "b", "total": 7.0}]
    near = [{"shop": "b", "total": 7.0 + 1e-12}, {"shop": "a", "total": 0.1 + 1e-12}]
    rule = Rule(judge=function_of_the_page())

    def is_same(of, one, other):
        first, second = (
            write(tmp_path / f"{of}-{side}", each, schema)
            for side, each in (("old", one), ("new", other))
        )
        return compare_rows(of, first, second, rule).is_same

    assert is_same("batch 1", rows, near)
    assert not is_same("batch 2", rows, [rows[0], {"shop": "b", "total": 8.0}])
    assert not is_same("batch 3", rows, near[:1])


def test_the_function_of_the_page_judges_rows_of_state(tmp_path):
    """Catches an example that takes the columns of a sink for those of state."""
    family = ColumnFamily(0, "default", schema_of(shop="string"), schema_of(total="double"))
    store = WordStore((family,), columns=("shop",))

    def write_state(name, totals):
        query = MadeCheckpoint(
            str(tmp_path / name), operators=(("stateStoreSave", (store,)),), num_partitions=2
        )
        bits = {shop: struct.unpack("<q", struct.pack("<d", total))[0] for shop, total in totals}
        query.run_batch({("default", (shop,)): (each,) for shop, each in bits.items()})
        return query.path

    old = write_state("old", [("a", 0.1), ("b", 7.0), ("c", 1.0)])
    for name, totals, expected in (
        ("near", [("a", 0.1 + 1e-12), ("b", 7.0 + 1e-12), ("c", 1.0)], True),
        ("far", [("a", 0.1), ("b", 8.0), ("c", 1.0)], False),
        ("less", [("a", 0.1), ("c", 1.0)], False),
    ):
        new = write_state(name, totals)
        with open_checkpoint(place_of(old)) as one, open_checkpoint(place_of(new)) as other:
            (found,) = compare_state(one, 1, other, Rule(judge=function_of_the_page()))
        assert found.is_same == expected, name
        assert found.num_different


def test_state_differs_as_dicts_do(tmp_path):
    """Catches a key that is passed over, and a field that counts though it is ignored."""
    random = Random()
    for life in range(6):
        keys = [(word, number) for word in "abc" for number in range(6)]

        def changes(keys=keys):
            return {
                "default": {
                    key: random.choice([None, (random.randrange(2), random.choice("xy"))])
                    for key in random.sample(keys, 9)
                },
                "lists": {
                    key: random.choice(
                        [None, [(random.randrange(2), "x")] * random.randrange(1, 3)]
                    )
                    for key in random.sample(keys, 9)
                },
            }

        first = changes()
        sides = [[first, changes()], [first, changes()]]
        sides[1][1] = random.choice(sides)[1]
        paths = [
            write_checkpoint(tmp_path / f"{side}-{life}", versions)
            for side, versions in zip(("old", "new"), sides, strict=True)
        ]
        ignored = frozenset(random.choice([(), ("total",), ("value.note",), ("total", "note")]))
        kept = [
            at for at, name in enumerate(("total", "note")) if not {name, f"value.{name}"} & ignored
        ]

        with open_checkpoint(place_of(paths[0])) as old, open_checkpoint(place_of(paths[1])) as new:
            found = {one.of: one for one in compare_state(old, 2, new, Rule(ignored))}

        assert {Checkpoint(path).info.newest_version for path in paths} == {2}
        for family in ("default", "lists"):
            before, after = (contents(versions, family) for versions in sides)

            def chosen(value, family=family, kept=kept):
                rows = value if family == "lists" else [value]
                return [[row[at] for at in kept] for row in rows]

            one = next(each for each in found.values() if each.of.endswith(family))
            assert one.removed == len(before.keys() - after.keys())
            assert one.added == len(after.keys() - before.keys())
            both = before.keys() & after.keys()
            assert one.changed == sum(chosen(before[key]) != chosen(after[key]) for key in both)
            assert one.is_same == (one.num_different == 0)
            assert (one.num_old, one.num_new) == (None, None)  # a trailer counts both together


def test_rows_of_state_are_counted(tmp_path):
    """Catches an `equal` of state that nobody knows the size of, and a count of the wrong side."""
    random = Random()
    sizes = (random.randrange(40), random.randrange(40))
    paths = [
        write_checkpoint(
            tmp_path / name,
            [{"default": {("a", number): (number, "x") for number in range(size)}}],
            families=(DEFAULT,),
        )
        for name, size in zip(("old", "new"), sizes, strict=True)
    ]

    with open_checkpoint(place_of(paths[0])) as old, open_checkpoint(place_of(paths[1])) as new:
        (found,) = compare_state(old, 1, new, Rule())

    assert (found.num_old, found.num_new) == sizes
    assert found.num_different == abs(sizes[0] - sizes[1])


def test_wide_rows_are_cut_in_what_is_kept_of_them():
    """Catches a record of a trial that is too large to be read again."""
    wide = {"text": "x" * 100_000, "bytes": b"y" * 100_000, "list": ["z" * 5_000] * 5_000}

    assert len(json.dumps(plain(wide))) < 300_000
    assert plain({"text": "short", "list": [1, 2.5, None, True]}) == {
        "text": "short",
        "list": [1, 2.5, None, True],
    }


JOIN_ROWS = "left-keyWithTsToValues"


def of_a_join(path, rows):
    """A checkpoint of a join in state format 4 with rows (key, time, value)."""
    family = ColumnFamily(
        1, JOIN_ROWS, schema_of(k="long", __event_time="long"), schema_of(v="long"),
        multi_values=True,
    )  # fmt: skip
    stores = (WordStore((NO_DEFAULT, family)),)
    made = MadeCheckpoint(str(path), operators=(("symmetricHashJoin", stores),))
    made.run_batch({})
    names = ("key.k", "key.__event_time", "value.v")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    Checkpoint(path).edit(JOIN_ROWS, upsert=table)
    return path


def test_numbers_that_spark_draws_for_rows_of_a_join_do_not_count(tmp_path):
    """Catches the same code that never equals itself: Spark draws others for a repeated batch."""
    random = Random()
    seen = Counter()
    for life in range(12):
        rows = [(random.randrange(3), random.randrange(3)) for _ in range(random.randrange(1, 9))]
        other = random.sample(rows, len(rows))
        if random.random() < 0.3:
            other[0] = (other[0][0], other[0][1] + 1)
        first = 0 if random.random() < 0.7 else 1_700_000_000_000
        sides = [
            [(key, first + random.randrange(1024), value) for key, value in of]
            for of in (rows, other)
        ]
        old, new = (of_a_join(tmp_path / f"{life}-{n}", side) for n, side in enumerate(sides))

        with (
            open_checkpoint(place_of(old)) as of_old,
            open_checkpoint(place_of(new)) as of_new,
        ):
            compared = {one.of: one for one in compare_state(of_old, 2, of_new, Rule())}

        found = compared[f"state {JOIN_ROWS}"]
        counted = sides if first else (rows, other)
        same = Counter(counted[0]) == Counter(counted[1])
        assert found.is_same == same
        assert bool(found.num_different) != same
        seen[same] += 1
    assert seen[True]
