"""The shape of state: which stores a query has, in which state partitions, with which schemas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.checkpoint.operator_metadata import JOIN_OPERATOR
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.operations.addresses import find_place
from statestore.operations.by_key import keyed_otherwise
from statestore.operations.full_state import dealt_anew
from statestore.operations.writing.casts import KeyForm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.addresses import Address
    from statestore.operations.committed_version import CommittedVersion

_GROUP = {
    "stateStoreSave",
    "StatefulStreamlineAggregate",
    "sessionWindowStateStoreSaveExec",
    JOIN_OPERATOR,
}
"""Operators, by Spark's short names, that aggregate or join."""
_DEDUPLICATE = {"dedupe", "dedupeWithinWatermark"}
_SINCE_4_2 = "spark.sql.streaming.stateStore.rowChecksum.enabled"
"""Spark 4.2 and later have it in the conf of every batch."""


def key_form_of(operator: OperatorInfo, conf: Mapping[str, str]) -> KeyForm:
    """Return the form that Spark gives to the keys of an operator.

    Args:
        operator: The operator.
        conf: Of the query's newest batch.
    """
    if operator.name in _GROUP:
        return KeyForm.GROUPED
    drops_duplicates = operator.name in _DEDUPLICATE and _SINCE_4_2 in conf
    return KeyForm.NUMBERS if drops_duplicates else KeyForm.GIVEN


@dataclass(frozen=True, slots=True)
class StoreShape:
    """A store in all state partitions.

    Attributes:
        operator: Operator ID.
        name: Name of the store.
        new: A version of it, but for its ID and row counts.
        num_states: State partitions that it has: 1, or those of the query.
        heads: The version that is there, by state partition; none where the query has not run.
        key_form: As `FamilyColumns.key_form`.
    """

    operator: int
    name: str
    new: NewVersion
    num_states: int
    heads: tuple[PublishedFile, ...]
    key_form: KeyForm

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
                to_fix="write other operators; the key does not tell which state partition a row "
                "goes to",
            )


def shapes_of(version: CommittedVersion) -> tuple[StoreShape, ...]:
    """Return the shape of every store of a version.

    Raises:
        IncompatibleError: As `join_families`, or as `keyed_otherwise`.
        NotFoundError, CorruptionError, StorageError: As `keyed_otherwise`.
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
            if keyed_otherwise(
                version.checkpoint, operator.id, store_info.name, new.column_families
            ):
                new = replace(new, rescalable=False)
            form = key_form_of(operator, version.checkpoint.conf)
            found.append(StoreShape(operator.id, store_info.name, new, len(of), tuple(of), form))
    return tuple(found)


def find_shape(
    shapes: tuple[StoreShape, ...], operators: Sequence[OperatorInfo], address: Address
) -> tuple[StoreShape, ColumnFamily]:
    """Return the store and column family that rows are for.

    Args:
        shapes: Of all stores.
        operators: All of the query.
        address: The address of the rows.

    Raises:
        InvalidArgumentError: As `find_place`; or there is a state variable of that name, which has
            no column family yet.
    """
    by_store = {(shape.operator, shape.name): shape for shape in shapes}
    place = find_place(
        address, operators, lambda operator, store: by_store[operator, store].new.column_families
    )
    shape = by_store[place.operator, place.store]
    for family in shape.new.column_families:
        if family.name == place.family:
            return shape, family
    raise InvalidArgumentError(
        "the state variable is not in this version",
        rows=place.family,
        known=", ".join(family.name for family in shape.new.column_families),
        to_fix="name a later version, or one of these",
    )
