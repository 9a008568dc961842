"""The address of rows: an operator's store or state variable, by name or number.

An address is `NAME`, `OPERATOR/NAME` or `OPERATOR`. Of a stream-stream join with four stores NAME
is a store, of transformWithState a state variable, else a column family. An operator whose rows are
all in one place is named by its number alone; rows that are the query's only ones need no address,
and are `state`. A number in front is always the operator: a state variable that is called `7` is
`0/7`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.core.errors import InvalidArgumentError, require_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.codec.column_family import ColumnFamily

    Families: TypeAlias = Callable[[int, str], Iterable[ColumnFamily]]

Address = str | int | None
"""As people write it; None for the only rows there are."""
NO_SUCH_ROWS = "there are no rows of that name"
"""The problem of an error about rows that are not there, and not there in several places."""
ONLY_ROWS = "state"
"""Stands for the only rows that there are, where none are called so."""
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """The place of rows, and its address.

    Attributes:
        operator: Operator ID.
        store: Name of the store.
        family: Name of the column family.
        name: Their name in an address; None where their operator has no others.
        is_listed: Whether they are the query's own: not the timers or indexes of a state variable.
    """

    operator: int
    store: str
    family: str
    name: str | None = None
    is_listed: bool = True

    def address(self, *, among: Iterable[RowsPlace]) -> str:
        """Return the shortest address that stands for these rows alone among all others."""
        if self.name is None:
            return str(self.operator)
        has_twin = any(
            other.name == self.name and other.operator != self.operator for other in among
        )
        is_name = _parse(self.name) == (None, self.name)
        return self.name if is_name and not has_twin else f"{self.operator}/{self.name}"


def find_place(
    address: Address, operators: Sequence[OperatorInfo], families: Families
) -> RowsPlace:
    """Return where the rows of an address are.

    Args:
        address: The address.
        operators: All of the query.
        families: Returns the column families of an operator's store, which are names where it has
            no other store.

    Raises:
        InvalidArgumentError: It is no address, no rows have it, or several have; or the query has
            no operators.
    """
    operator, name = _parse(address)
    if not operators:
        raise InvalidArgumentError(
            "the query keeps no state: it has no stateful operator",
            rows=address,
            to_fix="name the checkpoint of a query that aggregates, joins or deduplicates",
        )
    known = [one.id for one in operators]
    if operator is not None and operator not in known:
        raise InvalidArgumentError(
            "the query has no such stateful operator",
            operator=operator,
            known=", ".join(map(str, known)) or "none",
            to_fix="use one of these",
        )
    of = [one for one in operators if operator in (None, one.id)]
    places = [place for one in of for place in places_of(one, families)]
    listed = [place for place in places if place.is_listed]
    if name is None:
        found = listed
    else:
        found = [
            place
            for place in places
            if name == (DEFAULT_FAMILY if place.name is None else place.name)
        ]
    if not found and address == ONLY_ROWS:
        found = listed
    if len(found) == 1:
        return found[0]
    every = [place for one in operators for place in places_of(one, families)]
    names = [place.address(among=every) for place in found or listed]
    if not found and operator is None and len(listed) == 1:
        names = [ONLY_ROWS]
    given: dict[str, Any] = {} if address is None else {"rows": address}
    raise InvalidArgumentError(
        "rows are in several places, and it is not said which are meant" if found else NO_SUCH_ROWS,
        to_fix="name one of these, by --rows, by rows(NAME) or as a table of SQL",
        **given,
        known=", ".join(names) or "none",
    )


def operator_of(address: Address) -> int | None:
    """Return the operator ID that an address names, None where it names none.

    Raises:
        InvalidArgumentError: It is neither text nor a number.
    """
    return _parse(address)[0]


def _parse(address: Any) -> tuple[int | None, str | None]:
    """Return operator ID and name, None for what is not said.

    Raises:
        InvalidArgumentError: It is neither text nor a number.
    """
    if address is None:
        return None, None
    if isinstance(address, str):
        head, slash, name = address.partition("/")
        if head.isascii() and head.isdecimal() and len(head) <= _MOST_DIGITS:
            return int(head), name if slash else None
        return None, address
    try:
        return require_whole("rows", address), None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            "the address of rows is neither a string nor a number",
            rows=repr(address),
            to_fix="give the name of a store or state variable, OPERATOR/NAME, or the number of "
            "an operator",
        ) from error


def places_of(operator: OperatorInfo, families: Families) -> Iterator[RowsPlace]:
    """Yield where an operator has rows; beside state variables not the default column family."""
    if len(operator.stores) > 1:
        for store in operator.stores:
            yield RowsPlace(operator.id, store.name, DEFAULT_FAMILY, store.name)
        return
    store_name = operator.stores[0].name
    # A state variable may be newer than the version, and have no column family there.
    is_listed = {variable.name: True for variable in operator.variables}
    is_listed |= {family.name: not family.internal for family in families(operator.id, store_name)}
    if {*is_listed} <= {DEFAULT_FAMILY}:
        yield RowsPlace(operator.id, store_name, DEFAULT_FAMILY)
        return
    if operator.variables:
        is_listed.pop(DEFAULT_FAMILY, None)
    for name in sorted(is_listed):
        is_spark_s = name.startswith("$") or (name == DEFAULT_FAMILY and operator.has_families)
        yield RowsPlace(operator.id, store_name, name, name, is_listed[name] and not is_spark_s)
