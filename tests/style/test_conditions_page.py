"""The table of Spark's conditions in docs/spark.md is the shim's."""

from __future__ import annotations

import re
from pathlib import Path

from statestore.core.errors import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
SHIM = REPOSITORY / "jvm-shim/src/main/scala/io/statestore/ShimErrors.scala"
PAGE = REPOSITORY / "docs/spark.md"
NAMES = {
    "Damaged": "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
    "Changed": "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
}


def test_conditions_on_the_page_are_those_of_the_shim() -> None:
    """Catches a condition that people are told to match on and that is never raised."""
    shim = SHIM.read_text()
    table = shim.partition("val LoadConditions")[2].partition("/**")[0]
    raised = {
        kind: NAMES.get(value) or value[2:-1].replace("${Load}", "CANNOT_LOAD_STATE_STORE.")
        for kind, value in re.findall(r'"([a-z-]+)" -> ([^,)\n]+)', table)
    }
    page = PAGE.read_text().partition("| kind | Spark's condition |")[2].partition("\n\n")[0]
    told = {
        kind: condition
        for kinds, condition in re.findall(r"^\| (.*) \| `([A-Z_.]+)` \|$", page, re.MULTILINE)
        for kind in re.findall(r"`([a-z-]+)`", kinds)
    }

    (of_rocksdb,) = set(
        re.findall(r"\$\{Load\}(\w+)", shim.partition("val RocksDBConditions")[2][:300])
    )
    assert f"| the same, rocksdb backend | `CANNOT_LOAD_STATE_STORE.{of_rocksdb}` |" in page
    # The shim finds this one itself.
    assert told.pop("schema-changed") == "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    assert told == raised
    assert raised.keys() <= KINDS.keys()
