"""Operators of a query, which Spark numbers by their place in the plan, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from statestore.checkpoint.layout import DEFAULT_STORE_NAME
from statestore.checkpoint.operator_metadata import JOIN_OPERATOR
from statestore.checkpoint.query_log import JOIN_FORMAT_KEY
from statestore.core.errors import InvalidArgumentError, require_whole

OPERATOR_NAMES = (
    "stateStoreSave",
    "StatefulStreamlineAggregate",
    "dedupe",
    "dedupeWithinWatermark",
    "sessionWindowStateStoreSaveExec",
    JOIN_OPERATOR,
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    "globalLimit",
    "transformWithStateExec",
    "transformWithStateInPySparkExec",
)
"""Spark's short names of the operators whose state these backends keep."""
_KEYED = "transformWithState"
JOIN_STORES = tuple(
    f"{side}-{store}"
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
)
"""Names of the stores of a join in state formats 1 and 2; other operators have one store, without a
name."""
_FORMATS_OF_JOIN_STORES = ("1", "2")
JOIN_FORMAT_OF_STORES = "2"
"""The newest state format of a join that has them."""
OLDEST_JOIN_FORMAT = "1"
"""The state format of joins where an entry of the offset log says nothing."""


@dataclass(frozen=True, slots=True)
class OperatorMap:
    """Which operator of a savepoint becomes which of the query, whose numbers Spark gives.

    Attributes:
        moved: New ID by old; an operator that is not named keeps its own.
        dropped: Old IDs of operators whose state is left behind.
        added: Spark's short name by new ID, of operators that begin with empty state.
    """

    moved: Mapping[int, int] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    added: Mapping[int, str] = field(default_factory=dict)

    def resolve(self, operators: Sequence[int]) -> ResolvedOperators:
        """Return what becomes of every operator of a savepoint.

        Args:
            operators: IDs of the savepoint's operators.

        Raises:
            InvalidArgumentError: An operator is named that there is not, or that cannot be added;
                one is both mapped and dropped; or the query's operators would not be numbered 0, 1,
                2 … without a gap.
        """
        self._check(operators)
        kept = {
            old: require_whole("map_operators", self.moved.get(old, old))
            for old in operators
            if old not in self.dropped
        }
        added = {require_whole("add_operators", new): name for new, name in self.added.items()}
        taken = [*kept.values(), *added]
        if sorted(taken) != [*range(len(taken))]:
            raise InvalidArgumentError(
                "operators of the savepoint do not become operators 0, 1, 2 … of a query",
                savepoint=", ".join(map(str, operators)),
                mapped=", ".join(f"{old}:{new}" for old, new in kept.items()),
                dropped=", ".join(map(str, sorted(self.dropped))),
                added=", ".join(map(str, sorted(self.added))),
                to_fix="map every operator whose number changes, drop those the query no longer "
                "has, and add those it did not have",
            )
        return ResolvedOperators(kept, added)

    def _check(self, operators: Sequence[int]) -> None:
        """Check what is named by itself."""
        unknown = ({*self.moved} | self.dropped) - {*operators}
        if unknown:
            raise InvalidArgumentError(
                "the savepoint has no such operator",
                operator=", ".join(map(str, sorted(unknown))),
                savepoint=", ".join(map(str, operators)),
                to_fix="map and drop operators that the savepoint has",
            )
        both = {*self.moved} & self.dropped
        if both:
            raise InvalidArgumentError(
                "an operator is mapped and dropped",
                operator=", ".join(map(str, sorted(both))),
                to_fix="map it or drop it",
            )
        for operator, name in self.added.items():
            if name not in OPERATOR_NAMES:
                raise InvalidArgumentError(
                    "no operator of Spark has this short name",
                    operator=operator,
                    name=name,
                    to_fix="use one of "
                    + ", ".join(each for each in OPERATOR_NAMES if not each.startswith(_KEYED)),
                )
            if name.startswith(_KEYED):
                raise InvalidArgumentError(
                    "Spark begins this operator in batch 0 of a query alone: it then reads schemas "
                    "of state variables that nobody has written",
                    operator=operator,
                    name=name,
                    to_fix="start the query of the new code with a new checkpoint",
                )


@dataclass(frozen=True, slots=True)
class ResolvedOperators:
    """Operators of a savepoint that are kept, and those that are added.

    Attributes:
        kept: New ID by old; those that are not here are dropped.
        added: Spark's short name by new ID, of operators that begin with empty state.
    """

    kept: Mapping[int, int]
    added: Mapping[int, str]

    def new_id(self, operator: int) -> int:
        """Return the new ID of an operator that is kept."""
        return self.kept[operator]


def store_names_of(short_name: str, conf: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the stores that Spark gives an operator.

    Args:
        short_name: Spark's short name of it.
        conf: What the query's offset log pins: a join has one store from state format 3 on.
    """
    has_stores = conf.get(JOIN_FORMAT_KEY, OLDEST_JOIN_FORMAT) in _FORMATS_OF_JOIN_STORES
    is_join = short_name == JOIN_OPERATOR
    return JOIN_STORES if is_join and has_stores else (DEFAULT_STORE_NAME,)
