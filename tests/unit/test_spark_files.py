"""Files of Spark's own state stores, byte by byte: forms that small checkpoints do not have."""

import struct
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, MERGE, PUT
from statestore.codec.sorting import RUN_BYTES
from statestore.codec.xxhash32 import xxhash32
from statestore.core.errors import CorruptionError, IncompatibleError
from statestore.io.local import LocalFileIO
from statestore.spark_files.changes import Changes
from statestore.spark_files.checksums import check_hadoop
from statestore.spark_files.compression import decompressed
from statestore.spark_files.files import StoreFiles
from statestore.spark_files.records import Ancestor, Records
from statestore.spark_files.schemas import read_schemas
from statestore.spark_files.snapshot import open_database, read_snapshot
from tests.peak_memory import measured_growth

SEED = 0x9747B28C
PUT_TYPE, DELETE_TYPE, MERGE_TYPE = b"\x01", b"\x10", b"\x11"
END = struct.pack(">i", -1)


def lz4_block(data, *, raw=False):
    return lz4_blocks([data], lambda _: raw)


def lz4_blocks(blocks, is_raw):
    """Blocks one behind the other; those at the numbers that are raw stand as they are."""
    made = b""
    for number, (data, checksum) in enumerate(
        zip(blocks, xxhash32(blocks, SEED).tolist(), strict=True)
    ):
        raw = is_raw(number)
        held = data if raw else pa.compress(data, "lz4_raw", asbytes=True)
        method, checked = (0x10 if raw else 0x20) | 5, checksum & 0x0FFFFFFF
        made += struct.pack("<8sBiiI", b"LZ4Block", method, len(held), len(data), checked) + held
    return made


LZ4_END = struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


def sized(data):
    return struct.pack(">i", len(data)) + data


def text(words):
    return struct.pack(">H", len(words)) + words


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x02CC5D05),
        (b"a", 0, 0x550D7456),
        (b"abc", 0, 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F),
    ],
)
def test_xxhash32_is_that_of_the_specification(data, seed, expected):
    """Catches a checksum that is right for some lengths only."""
    assert int(xxhash32([data], seed)[0]) == expected


def test_xxhash32_of_many_blocks_is_that_of_each():
    """Catches blocks that are mixed up when they are computed side by side."""
    rng = np.random.default_rng(1)
    blocks = [rng.bytes(size) for size in (0, 3, 4, 15, 16, 17, 33, 64, 64, 64, 1000)]

    assert xxhash32(blocks, SEED).tolist() == [int(xxhash32([one], SEED)[0]) for one in blocks]


def test_lz4_of_many_blocks(tmp_path):
    """Catches blocks that are left out, and those that were not worth compressing."""
    rng = np.random.default_rng(2)
    blocks = [rng.bytes(32_768) if number % 3 else b"x" * 32_768 for number in range(150)]
    path = tmp_path / "1.delta"
    made = lz4_blocks(blocks, lambda number: number % 3 > 0)
    path.write_bytes(made + LZ4_END + lz4_block(b"another stream") + LZ4_END)

    found = list(decompressed(str(path), "lz4", "1.delta"))

    assert b"".join(found) == b"".join(blocks) + b"another stream"
    assert max(map(len, found)) <= 64 * 32_768


def test_a_changed_byte_of_an_lz4_block_is_found(tmp_path):
    """Catches checksums that are read and not compared: raw blocks have nothing else."""
    path = tmp_path / "1.delta"
    data = bytearray(lz4_block(b"a" * 1000, raw=True) + lz4_block(b"b" * 1000, raw=True))
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(CorruptionError) as caught:
        list(decompressed(str(path), "org.apache.spark.io.LZ4CompressionCodec", "1.delta"))

    assert caught.value.kind == "checksum-mismatch"
    assert caught.value.fields["file"] == "1.delta"


def test_snappy_and_zstd_of_many_pieces(tmp_path):
    """Catches a file of which only the first piece is read."""
    pieces = [b"%d" % number * 5000 for number in range(5)]
    header = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    snappy = [sized(pa.compress(piece, "snappy", asbytes=True)) for piece in pieces]
    (tmp_path / "snappy").write_bytes(header + b"".join(snappy) + header + snappy[0])
    zstd = [pa.compress(piece, "zstd", asbytes=True) for piece in pieces]
    (tmp_path / "zstd").write_bytes(b"".join(zstd))

    for codec, expected in (("snappy", [*pieces, pieces[0]]), ("zstd", pieces)):
        found = b"".join(decompressed(str(tmp_path / codec), codec, codec))
        assert found == b"".join(expected), codec


def records_of(data, *, is_changelog=True):
    # In pieces, so that numbers and keys lie across them.
    pieces = (data[start : start + 3] for start in range(0, len(data), 3))
    return Records(pieces, "file", is_changelog=is_changelog, most_bytes=1 << 20)


PAIRS = sized(b"key") + sized(b"value") + sized(b"") + sized(b"") + sized(b"gone") + END
TYPED = (
    PUT_TYPE + sized(b"key") + sized(b"value")
    + MERGE_TYPE + sized(b"key") + sized(b"more")
    + DELETE_TYPE + sized(b"gone") + END
    + b"\0"
)  # fmt: skip
LINEAGE = text(b'[{"version":3,"checkpointUniqueId":"a-b"},{"version":4,"checkpointUniqueId":"c"}]')
OF_PAIRS = [(PUT, b"key", b"value"), (PUT, b"", b""), (DELETE, b"gone", None)]
OF_TYPED = [(PUT, b"key", b"value"), (MERGE, b"key", b"more"), (DELETE, b"gone", None)]
ANCESTORS = (Ancestor(3, "a-b"), Ancestor(4, "c"))


@pytest.mark.parametrize(
    ("data", "expected", "lineage"),
    [
        (PAIRS + END, OF_PAIRS, ()),
        (text(b"v3") + LINEAGE + PAIRS + END, OF_PAIRS, ANCESTORS),
        (text(b"v2") + TYPED, OF_TYPED, ()),
        (text(b"v4") + LINEAGE + TYPED, OF_TYPED, ANCESTORS),
    ],
    ids=["v1", "v3", "v2", "v4"],
)
def test_every_form_of_changelog(data, expected, lineage):
    """Catches a form that is taken for another one."""
    records = records_of(data)

    assert records.lineage == lineage
    assert list(records) == expected
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            list(records_of(data[:length]))


def test_a_delta_has_no_form():
    """Catches a first key that looks like one."""
    data = struct.pack(">i", 0x00027632) + bytes(0x00027632) + sized(b"v") + END

    assert list(records_of(data, is_changelog=False)) == [(PUT, bytes(0x00027632), b"v")]


@pytest.mark.parametrize(
    "data", [text(b"v5") + TYPED, text(b"v2") + b"\x21" + sized(b"a") + sized(b"b") + b"\0"]
)
def test_forms_of_later_releases_are_refused(data):
    """Catches records of a later Spark read as something else."""
    with pytest.raises(IncompatibleError) as caught:
        list(records_of(data))

    assert caught.value.kind == "newer-format"


def test_range_that_was_deleted_is_refused_by_name():
    """Catches the advice to wait for a release, where a newer snapshot helps."""
    with pytest.raises(IncompatibleError, match=r"range of keys.*newer snapshot"):
        list(records_of(text(b"v2") + b"\x20" + sized(b"a") + sized(b"b") + b"\0"))


def test_lists_that_are_added_to_are_not_held_in_memory_all_at_once(tmp_path):
    """Catches a restore that is killed: what a changelog adds is little, and the lists are not."""
    num_keys, of_list = 10_000, bytes(20_000)
    keys = [b"\x00\x00%08d" % number for number in range(num_keys)]

    def pieces():
        for start in range(0, num_keys, 1_000):
            yield changes_of((PUT, key, of_list) for key in keys[start : start + 1_000])
        with measured_growth() as grown:
            yield changes_of((MERGE, key, b"x") for key in keys)
        growth.append(grown.resident)

    growth = []
    files = StoreFiles(None, StoreName(0, 0), str(tmp_path), "", "lz4", {})
    (tmp_path / "database").mkdir()
    opened = open_database(files, None, str(tmp_path / "database"), b",", pieces())
    with opened as database:
        found = [row for piece in database.pieces(b"") for row in piece]

    assert [key for key, _ in found] == keys
    assert {len(value) for _, value in found} == {len(of_list) + 2}
    assert growth[0] < 3 * RUN_BYTES


def changes_of(records):
    """Changes of records."""
    changes = Changes(b",")
    for kind, key, value in records:
        changes.add(kind, key, value)
    return changes


def test_small_file_that_unpacks_to_much_is_not_held_in_memory(tmp_path):
    """Catches gigabytes of memory for a megabyte that somebody made, before it is refused."""
    block = pa.compress(bytes(1 << 20), "lz4_raw", asbytes=True)
    checksum = int(xxhash32([bytes(1 << 20)], SEED)[0]) & 0x0FFFFFFF
    head = struct.pack("<8sBiiI", b"LZ4Block", 0x20, len(block), 1 << 20, checksum)
    (tmp_path / "lz4").write_bytes((head + block) * 18)
    size = struct.pack(">i", 0x7FFF_FFFF)
    (tmp_path / "zstd").write_bytes(pa.compress(size + bytes(1 << 28), "zstd", asbytes=True))

    of_lz4 = [len(piece) for piece in decompressed(str(tmp_path / "lz4"), "lz4", "lz4")]
    assert of_lz4 == [16 << 20, 2 << 20]
    pieces = decompressed(str(tmp_path / "zstd"), "zstd", "zstd")
    with pytest.raises(CorruptionError, match="a length of at most") as caught:
        list(Records(pieces, "1.delta", is_changelog=False, most_bytes=1 << 20))
    assert caught.value.fields["offset"] == 4
    assert len(next(pieces)) <= 1 << 20


def test_schemas_in_chunks_and_in_other_scripts():
    """Catches schemas of more than 64 KiB, and names that Java's UTF-8 writes in another way."""
    name = "\U0001f600 é \0"
    halves = name.encode("utf-16-be", "surrogatepass")
    units = [
        halves[at : at + 2].decode("utf-16-be", "surrogatepass") for at in range(0, len(halves), 2)
    ]
    java = b"".join(
        b"\xc0\x80" if unit == "\0" else unit.encode("utf-8", "surrogatepass") for unit in units
    )
    # The chunks end within the first character.
    key = struct.pack(">i", 2) + text(java[:3]) + text(java[3:])
    value = struct.pack(">i", 1) + text(b"{}")

    (family,) = read_schemas(text(b"v2") + key + value, "schema")

    assert (family.key_schema, family.value_schema) == (name, "{}")
    assert read_schemas(text(b"v1") + text(b"k") + text(b"v"), "schema")[0].value_schema == "v"
    with pytest.raises(IncompatibleError):
        read_schemas(text(b"v9") + key + value, "schema")


@pytest.mark.parametrize("checksums", [b"crc\0", b"crc\0" + bytes(4), b"crc", b""])
def test_checksum_file_that_checks_nothing_is_refused(tmp_path, checksums):
    """Catches an error without a name, or a file that nobody has checked."""
    path = tmp_path / "1.delta"
    path.write_bytes(b"rows")

    with pytest.raises(CorruptionError, match=r"checksum_file='1\.crc'"):
        check_hadoop(str(path), checksums, str(path), "1.crc")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_that_unpacks_to_much_is_not_held_in_memory(tmp_path, method):
    """Catches gigabytes of memory for a zip that says it is small."""
    size = 256 * 1024 * 1024
    path = tmp_path / "1.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("metadata", bytes(size))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, 100)  # the size that the directory says
    path.write_bytes(data)
    files = StoreFiles(LocalFileIO(), StoreName(0, 0), str(tmp_path), "", "lz4", {})

    with measured_growth() as grown, pytest.raises(CorruptionError):
        read_snapshot(files, str(path))

    assert grown.resident < 60_000_000
