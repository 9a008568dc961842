"""Values of Arrow as those of Python, also where Python has none."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa


def time_text(value: int, unit: Literal["s", "ms", "us", "ns"] = "us") -> str:
    """Return a time, in units since 1970, in the form of ISO 8601, of whatever year."""
    if (value, unit) == (-(1 << 63), "us"):  # to numpy this is no time
        return "-290308-12-21T19:59:05.224192"
    return str(np.datetime64(value, unit))


def to_pylist(values: pa.Array[Any] | pa.ChunkedArray[Any] | pa.RecordBatch | pa.Table) -> Any:
    """Return what `values.to_pylist()` does: a value, or a row as a dict, each.

    Dates and timestamps of years that Python's types do not reach, before 1 or after 9999, are
    texts in the form of ISO 8601; so are timestamps with nanoseconds, without pandas. Bytes of a
    text that are not UTF-8 are escaped, as Python does with "backslashreplace".
    """
    try:
        return values.to_pylist()
    except (OverflowError, ValueError):  # of UTF-8, too
        if isinstance(values, pa.RecordBatch | pa.Table):
            names = values.schema.names
            columns = map(to_pylist, values.columns)
            return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return [_value(each) for each in values]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        kind = scalar.type
        if pa.types.is_string(kind):
            return scalar.as_buffer().to_pybytes().decode(errors="backslashreplace")
        if pa.types.is_struct(kind):
            return {name: _value(scalar[at]) for at, name in enumerate(kind.names)}
        if pa.types.is_map(kind):
            keys, values = (to_pylist(scalar.values.field(at)) for at in (0, 1))
            return list(zip(keys, values, strict=True))
        if pa.types.is_list(kind):
            return to_pylist(scalar.values)
        if pa.types.is_timestamp(kind):
            zone = "" if kind.tz is None else "Z"
            return f"{time_text(scalar.value, kind.unit)}{zone}"
        if pa.types.is_date32(kind):
            return str(np.datetime64(scalar.value, "D"))
        raise
