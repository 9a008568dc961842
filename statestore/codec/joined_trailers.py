"""Trailers of several state partitions, put together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.references import StoreName


class Described(Protocol):
    """A version of a store in one state partition: a trailer, or what was read in its place."""

    @property
    def store(self) -> StoreName:
        """The store."""

    @property
    def column_families(self) -> tuple[ColumnFamily, ...]:
        """Its column families."""


def add_counts(counts: Iterable[int | None]) -> int | None:
    """Add numbers of rows, as `num_keys` of trailers; None where one is unknown."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def join_schemas(one: ColumnFamily, other: ColumnFamily) -> ColumnFamily:
    """Return a column family with the value schemas that it has in either of two descriptions.

    All state partitions have run the same programs, so a schema has the same ID in each.
    """
    schemas = {**one.value_schemas, **other.value_schemas}
    if schemas == one.value_schemas:
        return one
    return replace(one, value_schema=schemas[max(schemas)], value_schemas=schemas)


def join_families(trailers: Iterable[Described]) -> tuple[ColumnFamily, ...]:
    """Return the column families of state partitions whose rows come together, by their IDs.

    Raises:
        IncompatibleError: One has different IDs, or two have the same (kind not-rescalable).
    """
    by_id: dict[int, ColumnFamily] = {}
    by_name: dict[str, ColumnFamily] = {}
    for trailer in trailers:
        for family in trailer.column_families:
            same_id = by_id.setdefault(family.id, family)
            same_name = by_name.setdefault(family.name, family)
            if same_id.name != family.name or same_name.id != family.id:
                raise IncompatibleError(
                    "column families have other IDs in other state partitions",
                    kind="not-rescalable",
                    store=str(trailer.store),
                    column_family=family.name,
                    to_fix="keep the number of state partitions as it is",
                )
            by_id[family.id] = by_name[family.name] = join_schemas(same_id, family)
    return tuple(by_id[number] for number in sorted(by_id))
