"""Bad input is a clear error that says what to do, and once fixed the query goes on."""

from __future__ import annotations

import json
import os
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
from pyspark.errors import StreamingQueryException

from statestore.codec.trailer import FORMAT_VERSION, MAGIC_PREFIX

from .conftest import PROVIDER, MakeLane
from .harness import HDFS, NUM_PARTITIONS, PROVIDER_CLASS, STATE_STORE, Lane
from .job_process import REPOSITORY
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

FIRST, *REST = AGGREGATION.plan
KEY_GROUPS = 24576  # the largest 3 * 2^k up to 32768


class Pair:
    """A query on Spark's provider and on the one under test, stopped in the middle of its plan."""

    def __init__(self, make_lane: MakeLane, provider: str = PROVIDER) -> None:
        self.reference = make_lane(AGGREGATION, HDFS)
        self.ours = make_lane(AGGREGATION, provider)
        for lane in (self.reference, self.ours):
            lane.run(*FIRST)
            lane.feed(*(batch for batches in REST for batch in batches))
        self.store = self.ours.checkpoint / "state" / "0" / "1"
        self.newest_delta = self.store / f"{len(FIRST)}.delta.arrows"

    def refusal(self, **conf: str) -> str:
        """Run the lane, which must be refused; return the error's text."""
        return _refusal(self.ours, {f"{STATE_STORE}.{key}": conf[key] for key in conf})

    def assert_goes_on(self) -> None:
        """Finish the plan on both and compare every batch."""
        self.reference.run()
        self.ours.run()
        assert self.ours.batches == self.reference.batches


def _refusal(lane: Lane, conf: dict[str, str] | None = None) -> str:
    before = lane.conf
    lane.conf = {**before, **(conf or {})}
    try:
        with pytest.raises(StreamingQueryException) as raised:
            lane.run()
    finally:
        lane.conf = before
    text = str(raised.value)
    assert "To fix: " in text, text
    return text


@pytest.fixture
def pair(make_lane: MakeLane) -> Pair:
    return Pair(make_lane)


def _edit_offsets(lane: Lane, key: str, value: str) -> None:
    """Change a conf in every entry of the offset log."""
    for path in (lane.checkpoint / "offsets").glob("[0-9]*"):
        version, metadata, *offsets = path.read_text().splitlines()
        fields = json.loads(metadata)
        fields["conf"][key] = value
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.write_text("\n".join([version, json.dumps(fields), *offsets]))


def test_unknown_or_bad_options_are_refused_by_name(pair: Pair) -> None:
    """Catches options that are silently ignored, and errors that leave a mark on the checkpoint."""
    text = pair.refusal(**{"snapshot.maxChainLenght": "5"})
    assert f"{STATE_STORE}.snapshot.maxChainLenght" in text
    assert f"{STATE_STORE}.snapshot.maxChainLength" in text

    for key, value, allowed in (
        ("maxParallelism", "40000", "32768"),
        ("overlay.maxBytes", "10", "1048576"),
        ("file.compression", "lz4", "zstd"),
        ("fsync.enabled", "maybe", "true or false"),
        ("snapshot.replayRatio", "much", "0.1"),
    ):
        text = pair.refusal(**{key: value})
        assert f"{STATE_STORE}.{key}" in text
        assert value in text
        assert allowed in text

    pair.assert_goes_on()


def test_max_parallelism_of_a_checkpoint_cannot_change(pair: Pair) -> None:
    """Catches key groups that change under a checkpoint's files."""
    text = pair.refusal(maxParallelism="12")
    assert "12" in text
    assert str(KEY_GROUPS) in text

    pair.ours.conf[f"{STATE_STORE}.maxParallelism"] = str(KEY_GROUPS)
    pair.assert_goes_on()


@pytest.mark.parametrize("partitions", [2, 6], ids=["fewer", "more"])
def test_number_of_partitions_cannot_change_by_conf(pair: Pair, partitions: int) -> None:
    """Catches state partitions that silently start empty or lose their keys."""
    _edit_offsets(pair.ours, "spark.sql.shuffle.partitions", str(partitions))

    text = pair.refusal()

    assert f"={partitions}" in text
    assert f"={NUM_PARTITIONS}" in text
    assert "rescal" in text
    _edit_offsets(pair.ours, "spark.sql.shuffle.partitions", str(NUM_PARTITIONS))
    pair.assert_goes_on()


def test_checkpoint_of_another_provider_is_refused(make_lane: MakeLane) -> None:
    """Catches another provider's state taken for no state."""
    pair = Pair(make_lane, HDFS)
    _edit_offsets(pair.ours, PROVIDER_CLASS, PROVIDER)

    text = pair.refusal()

    assert "another" in text
    assert "provider" in text
    _edit_offsets(pair.ours, PROVIDER_CLASS, HDFS)
    pair.assert_goes_on()


def test_newer_format_version_is_refused(pair: Pair) -> None:
    """Catches a file of a later release read as if it were ours."""
    written = pair.newest_delta.read_bytes()
    newer = MAGIC_PREFIX + struct.pack(">H", FORMAT_VERSION + 1)
    pair.newest_delta.write_bytes(written[: -len(newer)] + newer)

    text = pair.refusal()

    assert f"format_version={FORMAT_VERSION + 1}" in text
    assert str(pair.newest_delta) in text
    pair.newest_delta.write_bytes(written)
    pair.assert_goes_on()


def test_damaged_file_is_refused_by_name(pair: Pair) -> None:
    """Catches rows of a damaged delta."""
    written = pair.newest_delta.read_bytes()
    damaged = bytearray(written)
    damaged[len(damaged) // 3] ^= 0x10
    pair.newest_delta.write_bytes(damaged)

    text = pair.refusal()

    assert "checksum" in text
    assert str(pair.newest_delta) in text
    pair.newest_delta.write_bytes(written)
    pair.assert_goes_on()


def test_missing_file_is_refused_by_name(pair: Pair) -> None:
    """Catches a lost delta taken for an empty store."""
    written = pair.newest_delta.read_bytes()
    pair.newest_delta.unlink()

    text = pair.refusal()

    assert f"{pair.store}'" in text
    assert f"version={len(FIRST)}" in text
    pair.newest_delta.write_bytes(written)
    pair.assert_goes_on()


def test_changed_schema_is_refused(pair: Pair) -> None:
    """Catches rows of one schema read with another, where Spark's own check is turned off."""
    before = pair.ours.query
    pair.ours.query = replace(
        before, build=lambda _, streams: streams["events"].groupBy("key").avg("value")
    )

    text = pair.refusal(stateSchemaCheck="false")

    assert "schema" in text
    pair.ours.query = before
    pair.assert_goes_on()


@contextmanager
def _immutable(folder: Path) -> Iterator[None]:
    # Root may write to any directory, but not to an immutable one.
    made = subprocess.run(["chattr", "+i", str(folder)], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"immutable directories are not permitted here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


def test_unwritable_checkpoint_fails_the_commit_by_name(pair: Pair) -> None:
    """Catches a commit that reports success though its file could not be published."""
    with _immutable(pair.store):
        text = pair.refusal()

    assert str(pair.store) in text
    pair.assert_goes_on()


def test_file_in_place_of_the_store_is_refused_by_name(pair: Pair) -> None:
    """Catches a store directory that is no directory taken for an empty store."""
    away = pair.store.with_name("away")
    pair.store.rename(away)
    pair.store.write_text("in the way")

    text = pair.refusal()

    assert str(pair.store) in text
    pair.store.unlink()
    away.rename(pair.store)
    pair.assert_goes_on()


@pytest.mark.parametrize("what", ["partition", "operator"])
def test_state_removed_while_running_fails_the_query(pair: Pair, what: str) -> None:
    """Catches a commit into a directory made anew: a version without those it is built on."""
    removed = pair.store if what == "partition" else pair.store.parent
    away = pair.ours.root / "away"
    pair.ours.on_batch = lambda batch_id: removed.rename(away) if not away.exists() else None

    text = pair.refusal()

    assert str(pair.store.parent) in text
    pair.ours.on_batch = lambda batch_id: None
    shutil.rmtree(removed, ignore_errors=True)
    away.rename(removed)
    pair.assert_goes_on()


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


def test_full_disk_fails_the_commit_and_loses_nothing(
    make_lane: MakeLane, small_disk: Path
) -> None:
    """Catches a half-written delta taken for a version."""
    plan = one_input(1, 1, 1, num_rows=3000, num_keys=900)
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


def test_wrong_interpreter_or_package_is_refused(
    start_job: Callable[..., Any], make_lane: MakeLane, tmp_path: Path
) -> None:
    """Catches an engine that cannot start, or is of another release, and does not say why."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    older = tmp_path / "older"
    shutil.copytree(
        REPOSITORY / "statestore",
        older / "statestore",
        ignore=shutil.ignore_patterns("jars", "__pycache__"),
    )
    (older / "statestore" / "core" / "version.py").write_text('__version__ = "0.0.9"\n')
    reference = make_lane(AGGREGATION, HDFS)

    job = start_job(
        "interpreters",
        provider=PROVIDER,
        wrong=[
            {"spark.pyspark.python": "/nonexistent/python3"},
            {"spark.pyspark.python": str(bare / "bin" / "python")},
            {f"{STATE_STORE}.engine.package": "installed"},
        ],
        environment={"PYTHONPATH": str(older)},
    )
    for batches in AGGREGATION.plan:
        reference.run(*batches)
    report = job.report()

    missing, without_packages, apart = report["errors"]
    assert "/nonexistent/python3" in missing
    assert "spark.pyspark.python" in missing
    assert "pyarrow" in without_packages
    assert str(bare) in without_packages
    assert "0.0.9" in apart
    assert "0.1.0" in apart
    assert all("To fix: " in error for error in report["errors"])
    found = {int(batch_id): rows for batch_id, rows in report["batches"].items()}
    assert found == reference.batches
