"""Lists of so many elements that they lie over several blocks, and their keys, against a dict."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from statestore import Checkpoint, Edited, write_savepoint
from statestore.codec import arrow_batch, sorting
from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import StoreName
from statestore.codec.rows import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS, PUT, SCHEMA
from statestore.core.errors import InvalidArgumentError
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import find_version
from statestore.operations.copying import same_shape
from statestore.operations.metadata_file import new_query_id, query_metadata
from statestore.operations.reading import read
from statestore.operations.savepoint.from_spark import FromSpark
from statestore.operations.store_state import StoreState
from statestore.testing.stores import schema_of
from tests.checkpoints import write_checkpoint
from tests.made_joins import SIDES, MadeJoin, column
from tests.seams import place_of

Key = tuple[str, int]
Lists = dict[Key, list[tuple[int, str]]]
LENGTHS = (1, 2, 7, 8_191, 8_192, 8_193, MAX_BLOCK_ROWS, MAX_BLOCK_ROWS + 1, 20_000, 33_000)
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(4, 60))]


def draw_lists(rng: Random, names: str) -> Lists:
    """Return lists, some of many elements, some of as many bytes as a block has."""
    lists: Lists = {}
    for number in range(rng.randint(1, 6)):
        if rng.random() < 0.25:
            texts = ["x" * (MAX_BLOCK_BYTES // rng.randint(1, 4)) for _ in range(rng.randint(1, 6))]
        else:
            texts = ["e"] * (rng.choice(LENGTHS) + rng.choice([0, 0, rng.randint(0, 50)]))
        lists[rng.choice(names), number] = list(enumerate(texts))
    # Keys of a few elements, so that a block ends anywhere in the list that it cuts.
    for number in range(rng.choice([0, 10, 3_000])):
        lists[rng.choice(names), 100 + number] = [(at, "") for at in range(rng.randint(1, 3))]
    return lists


def as_table(rng: Random, lists: Lists) -> pa.Table:
    """Return a row an element: those of a list in order, and lists mixed."""
    keys = [key for key, elements in lists.items() for _ in elements]
    if len(keys) < 20_000 and rng.random() < 0.5:
        rng.shuffle(keys)
    left = {key: iter(elements) for key, elements in lists.items()}
    values = [next(left[key]) for key in keys]
    return pa.table(
        {
            "key.word": [word for word, _ in keys],
            "key.number": [number for _, number in keys],
            "value.total": [total for total, _ in values],
            "value.note": [note for _, note in values],
        }
    )


def keys_that_differ(checkpoint: Any, expected: Lists) -> list[Key]:
    """Return the keys of which a checkpoint or savepoint holds another list, or none."""
    lists: Lists = {}
    for row in checkpoint.rows("lists").read(flatten=True).to_pylist():
        key = row["key.word"], row["key.number"]
        lists.setdefault(key, []).append((row["value.total"], row["value.note"]))
    return [key for key in {**lists, **expected} if lists.get(key) != expected.get(key)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_element_is_there_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Catches elements that are lost where a list lies over the end of a block."""
    rng = Random(seed)
    monkeypatch.setattr(sorting, "RUN_BYTES", rng.choice([sorting.RUN_BYTES, 3_000_000]))
    path = write_checkpoint(
        tmp_path / "query",
        [{"default": {("a", 1): (1, "")}, "lists": {("a", 1): [(1, "")], ("z", 1): [(2, "")]}}],
        num_partitions=rng.randint(1, 2),
        backend=rng.choice(["filesystem", "rocksdb"]),
        checkpoint_format=rng.choice([1, 2]),
    )
    lists, put = draw_lists(rng, "abc"), draw_lists(rng, "cde")

    savepoint = write_savepoint(
        tmp_path / "written", like=Checkpoint(path), rows={"lists": as_table(rng, lists)}
    ).made
    assert keys_that_differ(savepoint, lists) == []
    again = savepoint.transform(tmp_path / "again", {"lists": "SELECT * FROM state"}).made
    assert keys_that_differ(again, lists) == []
    put_into = savepoint.transform(
        tmp_path / "put", {"lists": Edited(upsert=as_table(rng, put))}
    ).made
    assert keys_that_differ(put_into, lists | put) == []
    restored = savepoint.restore(tmp_path / "new", num_partitions=rng.randint(1, 5)).made
    restored.edit("lists", upsert=as_table(rng, put))
    assert keys_that_differ(restored, lists | put) == []
    for made in (savepoint, again, put_into, restored):
        assert made.verify(deep=True).findings == ()


def test_key_of_many_elements_is_read_a_few_mib_at_a_time(tmp_path: Path) -> None:
    """Catches a list whose key, repeated for each of its elements, does not fit an Arrow column."""
    elements = [(number, "e") for number in range(3_000)]
    lists = {("k" * 10_000, 1): elements, ("a", 1): elements[:2]}
    path = write_checkpoint(tmp_path / "query", [{"lists": lists}])

    sizes = [batch.nbytes for batch in Checkpoint(path).rows("lists").read_batches()]

    assert max(sizes) < 2 * MAX_BLOCK_BYTES < sum(sizes)
    assert keys_that_differ(Checkpoint(path), lists) == []


def test_condition_finds_an_element_wherever_it_is_in_a_long_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches another list that is deleted where elements are decoded a part at a time."""
    monkeypatch.setattr(read, "MAX_BLOCK_BYTES", 1_000)
    lists = {("a", n): [(100 * n + number, "") for number in range(100)] for n in range(5)}
    path = write_checkpoint(tmp_path / "query", [{"lists": lists}], num_partitions=1)

    Checkpoint(path).edit("lists", delete="total IN (199, 350)")

    assert keys_that_differ(Checkpoint(path), {("a", n): lists["a", n] for n in (0, 2, 4)}) == []


def test_list_of_equal_elements_is_written_though_it_packs_too_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an operation that fails on a list that unpacks to more than a reader takes."""
    path = write_checkpoint(tmp_path / "query", [{"default": {("a", 1): (1, "")}, "lists": {}}])
    lists = {("a", 1): [(1, "e" * 100)] * 1_000}
    monkeypatch.setattr(arrow_batch, "_UNPACKED_BYTES", 1 << 14)
    monkeypatch.setattr(arrow_batch, "_UNPACKED_RATIO", 2)

    savepoint = write_savepoint(
        tmp_path / "written", like=Checkpoint(path), rows={"lists": as_table(Random(1), lists)}
    ).made

    assert keys_that_differ(savepoint, lists) == []
    assert savepoint.verify(deep=True).findings == ()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_key_that_is_there_again_in_the_next_block_is_refused(tmp_path: Path, backend: str) -> None:
    """Catches two values of a key of which the first is lost."""
    path = write_checkpoint(
        tmp_path / "query", [{"default": {("a", 1): (1, "")}}], num_partitions=1, backend=backend
    )
    numbers = [*range(MAX_BLOCK_ROWS), *range(MAX_BLOCK_ROWS)]
    count = len(numbers)
    rows = pa.table(
        {
            "key.word": ["a"] * count,
            "key.number": numbers,
            "value.total": numbers,
            "value.note": ["n"] * count,
        }
    )
    # One fewer is cut between the two rows of a key.
    for num_fewer in (0, 1):
        with pytest.raises(InvalidArgumentError, match="several rows have the same key") as refused:
            write_savepoint(
                tmp_path / "written",
                like=Checkpoint(path),
                rows={"default": rows.slice(num_fewer)},
            )
        assert refused.value.fields["num_rows_too_many"] == MAX_BLOCK_ROWS - num_fewer


@pytest.mark.parametrize("seed", SEEDS[:2] + SEEDS[4:20])
def test_join_has_every_row_of_a_key_in_format_4(tmp_path: Path, seed: int) -> None:
    """Catches rows of a join that are lost where those of a key lie over the end of a block."""
    rng = Random(seed)
    columns = [column("at", "timestamp", watermark=True), column("n", "long")]
    join = MadeJoin.make(
        tmp_path / "query",
        [column("field0", "string")],
        dict.fromkeys(SIDES, columns),
        num_partitions=rng.randint(1, 2),
        backend=rng.choice(["filesystem", "rocksdb"]),
    )
    time = datetime(2024, 1, 1, tzinfo=UTC)
    rows: list[Any] = [
        (side, {"field0": key}, {"at": time + timedelta(seconds=second), "n": n, "matched": False})
        for side in SIDES
        for key in "ab"
        for second in range(2)
        for n in range(rng.choice(LENGTHS[:-2]))
    ]
    join.run(rows, {})

    savepoint = Checkpoint(join.made.path).transform(tmp_path / "new", join_format=4).made

    assert savepoint.verify(deep=True).findings == ()
    for side in SIDES:
        expected = Counter(
            (key["field0"], row["at"], row["n"]) for of, key, row in rows if of == side
        )
        rows_found = savepoint.rows(f"{side}-keyWithTsToValues").read().to_pylist()
        found = Counter(
            (one["key"]["field0"], one["value"]["at"], one["value"]["n"]) for one in rows_found
        )
        assert ((expected - found).total(), (found - expected).total()) == (0, 0)


@pytest.mark.parametrize("lengths", [(40_000,), (16_000, 800), (8_193, 8_192, 5)])
def test_lists_that_spark_wrote_as_avro_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    """Catches elements that are lost where a list is decoded and encoded again, part by part."""
    monkeypatch.setattr(read, "MAX_BLOCK_BYTES", 10_000)
    schema = schema_of(n="long")
    family = ColumnFamily(
        1, "seen", schema, schema, multi_values=True, value_schemas={0: schema}, avro=True
    )
    record = {"type": "record", "name": "top", "fields": [{"name": "n", "type": ["null", "long"]}]}
    parsed = fastavro.parse_schema(record)

    def avro(number: int) -> bytes:
        data = BytesIO()
        fastavro.schemaless_writer(data, parsed, {"n": number})
        return b"\0\0" + data.getvalue()

    def element(number: int) -> bytes:
        return len(avro(number)).to_bytes(4) + avro(number)

    lists = [b"".join(map(element, range(length))) for length in lengths]
    columns: list[Any] = [
        pa.array([0] * len(lists), pa.uint16()),
        pa.array([1] * len(lists), pa.uint16()),
        pa.array([PUT] * len(lists), pa.uint8()),
        pa.array(map(avro, range(len(lists))), pa.binary()),
        pa.array(lists, pa.binary()),
    ]
    stored = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    state = StoreState(
        StoreName(0, 0), 1, 8, True, None, 1, (family,), "full", 1, 1, 1, (), True,
        lambda column_family, key_group=None: iter([stored]),
    )  # fmt: skip

    place = place_of(tmp_path / "new")
    metadata = query_metadata(new_query_id(place.ids))

    with open_checkpoint(
        place_of(write_checkpoint(tmp_path / "query", [{}], num_partitions=1))
    ) as like:
        passing = FromSpark((state,), num_partitions=1, max_parallelism=8)
        same_shape("restore", find_version(like), place, passing, lambda _: metadata).run()

    found: dict[int, list[int]] = {}
    for row in Checkpoint(place.uri).rows("seen").read(flatten=True).to_pylist():
        found.setdefault(row["key.n"], []).append(row["value.n"])
    assert {key: len(of) for key, of in found.items()} == dict(enumerate(lengths))
    assert all(of == [*range(len(of))] for of in found.values())
