"""Keys as other operators have them: their columns in another order, beside others, or nameless."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.codec.key_bytes import decode_keys, key_type
from statestore.codec.key_encoding import encode_keys
from statestore.core.errors import InvalidArgumentError
from statestore.operations.forget.values import is_nameless, key_columns
from statestore.operations.forget.wanted import as_batch, as_struct, grouping_family, grouping_keys
from statestore.operations.key_set import KeySet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.forget.values import Certainty, KeyColumn
    from statestore.operations.reading.condition import Condition

    Layout = tuple[Callable[[pa.Array[Any]], bool], Certainty | None]
    """Tells whether keys of an operator, as bytes, are meant; and what one column alone tells."""

MOST_ORDERS = 24
"""In which nameless columns are compared: of four of one type."""


class Elsewhere:
    """Keys that are meant, looked for in the keys of other operators.

    Args:
        keys: Struct; None where none is known.
        grouping: The column family that they make; None likewise.
        condition: What found them; None where they were given.
    """

    def __init__(
        self, keys: Any, grouping: ColumnFamily | None, condition: Condition | None
    ) -> None:
        self._keys = keys
        self._grouping = grouping
        self._condition = condition
        self._layouts: dict[str | None, Layout] = {}

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """What is looked for in columns: of a condition those that it names."""
        keys = self._keys
        if keys is not None and self._condition is not None:
            batch = as_batch(keys)
            paths = self._condition.bind(batch.schema).paths
            parts = [path.of(batch) for path in paths]
            keys = pa.StructArray.from_arrays(parts, names=[path.names[-1] for path in paths])
        return () if keys is None else key_columns(keys)

    def find(
        self, stored: pa.Array[Any], store: str, family: ColumnFamily
    ) -> tuple[bool, Certainty | None]:
        """Return whether keys of another operator are meant, and what its columns tell alone.

        They are meant where they fulfil the condition, or have just the columns of a key. Then a
        column alone tells nothing, or `maybe` where no name says which it is; else `found`.

        Args:
            stored: Keys as bytes.
            store: Name of their store.
            family: Their column family.

        Raises:
            CorruptionError, IncompatibleError: As `decode_keys`.
        """
        grouping = grouping_family(store, family)
        if grouping is None or self._keys is None:
            return False, "found"
        if grouping.key_schema not in self._layouts:
            made = self._as_asked(grouping) or self._as_given(grouping)
            self._layouts[grouping.key_schema] = made or (lambda _: False, "found")
        is_meant, alone = self._layouts[grouping.key_schema]
        try:
            return is_meant(grouping_keys(stored, store, family, grouping)), alone
        except InvalidArgumentError:
            return False, "found"  # a value that the condition cannot cast

    def _as_asked(self, grouping: ColumnFamily) -> Layout | None:
        """Return how the condition is asked; None where its columns are not there."""
        condition = self._condition
        if condition is None or self._grouping is None:
            return None
        schemas = [
            pa.schema([pa.field("key", key_type(one).arrow)]) for one in (self._grouping, grouping)
        ]
        try:
            own, other = (condition.bind(schema).paths for schema in schemas)
        except InvalidArgumentError:
            return None
        if any(is_nameless(name) for path in other for name in path.names[1:]):
            return None
        named = {path.ordinals[1:2] for path in other}
        has_all = () in named or len(named) == len(key_type(grouping).fields)
        is_same = [path.type for path in own] == [path.type for path in other]

        def fulfils(encoded: pa.Array[Any]) -> bool:
            return len(condition.rows(as_batch(decode_keys(encoded, grouping)))) > 0

        return fulfils, None if has_all and is_same else "found"

    def _as_given(self, grouping: ColumnFamily) -> Layout | None:
        """Return how whole keys are compared; None where columns are missing, or were not given."""
        if self._condition is not None or self._grouping is None:
            return None
        own, other = key_type(self._grouping).fields, key_type(grouping).fields
        candidates = [
            [
                number
                for number, (of_own, own_kind) in enumerate(own)
                if kind == own_kind and _may_be(of_own, name)
            ]
            for name, kind in other
        ]
        if len(own) == 1 or len(own) != len(other) or not all(candidates):
            return None
        orders = list(islice(_orders(candidates), MOST_ORDERS + 1))
        if not 0 < len(orders) <= MOST_ORDERS:
            return None
        columns = self._keys.flatten()
        known = KeySet(
            encode_keys(as_struct([columns[number] for number in order], grouping), grouping)
            for order in orders
        )
        return (
            lambda encoded: bool(known.has(encoded).any()),
            "maybe" if any(is_nameless(name) for name, _ in other) else None,
        )


def _may_be(name: str, other: str) -> bool:
    return name.casefold() == other.casefold() or (is_nameless(name) and is_nameless(other))


def _orders(candidates: list[list[int]], taken: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield each way to take one of each list, none twice."""
    if len(taken) == len(candidates):
        yield taken
        return
    for one in candidates[len(taken)]:
        if one not in taken:
            yield from _orders(candidates, (*taken, one))
