"""What reads a damaged checkpoint: the operations, each for what must not come out another."""

import re
import shutil
from pathlib import Path

from statestore import Checkpoint, Savepoint
from statestore.core.options import StateStoreOptions
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.states import read_rows
from tests.seams import at, place_of

OPTIONS = StateStoreOptions(fsync_enabled=False, rocksdb_merge_min_files=3)
_PLACE = re.compile("/state/([0-9]+)/([0-9]+)/")


class Everything:
    """Stands where a `random.Random` chooses what is read."""

    def random(self):
        return 0.0

    def sample(self, found, _num):
        return found


class ReportedError(Exception):
    """An operation said what is damaged, and did not fail."""


def read_checkpoint(root, rng, path, operations, share):
    """Do some operations, and read the rows of one store.

    Args:
        root: The checkpoint or savepoint.
        rng: Chooses.
        path: A file that may be damaged; the store is one that it may be of.
        operations: Of this module, with the checkpoint and a new directory for arguments.
        share: Probability of each.

    Returns:
        What they found, by whatever names it, and which rows the newest version is made of. None
        where damage was reported.
    """
    found = {}
    new = Path(f"{root}-new")
    for operation in operations:
        if rng.random() < share:
            try:
                found |= operation(str(root), str(new))
            except ReportedError:
                return None
            finally:
                shutil.rmtree(new, ignore_errors=True)
    with open_checkpoint(place_of(root)) as checkpoint:
        heads = checkpoint.heads(checkpoint.newest_version)
        found["heads"] = {store: head.trailer.lineage for store, head in heads.items()}
        place = _PLACE.search(str(path))
        of = [
            store
            for store in heads
            if place is None
            or (
                str(store.operator) == place[1]
                # After a rescale from 2, a state partition is made of files of the one it is mod 2.
                and store.partition % 2 == int(place[2]) % 2
            )
        ]
        for store in rng.sample(of, min(len(of), 1)):
            found[store] = _rows(checkpoint, heads[store])
    return found


def listed(root, _new):
    """Versions that have no problem; a savepoint has one."""
    return {
        ("list", one.version): (one.kind, one.num_partitions, one.full_bytes)
        for one in Checkpoint(root).versions()
        if not one.problem
    }


def described(root, _new):
    found = Checkpoint(root).inspect()
    return {"describe": [(one.operator, one.name, one.num_keys) for one in found]}


def verified(root, _new):
    found = Checkpoint(root).verify(versions="all", deep=True)
    if found.findings:
        raise ReportedError
    return {"verify": (found.versions, found.num_rows)}


def repair_planned(root, _new):
    plan = Checkpoint(root).repair(dry_run=True)
    if plan.findings:
        raise ReportedError
    return {"repair": (plan.version, plan.is_needed)}


def repaired(root, new):
    """Whatever version is gone back to has its rows, and nothing is left to repair."""
    shutil.copytree(root, new)
    version = Checkpoint(new).repair(deep=False).version
    assert not Checkpoint(new).repair(deep=False, dry_run=True).is_needed
    return _rows_by_version(new, [version])


def rescale_planned(root, _new):
    stores = Checkpoint(root).rescale(8, count_rows=True, dry_run=True).stores
    return {"rescale": [(store.operator, store.name, store.partition_rows) for store in stores]}


def undo_planned(root, _new):
    plan = Checkpoint(root).undo_rescale(dry_run=True)
    return {"undo": (plan.batch, plan.num_partitions_before, plan.num_partitions)}


def expiry_planned(root, _new):
    return {"expire": at(root, options=OPTIONS).expire(2, dry_run=True).oldest_version}


def taken(root, new):
    at(root, options=OPTIONS).savepoint(new, form="native")
    return _rows_by_version(new)


def branched(root, new):
    at(root, options=OPTIONS).branch(new)
    return _rows_by_version(new)


def restored(root, new):
    at(root, kind=Savepoint, options=OPTIONS).restore(new)
    return _rows_by_version(new)


def every_version(root, _new):
    """Every version that a repair may go back to."""
    with open_checkpoint(place_of(root)) as checkpoint:
        return _rows_by_version(root, [batch + 1 for batch in checkpoint.done_batches])


def _rows_by_version(root, versions=None):
    """The rows of all stores at versions, the newest when None."""
    found = {}
    with open_checkpoint(place_of(root)) as checkpoint:
        for version in versions or [checkpoint.newest_version]:
            for store, head in checkpoint.heads(version).items():
                of = found.setdefault((version, store.operator, store.name), {})
                of |= _rows(checkpoint, head)
    return found


def _rows(checkpoint, head):
    return {
        row["key"]: row["value"]
        for batch in read_rows(checkpoint, head)
        for row in batch.to_pylist()
    }
