"""Writes the golden checkpoints of Spark's own state store providers, with the Spark installed.

Run only to add one: `python -m tests.golden.write_spark`. What is there is never edited; releases
must read it for ever.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark

from statestore import Checkpoint
from tests.spark.application import start_application
from tests.spark.harness import FORMAT_2, HDFS, NO_CHANGELOG, ROCKSDB, STATE_STORE, Lane
from tests.spark.helper_jar import compile_test_jar
from tests.spark.queries import AGGREGATION, SESSION_APPEND, one_input
from tests.spark.state_variables import EVENT_TIME

GOLDEN = Path(__file__).parent / "spark"
# Maintenance is then done within the tasks of a batch.
SNAPSHOTS = {
    f"{STATE_STORE}.minDeltasForSnapshot": "2",
    f"{STATE_STORE}.unloadOnCommit": "true",
}
CASES: dict[str, tuple[Any, str, dict[str, str]]] = {
    "hdfs": (AGGREGATION, HDFS, SNAPSHOTS),
    "hdfs-session-zstd": (SESSION_APPEND, HDFS, {f"{STATE_STORE}.compression.codec": "zstd"}),
    "rocksdb-no-changelog": (AGGREGATION, ROCKSDB, NO_CHANGELOG),
    "rocksdb-ids-variables": (EVENT_TIME, ROCKSDB, FORMAT_2 | SNAPSHOTS),
}


def main() -> None:
    """Write every case that is not there."""
    with tempfile.TemporaryDirectory() as work:
        spark = start_application(Path(work, "application"), [compile_test_jar("queries")])
        for name, (query, provider, conf) in CASES.items():
            target = GOLDEN / name
            if target.exists():
                continue
            conf = {**conf, "spark.sql.shuffle.partitions": "2"}
            lane = Lane(spark, replace(query, plan=PLAN), provider, Path(work, name), conf)
            lane.run(*PLAN[0])
            ignored = shutil.ignore_patterns("*.crc.crc")
            shutil.copytree(lane.checkpoint, target / "checkpoint", ignore=ignored)
            for file in (target / "checkpoint" / "sources").rglob("[0-9]*"):
                if file.is_file():
                    file.write_text("v1")  # the names of files that were read are of a machine
                    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            _write_expected(target, lane)
        spark.stop()


PLAN = one_input(4, num_rows=8, num_keys=5)


def _write_expected(target: Path, lane: Lane) -> None:
    """Write the rows of the newest version, which Spark's reader was compared with here."""
    path = str(target / "checkpoint")
    rows = {
        family.name: Checkpoint(path).rows(family.name).read().to_pylist()
        for store in Checkpoint(path).inspect()
        for family in store.column_families
        if len(store.column_families) == 1 or family.name != "default"
    }
    reader = lane.session().read.format("statestore").option("path", str(lane.checkpoint))
    for name, found in rows.items():
        if name == "default":
            assert len(found) == reader.load().count()
        elif not name.startswith("$"):
            assert len(found) == reader.option("stateVarName", name).load().count()
    expected = {"spark": pyspark.__version__, "rows": rows}
    (target / "expected.json").write_text(json.dumps(expected, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
