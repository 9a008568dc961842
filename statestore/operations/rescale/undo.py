"""The undo of a rescale: the way back, from wherever the rescale ended.

The state before the rescale is looked at first, whole: what an undo deletes may be all that a
checkpoint has, where it was converted or copied from another one after the rescale. Then the entry
of the commit log goes, so that Spark refuses to start, the rescaled versions, and the entry of the
offset log last.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import TYPE_CHECKING

from statestore.checkpoint.history import event_of, newest_line
from statestore.checkpoint.layout import RescaleRefName, parse_state_file_name
from statestore.checkpoint.rescale_refs import find_refs
from statestore.checkpoint.rescaling import undo_rescaled_version
from statestore.codec.references import StoreName
from statestore.core.errors import InvalidArgumentError
from statestore.operations.batches import find_rescale
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.rescale.results import UndoRescale
from statestore.operations.upkeep.verify import verify

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.step import Step

UNDO = "undo of a rescale"
_OF_COMMITTED = "rescale to the former number of state partitions instead"
_OF_BEGUN = (
    "put the file back from a copy; else go back to an older version with `statestore repair`, "
    "which takes the rescale back"
)


class Undo:
    """The undo of the newest rescale of an open checkpoint; making it changes nothing.

    Args:
        checkpoint: The checkpoint.

    Attributes:
        result: What it would do.

    Errors as `Checkpoint.undo_rescale`.
    """

    def __init__(self, checkpoint: OpenCheckpoint) -> None:
        self._checkpoint = checkpoint
        found = find_rescale(checkpoint)
        is_taken_back = False
        if found is None or found.is_committed:
            self._version = checkpoint.newest_version + 1
            self._locations = self._left_over()
            is_taken_back = _is_taken_back(checkpoint)
            if self._locations or is_taken_back:
                # One that was begun is newer, as is one that was taken back.
                found = None
        self._found = found
        if found is None:
            if not (self._locations or is_taken_back):
                # A rescale's entry that says what the one before it does, does not fit its state.
                checkpoint.heads(checkpoint.newest_version)
                compared = map(checkpoint.offsets.path, checkpoint.planned_batches[-2:])
                raise _nothing_to_undo(
                    checkpoint, "the newest batch is the query's own", read=", ".join(compared)
                )
            now = before = checkpoint.num_partitions
        else:
            self._version = found.version
            before, now = found.num_partitions_before, found.num_partitions
            self._locations = [checkpoint.location(store) for store in checkpoint.stores(now)]
            if found.is_committed:
                self._check_rescaled()
            self._check_state_before()
        self.result = UndoRescale(
            checkpoint=checkpoint.uri,
            batch=None if found is None else found.batch,
            was_committed=found is not None and found.is_committed,
            num_partitions_before=now,
            num_partitions=before,
            version=self._version,
            stores=tuple(location.store for location in self._locations),
            done=False,
        )

    def run(self, step: Step) -> None:
        """Do it."""
        found = self._found
        step.to_version = self._version - 1
        step.result["num_partitions"] = self.result.num_partitions
        if found is not None:
            step.take_back("commits", found.batch)
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            list(pool.map(self._take_away, self._locations))
        if found is not None:
            step.write_num_partitions(found.num_partitions_before, found.batch)
            step.take_back("offsets", found.batch)

    def _take_away(self, location: StoreLocation) -> None:
        undo_rescaled_version(location, self._version)

    def _check_rescaled(self) -> None:
        """Check that a rescale made the committed version: its reference file is beside it.

        Raises:
            InvalidArgumentError: Something else did, such as a conversion or a restore.
        """

        def is_other(location: StoreLocation) -> bool:
            files = location.io.list(location.directory)
            names = (parse_state_file_name(info.name) for info in files)
            is_there = any(name is not None and name.version == self._version for name in names)
            own = RescaleRefName(self._version, location.store.partition)
            return is_there and own not in find_refs(files)

        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            others = list(pool.map(is_other, self._locations))
        for location in compress(self._locations, others):
            raise _nothing_to_undo(
                self._checkpoint,
                "its newest state was not made by one",
                store=str(location.store),
            )

    def _check_state_before(self) -> None:
        """Check that the version before the rescale can be read, from every state partition.

        Raises:
            InvalidArgumentError: It cannot.
        """
        found = verify(self._checkpoint, versions=[self._version - 1]).findings
        is_begun = self._found is not None and not self._found.is_committed
        for finding in (finding for finding in found if not finding.is_recoverable):
            raise _nothing_to_undo(
                self._checkpoint,
                "the state before the rescale is not all here",
                to_fix=_OF_BEGUN if is_begun else _OF_COMMITTED,
                store=str(finding.store),
                found=finding.problem,
            )

    def _left_over(self) -> list[StoreLocation]:
        """Return the stores of a rescale that was killed before it planned its batch.

        Every rescaled version has a reference file in a state partition of those before it.
        """
        checkpoint = self._checkpoint

        def refs_in(source: StoreLocation) -> set[StoreName]:
            return {
                StoreName(source.store.operator, ref.partition, source.store.name)
                for ref in find_refs(source.io.list(source.directory))
                if ref.version == self._version
            }

        stores = checkpoint.stores(checkpoint.num_partitions)
        sources = [checkpoint.location(store) for store in stores]
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            found: set[StoreName] = set().union(*pool.map(refs_in, sources))
        return [checkpoint.location(store) for store in sorted(found, key=str)]


def _is_taken_back(checkpoint: OpenCheckpoint) -> bool:
    """Return whether the newest operation is an undo to the newest version that did not end."""
    newest = event_of(newest_line(checkpoint.io, checkpoint.path))
    asked = ("begun", UNDO, checkpoint.newest_version)
    return newest is not None and (newest.event, newest.operation, newest.to_version) == asked


def _nothing_to_undo(
    checkpoint: OpenCheckpoint, reason: str, *, to_fix: str = _OF_COMMITTED, **fields: str
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"there is no rescale to undo: {reason}",
        checkpoint=checkpoint.uri,
        batch=checkpoint.newest_planned,
        num_partitions=checkpoint.num_partitions,
        **fields,
        to_fix=to_fix,
    )
