"""Column families that state partitions know of differently: what an edit does with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statestore import Checkpoint, Edited
from statestore.core.errors import IncompatibleError
from tests.checkpoints import DEFAULT, LISTS, write_checkpoint

if TYPE_CHECKING:
    from statestore.codec.column_family import ColumnFamily

COUNTS = replace(LISTS, id=1, name="counts", multi_values=False)
OTHER = replace(COUNTS, id=2, name="other")
WORDS = [f"word-{number}" for number in range(24)]


def make(root: Path, backend: str, families: tuple[ColumnFamily, ...], **how: Any) -> Checkpoint:
    """Write a checkpoint of four state partitions with rows of `counts`."""
    rows: Any = {"counts": {(word, 1): (1, "a") for word in WORDS[:4]}}
    return Checkpoint(
        write_checkpoint(
            root / "query", [rows], backend=backend, num_partitions=4, families=families, **how
        )
    )


def put(words: list[str]) -> pa.Table:
    """Rows with a total of 7."""
    number = len(words)
    return pa.table(
        {
            "key.word": words,
            "key.number": [1] * number,
            "value.total": [7] * number,
            "value.note": ["b"] * number,
        }
    )


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_rows_are_put_where_a_state_partition_lacks_their_column_family(
    tmp_path: Path, backend: str
) -> None:
    """Catches rows that no reader finds: of an ID that the trailer of their file does not know."""
    without = dict.fromkeys((1, 2), (DEFAULT,))
    checkpoint = make(tmp_path, backend, (DEFAULT, COUNTS), families_of=without)
    before = checkpoint.rows("counts").read().num_rows

    checkpoint.edit("counts", upsert=put(WORDS))

    found = checkpoint.rows("counts").read(flatten=True)
    assert 0 < before < len(WORDS)
    assert sorted(found["key.word"].to_pylist()) == sorted(WORDS)
    assert {*found["value.total"].to_pylist()} == {7}
    assert {*found["partition_id"].to_pylist()} == {0, 1, 2, 3}
    assert checkpoint.verify(versions="all", deep=True).findings == ()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_an_edit_is_refused_where_state_partitions_number_column_families_differently(
    tmp_path: Path, backend: str
) -> None:
    """Catches rows of one column family deleted, or put, as those of another of the same ID."""
    swapped = {1: (DEFAULT, replace(OTHER, id=1), replace(COUNTS, id=2))}
    checkpoint = make(tmp_path, backend, (DEFAULT, COUNTS, OTHER), families_of=swapped)
    before = checkpoint.rows("counts").read().to_pylist()

    for how in ({"upsert": put(WORDS)}, {"delete": "word = 'word-1'"}):
        with pytest.raises(IncompatibleError, match="column families have other IDs"):
            checkpoint.edit("counts", **how)  # type: ignore[arg-type]
        with pytest.raises(IncompatibleError, match="column families have other IDs"):
            checkpoint.transform(tmp_path / "to", {"counts": Edited(**how)})

    assert len(before) == 4
    assert checkpoint.info.newest_version == 1
    assert checkpoint.rows("counts").read().to_pylist() == before
