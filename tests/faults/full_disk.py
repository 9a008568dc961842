"""Operations on a checkpoint that lies on a disk with little space left, as a process of its own.

Arguments: the disk, a small one that may be filled, and a checkpoint to begin with. Prints for each
operation and each amount of space what came of it, as JSON.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from statestore import Checkpoint, Edited, Savepoint, StateStoreError, write_savepoint

LEFT = (0, 24 << 10, 96 << 10)
"""Bytes of space left."""
HALVED_SQL = "SELECT key, {'value': value.value // 2} AS value FROM state"


def halved(rows):
    values = pc.struct_field(rows["value"], "value")
    return pa.table({"key": rows["key"], "value.value": pc.divide(values, 2)})


def rows_of(at):
    return Checkpoint(at / "ck").rows(0).read()


OPERATIONS = {
    "savepoint": lambda at: Checkpoint(at / "ck").savepoint(at / "new"),
    "native savepoint": lambda at: Checkpoint(at / "ck").savepoint(at / "new", form="native"),
    "branch": lambda at: Checkpoint(at / "ck").branch(at / "new"),
    "restore": lambda at: Savepoint(at / "sp").restore(at / "new"),
    "restore and rehash": lambda at: Savepoint(at / "sp").restore(at / "new", num_partitions=3),
    "transform": lambda at: Checkpoint(at / "ck").transform(at / "new", {0: halved}),
    "transform by SQL": lambda at: Checkpoint(at / "ck").transform(at / "new", {0: HALVED_SQL}),
    "transform by an edit": lambda at: Checkpoint(at / "ck").transform(
        at / "new", {0: Edited(upsert=rows_of(at))}
    ),
    "edit": lambda at: Checkpoint(at / "ck").edit(0, upsert=rows_of(at)),
    "rows as a savepoint": lambda at: write_savepoint(
        at / "new", like=Checkpoint(at / "ck"), rows={0: rows_of(at)}
    ),
    "rescale": lambda at: Checkpoint(at / "ck").rescale(8),
    "rescale and rehash": lambda at: Checkpoint(at / "ck").rescale(3),
    "compact": lambda at: Checkpoint(at / "ck").compact(),
}


def fill(disk, left):
    """Take all space of a disk but for some; return the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(max(0, filler.stat().st_size - left))
    return filler


def attempt(operation, disk, source, left):
    """Do an operation with little space; then again with enough, where that failed."""
    for name in ("ck", "sp", "new", "tmp"):
        shutil.rmtree(disk / name, ignore_errors=True)
    shutil.copytree(source / "ck", disk / "ck")
    shutil.copytree(source / "sp", disk / "sp")
    (disk / "tmp").mkdir()
    tempfile.tempdir = str(disk / "tmp")
    filler = fill(disk, left)
    outcome = "done"
    try:
        OPERATIONS[operation](disk)
    except StateStoreError as error:
        outcome = f"{error.kind}: {error}"
    except Exception as error:  # noqa: BLE001 (this is what is looked for)
        outcome = f"raw {error!r}"
    finally:
        filler.unlink()
    if outcome != "done":
        OPERATIONS[operation](disk)
    findings = [
        finding.problem
        for path in (disk / "ck", disk / "new")
        if (path / "metadata").exists()
        for finding in Checkpoint(path).verify(deep=True).findings
    ]
    return outcome, findings


def main():
    disk, source = map(Path, sys.argv[1:])
    for operation in OPERATIONS:
        outcomes = [attempt(operation, disk, source, left) for left in LEFT]
        print(json.dumps([operation, outcomes]), flush=True)  # noqa: T201 (its caller reads it)


if __name__ == "__main__":
    main()
