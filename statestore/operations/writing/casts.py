"""Casts that lose nothing: a column of Arrow as one of a Spark type, or an error that names it.

What is not allowed here is refused. So a number never becomes text, and a time without a zone never
becomes one with a zone.

| Spark | taken from |
|---|---|
| boolean | boolean |
| byte, short, integer, long | integers, and decimals that are whole, of which every value fits |
| float, double | floating-point numbers and integers that it can hold exactly |
| decimal(p,s) | decimals and integers of which no digit is lost |
| string, binary | text; bytes |
| date | a date |
| timestamp, timestamp_ntz | a time with a zone; one without; of any unit, no digit lost |
| time | a time of day of whole microseconds |
| interval, interval year to month | an interval; of months alone |
| interval day to second | a duration, or an interval without months, of whole microseconds |
| struct, array, map | the same of these; fields of structs by name, all of them |
| variant | a struct of its value and metadata, both binary; null where both are |
| any | nulls, where the schema has them |

A map has each key once, and none that is null.
The same values in another layout of Arrow (dictionary, runs, views, large offsets) are as good.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import INTERVAL, unpack
from statestore.codec.python_values import to_pylist
from statestore.codec.rows import from_numpy, to_numpy
from statestore.codec.spark_types import VARIANT_PARTS, SparkType
from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

OTHER_SCHEMA = "; of another schema transform makes values: --change-schema, change_schema=True"
"""Of an error about values: what may have been meant."""
_WHOLE = ("byte", "short", "integer", "long")
_FLOATING = ("float", "double")
_DAY_US = 86_400_000_000
_MOST_DAYS = ((1 << 63) - (1 << 63) // 1000) // _DAY_US
_MOST_SHOWN = 60


def conform(column: Any, kind: SparkType, name: str) -> Any:
    """Return a column as one of a type, values unchanged.

    Args:
        column: An array of Arrow.
        kind: The type.
        name: Name of the column in errors.

    Raises:
        InvalidArgumentError: It is of a type that is not taken, or a value does not fit; names
            the column, the types, and the first such value.
    """
    try:
        column = _in_plain_layout(column, name)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            "a column cannot be laid out as Spark has it",
            column=name,
            found=str(column.type),
            reason=str(error).partition("\n")[0],
            to_fix="hand rows over in smaller record batches",
        ) from error
    if pa.types.is_null(column.type):
        return column.cast(kind.arrow)
    if kind.kind == "struct":
        return _struct(column, kind, name)
    if kind.kind == "variant":
        return _struct(null_where_parts_are(column), VARIANT_PARTS, name)
    if kind.kind in ("array", "map"):
        return _elements(column, kind, name)
    if not _TAKEN[kind.kind](column.type):
        raise _wrong_type(column, kind, name)
    try:
        return _leaf(column, kind)
    except pa.ArrowException as error:
        row = _first_that_fails(column, kind)
        raise InvalidArgumentError(
            "a value is not one of its column's type, or not without a loss",
            column=name,
            row=row,
            value=_shown(column[row]),
            expected=str(kind.arrow),
            found=str(column.type),
            reason=str(error).partition("\n")[0],
            to_fix="give a value of that type",
        ) from error


def _wrong_type(column: Any, kind: SparkType, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a column is not of the type that the column family has",
        column=name,
        expected=str(kind.arrow),
        found=str(column.type),
        to_fix=f"give {_HINTS.get(kind.kind, 'that type')}"
        + (OTHER_SCHEMA if name.startswith("value") else ""),
    )


_HINTS = {
    "string": "text, as it was typed: a number has lost zeros in front, a time its form",
    "timestamp": "times with a zone, such as UTC",
    "timestamp_ntz": "times without a zone",
    "decimal": "decimals or whole numbers: 0.1 is no decimal once it was a floating-point number",
    "date": "dates: a timestamp has a time of day as well",
}


def _shown(value: Any) -> str:
    try:
        text = str(value)
    except (OverflowError, ValueError):
        return "one that Python does not have"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _first_that_fails(column: Any, kind: SparkType) -> int:
    """Return the number of the first value that is refused, of a column of which one is."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _leaf(column.slice(low, middle - low), kind)
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _in_plain_layout(column: Any, name: str) -> Any:
    """Return the same values as text and bytes with offsets of 32 bits, without references."""
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        raise InvalidArgumentError(
            "a column is of a type that Arrow does not have by itself",
            column=name,
            type=str(kind),
            to_fix=f"cast it to {kind.storage_type}, where that is meant",
        )
    if pa.types.is_dictionary(kind):
        return _in_plain_layout(column.dictionary_decode(), name)
    if pa.types.is_run_end_encoded(kind):
        return _in_plain_layout(pc.call_function("run_end_decode", [column]), name)
    for is_so, plain in _LAYOUTS:
        if is_so(kind):
            return column.cast(plain)
    return column


_LAYOUTS: tuple[tuple[Callable[[Any], bool], Any], ...] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)


def null_where_parts_are(column: Any) -> Any:
    """Return structs, null where all of their fields are, as SQL makes them of null variants."""
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        return column
    parts = column.flatten()
    is_null = np.logical_and.reduce([unpack(part.is_null()) for part in parts])
    mask = pa.array(is_null)
    return pa.StructArray.from_arrays(parts, fields=list(column.type), mask=mask)


@contextmanager
def row_told(row_of: Callable[[int], int]) -> Iterator[None]:
    """Have an error about a part of some rows tell the row of all of them.

    Args:
        row_of: Returns the row, of the number that the error has.
    """
    try:
        yield
    except InvalidArgumentError as error:
        if isinstance(row := error.fields.get("row"), int):
            error.fields["row"] = row_of(row)
        raise


def _struct(column: Any, kind: SparkType, name: str) -> Any:
    wanted: Any = kind.arrow
    if not pa.types.is_struct(column.type):
        raise _wrong_type(column, kind, name)
    given = [field.name for field in column.type]
    if sorted(given) != sorted(wanted.names):
        raise InvalidArgumentError(
            "a struct does not have the fields that the column family has",
            column=name,
            expected=", ".join(wanted.names),
            found=", ".join(given),
            to_fix="give each of these fields once, null where it is; and no others",
        )
    parts = dict(zip(given, column.flatten(), strict=True))
    children = [
        conform(parts[field.name], part, f"{name}.{field.name}")
        for field, part in zip(wanted, kind.types, strict=True)
    ]
    if not children:
        return column
    refuse_nulls(children, kind, name, within=column)
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=column.is_null())


def _elements(column: Any, kind: SparkType, name: str) -> pa.Array[Any]:
    """Return a column of arrays or maps."""
    given = column.type
    if pa.types.is_map(given) and kind.kind == "map":
        column = column.cast(_as_lists(given))
    elif not _is_list(given):
        raise _wrong_type(column, kind, name)
    starts = _offsets(column)
    counts, ends = np.diff(starts), starts[1:]
    offsets = from_numpy(starts, pa.int32())
    mask = column.is_null()
    of_entry = SparkType("struct", kind.fields, never_null=kind.never_null)
    with row_told(lambda element: int(np.searchsorted(ends, element, side="right"))):
        if kind.kind == "array":
            values = conform(column.flatten(), kind.types[0], f"{name}[]")
            refuse_nulls([values], kind, f"{name}[]")
            return _made(pa.ListArray, kind.arrow, mask, offsets, values)
        entries: Any = conform(column.flatten(), of_entry, f"{name}[]")
    _refuse_doubles(entries.field(0), counts, f"{name}[].key")
    return _made(pa.MapArray, kind.arrow, mask, offsets, *entries.flatten())


def _as_lists(kind: Any) -> pa.DataType:
    """Return the type of the lists of entries that maps are."""
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def refuse_nulls(columns: Sequence[Any], kind: SparkType, name: str, within: Any = None) -> None:
    """Check that there is no null where the schema says that there is none: Spark reads a zero.

    Args:
        columns: Fields of a struct, or the elements of an array.
        kind: The type of what has them.
        name: Name of that in errors.
        within: Structs that have them, of which null ones have no fields; None where none is null.

    Raises:
        InvalidArgumentError: There is one.
    """
    for ordinal in sorted(kind.never_null):
        column = columns[ordinal]
        if not column.null_count:
            continue
        is_null = unpack(column.is_null())
        if within is not None:
            is_null = is_null & ~unpack(within.is_null())
        if is_null.any():
            raise InvalidArgumentError(
                "a value is null, and the state has no nulls there",
                column=f"{name}.{kind.names[ordinal]}" if kind.kind == "struct" else name,
                row=int(np.argmax(is_null)),
                num_nulls=int(is_null.sum()),
                to_fix="give a value: Spark does not look for a null there, and would read 0",
            )


def _refuse_doubles(keys: Any, counts: Any, name: str) -> None:
    """Check that no map has a key twice, of which Spark would keep one."""
    known: dict[Any, int] = {}
    if pa.types.is_nested(keys.type):
        codes = np.array([known.setdefault(repr(key), len(known)) for key in to_pylist(keys)], int)
    else:
        codes = np.asarray(keys.dictionary_encode().indices)
    of_map = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((codes, of_map))
    is_same = (np.diff(of_map[order]) == 0) & (np.diff(codes[order]) == 0)
    if is_same.any():
        row = int(order[1:][is_same].min())
        raise InvalidArgumentError(
            "a map has a key twice",
            column=name,
            row=int(of_map[row]),
            key=_shown(keys[row]),
            to_fix="give each key once",
        )


def _made(array: Any, kind: Any, mask: Any, *parts: Any) -> pa.Array[Any]:
    made: pa.Array[Any] = array.from_arrays(*parts, type=kind, mask=mask)
    return made


def _is_list(kind: Any) -> bool:
    return any(
        is_so(kind)
        for is_so in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_decimal(kind)


_TAKEN: dict[str, Callable[[Any], bool]] = {
    "boolean": pa.types.is_boolean,
    **dict.fromkeys((*_WHOLE, "decimal"), _is_number),
    **dict.fromkeys(
        _FLOATING, lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind)
    ),
    "string": pa.types.is_string,
    "binary": pa.types.is_binary,
    "date": pa.types.is_date,
    "timestamp": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    "timestamp_ntz": lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    "time": pa.types.is_time,
    "interval": pa.types.is_interval,
    "year-month interval": pa.types.is_interval,
    "day-time interval": lambda kind: pa.types.is_duration(kind) or pa.types.is_interval(kind),
    "void": pa.types.is_null,
}


def _leaf(column: Any, kind: SparkType) -> Any:
    """Return a column of a type that is taken; raises ArrowInvalid where a value does not fit."""
    if kind.kind == "decimal":
        return _decimals(column, kind)
    if kind.kind == "float":
        return _floats(column)
    if pa.types.is_interval(column.type):
        return _intervals(column, kind)
    found = column.cast(kind.arrow)
    if kind.kind == "time":
        _require(to_numpy(found, "<i8") % 1000 == 0, found, "it has less than microseconds")
    return found


def _decimals(column: Any, kind: SparkType) -> Any:
    if column.type == kind.arrow:
        return column
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    # Through 256 bits: Arrow does not see where 128 overflow.
    column = column.cast(pa.decimal128(38, scale)).cast(pa.decimal256(76, scale))
    return column.cast(pa.decimal256(76, kind.scale)).cast(kind.arrow)


def _floats(column: Any) -> Any:
    if not pa.types.is_float64(column.type):
        return column.cast(pa.float32())
    found = column.cast(pa.float32())
    wide, back = to_numpy(column, "<f8"), to_numpy(found, "<f4").astype(np.float64)
    _require((wide == back) | np.isnan(wide), column, "it has more digits")
    return found


def _intervals(column: Any, kind: SparkType) -> Any:
    import pyarrow.compute as pc

    parts = to_numpy(column, INTERVAL)
    whole = parts["nanoseconds"] % 1000 == 0
    _require(whole, column, "it has less than microseconds")
    if kind.kind == "interval":
        return column
    if kind.kind == "year-month interval":
        _require((parts["days"] == 0) & (parts["nanoseconds"] == 0), column, "it has days")
        return column
    _require(parts["months"] == 0, column, "it has months, which are of no one length")
    days = parts["days"].astype(np.int64)
    _require(np.abs(days) <= _MOST_DAYS, column, "it has more days than microseconds can count")
    made = from_numpy(days * _DAY_US + parts["nanoseconds"] // 1000, pa.int64())
    return pc.if_else(column.is_valid(), made.cast(kind.arrow), pa.scalar(None, kind.arrow))


def _require(holds: Any, column: Any, reason: str) -> None:
    if not (holds | unpack(column.is_null())).all():
        raise pa.ArrowInvalid(reason)


class KeyForm(Enum):
    """What Spark makes of the keys of an operator, also within other types.

    Source: Spark's NormalizeFloatingNumbers and InsertMapSortInGroupingExpressions.
    """

    GIVEN = "given"
    """They stay as they are."""
    NUMBERS = "numbers"
    """Every NaN is one, and -0.0 is 0.0: where Spark drops duplicates, since release 4.2."""
    GROUPED = "grouped"
    """Maps have their entries in the order of their keys as well: where it aggregates or joins."""


def normalized(column: Any, kind: SparkType, form: KeyForm) -> Any:
    """Return keys in a form; of maps, Spark leaves the numbers of keys as they are.

    Args:
        column: Of the type.
        kind: The type.
        form: The form.
    """
    import pyarrow.compute as pc

    if form is KeyForm.GIVEN or not _has_forms(kind):
        return column
    if kind.kind in _FLOATING:
        # Adding 0.0 makes 0.0 of -0.0 and leaves every other number.
        found = pc.add(column, pa.scalar(0.0, column.type))
        return pc.if_else(pc.is_nan(found), pa.scalar(float("nan"), column.type), found)
    if kind.kind == "struct":
        children = [
            normalized(part, of, form)
            for part, of in zip(column.flatten(), kind.types, strict=True)
        ]
        fields = list(column.type)
        return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())
    mask = column.is_null()
    if kind.kind == "array":
        offsets = _offsets(column)
        values = normalized(column.flatten(), kind.types[0], form)
        return _made(pa.ListArray, column.type, mask, from_numpy(offsets, pa.int32()), values)
    entries = column.cast(_as_lists(column.type))
    offsets = _offsets(entries)
    keys, values = entries.flatten().flatten()
    if form is KeyForm.GROUPED:
        of_map = np.repeat(np.arange(len(column)), np.diff(offsets))
        order = from_numpy(np.lexsort((_ranks(keys, kind.types[0]), of_map)), pa.int64())
        keys, values = keys.take(order), values.take(order)
    values = normalized(values, kind.types[1], form)
    parts = from_numpy(offsets, pa.int32()), keys, values
    return _made(pa.MapArray, column.type, mask, *parts)


def _has_forms(kind: SparkType) -> bool:
    return kind.kind in (*_FLOATING, "map") or any(map(_has_forms, kind.types))


def _offsets(lists: Any) -> npt.NDArray[np.int32]:
    """Return where each list begins among the elements of all, and where the last one ends."""
    import pyarrow.compute as pc

    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.append(0, np.cumsum(counts)).astype(np.int32)


def _ranks(column: Any, kind: SparkType) -> npt.NDArray[np.int64]:
    """Return numbers that sort as Spark sorts a column: nulls first, NaN last."""
    import pyarrow.compute as pc

    found: Any
    if kind.kind == "void":
        found = np.zeros(len(column), np.int64)
    elif kind.kind == "year-month interval":
        found = to_numpy(column, INTERVAL)["months"].astype(np.int64)
    elif kind.kind in ("struct", "array"):
        keys: list[tuple[int, ...]]
        if kind.kind == "struct":
            parts = map(_ranks, column.flatten(), kind.types)
            keys = list(zip(*(part.tolist() for part in parts), strict=True)) or [()] * len(column)
        else:
            elements = _ranks(column.flatten(), kind.types[0]).tolist()
            keys = [tuple(elements[one:end]) for one, end in pairwise(_offsets(column).tolist())]
        places = {key: place for place, key in enumerate(sorted({*keys}))}
        found = np.array([places[key] for key in keys], np.int64)
    else:
        found = pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(unpack(column.is_null()), np.iinfo(np.int64).min, found)
