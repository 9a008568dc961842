"""Writes the golden checkpoints of the current format version.

Run only when a new format version begins: `python tests/golden/write_golden.py --rewrite-golden`.
A golden file of a released format version is never edited; later versions must read it for ever.
"""

import json
import shutil
import sys
from pathlib import Path

import statestore
from statestore.codec.trailer import FORMAT_VERSION
from statestore.core.clock import ManualClock
from statestore.core.ids import CountingIds
from statestore.core.options import StateStoreOptions

GOLDEN = Path(__file__).parent / f"v{FORMAT_VERSION}" / "filesystem"


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


def main():
    """Write every golden checkpoint anew."""
    if sys.argv[1:] != ["--rewrite-golden"]:
        sys.exit("usage: python tests/golden/write_golden.py --rewrite-golden")
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for checkpoint_format, compression in ((1, "none"), (2, "zstd")):
        root = GOLDEN / f"checkpoint-format-{checkpoint_format}"
        contents = write_checkpoint(root, checkpoint_format, compression)
        (root / "expected.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
