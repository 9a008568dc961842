"""Bugs to be planted in an operation's process, or in the lane's: it must find each."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from statestore.core.errors import InvalidArgumentError
from statestore.operations import in_use
from statestore.operations.database import open_database
from statestore.operations.forget import forget
from statestore.operations.forget.files import files_of_operator
from statestore.operations.forget.wanted import Wanted
from statestore.operations.in_use import ExclusiveUse
from statestore.operations.reading import condition, sql
from statestore.operations.reading.lookup import Asked
from statestore.operations.reading.names import paths_of
from statestore.operations.reading.read import read_batches
from statestore.operations.trial import replacing
from statestore.operations.upkeep import retained_savepoints
from statestore.operations.writing import rows_from_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        plant: Plants it in this process.
        shown_as: What the lane says of it.
        wanted: Fields of the lives that look for it.
        num_lives: How many of them must suffice.
        reader: The object and the name of what the lane reads rows by, which it replaces.
    """

    plant: Callable[[], None]
    shown_as: str
    wanted: Mapping[str, Any] = field(default_factory=dict)
    num_lives: int = 8
    reader: tuple[Any, str] | None = None

    @contextmanager
    def planted_here(self) -> Iterator[None]:
        """Plant one of what the lane reads by while a block runs; nothing of others."""
        if self.reader is None:
            yield
            return
        of, name = self.reader
        before = getattr(of, name)
        self.plant()
        try:
            yield
        finally:
            setattr(of, name, before)


def _replace(of: Any, name: str, made: Any) -> None:
    """Replace a function of a module or class, which must have one of the name."""
    getattr(of, name)
    setattr(of, name, made)


def _plant_falls_through() -> None:
    """A condition that DuckDB sees as it is, where `user` is a function."""

    def begin(self: Any, text: str) -> None:
        self._text = text
        self._database = open_database(threads=1)

    def rows(self: Any, batch: pa.RecordBatch) -> Any:
        names = {name: f'"{column}"."{name}"'.replace('""', '"') for column, name in _fields(batch)}
        short = "".join(f', {path} AS "{name}"' for name, path in names.items())
        numbered = batch.append_column("row_", pa.array(np.arange(batch.num_rows)))
        self._database.register("given", numbered)
        sql = f"SELECT row_ FROM (SELECT *{short} FROM given) WHERE ({self._text}) ORDER BY row_"
        try:
            return self._database.execute(sql).fetchnumpy()["row_"]
        except self._errors as error:
            raise InvalidArgumentError("it does not fit", to_fix="another one") from error

    made = condition.Condition
    _replace(made, "__init__", begin)
    _replace(made, "rows", rows)
    _replace(made, "only_column", lambda self, schema: None)
    _replace(made, "bind", lambda self, schema: condition._Bound(paths=list(paths_of(schema))))
    _replace(made, "asked", lambda self, schema: Asked())


def _fields(batch: pa.RecordBatch) -> list[tuple[str, str]]:
    """Return names of fields that no other has, with those of their columns."""
    pairs = [
        (column.name, column.type.field(number).name)
        for column in batch.schema
        if pa.types.is_struct(column.type)
        for number in range(column.type.num_fields)
    ]
    names = [name.casefold() for _, name in pairs] + [
        name.casefold() for name in batch.schema.names
    ]
    return [pair for pair in pairs if names.count(pair[1].casefold()) == 1 and '"' not in pair[1]]


def _plant_guesses_types() -> None:
    """A file of text that is read by what its values look like."""
    read = rows_from_file._of_cell

    def guess(text: str | None, kind: Any) -> Any:
        looks_like_a_number = text is not None and text.isdecimal()
        return read(str(int(text or "")) if looks_like_a_number else text, kind)

    _replace(rows_from_file, "_of_cell", guess)


def _plant_empty_certificate() -> None:
    """A certificate of keys that are nowhere."""
    _replace(forget, "_is_to_be_completed", lambda _checkpoint, _begun: True)


def _plant_deletes_newer() -> None:
    """A delete of all versions but one, whoever has the checkpoint meanwhile."""

    def delete(self: Any, files: Any) -> None:
        del files
        own = {f"{self.batch.batch + 1}{end}" for end in "._"}
        for file in files_of_operator(self.checkpoint, self.operator):
            name = file.info.name
            if file.is_state and not any(name.startswith(begin) for begin in own):
                file.location.io.delete(file.path)

    _replace(forget.Forgetting, "_delete", delete)
    _replace(ExclusiveUse, "require_held", lambda self: None)


def _plant_forgets_the_index() -> None:
    """A forget that looks at the keys of a store, and not where they stand with an index."""
    find = Wanted._of_family

    def find_some(self: Any, stored: Any, store: str, family: Any, found: Any) -> Any:
        if "WithIndex" in store or family.name.startswith("$"):
            return np.zeros(0, np.int64)
        return find(self, stored, store, family, found)

    _replace(Wanted, "_of_family", find_some)


def _plant_promotes_anything() -> None:
    """A promote that does not look at what the checkpoint has become since."""
    _replace(replacing, "require_same_input", lambda *_: None)


def _plant_takes_the_state_of_another() -> None:
    """An operation that does not ask whose the state is that a checkpoint names."""
    _replace(in_use, "require_own_state", lambda *_: None)


def _plant_keeps_the_oldest() -> None:
    """A schedule that has the order of savepoints the wrong way round."""
    decide = retained_savepoints._Attempt._doomed

    def doomed(self: Any, there: list[Any]) -> list[Any]:
        return decide(self, there[::-1])

    _replace(retained_savepoints._Attempt, "_doomed", doomed)


def _plant_loses_a_row_in_sql() -> None:
    """SQL that leaves out the last row of each batch that it reads."""
    read = read_batches

    def read_fewer(*arguments: Any, **more: Any) -> Any:
        return (batch.slice(0, max(0, batch.num_rows - 1)) for batch in read(*arguments, **more))

    _replace(sql, "read_batches", read_fewer)


def _plant_doubles_a_row_in_the_catalog() -> None:
    """Tables of Spark's SQL that have a row twice."""
    table = SparkSession.table

    def table_and_more(self: Any, name: str) -> Any:
        found = table(self, name)
        return found.union(found.limit(1))

    _replace(SparkSession, "table", table_and_more)


_READING = {"operations": ("edit",), "disturbances": ("",), "operator": "aggregation"}

BUGS: dict[str, Bug] = {
    "falls-through": Bug(
        _plant_falls_through,
        "what must be refused was done|rows are wrong|answers wrong",
        {"operator": "sessions", "operations": ("read", "edit"), "disturbances": ("",)},
    ),
    "empty-certificate": Bug(
        _plant_empty_certificate,
        "what must be refused was done",
        {"operator": "aggregation", "operations": ("forget",), "disturbances": ("",)},
    ),
    "guesses-types": Bug(
        _plant_guesses_types,
        "rows are wrong|was refused",
        {
            # The type of the key, which is drawn once a life, decides whether it shows.
            "operator": "dedup", "operations": ("forget",), "disturbances": ("",),
            "num_steps": 15,
        },
        num_lives=40,
    ),
    "deletes-newer": Bug(
        _plant_deletes_newer,
        "the query failed|cannot be read|rows are|verify finds damage|version is not in the store",
        {
            "operator": "aggregation", "backend": "filesystem", "operations": ("forget",),
            "disturbances": ("beside the query",),
        },
        num_lives=20,
    ),
    "forgets-the-index": Bug(
        _plant_forgets_the_index,
        "rows are wrong|bytes of a forgotten key",
        {"operator": "join", "operations": ("forget",), "disturbances": ("",)},
    ),
    "promotes-anything": Bug(
        _plant_promotes_anything,
        "what must be refused was done",
        {
            "operator": "aggregation", "operations": ("try", "promote", "rescale"),
            "disturbances": ("",), "num_steps": 20,
        },
    ),
    "keeps-the-oldest": Bug(
        _plant_keeps_the_oldest,
        "retained|is not of now|no savepoint is whole",
        {"operator": "dedup", "operations": ("retain",), "disturbances": ("",)},
    ),
    "takes-the-state-of-another": Bug(
        _plant_takes_the_state_of_another,
        "the state of the original was changed",
        {
            "operator": "aggregation", "operations": ("by hand",), "elsewhere": True,
            "num_steps": 20,
        },
    ),
    "loses-a-row-in-sql": Bug(
        _plant_loses_a_row_in_sql, "SQL selects other rows", _READING,
        reader=(sql, "read_batches"),
    ),
    "doubles-a-row-in-the-catalog": Bug(
        _plant_doubles_a_row_in_the_catalog, "a key is there twice", _READING,
        reader=(SparkSession, "table"),
    ),
}  # fmt: skip


def plant(name: str) -> None:
    """Plant a bug of BUGS in this process, an operation's."""
    if BUGS[name].reader is None:
        BUGS[name].plant()
