"""Expiry by a column: rows whose time is earlier than a limit, as a condition in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.core.durations import require_duration
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.condition import Condition
from statestore.operations.reading.read import row_schema

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.operations.writing.shape import StoreShape


def expiry_condition(
    column: str, older_than: timedelta | datetime | None, shapes: list[StoreShape], clock: Clock
) -> str:
    """Return the condition that rows which have expired fulfil.

    Args:
        column: A timestamp or date of the key or value, named as in `Rows.read`.
        older_than: How old, by the clock; or the limit itself, in UTC where it has no zone.
        shapes: The stores of the operator.
        clock: Tells now.

    Raises:
        InvalidArgumentError: No age is given, one below a second or beyond year 1; there is no such
            column, or it is no time; or the operator has several stores or state variables, of
            which rows belong together.
    """
    families = [family for shape in shapes for family in shape.new.column_families]
    if [family.name for family in families] != [DEFAULT_FAMILY]:
        raise InvalidArgumentError(
            "rows of the operator belong together, or have a TTL of Spark's, and do not expire "
            "by a column",
            stores=", ".join(shape.name for shape in shapes),
            column_families=", ".join(sorted({family.name for family in families})),
            to_fix="expire rows of operators with one store, which are not of transformWithState",
        )
    if older_than is None:
        raise InvalidArgumentError(
            "`older_than` is missing: the age at which rows expire",
            column=column,
            to_fix="give older_than, such as timedelta(days=7)",
        )
    if isinstance(older_than, timedelta):
        require_duration("older_than", older_than)
        try:
            older_than = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) - older_than
        except OverflowError:
            raise InvalidArgumentError(
                "the age reaches back beyond the year 1",
                older_than=str(older_than),
                to_fix="give a shorter age, such as timedelta(days=7)",
            ) from None
    if not isinstance(older_than, datetime):
        raise InvalidArgumentError(
            "`older_than` is neither a timedelta nor a datetime",
            older_than=repr(older_than),
            to_fix="give older_than, such as timedelta(days=7)",
        )
    limit = older_than if older_than.tzinfo else older_than.replace(tzinfo=UTC)
    path = Condition(f"{column} IS NOT NULL").only_column(row_schema(families[0]))
    if path is None or not (pa.types.is_timestamp(path.type) or pa.types.is_date(path.type)):
        raise InvalidArgumentError(
            "the column that rows expire by is not a timestamp or date",
            column=column,
            type=None if path is None else str(path.type),
            to_fix="name a timestamp or date; of a number give the condition itself, such as "
            f"{path or 'value.max'} < {int(limit.timestamp() * 1000)} where it counts milliseconds",
        )
    limit = limit.astimezone(UTC)
    if pa.types.is_date(path.type):  # a day is as old as its end
        return f"{path} < DATE '{limit.date()}'"
    return f"{path} < TIMESTAMPTZ '{limit.isoformat(sep=' ')}'"
