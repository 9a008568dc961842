"""The shape of state: which stores a query has, in which state partitions, with which schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.operations.full_state import dealt_anew

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.committed_version import CommittedVersion

MERGE_ZEROS = {"stateStoreSave", "sessionWindowStateStoreSaveExec", "symmetricHashJoin"}
"""Operators, by Spark's short names, that aggregate or join: 0.0 and -0.0 are one key of theirs."""


@dataclass(frozen=True, slots=True)
class StoreShape:
    """A store in all state partitions.

    Attributes:
        operator: Operator ID.
        name: Name of the store.
        new: A version of it, but for its ID and row counts.
        num_states: State partitions that it has: 1, or those of the query.
        heads: The version that is there, by state partition; none where the query has not run.
        merges_zeros: Whether Spark takes -0.0 for 0.0 in its keys.
    """

    operator: int
    name: str
    new: NewVersion
    num_states: int
    heads: tuple[PublishedFile, ...]
    merges_zeros: bool

    def require_by_key(self) -> None:
        """Check that Spark's hash of the key decides where a row belongs.

        Raises:
            IncompatibleError: It does not (kind not-rescalable).
        """
        if not self.new.rescalable and self.num_states > 1:
            raise IncompatibleError(
                "rows of a store are not where their keys belong",
                kind="not-rescalable",
                operator=self.operator,
                store=self.name,
                to_fix="write other operators; nothing tells to which state partition its rows go",
            )

    def family(self, name: str) -> ColumnFamily:
        """Return a column family.

        Raises:
            InvalidArgumentError: There is none of that name.
        """
        known = {family.name: family for family in self.new.column_families}
        if name not in known or (name == DEFAULT_FAMILY and len(known) > 1):
            raise InvalidArgumentError(
                "the operator has no such store or state variable",
                operator=self.operator,
                name=name,
                known=", ".join(_nameable(known)),
                to_fix="name rows by one of these, or of a join by its store",
            )
        return known[name]


def shapes_of(version: CommittedVersion) -> tuple[StoreShape, ...]:
    """Return the shape of every store of a version.

    Raises:
        IncompatibleError: As `join_families`.
    """
    heads: dict[tuple[int, str], list[PublishedFile]] = {}
    for store in sorted(version.heads, key=lambda store: store.partition):
        heads.setdefault((store.operator, store.name), []).append(version.heads[store])
    found = []
    for operator in version.checkpoint.operators:
        for store_info in operator.stores:
            of = heads[operator.id, store_info.name]
            trailers = [head.trailer for head in of]
            new = dealt_anew(trailers, version.num_partitions, trailers[0].max_parallelism)
            zeros = operator.name in MERGE_ZEROS
            found.append(StoreShape(operator.id, store_info.name, new, len(of), tuple(of), zeros))
    return tuple(found)


def find_shape(
    shapes: tuple[StoreShape, ...], operator: int, name: str | None
) -> tuple[StoreShape, ColumnFamily]:
    """Return the store and column family that rows are for.

    Args:
        shapes: Of all stores.
        operator: Operator ID.
        name: Of a join its store, of transformWithState its state variable; None for the only one.

    Raises:
        InvalidArgumentError: There is no such operator, store or state variable, or several.
    """
    of_operator = {shape.name: shape for shape in shapes if shape.operator == operator}
    if not of_operator:
        raise InvalidArgumentError(
            "the query has no such stateful operator",
            operator=operator,
            known=", ".join(map(str, sorted({shape.operator for shape in shapes}))),
            to_fix="use one of these",
        )
    if name in of_operator:
        return of_operator[name], of_operator[name].family(DEFAULT_FAMILY)
    first = next(iter(of_operator.values()))
    if len(of_operator) == 1 and (name is not None or len(first.new.column_families) == 1):
        return first, first.family(DEFAULT_FAMILY if name is None else name)
    families = [family.name for family in first.new.column_families]
    raise InvalidArgumentError(
        "rows of the operator are in several places, and it is not said in which of them",
        operator=operator,
        name=name,
        known=", ".join(of_operator if len(of_operator) > 1 else _nameable(families)),
        to_fix="give a mapping from these names to rows",
    )


def _nameable(families: Iterable[str]) -> list[str]:
    """Return the column families that may be named: beside others `default` has no rows."""
    names = list(families)
    return names if len(names) == 1 else sorted({*names} - {DEFAULT_FAMILY})
