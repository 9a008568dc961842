"""State files: what is written is read back, and damage is told by name."""

import resource
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.checkpoint.trailers import trailer_of
from statestore.codec.references import FileRef, VersionRef
from statestore.codec.rows import SCHEMA, Row
from statestore.codec.state_file import StateFile, describe_stream
from statestore.codec.trailer import (
    Block,
    RowCounts,
    compute_lineage,
    decode_trailer,
    encode_trailer,
)
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InternalError,
    InvalidArgumentError,
)
from statestore.io.local import LocalFileIO
from statestore.testing.deltas import write_stream
from tests.state_files import ID, ROWS, G, seal, write_sealed


def test_trailer_that_does_not_fit_the_disk_is_an_error(tmp_path):
    """Catches a version that is committed and nobody can read: half its trailer is there."""
    path = tmp_path / "state"
    length = write_stream(str(path), ROWS, G)
    blocks = describe_stream(str(path), length, G)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            seal(path, blocks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    seal(path, blocks)
    StateFile(str(path)).verify()


@pytest.fixture(params=["none", "zstd"])
def sealed(request, tmp_path):
    """A whole state file of several blocks."""
    path = tmp_path / "7.delta.arrows"
    write_sealed(path, request.param)
    return path


def read_rows(file):
    """Every row of a file, in file order."""
    return [
        Row(*row.values())
        for index in range(file.num_batches)
        for row in file.batch(index).to_pylist()
    ]


def test_rows_and_trailer_survive_the_round_trip(tmp_path):
    """Catches a field that is written and not read back."""
    path = tmp_path / "f"
    length = write_stream(str(path), ROWS, G, block_rows=5)
    written = seal(path, describe_stream(str(path), length, G))

    file = StateFile(str(path))

    assert file.trailer == written
    assert {(row.key_group, row.key): row for row in read_rows(file)} == {
        (row.key_group, row.key): row for row in ROWS
    }
    assert path.stat().st_size == file.size


def test_any_arrow_tool_opens_a_state_file(sealed):
    """Catches a trailer that breaks the promise of plain Arrow."""
    with ipc.open_stream(str(sealed)) as reader:
        assert reader.read_all().num_rows == len(ROWS)


def test_blocks_say_which_key_groups_they_hold(tmp_path):
    """Catches block metadata a split could not be planned from."""
    path = tmp_path / "f"
    blocks = describe_stream(str(path), write_stream(str(path), ROWS, G, block_rows=6), G)

    assert [(block.first_key_group, block.last_key_group) for block in blocks] == [
        (-1, -1), (0, 4), (2, 6), (1, 5), (3, 7), (-1, -1),
    ]  # fmt: skip
    assert blocks[0].offset == 0
    assert all(a.offset + a.length == b.offset for a, b in pairwise(blocks))


@settings(max_examples=30)
@given(data=st.data())
def test_random_damage_is_detected(tmp_path_factory, data):
    """Catches several errors that hide each other."""
    path = tmp_path_factory.mktemp("damage") / "f"
    length = write_stream(str(path), ROWS, G, block_rows=5)
    seal(path, describe_stream(str(path), length, G))
    original = path.read_bytes()
    start = data.draw(st.integers(0, len(original) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=64))
    damaged = original[:start] + noise + original[start + len(noise) :]
    path.write_bytes(damaged)

    if damaged != original:
        with pytest.raises((CorruptionError, IncompatibleError)):
            StateFile(str(path)).verify()


def test_damaged_block_is_refused_before_a_row_of_it_is_used(sealed):
    """Catches handing out rows whose checksum nobody looked at."""
    file = StateFile(str(sealed))
    block = file.trailer.blocks[2]
    damaged = bytearray(sealed.read_bytes())
    damaged[block.offset + block.length - 1] ^= 1
    sealed.write_bytes(damaged)

    again = StateFile(str(sealed))
    again.batch(0)
    with pytest.raises(CorruptionError) as caught:
        again.batch(1)

    assert caught.value.fields["offset"] == block.offset
    assert caught.value.kind == "checksum-mismatch"


def test_newer_format_version_is_refused_by_name(sealed):
    """Catches reading a layout this release does not know."""
    raw = bytearray(sealed.read_bytes())
    raw[-1] = 9
    sealed.write_bytes(raw)

    with pytest.raises(IncompatibleError, match="format_version=9, newest_known=2"):
        StateFile(str(sealed))


def test_sealing_again_cuts_off_what_a_dead_engine_appended(tmp_path):
    """Catches a repeated commit that publishes two trailers in one file."""
    path = tmp_path / "f"
    length = write_stream(str(path), ROWS, G)
    first = seal(path, describe_stream(str(path), length, G))
    size = path.stat().st_size

    second = seal(path, describe_stream(str(path), length, G))

    assert first == second
    assert path.stat().st_size == size


@pytest.mark.parametrize("cut", [1, 8, 9, 40, 200])
def test_incomplete_stream_is_not_sealed(tmp_path, cut):
    """Catches publishing what a dying shim left behind."""
    path = tmp_path / "f"
    length = write_stream(str(path), ROWS, G)
    path.write_bytes(path.read_bytes()[: length - cut])

    with pytest.raises(InvalidArgumentError):
        describe_stream(str(path), length - cut, G)


def test_rows_out_of_order_are_not_sealed(tmp_path):
    """Catches a shim that sorts by key group instead of its rank: merges would lose rows."""
    path = tmp_path / "f"
    columns = [[0, 1, 4], [0, 0, 0], [0, 0, 0], [b"a", b"b", b"c"], [b"", b"", b""]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    with ipc.new_stream(str(path), SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    with pytest.raises(InternalError, match="order of their key groups"):
        describe_stream(str(path), path.stat().st_size, G)


def test_stream_of_another_schema_is_not_sealed(tmp_path):
    """Catches columns swapped between shim and engine."""
    path = tmp_path / "f"
    table = pa.table({"key_group": pa.array([1], pa.uint16())})
    with ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)

    with pytest.raises(InvalidArgumentError):
        describe_stream(str(path), path.stat().st_size, G)


def test_empty_delta_is_a_whole_file(tmp_path):
    """Catches a batch without changes that cannot be committed."""
    path = tmp_path / "f"
    length = write_stream(str(path), [], G)
    seal(path, describe_stream(str(path), length, G), rows=RowCounts())

    file = StateFile(str(path))
    file.verify()

    assert file.num_batches == 0
    assert file.trailer.rows.total == 0


def test_lineage_depends_on_parent_and_content_only(tmp_path):
    """Catches a retry with equal rows being fenced, or other rows not being."""

    def blocks_of(name, rows):
        path = str(tmp_path / name)
        return describe_stream(path, write_stream(path, rows, G), G)

    parent = VersionRef(1, ID, "00" * 16)
    blocks = blocks_of("first", ROWS)
    last = ROWS[-1]
    other = blocks_of("other", [*ROWS[:-1], replace(last, key=last.key[:-1] + b"~")])
    assert sum(block.length for block in other) == sum(block.length for block in blocks)

    lineage = compute_lineage(parent, blocks)

    # By docs/format.md: printf '%032d\1\0\0\0\0\0\0\0\2\0\0\0' 0 | sha256sum
    block = Block(0, 1, 0, 2, -1, -1)
    assert compute_lineage(parent, (block,)) == "174939de61ad9e28020ecc371f86a35f"
    assert compute_lineage(VersionRef(1, "x", "00" * 16), blocks_of("again", ROWS)) == lineage
    assert compute_lineage(parent, other) != lineage
    assert compute_lineage(VersionRef(1, ID, "01" * 16), blocks) != lineage
    assert compute_lineage(None, blocks) != lineage


def test_trailer_longer_than_one_read_is_decoded(tmp_path):
    """Catches a long chain whose trailer does not fit the first read."""
    path = tmp_path / "f"
    length = write_stream(str(path), ROWS, G)
    refs = tuple(
        FileRef(f"{version}.delta.arrows", "delta", version, ID, ID, 10, 3)
        for version in range(1, 400)
    )
    written = seal(path, describe_stream(str(path), length, G), files=refs)
    raw = path.read_bytes()

    assert len(encode_trailer(written)) > 32_000
    assert StateFile(str(path)).trailer == written
    assert decode_trailer(raw, len(raw), "f") == written


def test_trailer_is_that_of_the_file_that_replaced_another_meanwhile(tmp_path):
    """Catches a whole file told as damaged, because another attempt's came between two reads."""
    files = []
    for number in (100, 400, 1000):
        path = tmp_path / str(number)
        length = write_stream(str(path), ROWS, G)
        refs = tuple(
            FileRef(f"{version}.delta.arrows", "delta", version, ID, ID, 10, 3)
            for version in range(1, number)
        )
        files.append((seal(path, describe_stream(str(path), length, G), files=refs), path))

    class Replaced(LocalFileIO):
        def __init__(self):
            self.left = [path for _, path in files]

        def read_tail(self, path, num_bytes):
            of = self.left.pop(0) if len(self.left) > 1 else self.left[0]
            return super().read_tail(str(of), num_bytes)

    written, path = files[-1]
    assert trailer_of(Replaced(), "f") == (written, path.stat().st_size)
