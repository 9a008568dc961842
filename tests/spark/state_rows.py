"""The rows of a lane's state, as Python reads them and as Spark's state reader does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import CalendarIntervalType, StructField, StructType, YearMonthIntervalType

from statestore import Checkpoint

from .harness import STATE_STORE, Lane

SCHEMA_CHECK = f"{STATE_STORE}.stateSchemaCheck"
NOT_IN_ARROW = (CalendarIntervalType, YearMonthIntervalType)
"""Spark's `toArrow` has no type for them; tests/unit/test_row_decoding.py has."""


def assert_read(lane: Lane, batch: int | None = None) -> int:
    """Python reads the rows and types of every store that Spark's state reader does.

    Args:
        lane: Whose checkpoint.
        batch: The version that it made; None for the newest.

    Returns:
        How many rows there are.
    """
    if lane.conf.get(SCHEMA_CHECK) == "false":
        # Spark's reader needs a schema file, which Spark has not written.
        indexed = [f"{side}-keyWithIndexToValue" for side in ("left", "right")]
        tables = [Checkpoint(lane.checkpoint).rows(store).read() for store in indexed]
        total = sum(table.num_rows for table in tables)
        assert [total] == lane.counts("numRowsTotal")[max(lane.batches)]
        return total
    spark = lane.session()
    operators = spark.read.format("state-metadata").load(str(lane.checkpoint)).collect()
    assert operators
    num_rows = 0
    at = {} if batch is None else {"batchId": batch}
    for operator in operators:
        place = {"operatorId": operator.operatorId, "storeName": operator.stateStoreName}
        frame = spark.read.format("statestore").options(**place, **at).load(str(lane.checkpoint))
        address = f"{operator.operatorId}/{operator.stateStoreName}"
        version = None if batch is None else batch + 1
        found = Checkpoint(lane.checkpoint).rows(address, version=version).read()
        table = address if version is None else f"{address}@{version}"
        by_sql = Checkpoint(lane.checkpoint).sql(f'SELECT * FROM "{table}"').read()
        assert found.column_names == by_sql.column_names == frame.columns
        for column in ("key", "value"):
            names = found.schema.field(column).type.names
            fields = frame.schema[column].dataType.fields
            kinds = {name: field.dataType for name, field in zip(names, fields, strict=True)}
            renamed = StructType([StructField(name, kind) for name, kind in kinds.items()])
            unknown = [name for name, kind in kinds.items() if isinstance(kind, NOT_IN_ARROW)]
            frame = frame.withColumn(column, frame[column].cast(renamed))
            if unknown:
                frame = frame.withColumn(column, frame[column].dropFields(*unknown))
        expected = frame.toArrow()
        assert _rows(found, expected.schema) == _rows(expected, expected.schema)
        assert _rows(by_sql, found.schema) == _rows(found, found.schema)
        num_rows += found.num_rows
    return num_rows


def _of_sql(value: Any) -> Any:
    """Return a value as SQL has it, whose intervals are all of one type."""
    if isinstance(value, timedelta):
        return pa.MonthDayNano((0, 0, value // timedelta(microseconds=1) * 1000))
    return value


def _rows(table: pa.Table, schema: pa.Schema) -> list[str]:
    """Return rows as text, of structs only the fields that a schema names."""
    return sorted(
        repr(
            [
                {name: _of_sql(value[name]) for name in schema.field(column).type.names}
                if isinstance(value, dict)
                else value
                for column, value in row.items()
            ]
        )
        for row in table.to_pylist()
    )
