"""What the rows of a column family become, as it was decided; nothing that writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statestore.codec.key_bytes import split_values
from statestore.codec.rows import from_numpy, to_numpy
from statestore.operations.reading.condition import Condition
from statestore.operations.reading.read import decode_batch
from statestore.operations.writing.columns import FamilyColumns
from statestore.operations.writing.plans import FamilyPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.key_set import KeySet
    from statestore.operations.writing.given import GivenRows
    from statestore.operations.writing.shape import StoreShape

    Bits = tuple[int, npt.NDArray[np.uint8]]
    """As many answers, eight in a byte."""


@dataclass(frozen=True)
class FamilyRows:
    """What the rows of a column family become.

    Attributes:
        shape: Its store.
        before: The column family as it is.
        family: As it is afterwards.
        given: Rows that it gets; None for none.
        replaced: Whether all rows that are there go.
        without: Keys whose rows go; None for none.
        where: Makes the condition that rows fulfil which go, once for each thread that reads rows;
            None for none. A key with several values goes where one of them fulfils it.
        decided: What the condition has said of the rows, for who reads the same ones again.
        words: What happens, in words, for the plan.
        keys: Some of the keys whose rows go, in words.
    """

    shape: StoreShape
    before: ColumnFamily
    family: ColumnFamily
    given: GivenRows | None
    words: str
    replaced: bool = True
    without: KeySet | None = None
    where: Callable[[], Condition] | None = None
    decided: dict[int, list[Bits]] = field(default_factory=dict, compare=False)
    keys: tuple[str, ...] = ()

    @property
    def columns(self) -> FamilyColumns:
        """How given columns become rows."""
        return FamilyColumns(self.shape.name, self.family, self.shape.merges_zeros)

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
            self.keys,
        )


class Gone:
    """Which rows of a store go, told as they pass: no list of them is kept. Of one thread.

    A condition is asked once for each row: of rows that pass again, in the same order, a bit says
    what it has said.

    Args:
        rows: What its column families lose.
        partition: State partition of the rows; all of them pass, before anybody else asks again.
    """

    def __init__(self, rows: Iterable[FamilyRows], partition: int) -> None:
        self._rows = [(of, _Wanted.of(of, partition)) for of in rows]

    def __call__(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row of the state file schema whether it goes.

        Raises:
            InvalidArgumentError: A condition does not fit the rows.
            CorruptionError, IncompatibleError: They cannot be decoded.
        """
        families = to_numpy(batch.column(1), np.uint16)
        gone = np.zeros(batch.num_rows, bool)
        for of, wanted in self._rows:
            own = np.flatnonzero(families == of.family.id)
            if not len(own):
                continue
            if of.replaced:
                gone[own] = True
                continue
            rows = batch if len(own) == len(gone) else batch.take(from_numpy(own, pa.int64()))
            if of.without is not None:
                gone[own] |= of.without.has(rows.column(3))
            if wanted is not None:
                gone[own] |= wanted.next(rows)
        return gone


class _Wanted:
    """What a condition says of the rows of a column family and state partition, in their order."""

    def __init__(self, of: FamilyRows, partition: int) -> None:
        self._of = of
        self._partition = partition
        self._known = of.decided.get(partition)
        self._said: list[Bits] = []
        if self._known is None:
            of.decided[partition] = self._said
        self._condition: Condition | None = None
        self._ahead = np.zeros(0, bool)
        self._place = 0

    @classmethod
    def of(cls, of: FamilyRows, partition: int) -> _Wanted | None:
        """Return what the condition of a column family says, None where it has none."""
        return None if of.where is None else cls(of, partition)

    def next(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each of the next rows whether it is wanted."""
        if self._known is not None:
            return self._replayed(rows.num_rows, self._known)
        found = self._asked(rows)
        self._said.append((len(found), np.packbits(found)))
        return found

    def _replayed(self, num_rows: int, known: list[Bits]) -> npt.NDArray[np.bool_]:
        while len(self._ahead) < num_rows:
            count, bits = known[self._place]
            more = np.unpackbits(bits, count=count).astype(bool)
            self._ahead = np.concatenate([self._ahead, more])
            self._place += 1
        found, self._ahead = self._ahead[:num_rows], self._ahead[num_rows:]
        return found

    def _asked(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if self._condition is None and self._of.where is not None:
            self._condition = self._of.where()
        assert self._condition is not None, "rows are asked by a condition"  # noqa: S101
        family = self._of.before
        wanted = self._condition.rows(decode_batch(rows, family, self._partition))
        if family.multi_values:
            _, owners = split_values(rows.column(4))
            wanted = owners[wanted]
        found = np.zeros(rows.num_rows, bool)
        found[wanted] = True
        return found
