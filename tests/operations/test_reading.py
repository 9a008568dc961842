"""State read, compared and looked into without Spark, against a dict for every version."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from enum import Enum
from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from statestore import Checkpoint, Rows
from statestore.codec import sorting
from statestore.core.clock import SystemClock
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS
from statestore.io.fetch_cache import FetchCache
from statestore.io.local import LocalFileIO
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import open_storage
from statestore.operations.reading.diff import DiffCounts
from statestore.testing.stores import OPERATORS, schema_of
from tests.checkpoints import DEFAULT, LISTS, contents, without_lists, write_checkpoint
from tests.rescaled import make
from tests.seams import at

WORDS = [None, "", "a", "zwölf", "a word that is longer than a slot"]
VERSIONS = [
    {
        "default": {(word, n): (n * 7, f"note {n}") for word in WORDS for n in range(40)},
        "lists": {("a", n): [(n, None), (n + 1, "second")] for n in range(9)},
    },
    {
        "default": {("a", n): (-n, None) for n in range(20)} | {("zwölf", 3): None},
        "lists": {("a", 1): [(5, "x")], ("a", 2): None},
    },
    {
        "default": {("new", n): (n, "n") for n in range(5)} | {("a", 0): None, ("a", 1): (7, "n")},
        "lists": {("b", 0): [(n, str(n)) for n in range(12)]},
    },
]
BACKENDS = [("filesystem", 1), ("filesystem", 2), ("rocksdb", 1)]


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda param: f"{param[0]}-{param[1]}")
def checkpoint(request, tmp_path_factory):
    backend, checkpoint_format = request.param
    root = tmp_path_factory.mktemp("checkpoint") / "it"
    return write_checkpoint(
        root, VERSIONS, backend=backend, checkpoint_format=checkpoint_format, num_partitions=4
    )


def test_reading_every_row_needs_no_pandas(checkpoint, tmp_path):
    """Catches a package that Arrow imports in every process, and nobody asks for."""
    code = """
import sys
from statestore import Checkpoint, Rows
checkpoint, savepoint, restored = sys.argv[1:]
assert Checkpoint(checkpoint).verify(deep=True).ok
assert sum(batch.num_rows for batch in Checkpoint(checkpoint).rows("default").read_batches())
made = Checkpoint(checkpoint).savepoint(savepoint).made
made.restore(restored, backend="rocksdb")
assert "pandas" not in sys.modules
"""
    paths = [str(checkpoint), str(tmp_path / "savepoint"), str(tmp_path / "restored")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)


def _rows(table):
    return {tuple(row["key"].values()): tuple(row["value"].values()) for row in table.to_pylist()}


def test_every_version_is_read_as_it_was(checkpoint):
    """Catches a delete that comes back, an old value, a row of another version or partition."""
    for version in range(1, len(VERSIONS) + 1):
        table = Checkpoint(checkpoint).rows("default", version=version).read()

        expected = contents(VERSIONS[:version])
        assert _rows(table) == expected
        assert table.num_rows == len(expected)
    assert _rows(Checkpoint(checkpoint).rows("default").read()) == expected
    assert table.schema.names == ["key", "value", "partition_id"]


def test_values_of_a_multi_value_family_are_rows_in_order(checkpoint):
    """Catches values of one key out of order, or only the first of them."""
    found = {}
    for row in Checkpoint(checkpoint).rows("lists").read().to_pylist():
        found.setdefault(tuple(row["key"].values()), []).append(tuple(row["value"].values()))

    assert found == contents(VERSIONS, "lists")


def test_batches_and_state_partitions_make_up_the_whole(checkpoint):
    """Catches a state partition read twice or left out, and a reader that needs all memory."""
    reports = []
    batches = list(
        Checkpoint(checkpoint)
        .rows("default")
        .read_batches(progress=lambda *done: reports.append(done))
    )
    assert batches[0].num_rows == 0
    assert reports == sorted(reports)
    assert {total for _, total in reports} == {reports[-1][0]}
    whole = pa.Table.from_batches(batches)

    pieces = [
        Checkpoint(checkpoint).rows("default").read(partitions=[partition])
        for partition in range(4)
    ]

    assert all(set(piece["partition_id"].to_pylist()) == {n} for n, piece in enumerate(pieces))
    assert _rows(pa.concat_tables(pieces)) == _rows(whole)
    assert sum(piece.num_rows for piece in pieces) == whole.num_rows
    frame = whole.flatten().to_pandas()
    assert list(frame.columns) == [
        "key.word", "key.number", "value.total", "value.note", "partition_id"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind", "names"),
    [
        ({"name": 7}, "invalid-argument", "known='0'"),
        ({"name": "left"}, "invalid-argument", "default, lists"),
        ({"name": "0/timers"}, "invalid-argument", "default, lists"),
        ({"name": None}, "invalid-argument", "default, lists"),
        ({"partitions": [0, 4]}, "invalid-argument", "num_partitions=4"),
        ({"version": 0}, "version-not-found", "newest_version=3"),
        ({"version": 4}, "version-not-found", "newest_version=3"),
    ],
)
def test_what_is_not_there_is_refused_by_name(checkpoint, arguments, kind, names):
    """Catches an empty table where a name was misspelt."""
    given = {"name": "default", "version": None, "partitions": None} | arguments
    rows = Checkpoint(checkpoint).rows(given["name"], version=given["version"])

    with pytest.raises((InvalidArgumentError, NotFoundError)) as caught:
        rows.read(partitions=given["partitions"])

    assert caught.value.kind == kind
    assert names in str(caught.value)


def test_columns_that_flatten_to_one_name_are_refused(tmp_path):
    """Catches a column that is silently left out."""
    inner = json.loads(schema_of(b="long"))
    family = replace(DEFAULT, value_schema=schema_of(**{"a.b": "long", "a": inner}))
    rows = Checkpoint(write_checkpoint(tmp_path / "query", [{}], families=(family,))).rows()

    with pytest.raises(InvalidArgumentError, match=r"name='value\.a\.b'"):
        rows.read(flatten=True)
    columns = rows.read(flatten=True, columns=["key.word", "value.a"]).column_names
    assert columns == ["key.word", "value.a.b"]


def _differences(table):
    found = {}
    for row in table.to_pylist():
        old, new = (
            None if value is None else tuple(value.values())
            for value in (row["old_value"], row["new_value"])
        )
        found[tuple(row["key"].values())] = (row["change"], old, new)
    assert len(found) == table.num_rows
    return found


def _expected(old, new):
    found = {}
    for key in old.keys() | new.keys():
        if old.get(key) != new.get(key):
            change = "added" if key not in old else "removed" if key not in new else "changed"
            found[key] = (change, old.get(key), new.get(key))
    return found


def _counts(expected):
    changes = [change for change, _, _ in expected.values()]
    return DiffCounts(*(changes.count(name) for name in ("added", "removed", "changed")))


def test_two_versions_differ_in_what_was_written_between_them(checkpoint):
    """Catches rows missed at the seams of batches, and equal rows taken for changed."""
    for old in range(1, 4):
        for new in range(1, 4):
            before, after = (
                Checkpoint(checkpoint).rows("default", version=version) for version in (old, new)
            )
            expected = _expected(contents(VERSIONS[:old]), contents(VERSIONS[:new]))

            assert _differences(before.diff(after)) == expected
            assert before.count_differences(after) == _counts(expected)


def test_rows_of_both_versions_are_compared_where_no_column_holds_them_together(
    checkpoint, monkeypatch
):
    """Catches a diff that fails where the values of one key have 2 GiB in both versions."""
    monkeypatch.setattr(sorting, "_combine", list)
    before, after = (Checkpoint(checkpoint).rows("default", version=number) for number in (1, 2))

    assert _differences(before.diff(after)) == _expected(
        contents(VERSIONS[:1]), contents(VERSIONS[:2])
    )


@pytest.mark.parametrize(
    "other",
    [
        {"num_partitions": 3, "max_parallelism": 96},
        {"num_partitions": 4, "max_parallelism": 128},
        {"num_partitions": 4, "backend": "rocksdb"},
        {"num_partitions": 8, "backend": "rocksdb", "checkpoint_format": 2},
    ],
    ids=["3-partitions", "more-key-groups", "rocksdb", "8-partitions-rocksdb"],
)
@pytest.mark.few(5)
def test_two_checkpoints_are_compared_whatever_their_layout(
    checkpoint, other, tmp_path, monkeypatch
):
    """Catches rows compared by where they are instead of by their key."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 1000)
    twin = write_checkpoint(tmp_path / "twin", VERSIONS, **other)

    assert (
        Checkpoint(checkpoint).rows("default").count_differences(Checkpoint(twin).rows("default"))
        == DiffCounts()
    )
    found = Checkpoint(checkpoint).rows("default").diff(Checkpoint(twin).rows("default", version=1))
    assert _differences(found) == _expected(contents(VERSIONS), contents(VERSIONS[:1]))


@pytest.mark.parametrize("kind", ["timestamp", "string"])
def test_keys_of_other_types_are_not_compared(checkpoint, tmp_path, kind):
    """Catches a key that no state has: the old bytes, read by the new schema."""
    other = replace(DEFAULT, key_schema=schema_of(word="string", count=kind))
    made = write_checkpoint(tmp_path / "other", without_lists(VERSIONS), families=(other,))
    sides = (Checkpoint(checkpoint).rows("default"), Checkpoint(made).rows())

    for compare in (Rows.diff, Rows.count_differences):
        with pytest.raises(IncompatibleError, match=rf"keys of different types.*count: {kind}"):
            compare(*sides)
    renamed = replace(DEFAULT, key_schema=schema_of(text="string", count="long"))
    made = write_checkpoint(tmp_path / "renamed", VERSIONS, families=(renamed, LISTS))
    assert sides[0].count_differences(Checkpoint(made).rows("default")) == DiffCounts()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_two_state_variables_of_one_version_are_compared(tmp_path, backend):
    """Catches rows that are called equal since they are in the same files."""
    families = tuple(replace(DEFAULT, id=number, name=name) for number, name in enumerate("ab"))
    rows = {"a": {("x", 1): (1, ""), ("y", 2): (2, "")}, "b": {("x", 1): (7, "")}}
    path = write_checkpoint(tmp_path / "ck", [rows], families=families, backend=backend)
    branch = Checkpoint(path).branch(tmp_path / "branch").made

    for other in (Checkpoint(path), branch):
        old, new = Checkpoint(path).rows("a"), other.rows("b")
        assert old.count_differences(new) == DiffCounts(removed=1, changed=1)
        changes = {row["change"]: row["key"]["word"] for row in old.diff(new).to_pylist()}
        assert changes == {"removed": "y", "changed": "x"}
        assert old.count_differences(other.rows("a")) == DiffCounts()


def test_a_column_family_made_later_is_all_added(checkpoint, tmp_path):
    """Catches a diff that fails where a query has got a new state variable."""
    plain = write_checkpoint(
        tmp_path / "plain", without_lists(VERSIONS), num_partitions=4, families=(DEFAULT,)
    )

    found = Checkpoint(plain).rows("lists").diff(Checkpoint(checkpoint).rows("lists")).to_pylist()
    back = Checkpoint(checkpoint).rows("lists").count_differences(Checkpoint(plain).rows("lists"))

    expected = contents(VERSIONS, "lists")
    assert {row["change"] for row in found} == {"added"}
    assert {
        tuple(row["key"].values()): [tuple(value.values()) for value in row["new_value"]]
        for row in found
    } == expected
    assert back == DiffCounts(removed=len(expected))
    with pytest.raises(InvalidArgumentError, match="not said which are meant"):
        Checkpoint(plain).rows().diff(Checkpoint(checkpoint).rows())
    with pytest.raises(InvalidArgumentError, match="no rows of that name"):
        Checkpoint(plain).rows("timers").diff(Checkpoint(checkpoint).rows("timers"))


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.extended) for n in range(6, 100))]
)
def test_column_families_are_compared_whatever_their_number(tmp_path, seed):
    """Catches rows that differ because their column family was made earlier or later."""
    rng = Random(seed)
    held, sides = [], []
    for name in ("old", "new"):
        first, second = rng.sample(range(1, 6), 2)
        families = (DEFAULT, replace(LISTS, id=first), replace(DEFAULT, name="more", id=second))
        rows = {
            "default": {(word, n): (n, "d") for word in "abc" for n in range(3)},
            "lists": {(word, n): [(n, "x")] * n for word in "abc" for n in range(1, 4)},
            "more": {(word, n): (n, "y") for word in "abcd" for n in range(10)},
        }
        for of in rows.values():
            for key in rng.sample([*of], rng.randint(0, 5)):
                del of[key]
            for key in rng.sample([*of], rng.randint(0, 3)):
                of[key] = [(7, "z")] if isinstance(of[key], list) else (7, "z")
        backend = rng.choice(["filesystem", "rocksdb"])
        num_partitions = rng.choice([1, 2, 4])
        path = write_checkpoint(
            tmp_path / name,
            [rows],
            families=families,
            num_partitions=num_partitions,
            backend=backend,
        )
        held.append(rows)
        sides.append(Checkpoint(path))

    for name in ("default", "more", "lists"):
        old, new = (side.rows(name) for side in sides)
        expected = _expected(held[0][name], held[1][name])
        assert old.count_differences(new) == _counts(expected)
        found = {
            tuple(row["key"].values()): tuple(_plain(row[of]) for of in ("old_value", "new_value"))
            for row in old.diff(new).to_pylist()
        }
        assert found == {key: (before, after) for key, (_, before, after) in expected.items()}


def _plain(value):
    if isinstance(value, list):
        return [tuple(one.values()) for one in value]
    return None if value is None else tuple(value.values())


def test_rows_are_found_by_key_and_by_its_first_columns(checkpoint):
    """Catches a key looked for in the wrong state partition, and null taken for no value."""
    expected = contents(VERSIONS)
    for key in [("zwölf", 5), (None, 7), ("", 0), ("a", "2")]:
        found = Checkpoint(checkpoint).rows("default").find(list(key))
        assert _rows(found) == {(key[0], int(key[1])): expected[key[0], int(key[1])]}
    for word in WORDS:
        assert _rows(Checkpoint(checkpoint).rows("default").find([word])) == {
            key: value for key, value in expected.items() if key[0] == word
        }
    assert _rows(Checkpoint(checkpoint).rows("default").find([])) == expected
    assert Checkpoint(checkpoint).rows("default").find(["zwölf", 3]).num_rows == 0
    assert (
        Checkpoint(checkpoint)
        .rows("default", version=1)
        .find(["a", 5])
        .to_pylist()[0]["value"]["total"]
        == 35
    )
    with pytest.raises(InvalidArgumentError, match="not of the type"):
        Checkpoint(checkpoint).rows("default").find(["a", "three"])
    with pytest.raises(InvalidArgumentError, match="more values"):
        Checkpoint(checkpoint).rows("default").find(["a", 3, 4])


class Word(str, Enum):  # noqa: UP042 (whose members `str` makes names of)
    """Text by a name."""

    SHORT = "a"


class Count(int, Enum):
    """A number by a name."""

    FIVE = 5


def test_a_member_of_an_enum_is_found_by_its_value(checkpoint):
    """Catches no rows, without an error, since `str` of a member is its name."""
    rows = Checkpoint(checkpoint).rows("default")

    assert _rows(rows.find([Word.SHORT, Count.FIVE])) == {("a", 5): (-5, None)}


def test_a_text_is_not_taken_for_several(checkpoint):
    """Catches a key, or names of columns, that are taken apart by letters."""
    rows = Checkpoint(checkpoint).rows("default")
    for key in ("a", "a3", b"a"):
        with pytest.raises(InvalidArgumentError, match=r"\[key\]"):
            rows.find(key)
    with pytest.raises(InvalidArgumentError, match=r"columns='key'.*\[value\]"):
        rows.read(columns="key")


def test_the_largest_keys_come_first(checkpoint):
    """Catches sizes of other rows, and a largest key forgotten between batches."""
    found = Checkpoint(checkpoint).rows("lists").largest(3).to_pylist()

    assert tuple(found[0]["key"].values()) == ("b", 0)
    assert found[0]["value_bytes"] == 12 * (4 + 32)
    assert [row["value_bytes"] for row in found[1:]] == [4 + 24 + 4 + 32] * 2


def test_key_groups_add_up_to_the_state(checkpoint):
    """Catches rows counted under a key group that is not their state partition's."""
    table = Checkpoint(checkpoint).rows("default").key_groups()

    assert sum(table["num_rows"].to_pylist()) == len(contents(VERSIONS))
    groups = table["key_group"].to_pylist()
    assert groups == sorted(set(groups))
    assert [group % 4 for group in groups] == table["partition_id"].to_pylist()
    total = sum(table["key_bytes"].to_pylist())
    words = [key[0] for key in contents(VERSIONS)]
    assert total == sum(24 + -(-len((word or "").encode()) // 8) * 8 for word in words)


def test_a_checkpoint_is_described_by_its_trailers(checkpoint):
    """Catches schemas or counts of another version."""
    (store,) = Checkpoint(checkpoint).inspect(version=2)

    assert (store.operator, store.operator_name, store.name) == (0, "stateStoreSave", "default")
    assert (store.num_partitions, store.max_parallelism, store.rescalable) == (4, 64, True)
    expected = len(contents(VERSIONS[:2])) + len(contents(VERSIONS[:2], "lists"))
    assert sum(store.num_keys.values()) == expected
    assert [(family.name, family.multi_values) for family in store.column_families] == [
        ("default", False), ("lists", True)
    ]  # fmt: skip
    assert store.column_families[0].key == pa.struct({"word": pa.string(), "number": pa.int64()})


def test_state_on_the_heap_is_read_through_the_drivers_memory(tmp_path):
    """Catches the heap backend's state looked for on the disk."""
    root = as_on_the_heap(write_checkpoint(tmp_path / "heap", VERSIONS))

    assert _rows(at(root, memory=LocalFileIO).rows("default").read()) == contents(VERSIONS)
    with pytest.raises(NotFoundError) as caught:
        Checkpoint(root).rows("default").read()
    assert caught.value.kind == "driver-lost"


def as_on_the_heap(root):
    """A checkpoint of the heap backend: its memory is the same directory."""
    for entry in Path(root, "offsets").iterdir():
        text = entry.read_text()
        entry.write_text(text.replace(PROVIDERS["filesystem"], PROVIDERS["heap"]))
    return root


def test_versions_on_the_heap_are_told_after_a_rescale_to_fewer(tmp_path):
    """Catches a version called damaged whose files are of a state partition there was before."""
    root = as_on_the_heap(write_checkpoint(tmp_path / "heap", VERSIONS, num_partitions=8))
    checkpoint = at(root, memory=LocalFileIO)
    before = [version.kind for version in checkpoint.versions()]

    checkpoint.rescale(4)

    assert [version.kind for version in checkpoint.versions()] == ["rescaled", *before]
    assert "expired" not in before


def test_versions_on_the_heap_are_listed_where_its_memory_cannot_be_reached(tmp_path):
    """Catches a list that fails, where the logs tell of versions and backend."""
    root = as_on_the_heap(write_checkpoint(tmp_path / "heap", VERSIONS))

    assert Checkpoint(root).info.backend == "heap"
    assert {version.kind for version in Checkpoint(root).versions()} == {"unreadable"}


def test_keys_on_the_heap_are_refused_to_be_forgotten_also_without_its_memory(tmp_path):
    """Catches the way to the memory told for what cannot be done there either."""
    root = as_on_the_heap(write_checkpoint(tmp_path / "heap", VERSIONS))

    with pytest.raises(IncompatibleError, match="stop the driver"):
        Checkpoint(root).forget(keys=[{"word": "a", "number": 1}], dry_run=True)


def on_s3(root, s3_server, bucket, scratch):
    """The same checkpoint on S3."""
    options = StateStoreOptions(**s3_server.options())
    settings = S3Settings.from_options(options)
    uri = f"s3://{bucket}/checkpoint"
    io, path = open_storage(uri, str(scratch), settings, SystemClock())
    for file in Path(root).rglob("*"):
        if file.is_file():
            name = f"{path}/{file.relative_to(root)}"
            io.write(name, file.read_bytes(), sync=True, overwrite=False)
    return at(uri, options=options)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_state_on_s3_is_read_by_its_uri(backend, s3_server, bucket, tmp_path):
    """Catches a read that needs a local path, or options of the storage that do not get there."""
    root = write_checkpoint(tmp_path / "local", VERSIONS, backend=backend)
    rows = on_s3(root, s3_server, bucket, tmp_path).rows("default")

    assert _rows(rows.read()) == contents(VERSIONS)
    assert Checkpoint(root).rows("default").count_differences(rows) == DiffCounts()


def _read_some(checkpoint, _):
    """Read some rows, and no more."""
    with closing(checkpoint.rows("default").read_batches()) as batches:
        assert next(batches).num_rows == 0
        assert next(batches).num_rows > 0


def _make_wrong_rows(checkpoint, tmp_path):
    """Make rows that are refused of some that were read."""

    def without_values(rows):
        kind = rows.schema.field("value").type
        return pa.table({"key": rows["key"], "value": pa.nulls(len(rows), kind)})

    with pytest.raises(InvalidArgumentError, match="is null"):
        checkpoint.transform(tmp_path / "savepoint", {"default": without_values})


@pytest.mark.parametrize("read", [_read_some, _make_wrong_rows])
def test_read_that_ends_half_way_leaves_no_file(read, s3_server, bucket, tmp_path, monkeypatch):
    """Catches rows of state in temporary files for good, which were fetched after the end."""
    versions = [{"default": VERSIONS[0]["default"]}]
    root = write_checkpoint(tmp_path / "local", versions, families=(DEFAULT,), num_partitions=8)
    checkpoint = on_s3(root, s3_server, bucket, tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    get, num_fetched = FetchCache.get, count()
    has_ended = threading.Event()

    def slow(*file):
        if next(num_fetched) < 5:
            return get(*file)
        # The first rows are handed out while the file of the sixth state partition is fetched.
        time.sleep(2)
        try:
            return get(*file)
        finally:
            has_ended.set()

    monkeypatch.setattr(FetchCache, "get", slow)
    read(checkpoint, tmp_path)

    assert has_ended.wait(60)
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_a_rescaled_version_reads_as_before(backend, tmp_path):
    """Catches rows read twice, or not at all, from files that state partitions share."""
    root = write_checkpoint(tmp_path / "rescaled", VERSIONS, backend=backend, num_partitions=4)
    for number, num_partitions in enumerate((8, 2, 6)):
        Checkpoint(root).rescale(num_partitions)

        table = Checkpoint(root).rows("default").read()
        assert _rows(table) == contents(VERSIONS)
        assert table.num_rows == len(contents(VERSIONS))
        assert (
            Checkpoint(root)
            .rows("default", version=3)
            .count_differences(Checkpoint(root).rows("default"))
            == DiffCounts()
        )
        assert (
            Checkpoint(root)
            .rows("default", version=3 + number)
            .count_differences(Checkpoint(root).rows("default"))
            == DiffCounts()
        )
        assert Checkpoint(root).rows("default").find(["zwölf", 5]).num_rows == 1
        groups = Checkpoint(root).rows("default").key_groups()
        assert sum(groups["num_rows"].to_pylist()) == len(contents(VERSIONS))
        assert max(groups["partition_id"].to_pylist()) < num_partitions


def test_operator_without_metadata_is_named(tmp_path):
    """Catches rows of one operator for all there are, and state that is said not to be there."""
    path = make(tmp_path, operators=OPERATORS[:2]).path
    for operator in (1, 0):
        shutil.rmtree(f"{path}/state/{operator}/_metadata")

        with pytest.raises(NotFoundError, match=rf"no metadata.*state/{operator}/_metadata"):
            Checkpoint(path).rows().read()
        if operator == 1:
            assert Checkpoint(path).rows(0).read().num_rows
