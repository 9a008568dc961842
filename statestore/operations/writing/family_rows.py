"""Decided changes to the rows of a column family; nothing here writes them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.codec.key_bytes import split_values
from statestore.codec.partition_key import TTL_PREFIX
from statestore.codec.rows import SCHEMA, from_numpy, to_numpy
from statestore.operations.copy_result import FamilyChange
from statestore.operations.reading.condition import Condition
from statestore.operations.reading.read import decode_batch
from statestore.operations.writing.columns import FamilyColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.key_set import KeySet
    from statestore.operations.writing.given import GivenRows
    from statestore.operations.writing.shape import StoreShape


@dataclass(frozen=True)
class FamilyRows:
    """A decided change to the rows of a column family.

    Attributes:
        shape: Its store.
        before: The column family as it is.
        family: As it is afterwards.
        given: Rows that it gets; None for none.
        replaced: Whether all rows that are there go.
        without: Keys whose rows go; None for none.
        where: Makes the condition that rows fulfil which go, once for each thread that reads rows;
            None for none. A key with several values goes where one of them fulfils it.
        laid_by: Rows that go by it, by state partition, where they were looked for already.
        words: What happens, in words.
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
    laid_by: dict[int, LaidBy] = field(default_factory=dict, compare=False)
    keys: tuple[str, ...] = ()

    @property
    def columns(self) -> FamilyColumns:
        """Makes rows of given columns."""
        return FamilyColumns(self.shape.name, self.family, self.shape.key_form)

    @property
    def puts_expiries(self) -> bool:
        """Whether it gets rows by which Spark evicts what has expired."""
        return self.given is not None and self.family.name.startswith(TTL_PREFIX)

    @property
    def change(self) -> FamilyChange:
        """The change in words."""
        now, then = self.before, self.family
        return FamilyChange(
            self.shape.operator,
            self.shape.name,
            self.family.name,
            self.words,
            None if then.key_schema == now.key_schema else then.key_schema,
            None if then.value_schema == now.value_schema else then.value_schema,
            self.keys,
        )


class LaidBy:
    """Rows that go, on the local disk: without their values, in the order in which they passed.

    Args:
        directory: Local directory, which is deleted with what uses them.
    """

    def __init__(self, directory: str) -> None:
        handle, self._path = tempfile.mkstemp(prefix="gone-", suffix=".arrows", dir=directory)
        os.close(handle)
        self._file = pa.OSFile(self._path, "wb")
        self._stream = ipc.new_stream(self._file, SCHEMA)

    def add(self, rows: pa.RecordBatch) -> None:
        """Lay rows by."""
        if rows.num_rows:
            columns = [*rows.columns[:4], pa.nulls(rows.num_rows, pa.binary())]
            self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def finish(self) -> None:
        """Let them be read; none is added any more, and no file stays open."""
        self._stream.close()
        self._file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield them."""
        with pa.memory_map(self._path) as file, ipc.open_stream(file) as rows:
            yield from rows


class Gone:
    """Which rows of a store go, told as they pass: no list of them is kept. Of one thread.

    Args:
        rows: What its column families lose.
        partition: State partition of the rows.
    """

    def __init__(self, rows: Iterable[FamilyRows], partition: int) -> None:
        self._rows = [(of, None if of.where is None else of.where()) for of in rows]
        self._partition = partition

    def __call__(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row of the state file schema whether it goes.

        Raises:
            InvalidArgumentError: A condition does not fit the rows.
            CorruptionError, IncompatibleError: They cannot be decoded.
        """
        families = to_numpy(batch.column(1), np.uint16)
        gone = np.zeros(batch.num_rows, bool)
        for of, condition in self._rows:
            own = np.flatnonzero(families == of.family.id)
            if not len(own):
                continue
            if of.replaced:
                gone[own] = True
                continue
            rows = batch if len(own) == len(gone) else batch.take(from_numpy(own, pa.int64()))
            if of.without is not None:
                gone[own] |= of.without.has(rows.column(3))
            if condition is not None:
                gone[own[self._fulfil(rows, of.before, condition)]] = True
        return gone

    def _fulfil(
        self, rows: pa.RecordBatch, family: ColumnFamily, condition: Condition
    ) -> npt.NDArray[np.int64]:
        found, num_before = [], 0
        for part in decode_batch(rows, family, self._partition):
            found.append(num_before + condition.rows(part))
            num_before += part.num_rows
        fulfilling = np.concatenate(found)
        if not family.multi_values:
            return fulfilling
        _, owners = split_values(rows.column(4))
        return np.unique(owners[fulfilling])
