"""Spark's own files of a checkpoint, as Spark 4.3 writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.checkpoint import text_files
from statestore.checkpoint.query_log import CommitEntry, OffsetsEntry, QueryLog
from statestore.core.errors import CorruptionError, FencedError, IncompatibleError
from statestore.io.local import LocalFileIO

OFFSETS = (
    'v1\n{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"4",'
    '"other":"ü"}}\n{"logOffset":2}\n-'
)
COMMIT = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a","b"],["c","d"]]}}'


def test_offsets_entry_is_carried_through_byte_for_byte() -> None:
    """Catches a source's offset, or a character of the configuration, that is lost on rewriting."""
    assert OffsetsEntry.parse(OFFSETS, "offsets/2").encode() == OFFSETS


def test_offsets_entry_changes_only_what_it_is_told() -> None:
    """Catches a rescale that resets the watermark or the other pinned configuration."""
    entry = OffsetsEntry.parse(OFFSETS, "offsets/2")

    changed = entry.with_conf({"spark.sql.shuffle.partitions": "8"})

    assert changed.encode() == OFFSETS.replace('partitions":"4"', 'partitions":"8"')
    assert entry.encode() == OFFSETS


def test_commit_entry_names_checkpoint_ids() -> None:
    """Catches IDs of one store taken for another's."""
    entry = CommitEntry.parse(COMMIT, "commits/2")

    assert entry.checkpoint_ids == {"0": [["a", "b"], ["c", "d"]]}
    assert entry.encode() == COMMIT
    assert entry.with_checkpoint_ids({"0": [["x"]]}).checkpoint_ids == {"0": [["x"]]}


def test_commit_entry_of_format_1_names_the_sinks_that_it_named() -> None:
    """Catches an entry of a version in which Spark reads no sinks."""
    sinks = '"sinkMetadataMap":{"main":{"sinkName":"main","commitOffset":"-"}}'
    entry = CommitEntry.parse(COMMIT.replace("v2", "v3")[:-1] + f",{sinks}}}", "commits/2")

    changed = entry.in_format_1()

    assert entry.checkpoint_format == 2
    assert changed.encode() == f'v3\n{{"nextBatchWatermarkMs":0,{sinks}}}'
    assert changed.checkpoint_format == 1
    assert CommitEntry.parse(COMMIT, "commits/2").in_format_1().version == "v1"


@pytest.mark.parametrize("text", ["", "v1", "v1\nnot json", "v1\n[]", "1\n{}"])
def test_damaged_entries_are_named(text: str) -> None:
    """Catches half an entry taken for a whole one."""
    for parse in (OffsetsEntry.parse, CommitEntry.parse):
        with pytest.raises(CorruptionError, match="offsets/7"):
            parse(text, "offsets/7")


def test_offsets_entry_of_spark_420_is_no_damage() -> None:
    """Catches advice to take out good batches of a log that lacks what Spark 4.2.0 left out."""
    text = OFFSETS.replace("v1", "v2").replace('"spark.sql.shuffle.partitions":"4",', "")

    with pytest.raises(IncompatibleError, match=r"Spark 4\.2\.0.*offsets/7.*Spark 4\.2\.1"):
        OffsetsEntry.parse(text, "offsets/7")


def test_log_lists_numbers_only_and_takes_stale_checksums_away(tmp_path: Path) -> None:
    """Catches Hadoop refusing an entry because of the checksum of the one that was replaced."""
    log = QueryLog(LocalFileIO(), str(tmp_path), "commits")
    for name in ("0", "10", "9", "_x", "9.tmp"):
        log.io.make_directory(log.directory)
        (tmp_path / "commits" / name).write_text(name)
    checksum = tmp_path / "commits" / ".9.crc"
    checksum.write_text("stale")

    assert log.batches() == [0, 9, 10]
    with pytest.raises(FencedError, match=r"\[fenced\].* to the log of commits first: batch=9"):
        log.add(9, "second")
    assert log.read(9) == "9"
    log.replace(9, "second")
    assert log.read(9) == "second"
    assert not checksum.exists()
    log.delete(10)
    assert log.batches() == [0, 9]


def test_file_larger_than_a_request_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a long log of a source, or a long history, of which a copy has the end alone."""
    monkeypatch.setattr(text_files, "_MAX_BYTES", 50)
    path = tmp_path / "9.compact"
    for size in (49, 50, 51, 500):
        data = b"v1\n" + b"x" * (size - 3)
        path.write_bytes(data)

        assert text_files.read_bytes(LocalFileIO(), str(path)) == data
        assert text_files.read_text(LocalFileIO(), str(path)) == data.decode()
