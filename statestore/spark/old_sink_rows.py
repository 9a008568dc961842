"""What a file sink has of the batches that the old code ran, to be compared with the new code's."""

from __future__ import annotations

import json
import posixpath
import re
import urllib.parse
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.text_files import read_text
from statestore.codec.spark_types import distinct_names
from statestore.core.errors import NotFoundError
from statestore.io.local import temporary_directory
from statestore.io.storage import hadoop_uri
from statestore.spark.driver_session import qualified

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from statestore.io.file_io import FileIO
    from statestore.io.place import Place

_SELF_DESCRIBING = ("parquet", "orc", "avro")
FILE_SINKS = (*_SELF_DESCRIBING, "csv", "json", "text")
_PARTITION = re.compile(r"/([^/=]+)=[^/]*(?=/)")
"""Name of a column in the path of a file."""
_WHOLE = "_SUCCESS"
"""The file that Spark writes last."""


def write_rows(rows: DataFrame, to: str) -> None:
    """Write rows to a directory as Parquet, to be compared.

    A frame that `foreachBatch` takes may be none that Parquet does: a column whose name is there
    already, by the session's rule of case, gets a number; what has no type, and intervals of the
    calendar are written as text.
    """
    from pyspark.sql.functions import col

    conf = rows.sparkSession.conf
    # Times as Arrow has them: in the form that is the default those far off do not fit.
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # A variant in one piece: how it is taken apart depends on the rows beside it.
    conf.set("spark.sql.variant.writeShredding.enabled", "false")
    folded = str if conf.get("spark.sql.caseSensitive") == "true" else str.lower
    distinct = distinct_names([folded(name) for name in rows.columns])
    rows = rows.toDF(
        *(
            name if folded(name) == made else made
            for name, made in zip(rows.columns, distinct, strict=True)
        )
    )
    for field in rows.schema:
        kind = _in_parquet(field.dataType)
        if kind != field.dataType:
            name = field.name.replace("`", "``")
            rows = rows.withColumn(field.name, col(f"`{name}`").cast(kind))
    rows.write.mode("overwrite").parquet(to)


def _in_parquet(kind: DataType) -> DataType:
    """Return the type as which Parquet can hold one."""
    from pyspark.sql import types

    match kind:
        case types.NullType() | types.CalendarIntervalType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(_in_parquet(kind.elementType), kind.containsNull)
        case types.MapType():
            key, value = _in_parquet(kind.keyType), _in_parquet(kind.valueType)
            return types.MapType(key, value, kind.valueContainsNull)
        case types.StructType():
            return types.StructType(
                [
                    types.StructField(of.name, _in_parquet(of.dataType), of.nullable, of.metadata)
                    for of in kind
                ]
            )
    return kind


def keep_old(
    batches: Iterable[int], place: Place, frame: DataFrame, form: str, given: Mapping[str, str]
) -> None:
    """Write the rows that a file sink has of some batches to where they are compared.

    Of a batch that its log does not tell apart any more there are none.

    Args:
        batches: The batches.
        place: Directory for the rows, by batch.
        frame: What the query gives its sink.
        form: The sink's format, one of FILE_SINKS.
        given: Options of the sink, by key in lower case; `path` is one.
    """
    session = frame.sparkSession.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    zone = "spark.sql.session.timeZone"
    session.conf.set(zone, str(frame.sparkSession.conf.get(zone)))
    for key, value in frame.sparkSession.conf.getAll.items():
        if not key.startswith("spark."):  # of Hadoop's file systems
            session.conf.set(key, value)
    options = dict(given)
    path = qualified(options.pop("path"), frame.sparkSession)
    found: dict[int, list[str]] = {}
    with temporary_directory() as fetched:
        io, directory = place.open(fetched)
        kept = {
            int(name)
            for name in io.list_directories(directory)
            if any(info.name == _WHOLE for info in io.list(f"{directory}/{name}"))
        }
        log = _SinkLog(*place.beside(path).open(fetched))
        for batch in batches:
            files = None if batch in kept else log.files_of(batch)
            if files is not None:
                found[batch] = files
    for batch, files in found.items():
        reader = session.read.format(form).options(**options).option("basePath", hadoop_uri(path))
        if not files:
            rows = session.createDataFrame([], frame.schema)
        else:
            top = f"/{posixpath.basename(path.rstrip('/'))}/"
            below = (f"/{file.rpartition(top)[2]}" for file in files)
            partitions = {name for file in below for name in _PARTITION.findall(file)}
            if form in ("csv", "json"):
                schema = _old_schema(form, options, reader, files, frame.schema, partitions)
                rows = reader.schema(schema).load(files)
            elif form in _SELF_DESCRIBING:
                rows = reader.load(files)
                # Of these Spark has texts, in names of directories.
                for field in frame.schema:
                    if field.name in partitions:
                        rows = rows.withColumn(field.name, rows[field.name].cast(field.dataType))
            else:
                rows = reader.schema(frame.schema).load(files)
        write_rows(rows, f"{hadoop_uri(place.uri)}/{batch}")


def _old_schema(
    form: str,
    options: Mapping[str, str],
    reader: Any,
    files: list[str],
    new: StructType,
    partitions: set[str],
) -> StructType:
    """Return the schema by which text files of the old code are read, to be compared with the new.

    It is the new one, so that values are equal where they are. What only the old has stands there
    as well; and what the old wrote in another way has the type that is inferred from its text.
    """
    from pyspark.sql.types import StructField, StructType

    is_json = form == "json"
    # In JSON a column that is always null need not be there.
    inference = {"dropFieldIfAllNull": "true"} if is_json else {"inferSchema": "true"}
    found = reader.options(**inference).load(files).schema
    fields = [field for field in found if field.name not in partitions]
    if is_json:
        old = _merged(StructType(fields), StructType([f for f in new if f.name not in partitions]))
    else:
        names = [field.name for field in new if field.name not in partitions]
        if options.get("header", "").lower() != "true":
            fields = [
                StructField(name, field.dataType)
                for name, field in zip(
                    [*names, *(field.name for field in fields[len(names) :])], fields, strict=False
                )
            ]
        known = {field.name: field for field in new}
        old = StructType(
            [
                StructField(field.name, _merged(field.dataType, known[field.name].dataType, "text"))
                if field.name in known
                else field
                for field in fields
            ]
        )
    return StructType([*old, *(field for field in new if field.name in partitions)])


def _merged(old: Any, new: Any, never: str = "") -> Any:
    """Return the type by which a text is read that was written as one type, and now as another.

    Args:
        old: As it is inferred from the text.
        new: Of the new code.
        never: Kind of types of which the text says nothing.
    """
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(old, StructType) and isinstance(new, StructType):
        known = {field.name: field.dataType for field in old}
        both = [
            StructField(field.name, _merged(known[field.name], field.dataType))
            if field.name in known
            else field
            for field in new
        ]
        names = {field.name for field in new}
        return StructType([*both, *(field for field in old if field.name not in names)])
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_merged(old.elementType, new.elementType))
    kinds = _kind(old), _kind(new)
    is_otherwise = kinds == ("integer", "fraction") or (kinds[0] != "text" and kinds[1] == "text")
    return old if is_otherwise and never not in kinds else new


def _kind(of: Any) -> str:
    """Return how values of a type are written in JSON and CSV."""
    from pyspark.sql import types

    match of:
        case types.ByteType() | types.ShortType() | types.IntegerType() | types.LongType():
            return "integer"
        case types.DecimalType():
            return "fraction" if of.scale else "integer"
        case types.FloatType() | types.DoubleType():
            return "fraction"
        case types.BooleanType():
            return "boolean"
        case types.ArrayType() | types.StructType() | types.MapType():
            return "nested"
        case types.VariantType():
            return "any"
        case types.UserDefinedType():
            return _kind(of.sqlType())
    return "text"


class _SinkLog:
    """The log of Spark's file sink: which files each batch added."""

    def __init__(self, io: FileIO, path: str) -> None:
        self._io = io
        self._directory = f"{path}/_spark_metadata"

    def files_of(self, batch: int) -> list[str] | None:
        """Return the files of a batch, None where the log does not tell them apart."""
        own = self._added(str(batch))
        if own is not None:
            return own
        up_to = self._added(f"{batch}.compact")
        if up_to is None:
            return None
        before: set[str] = set()
        for earlier in range(batch - 1, -1, -1):
            own = self._added(str(earlier))
            if own is not None:
                before.update(own)
                continue
            all_before = self._added(f"{earlier}.compact")
            if all_before is None:
                return None
            before.update(all_before)
            break
        return [file for file in up_to if file not in before]

    def _added(self, name: str) -> list[str] | None:
        try:
            lines = read_text(self._io, f"{self._directory}/{name}").splitlines()
        except NotFoundError:
            return None
        entries = [json.loads(line) for line in lines[1:]]
        return [
            urllib.parse.unquote(entry["path"]) for entry in entries if entry["action"] == "add"
        ]
