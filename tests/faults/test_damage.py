"""Damaged files: a named error, or a fallback to older files; never a wrong row."""

import logging
import os
import subprocess
import sys

import pytest

from statestore.checkpoint import load as load_module
from statestore.codec import sealed_file
from statestore.codec.sealed_file import MappedFile, cannot_be_read
from statestore.core.errors import CorruptionError, NotFoundError, StateStoreError
from statestore.core.options import StateStoreOptions
from statestore.spark.failures import find_obstacle
from tests.seams import at

OPTIONS = StateStoreOptions(fsync_enabled=False)


@pytest.fixture
def checkpoint(tmp_path):
    """Versions 1 to 6 with snapshots at 2 and 4; returns (root, rows of version 6)."""
    with at(tmp_path, options=OPTIONS).open_store() as store:
        for number in range(1, 7):
            batch = store.begin()
            batch.put(b"n", b"%d" % number)
            batch.merge(b"m", b"%d," % number)
            batch.commit()
            if number in (2, 4):
                store.snapshot()
        return tmp_path, list(store.scan())


def the_file(root, pattern):
    """The one file that matches."""
    (found,) = (root / "state/0/0").glob(pattern)
    return found


def flip(path, position):
    """Flip one bit."""
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


def load(root, version=6):
    """Rows of a version by a fresh handle."""
    with at(root, options=OPTIONS).open_store(version=version) as store:
        return list(store.scan())


class BadSector(MappedFile):
    """A disk that cannot read a file."""

    def _read_in(self, piece, offset):
        if ".snapshot." in self._name:
            raise cannot_be_read(self._name, offset, piece.size)


def test_a_file_that_cannot_be_read_is_worth_a_restart():
    """Catches a query given up for a disk that was away for a moment."""
    error = cannot_be_read("/file", 0, 4)

    assert find_obstacle(error) is None
    assert (type(error), error.kind) == (CorruptionError, "storage")


def test_a_snapshot_that_cannot_be_read_and_stands_alone_is_worth_a_restart(
    checkpoint, monkeypatch
):
    """Catches a query given up for files that are gone, as they should, behind the snapshot."""
    root, _ = checkpoint
    for number in range(1, 5):
        the_file(root, f"{number}.delta.arrows").unlink()
    monkeypatch.setattr(sealed_file, "MappedFile", BadSector)

    with pytest.raises(CorruptionError) as raised:
        load(root)

    assert find_obstacle(raised.value) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "empty", "garbage", "unreadable"])
def test_damaged_snapshot_falls_back_to_the_files_before_it(
    checkpoint, caplog, monkeypatch, damage
):
    """Catches a lost snapshot taking the state with it, or a damaged one being believed."""
    root, expected = checkpoint
    snapshot = the_file(root, "4_*.snapshot.arrows")
    if damage == "flip":
        flip(snapshot, 700)
    elif damage == "cut":
        snapshot.write_bytes(snapshot.read_bytes()[:-30])
    elif damage == "delete":
        snapshot.unlink()
    elif damage == "unreadable":
        monkeypatch.setattr(sealed_file, "MappedFile", BadSector)
    else:
        snapshot.write_bytes(b"" if damage == "empty" else b"x" * 500)

    with caplog.at_level(logging.WARNING):
        assert load(root) == expected

    assert "falling back" in caplog.text
    assert "snapshot_version=4" in caplog.text


def test_fallback_leaves_no_thread(checkpoint, caplog, monkeypatch):
    """Catches threads that live as long as a handler that keeps what was logged."""
    root, _ = checkpoint
    flip(the_file(root, "4_*.snapshot.arrows"), 400)
    threads = []

    class Noted(load_module.CallPool):
        def shutdown(self, *args, **named):
            threads.extend(self._threads)
            super().shutdown(*args, **named)

    monkeypatch.setattr(load_module, "CallPool", Noted)
    with at(root, options=OPTIONS).open_store(version=6):
        assert "falling back" in caplog.text
        assert threads
        assert not any(thread.is_alive() for thread in threads)


def test_two_damaged_snapshots_fall_back_to_the_deltas(checkpoint):
    """Catches a fallback that works only once."""
    root, expected = checkpoint
    for snapshot in (root / "state/0/0").glob("*.snapshot.arrows"):
        flip(snapshot, 700)

    assert load(root) == expected


def test_damaged_snapshot_is_replaced_when_it_is_taken_again(checkpoint):
    """Catches a damaged snapshot that stays for ever because its name is taken."""
    root, expected = checkpoint
    flip(the_file(root, "4_*.snapshot.arrows"), 700)

    with at(root, options=OPTIONS).open_store(version=4) as store:
        store.snapshot()
    (root / "state/0/0/3.delta.arrows").unlink()

    assert load(root) == expected


@pytest.mark.parametrize("position", [3, 400, 700, -1, -9, -14, -100])
def test_damaged_delta_is_a_named_error(checkpoint, position):
    """Catches a wrong row; the error names file and offset."""
    root, _ = checkpoint
    delta = the_file(root, "6.delta.arrows")
    flip(delta, position)

    with pytest.raises(StateStoreError) as caught:
        load(root)

    assert str(delta) in str(caught.value)
    if isinstance(caught.value, CorruptionError):
        assert "offset" in caught.value.fields
    assert load(root, version=5)


def test_every_bit_of_the_newest_delta_matters(checkpoint):
    """Catches a byte of a published file that no check covers."""
    root, _ = checkpoint
    delta = the_file(root, "6.delta.arrows")
    original = delta.read_bytes()
    for position in range(0, len(original), 11):
        delta.write_bytes(original)
        flip(delta, position)

        with pytest.raises(StateStoreError):
            load(root)


def test_truncated_delta_is_a_named_error(checkpoint):
    """Catches half a batch being applied."""
    root, _ = checkpoint
    delta = the_file(root, "5.delta.arrows")
    delta.write_bytes(delta.read_bytes()[:-1])

    with pytest.raises(CorruptionError, match=r"5\.delta\.arrows"):
        load(root)


def test_missing_delta_in_the_middle_is_a_named_error(checkpoint):
    """Catches a version restored with a hole."""
    root, _ = checkpoint
    the_file(root, "5.delta.arrows").unlink()

    with pytest.raises(NotFoundError, match=r"5\.delta\.arrows"):
        load(root)


def test_file_that_cannot_be_read_does_not_end_the_process(tmp_path):
    """Catches all state partitions of an engine lost, by a signal, for a bad sector of one file."""
    with at(tmp_path, options=OPTIONS).open_store() as store:
        batch = store.begin()
        for number in range(100):
            batch.put(b"%d" % number, os.urandom(1000))
        batch.commit()
    program = (
        "import os, sys\n"
        "from statestore.codec.state_file import StateFile\n"
        "from statestore.core.errors import CorruptionError\n"
        "path = sys.argv[1]\n"
        "file = StateFile(path)\n"
        "os.truncate(path, 0)\n"
        "for read in (file.verify, lambda: file.batch(0), lambda: list(file.block_pieces(1))):\n"
        "    try:\n"
        "        read()\n"
        "    except CorruptionError as error:\n"
        "        assert error.fields['file'] == path\n"
        "    else:\n"
        "        sys.exit('it was read')\n"
    )
    path = the_file(tmp_path, "1.delta.arrows")

    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
