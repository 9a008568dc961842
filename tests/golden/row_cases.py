"""Values of every data type, as SQL and as Python, for rows that Spark wrote and we read.

`spark_rows` asks Spark for their bytes and hashes, which `rows.json` keeps; needs a session.
"""

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

from pyarrow import MonthDayNano

ROWS_PATH = Path(__file__).parent / "rows.json"

LONG_TEXT = "zwölf Boxkämpfer jagen Viktor"
BIG = Decimal("12345678901234567890123456.789")

# Name, data type, values as (SQL, Python). Every case also has a null, in the middle.
CASES = [
    ("boolean", "BOOLEAN", [("true", True), ("false", False)]),
    ("byte", "TINYINT", [("-128", -128), ("127", 127), ("0", 0)]),
    ("short", "SMALLINT", [("-32768", -32768), ("32767", 32767)]),
    ("integer", "INT", [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1), ("7", 7)]),
    ("long", "BIGINT", [("-9223372036854775808L", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    (
        "float",
        "FLOAT",
        [("'-0.0'", -0.0), ("0.0", 0.0), ("1.5", 1.5), ("'-Infinity'", -float("inf"))],
    ),
    ("double", "DOUBLE", [("-0.0D", -0.0), ("0.0D", 0.0), ("-2.25", -2.25), ("1e300", 1e300)]),
    ("nan", "DOUBLE", [("'NaN'", float("nan"))]),
    ("float-nan", "FLOAT", [("'NaN'", float("nan"))]),
    (
        "string",
        "STRING",
        [("''", ""), *((f"'{LONG_TEXT[:size]}'", LONG_TEXT[:size]) for size in range(1, 29))],
    ),
    (
        "binary",
        "BINARY",
        [
            ("X''", b""),
            ("X'FF'", b"\xff"),
            ("X'80FF00'", b"\x80\xff\0"),
            ("X'0102030405060780FE'", b"\1\2\3\4\5\6\7\x80\xfe"),
        ],
    ),
    ("date", "DATE", [("'1969-12-31'", date(1969, 12, 31)), ("'2024-02-29'", date(2024, 2, 29))]),
    (
        "timestamp",
        "TIMESTAMP",
        [
            ("'1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
            ("'2024-02-29 12:00:00.000001'", datetime(2024, 2, 29, 12, 0, 0, 1, UTC)),
        ],
    ),
    (
        "timestamp-ntz",
        "TIMESTAMP_NTZ",
        [("'2024-02-29 12:00:00.000001'", datetime(2024, 2, 29, 12, 0, 0, 1))],  # noqa: DTZ001
    ),
    ("time", "TIME(6)", [("'23:59:59.999999'", time(23, 59, 59, 999999)), ("'00:00:00'", time(0))]),
    (
        "decimal-small",
        "DECIMAL(18,4)",
        [("-99999999999999.9999", Decimal("-99999999999999.9999")), ("0.0001", Decimal("0.0001"))],
    ),
    (
        "decimal-large",
        "DECIMAL(38,3)",
        [
            ("0", Decimal("0.000")),
            ("-0.001", Decimal("-0.001")),
            ("0.127", Decimal("0.127")),
            ("0.128", Decimal("0.128")),
            ("-0.128", Decimal("-0.128")),
            ("-0.129", Decimal("-0.129")),
            (f"{BIG}", BIG),
            (f"-{BIG}", BIG.copy_negate()),
            ("9" * 35 + ".999", Decimal("9" * 35 + ".999")),
            ("-" + "9" * 35 + ".999", Decimal("-" + "9" * 35 + ".999")),
        ],
    ),
    (
        "year-month-interval",
        "INTERVAL YEAR TO MONTH",
        [
            ("INTERVAL '-1-2' YEAR TO MONTH", MonthDayNano([-14, 0, 0])),
            ("INTERVAL '3-0' YEAR TO MONTH", MonthDayNano([36, 0, 0])),
        ],
    ),
    (
        "day-time-interval",
        "INTERVAL DAY TO SECOND",
        [
            ("INTERVAL '-1 00:00:00.000001' DAY TO SECOND", -timedelta(days=1, microseconds=1)),
            ("INTERVAL '2 03:04:05' DAY TO SECOND", timedelta(2, 3 * 3600 + 4 * 60 + 5)),
        ],
    ),
    (
        "interval",
        "INTERVAL",
        [("make_interval(1, 2, 0, 3, 0, 0, -4.000005)", MonthDayNano([14, 3, -4_000_005_000]))],
    ),
    ("void", "VOID", [("NULL", None)]),
    ("variant", "VARIANT", [("parse_json('12')", {"value": b"\x0c\x0c", "metadata": b"\1\0\0"})]),
    ("char", "CHAR(3)", [("'abc'", "abc")]),
    (
        "struct",
        "STRUCT<a: INT, b: STRING, c: STRUCT<d: DECIMAL(20,0), e: VOID>>",
        [
            (
                "named_struct('a', 1, 'b', 'x', 'c', named_struct('d', -5, 'e', NULL))",
                {"a": 1, "b": "x", "c": {"d": Decimal(-5), "e": None}},
            ),
            ("named_struct('a', NULL, 'b', 'yé', 'c', NULL)", {"a": None, "b": "yé", "c": None}),
        ],
    ),
    (
        "array",
        "ARRAY<INT>",
        [
            ("array()", []),
            ("array(1, NULL, -3)", [1, None, -3]),
            ("sequence(0, 69)", list(range(70))),
        ],
    ),
    ("array-of-booleans", "ARRAY<BOOLEAN>", [("array(true, NULL, false)", [True, None, False])]),
    ("array-of-shorts", "ARRAY<SMALLINT>", [("array(1, -2, 3)", [1, -2, 3])]),
    (
        "array-of-strings",
        "ARRAY<STRING>",
        [("array('a', NULL, 'longer than a word', '')", ["a", None, "longer than a word", ""])],
    ),
    (
        "array-of-structs",
        "ARRAY<STRUCT<p: DOUBLE, q: ARRAY<STRING>>>",
        [
            (
                "array(named_struct('p', 1.5D, 'q', array('s')), NULL, "
                "named_struct('p', NULL, 'q', array()))",
                [{"p": 1.5, "q": ["s"]}, None, {"p": None, "q": []}],
            ),
            ("array()", []),
        ],
    ),
    (
        "array-of-arrays",
        "ARRAY<ARRAY<BIGINT>>",
        [("array(array(1L, 2L), NULL, array(), array(3L))", [[1, 2], None, [], [3]])],
    ),
    (
        "map",
        "MAP<STRING, INT>",
        [("map('k', 1, 'key two', NULL)", [("k", 1), ("key two", None)]), ("map()", [])],
    ),
    (
        "map-of-maps",
        "MAP<INT, MAP<STRING, DECIMAL(30,2)>>",
        [
            (
                "map(1, map('x', 1.50), 2, NULL, 3, map())",
                [(1, [("x", Decimal("1.50"))]), (2, None), (3, [])],
            )
        ],
    ),
]
NOT_HASHED = ("variant",)
WIDE_COLUMNS = 70

# Encoder, key columns as DDL, what its spec takes, rows as (SQL of each column) and Python.
KEYS = [
    (
        "prefix",
        "key STRUCT<word: STRING>, userKey STRUCT<n: INT>",
        1,
        [
            ("named_struct('word', 'a b'), named_struct('n', 3)", ({"word": "a b"}, {"n": 3})),
            ("named_struct('word', NULL), named_struct('n', -1)", ({"word": None}, {"n": -1})),
        ],
    ),
    (
        "range",
        "at BIGINT, key STRUCT<word: STRING>",
        [0],
        [
            ("-5L, named_struct('word', 'a word')", (-5, {"word": "a word"})),
            ("0L, named_struct('word', '')", (0, {"word": ""})),
            ("NULL, named_struct('word', 'x')", (None, {"word": "x"})),
        ],
    ),
    (
        "range",
        "y TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, rest STRING",
        [5, 4, 3, 2, 1, 0],
        [
            (
                "-1Y, -2S, -3, -4L, float(-1.5), -2.5D, 'r'",
                (-1, -2, -3, -4, -1.5, -2.5, "r"),
            ),
            (
                "1Y, 2S, 3, 4L, float(1.5), 2.5D, NULL",
                (1, 2, 3, 4, 1.5, 2.5, None),
            ),
            (", ".join(["NULL"] * 6) + ", 'x'", (*[None] * 6, "x")),
        ],
    ),
    ("range", "a INT, b INT", [0, 1], [("1, -2", (1, -2)), ("NULL, 5", (None, 5))]),
    (
        "timestamp-prefix",
        "word STRING, __event_time BIGINT",
        None,
        [("'a', -5L", ("a", -5)), ("NULL, 7L", (None, 7))],
    ),
    (
        "timestamp-postfix",
        "word STRING, __event_time BIGINT",
        None,
        [("'a', -5L", ("a", -5)), ("NULL, 7L", (None, 7))],
    ),
]  # fmt: skip


def with_null(values):
    """Return the values of a case with a null in the middle."""
    middle = (len(values) + 1) // 2
    return [*values[:middle], ("NULL", None), *values[middle:]]


def spark_rows(spark):
    """Return what Spark makes of all cases: schemas as its JSON, rows and key bytes as hex.

    All cases are structs and hashes of one row, and a struct within a row is an UnsafeRow itself.
    """
    spark.conf.set("spark.sql.legacy.allowHashOnMapType", "true")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    expressions = [_wide()]
    for name, ddl, values in CASES:
        for sql, _ in with_null(values):
            value = sql if ddl in ("VOID", "VARIANT", "INTERVAL") else f"CAST({sql} AS {ddl})"
            hashed = "0" if name in NOT_HASHED else f"hash({value})"
            expressions.append((f"named_struct('c', {value})", hashed))
    for _, ddl, _, rows in KEYS:
        for sql, _ in rows:
            columns = [
                f"'{part.split()[0]}', CAST({value} AS {part.split(None, 1)[1]})"
                for part, value in zip(split_ddl(ddl), split_ddl(sql), strict=True)
            ]
            expressions.append((f"named_struct({', '.join(columns)})", "0"))
    found = _evaluate(spark, expressions)
    rows = {"wide": _golden([next(found)])}
    rows |= {name: _golden([next(found) for _ in with_null(v)]) for name, _, v in CASES}
    keys = [_keys(spark, encoder, argument, [next(found) for _ in values])
            for encoder, _, argument, values in KEYS]  # fmt: skip
    return {"rows": rows, "keys": keys}


def _wide():
    columns = [
        f"CAST({'NULL' if n % 3 == 0 else n} AS {'STRING' if n % 2 else 'INT'})"
        for n in range(WIDE_COLUMNS)
    ]
    named = ", ".join(f"'c{n}', {column}" for n, column in enumerate(columns))
    return f"named_struct({named})", f"hash({', '.join(columns)})"


def _evaluate(spark, expressions):
    """Yield (schema, UnsafeRow, hash) of each pair of a struct and a hash."""
    columns = [column for pair in expressions for column in pair]
    frame = spark.sql("SELECT " + ", ".join(f"{c} AS c{n}" for n, c in enumerate(columns)))
    (row,) = frame._jdf.queryExecution().executedPlan().executeCollect()
    for place in range(0, len(columns), 2):
        kind = frame.schema[place].dataType
        # Of this one value; others of its type may be null.
        schema = kind.json().replace('"nullable":false', '"nullable":true')
        yield schema, row.getStruct(place, len(kind)), row.getInt(place + 1)


def _golden(found):
    return {
        "schema": found[0][0],
        "bytes": [bytes(row.getBytes()).hex() for _, row, _ in found],
        "hashes": [hashed for _, _, hashed in found],
    }


def _keys(spark, encoder, argument, found):
    state = spark._jvm.org.apache.spark.sql.execution.streaming.state
    text = found[0][0]
    schema = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(text)
    if encoder == "prefix":
        spec = state.PrefixKeyScanStateEncoderSpec(schema, argument)
    elif encoder == "range":
        ordinals = spark._jvm.PythonUtils.toSeq(argument)
        spec = state.RangeKeyScanStateEncoderSpec(schema, ordinals)
    elif encoder == "timestamp-prefix":
        spec = state.TimestampAsPrefixKeyStateEncoderSpec(schema)
    else:
        spec = state.TimestampAsPostfixKeyStateEncoderSpec(schema)
    coder = spec.toEncoder(state.UnsafeRowDataEncoder(spec, schema), True)
    encoded = [bytes(coder.encodeKey(row)).hex() for _, row, _ in found]
    return {"schema": text, "bytes": encoded}


def split_ddl(text):
    """Split at the commas that are not in brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def write_rows(spark):
    ROWS_PATH.write_text(json.dumps(spark_rows(spark), indent=1) + "\n")
