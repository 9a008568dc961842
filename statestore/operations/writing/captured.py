"""The shape of a query that has never run, from the first batch that Spark planned of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.query_log import NO_OFFSET, CommitEntry, is_avro
from statestore.codec.column_family import DEFAULT_FAMILY, NO_DEFAULT, ColumnFamily
from statestore.codec.partition_key import partition_key_columns
from statestore.codec.trailer import RowCounts
from statestore.core.errors import InvalidArgumentError, require_several
from statestore.core.key_groups import resolve_max_parallelism
from statestore.operations.batches import (
    evicts_a_range,
    require_watermark,
    with_late_watermark,
    with_next_watermark,
)
from statestore.operations.by_key import keyed_otherwise
from statestore.operations.committed_version import CommittedVersion, spark_files_of
from statestore.operations.writing.shape import StoreShape, key_form_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.checkpoint.operator_metadata import OperatorInfo, StoreInfo
    from statestore.checkpoint.query_log import OffsetsEntry
    from statestore.operations.checkpoint import OpenCheckpoint

_BATCH = 0


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """Logs of the checkpoint for which a batch is captured.

    Attributes:
        checkpoint_format: 1 or 2.
        offsets: Where each source goes on, as Spark's JSON; where the batch ends when None.
        watermark_ms: Watermark of the next batch, milliseconds since the Unix epoch.
    """

    checkpoint_format: int
    offsets: Sequence[str] | None
    watermark_ms: int


def find_captured(
    checkpoint: OpenCheckpoint, batch: CapturedBatch
) -> tuple[CommittedVersion, tuple[StoreShape, ...]]:
    """Return a version without rows, and the shape of its stores.

    Args:
        checkpoint: The directory that the query was captured in.
        batch: What the batch is taken for.

    Raises:
        InvalidArgumentError: A batch of it is committed; it has no stateful operator; its batch
            reads nothing; the offsets are not as many as there are sources, or one is none; or the
            watermark is no int from 1970 to the year 9999.
        IncompatibleError: Another provider is chosen for it, or a schema of it is not known.
        NotFoundError, CorruptionError, StorageError: A file of Spark's cannot be read.
    """
    require_watermark(batch.watermark_ms)
    checkpoint.require_own()
    entry = _planned(checkpoint)
    if entry is None or not checkpoint.operators:
        raise InvalidArgumentError(
            "the directory does not hold a captured query with state",
            directory=checkpoint.uri,
            committed_batches=len(checkpoint.committed_batches),
            operators=len(checkpoint.operators),
            to_fix="capture a query with state, in a directory of its own",
        )
    if batch.offsets is not None:
        require_several("offsets", batch.offsets)
        offsets = tuple(batch.offsets)
        if len(offsets) != len(entry.sources):
            raise InvalidArgumentError(
                "the number of offsets is not that of the sources",
                given=len(offsets),
                sources=len(entry.sources),
                planned=" ".join(entry.sources),
                to_fix="give one offset a source, in this order and form",
            )
        for planned, offset in zip(entry.sources, offsets, strict=True):
            # In v2 of the log each has its source before it.
            source = planned.partition(":")[0] + ":" if entry.version == "v2" else ""
            if not _is_offset(offset, source):
                raise InvalidArgumentError(
                    "the offset of a source does not have the form of the planned one",
                    offset=offset,
                    planned=planned,
                    to_fix="give text in the form of the planned one: JSON in one line, as "
                    "json.dumps writes it without indent",
                )
        entry = replace(entry, sources=offsets)
    shapes = tuple(
        _shape(checkpoint, operator, store, batch.checkpoint_format)
        for operator in checkpoint.operators
        for store in operator.stores
    )
    families = (family for shape in shapes for family in shape.new.column_families)
    # Else Spark never evicts rows of the history before the watermark.
    entry = with_late_watermark(entry, 0 if evicts_a_range(families) else batch.watermark_ms)
    commit = CommitEntry(f"v{batch.checkpoint_format}", {})
    version = CommittedVersion(
        checkpoint,
        _BATCH + 1,
        None,
        {_BATCH: entry},
        {_BATCH: with_next_watermark(commit, batch.watermark_ms)},
        {},
        tuple(spark_files_of(checkpoint)),
    )
    return version, shapes


def _is_offset(given: object, source: str) -> bool:
    """Return whether this is an offset, behind its source: Spark has each in a line of its log."""
    if not isinstance(given, str) or not given.startswith(source) or {"\n", "\r"} & {*given}:
        return False
    text = given.removeprefix(source)
    try:
        text.encode()
        return text == NO_OFFSET or json.loads(text) is not None
    except (ValueError, RecursionError):
        return False


def _planned(checkpoint: OpenCheckpoint) -> OffsetsEntry | None:
    """Return the entry of the first batch that reads something, where none such is committed.

    Batches before it pin the state format of joins, and no more.
    """
    for batch in range((checkpoint.newest_planned or 0) + 1):
        entry = checkpoint.offsets_entry(batch)
        if any(source != NO_OFFSET for source in entry.sources):
            return None if batch in checkpoint.committed_batches else entry
    return None


def _shape(
    checkpoint: OpenCheckpoint, operator: OperatorInfo, store: StoreInfo, checkpoint_format: int
) -> StoreShape:
    families = _families(checkpoint, operator, store)
    num_partitions = checkpoint.num_partitions
    new = NewVersion(
        version=_BATCH + 1,
        parent=None,
        checkpoint_id="",
        checkpoint_format=checkpoint_format,
        rows=RowCounts(),
        num_keys=0,
        max_parallelism=resolve_max_parallelism(checkpoint.options.max_parallelism, num_partitions),
        num_partitions=num_partitions,
        rescalable=keyed_otherwise(checkpoint, operator.id, store.name, families) is None,
        column_families=families,
        backend=checkpoint.backend,
    )
    is_keyed = any(partition_key_columns(store.name, family) for family in families)
    num_states = num_partitions if is_keyed else 1
    form = key_form_of(operator, checkpoint.conf)
    return StoreShape(operator.id, store.name, new, num_states, (), form)


def _families(
    checkpoint: OpenCheckpoint, operator: OperatorInfo, store: StoreInfo
) -> tuple[ColumnFamily, ...]:
    """Return the column families that the first batch would make, by Spark's file of schemas."""
    found = checkpoint.schemas(operator.id, store.schema_paths[-1])
    if not operator.has_families:
        prefix = store.num_prefix_columns or None
        encoder = "no-prefix" if prefix is None else "prefix"
        return (replace(found[0], encoder=encoder, num_prefix_columns=prefix, value_schemas={}),)
    named = (family for family in found if family.name != DEFAULT_FAMILY)
    return (
        NO_DEFAULT,
        *(
            replace(
                family,
                id=number,
                internal=family.name in operator.indexes or family.name.startswith("$"),
                multi_values=family.name in operator.lists,
                value_schemas=family.value_schemas if is_avro(checkpoint.conf) else {},
            )
            for number, family in enumerate(named, 1)
        ),
    )
