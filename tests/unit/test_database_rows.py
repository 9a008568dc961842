"""Rows of a RocksDB database many at a time, beside a model of one row at a time."""

import random

import pytest
from rocksdict import Options, Rdict

from statestore.backends import database_rows
from statestore.backends.database_rows import MOST_ROWS, all_pieces, all_rows
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, MERGE, PUT
from statestore.spark_files.changes import Changes
from statestore.spark_files.files import StoreFiles
from statestore.spark_files.snapshot import open_database

DELIMITER = b","


@pytest.fixture(name="database")
def _database(tmp_path):
    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    yield database
    database.close()


def fill(database, rows):
    for key, value in rows.items():
        database[key] = value
    database.flush()


@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 48, 3 * MOST_ROWS])
def test_every_row_is_read_once(database, num_rows):
    """Catches a row lost or doubled where one piece ends and the next begins."""
    rows = {number.to_bytes(4): b"%d" % number for number in range(num_rows)}
    fill(database, rows)
    half = (num_rows // 2).to_bytes(4)

    assert list(all_rows(database)) == sorted(rows.items())
    assert list(all_rows(database, half)) == sorted(rows.items())[num_rows // 2 :]
    assert list(all_rows(database, num_rows.to_bytes(4))) == []


def test_large_rows_are_few_at_a_time(database):
    """Catches a piece of more bytes than anybody reckons with, after small rows too."""
    large = {number.to_bytes(4): bytes(20_000 * (number > 2_000)) for number in range(3_000)}
    fill(database, large)
    counted = database_rows._COUNTED_ROWS * 20_004

    sizes = [sum(len(key) + len(value) for key, value in piece) for piece in all_pieces(database)]

    assert sum(sizes) == 3_000 * 4 + 999 * 20_000
    assert max(sizes) < database_rows._MOST_BYTES + counted


@pytest.mark.parametrize("seed", range(20))
def test_changes_are_made_one_after_the_other(tmp_path, seed):
    """Catches a change of Spark's that is lost, or made twice, within a piece or between two."""
    source = random.Random(seed)
    store = StoreFiles(None, StoreName(0, 0, "default"), "/ck", "", "", {})
    rows, pieces = {}, []
    for _ in range(source.choice([0, 1, 5])):
        pieces.append(Changes(DELIMITER))
        for _ in range(source.choice([1, 40, 400])):
            key = source.randbytes(source.choice([1, 1, 2]))
            kind = source.choice([PUT, DELETE, MERGE, MERGE])
            pieces[-1].add(kind, key, None if kind == DELETE else b"new")
            before = rows.pop(key, b"")
            if kind != DELETE:
                rows[key] = before + DELIMITER + b"new" if kind == MERGE and before else b"new"

    with open_database(store, None, str(tmp_path), DELIMITER, iter(pieces)) as database:
        found = [row for piece in database.pieces(b"") for row in piece]

    assert found == sorted(rows.items())
