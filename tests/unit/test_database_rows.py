"""Rows of a RocksDB database many at a time, beside a model of one row at a time."""

import errno
import os
import random
from itertools import islice

import pytest
from rocksdict import Options, Rdict

from statestore.backends import database_rows
from statestore.backends.database_rows import MOST_ROWS, all_pieces, all_rows, split, to_batches
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


def test_end_of_the_rows_is_not_taken_from_a_read_that_has_failed_once(database):
    """Catches a merged file that lacks rows: the next read of the same block succeeds."""
    fill(database, {number.to_bytes(4): b"" for number in range(100)})

    class FailedOnce:
        def items(self, **_):
            return islice(database.items(), 40)

        def iter(self, options):
            return database.iter(options)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(all_rows(FailedOnce()))


@pytest.mark.parametrize("most_bytes", [200_000, database_rows._MOST_BYTES])
def test_rows_become_columns_of_about_so_many_bytes(database, monkeypatch, most_bytes):
    """Catches a row lost between two batches, and one too large to be joined with others."""
    monkeypatch.setattr(database_rows, "_MOST_BYTES", most_bytes)
    rows = {
        number.to_bytes(4): bytes([number % 251]) * (20_000 * (1_500 < number < 1_550))
        for number in range(2_000)
    }
    fill(database, rows)

    batches = list(to_batches(map(split, all_pieces(database)), 100_000))

    assert [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()] == sorted(
        rows.items()
    )
    sizes = [sum(map(len, batch.column(1).to_pylist())) for batch in batches]
    assert max(sizes) < 100_000 + MOST_ROWS * 20_000
    assert most_bytes > max(sizes)


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


@pytest.mark.timeout(60)
def test_values_are_merged_to_a_long_list_one_by_one():
    """Catches a list that is copied whole for each value: hours where one key has 64 MiB."""
    changes = Changes(DELIMITER)
    for _ in range(50_000):
        changes.add(MERGE, b"k", bytes(1000))

    assert len(changes.of_keys[b"k"]) == 50_000 * 1000 + 49_999 * len(DELIMITER)
