"""What an edit finds before it is made: how many rows go, and of which keys.

What cannot be taken back by the same call says what it found, not what it was given; and is refused
where that is nothing, or everything.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.key_bytes import decode_keys, split_values
from statestore.codec.python_values import to_pylist
from statestore.codec.rows import pick
from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.text import escape_controls, format_count
from statestore.operations.full_state import states_at_once
from statestore.operations.states import read_rows
from statestore.operations.writing.family_rows import Gone, LaidBy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.key_set import KeySet
    from statestore.operations.writing.family_rows import FamilyRows

_MOST_KEYS = 10
"""Keys that are shown."""


@dataclass
class Found:
    """Rows of a column family that an edit finds.

    Attributes:
        num_rows: All that are there; of a list its elements.
        num_gone: Those that go, because their keys are deleted.
        num_keys: Keys that have such rows.
        num_replaced: Keys with rows in whose place others are put.
        keys: Some of the keys that are meant, in words.
    """

    num_rows: int = 0
    num_gone: int = 0
    num_keys: int = 0
    num_replaced: int = 0
    keys: tuple[str, ...] = ()


def find_rows(
    checkpoint: OpenCheckpoint,
    deleted: FamilyRows,
    given: Sequence[pa.Array[Any]] | None,
    put: KeySet,
) -> Found:
    """Count the rows that an edit deletes, and those in whose place it puts others; reads all.

    Args:
        checkpoint: The checkpoint.
        deleted: What its column family loses by deletion alone.
        given: Keys to delete, as bytes, where they are given; None for a condition.
        put: Keys of rows that are put.

    Raises:
        InvalidArgumentError: A condition does not fit the rows.
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError: As
            `read_rows`.
    """
    family = deleted.before
    shown: Any = (
        None if given is None else pa.chunked_array(given, pa.binary()).unique()[:_MOST_KEYS]
    )
    with ThreadPoolExecutor(states_at_once()) as pool:
        count = partial(_of_partition, checkpoint, deleted, shown, put)
        parts = list(pool.map(count, deleted.shape.heads))
    some = [word for _, _, words in parts for word in words][:_MOST_KEYS]
    if shown is not None:
        is_there = np.any([is_there for _, is_there, _ in parts], axis=0).tolist()
        some = [
            word if there else f"{word}, which has no row"
            for word, there in zip(_in_words(shown, family), is_there, strict=True)
        ]
    return Found(
        num_rows=sum(part.num_rows for part, _, _ in parts),
        num_gone=sum(part.num_gone for part, _, _ in parts),
        num_keys=sum(part.num_keys for part, _, _ in parts),
        num_replaced=sum(part.num_replaced for part, _, _ in parts),
        keys=tuple(some),
    )


def _of_partition(
    checkpoint: OpenCheckpoint, deleted: FamilyRows, shown: Any, put: KeySet, head: PublishedFile
) -> tuple[Found, Any, list[str]]:
    """Return what is found in a state partition, which keys to show are there, and others."""
    found = Found()
    family = deleted.before
    is_there = np.zeros(0 if shown is None else len(shown), bool)
    some: list[str] = []
    partition = head.trailer.store.partition
    gone = Gone([deleted], partition)
    laid_by = LaidBy(checkpoint.scratch_directory)
    for batch in read_rows(checkpoint, head, family.name):
        mask = gone(batch)
        going = pick(batch, mask)
        laid_by.add(going)
        keys: Any = going.column(3)
        found.num_keys += len(keys)
        found.num_replaced += int(put.has(batch.column(3)).sum())
        counts = np.ones(batch.num_rows, np.int64)
        if family.multi_values:
            _, owners = split_values(batch.column(4))
            counts = np.bincount(owners, minlength=batch.num_rows)
        found.num_rows += int(counts.sum())
        found.num_gone += int(counts[mask].sum())
        if shown is not None and len(keys):
            is_there |= _is_in(shown, keys)
        elif len(keys) and len(some) < _MOST_KEYS:
            some += _in_words(keys.slice(0, _MOST_KEYS - len(some)), family)
    laid_by.finish()
    deleted.laid_by[partition] = laid_by
    return found, is_there, some


def _is_in(keys: Any, among: Any) -> Any:
    import pyarrow.compute as pc

    return pc.is_in(keys, value_set=among).to_numpy(zero_copy_only=False)


def _in_words(keys: pa.Array[Any], family: ColumnFamily) -> list[str]:
    return [
        escape_controls(json.dumps(key, default=_plain, ensure_ascii=False))
        for key in to_pylist(decode_keys(keys, family))
    ]


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def check_found(found: Found, deleted: str, *, may_be_none: bool, all_rows: bool) -> None:
    """Check that an edit deletes something, and not everything unless that was said.

    Args:
        found: What it finds.
        deleted: What it deletes, in words.
        may_be_none: Whether nothing to delete is fine.
        all_rows: Whether all rows may go.

    Raises:
        NotFoundError: It deletes nothing (kind keys-not-found).
        InvalidArgumentError: It deletes all rows.
    """
    if found.num_gone == 0 and not may_be_none:
        raise NotFoundError(
            "no row is there to delete",
            kind="keys-not-found",
            deleted=deleted,
            **({"keys": "; ".join(found.keys)} if found.keys else {}),
            num_rows_there=found.num_rows,
            to_fix="see how `statestore read` shows the keys",
        )
    if found.num_gone == found.num_rows > 0 and not all_rows:
        raise InvalidArgumentError(
            "all rows of a store would be deleted",
            deleted=deleted,
            num_rows=found.num_rows,
            to_fix="say so where that is meant: --all, all_rows=True",
        )


def deleted_in_words(found: Found, num_given: int | None, where: str) -> str:
    """Return what is deleted: `2 of 3 keys have rows: 14 rows of 1,457 deleted`."""
    rows = f"{format_count(found.num_gone, 'row')} of {found.num_rows:,} deleted"
    if found.num_gone == found.num_rows > 0:
        rows = f"all {format_count(found.num_rows, 'row')} deleted: the whole store"
    if num_given is None:
        return f"{rows}, where {escape_controls(where)}"
    has = "has" if found.num_keys == 1 else "have"
    return f"{found.num_keys:,} of {format_count(num_given, 'key')} {has} rows: {rows}"
