"""Addresses of rows: each that is shown leads to the rows that it is shown for, and no other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.checkpoint.operator_metadata import OperatorInfo, StateVariable, StoreInfo
from statestore.codec.column_family import DEFAULT_FAMILY, ColumnFamily
from statestore.core.errors import InvalidArgumentError
from statestore.operations.addresses import RowsPlace, find_place, places_of

NAMES = st.one_of(
    st.sampled_from(
        ["clicks", "Clicks", "0", "7", "0/clicks", "1/0", "default", "/", "$timers", "state", ""]
    ),
    st.text(max_size=4),
)
JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues")


@st.composite
def operators_of_a_query(draw: st.DrawFn) -> list[OperatorInfo]:
    """Draw operators: an aggregation, a join, or one with state variables."""
    operators = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["aggregation", "join", "variables"]))
        stores = JOIN if kind == "join" else ("default",)
        names = draw(st.sets(NAMES, min_size=1)) - {DEFAULT_FAMILY} if kind == "variables" else ()
        operators.append(
            OperatorInfo(
                number,
                kind,
                tuple(StoreInfo(name, 0, 4) for name in stores),
                bool(names),
                tuple(StateVariable(name, "ValueState", False) for name in sorted(names)),
            )
        )
    return operators


def families_in(operators: list[OperatorInfo]):
    """Return the column families that stores of these operators have."""

    def families(operator: int, _store: str) -> list[ColumnFamily]:
        names = [variable.name for variable in operators[operator].variables]
        return [ColumnFamily(n, name) for n, name in enumerate([DEFAULT_FAMILY, *names])]

    return families


@given(operators_of_a_query())
def test_an_address_leads_to_the_rows_that_it_is_shown_for(operators: list[OperatorInfo]) -> None:
    """Catches a name with a slash or of digits that leads elsewhere, or that nothing leads to."""
    families = families_in(operators)
    places = [place for one in operators for place in places_of(one, families)]

    shown = [place.address(among=places) for place in places]

    assert len({*shown}) == len(shown)
    for place, address in zip(places, shown, strict=True):
        assert find_place(address, operators, families) == place
        if place.name is None:
            assert find_place(place.operator, operators, families) == place


@given(operators_of_a_query(), st.one_of(st.none(), st.integers(-1, 4), NAMES))
def test_what_is_found_is_what_was_meant_or_all_addresses_are_named(
    operators: list[OperatorInfo], address: str | int | None
) -> None:
    """Catches rows that are chosen for somebody who did not say which."""
    families = families_in(operators)
    places = [place for one in operators for place in places_of(one, families)]
    listed = [place for place in places if place.is_listed]
    if isinstance(address, str) and (
        number := re.fullmatch("([0-9]{1,9})(?:/(.*))?", address, re.DOTALL)
    ):
        operator, name = int(number[1]), number[2]
    else:
        operator, name = (address, None) if isinstance(address, int) else (None, address)
    among = listed if name is None else places
    meant = [
        place
        for place in among
        if operator in (None, place.operator)
        and (name is None or (place.name if place.name is not None else DEFAULT_FAMILY) == name)
    ]
    if not meant and address == "state":
        meant = listed

    if len(meant) == 1:
        assert find_place(address, operators, families) == meant[0]
        return
    with pytest.raises(InvalidArgumentError) as caught:
        find_place(address, operators, families)
    for place in meant:
        assert place.address(among=places) in caught.value.fields["known"]


def test_what_is_no_address_is_refused() -> None:
    """Catches a bare TypeError, and True taken for operator 1."""
    (operator,) = [OperatorInfo(0, "dedupe", (StoreInfo("default", 0, 1),))]

    for wrong in (True, 1.5, b"0", ["0"]):
        with pytest.raises(InvalidArgumentError, match="neither a string nor a number"):
            find_place(wrong, [operator], lambda *_: [])  # type: ignore[arg-type]
    assert find_place(None, [operator], lambda *_: []) == RowsPlace(0, "default", "default")
