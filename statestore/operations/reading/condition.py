"""Rows that a condition in SQL wants, such as `shop = 'x'`, as DuckDB understands it.

A condition is parsed, and only what is listed here may be in it: comparisons, logic, arithmetic,
casts, and functions that see one row. Every name in it is resolved here, by the schema of what is
read, and DuckDB never sees it: to DuckDB `user` is a function when there is no such column.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import unpack
from statestore.codec.rows import from_numpy
from statestore.core.errors import InvalidArgumentError
from statestore.operations.database import expressions_of, open_database, parsed
from statestore.operations.reading.lookup import Asked, demand_of
from statestore.operations.reading.names import ColumnPath, find_path, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pyarrow.compute as pc

    from statestore.operations.reading.lookup import Names, Path

    Node = dict[str, Any]

_PRINT = "SELECT json_deserialize_sql(?)"
_TABLE = "state"

_ALLOWED = {
    "BETWEEN": None,
    "CASE": None,
    "CAST": None,
    "COLUMN_REF": None,
    "COMPARISON": None,
    "CONJUNCTION": None,
    "CONSTANT": None,
    "FUNCTION": None,
    "OPERATOR": {
        "ARRAY_CONSTRUCTOR",
        "ARRAY_EXTRACT",
        "ARRAY_SLICE",
        "COMPARE_IN",
        "COMPARE_NOT_IN",
        "OPERATOR_COALESCE",
        "OPERATOR_IS_NOT_NULL",
        "OPERATOR_IS_NULL",
        "OPERATOR_NOT",
        "OPERATOR_TRY",
        "STRUCT_EXTRACT",
    },
    "TYPE": None,
}
"""Classes of DuckDB's tree, and the types of those of which some are not allowed."""

_NAMES = """
+ - * / // % ** ^ & | << >> || ~ ~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape
not_ilike_escape
abs ceil ceiling floor round trunc sign sqrt cbrt mod power pow ln log log10 log2 exp greatest
least isnan isinf isfinite bit_count
lower upper lcase ucase length len char_length strlen octet_length trim ltrim rtrim lpad rpad
substr substring left right contains starts_with ends_with prefix suffix instr strpos position
replace reverse concat concat_ws translate ascii unicode chr string_split str_split
regexp_matches regexp_full_match regexp_extract regexp_replace
md5 sha1 sha256 hash hex unhex to_hex from_hex base64 to_base64 from_base64 encode decode
year month day hour minute second millisecond microsecond quarter week weekday dayofweek isodow
dayofmonth dayofyear isoyear yearweek dayname monthname last_day date_part datepart date_trunc
datetrunc date_diff datediff date_sub datesub epoch epoch_ms epoch_us epoch_ns to_timestamp
make_date make_time make_timestamp make_timestamptz strftime strptime try_strptime timezone
time_bucket to_years to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds
to_microseconds
list_value list_pack array_value list_contains list_has array_contains array_has list_has_any
list_has_all list_position list_extract array_extract list_element element_at array_length
list_distinct list_sort list_concat cardinality map map_extract map_extract_value map_keys
map_values map_contains row struct_pack struct_extract
"""
_FUNCTIONS = frozenset(_NAMES.split())
"""Functions whose result depends on their arguments alone, of one row, and on nothing else."""

_SHAPES = re.compile(
    r"(?P<number>\bU?(TINY|SMALL|BIG|HUGE)INT\b|\bU?INTEGER\b|\bFLOAT\b|\bDOUBLE\b|"
    r"\bDECIMAL\([0-9]+,[0-9]+\))|(?P<moment>\bDATE\b|\bTIMESTAMP( WITH TIME ZONE|_[A-Z]+)?\b)"
    r"|(?P<time>\bTIME(_[A-Z]+)?\b)"
)
"""Types that may be compared with each other, by the name of their group."""
_TYPED_AS_TEXT = {"VARCHAR", "moment", "time", "INTERVAL"}
"""Types that text in single quotes may be compared with: DuckDB makes it one, or refuses it."""
_DAY, _ZONED = "DATE", "TIMESTAMP WITH TIME ZONE"
_CUTS = re.compile(f"{_DAY}|TIMESTAMP(_[A-Z]+)?")
"""Types that text becomes without its time of day, or its offset, and DuckDB says nothing."""
_CUT = """
    SELECT text FROM (SELECT unnest(?::VARCHAR[]) AS text)
    WHERE TRY_CAST(text AS TIMESTAMPTZ) <> TRY_CAST(TRY_CAST(text AS {}) AS TIMESTAMPTZ) LIMIT 1
"""
_EXACT = re.compile(r"U?(BIG|HUGE)INT|DECIMAL\((1[6-9]|[23][0-9]),(?P<scale>[0-9]+)\)")
"""Numbers with more digits than a DOUBLE has."""
_MOST_EXACT = 10**15
"""Numbers of fewer digits are each a DOUBLE of its own."""
_QUOTED = re.compile("""'[^']*'|"[^"]*\"""")
_TEXT, _BINARY, _LOGICAL, _NULL = "VARCHAR", "BLOB", "BOOLEAN", '"NULL"'


class Condition:
    """A condition over the columns of record batches and the fields of structs in them.

    A row is wanted where the condition is true; not where it is false or null. Times without a zone
    are in UTC.

    Args:
        text: The condition, what SQL has behind WHERE. Names are resolved by `find_path`.

    Raises:
        InvalidArgumentError: It is no condition; has a subquery, an aggregate, or a function that
            is not of one row; or names no column. Or DuckDB is not installed.
    """

    def __init__(self, text: str) -> None:
        # One thread, so that results come in the order of rows.
        self._database = open_database(threads=1)
        self._text = text
        self._statement = self._parsed()
        self._bound: tuple[pa.Schema, _Bound] | None = None
        _check(self._expression, text)
        if not any(node["class"] == "COLUMN_REF" for node in expressions_of(self._expression)):
            raise InvalidArgumentError(
                "no column occurs in a condition: it holds for all rows, or for none",
                condition=text,
                to_fix="compare a column with something, such as key.shop = 'x'",
            )

    @property
    def _expression(self) -> Node:
        found: Node = self._statement["statements"][0]["node"]["select_list"][0]
        return found

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch for which the condition holds, in order; errors as `rows`."""
        return batch.take(from_numpy(self.rows(batch), pa.int64()))

    def rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of a batch for which the condition holds, ascending.

        Raises:
            InvalidArgumentError: A name is that of no column or of several; the condition is not
                true or false; text is compared with a number; or a value cannot be cast.
        """
        bound = self.bind(batch.schema)
        if batch.num_rows == 0:
            return np.empty(0, np.int64)
        columns = [path.of(batch) for path in bound.paths]
        names = list(map(_column, range(len(columns))))
        self._database.register(_TABLE, pa.table(columns, names=names))
        try:
            found: Any = self._run(bound.sql).read_all().column(0).combine_chunks().cast(pa.bool_())
        except self._errors as error:
            raise self._refused(error) from error
        return np.flatnonzero(unpack(found.fill_null(False)))

    def bind(self, schema: pa.Schema) -> _Bound:
        """Resolve its names by a schema, and check the types of what it compares.

        Raises:
            InvalidArgumentError: As `rows`.
        """
        if self._bound is None or self._bound[0] != schema:
            self._bound = (schema, self._resolved(schema))
        return self._bound[1]

    def asked(self, schema: pa.Schema) -> Asked:
        """Return values that columns must have one of where the condition holds.

        Raises:
            InvalidArgumentError: As `rows`.
        """
        # Imported here because it takes long.
        from statestore.operations.reading.scanned import ScannedTable

        bound = self.bind(schema)
        names = list(map(_column, range(len(bound.paths))))
        empty = pa.schema(
            [pa.field(name, path.type) for name, path in zip(names, bound.paths, strict=True)]
        )
        asked = Asked()

        def scan(_: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
            if filter is not None:
                places: dict[Names, tuple[Path, pa.DataType]] = {
                    (name,): (path.ordinals, path.type)
                    for name, path in zip(names, bound.paths, strict=True)
                }
                asked.update(demand_of(filter).asked(places))
            return iter(())

        # DuckDB knows best what its own SQL asks of columns.
        self._database.register(_TABLE, ScannedTable(empty, scan))
        try:
            self._run(bound.filtered).read_all()
        except self._errors as error:
            raise self._refused(error) from error
        return asked

    def only_column(self, schema: pa.Schema) -> ColumnPath | None:
        """Return the column of a condition of the form `COLUMN IS NOT NULL`; None of another."""
        (path, *others) = self.bind(schema).paths
        expression = self._expression
        is_so = expression.get("type") == "OPERATOR_IS_NOT_NULL" and not others
        return path if is_so and expression["children"][0]["class"] == "COLUMN_REF" else None

    def _resolved(self, schema: pa.Schema) -> _Bound:
        known = paths_of(schema)
        bound = _Bound()
        copy = json.loads(json.dumps(self._statement))
        expression = copy["statements"][0]["node"]["select_list"][0]
        for node in expressions_of(expression):
            if node["class"] == "COLUMN_REF":
                path = find_path(known, node["column_names"], condition=self._text)
                if path not in bound.paths:
                    bound.paths.append(path)
                node["column_names"] = [_column(bound.paths.index(path))]
        empty = [pa.nulls(0).cast(path.type) for path in bound.paths]
        names = list(map(_column, range(len(empty))))
        self._database.register(_TABLE, pa.table(empty, names=names))
        try:
            self._check_types(copy, expression, bound.paths)
            bound.sql = self._printed(copy, [expression])
            copy["statements"][0]["node"]["where_clause"] = expression
            bound.filtered = self._printed(copy, [expression])
        except self._errors as error:
            raise self._refused(error) from error
        return bound

    def _check_types(self, statement: Node, expression: Node, paths: Sequence[ColumnPath]) -> None:
        """Check that only what is alike is compared: DuckDB casts `shop` in `shop = 7`."""
        groups: list[tuple[Node | None, list[Node]]] = [(None, [expression])]
        groups += [
            (node, compared) for node in expressions_of(expression) for compared in _alike(node)
        ]
        parts = [part for _, group in groups for part in group]
        types = iter(map(str, self._database.sql(self._printed(statement, parts)).types))
        of_months = {
            _column(number): path
            for number, path in enumerate(paths)
            if "month_day_nano_interval" in str(path.type)
        }
        for node, group in groups:
            of_group = [next(types) for _ in group]
            if node is None or node["class"] in ("CONJUNCTION", "CASE") or _is_not(node):
                self._require_logical(of_group, whole=node is None)
                continue
            if node["class"] != "CAST":
                self._refuse_months(group, of_group, of_months)
            if node["class"] == "FUNCTION" or node.get("type") == "ARRAY_EXTRACT":
                continue
            if node["class"] != "CAST":
                self._require_comparable(group, of_group)
            self._require_whole(group, of_group)

    def _require_logical(self, types: list[str], *, whole: bool) -> None:
        for kind in types:
            if kind not in (_LOGICAL, _NULL):
                raise InvalidArgumentError(
                    "a condition is neither true nor false"
                    if whole
                    else "a part of a condition is neither true nor false",
                    condition=self._text,
                    type=kind,
                    to_fix="compare it with something, such as value.count > 0",
                )

    def _require_comparable(self, group: list[Node], types: list[str]) -> None:
        """Check that text is compared with text, numbers with numbers, and so on."""
        shapes = {
            "literal" if _is_text(*one) else _shape(one[1])
            for one in zip(group, types, strict=True)
        }
        others = shapes - {"literal", _NULL}
        if len(others) > 1 or ("literal" in shapes and others - _TYPED_AS_TEXT):
            is_binary = others == {_BINARY}
            raise InvalidArgumentError(
                "values of different kinds are compared",
                condition=self._text,
                types=", ".join(types),
                to_fix="compare binary with the digits that `statestore read` shows, in capitals: "
                "hex(key.id) = '00FF'"
                if is_binary
                else "write numbers without quotes, and text in single quotes: '007' is not 7; "
                "or cast one of them",
            )
        numbers = [*map(_number, group)]
        exact = [
            found
            for number, kind in zip(numbers, types, strict=True)
            if number is None and (found := _EXACT.fullmatch(kind))
        ]
        digits = 10 ** max((int(found["scale"] or 0) for found in exact), default=0)
        for number, kind in zip(numbers, types, strict=True):
            if exact and number and kind == "DOUBLE" and abs(number) * digits >= _MOST_EXACT:
                raise InvalidArgumentError(
                    "a number is compared by its first digits alone: DuckDB takes it for a DOUBLE, "
                    "and neighbours of it are equal",
                    condition=self._text,
                    number=str(number),
                    types=", ".join(types),
                    to_fix="write it without an exponent, and with no more digits than the column "
                    "has; or cast the column: key.id::DOUBLE",
                )

    def _refuse_months(
        self, group: list[Node], types: list[str], of_months: dict[str, ColumnPath]
    ) -> None:
        """Check that no interval of months is compared: to DuckDB 1 month is 30 days."""
        for node, kind in zip(group, types, strict=True):
            named = [
                of_months[column]
                for part in expressions_of(node)
                if part["class"] == "COLUMN_REF"
                and (column := part["column_names"][0]) in of_months
            ]
            if named and "INTERVAL" in kind:
                raise InvalidArgumentError(
                    "an interval of months is compared: DuckDB takes a month for 30 days, and a "
                    "day for 24 hours",
                    condition=self._text,
                    column=str(named[0]),
                    types=", ".join(types),
                    to_fix="compare its parts: date_part('year', key.term) = 1 AND "
                    "date_part('month', key.term) = 2; also 'day', 'hour', 'minute', 'microsecond'",
                )

    def _require_whole(self, group: list[Node], types: list[str]) -> None:
        """Check that no text loses a time of day, or an offset, as it becomes a day or a time."""
        texts = [
            node["literal"].get("text", "")
            for node, of in zip(group, types, strict=True)
            if _is_text(node, of)
        ]
        kinds = {kind for kind in types if _CUTS.fullmatch(kind)}
        if _ZONED in types or not texts:  # what is compared becomes the widest type there is
            return
        for kind in kinds - {_DAY} or kinds:
            for (text,) in self._database.execute(_CUT.format(kind), [texts]).fetchall():
                raise InvalidArgumentError(
                    "the comparison would cut off a part of a text: its time of day, or its offset",
                    condition=self._text,
                    text=text,
                    type=kind,
                    to_fix="write a day without a time; a time without an offset, in UTC; or "
                    "compare with a cast of the column, such as value.day::TIMESTAMPTZ",
                )

    def _parsed(self) -> Node:
        unquoted = _QUOTED.sub("", self._text)
        if not unquoted.strip() and self._text == unquoted:
            raise self._refused("it is empty")
        if "--" in unquoted or "/*" in unquoted:
            raise self._refused("it has a comment, which would hide a part of it")
        # In brackets and on a line of its own, so that it cannot go on as something else; and
        # without them, which it could close and open again.
        statement, bare, plain = (
            self._parse(f"SELECT {text} FROM {_TABLE}")  # noqa: S608 (parsed, not run)
            for text in (f"(\n{self._text}\n)", f"\n{self._text}\n", "1")
        )
        if statement.get("error_type") not in (None, "not implemented"):
            raise self._refused(statement["error_message"])
        if statement["error"] or _around(statement) != _around(plain) or bare != statement:
            raise self._refused("it is not one expression")
        return statement

    def _parse(self, sql: str) -> Node:
        made: Node = parsed(self._database, sql)
        if made["error"] is False:
            _without_locations(made)
        return made

    def _printed(self, statement: Node, expressions: list[Node]) -> str:
        statement["statements"][0]["node"]["select_list"] = expressions
        ((sql,),) = self._database.execute(_PRINT, [json.dumps(statement)]).fetchall()
        return str(sql)

    def _run(self, sql: str) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_stream(self._database.sql(sql))

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        import duckdb

        return duckdb.Error, pa.ArrowException

    def _refused(self, reason: object) -> InvalidArgumentError:
        return InvalidArgumentError(
            "a condition cannot be evaluated",
            condition=self._text,
            reason=str(reason).partition("\n")[0],
            to_fix="write one condition, as behind WHERE: text in single quotes, and double quotes "
            "about a name that is a word of SQL",
        )


@dataclass
class _Bound:
    """A condition over columns that were found.

    Attributes:
        sql: The statement that computes it for all rows.
        filtered: One of the rows for which it holds.
        paths: Of the columns that it names `c0`, `c1` and so on.
    """

    sql: str = ""
    filtered: str = ""
    paths: list[ColumnPath] = field(default_factory=list)


def _column(number: int) -> str:
    return f"c{number}"


def _without_locations(tree: Any) -> None:
    if isinstance(tree, dict):
        for name in ("query_location", "query_location_length"):
            tree.pop(name, None)
        for part in tree.values():
            _without_locations(part)
    elif isinstance(tree, list):
        for part in tree:
            _without_locations(part)


def _around(statement: Node) -> Any:
    """Return a statement without its expression; None where it has not exactly one."""
    statements = statement["statements"]
    node = statements[0]["node"]
    if len(statements) != 1 or len(node.get("select_list", ())) != 1:
        return None
    return {name: part for name, part in node.items() if name != "select_list"}


def _check(expression: Node, text: str) -> None:
    """Check that nothing is in a condition that is not allowed.

    Raises:
        InvalidArgumentError: Something is.
    """
    for node in expressions_of(expression):
        kind = node["class"]
        allowed = _ALLOWED.get(kind, set())
        if allowed is not None and node.get("type") not in allowed:
            raise InvalidArgumentError(
                "a condition contains what is not computed from one row",
                condition=text,
                found=kind.lower().replace("_", " "),
                to_fix="leave out subqueries, window functions, parameters, stars and lambdas",
            )
        if kind == "FUNCTION":
            _check_function(node, text)


def _check_function(node: Node, text: str) -> None:
    name = node["function_name"].lower()
    arguments = node.get("arguments") or node.get("children")
    path = node.get("qualified_name", {}).get("path", [name])
    is_plain = len(path) == 1 and not (node.get("schema") or node.get("catalog"))
    if name not in _FUNCTIONS or not arguments or not is_plain:
        raise InvalidArgumentError(
            "a condition calls a function that it must not",
            condition=text,
            function=".".join(path),
            to_fix="use functions of numbers, text, times, lists and maps, whose arguments are "
            "columns of the row: see docs/reading.md; no aggregates, none without arguments",
        )


def _is_text(node: Node, kind: str) -> bool:
    return node["class"] == "CONSTANT" and kind == _TEXT


def _number(node: Node) -> Decimal | None:
    """Return the number that a literal is, with its sign; None of anything else."""
    is_sign = node.get("function_name") in ("+", "-") and len(node["arguments"]) == 1
    if is_sign:
        number = _number(node["arguments"][0]["expression"])
        return -number if number is not None and node["function_name"] == "-" else number
    literal = node["literal"] if node["class"] == "CONSTANT" else {}
    is_number = literal.get("kind") in ("INTEGER", "NUMERIC")
    return Decimal(literal["text"].replace("_", "")) if is_number else None


def _shape(kind: str) -> str:
    return _SHAPES.sub(lambda match: str(match.lastgroup), kind)


def _is_not(node: Node) -> bool:
    return bool(node.get("type") == "OPERATOR_NOT")


_COMPARE = frozenset(
    (
        *("contains", "greatest", "least", "list_contains", "list_has", "list_has_all"),
        *("list_has_any", "list_position", "list_distinct", "array_contains", "array_has"),
        *("element_at", "map_contains", "map_extract", "map_extract_value"),
    )
)
"""Functions of DuckDB that compare their arguments, or elements of these; `x IN list` is one."""


def _alike(node: Node) -> Iterator[list[Node]]:
    """Yield expressions in a node that are compared, or cast, or must be true or false."""
    kind = node["class"]
    if kind == "COMPARISON":
        yield [node["left"], node["right"]]
    elif kind == "BETWEEN":
        yield [node["input"], node["lower"], node["upper"]]
    elif kind == "CONJUNCTION" or node.get("type") in (
        "OPERATOR_NOT",
        "COMPARE_IN",
        "COMPARE_NOT_IN",
    ):
        yield node["children"]
    elif kind == "CAST" and node["child"]["class"] == "CONSTANT":
        yield [node["child"], node]
    elif kind == "FUNCTION" and node["function_name"].lower() in _COMPARE:
        given = node.get("arguments") or node["children"]
        yield [one.get("expression", one) for one in given]
    elif node.get("type") == "ARRAY_EXTRACT":  # of a map, by its key
        yield node["children"]
    elif kind == "CASE":
        yield [check["when_expr"] for check in node["case_checks"]]
