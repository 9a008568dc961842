"""Bad input is a clear error that says what to do, and once fixed the query goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import SparkSession

import statestore
from statestore.codec.trailer import FORMAT_VERSION, MAGIC_PREFIX

from .conftest import BODY, PROVIDER, MakeLane, state_in_files, state_in_memory
from .features import missing
from .harness import (
    FILESYSTEM,
    HDFS,
    HEAP,
    NUM_PARTITIONS,
    PROVIDER_CLASS,
    ROCKSDB,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Lane,
    run_plan,
)
from .job_process import REPOSITORY
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

QUERY = replace(AGGREGATION, plan=one_input(1, 2))
(FIRST,), REST = QUERY.plan
KEY_GROUPS = 24576  # the largest 3 * 2^k up to 32768


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """The rows of every batch, by Spark's own provider."""
    reference = Lane(spark, QUERY, HDFS, tmp_path_factory.mktemp("reference"))
    run_plan(reference)
    return reference.batches


class StoppedQuery:
    """A lane stopped after its first batch, with two more to process."""

    def __init__(self, lane: Lane, expected: dict[int, list[str]]) -> None:
        self.lane = lane
        self.expected = expected
        lane.run(FIRST)
        lane.feed(*REST)
        self.store = lane.checkpoint / "state" / "0" / "1"
        self.delta = self.store / f"1.delta.{BODY}"

    def refusal(self, **conf: str) -> str:
        """Run the lane, which must be refused; return the error's text."""
        return _refusal(self.lane, {f"{STATE_STORE}.{key}": conf[key] for key in conf})

    def refusal_at_start(self, **conf: str) -> str:
        """Start the lane, which must be refused before there is a query; return the text."""
        options = {f"{STATE_STORE}.{key}": conf[key] for key in conf}
        return _refusal(self.lane, options, IllegalArgumentException)

    def assert_goes_on(self) -> None:
        """Run the lane to its end and compare every batch."""
        self.lane.run()
        assert self.lane.batches == self.expected


LOAD = "CANNOT_LOAD_STATE_STORE."
CHANGED = "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"


def _refusal(
    lane: Lane,
    conf: dict[str, str] | None = None,
    kind: type[Exception] = StreamingQueryException,
) -> str:
    before = lane.conf
    lane.conf = {**before, **(conf or {})}
    try:
        with pytest.raises(kind) as raised:
            lane.run()
    finally:
        lane.conf = before
    text = str(raised.value)
    assert "To fix: " in text, text
    return text


@pytest.fixture
def stopped(make_lane: MakeLane, expected: dict[int, list[str]]) -> StoppedQuery:
    return StoppedQuery(make_lane(QUERY), expected)


def _edit_offsets(lane: Lane, key: str, value: str) -> None:
    """Change a conf in every entry of the offset log."""
    for path in (lane.checkpoint / "offsets").glob("[0-9]*"):
        version, metadata, *offsets = path.read_text().splitlines()
        fields = json.loads(metadata)
        fields["conf"][key] = value
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.write_text("\n".join([version, json.dumps(fields), *offsets]))


def test_unknown_or_bad_options_are_refused_by_name(stopped: StoppedQuery) -> None:
    """Catches options that are silently ignored or refused by tasks a minute later, and errors that
    leave a mark on the checkpoint.
    """
    planned = sorted((stopped.lane.checkpoint / "offsets").iterdir())
    text = stopped.refusal_at_start(**{"snapshot.maxChainLenght": "5"})
    assert f"{STATE_STORE}.snapshot.maxChainLenght" in text
    assert f"{STATE_STORE}.snapshot.maxChainLength" in text

    text = stopped.refusal_at_start(**{"rocksdb.incremenntal": "true"})
    assert f"{STATE_STORE}.rocksdb.incremental" in text
    # Spark's own, which its RocksDB provider takes in any case.
    stopped.lane.conf[f"{STATE_STORE}.rocksdb.tracktotalNumberOfRows"] = "true"

    for key, value, allowed in (
        ("rocksdb.blockSizeKB", "0", "4096"),
        ("maxParallelism", "40000", "32768"),
        ("overlay.maxBytes", "-7", "-1"),
        ("file.compression", "lz4", "zstd"),
        ("fsync.enabled", "maybe", "true or false"),
        ("snapshot.replayRatio", "much", "0.1"),
    ):
        text = stopped.refusal_at_start(**{key: value})
        assert f"{STATE_STORE}.{key}" in text
        assert value in text
        assert allowed in text

    assert sorted((stopped.lane.checkpoint / "offsets").iterdir()) == planned
    stopped.assert_goes_on()


def test_provider_under_a_misspelled_key_is_refused(make_lane: MakeLane) -> None:
    """Catches a query that runs on Spark's own provider, and nobody is told."""
    wrong = f"{STATE_STORE}.providerclass"
    lane = make_lane(QUERY, conf={wrong: PROVIDER})
    del lane.conf[PROVIDER_CLASS]

    text = _refusal(lane, kind=IllegalArgumentException)

    assert f"[unknown-option] unknown option: key={wrong}, nearest={PROVIDER_CLASS}." in text
    lane.conf[wrong] = HDFS  # is none of our business
    lane.run(FIRST)
    assert len(lane.batches) == 1


def test_max_parallelism_of_a_checkpoint_cannot_change(stopped: StoppedQuery) -> None:
    """Catches key groups that change under a checkpoint's files."""
    text = stopped.refusal(maxParallelism="12")
    assert f"[{CHANGED}]" in text
    assert f"{STATE_STORE}.maxParallelism from {KEY_GROUPS} to 12" in text
    assert "12" in text
    assert str(KEY_GROUPS) in text

    stopped.lane.conf[f"{STATE_STORE}.maxParallelism"] = str(KEY_GROUPS)
    stopped.assert_goes_on()


@pytest.mark.parametrize("partitions", [2, 6], ids=["fewer", "more"])
def test_number_of_partitions_cannot_change_by_conf(stopped: StoppedQuery, partitions: int) -> None:
    """Catches state partitions that silently start empty or lose their keys."""
    _edit_offsets(stopped.lane, "spark.sql.shuffle.partitions", str(partitions))

    text = stopped.refusal()

    assert f"[{CHANGED}]" in text
    assert f"spark.sql.shuffle.partitions from {NUM_PARTITIONS} to {partitions}" in text
    assert f"={partitions}" in text
    assert f"={NUM_PARTITIONS}" in text
    assert f"statestore rescale CHECKPOINT --num-partitions {partitions} --yes" in text
    _edit_offsets(stopped.lane, "spark.sql.shuffle.partitions", str(NUM_PARTITIONS))
    stopped.assert_goes_on()


@pytest.mark.needs("partition-warning")
def test_number_of_partitions_asked_for_in_vain_is_a_warning(
    stopped: StoppedQuery, application_root: Path
) -> None:
    """Catches a session's number that is ignored without a word on how to have it."""
    log = application_root / "spark.log"
    stopped.lane.conf["spark.sql.shuffle.partitions"] = "5"
    stopped.assert_goes_on()

    lines = [line for line in log.read_text().splitlines() if str(stopped.lane.checkpoint) in line]
    command = f"{stopped.lane.checkpoint} --num-partitions 5 --yes"
    (warning,) = [line for line in lines if "statestore rescale" in line]
    assert command in warning
    assert f"state_partitions={NUM_PARTITIONS}" in warning
    assert "counts for shuffles without state" in warning


@pytest.mark.parametrize(
    ("made_by", "opened_by"),
    [(HDFS, PROVIDER), (FILESYSTEM, HEAP), (HEAP, FILESYSTEM)],
    ids=["hdfs", "filesystem-by-heap", "heap-by-filesystem"],
)
def test_checkpoint_of_another_provider_is_refused(
    make_lane: MakeLane, expected: dict[int, list[str]], made_by: str, opened_by: str
) -> None:
    """Catches another provider's state taken for no state, also where lost state is no error."""
    stopped = StoppedQuery(make_lane(QUERY, made_by), expected)
    _edit_offsets(stopped.lane, PROVIDER_CLASS, opened_by)

    text = stopped.refusal(**{"heap.onDriverLoss": "empty"})

    assert f"[{CHANGED}]" in text
    assert f"{PROVIDER_CLASS} from {made_by.rpartition('.')[2]}" in text.replace(
        "io.statestore.", ""
    )
    assert f"to {opened_by} between restarts" in text
    assert "another" in text
    assert "[other-provider]" in text or "[backend-changed]" in text
    _edit_offsets(stopped.lane, PROVIDER_CLASS, made_by)
    stopped.assert_goes_on()


@state_in_files
def test_newer_format_version_is_refused(stopped: StoppedQuery) -> None:
    """Catches a file of a later release read as if it were ours."""
    written = stopped.delta.read_bytes()
    newer = MAGIC_PREFIX + struct.pack(">H", FORMAT_VERSION + 1)
    stopped.delta.write_bytes(written[: -len(newer)] + newer)

    text = stopped.refusal()

    assert f"[{LOAD}INVALID_CHANGE_LOG_READER_VERSION]" in text
    assert f"version cannot be {FORMAT_VERSION + 1}." in text
    assert f"format_version={FORMAT_VERSION + 1}" in text
    assert str(stopped.delta) in text
    stopped.delta.write_bytes(written)
    stopped.assert_goes_on()


@state_in_files
@state_in_memory
def test_damaged_file_is_refused_by_name(stopped: StoppedQuery) -> None:
    """Catches rows of a damaged delta."""
    written = stopped.delta.read_bytes()
    damaged = bytearray(written)
    damaged[len(damaged) // 3] ^= 0x10
    stopped.delta.write_bytes(damaged)

    text = stopped.refusal()

    if missing("damage-condition"):
        assert f"[{LOAD}UNCATEGORIZED]" in text
        assert str(stopped.delta) in text
    else:
        assert "[CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED]" in text
        assert f"File: {stopped.delta}" in text
    assert "[checksum-mismatch]" in text
    stopped.delta.write_bytes(written)
    stopped.assert_goes_on()


@state_in_files
def test_missing_file_is_refused_by_name(stopped: StoppedQuery, make_lane: MakeLane) -> None:
    """Catches a lost delta taken for an empty store, or reported as no built-in provider does."""
    built_in = make_lane(QUERY, ROCKSDB if PROVIDER == ROCKSDB_BACKEND else HDFS)
    built_in.run(FIRST)
    built_in.feed(*REST)
    for path in (built_in.checkpoint / "state" / "0" / "1").glob("*1.*"):
        path.unlink()
    with pytest.raises(StreamingQueryException) as raised:
        built_in.run()
    (condition,) = set(re.findall(r"\[(CANNOT_LOAD_STATE_STORE\.\w+)\]", str(raised.value)))
    written = stopped.delta.read_bytes()
    stopped.delta.unlink()

    text = stopped.refusal()

    assert f"[{condition}]" in text
    assert f"{stopped.delta} does not exist" in text
    assert "version=1" in text
    stopped.delta.write_bytes(written)
    stopped.assert_goes_on()


def test_changed_schema_is_refused(stopped: StoppedQuery) -> None:
    """Catches rows of one schema read with another, where Spark's own check is turned off."""
    before = stopped.lane.query
    stopped.lane.query = replace(
        before, build=lambda _, streams: streams["events"].groupBy("key").avg("value")
    )

    text = stopped.refusal(stateSchemaCheck="false")

    assert "[STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE]" in text
    assert "[schema-changed]" in text
    stopped.lane.query = before
    stopped.assert_goes_on()


@contextmanager
def _unwritable(folder: Path) -> Iterator[None]:
    mode = folder.stat().st_mode
    folder.chmod(0o500)
    # Root may write to any directory, but not to an immutable one.
    is_root = os.access(folder, os.W_OK)
    try:
        if is_root:
            made = subprocess.run(["chattr", "+i", str(folder)], check=False, capture_output=True)
            if made.returncode:
                pytest.skip(f"immutable directories are not permitted: {made.stderr.decode()}")
        yield
    finally:
        if is_root:
            subprocess.run(["chattr", "-i", str(folder)], check=False, capture_output=True)
        folder.chmod(mode)


@state_in_files
def test_unwritable_checkpoint_fails_the_commit_by_name(stopped: StoppedQuery) -> None:
    """Catches a commit that reports success though its file could not be published."""
    with _unwritable(stopped.store):
        text = stopped.refusal()

    assert "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT]" in text
    assert f"StateStore[id=(op=0,part=1),name=default,dir=file:{stopped.store}] at version" in text
    stopped.assert_goes_on()


@state_in_files
def test_file_in_place_of_the_store_is_refused_by_name(stopped: StoppedQuery) -> None:
    """Catches a store directory that is no directory taken for an empty store."""
    away = stopped.store.with_name("away")
    stopped.store.rename(away)
    stopped.store.write_text("in the way")

    text = stopped.refusal()

    assert str(stopped.store) in text
    stopped.store.unlink()
    away.rename(stopped.store)
    stopped.assert_goes_on()


@state_in_files
@pytest.mark.parametrize("what", ["partition", "operator"])
def test_state_removed_while_running_fails_the_query(stopped: StoppedQuery, what: str) -> None:
    """Catches a commit into a directory made anew, or that fails in no error class of Spark's."""
    removed = stopped.store if what == "partition" else stopped.store.parent
    away = stopped.lane.root / "away"
    stopped.lane.on_batch = lambda batch_id: removed.rename(away) if not away.exists() else None

    text = stopped.refusal()

    assert "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT]" in text
    assert str(stopped.store.parent) in text
    stopped.lane.on_batch = lambda batch_id: None
    shutil.rmtree(removed, ignore_errors=True)
    away.rename(removed)
    stopped.assert_goes_on()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("mounting is not permitted here; tests/faults fails writes by ENOSPC instead")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@state_in_files
def test_full_disk_fails_the_commit_and_loses_nothing(
    make_lane: MakeLane, small_disk: Path
) -> None:
    """Catches a half-written delta taken for a version."""
    plan = one_input(1, 1, 1, num_rows=9000, num_keys=6000)
    query = replace(AGGREGATION, plan=plan)
    reference, ours = make_lane(query, HDFS), make_lane(query)
    ours.checkpoint = small_disk / "checkpoint"
    for lane in (reference, ours):
        lane.run(*plan[0])
        lane.feed(*plan[1], *plan[2])
    free = os.statvfs(small_disk)
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        # Spark's own log entries still fit, the deltas of a batch do not.
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 64 * 1024)

    text = _refusal(ours)

    assert "No space left on device" in text
    assert "state/0/" in text
    filler.unlink()
    reference.run()
    ours.run()
    assert ours.batches == reference.batches


@state_in_files
@pytest.mark.extended
def test_wrong_interpreter_or_package_is_refused(
    start_job: Callable[..., Any], expected: dict[int, list[str]], tmp_path: Path
) -> None:
    """Catches an engine that cannot start, or is of another release, and does not say why.

    And one that cannot start in a PEX, which drops what PYTHONPATH names.
    """
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    older = tmp_path / "older"
    shutil.copytree(
        REPOSITORY / "statestore",
        older / "statestore",
        ignore=shutil.ignore_patterns("jars", "__pycache__"),
    )
    pex = tmp_path / "pex"
    pex.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PEX_EXTRA_SYS_PATH:?}}" exec {sys.executable} "$@"\n'
    )
    pex.chmod(0o755)
    version = older / "statestore" / "core" / "version.py"
    version.write_text(version.read_text().replace(statestore.__version__, "0.0.9"))

    job = start_job(
        "interpreters",
        provider=PROVIDER,
        confs=[
            {"spark.pyspark.python": "nonexistent-python3"},
            {"spark.pyspark.python": str(bare / "bin" / "python")},
            {f"{STATE_STORE}.engine.package": "installed"},
            {"spark.pyspark.python": str(pex)},
        ],
        environment={"PYTHONPATH": str(older)},
    )
    report = job.report()

    missing, without_packages, apart = report["errors"]
    assert "nonexistent-python3" in missing
    assert "spark.pyspark.python" in missing
    assert "pyarrow" in without_packages
    assert str(bare) in without_packages
    assert "0.0.9" in apart
    assert "0.1.0" in apart
    assert all("To fix: " in error for error in report["errors"])
    found = {int(batch_id): rows for batch_id, rows in report["batches"].items()}
    assert found == expected
    log = (job.root / "spark.log").read_text()
    assert "maintenance failed" not in log, "maintenance did not end with its application"
