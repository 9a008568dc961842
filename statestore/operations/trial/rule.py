"""The rule by which rows of the old and the new code count as equal, and what differs by it.

Rows of a sink are compared batch by batch, as many times as they are there and in no order. Rows of
state are compared by key. Columns that are ignored do not count, in neither of them; a column that
only one of them has, or that has another type, counts unless it is ignored. A function may have the
last word on what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.codec.joined_trailers import add_counts
from statestore.codec.partition_key import JOIN_TIME
from statestore.codec.python_values import to_pylist
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.text import as_json
from statestore.io.local import temporary_directory
from statestore.operations.database import open_database
from statestore.operations.reading.diff import diff_batches
from statestore.operations.reading.inspection import describe
from statestore.operations.states import rows_of_both
from statestore.operations.trial.record import Compared
from statestore.operations.writing.join_times import NUM_DRAWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore.operations.checkpoint import OpenCheckpoint

Judge = Callable[[str, pa.Table, pa.Table], bool]
"""Is given what was compared, and the rows that only the old has and that only the new has, of
state with the columns `key` and `value`; says whether they count as equal."""
SHOWN = 20
"""Rows that differ, of each comparison, that a report shows."""
_MEMORY = "1GB"
_MOST_TEXT, _MOST_ITEMS = 2_000, 100
"""Characters of a text, and items of a list, that are kept of a row."""


@dataclass(frozen=True)
class Rule:
    """When rows count as equal.

    Attributes:
        ignored: Columns that do not count: of a sink by their names; of state fields of the value
            by their names, also behind `value.`.
        judge: Has the last word on what differs; it is given all of that in memory.
        shown: At most so many rows that differ are kept, of each comparison.
        columns: Every column that was seen, in words; filled while it compares.
    """

    ignored: frozenset[str] = frozenset()
    judge: Judge | None = None
    shown: int = SHOWN
    columns: set[str] = field(default_factory=set)

    def check_ignored(self) -> None:
        """Check that every ignored column was there, after all was compared.

        Raises:
            InvalidArgumentError: One was not.
        """
        unknown = sorted(self.ignored - self.columns)
        if unknown:
            raise InvalidArgumentError(
                "a column to ignore is neither in the rows of the sink nor in the state",
                columns=", ".join(unknown),
                known=", ".join(sorted(self.columns)),
                to_fix="name columns of the sink's rows, or fields of the state's values",
            )

    def shared(
        self, old: Mapping[str, pa.DataType], new: Mapping[str, pa.DataType], before: str = ""
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the columns that are compared, and in words those that cannot be."""
        names = list(dict.fromkeys([*old, *new]))
        self.columns.update(spelled for name in names for spelled in {name, before + name})
        counting = [name for name in names if not {name, before + name} & self.ignored]
        different = []
        for name in counting:
            if name not in new:
                different.append(f"{before}{name}: only the old has it")
            elif name not in old:
                different.append(f"{before}{name}: only the new has it")
            elif _type(old[name]) != _type(new[name]):
                different.append(f"{before}{name}: {_type(old[name])} became {_type(new[name])}")
        in_both = [
            name
            for name in counting
            if name in old and name in new and _type(old[name]) == _type(new[name])
        ]
        return in_both, tuple(different)

    def judged(self, of: str, old: pa.Table, new: pa.Table) -> bool:
        """Return whether rows that differ count as equal all the same."""
        return self.judge is not None and bool(self.judge(of, old, new))


def compare_rows(of: str, old: Sequence[str], new: Sequence[str], rule: Rule) -> Compared:
    """Compare the rows that two codes gave their sinks.

    Args:
        of: What they are, in words.
        old: Local Parquet files, at least one.
        new: Likewise.
        rule: When they count as equal.

    Raises:
        InvalidArgumentError: DuckDB is not installed.
    """
    # Imported here because it takes long, and only trials need it.
    import pyarrow.dataset as ds

    sides = {
        "old": ds.dataset(list(old), format="parquet"),
        "new": ds.dataset(list(new), format="parquet"),
    }
    for which, side in sides.items():
        # A column is read by the schema of the first file: what others have beside it is not seen.
        if any(file.physical_schema != side.schema for file in side.get_fragments()):
            return Compared(of, is_same=False, why=f"files of the {which} rows have other columns")
    names, columns = rule.shared(_columns(sides["old"].schema), _columns(sides["new"].schema))
    with temporary_directory() as work:
        connection = open_database(work, threads=2, memory_limit=_MEMORY)
        try:
            for name, side in sides.items():
                _load(connection, name, side, names)
            for only, one, other in (("removed", "old", "new"), ("added", "new", "old")):
                connection.execute(f"CREATE TABLE {only} AS FROM {one} EXCEPT ALL FROM {other}")

            def fetch(only: str, limit: str) -> pa.Table:
                rows = connection.sql(f"FROM {only} ORDER BY ALL {limit}")
                table: pa.Table = rows.to_arrow_table()
                return table.rename_columns(names) if names else table

            removed, added, num_old, num_new = (
                connection.execute(f"FROM {name} SELECT count(*)").fetchall()[0][0]
                for name in ("removed", "added", "old", "new")
            )
            is_same = not columns and not removed and not added
            if rule.judge is not None and not is_same and not columns:
                is_same = rule.judged(of, fetch("removed", ""), fetch("added", ""))
            few = rule.shown - min(added, rule.shown // 2)
            first = to_pylist(fetch("removed", f"LIMIT {few}"))
            second = to_pylist(fetch("added", f"LIMIT {rule.shown - len(first)}"))
        finally:
            connection.close()
    shown = [{"change": "removed", "old": plain(row)} for row in first]
    shown += [{"change": "added", "new": plain(row)} for row in second]
    return Compared(
        of,
        is_same,
        removed=removed,
        added=added,
        columns=columns,
        rows=tuple(shown),
        num_old=num_old,
        num_new=num_new,
    )


def _load(connection: Any, name: str, side: Any, names: Sequence[str]) -> None:
    """Make a table of some columns of Parquet files.

    They are numbered: names that differ in their letters' case alone are one to the database. Rows
    without columns differ by their number alone.
    """
    import pyarrow.dataset as ds

    given: Any = pa.table({"c": pa.nulls(side.count_rows(), pa.bool_())})
    if names:
        numbered = {f"c{number}": ds.field(column) for number, column in enumerate(names)}
        given = side.scanner(columns=numbered).to_reader()
    connection.register("given", given)
    connection.execute(f"CREATE TABLE {name} AS FROM given")
    connection.unregister("given")


def _columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(schema.names, schema.types, strict=True))


def compare_state(
    old: OpenCheckpoint, version: int, new: OpenCheckpoint, rule: Rule
) -> Iterator[Compared]:
    """Compare all rows of state of two checkpoints.

    In bounded memory, but for what differs where there is a judge, or for what differs of a join
    whose rows have drawn numbers for times.

    Args:
        old: A checkpoint.
        version: The version that counts, of both.
        new: Another one.
        rule: When rows count as equal.

    Yields:
        What came of it, for each address of rows that one of them has.

    Raises:
        NotFoundError, CorruptionError, IncompatibleError, FencedError, StorageError: As
            `diff_batches`.
    """
    named = [_num_rows(old, version), _num_rows(new, version)]
    for address in named[0] | named[1]:
        of = f"state {address}"
        if not all(address in each for each in named):
            which = "old" if address in named[0] else "new"
            yield Compared(of, is_same=False, why=f"only the {which} has it")
            continue
        try:
            sides = rows_of_both(old, new, address, (version, version))
            batches = diff_batches(*sides, old.scratch_directory)
            compared = _compare_state(of, batches, rule)
            num_old, num_new = (each[address] for each in named)
            yield replace(compared, num_old=num_old, num_new=num_new)
        except IncompatibleError as error:
            yield Compared(of, is_same=False, why=error.problem)


def _num_rows(checkpoint: OpenCheckpoint, version: int) -> dict[str, int | None]:
    """Return the addresses of a version, with the number of their rows where trailers tell it.

    A store has one number, of the rows that are not Spark's own.
    """
    return {
        family.address: add_counts(store.num_keys.values())
        if [one for one in store.column_families if not one.internal] == [family]
        else None
        for store in describe(checkpoint, version=version)
        for family in store.column_families
        if family.address is not None
    }


def _compare_state(of: str, batches: Iterable[pa.RecordBatch], rule: Rule) -> Compared:
    counts: Counter[str | None] = Counter()
    shown: list[dict[str, Any]] = []
    different: list[pa.RecordBatch] = []
    names: list[str] = []
    columns: tuple[str, ...] = ()
    drawn: Counter[tuple[str, str]] | None = None
    for number, batch in enumerate(batches):
        if number == 0:
            is_of_a_join = batch.schema.field("key").type.get_field_index(JOIN_TIME) >= 0
            drawn = Counter() if is_of_a_join else None
            of_old, of_new = (batch.schema.field(f"{side}_value").type for side in ("old", "new"))
            names, columns = rule.shared(_fields(of_old), _fields(of_new), "value.")
        left = batch.filter(pa.array(_differs(batch, names), pa.bool_()))
        counts.update(left.column("change").to_pylist())
        for row in to_pylist(left.slice(0, max(0, rule.shown - len(shown)))):
            given = {"old": row["old_value"], "new": row["new_value"]}
            there = {side: value for side, value in given.items() if value is not None}
            shown.append(plain({"change": row["change"], "key": row["key"], **there}))
        if drawn is not None and not _count_drawn(left, names, drawn):
            drawn = None
        if rule.judge is not None and left.num_rows:
            different.append(left)
    if counts and not columns and drawn is not None and not any(drawn.values()):
        return Compared(of, is_same=True)
    is_same = not columns and not counts
    if different and not columns:
        table = pa.Table.from_batches(different)
        is_same = rule.judged(of, *(_side(table, side) for side in ("old", "new")))
    return Compared(
        of,
        is_same,
        counts["removed"],
        counts["added"],
        counts["changed"],
        columns,
        tuple(shown),
    )


def _count_drawn(
    rows: pa.RecordBatch, names: Sequence[str], counted: Counter[tuple[str, str]]
) -> bool:
    """Count rows of a join by key and value: the old ones up, the new ones down.

    Where all come to 0, they differ by nothing but the numbers that Spark drew for them: others
    when it repeats a batch, see `join_times`. False if a row has a time, which is never so small
    but in the first second of 1970.
    """
    keys: Any = rows.column("key")
    times = pc.struct_field(keys, [keys.type.get_field_index(JOIN_TIME)])
    is_drawn: Any = pc.is_in(times, pa.array(range(NUM_DRAWN), pa.int64()))
    if not pc.all(is_drawn, min_count=0).as_py():
        return False
    for row in to_pylist(rows):
        key = {name: part for name, part in row["key"].items() if name != JOIN_TIME}
        for sign, values in ((1, row["old_value"]), (-1, row["new_value"])):
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    counted[repr(key), _chosen(value, names)] += sign
    return True


def _side(table: pa.Table, side: str) -> pa.Table:
    found = table.select(["key", f"{side}_value"]).rename_columns(["key", "value"])
    return found.filter(found.column("value").is_valid())


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    """Return the fields of a value, or of those of a list of values, by name."""
    kind = kind.value_type if pa.types.is_list(kind) else kind
    return {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}


def _differs(batch: pa.RecordBatch, names: Sequence[str]) -> list[bool]:
    """Return which rows of a difference count, when only some fields of the values do."""
    changes, old, new = (
        to_pylist(batch.column(name)) for name in ("change", "old_value", "new_value")
    )
    return [
        change != "changed" or _chosen(one, names) != _chosen(other, names)
        for change, one, other in zip(changes, old, new, strict=True)
    ]


def _chosen(value: Any, names: Sequence[str]) -> str:
    """Return some fields of a value, or of each of a list of values, as text: NaN equals NaN."""
    if isinstance(value, list):
        return repr([_chosen(one, names) for one in value])
    return repr([value[name] for name in names])


def _type(kind: pa.DataType) -> str:
    """Return a type in words; whether nulls may be in it says nothing about rows."""
    return str(kind).replace(" not null", "")


def plain(value: Any) -> Any:
    """Return `as_json` of a value, long texts and lists cut: the trial's record keeps it."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value[:_MOST_ITEMS]] + ["…"] * (len(value) > _MOST_ITEMS)
    value = as_json(value)
    if isinstance(value, int | float | None):
        return value
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
