"""Writes docs/configuration.md from the table of options: `python -m tools.option_table`.

The shim's jar embeds the same table as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from statestore.core.options import IGNORED, PREFIX, TABLE, Option

PATH = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
GROUPS = {
    "State and its files": (
        "maxParallelism",
        "partitions",
        "file",
        "overlay",
        "offHeap",
        "snapshot",
        "fsync",
        "orphan",
    ),
    "rocksdb backend": ("rocksdb",),
    "heap backend": ("heap",),
    "Engines and leases": ("engine", "lease"),
    "Storage": ("checkpointStorage", "s3", "fetch"),
}
"""Sections of the page, and the first words of the keys in each."""


def table_json() -> str:
    """Return the table as a JSON array, one object an option, those ignored at the end."""
    rows = [
        {
            "key": option.full_key,
            "field": option.field,
            "type": option.type,
            "default": option.default,
            "min": option.minimum,
            "max": option.maximum,
            "choices": list(option.choices),
            "scope": option.scope,
            "range": option.describe_range(),
            "default_text": option.default_text(),
        }
        for option in TABLE
    ]
    ignored = [{"key": PREFIX + key, "type": "ignored", "doc": reason} for key, reason in IGNORED]
    return json.dumps([*rows, *ignored], indent=2)


def reference() -> str:
    """Return the text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        f"Set as Spark configuration, each key under `{PREFIX}`. A query needs none of them",
        "but `providerClass`: [select a state backend](spark.md#selecting-it). An unknown key is",
        "refused with the nearest name. Written by `python -m tools.option_table`.",
    ]
    for title in GROUPS:
        found = [option for option in TABLE if _group_of(option) == title]
        lines += ["", f"## {title}", "", *_rows(found)]
    lines += [
        "",
        "## Options of Spark's RocksDB provider",
        "",
        "The rocksdb backend follows those that mean the same: `rocksdb.blockCacheSizeMB`,",
        "`rocksdb.blockSizeKB`, `rocksdb.compression` and `rocksdb.compactOnCommit`, above. The",
        "following are ignored with a warning; any other key under `rocksdb.` is refused.",
        "",
        "| key | why it is ignored |",
        "|---|---|",
        *(f"| `{key}` | {reason} |" for key, reason in IGNORED),
        "",
        "## Options of Spark that count here",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
        "| `spark.sql.streaming.minBatchesToRetain` | `100` | How many of the newest versions stay "
        "loadable, at least 2. |",
        f"| `{PREFIX}maintenanceInterval` | `60s` | How often maintenance runs. |",
    ]
    return "\n".join(lines) + "\n"


def _group_of(option: Option) -> str:
    first = option.key.partition(".")[0]
    return next(title for title, words in GROUPS.items() if first in words)


def _rows(options: Sequence[Option]) -> list[str]:
    lines = ["| key | default | unit | range | meaning | since |", "|---|---|---|---|---|---|"]
    for option in options:
        fixed = " Fixed by the first batch of a checkpoint." if option.fixed else ""
        lines.append(
            f"| `{option.key}` | `{option.default_text()}` | {option.unit} "
            f"| {option.describe_range()} | {option.doc}{fixed} | {option.since} |"
        )
    return lines


if __name__ == "__main__":
    PATH.write_text(reference())
