"""The memory that an engine has for its databases, where queries want different ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from statestore.engine.service import EngineService

MIB = 1 << 20


def test_memory_that_a_later_query_asks_for_is_refused_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches an option that is silently ignored, and a warning that comes with every store."""
    service = EngineService(f"{tmp_path}/statestore-scratch-1")

    with caplog.at_level(logging.WARNING):
        for partition, asked_bytes in enumerate((16 * MIB, 16 * MIB, 32 * MIB, 32 * MIB)):
            request = {
                "op": "load",
                "backend": "rocksdb",
                "store": {
                    "root": f"file:{tmp_path}/ck/state",
                    "operator": 0,
                    "partition": partition,
                    "run": "",
                },
                "version": 0,
                "num_partitions": 4,
                "options": {"rocksdb_memory_bytes": asked_bytes},
            }
            assert "ok" in json.loads(service.call(json.dumps(request)))

    # A session of another test may still speak in the background.
    (warning,) = (r.getMessage() for r in caplog.records if r.name == "statestore.engine.sessions")
    assert "key=spark.sql.streaming.stateStore.rocksdb.memoryBytes" in warning
    assert f"value={32 * MIB}, in_force={16 * MIB}. To fix: " in warning
