"""Keys forgotten in what Spark wrote: every operator, all of its column families."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "spark-4.3.tar.xz"
EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("name", "family", "key"),
    [
        ("FileSystemStateStoreProvider-v1-everything-pandas-EventTime-0-0-0", "count", "key"),
        ("RocksDBStateStoreProvider-v2-everything-scala-EventTime-0-0-0", "count", "value"),
        ("FileSystemStateStoreProvider-v1-session-append", "default", None),
        pytest.param(
            "RocksDBStateStoreProvider-v2-aggregation-update", "default", None, marks=EXTENDED
        ),
        pytest.param(
            "FileSystemStateStoreProvider-v1-flat-map-groups-event-time", "default", None,
            marks=EXTENDED,
        ),
    ],
)  # fmt: skip
def test_a_key_that_spark_wrote_is_forgotten_in_every_column_family(
    tmp_path: Path, name: str, family: str, key: str | None
) -> None:
    """Catches a column family whose keys are of another form, met when all is deleted already."""
    with tarfile.open(GOLDEN) as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == name]
        archive.extractall(tmp_path, members, filter="data")
    checkpoint = Checkpoint(tmp_path / name / "checkpoint")
    rows = checkpoint.rows(family).read()
    (first, *_) = rows["key"].to_pylist()
    columns = [key] if key is not None else grouping_columns(first)
    kinds: Any = rows["key"].type
    keys = pa.table(
        {f"key.{one}": pa.array([first[one]], kinds.field(one).type) for one in columns}
    )
    before = checkpoint.search_keys(keys)
    assert {hit.path for hit in before.hits} >= {"row"}

    done = checkpoint.forget(keys=keys, all_rows=True).certificate

    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten", done.describe()
    assert done.num_rows >= 1
    left = checkpoint.rows(family).read()["key"].to_pylist()
    assert all(any(row[one] != first[one] for one in columns) for row in left)
    assert checkpoint.verify(versions="all", deep=True).findings == ()


def grouping_columns(key: dict[str, Any]) -> list[str]:
    """Columns of a key that Spark partitions by: all but the start of a session."""
    return [name for name in key if name != "sessionStartTime"]
