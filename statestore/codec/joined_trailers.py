"""What the trailers of several state partitions say together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.codec.trailer import ColumnFamily, Trailer


def add_counts(counts: Iterable[int | None]) -> int | None:
    """Add numbers of rows, as `num_keys` of trailers; None where one of them is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def join_families(trailers: Iterable[Trailer]) -> tuple[ColumnFamily, ...]:
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
    return tuple(by_id[number] for number in sorted(by_id))
