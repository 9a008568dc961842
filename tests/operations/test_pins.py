"""Pins: versions that savepoints and branches hold back from the retention of a running query."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.checkpoint import pins as pins_module
from statestore.checkpoint.pins import LASTS_MS
from statestore.core.errors import StorageError
from statestore.core.ids import RandomIds
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import find_version
from tests.checkpoints import AGGREGATION, JOIN, OPTIONS, query_of, read_rows
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at, place_of

KEEP_ONE = replace(OPTIONS, min_versions_to_retain=1)
VERSION = 2


def clean_up(query):
    """Clean every store up as maintenance does, with one version to retain."""
    with open_checkpoint(place_of(query.path)) as checkpoint:
        version = query.version
        for store in checkpoint.heads(version):
            with at(query.path, options=KEEP_ONE).open_store(
                store.operator,
                store.partition,
                store.name,
                version=version,
                checkpoint_id=checkpoint.checkpoint_id(store, version),
                num_partitions=checkpoint.num_partitions,
                backend=query.backend,
            ) as opened:
                opened.clean_up()


def versions_left(query):
    """Return which versions have a delta in the state partition 1 of the first operator."""
    files = Path(query.path, "state/0/1").glob("*.delta.*")
    return {int(path.name.split(".")[0].split("_")[0]) for path in files}


def pins(query):
    return sorted(Path(query.path).rglob("*.pin"))


class BusyFileIO(LocalFileIO):
    """A disk on which a query goes on, and expires what it had, as soon as a first file is read."""

    def __init__(self, query):
        super().__init__()
        self.query = query
        self.has_gone_on = False

    def fetch(self, path):
        self._go_on(path)
        return super().fetch(path)

    def link(self, old_path, new_path, *, sync):
        self._go_on(old_path)
        super().link(old_path, new_path, sync=sync)

    def _go_on(self, path):
        if ".delta." not in path or self.has_gone_on:
            return
        self.has_gone_on = True
        for number in range(4):
            self.query.run_batch({"key-0": f"later {number}", f"key-{number}": None}, snapshot=True)
        clean_up(self.query)


@pytest.fixture(params=["filesystem", "rocksdb"])
def query(request, tmp_path):
    """A query of some versions, all of which are there."""
    made = query_of(
        tmp_path / "query", backend=request.param, checkpoint_format=2,
        operators=(AGGREGATION, JOIN), num_partitions=2,
    )  # fmt: skip
    made.models = {}
    for batch in range(VERSION + 1):
        made.run_batch(
            {f"key-{number}": f"{batch}/{number}" for number in range(batch, 20 + batch)}
        )
        made.models[batch + 1] = made.expected()
    return made


@pytest.mark.parametrize("taken", ["canonical", "native", "branch"])
@pytest.mark.few(3)
def test_pinned_version_outlives_the_querys_retention(query, tmp_path, taken):
    """Catches a savepoint that fails, or is of another version, because the query goes on."""
    io = BusyFileIO(query)
    copy = str(tmp_path / "copy")

    if taken == "branch":
        at(query.path, options=OPTIONS, io=io).branch(
            at(copy, options=OPTIONS, io=io), version=VERSION
        )
    else:
        at(query.path, options=OPTIONS, io=io).savepoint(copy, version=VERSION, form=taken)

    assert io.has_gone_on
    assert read_rows(copy) == query.models[VERSION]
    assert pins(query) == []
    assert VERSION in versions_left(query)
    clean_up(query)
    assert VERSION not in versions_left(query)
    assert read_rows(query.path) == query.expected()


@contextmanager
def pinned(query):
    with open_checkpoint(place_of(query.path, options=OPTIONS)) as checkpoint:
        yield find_version(checkpoint, VERSION).pinned(RandomIds().new_id())


@pytest.mark.parametrize("is_expired", [False, True])
@pytest.mark.few(2)
def test_pin_of_a_process_that_died_holds_for_an_hour(query, is_expired):
    """Catches files that stay for ever, and a pin that somebody still needs."""
    with pinned(query) as pin:
        pin.__enter__()  # and no exit
    held = pins(query)
    assert len(held) == 2 * (1 + 4)
    age_s = LASTS_MS / 1000 * (1.1 if is_expired else 0.9)
    for path in held:
        os.utime(path, (time.time() - age_s,) * 2)
    for number in range(3):
        query.run_batch({"key-0": f"later {number}"}, snapshot=True)

    clean_up(query)

    assert pins(query) == ([] if is_expired else held)
    assert (VERSION in versions_left(query)) != is_expired
    pin.__exit__(None, None, None)


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.few(2)
def test_lost_call_about_a_pin_does_not_lose_the_savepoint(query, tmp_path, happens):
    """Catches a savepoint that fails for the sake of what only might have been needed."""
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(10**9))
    at(query.path, options=OPTIONS, io=io).savepoint(tmp_path / "first")
    of_pins = [index for index, call in enumerate(io.trace) if call.endswith(".pin")]
    assert len(of_pins) == 2 * len(query.expected()) * query.num_partitions

    for index in of_pins[::4]:
        io.arm(Fault(index, happens=happens))
        at(query.path, options=OPTIONS, io=io).savepoint(tmp_path / str(index))
        assert io.has_failed
        assert read_rows(str(tmp_path / str(index))) == query.expected()


def test_checkpoint_that_cannot_be_written_is_copied_without_pins(query, tmp_path, caplog):
    """Catches a savepoint of a checkpoint that is mounted to be read only."""

    class ReadOnlyFileIO(LocalFileIO):
        def write(self, path, data, *, sync, overwrite):
            if path.startswith(query.path):
                raise StorageError("read-only", path=path, to_fix="mount it otherwise")
            super().write(path, data, sync=sync, overwrite=overwrite)

    at(query.path, options=OPTIONS, io=ReadOnlyFileIO()).savepoint(tmp_path / "copy")

    assert read_rows(str(tmp_path / "copy")) == query.expected()
    assert "may be expired while it is read" in caplog.text


def test_every_other_store_is_pinned_where_one_cannot_be(query, caplog):
    """Catches one failed call that leaves all the stores after it without a pin."""

    class OneReadOnly(LocalFileIO):
        def write(self, path, data, *, sync, overwrite):
            if path.endswith(".pin") and "/state/0/0/" in path:
                raise StorageError("read-only", path=path, to_fix="mount it otherwise")
            super().write(path, data, sync=sync, overwrite=overwrite)

    place = place_of(query.path, options=OPTIONS, io=OneReadOnly())
    with open_checkpoint(place) as checkpoint:
        with find_version(checkpoint, VERSION).pinned(RandomIds().new_id()):
            assert len(pins(query)) == 2 * (1 + 4) - 1
        assert pins(query) == []
    assert "stores=10 without_pin=1" in caplog.text


@pytest.mark.parametrize("refused", [1, 10])
def test_pin_that_fails_is_written_again_unless_all_do(query, monkeypatch, refused):
    """Catches a store without a pin for twenty minutes, and a read-only storage asked for ever."""
    monkeypatch.setattr(pins_module, "_RETRY_S", 0.05)
    tried = []

    class Refusing(LocalFileIO):
        def write(self, path, data, *, sync, overwrite):
            if path.endswith(".pin"):
                tried.append(path)
                if len({*tried}) <= refused and tried.count(path) == 1:
                    raise StorageError("busy", path=path, to_fix="try again")
            super().write(path, data, sync=sync, overwrite=overwrite)

    place = place_of(query.path, options=OPTIONS, io=Refusing())
    with (
        open_checkpoint(place) as checkpoint,
        find_version(checkpoint, VERSION).pinned(RandomIds().new_id()),
    ):
        until = time.monotonic() + (20 if refused == 1 else 0.5)
        while len(pins(query)) < 10 and time.monotonic() < until:
            time.sleep(0.05)
        found = len(pins(query)), len(tried)

    assert found == ((10, 11) if refused == 1 else (0, 10))


def test_pin_that_is_renewed_is_there_all_the_time(query, monkeypatch):
    """Catches a version that expires where a storage replaces a file by deleting it first."""
    monkeypatch.setattr(pins_module, "_RENEWALS", LASTS_MS)
    renewed = []

    class InTwoSteps(LocalFileIO):
        def write(self, path, data, *, sync, overwrite):
            if path.endswith(".pin"):
                if overwrite:
                    self.delete(path)
                renewed.append(len(pins(query)))
            super().write(path, data, sync=sync, overwrite=overwrite)

    place = place_of(query.path, options=OPTIONS, io=InTwoSteps())
    with (
        open_checkpoint(place) as checkpoint,
        find_version(checkpoint, VERSION).pinned(RandomIds().new_id()),
    ):
        until = time.monotonic() + 20
        while len(renewed) < 40 and time.monotonic() < until:
            time.sleep(0.01)

    assert len(renewed) >= 40
    assert min(renewed[10:]) >= 10
    assert pins(query) == []
