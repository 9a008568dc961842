"""The keys that change most often: what the deltas of the newest versions name again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.codec.key_bytes import decode_keys
from statestore.core.errors import IncompatibleError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.states import FoundRows

MOST_VERSIONS = 20
"""Versions whose changes are counted."""


def most_changed_keys(
    checkpoint: OpenCheckpoint, rows: FoundRows, version: int, num_keys: int
) -> pa.Table:
    """Count in how many of the `MOST_VERSIONS` newest versions each key was written or deleted.

    Deltas alone are read, those of one state partition at a time. It ends at a version that was
    expired, at one with another number of state partitions, and at one that was written whole, by
    an operation or with `rocksdb.incremental=false`.

    Args:
        checkpoint: The checkpoint.
        rows: The rows at the newest of the versions.
        version: That version.
        num_keys: How many keys, at least 1.

    Returns:
        The most changed first; columns `key`, `partition_id`, `num_changes` and `num_versions`,
        which is of how many versions.

    Raises:
        IncompatibleError: It is another provider's (kind other-provider).
        CorruptionError, FencedError, StorageError: As `OpenCheckpoint.heads`.
    """
    if checkpoint.is_of_spark:
        raise IncompatibleError(
            "Spark's own providers do not tell which keys changed in a version",
            kind="other-provider",
            checkpoint=checkpoint.uri,
            to_fix="compare two versions: `statestore diff`",
        )
    versions = list(_versions(checkpoint, rows, version))
    best = []
    for store in rows.states:
        keys = [_keys(checkpoint, heads[store], rows.name) for heads in versions]
        counted = pa.table({"key": pa.chunked_array(keys, pa.binary())}).group_by("key")
        found = counted.aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
        found = found.slice(0, num_keys)
        partition = pa.scalar(store.partition, pa.int32())
        columns = {
            "key": found["key"],
            "partition_id": pa.repeat(partition, found.num_rows),
            "num_changes": found["count_all"],
            "num_versions": pa.repeat(len(versions), found.num_rows),
        }
        best.append(pa.table(columns))
    table = pa.concat_tables(best).sort_by([("num_changes", "descending")]).slice(0, num_keys)
    return table.set_column(0, "key", decode_keys(table["key"].combine_chunks(), rows.family))


def _versions(
    checkpoint: OpenCheckpoint, rows: FoundRows, version: int
) -> Iterator[dict[StoreName, PublishedFile]]:
    """Yield the deltas of the versions, newest first, by store."""
    first = next(iter(rows.states))
    for number in range(version, max(0, version - MOST_VERSIONS), -1):
        try:
            heads = checkpoint.heads(number, operator=first.operator, name=first.name)
        except NotFoundError:
            return
        if heads.keys() != rows.states.keys():
            return
        if number > 1 and any(map(_is_full_state, heads.values())):
            return  # its rows are not those that a batch changed
        yield heads


def _is_full_state(head: PublishedFile) -> bool:
    return not head.trailer.files and head.trailer.rows.total > 0


def _keys(checkpoint: OpenCheckpoint, head: PublishedFile, family: str) -> Any:
    """Return the keys of a delta's rows of a column family, each once."""
    found = []
    location = checkpoint.location(head.trailer.store)
    path = location.path(head.ref.path)
    form = checkpoint.work.form(location.body)
    for trailer, batch in form.rows_of_file(path, location.io.fetch(path), checkpoint.work):
        ids = [known.id for known in trailer.column_families if known.name == family]
        families = batch.column("column_family")
        found.append(batch.column("key").filter(pc.is_in(families, pa.array(ids, families.type))))
    return pa.chunked_array(found, pa.binary()).unique()
