"""Rescaled versions: who contributes what, what is refused, and what is written."""

import json
from dataclasses import replace
from itertools import product

import pytest

from statestore.backends.forms import work_in
from statestore.checkpoint import load
from statestore.checkpoint.layout import RescaleRefName, StoreLocation
from statestore.checkpoint.load import load_files
from statestore.checkpoint.rescaling import (
    contributors,
    plan_rescale,
    undo_rescaled_version,
    write_rescaled_version,
)
from statestore.checkpoint.trailers import read_delta_trailer
from statestore.codec import sorting
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, PUT, Row, batch_from_rows
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.key_groups import KeyGroupSet
from statestore.core.options import StateStoreOptions
from statestore.io.memory import MemoryFileIO
from statestore.operations.full_state import dealt_anew, write_full_state
from statestore.operations.rehashing import rehashed_version
from statestore.testing.deltas import new_version
from tests.seams import at

G = 24
NUM_KEYS = 240
OPTIONS = StateStoreOptions(max_parallelism=G, fsync_enabled=False, file_compression="none")


class Checkpoint:
    """A checkpoint in memory whose key n has key group n mod G."""

    def __init__(self, tmp_path, backend="filesystem", name="default"):
        self.io = MemoryFileIO(str(tmp_path))
        self.scratch = str(tmp_path)
        self.backend, self.name = backend, name
        self.body = "sst" if backend == "rocksdb" else "arrows"

    def location(self, partition):
        return StoreLocation(self.io, "/ck/state", StoreName(0, partition, self.name), self.body)

    def open(self, partition, num_partitions, version=None):
        return at("/ck", options=OPTIONS, io=self.io).open_store(
            0,
            partition,
            self.name,
            backend=self.backend,
            num_partitions=num_partitions,
            version=version,
        )

    def commit(self, num_partitions, keys, value, delete=False):
        for partition in range(num_partitions):
            with self.open(partition, num_partitions) as store:
                batch = store.begin()
                for key in keys:
                    if key % G % num_partitions == partition:
                        text = b"%06d" % key
                        if delete:
                            batch.delete(text, key_group=key % G)
                        else:
                            batch.put(text, value, key_group=key % G)
                batch.commit()

    def heads(self, num_partitions, version):
        return {
            partition: read_delta_trailer(self.location(partition), version, None)
            for partition in range(num_partitions)
        }

    def write(self, plan):
        return {
            partition: write_rescaled_version(
                self.location(partition), store, self.scratch, clock=SystemClock()
            )
            for partition, store in plan.items()
        }

    def rows(self, num_partitions):
        found = {}
        for partition in range(num_partitions):
            with self.open(partition, num_partitions) as store:
                rows = dict(store.scan())
                assert len(store) == len(rows)
                assert all(int(key) % G % num_partitions == partition for key in rows)
                found |= rows
        return found


@pytest.fixture(params=["filesystem", "rocksdb"])
def checkpoint(request, tmp_path):
    """A checkpoint with two versions in four state partitions."""
    made = Checkpoint(tmp_path, request.param)
    made.commit(4, range(NUM_KEYS), b"one")
    made.commit(4, range(0, NUM_KEYS, 7), b"two")
    return made


@pytest.mark.parametrize(("now", "then"), list(product([1, 2, 3, 4, 6, 8, 12], repeat=2)))
def test_contributors_are_those_with_key_groups_in_common(now, then):
    """Catches a state partition whose rows nobody takes over."""
    for partition in range(then):
        expected = {group % now for group in range(G) if group % then == partition}
        assert set(contributors(partition, now, then)) == expected


def test_files_of_a_split_are_named_with_what_counts(checkpoint):
    """Catches a split that reads rows of its sibling."""
    plan = plan_rescale(checkpoint.heads(4, 2), 8)

    assert set(plan) == set(range(8))
    for partition, store in plan.items():
        assert store.sources == (partition % 4,)
        assert {ref.clip for ref in store.files} == {KeyGroupSet(8, partition)}
        assert [ref.path.rpartition("/")[0] for ref in store.files] == [f"../{partition % 4}"] * 2
        num_keys = sum(key % G % 8 == partition for key in range(NUM_KEYS))
        assert (store.new.version, store.new.num_keys, store.new.parent) == (3, num_keys, None)


def test_a_merge_knows_its_rows_without_reading_any(checkpoint):
    """Catches counting what is known."""
    plan = plan_rescale(checkpoint.heads(4, 2), 2)

    assert [store.sources for store in plan.values()] == [(0, 2), (1, 3)]
    assert [store.new.num_keys for store in plan.values()] == [NUM_KEYS // 2] * 2
    assert [ref.version for ref in plan[0].files] == [1, 1, 2, 2]


def test_a_file_named_by_two_chains_is_read_once(checkpoint):
    """Catches rows that moved on coming back through the chain that still has their old file."""
    checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 8))

    plan = plan_rescale(checkpoint.heads(8, 3), 4)

    assert [ref.clip for ref in plan[1].files] == [KeyGroupSet(4, 1)] * 2
    assert plan[1].sources == (1, 5)


@pytest.mark.parametrize("layouts", [(8, 2, 6), (6, 4), (1, 12), (3, 8, 3)])
@pytest.mark.few(4)
def test_rows_are_the_same_in_every_layout(checkpoint, layouts):
    """Catches rows that a rescale loses, doubles or takes from before."""
    now, version = 4, 2
    expected = checkpoint.rows(4)
    for round_, then in enumerate(layouts):
        checkpoint.write(plan_rescale(checkpoint.heads(now, version), then))
        assert checkpoint.rows(then) == expected
        changed = range(round_, NUM_KEYS, 11)
        checkpoint.commit(then, changed, b"", delete=True)
        checkpoint.commit(then, changed[::2], b"again")
        for key in changed:
            expected.pop(b"%06d" % key, None)
        expected |= {b"%06d" % key: b"again" for key in changed[::2]}
        assert checkpoint.rows(then) == expected
        now, version = then, version + 3


def test_lineages_differ_and_follow_from_content(checkpoint):
    """Catches rescaled versions, all without rows, that pass for each other."""
    published = checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 8))
    again = checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 8))

    assert again == published
    assert len({file.trailer.lineage for file in published.values()}) == 8
    assert len({file.trailer.checkpoint_id for file in published.values()}) == 8


def test_state_of_a_single_partition_is_carried_whole(tmp_path):
    """Catches a global aggregation that starts from nothing after a rescale."""
    made = Checkpoint(tmp_path)
    with made.open(0, 4) as store:
        batch = store.begin()
        batch.put(b"", b"17", key_group=5)
        batch.commit()
    heads = made.heads(1, 1)

    with pytest.raises(NotFoundError):
        plan_rescale(heads, 6)
    made.write(plan_rescale(heads, 5, is_single=True))

    with made.open(0, 5) as store:
        assert (store.version, len(store), store.get(b"")) == (2, 1, b"17")


@pytest.mark.parametrize(
    ("change", "num_partitions", "error", "kind"),
    [
        ({}, 5, InvalidArgumentError, "invalid-argument"),
        ({}, 0, InvalidArgumentError, "invalid-argument"),
        ({"rescalable": False}, 8, IncompatibleError, "not-rescalable"),
        ({"max_parallelism": 48}, 8, IncompatibleError, None),
    ],
)
def test_what_cannot_be_moved_by_key_groups_is_refused(
    checkpoint, change, num_partitions, error, kind
):
    """Catches a rescale that loses rows instead of saying that it cannot."""
    heads = checkpoint.heads(4, 2)
    heads[2] = replace(heads[2], trailer=replace(heads[2].trailer, **change))

    with pytest.raises(error) as caught:
        plan_rescale(heads, num_partitions)

    assert kind is None or caught.value.kind == kind


def test_column_families_with_other_ids_are_refused(checkpoint):
    """Catches rows of one column family read as another's."""
    heads = checkpoint.heads(4, 2)
    (family,) = heads[1].trailer.column_families
    other = (replace(family, id=1),)
    heads[1] = replace(heads[1], trailer=replace(heads[1].trailer, column_families=other))

    with pytest.raises(IncompatibleError, match="column families"):
        plan_rescale(heads, 2)
    for clash in (replace(family, id=1), replace(family, name="other")):
        trailers = [heads[0].trailer, replace(heads[0].trailer, column_families=(clash,))]
        with pytest.raises(IncompatibleError, match="column families"):
            rehashed_version(trailers, 3)
        with pytest.raises(IncompatibleError, match="column families"):
            dealt_anew(trailers, 2, G)


def test_only_the_slices_of_a_large_file_are_fetched(tmp_path, monkeypatch):
    """Catches a split that fetches whole files from a remote storage, or reads beyond its part."""
    made = Checkpoint(tmp_path)
    rows = [Row(n % G, 0, PUT, b"%08d" % n, b"v" * 90) for n in range(100_000)]
    new = new_version(1, None, "0" * 32, rows, 0, max_parallelism=G)
    batch = batch_from_rows(rows, G)
    location = made.location(0)
    write_full_state(location, new, [batch], work_in(str(tmp_path), OPTIONS, SystemClock()))
    plan = plan_rescale(made.heads(1, 1), 8)
    made.write(plan)
    asked = []

    def fetch_slices(path, size, slices):
        """A local file with zeros wherever nothing was asked for."""
        asked.append((size, sum(length for _, length in slices)))
        sparse = tmp_path / f"sparse-{len(asked)}"
        with sparse.open("wb") as file:
            for offset, length in slices:
                file.seek(offset)
                file.write(made.io.read_range(path, offset, length))
            file.truncate(size)
        return str(sparse)

    monkeypatch.setattr(made.io, "fetch_slices", fetch_slices)
    found = 0
    for partition in range(8):
        location = made.location(partition)
        head = read_delta_trailer(location, 2, None)
        restored = load_files(location, head, (*head.trailer.files, head.ref))
        for file in restored.files:
            for index in range(file.num_batches):
                groups = {group.as_py() for group in file.batch(index).column(0)}
                assert {group % 8 for group in groups} <= {partition}
                found += file.batch(index).num_rows

    assert found == len(rows)
    assert len(asked) == 8
    assert all(asked_for < 0.4 * size for size, asked_for in asked)
    assert asked[0][0] > load.PARTIAL_FETCH_BYTES


@pytest.mark.parametrize(
    ("backend", "root", "expected"),
    [("heap", "/ck/state", "/origin/state/0/6/heap-backend"),
     ("filesystem", "/elsewhere", "/origin/state/0/6/.statestore")],
)  # fmt: skip
def test_new_state_partitions_are_found_in_the_checkpoint_directory(
    tmp_path, backend, root, expected
):
    """Catches a state reader that sees only the state partitions before the rescale."""
    made = Checkpoint(tmp_path)
    made.commit(4, range(8), b"one")
    store = plan_rescale(made.heads(4, 1), 8)[6]
    store = replace(store, new=replace(store.new, backend=backend))
    location = replace(made.location(6), root=root)
    home = replace(made.location(6), root="/origin/state")

    write_rescaled_version(location, store, str(tmp_path), clock=SystemClock(), home=home)

    assert [path for path in made.io.paths() if path.startswith("/origin")] == [expected]


@pytest.mark.parametrize("left_by", ["batch", "rescale", "damage"])
def test_what_is_in_the_place_of_a_version_is_nobodys(checkpoint, left_by):
    """Catches rows of another history taken for the rescaled version's, or in its way."""
    plan = plan_rescale(checkpoint.heads(4, 2), 8)
    if left_by == "batch":
        checkpoint.commit(4, range(3), b"three")
    elif left_by == "rescale":
        checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 12))
    else:
        checkpoint.write(plan)
        path = checkpoint.location(0).path(plan[0].new.file_name(checkpoint.location(0)))
        data, _ = checkpoint.io.read_tail(path, 1 << 20)
        checkpoint.io.write(path, data[:-9] + bytes(9), sync=False, overwrite=True)

    checkpoint.write(plan)

    heads = checkpoint.heads(8, 3)
    assert {head.trailer.checkpoint_id for head in heads.values()} == {
        store.new.checkpoint_id for store in plan.values()
    }


def test_undo_leaves_what_was_there_before(checkpoint):
    """Catches an undo that leaves files or deletes those of the old layout."""
    before = sorted(checkpoint.io.paths())
    plan = plan_rescale(checkpoint.heads(4, 2), 8)
    checkpoint.write(plan)

    for partition in range(8):
        undo_rescaled_version(checkpoint.location(partition), 3)

    assert sorted(checkpoint.io.paths()) == before


def test_undo_leaves_what_a_repair_left_behind(checkpoint):
    """Catches an undo that takes files which no log names for a batch that has run."""
    checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 8))
    checkpoint.commit(8, [1], b"three")

    for partition in range(8):
        undo_rescaled_version(checkpoint.location(partition), 3)

    names = {path.rpartition("/")[2] for path in checkpoint.io.paths()}
    assert {int(name[0]) for name in names} == {1, 2, 4}


def test_reference_files_name_all_sources(checkpoint):
    """Catches a kill after which nobody can tell what a rescaled version holds on to."""
    checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 6))

    name = str(RescaleRefName(3, 4))
    for partition in (0, 2, 4):
        data, _ = checkpoint.io.read_tail(checkpoint.location(partition).path(name), 1000)
        expected = {"format_version": 1, "sources": [0, 2, 4], "lowest": 1}
        assert json.loads(data) == expected


@pytest.mark.parametrize("change", [b"", b"{", b'{"format_version": 2, "sources": []}'])
def test_a_reference_file_that_cannot_be_read_is_named(checkpoint, change):
    """Catches a cleanup that takes an unreadable reference for none."""
    checkpoint.write(plan_rescale(checkpoint.heads(4, 2), 8))
    path = checkpoint.location(1).path("3.1.ref")
    checkpoint.io.write(path, change, sync=False, overwrite=True)

    with pytest.raises(StateStoreError) as caught:
        undo_rescaled_version(checkpoint.location(1), 3)

    assert caught.value.fields["file"] == path


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_full_state_is_sorted_and_counted(tmp_path, monkeypatch, backend):
    """Catches a row-by-row rescale whose file cannot be read, or that needs the state in memory."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 2000)
    made = Checkpoint(tmp_path, backend)
    rows = [Row(n * 7 % G, 0, PUT, b"%06d" % n, b"v") for n in range(1000, 0, -1)]
    batches = [batch_from_rows(rows[n : n + 50], G) for n in range(0, 1000, 50)]
    new = replace(
        new_version(9, None, "0" * 32, [], 0, max_parallelism=G),
        backend=backend,
    )
    work = work_in(str(tmp_path), OPTIONS, SystemClock())

    published = write_full_state(made.location(0), new, batches, work)

    assert (published.trailer.num_keys, published.trailer.rows.put) == (1000, 1000)
    with made.open(0, 1) as store:
        assert (store.version, len(store)) == (9, 1000)
        assert dict(store.scan()) == {row.key: row.value for row in rows}
    assert DELETE not in {row.op for row in rows}
