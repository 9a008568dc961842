"""Random keys of every kind forgotten in random checkpoints, against a plain model.

Beside it a search of the directory that knows nothing of the package: Arrow streams are read by
pyarrow, SSTs by RocksDB, everything else as it is.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.spark_types import SparkType
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import StoreOfQuery
from tests.checkpoints import write_checkpoint

SST_END = bytes.fromhex("f7cff485b741e288")
"""RocksDB's magic number, with which every SST ends."""


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": [field(*one) for one in fields]})


@dataclass(frozen=True)
class TypedStore(StoreOfQuery):
    """A store with rows of any type, made of numbers by functions; as `MadeStore`."""

    name: str
    columns: tuple[str, ...]
    family: ColumnFamily
    key: Callable[[int], dict[str, Any]]
    value: Callable[[int, int], dict[str, Any]]
    below: int = 1000

    def rows(self, numbers: Mapping[int, int | None]) -> dict[bytes, bytes | None]:
        """Return rows for numbers below a limit by key; None for a row that is deleted."""
        numbers = {number: value for number, value in numbers.items() if number < self.below}
        keys = pa.array([self.key(number) for number in numbers], key_type(self.family).arrow)
        values = [self.value(number, value or 0) for number, value in numbers.items()]
        encoded = encode_values(pa.array(values, value_type(self.family).arrow), self.family)
        pairs = zip(encode_keys(keys, self.family).to_pylist(), encoded.to_pylist(), strict=True)
        return {
            key: None if number is None else value
            for (key, value), number in zip(pairs, numbers.values(), strict=True)
        }


TEXT = "abcdefgh-@.éß漢字 😀\"'\\\t"


def text(rng: random.Random) -> str:
    return "".join(rng.choice(TEXT) for _ in range(rng.randint(0, 12)))


KINDS: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "string": ("string", text),
    "email": ("string", lambda rng: f"{rng.choice(['ann', 'bob'])}{rng.randint(1, 10**6)}@ex.org"),
    "binary": ("binary", lambda rng: rng.randbytes(rng.randint(0, 9))),
    "byte": ("byte", lambda rng: rng.choice([-128, -1, 0, 1, 127, rng.randint(-99, 99)])),
    "integer": ("integer", lambda rng: rng.choice([-1, 0, 1, -2, 2**31 - 1, rng.randint(0, 9**9)])),
    "long": ("long", lambda rng: rng.choice([-1, 7, 2**62, -(2**63), rng.randint(0, 9**18)])),
    "date": ("date", lambda rng: date(1970, 1, 1) + timedelta(days=rng.randint(-3, 20000))),
    "timestamp": (
        "timestamp",
        lambda rng: datetime(1969, 12, 31, tzinfo=UTC) + timedelta(seconds=rng.randint(0, 9**9)),
    ),
    "decimal": ("decimal(12,2)", lambda rng: Decimal(rng.randint(-(10**9), 10**9)) / 100),
    "big decimal": ("decimal(30,5)", lambda rng: Decimal(rng.randint(0, 10**20)) / 10**5),
    "struct": (
        {"type": "struct", "fields": [field("org", "string"), field("id", "long")]},
        lambda rng: {"org": f"{text(rng)}{rng.randbytes(5).hex()}", "id": rng.randint(-9, 10**9)},
    ),
    "array": (
        {"type": "array", "elementType": "string", "containsNull": True},
        lambda rng: [f"{text(rng)}{rng.randbytes(5).hex()}" for _ in range(rng.randint(1, 3))],
    ),
}
NUM_USERS = 12
WEAK = ("date", "timestamp")
"""In a key of several columns these are not looked for by themselves."""
MIN_BYTES = 4


@dataclass
class Made:
    """A checkpoint of four operators, and its users.

    Operator 0 has users and events as keys, 1 users, 2 something else with users in its values, and
    3 joins by users.

    Attributes:
        users: Of number n it is user n modulo `NUM_USERS`.
        stores: Those of each operator.
        checkpoint: The checkpoint.
    """

    users: list[Any]
    stores: tuple[tuple[TypedStore, ...], ...]
    checkpoint: MadeCheckpoint

    @classmethod
    def make(cls, rng: random.Random, kind: str, directory: Path, backend: str) -> Made:
        described, draw = KINDS[kind]
        users: list[Any] = []
        while len(users) < NUM_USERS:
            user = draw(rng)
            if user not in users:
                users.append(user)

        def user_of(number: int) -> Any:
            return users[number % NUM_USERS]

        pairs = ColumnFamily(
            0, "default", schema(("user_id", described), ("event", "string")), schema(("n", "long"))
        )
        counts = ColumnFamily(0, "default", schema(("user_id", described)), schema(("n", "long")))
        array = {"type": "array", "elementType": described, "containsNull": True}
        nested = {"type": "struct", "fields": [field("seen", array)]}
        others = ColumnFamily(0, "default", schema(("page", "string")), schema(("last", nested)))
        of_join = {
            "keyToNumValues": ColumnFamily(
                0, "default", schema(("field0", described)), schema(("value", "long"))
            ),
            "keyWithIndexToValue": ColumnFamily(
                0,
                "default",
                schema(("field0", described), ("index", "long")),
                schema(("user_id", described), ("n", "long"), ("matched", "boolean")),
            ),
        }
        joined = [
            TypedStore(
                f"{side}-keyToNumValues", ("field0",), of_join["keyToNumValues"],
                lambda n: {"field0": user_of(n)}, lambda _, value: {"value": value},
                below=NUM_USERS,
            )
            for side in ("left", "right")
        ] + [
            TypedStore(
                f"{side}-keyWithIndexToValue", ("field0", "index"),
                of_join["keyWithIndexToValue"],
                lambda n: {"field0": user_of(n), "index": n // NUM_USERS},
                lambda n, value: {"user_id": user_of(n), "n": value, "matched": n % 2 == 0},
            )
            for side in ("left", "right")
        ]  # fmt: skip
        stores = (
            (TypedStore(
                "default", ("user_id", "event"), pairs,
                lambda n: {"user_id": user_of(n), "event": f"event {n // NUM_USERS}"},
                lambda _, value: {"n": value},
            ),),
            (TypedStore(
                "default", ("user_id",), counts,
                lambda n: {"user_id": user_of(n)}, lambda _, value: {"n": value},
                below=NUM_USERS,
            ),),
            (TypedStore(
                "default", ("page",), others, lambda n: {"page": f"page {n}"},
                lambda n, _: {"last": {"seen": [None, user_of(n)]}},
            ),),
            tuple(joined),
        )  # fmt: skip
        names = ("dedupe", "stateStoreSave", "stateStoreSave", "symmetricHashJoin")
        operators = list(zip(names, stores, strict=True))
        (directory / "scratch").mkdir(parents=True)
        made = MadeCheckpoint(
            str(directory / "query"), directory / "scratch", num_partitions=2, backend=backend,
            checkpoint_format=rng.choice([1, 2]), operators=operators,
        )  # fmt: skip
        for _ in range(rng.randint(1, 3)):
            made.run_batch({rng.randrange(2 * NUM_USERS): rng.randint(1, 9) for _ in range(20)})
        if rng.random() < 0.5:
            made.take_snapshots()
            made.run_batch({rng.randrange(2 * NUM_USERS): None, 0: 1})
        return cls(users, stores, made)


def pieces_of(path: Path, scratch: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, as they are and decompressed."""
    data = path.read_bytes()
    yield data
    if path.suffix == ".arrows":
        for batch in pa.ipc.open_stream(data):
            yield from (row for name in ("key", "value") for row in batch[name].to_pylist() if row)
    if path.suffix == ".sst" and SST_END in data:
        from rocksdict import Options, Rdict

        end = data.index(SST_END) + len(SST_END)
        copy = scratch / "copy.sst"
        copy.write_bytes(data[:end])
        database = Rdict(str(scratch / "database"), Options(raw_mode=True))
        try:
            database.ingest_external_file([str(copy)])
            for key, value in database.items():
                yield bytes(key)
                yield bytes(value)
        finally:
            database.close()
            shutil.rmtree(scratch / "database")
        with suppress(pa.ArrowInvalid):  # keys that it deletes, if any
            for batch in pa.ipc.open_stream(data[end:]):
                yield from batch["key"].to_pylist()


def has_bytes(directory: Path, needle: bytes, scratch: Path) -> list[str]:
    """Return the files that have some bytes; of a checkpoint, by nothing that belongs to it."""
    scratch.mkdir(exist_ok=True)
    return [
        str(path)
        for path in directory.rglob("*")
        if path.is_file() and any(needle in piece for piece in pieces_of(path, scratch))
    ]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize(
    "kind",
    [
        "email",
        "integer",
        "struct",
        *(
            pytest.param(kind, marks=pytest.mark.extended)
            for kind in KINDS
            if kind not in ("email", "integer", "struct")
        ),
    ],
)
@pytest.mark.each_once
def test_random_keys_are_forgotten_and_nothing_else(
    tmp_path: Path, kind: str, backend: str
) -> None:
    """Catches a key of some type that stays, another one that goes, and a search that misses it."""
    rng = random.Random(random.getrandbits(64))
    for turn in range(1 if backend == "rocksdb" else 3):
        made = Made.make(rng, kind, tmp_path / str(turn), backend)
        query = Path(made.checkpoint.path)
        checkpoint = Checkpoint(query)
        model = made.checkpoint.expected()
        numbers = sorted(made.checkpoint.numbers)
        user = made.users[rng.choice([number for number in numbers if number < NUM_USERS])]
        of_user = [number for number in numbers if made.users[number % NUM_USERS] == user]
        verdicts = dict.fromkeys((0, 1, 3), "found")
        for operator in rng.sample(range(4), 4):
            first, *_ = stores = made.stores[operator]
            given = [first.key(number) for number in of_user if number < first.below]
            keys = pa.array(given, key_type(first.family).arrow)
            rows = [model[operator, store.name] for store in stores]
            before = sum(map(len, rows))
            for store, of_store in zip(stores, rows, strict=True):
                for key in store.rows(dict.fromkeys(of_user, 0)):
                    del of_store[key]
            left = sum(map(len, rows))

            forgotten = checkpoint.forget(
                keys=pa.table({"key": keys}).to_reader(), operator=operator, all_rows=not left
            )
            assert (forgotten.num_rows, forgotten.num_rows_before) == (before - left, before)
            assert forgotten.num_keys == forgotten.num_keys_found == len(given)
            done = forgotten.certificate

            assert read_checkpoint(str(query)) == model
            assert done.search is not None
            assert done.search.outcomes[operator].verdict == "forgotten", done.describe()
            if operator in verdicts:
                verdicts[operator] = "forgotten"
                if kind not in WEAK:
                    # A column of the same name has the user still, or one that Spark named.
                    outcomes = done.search.outcomes
                    found = {number: outcomes[number].verdict for number in verdicts}
                    assert found == verdicts, done.describe()
        assert checkpoint.verify(versions="all", deep=True).findings == ()
        if isinstance(user, str) and len(user.encode()) >= MIN_BYTES:
            assert has_bytes(query, user.encode(), tmp_path / "own") == []
        (of_counts,) = made.stores[1]
        row = encode_keys(
            pa.array([{"user_id": user}], key_type(of_counts.family).arrow), of_counts.family
        ).to_pylist()[0]
        if len({*row} - {0, 255}) > MIN_BYTES:
            assert has_bytes(query, row, tmp_path / "own") == []


@pytest.mark.parametrize("kind", ["email", "long"])
def test_the_search_of_the_test_finds_what_is_there(tmp_path: Path, kind: str) -> None:
    """Catches an independent search that looks into no file, and so finds nothing ever."""
    for backend in ("filesystem", "rocksdb"):
        made = Made.make(random.Random(7), kind, tmp_path / backend, backend)
        (store,) = made.stores[1]
        keys = pa.array([store.key(min(made.checkpoint.numbers))], key_type(store.family).arrow)
        row = encode_keys(keys, store.family).to_pylist()[0]
        found = has_bytes(Path(made.checkpoint.path), row, tmp_path / "own")
        assert any("/state/1/" in file for file in found)


ORDERED = ("totals", "$ttl_gone")
VARIABLES = (
    ColumnFamily(0, "default", schema(("key", "binary")), schema(("value", "binary"))),
    ColumnFamily(1, "count", schema(("user_id", "string")), schema(("n", "long"))),
    ColumnFamily(
        2, "seen", schema(("user_id", "string")), schema(("page", "string")), multi_values=True
    ),
    ColumnFamily(3, "$rowCounter_seen", schema(("user_id", "string")), schema(("count", "long"))),
    ColumnFamily(
        4,
        "totals",
        schema(
            ("key", {"type": "struct", "fields": [field("user_id", "string")]}),
            ("userKey", {"type": "struct", "fields": [field("page", "string")]}),
        ),
        schema(("total", "long")),
        encoder="prefix",
    ),
    # What Spark keeps of a state that was deleted.
    ColumnFamily(
        5,
        "$ttl_gone",
        schema(
            ("expirationMs", "long"),
            ("elementKey", {"type": "struct", "fields": [field("user_id", "string")]}),
        ),
        schema(("__empty__", "void")),
        encoder="range",
        ordering_ordinals=(0,),
    ),
)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_random_keys_are_forgotten_in_every_state_variable(
    tmp_path: Path, checkpoint_format: int, backend: str
) -> None:
    """Catches a list whose elements, or whose count, stay; a map of somebody else that goes."""
    rng = random.Random(random.getrandbits(64))
    users = sorted({f"{text(rng)}{rng.randbytes(4).hex()}" for _ in range(NUM_USERS)})
    model: dict[str, dict[Any, Any]] = {each.name: {} for each in VARIABLES[1:]}
    versions = []
    for _ in range(4):
        changes: dict[str, dict[Any, Any]] = {name: {} for name in model}
        for user in rng.sample(users, 8):
            pages = [(f"page {rng.randrange(9)}",) for _ in range(rng.randint(1, 4))]
            is_gone = rng.random() < 0.2
            changes["count"][user,] = None if is_gone else (rng.randrange(99),)
            changes["seen"][user,] = None if is_gone else pages
            changes["$rowCounter_seen"][user,] = None if is_gone else (len(pages),)
            changes["totals"][(user,), pages[0]] = None if is_gone else (rng.randrange(99),)
            changes["$ttl_gone"][rng.randrange(-9, 9), (user,)] = None if is_gone else (None,)
        versions.append(changes)
        for name, of_name in changes.items():
            model[name] |= of_name
    query = write_checkpoint(
        tmp_path / "query",
        [
            changes | {name: _encoded(name, changes[name]) for name in ORDERED}
            for changes in versions
        ],
        families=VARIABLES,
        backend=backend,
        checkpoint_format=checkpoint_format,
    )
    Path(query, "metadata").write_text('{"id":"0f0e0d0c-0b0a-4908-8706-050403020100"}')
    checkpoint = Checkpoint(query)
    gone = rng.sample([user for user in users if model["count"].get((user,))], 2)
    expected = {
        name: sorted(
            (key, row)
            for key, value in of_name.items()
            if value is not None and not any(user in str(key) for user in map(repr, gone))
            for row in (value if name == "seen" else [value])
        )
        for name, of_name in model.items()
    }

    done = checkpoint.forget(keys=pa.table({"key.user_id": gone})).certificate

    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten", done.describe()
    for name, rows in expected.items():
        read = checkpoint.rows(name).read().to_pylist()
        assert sorted((_values(row["key"]), _values(row["value"])) for row in read) == rows
    assert checkpoint.verify(versions="all", deep=True).findings == ()
    for user in gone:
        assert has_bytes(Path(query), user.encode(), tmp_path / "own") == []


def _encoded(name: str, rows: dict[Any, Any]) -> dict[bytes, Any]:
    """Return rows of a column family whose keys are ordered, by the bytes of their keys."""
    (of,) = (each for each in VARIABLES if each.name == name)
    kind = key_type(of)
    keys = pa.array([_as_struct(key, kind) for key in rows], kind.arrow)
    return dict(zip(encode_keys(keys, of).to_pylist(), rows.values(), strict=True))


def _as_struct(row: tuple[Any, ...], kind: SparkType) -> dict[str, Any]:
    return {
        name: _as_struct(each, of) if isinstance(each, tuple) else each
        for name, each, of in zip(kind.names, row, kind.types, strict=True)
    }


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a struct as a tuple of its fields."""
    return tuple(_values(each) if isinstance(each, dict) else each for each in row.values())
