"""What the rows of a column family become, as it was decided; nothing that writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.operations.writing.columns import FamilyColumns
from statestore.operations.writing.plans import FamilyPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.writing.given import GivenRows
    from statestore.operations.writing.shape import StoreShape


@dataclass(frozen=True)
class FamilyRows:
    """What the rows of a column family become.

    Attributes:
        shape: Its store.
        before: The column family as it is.
        family: As it is afterwards.
        given: Rows that it gets; None for none.
        replaced: Whether the rows that are there go; else those stay whose key is not in `without`.
        without: Keys, as bytes, whose rows go; None for none.
        words: What happens, in words, for the plan.
    """

    shape: StoreShape
    before: ColumnFamily
    family: ColumnFamily
    given: GivenRows | None
    words: str
    replaced: bool = True
    without: pa.Array[Any] | None = None

    @property
    def columns(self) -> FamilyColumns:
        """How given columns become rows."""
        return FamilyColumns(self.shape.name, self.family)

    @property
    def plan(self) -> FamilyPlan:
        """What is done, in words."""
        now, then = self.before, self.family
        return FamilyPlan(
            self.shape.operator,
            self.shape.name,
            self.family.name,
            self.words,
            None if then.key_schema == now.key_schema else then.key_schema,
            None if then.value_schema == now.value_schema else then.value_schema,
        )
