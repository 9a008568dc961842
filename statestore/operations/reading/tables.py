"""Tables of SQL: which rows of a checkpoint have which names.

A table has the address of rows for its name; `state` stands for the only rows that there are. A
version goes behind it, `clicks@12`. The shim's `catalog/Addresses.scala` has the same rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError
from statestore.operations.addresses import NO_SUCH_ROWS, ONLY_ROWS
from statestore.operations.reading.inspection import describe
from statestore.operations.states import rows_at

if TYPE_CHECKING:
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.states import FoundRows

_VERSIONED = re.compile(r"(?P<name>.+)@(?P<version>[0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table.

    Attributes:
        name: As SQL writes it, in double quotes.
        operator, operator_name: ID and Spark's short name of the operator.
        store: Name of the store.
        variable: What kind of state variable it has, in Spark's words; None where it has none.
        key, value: Structs of its columns, as text.
    """

    name: str
    operator: int
    operator_name: str
    store: str
    variable: str | None
    key: str
    value: str


def list_tables(checkpoint: OpenCheckpoint, alias: str = "") -> tuple[TableInfo, ...]:
    """List the tables of the newest version; errors as `describe`."""
    found = [
        (store, family)
        for store in describe(checkpoint)
        for family in store.column_families
        if family.address is not None
    ]
    before = f"{quoted(alias)}." if alias else ""
    if len(found) == 1:
        ((store, family),) = found
        found = [(store, replace(family, address=ONLY_ROWS))]
    return tuple(
        TableInfo(
            before + quoted(family.address or ""),
            store.operator,
            store.operator_name,
            store.name,
            family.variable,
            str(family.key),
            str(family.value),
        )
        for store, family in found
    )


def quoted(name: str) -> str:
    """Return a name as SQL writes it, whatever it is."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def find_table(checkpoint: OpenCheckpoint, name: str) -> tuple[int, FoundRows] | None:
    """Return the version and the rows of a name, as it is or in other letters; None for no table.

    Raises:
        NotFoundError: No such version, or it was expired.
        IncompatibleError, CorruptionError, FencedError, StorageError: As `rows_at`.
    """
    meant = [(name, checkpoint.newest_version)]
    if found := _VERSIONED.fullmatch(name):
        meant.append((found["name"], int(found["version"])))
    for find in (_rows, _rows_folded):
        for address, version in meant:
            rows = find(checkpoint, address, version)
            if rows is not None:
                return version, rows
    return None


def _rows(checkpoint: OpenCheckpoint, name: str, version: int) -> FoundRows | None:
    """Return the rows of a name, None where no rows have it."""
    for address in (name, None) if fold_case(name) == ONLY_ROWS else (name,):
        try:
            found = rows_at(checkpoint, address, version)
            _ = found.family
        except InvalidArgumentError as error:
            if error.problem != NO_SUCH_ROWS:
                raise
        else:
            return found
    return None


def _rows_folded(checkpoint: OpenCheckpoint, name: str, version: int) -> FoundRows | None:
    """Return the rows of a name whose case of letters does not count, None where not one has it."""
    addresses = [
        family.address
        for store in describe(checkpoint, version=version)
        for family in store.column_families
        if family.address is not None and fold_case(family.address) == fold_case(name)
    ]
    return _rows(checkpoint, addresses[0], version) if len(addresses) == 1 else None


def fold_case(name: str) -> str:
    """Return a name in small letters, as DuckDB compares names: of ASCII alone."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
