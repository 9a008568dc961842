"""Writes the golden checkpoints and savepoints of the current format version.

Run only when a new format version begins: `python -m tests.golden.write_golden --rewrite-golden`.
A golden file of a released format version is never edited; later versions must read it for ever.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import statestore
from statestore.codec.trailer import FORMAT_VERSION
from statestore.core.clock import ManualClock
from statestore.core.ids import CountingIds
from statestore.core.options import StateStoreOptions
from statestore.operations.savepoint.savepoint import take_savepoint
from tests.operations.checkpoints import AGGREGATION, GLOBAL_LIMIT, QueryCheckpoint

GOLDEN = Path(__file__).parent / f"v{FORMAT_VERSION}"


def write_checkpoint(root, checkpoint_format, compression):
    """Write five versions with a snapshot of the third; return the rows of each version."""
    contents = {}
    with statestore.open_store(
        str(root),
        operator=2,
        partition=1,
        name="left-keyToNumValues",
        num_partitions=4,
        checkpoint_format=checkpoint_format,
        options=StateStoreOptions(file_compression=compression),
        ids=CountingIds(),
        clock=ManualClock(),
    ) as store:
        for number in range(1, 6):
            batch = store.begin()
            batch.create_column_family("timers", multi_values=True)
            for key in range(number * 4):
                batch.put(b"key-%03d" % key, b"%d/%d" % (number, key), key_group=key * 4 + 1)
            batch.delete(b"key-%03d" % number)
            batch.merge(b"\x00\xff", b"%d;" % number, key_group=9, column_family="timers")
            batch.put(b"", b"", key_group=5, column_family="timers")
            batch.commit()
            if number == 3:
                store.snapshot()
            contents[number] = {
                "checkpoint_id": store.checkpoint_id,
                "families": {
                    family.name: [
                        [key.hex(), value.hex()]
                        for key, value in store.scan(column_family=family.name)
                    ]
                    for family in store.column_families
                },
            }
    return contents


def write_savepoint(root, form, checkpoint_format):
    """Take a savepoint of a query on RocksDB; return what it says and the rows that it holds."""
    fixed = {"ids": CountingIds(), "clock": ManualClock()}
    with tempfile.TemporaryDirectory() as work:
        query = QueryCheckpoint(
            f"{work}/query", backend="rocksdb", num_partitions=2,
            checkpoint_format=checkpoint_format, operators=(AGGREGATION, GLOBAL_LIMIT), **fixed,
        )  # fmt: skip
        query.run({f"key-{number}": f"{number}" for number in range(12)})
        query.run({"key-1": "changed", "key-2": None, "κλειδί": ""})
        taken = take_savepoint(query.path, str(root), form=form, **fixed)
    rows = {
        f"{operator}/{name}": {key.hex(): value.hex() for key, value in sorted(found.items())}
        for (operator, name), found in query.model.items()
    }
    return {"savepoint": asdict(taken), "rows": rows}


def main():
    """Write every golden checkpoint and savepoint anew."""
    if sys.argv[1:] != ["--rewrite-golden"]:
        sys.exit("usage: python -m tests.golden.write_golden --rewrite-golden")
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for checkpoint_format, compression in ((1, "none"), (2, "zstd")):
        root = GOLDEN / "filesystem" / f"checkpoint-format-{checkpoint_format}"
        contents = write_checkpoint(root, checkpoint_format, compression)
        (root / "expected.json").write_text(json.dumps(contents, indent=1) + "\n")
    for form, checkpoint_format in (("canonical", 1), ("native", 2)):
        root = GOLDEN / "savepoints" / form
        expected = write_savepoint(root / "savepoint", form, checkpoint_format)
        (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
