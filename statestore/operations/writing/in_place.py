"""An edit of a stopped query's checkpoint in place: the next version, with other rows.

State first, Spark's logs last, as a rescale does it: the entry of the commit log is the moment from
which the edited rows count. Before it a query that is started goes on from the rows of before.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import store_directory
from statestore.core.ids import RandomIds
from statestore.operations.full_state import states_at_once
from statestore.operations.result import no_progress
from statestore.operations.step import step
from statestore.operations.writing.changes import changes_of, write_changes
from statestore.operations.writing.edit_result import Edit

if TYPE_CHECKING:
    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.operations.batches import EditBatch
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.result import Progress
    from statestore.operations.writing.family_rows import FamilyRows
    from statestore.operations.writing.shape import StoreShape


@dataclass(frozen=True)
class EditInPlace:
    """An edit that was decided and is not yet made.

    Attributes:
        version: The version that it changes: the newest one.
        shapes: All stores.
        rows: Column families with rows that change.
        watermark_ms: Watermark from now on; None for that of before.
        batch: The batch that it is in Spark's logs.
    """

    version: CommittedVersion
    shapes: tuple[StoreShape, ...]
    rows: tuple[FamilyRows, ...]
    watermark_ms: int | None
    batch: EditBatch

    def check(self) -> None:
        """Check that rows that are put can be routed by their keys.

        Raises:
            IncompatibleError: They cannot (kind not-rescalable).
        """
        for of in self.rows:
            if of.given is not None:
                of.shape.require_by_key()

    @property
    def result(self) -> Edit:
        """What it would do."""
        checkpoint = self.version.checkpoint
        return Edit(
            checkpoint=checkpoint.uri,
            backend=checkpoint.backend,
            batch=self.batch.batch,
            version=self.batch.batch + 1,
            is_begun=self.batch.is_begun,
            families=tuple(of.change for of in self.rows),
            watermark_ms=self.watermark_ms,
            state_bytes=self.version.state_bytes(
                store
                for store in self.version.heads
                if any(of.shape.operator == store.operator for of in self.rows)
            ),
            directories=tuple(store_directory("state", store) for store in self.version.heads),
            done=False,
        )

    def run(self, progress: Progress = no_progress) -> Edit:
        """Make it, and return what was done; guarantee and errors as `Checkpoint.edit`.

        Args:
            progress: Called with the stores done and their number.
        """
        checkpoint, batch = self.version.checkpoint, self.batch
        families = [[of.shape.operator, of.shape.name, of.before.name] for of in self.rows]
        with step(
            checkpoint, "edit", column_families=families, watermark_ms=self.watermark_ms
        ) as one:
            one.to_version = batch.batch + 1
            work = checkpoint.synced_work()
            made: dict[StoreName, PublishedFile] = {}
            for number, shape in enumerate(self.shapes):
                made |= self._write(shape, work)
                progress(number + 1, len(self.shapes))
            rows = [head.trailer.rows for head in made.values()]
            one.result |= {
                "rows_put": sum(of.put for of in rows),
                "rows_deleted": sum(of.delete for of in rows),
            }
            one.commit(
                batch.batch,
                "edit",
                made,
                is_begun=batch.is_begun,
                watermark_ms=self.watermark_ms,
                puts_expiries=any(of.puts_expiries for of in self.rows),
            )
        return replace(self.result, done=True)

    def _write(self, shape: StoreShape, work: Work) -> dict[StoreName, PublishedFile]:
        checkpoint = self.version.checkpoint
        rows = [of for of in self.rows if of.shape == shape]
        ids = RandomIds()
        changes = changes_of(checkpoint, shape, rows, work.scratch_directory)

        def write_one(head: PublishedFile) -> PublishedFile:
            location = checkpoint.location(head.trailer.store)
            return write_changes(location, head, changes(head), ids.new_id(), work)

        with ThreadPoolExecutor(states_at_once()) as pool:
            made = list(pool.map(write_one, shape.heads))
        return {one.trailer.store: one for one in made}
