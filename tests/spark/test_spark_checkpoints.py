"""What Spark's own state store providers wrote is read as Spark's state reader reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore import Checkpoint
from statestore.core.clock import SystemClock
from statestore.core.errors import IncompatibleError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import open_storage
from statestore.operations.reading.diff import DiffCounts
from tests.seams import at

from .conftest import EXTENDED, OURS
from .features import missing
from .harness import (
    FORMAT_2,
    HDFS,
    NO_CHANGELOG,
    NUM_PARTITIONS,
    ROCKSDB,
    STATE_STORE,
    Lane,
    Query,
    run_plan,
)
from .queries import (
    AGGREGATION,
    EVERY_TYPE,
    GLOBAL,
    JOIN,
    JOIN_FORMAT,
    LIMITS,
    SESSION_APPEND,
    WATERMARK_DEDUP,
    one_input,
    two_inputs,
)
from .state_rows import assert_read
from .state_variables import EVENT_TIME, everything

CHECKSUMS = {f"{STATE_STORE}.rowChecksum.enabled": "true"}
OLD_MERGES = {f"{STATE_STORE}.rocksdb.mergeOperatorVersion": "1"}  # all there is before Spark 4.2
SNAPSHOTS = {
    f"{STATE_STORE}.minDeltasForSnapshot": "2",
    f"{STATE_STORE}.maintenanceInterval": "500ms",
}
FORMAT_4 = {"spark.sql.streaming.join.stateFormatV4.enabled": "true"}
EXPIRING = everything("scala", "ProcessingTime", (3_600_000,) * 3)
BATCHES = one_input(2, 2, 1)


def _codec(name: str) -> dict[str, str]:
    return {f"{STATE_STORE}.compression.codec": name}


def _join(version: str) -> Query:
    conf = {**JOIN.conf, JOIN_FORMAT: version}
    return replace(JOIN, name=f"join-format-{version}", plan=two_inputs(2, 1), conf=conf)


ROWS = replace(AGGREGATION, plan=BATCHES)
WITH_IDS = pytest.mark.needs("reader-of-ids")
KEYED: list[Any] = [
    pytest.param(query, provider, conf, id=name, marks=marks)
    for name, query, provider, conf, marks in (
        ("hdfs", ROWS, HDFS, {}, [EXTENDED]),
        ("hdfs-snapshots", ROWS, HDFS, SNAPSHOTS, []),
        ("hdfs-types-snappy", EVERY_TYPE, HDFS, _codec("snappy"), []),
        ("hdfs-checksums-zstd", ROWS, HDFS, CHECKSUMS | _codec("zstd"), []),
        ("hdfs-session", SESSION_APPEND, HDFS, {}, [EXTENDED]),
        ("hdfs-dedup", WATERMARK_DEDUP, HDFS, CHECKSUMS, []),
        ("hdfs-limit", LIMITS[0], HDFS, {}, []),
        ("hdfs-join", _join("2"), HDFS, {}, []),
        ("rocksdb-snapshots", ROWS, ROCKSDB, SNAPSHOTS, []),
        ("rocksdb-no-changelog", ROWS, ROCKSDB, NO_CHANGELOG, []),
        ("rocksdb-ids", ROWS, ROCKSDB, FORMAT_2 | SNAPSHOTS, WITH_IDS),
        ("rocksdb-ids-no-changelog", ROWS, ROCKSDB, FORMAT_2 | NO_CHANGELOG, [EXTENDED, WITH_IDS]),
        ("rocksdb-types-zstd", EVERY_TYPE, ROCKSDB, _codec("zstd"), []),
        ("rocksdb-checksums", ROWS, ROCKSDB, CHECKSUMS | NO_CHANGELOG, []),
        ("rocksdb-session", SESSION_APPEND, ROCKSDB, {}, []),
        ("rocksdb-dedup", WATERMARK_DEDUP, ROCKSDB, CHECKSUMS, []),
        ("rocksdb-global", GLOBAL, ROCKSDB, {}, []),
        ("rocksdb-join", _join("2"), ROCKSDB, FORMAT_2, [EXTENDED, WITH_IDS]),
    )
]
VARIABLES: list[Any] = [
    pytest.param(query, conf, id=name, marks=marks)
    for name, query, conf, marks in (
        ("changelog", EVENT_TIME, SNAPSHOTS, []),
        ("no-changelog", EVENT_TIME, NO_CHANGELOG, []),
        ("ids", EVENT_TIME, FORMAT_2, [EXTENDED, WITH_IDS]),
        ("checksums", EVENT_TIME, CHECKSUMS | SNAPSHOTS, EXTENDED),
        ("checksums-no-changelog", EVENT_TIME, CHECKSUMS | NO_CHANGELOG, []),
        ("delimiter", EVENT_TIME, OLD_MERGES | NO_CHANGELOG, []),
        ("delimiter-checksums", EVENT_TIME, OLD_MERGES | CHECKSUMS | SNAPSHOTS, EXTENDED),
        ("ttl", EXPIRING, {}, []),
    )
]

RunOnce = Callable[[Query, str, dict[str, str]], Lane]


@pytest.fixture(scope="module")
def run(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Returns a function that runs a query's plan on one of Spark's own providers."""
    lanes: dict[tuple[str, str, str], Lane] = {}

    def run_one(query: Query, provider: str, conf: dict[str, str]) -> Lane:
        name = query.name, provider, repr(conf)
        if name not in lanes:
            lanes[name] = Lane(spark, query, provider, tmp_path_factory.mktemp("lane"), conf)
            run_plan(lanes[name])
        return lanes[name]

    return run_one


def _batches(lane: Lane) -> list[int]:
    """The first batch, one in the middle and the last."""
    done = sorted(lane.batches)
    return [done[0], done[len(done) // 2], done[-1]]


def _rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def _of_spark(lane: Lane, batch: int, **options: Any) -> Any:
    reader = lane.session().read.format("statestore").option("batchId", batch).options(**options)
    return reader.load(str(lane.checkpoint))


@pytest.mark.parametrize(("query", "provider", "conf"), KEYED)
@pytest.mark.few(5)
def test_rows_are_what_spark_reads(
    run: RunOnce, query: Query, provider: str, conf: dict[str, str]
) -> None:
    """Catches files, checksums, encodings or key encoders read otherwise than Spark reads them."""
    lane = run(query, provider, conf)
    path = str(lane.checkpoint)

    assert sum(assert_read(lane, batch) for batch in _batches(lane))
    verified = Checkpoint(path).verify(versions="all", deep=True)
    assert verified.findings == ()
    assert len(verified.versions) == len(lane.batches)


def _variables(lane: Lane) -> dict[str, tuple[dict[str, str], Callable[[Any], Any]]]:
    """Return for each variable what Spark's reader is asked, and its row as ours."""
    return {
        "count": ({"stateVarName": "count"}, lambda row: (row["key"], row["value"])),
        "seen": ({"stateVarName": "seen"}, lambda row: (row["key"], row["list_element"])),
        "totals": (
            {"stateVarName": "totals"},
            lambda row: (
                {"key": row["key"], "userKey": row["user_map_key"]},
                row["user_map_value"],
            ),
        ),
    }


@pytest.mark.parametrize(("query", "conf"), VARIABLES)
@pytest.mark.few(2)
def test_variables_are_what_spark_reads(run: RunOnce, query: Query, conf: dict[str, str]) -> None:
    """Catches a column family taken for another one, and lists whose values run together."""
    lane = run(query, ROCKSDB, conf)
    path = str(lane.checkpoint)

    for batch in _batches(lane):
        for name, (options, as_ours) in _variables(lane).items():
            found = Checkpoint(path).rows(name, version=batch + 1).read().to_pylist()
            expected = _of_spark(lane, batch, **options).toArrow().to_pylist()
            assert found
            assert sorted(repr((row["key"], row["value"])) for row in found) == sorted(
                repr(as_ours(row)) for row in expected
            ), (name, batch)
        timers = [
            row["key"] for name in _timers(path) for row in
            Checkpoint(path).rows(name, version=batch + 1).read().to_pylist()
        ]  # fmt: skip
        expected = _of_spark(lane, batch, readRegisteredTimers="true").toArrow().to_pylist()
        assert sorted((repr(key["key"]), key["expiryTimestampMs"]) for key in timers) == sorted(
            (repr(row["key"]), row["expiration_timestamp_ms"]) for row in expected
        )
    verified = Checkpoint(path).verify(versions="all", deep=True)
    assert verified.findings == ()
    assert len(verified.versions) == len(lane.batches)


def _timers(path: str) -> list[str]:
    (store,) = Checkpoint(path).inspect()
    return [one.name for one in store.column_families if one.name.endswith("_keyToTimestamp")]


@pytest.mark.parametrize("version", ["3", "4"])
def test_joins_in_column_families_are_what_spark_reads(run: RunOnce, version: str) -> None:
    """Catches keys with a time in them, and values of several rows, taken apart wrongly."""
    if reason := missing(f"join-format-{version}"):
        pytest.skip(reason)
    lane = run(_join(version), ROCKSDB, FORMAT_4)
    path = str(lane.checkpoint)
    kind = "keyWithIndexToValue" if version == "3" else "keyWithTsToValues"

    for batch in _batches(lane):
        for side in ("left", "right"):
            found = Checkpoint(path).rows(f"{side}-{kind}", version=batch + 1).read()
            expected = _of_spark(lane, batch, joinSide=side).toArrow().to_pylist()
            assert sorted(
                repr((row["key"]["field0"], _without_match(row["value"])))
                for row in found.to_pylist()
            ) == sorted(
                repr((row["key"]["field0"], _without_match(row["value"]))) for row in expected
            )
    assert found.num_rows
    assert Checkpoint(path).verify(versions="all", deep=True).findings == ()


def _without_match(value: dict[str, Any]) -> dict[str, Any]:
    return {name: field for name, field in value.items() if name != "matched"}


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["hdfs", "rocksdb"])
def test_inspection_without_conversion(run: RunOnce, provider: str) -> None:
    """Catches a command that does not work on Spark's own checkpoints as it does on ours."""
    lane = run(ROWS, provider, SNAPSHOTS)
    path = str(lane.checkpoint)
    rows = Checkpoint(path).rows().read().to_pylist()

    listed, versions = Checkpoint(path).info, Checkpoint(path).versions()
    assert listed.backend == ("spark-hdfs" if provider == HDFS else "spark-rocksdb")
    assert [info.problem for info in versions] == [None] * len(lane.batches)
    assert versions[0].num_stores == NUM_PARTITIONS
    assert 0 < versions[0].incremental_bytes <= versions[0].full_bytes
    assert listed.stored_bytes >= versions[0].full_bytes
    (store,) = Checkpoint(path).inspect()
    assert (store.operator_name, store.num_partitions) == ("stateStoreSave", NUM_PARTITIONS)
    key = rows[0]["key"]["key"]
    assert Checkpoint(path).rows().find([key]).to_pylist() == [rows[0]]
    assert Checkpoint(path).rows().largest(3).num_rows == 3
    histogram = Checkpoint(path).rows().key_groups()
    assert sum(histogram["num_rows"].to_pylist()) == len(rows)
    assert {row["partition_id"] for row in histogram.to_pylist()} == {
        row["key_group"] % NUM_PARTITIONS for row in histogram.to_pylist()
    }
    first = {repr(row["key"]): row for row in Checkpoint(path).rows(version=1).read().to_pylist()}
    last = {repr(row["key"]): row for row in rows}
    changes = Checkpoint(path).rows(version=1).diff(Checkpoint(path).rows()).to_pylist()
    assert {repr(row["key"]) for row in changes if row["change"] == "added"} == {*last} - {*first}
    assert {repr(row["key"]) for row in changes if row["change"] == "changed"} == {
        key for key in {*last} & {*first} if last[key]["value"] != first[key]["value"]
    }


def test_both_providers_hold_the_same(run: RunOnce) -> None:
    """Catches bytes of keys and values that differ by who wrote them: nothing could be compared."""
    paths = [str(run(ROWS, provider, SNAPSHOTS).checkpoint) for provider in (HDFS, ROCKSDB)]

    assert (
        Checkpoint(paths[0]).rows().count_differences(Checkpoint(paths[1]).rows()) == DiffCounts()
    )
    assert (
        Checkpoint(paths[0]).rows(version=1).count_differences(Checkpoint(paths[1]).rows()).changed
    )


def test_keys_of_two_encodings_are_not_compared(run: RunOnce) -> None:
    """Catches equal sessions reported as removed and added, since their bytes differ."""
    old, new = [run(SESSION_APPEND, provider, {}).checkpoint for provider in (HDFS, ROCKSDB)]

    with pytest.raises(IncompatibleError, match="encoded in different ways"):
        Checkpoint(old).rows().count_differences(Checkpoint(new).rows())


@pytest.mark.skipif(not OURS, reason="no session with the jar")
@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["hdfs", "rocksdb"])
def test_a_checkpoint_equals_what_is_restored_from_it(
    run: RunOnce, provider: str, tmp_path: Path
) -> None:
    """Catches a restore that nobody can check, or rows that it changes."""
    lane = run(ROWS, provider, SNAPSHOTS)
    new = tmp_path / "restored"
    Checkpoint(lane.checkpoint).restore(new, backend="filesystem")

    assert (
        Checkpoint(lane.checkpoint).rows().count_differences(Checkpoint(new).rows()) == DiffCounts()
    )
    assert (
        Checkpoint(lane.checkpoint)
        .rows(version=1)
        .count_differences(Checkpoint(new).rows())
        .changed
    )


@pytest.mark.needs("unload-on-commit")
@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["hdfs", "rocksdb"])
def test_what_spark_did_not_delete_is_read(spark: Any, tmp_path: Path, provider: str) -> None:
    """Catches a version looked for in files that Spark has deleted since."""
    conf = SNAPSHOTS | {"spark.sql.streaming.minBatchesToRetain": "2"}
    conf |= {f"{STATE_STORE}.maxVersionsToDeletePerMaintenance": "-1"}
    conf |= {f"{STATE_STORE}.unloadOnCommit": "true"}
    *plan, reserve = one_input(4, 3, 6)
    lane = Lane(spark, replace(AGGREGATION, plan=plan), provider, tmp_path, conf)
    run_plan(lane)
    path = str(lane.checkpoint)
    # A batch deletes nothing where a maintenance thread of Spark's is still at the snapshot.
    while list(lane.checkpoint.glob("state/0/*/1.*")):
        lane.run(reserve.pop(0))

    verified = Checkpoint(path).verify(versions="all", deep=True)

    assert verified.findings == ()
    assert max(lane.batches) + 1 in verified.versions
    for version in verified.versions:
        assert assert_read(lane, version - 1)
    with pytest.raises(NotFoundError):
        Checkpoint(path).rows(version=1).read()


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["hdfs", "rocksdb"])
def test_state_on_s3_is_read_by_its_uri(
    run: RunOnce, provider: str, s3_server: Any, bucket: str, tmp_path: Path
) -> None:
    """Catches a read of Spark's files that needs a local path."""
    lane = run(ROWS, provider, SNAPSHOTS)
    options = StateStoreOptions(**s3_server.options())
    uri = f"s3://{bucket}/checkpoint"
    io, path = open_storage(uri, str(tmp_path), S3Settings.from_options(options), SystemClock())
    for file in lane.checkpoint.rglob("*"):
        # Hadoop writes checksum files on local disks only.
        if file.is_file() and not file.name.startswith("."):
            name = f"{path}/{file.relative_to(lane.checkpoint)}"
            io.write(name, file.read_bytes(), sync=True, overwrite=False)

    local = str(lane.checkpoint)
    assert (
        at(local, options=options).rows().count_differences(at(uri, options=options).rows())
        == DiffCounts()
    )
    assert (
        at(local, options=options)
        .rows(version=1)
        .count_differences(at(uri, options=options).rows())
        .changed
    )
    attached = {"here": at(local, options=options)}
    by_sql = at(uri, options=options).sql(
        "FROM state SEMI JOIN here.state USING (key, value)", attach=attached
    )
    assert _rows(by_sql.read()) == _rows(at(local, options=options).rows().read())
    assert at(uri, options=options).verify(versions="all", deep=True).findings == ()
    assert len(at(uri, options=options).versions()) == len(lane.batches)


def test_copies_without_the_query_are_read(run: RunOnce, tmp_path: Path) -> None:
    """Catches a read by absolute paths in Spark's files, which name where the checkpoint was."""
    lane = run(EVENT_TIME, ROCKSDB, NO_CHANGELOG)
    copy = tmp_path / "copy"
    shutil.copytree(lane.checkpoint, copy)

    assert (
        Checkpoint(lane.checkpoint).rows("seen").count_differences(Checkpoint(copy).rows("seen"))
        == DiffCounts()
    )
    assert Checkpoint(copy).rows("seen").read().num_rows
