"""Keys that change most often, against what the batches were given."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from statestore import Checkpoint, Rows
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import OPTIONS, WordStore, query_of
from tests.damaged import NOW
from tests.seams import at

NUM_BATCHES = 22
STORE = (("stateStoreSave", (WordStore(),)),)


def batch_of(query: MadeCheckpoint, random: Random) -> dict[Any, Any]:
    """Some puts and deletes of both families, of few keys more than of others."""
    keys = {
        (random.choice(("default", "lists")), (f"word-{min(int(random.expovariate(0.2)), 20)}", n))
        for n in range(3)
        for _ in range(15)
    }
    rows: dict[Any, Any] = {}
    for family, key in keys:
        value = (random.randrange(99), "")
        rows[family, key] = [value, value] if family == "lists" else value
        if (family, key) in query.numbers and random.random() < 0.3:
            rows[family, key] = None
    return rows


def deletes_of(query: MadeCheckpoint) -> dict[Any, Any]:
    """Some of the keys that are there, deleted: the delta has no other row."""
    return dict.fromkeys(sorted(query.numbers)[:5])


def counted(rows: Rows, num_keys: int = 1000) -> tuple[Counter[Any], int]:
    """What is told: changes by key, and of how many versions."""
    told = rows.most_changed(num_keys).to_pylist()
    numbers = [row["num_changes"] for row in told]
    assert numbers == sorted(numbers, reverse=True)
    versions = {row["num_versions"] for row in told}
    assert len(versions) == 1
    return Counter({tuple(row["key"].values()): row["num_changes"] for row in told}), *versions


def expected(batches: list[dict[Any, Any]], family: str) -> Counter[Any]:
    """The same, of the batches."""
    return Counter(key for batch in batches for of, key in batch if of == family)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.each_once
def test_changes_are_those_of_the_batches(
    tmp_path: Path, backend: str, checkpoint_format: int
) -> None:
    """Catches puts, deletes, families and versions that are left out, or counted twice."""
    random = Random(f"{backend} {checkpoint_format}")
    how: dict[str, Any] = {"backend": backend, "checkpoint_format": checkpoint_format}
    query = query_of(tmp_path / "query", operators=STORE, **how)
    batches = []
    for number in range(NUM_BATCHES):
        only_deletes = number % 7 == 6
        batches.append(deletes_of(query) if only_deletes else batch_of(query, random))
        query.run_batch(batches[-1], snapshot=number % 3 == 0)
    checkpoint = Checkpoint(query.path)

    for family in ("default", "lists"):
        rows = checkpoint.rows(family)
        assert counted(rows) == (expected(batches[-20:], family), 20)
        assert counted(checkpoint.rows(family, version=4)) == (expected(batches[:4], family), 4)
        most = expected(batches[-20:], family).most_common(3)
        assert [n for _, n in counted(rows, 3)[0].most_common()] == [n for _, n in most]

    checkpoint.rescale(8)
    query.restart()
    later = [batch_of(query, random) for _ in range(2)]
    for batch in later:
        query.run_batch(batch)
    assert counted(checkpoint.rows("lists")) == (expected(later, "lists"), 3)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_count_ends_at_a_version_that_was_written_whole(tmp_path: Path, backend: str) -> None:
    """Catches every key of the state counted as changed, and the state read for it."""
    random = Random(8)
    query = query_of(tmp_path / "query", operators=STORE, backend=backend)
    for _ in range(3):
        query.run_batch(batch_of(query, random))
    checkpoint = Checkpoint(query.path)
    checkpoint.forget(keys=checkpoint.rows("default").read(columns=["key"]).slice(0, 1))
    query.restart()
    later = [batch_of(query, random) for _ in range(2)]
    for batch in later:
        query.run_batch(batch)

    assert counted(checkpoint.rows("default")) == (expected(later, "default"), 2)


def test_keys_of_versions_that_are_all_written_whole_are_not_told(tmp_path: Path) -> None:
    """Catches keys that changed once and are told for each version that has them, and a list that
    calls such versions incremental."""
    random = Random(9)
    options = replace(OPTIONS, rocksdb_incremental=False)
    query = query_of(tmp_path / "query", operators=STORE, backend="rocksdb", options=options)
    for _ in range(3):
        query.run_batch(batch_of(query, random))

    checkpoint = Checkpoint(query.path)
    assert checkpoint.rows("default").most_changed(10).num_rows == 0
    assert {version.kind for version in checkpoint.versions()} == {"full"}


def test_count_ends_at_versions_that_were_expired(tmp_path: Path) -> None:
    """Catches an error, or versions that are not there, of which keys changed in few."""
    random = Random(7)
    options = replace(OPTIONS, snapshot_max_chain_length=2, rocksdb_merge_min_files=2)
    query = query_of(tmp_path / "query", operators=STORE, backend="rocksdb", options=options)
    batches = [batch_of(query, random) for _ in range(6)]
    checkpoint = Checkpoint(query.path)
    for number, batch in enumerate(batches):
        query.run_batch(batch)
        if number == 3:
            checkpoint.compact()
            query.restart()

    at(query.path, options=NOW).expire(2)

    kept = [each.version for each in checkpoint.versions() if each.kind != "expired"]
    assert 1 not in kept
    changes = expected(batches[min(kept) - 1 :], "default")
    assert counted(checkpoint.rows("default")) == (changes, len(kept))
