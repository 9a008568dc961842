"""Writes the golden checkpoints and savepoints of a format version.

Run only when it begins: `python -m tests.golden.write_golden --rewrite-golden v2`.
A golden file of a released format version is never edited; later versions must read it for ever.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from statestore.core.clock import ManualClock
from statestore.core.ids import CountingIds
from statestore.core.options import StateStoreOptions
from tests.checkpoints import AGGREGATION, GLOBAL_LIMIT, query_of
from tests.golden.forms import write_forms
from tests.seams import at

GOLDEN = Path(__file__).parent
SCHEMAS = {
    number: json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names
            ],
        }
    )
    for number, names in enumerate(("a", "ab", "b"))
}
"""Of values, as Spark numbers them: a field is added, another removed."""


def write_checkpoint(root, checkpoint_format, compression):
    """Write five versions with a snapshot of the third; return the rows of each version."""
    contents = {}
    with at(
        root,
        options=StateStoreOptions(file_compression=compression),
        ids=CountingIds(),
        clock=ManualClock(),
    ).open_store(
        operator=2,
        partition=1,
        num_partitions=4,
        checkpoint_format=checkpoint_format,
        store="left-keyToNumValues",
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
        query = query_of(
            f"{work}/query", backend="rocksdb", num_partitions=2,
            checkpoint_format=checkpoint_format, operators=(AGGREGATION, GLOBAL_LIMIT), **fixed,
        )  # fmt: skip
        query.run_batch({f"key-{number}": f"{number}" for number in range(12)})
        query.run_batch({"key-1": "changed", "key-2": None, "κλειδί": ""})
        taken = at(query.path, **fixed).savepoint(root, form=form).made.info
    rows = {
        f"{operator}/{name}": {key.hex(): value.hex() for key, value in sorted(found.items())}
        for (operator, name), found in query.expected().items()
    }
    return {"savepoint": asdict(taken), "rows": rows}


def write_evolved(root):
    """Write a version of each value schema and a snapshot; return the values of each, by key."""
    contents = {}
    fixed = {"ids": CountingIds(), "clock": ManualClock()}
    with at(root, **fixed).open_store(num_partitions=1) as store:
        for number, schema in SCHEMAS.items():
            batch = store.begin()
            batch.create_column_family("value")
            default, family, *_ = batch.column_families
            known = {**family.value_schemas, number: schema}
            family = replace(family, value_schema=schema, value_schemas=known)
            batch.column_families = (default, family)
            numbers = [1, 2] if schema.count("long") == 2 else [1]
            for key in range(number, 4):
                row = [0, *(10 * place + key for place in numbers), number]
                value = b"".join(word.to_bytes(8, "little") for word in row)
                batch.put(b"%d" % key, value, key_group=0, column_family="value")
            batch.commit()
            contents[number + 1] = {
                key.decode(): value.hex() for key, value in store.scan(column_family="value")
            }
        store.snapshot()
    return contents


def write_first(root):
    """Write what version 1 has: checkpoints, and savepoints in both forms."""
    for checkpoint_format, compression in ((1, "none"), (2, "zstd")):
        place = root / "filesystem" / f"checkpoint-format-{checkpoint_format}"
        contents = write_checkpoint(place, checkpoint_format, compression)
        (place / "expected.json").write_text(json.dumps(contents, indent=1) + "\n")
    for form, checkpoint_format in (("canonical", 1), ("native", 2)):
        place = root / "savepoints" / form
        expected = write_savepoint(place / "savepoint", form, checkpoint_format)
        (place / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    write_forms(root / "forms")


def write_second(root):
    """Write what version 2 has beside: values of several schemas."""
    place = root / "evolved"
    contents = write_evolved(place)
    (place / "expected.json").write_text(json.dumps(contents, indent=1) + "\n")


WRITERS = {"v1": write_first, "v1/forms": write_forms, "v2": write_second}


def main():
    """Write the golden files of a format version anew."""
    if sys.argv[1:-1] != ["--rewrite-golden"] or sys.argv[-1] not in WRITERS:
        sys.exit("usage: python -m tests.golden.write_golden --rewrite-golden v2")
    root = GOLDEN / sys.argv[-1]
    shutil.rmtree(root, ignore_errors=True)
    WRITERS[sys.argv[-1]](root)


if __name__ == "__main__":
    main()
