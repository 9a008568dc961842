"""Columns of state and the fields of structs in them: found by the names that people give.

A path is the name of a column and of a field, and a field in that: `key.window.start`. Its last
names are enough where no other path ends with them, in either case of letters: `start`. Names that
several paths have, and names that none has, are refused: no name is ever something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MOST_NAMED = 30


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, or a field of one.

    Attributes:
        names: Of the column, the field, a field in that, and so on.
        ordinals: Their numbers, from 0.
        type: Its type.
    """

    names: tuple[str, ...]
    ordinals: tuple[int, ...]
    type: pa.DataType

    def __str__(self) -> str:
        """Return it as it is written in a condition."""
        return ".".join(map(_written, self.names))

    def of(self, batch: pa.RecordBatch) -> Any:
        """Return the column of a batch; null where a struct around it is."""
        # Imported here because it takes long, and only what filters rows needs it.
        import pyarrow.compute as pc

        first, *inner = self.ordinals
        column = batch.column(first)
        return pc.struct_field(column, inner) if inner else column


def _written(name: str) -> str:
    escaped = name.replace('"', '""')
    return name if _PLAIN.fullmatch(name) else f'"{escaped}"'


def paths_of(schema: pa.Schema) -> tuple[ColumnPath, ...]:
    """Return all columns, behind each the fields in it."""
    return tuple(_paths(schema, (), ()))


def _paths(fields: Any, names: tuple[str, ...], ordinals: tuple[int, ...]) -> Iterator[ColumnPath]:
    for ordinal, field in enumerate(fields):
        path = ColumnPath((*names, field.name), (*ordinals, ordinal), field.type)
        yield path
        if pa.types.is_struct(field.type):
            yield from _paths(field.type, path.names, path.ordinals)


def find_path(paths: Sequence[ColumnPath], given: Sequence[str], **about: Any) -> ColumnPath:
    """Return the one path that names stand for.

    Args:
        paths: All there are.
        given: Names, as those of a path or its last ones.
        about: Fields of errors beside the name.

    Raises:
        InvalidArgumentError: No path has these names, or several have.
    """
    wanted = _folded(given)
    whole = [path for path in paths if _folded(path.names) == wanted]
    ends = [path for path in paths if _folded(path.names[-len(given) :]) == wanted]
    exact = [path for path in whole if path.names == tuple(given)]
    # Of several names a whole path comes first. A single one may be a field of that name as well.
    found = ends if len(given) == 1 else exact or whole or ends
    if len(found) == 1:
        return found[0]
    name = ".".join(map(_written, given))
    if found:
        raise InvalidArgumentError(
            "a name stands for several columns",
            **about,
            name=name,
            columns=_listed(found),
            to_fix="write the one that is meant, as it is named here",
        )
    raise InvalidArgumentError(
        "there is no column of a name",
        **about,
        name=name,
        known=_listed(paths),
        to_fix="use one of these, fields with dots such as key.shop; text is in single quotes, and "
        "a name that is a word of SQL, or has other characters, in double quotes",
    )


def _folded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.casefold() for name in names)


def _listed(paths: Sequence[ColumnPath]) -> str:
    named = ", ".join(map(str, paths[:_MOST_NAMED]))
    return named if len(paths) <= _MOST_NAMED else f"{named} and {len(paths) - _MOST_NAMED} more"
