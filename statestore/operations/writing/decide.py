"""Which rows a user's transform, write or edit gives to which column family; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.checkpoint.operator_metadata import read_operators
from statestore.checkpoint.text_files import read_bytes
from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.codec.partition_key import partition_key_columns
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.text import format_count
from statestore.operations.batches import (
    evicts_a_range,
    find_edit,
    require_watermark,
    with_every_expiry_due,
    with_late_watermark,
)
from statestore.operations.committed_version import find_version
from statestore.operations.key_set import KeySet
from statestore.operations.new_directory import check_target
from statestore.operations.passes import Dealt
from statestore.operations.reading.condition import Condition
from statestore.operations.reading.read import read_batches
from statestore.operations.savepoint.savepoint import savepoint_of
from statestore.operations.states import FoundRows, find_store
from statestore.operations.writing.captured import find_captured
from statestore.operations.writing.columns import FamilyColumns, decide_family
from statestore.operations.writing.edited import Edited
from statestore.operations.writing.expiry import expiry_condition
from statestore.operations.writing.family_rows import FamilyRows
from statestore.operations.writing.found import check_found, deleted_in_words, find_rows
from statestore.operations.writing.given import by_address, kept, read_given, rows_of
from statestore.operations.writing.given_pass import Given
from statestore.operations.writing.in_place import EditInPlace
from statestore.operations.writing.join_format import with_join_format
from statestore.operations.writing.rows_from_file import RowsFile
from statestore.operations.writing.shape import find_shape, shapes_of
from statestore.spark_files.schemas import replace_schemas

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from statestore.codec.column_family import ColumnFamily
    from statestore.io.place import Place
    from statestore.operations.addresses import Address
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.copying import Copy
    from statestore.operations.passes import Pass, StoreId
    from statestore.operations.writing.captured import CapturedBatch
    from statestore.operations.writing.shape import StoreShape

_TIMER_ORDERS = ("keyToTimestamp", "timestampToKey")
ByAddress = Mapping[Any, Any]
"""Given rows or edits, by the address of the rows that they are for."""


def decide_rows(
    operation: str,
    checkpoint: OpenCheckpoint,
    destination: Place,
    rows: ByAddress,
    *,
    version: int | None = None,
    change_schema: bool = False,
    join_format: int | None = None,
    makes: bool,
) -> Copy:
    """Decide a savepoint of a checkpoint's version, with other rows.

    Args:
        operation: The command.
        checkpoint: The checkpoint, or a savepoint.
        destination: The savepoint to write.
        rows: Rows; or where `makes`, functions and SQL that make them, and `Edited`.
        version: State version, None for the newest committed.
        change_schema: Whether schemas become those of the rows given.
        join_format: State format that joins get; None for the one that they have.
        makes: Whether rows are made of those that are there.

    Errors as `Directory.transform`.
    """
    found = find_version(checkpoint, version)
    shapes = shapes_of(found)
    copy = _of_rows(
        operation,
        found,
        shapes,
        destination,
        rows,
        change_schema=change_schema,
        makes=makes,
    )
    return copy if join_format is None else with_join_format(copy, shapes, join_format)


def decide_bootstrap(
    checkpoint: OpenCheckpoint, batch: CapturedBatch, destination: Place, rows: ByAddress
) -> Copy:
    """Decide the savepoint of a query that was captured and has never run.

    Args:
        checkpoint: The directory that it was captured in.
        batch: What the batch that was planned is taken for.
        destination: The savepoint to write.
        rows: Rows.

    Raises:
        As `decide_rows` and `find_captured`.
    """
    found, shapes = find_captured(checkpoint, batch)
    return _of_rows("write", found, shapes, destination, rows, change_schema=False, makes=False)


def _of_rows(
    operation: str,
    found: CommittedVersion,
    shapes: tuple[StoreShape, ...],
    destination: Place,
    rows: ByAddress,
    *,
    change_schema: bool,
    makes: bool,
) -> Copy:
    all_rows: list[FamilyRows] = []
    places = {address: _find(found, shapes, address) for address in by_address(rows)}
    named = [(shape, family.name) for shape, family in places.values()]
    for address, given in rows.items():
        shape, family = places[address]
        if makes and isinstance(given, Edited):
            both = [of for of in _both(shape, family) if (shape, of.name) not in named]
            all_rows += _edited(found, shape, [family, *both], address, given)
            continue
        stored = _stored(found, shape, family) if makes else None
        if isinstance(given, Path):
            given = _of_file(given, shape, family, change_schema=change_schema)
        made = rows_of(given, stored)
        after = decide_family(family, made.schema(), change_schema=change_schema)
        _check_key(shape, family, after)
        all_rows.append(FamilyRows(shape, family, after, made, made.what))
    _check_apart(all_rows)
    return _decided(operation, found, shapes, all_rows, destination)


def _of_file(
    path: Path, shape: StoreShape, family: ColumnFamily, *, change_schema: bool
) -> pa.Table:
    """Return the rows of a file, of the family's types unless these are to change."""
    if not change_schema:
        form = shape.key_form
        given = read_given(path, shape.name, family, has_values=True, key_form=form)
    elif (file := RowsFile(path)).form.has_types:
        given = file.read(family)
    else:
        raise InvalidArgumentError(
            "a file of text is read by the types that the state has, and these are to change",
            file=str(path),
            to_fix="give a file of Parquet or Arrow, or Arrow data",
        )
    if not given.num_rows:
        raise InvalidArgumentError(
            "a file of rows has no row",
            file=str(path),
            columns=", ".join(given.column_names),
            to_fix="give the file that has them; where no row is meant, give a table without rows",
        )
    return given


def _find(
    found: CommittedVersion, shapes: tuple[StoreShape, ...], address: Address
) -> tuple[StoreShape, ColumnFamily]:
    return find_shape(shapes, found.checkpoint.operators, address)


def _check_key(shape: StoreShape, before: ColumnFamily, after: ColumnFamily) -> None:
    """Check that a family without a key gets none: its state is in one state partition.

    Raises:
        IncompatibleError: It gets one.
    """
    is_keyed, was_keyed = (bool(partition_key_columns(shape.name, of)) for of in (after, before))
    if is_keyed and not was_keyed:
        raise IncompatibleError(
            "rows without a key cannot be given one",
            operator=shape.operator,
            store=shape.name,
            column_family=before.name,
            to_fix="capture the new query by capture_query, and write its state by write_savepoint",
        )


def _check_apart(rows: list[FamilyRows]) -> None:
    """Check that no rows are given twice, by two addresses.

    Raises:
        InvalidArgumentError: They are.
    """
    seen = set()
    for of in rows:
        place = of.shape.operator, of.shape.name, of.family.name
        if place in seen:
            raise InvalidArgumentError(
                "two addresses name the same rows",
                operator=of.shape.operator,
                store=of.shape.name,
                column_family=of.family.name,
                to_fix="give them once",
            )
        seen.add(place)


def decide_edit(
    checkpoint: OpenCheckpoint,
    rows: Address,
    *,
    delete: Any,
    upsert: Any,
    watermark_ms: int | None,
    expire: str | None,
    older_than: timedelta | datetime | None,
    all_rows: bool,
) -> EditInPlace:
    """Decide a new version of a checkpoint without some keys, and with some rows.

    Arguments and errors as `Checkpoint.edit`.
    """
    batch = find_edit(checkpoint)
    if watermark_ms is not None:
        require_watermark(watermark_ms)
        if watermark_ms < batch.watermark_ms:
            raise InvalidArgumentError(
                "a watermark never goes back",
                watermark_ms=watermark_ms,
                watermark_ms_now=batch.watermark_ms,
                to_fix="give a later one, or leave it out",
            )
    if older_than is not None and expire is None:
        raise InvalidArgumentError(
            "`older_than` is given without `expire`, the column of the age",
            older_than=older_than,
            to_fix="name the column by expire=, or leave older_than out",
        )
    found = find_version(checkpoint)
    shapes = shapes_of(found)
    if expire is not None:
        if delete is not None:
            raise InvalidArgumentError(
                "`expire` and `delete` are both given",
                expire=expire,
                to_fix="expire rows by one call and delete others by a second one",
            )
        operator = _find(found, shapes, rows)[0].operator
        of_operator = [shape for shape in shapes if shape.operator == operator]
        delete = expiry_condition(expire, older_than, of_operator, checkpoint.clock)
    changed: list[FamilyRows] = []
    if watermark_ms is None or not (delete is None and upsert is None):
        # Where rows expire, none may be old enough.
        edited = Edited(delete, upsert, all_rows)
        shape, family = _find(found, shapes, rows)
        changed = _edited(
            found, shape, _both(shape, family), rows, edited, may_be_none=expire is not None
        )
    elif rows is not None or all_rows:
        raise InvalidArgumentError(
            "rows are named, but neither `delete`, `upsert` nor `expire` is given",
            rows=rows,
            all_rows=all_rows,
            to_fix="give one of these, or leave rows and all_rows out",
        )
    edit = EditInPlace(found, shapes, tuple(changed), watermark_ms, batch)
    edit.check()
    return edit


def _both(shape: StoreShape, family: ColumnFamily) -> list[ColumnFamily]:
    """Return a column family; of timers both that have them, by key and by time.

    Spark fires by the one, and sets and deletes by the other: a timer that only one has fires in
    every batch, or never. Source: its TimerStateImpl.
    """
    kind, timers, order = family.name.partition("Timers_")
    if kind.startswith("$") and order in _TIMER_ORDERS:
        names = [f"{kind}{timers}{order}" for order in _TIMER_ORDERS]
        return [of for of in shape.new.column_families if of.name in names]
    return [family]


def _edited(
    found: CommittedVersion,
    shape: StoreShape,
    families: list[ColumnFamily],
    address: Address,
    edited: Edited,
    *,
    may_be_none: bool = False,
) -> list[FamilyRows]:
    """Return the rows that column families lose and get."""
    if edited.delete is None and edited.upsert is None:
        raise InvalidArgumentError(
            "there is nothing to edit",
            rows=address,
            to_fix="name keys to delete, or rows to put",
        )
    if len(families) > 1:
        edited = replace(edited, delete=kept(edited.delete), upsert=kept(edited.upsert))
    edit = partial(_edited_rows, found, shape, edited=edited)
    rows: list[FamilyRows] = []
    without_rows: list[tuple[ColumnFamily, NotFoundError]] = []
    for family in families:
        try:
            rows.append(edit(family, may_be_none=may_be_none))
        except NotFoundError as error:
            if error.kind != "keys-not-found":
                raise
            without_rows.append((family, error))
    if not rows:
        raise without_rows[0][1]
    return rows + [edit(family, may_be_none=True) for family, _ in without_rows]


def _edited_rows(
    found: CommittedVersion,
    shape: StoreShape,
    family: ColumnFamily,
    edited: Edited,
    *,
    may_be_none: bool,
) -> FamilyRows:
    """Return the rows that a column family loses and gets."""
    delete, upsert = edited.delete, edited.upsert
    columns = FamilyColumns(shape.name, family, shape.key_form)
    read = partial(read_given, store=shape.name, family=family, key_form=shape.key_form)
    given = where = deleted = num_given = None
    put: list[pa.Array[Any]] = []
    if isinstance(delete, str):
        where = partial(Condition, delete)
    elif delete is not None:
        table = _some(read(delete, has_values=False), "delete")
        deleted = list(columns.keys(table.to_batches()))
        num_given = len(pa.chunked_array(deleted, pa.binary()).unique())
    if upsert is not None:
        table = _some(read(upsert, has_values=True), "upsert")
        put = list(columns.keys(table.to_batches()))
        _check_once(put, shape, family)
        given = rows_of(table, None)
    rows = FamilyRows(
        shape, family, family, None, "", replaced=False, without=KeySet(deleted or ()), where=where
    )
    counted = find_rows(found.checkpoint, rows, deleted, KeySet(put))
    words = []
    if delete is not None:
        words.append(deleted_in_words(counted, num_given, delete))
        may_be_none = may_be_none or upsert is not None
        check_found(counted, words[0], may_be_none=may_be_none, all_rows=edited.all_rows)
    if given is not None:
        words.append(
            f"{format_count(table.num_rows, 'row')} put, in place of those of "
            f"{format_count(counted.num_replaced, 'key')}"
        )
    name = shape.name if family.name == DEFAULT_FAMILY else family.name
    partner = found.checkpoint.operator(shape.operator).goes_with(name)
    if partner is not None:
        words.append(f"change {partner} to agree with it before the query starts")
    without = KeySet([*(deleted or ()), *put])
    return replace(rows, given=given, words="; ".join(words), without=without, keys=counted.keys)


def _check_once(keys: list[pa.Array[Any]], shape: StoreShape, family: ColumnFamily) -> None:
    """Check that rows are put of each key once, but for the elements of lists.

    Raises:
        InvalidArgumentError: One is there more than once (kind duplicate-key).
    """
    of_all: Any = pa.chunked_array(keys, pa.binary())
    num_doubles = 0 if family.multi_values else len(of_all) - len(of_all.unique())
    if num_doubles:
        raise InvalidArgumentError(
            "several rows have the same key",
            kind="duplicate-key",
            operator=shape.operator,
            store=shape.name,
            num_rows_too_many=num_doubles,
            to_fix="give one row for each key, such as by GROUP BY key",
        )


def _some(given: pa.Table, argument: str) -> pa.Table:
    """Return rows or keys that are given, where there are any."""
    if not given.num_rows:
        raise InvalidArgumentError(
            "no row is given",
            argument=argument,
            columns=", ".join(given.column_names),
            to_fix="leave it out where none is meant; a stream that was read before is to be made "
            "anew",
        )
    return given


def _decided(
    operation: str,
    version: CommittedVersion,
    shapes: tuple[StoreShape, ...],
    rows: list[FamilyRows],
    destination: Place,
) -> Copy:
    """Return the savepoint of a version with other rows; of what is not named with those it has.

    Raises:
        InvalidArgumentError: As `check_target`.
        IncompatibleError: Rows cannot be routed by their keys.
    """
    check_target(destination, operation, version.checkpoint.uri)
    version.check_sources()
    last = version.offsets[version.batch]
    if any(of.puts_expiries for of in rows):
        last = with_every_expiry_due(last)
    if evicts_a_range(of.family for of in rows if of.given is not None):
        # Else Spark never evicts rows that are given and have ended by the watermark.
        last = with_late_watermark(last, 0)
    version = replace(version, offsets={**version.offsets, version.batch: last})
    passes: dict[StoreId, Pass] = {}
    for shape in shapes:
        own = tuple(of for of in rows if of.shape == shape)
        if own:
            shape.require_by_key()
        # A query that was captured has no rows to deal out.
        passes[shape.operator, shape.name] = (
            Given(shape, own) if own or not shape.heads else Dealt()
        )
    copy = savepoint_of(operation, version, destination, "canonical")
    return replace(copy, passes=passes, files=_schema_files(version, rows))


def _schema_files(version: CommittedVersion, rows: list[FamilyRows]) -> dict[str, bytes]:
    """Return Spark's files of state schemas that change, by their path."""
    changed: dict[str, dict[str, ColumnFamily]] = {}
    source = version.checkpoint
    changing = [of for of in rows if (of.change.key_schema, of.change.value_schema) != (None, None)]
    if not changing:
        return {}
    # A later run of the query may have written others.
    operators = read_operators(source.io, source.state_directory, version.batch)
    for of in changing:
        operator = operators[of.shape.operator]
        store = next(store for store in operator.stores if store.name == of.shape.name)
        path = f"state/{operator.id}/{store.schema_paths[-1]}"
        changed.setdefault(path, {})[of.family.name] = of.family
    return {
        path: replace_schemas(read_bytes(source.io, f"{source.path}/{path}"), path, families)
        for path, families in changed.items()
    }


def _stored(version: CommittedVersion, shape: StoreShape, family: ColumnFamily) -> Any:
    states = find_store(version.checkpoint, shape.operator, shape.name, version.version)
    return partial(read_batches, FoundRows(states, family.name))
