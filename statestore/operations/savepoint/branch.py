"""Branch: a second checkpoint that shares the state files of a first, to try new code on its state.

State files are never written in place, so sharing them is enough: on one local file system by hard
links, on one S3 storage by copies that the server makes. Files of another owner are copied. What
either query then writes or expires is its own. A branch is dropped by deleting its directory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.operations.copying import Copy, same_shape, source_of
from statestore.operations.metadata_file import BranchOrigin, new_query_id, query_metadata
from statestore.operations.passes import Linked

if TYPE_CHECKING:
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint


def decide_branch(checkpoint: OpenCheckpoint, target: Place, version: int | None = None) -> Copy:
    """Decide how a checkpoint is branched; nothing is written.

    Arguments and errors as `Checkpoint.branch`.
    """
    checkpoint.check_of_query()
    if checkpoint.backend in IN_DRIVER_MEMORY:
        raise InvalidArgumentError(
            "a checkpoint of the heap backend has no files to share",
            checkpoint=checkpoint.uri,
            to_fix="take a savepoint in the driver's own Python program, and restore that",
        )
    found = source_of("branch", checkpoint, target, version)
    # A batch that is planned may be in the output of the original, which the branch does not write.
    ended = {batch: entry for batch, entry in found.offsets.items() if batch < found.version}
    found = replace(found, offsets=ended)
    origin = BranchOrigin(checkpoint.uri, found.query_id or "", found.version)
    metadata = query_metadata(new_query_id(target.ids), origin)
    return same_shape("branch", found, target, Linked.between(found, target), lambda _: metadata)
