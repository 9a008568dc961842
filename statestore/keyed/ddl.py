"""The columns that DDL names, as Spark's types: `"count BIGINT, sum BIGINT"`.

Spark's parser runs in a JVM, so a program has it where it has a session. Without one, as in a test
by `statestore.testing.keyed_harness`, sqlglot reads the same grammar in Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from pyspark.errors import ParseException
from pyspark.sql import types as sql
from pyspark.sql.utils import is_remote

from statestore.core.errors import InvalidArgumentError

_SCALARS = {
    "BIGINT": sql.LongType(),
    "INT": sql.IntegerType(),
    "SMALLINT": sql.ShortType(),
    "TINYINT": sql.ByteType(),
    "DOUBLE": sql.DoubleType(),
    "FLOAT": sql.FloatType(),
    "BOOLEAN": sql.BooleanType(),
    "TEXT": sql.StringType(),
    "BINARY": sql.BinaryType(),
    "DATE": sql.DateType(),
    "TIMESTAMPTZ": sql.TimestampType(),
    "TIMESTAMPLTZ": sql.TimestampType(),
    "TIMESTAMPNTZ": sql.TimestampNTZType(),
}
"""By sqlglot's names."""


def parse_ddl(ddl: str) -> sql.StructType:
    """Return the columns that DDL names.

    Raises:
        InvalidArgumentError: It names none; or no session is there, and sqlglot is not installed,
            or does not know a type.
    """
    try:
        if is_remote() or _has_context():
            parsed: Any = sql.StructType.fromDDL(ddl)
        else:
            parsed = _without_spark(ddl)
    except ParseException as error:
        raise _unreadable(ddl) from error
    if not isinstance(parsed, sql.StructType):
        raise _unreadable(ddl)
    return parsed


def _has_context() -> bool:
    from pyspark import SparkContext  # which a client of Spark Connect does not have

    return cast("Any", SparkContext)._active_spark_context is not None  # noqa: SLF001


@lru_cache(maxsize=256)
def _without_spark(ddl: str) -> sql.DataType:
    try:
        from sqlglot import exp, parse_one
        from sqlglot.errors import SqlglotError
    except ImportError as error:
        raise InvalidArgumentError(
            "types are read by Spark, or by sqlglot where no session is there",
            to_fix="pip install 'statestore[testing]'",
            type=ddl,
        ) from error
    try:
        parsed = parse_one(f"STRUCT<{ddl}>", into=exp.DataType, dialect="spark")
    except SqlglotError as error:
        raise _unreadable(ddl) from error
    return _type_of(parsed, ddl)


def _type_of(parsed: Any, ddl: str) -> sql.DataType:
    """Return the type of Spark that sqlglot has parsed."""
    name = getattr(parsed.this, "value", "")
    inner = parsed.expressions
    if name == "STRUCT":
        return sql.StructType([_field_of(each, ddl) for each in inner])
    if name == "ARRAY":
        return sql.ArrayType(_type_of(inner[0], ddl))
    if name == "MAP":
        return sql.MapType(_type_of(inner[0], ddl), _type_of(inner[1], ddl))
    if name == "DECIMAL":
        return sql.DecimalType(*(int(each.name) for each in inner))
    if name not in _SCALARS or inner:
        raise InvalidArgumentError(
            "a type is only read where a session of Spark is there",
            to_fix="start one before, or take another type",
            type=parsed.sql("spark"),
            of=ddl,
        )
    return _SCALARS[name]


def _field_of(parsed: Any, ddl: str) -> sql.StructField:
    kind = parsed.args.get("kind")
    if kind is None:
        raise _unreadable(ddl)
    words = [each.kind.key for each in parsed.args.get("constraints", ())]
    return sql.StructField(parsed.name, _type_of(kind, ddl), "notnullcolumnconstraint" not in words)


def _unreadable(ddl: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the DDL cannot be read", to_fix='name columns, "name TYPE, …"', type=ddl
    )
