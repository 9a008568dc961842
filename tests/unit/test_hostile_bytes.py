"""Bytes with a right checksum that nobody wrote by accident: each is refused by name."""

import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from statestore.checkpoint.lease import Leases
from statestore.checkpoint.placement import read_placement
from statestore.codec.arrow_batch import most_unpacked, read_batch, read_stream
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import decode_keys
from statestore.codec.rows import PUT, SCHEMA, Row, batch_from_rows, to_numpy, write_options
from statestore.codec.spark_types import parse_schema
from statestore.codec.state_file import describe_stream
from statestore.codec.trailer import decode_trailer, encode_trailer
from statestore.codec.unsafe_row import decode_rows
from statestore.core.errors import CorruptionError, InvalidArgumentError
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.io.memory import MemoryFileIO
from tests.fuzz.targets import GOLDEN
from tests.hostile import seal_trailer
from tests.unit.test_state_file import seal

G = 8
DEEP = '{"a":' + "[" * 100_000
DIGITS = '{"a":' + "9" * 5000 + "}"


@pytest.mark.parametrize(
    "document",
    [b"\xec", b'\xff\xfe{"a":1}', DEEP, DIGITS, r'{"a":"\ud800"}', "[]", "1", "", "{"],
)
def test_json_is_refused_by_one_error_when_it_is_no_document(document):
    """Catches UnicodeDecodeError, RecursionError and the limit of digits getting through."""
    with pytest.raises(MalformedError):
        parse_fields(document)


def test_lack_of_memory_is_no_damage(monkeypatch):
    """Catches a repair that takes back good versions, since there was no memory to read them."""
    batch = batch_from_rows([Row(0, 0, PUT, b"k", b"v")], G)
    data = batch.serialize()

    def lack(*_):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(ipc, "read_record_batch", lack)
    with pytest.raises(MemoryError):
        read_batch(data, SCHEMA, "file", 0)


@pytest.mark.parametrize("text", ["true", "1.0", "1e999", "NaN", '"1"', "null", "-1", str(1 << 64)])
def test_integer_is_refused_when_it_is_of_another_type_or_range(text):
    """Catches a length or a version that is a float, a boolean or too large for its place."""
    with pytest.raises(MalformedError, match="field a"):
        parse_fields(f'{{"a":{text}}}').integer("a")


def _trailer(tmp_path):
    blocks = describe_stream(*_stream(tmp_path), G)
    return seal(tmp_path / "stream", blocks, files=())


def _stream(tmp_path, compression="none", value=b"v"):
    path = str(tmp_path / "stream")
    with ipc.new_stream(path, SCHEMA, options=write_options(compression)) as stream:
        stream.write_batch(batch_from_rows([Row(3, 0, PUT, b"k", value)], G))
    return path, (tmp_path / "stream").stat().st_size


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "7"), ("version", 0), ("version", 1 << 63), ("kind", "other"), ("kind", []),
        ("files", None), ("files", [1]), ("files", [{"path": "6.delta.arrows"}]), ("blocks", []),
        ("blocks", [[0, 1]]), ("blocks", [[0, -5, 0, 0, -1, -1]]), ("blocks", "abcdef"),
        ("blocks", [[0, 1 << 62, 0, 0, -1, -1]]), ("blocks", [[0, 8, 1, 0, 0, 99999]]),
        ("rows", {}), ("rows", {"put": 1.5, "delete": 0, "merge": 0}), ("parent", 5),
        ("max_parallelism", 0), ("max_parallelism", 10**9), ("num_partitions", 0),
        ("store", {"operator": 0, "partition": 0, "name": "../x"}), ("store", {}), ("store", None),
        ("store", {"operator": 0, "partition": 5, "name": "default"}),
        ("checkpoint_id", "../x"), ("lineage", None), ("column_families", [{}]),
        ("column_families", {}), ("key_group_rows", 5), ("rescalable", 1),
        ("format_version", 0), ("checkpoint_format", -1),
    ],
)  # fmt: skip
def test_trailer_is_refused_when_a_field_is_not_what_it_must_be(tmp_path, field, value):
    """Catches TypeError, KeyError or IndexError out of a trailer whose checksum is right."""
    trailer = _trailer(tmp_path)
    encoded = encode_trailer(trailer)
    size = trailer.body_length + len(encoded)
    assert decode_trailer(encoded, size, "file") == trailer
    fields = json.loads(encoded[:-16]) | {field: value}
    sealed = seal_trailer(json.dumps(fields).encode())

    with pytest.raises(CorruptionError, match="file='file'"):
        decode_trailer(sealed, trailer.body_length + len(sealed), "file")


def _message(data):
    """The record batch of a stream."""
    reader = pa.BufferReader(data)
    messages = ipc.MessageReader.open_stream(reader)
    messages.read_next_message()
    start = reader.tell()
    messages.read_next_message()
    return data[start : reader.tell()]


@pytest.mark.parametrize("declared", [1 << 40, (1 << 63) - 1, 1 << 33])
def test_no_room_is_made_for_rows_when_they_say_to_unpack_to_more_than_anybody_wrote(
    tmp_path, declared
):
    """Catches an allocation by a number in the file, before a byte is unpacked."""
    path, _ = _stream(tmp_path, "zstd", b"v" * 1000)
    with open(path, "rb") as file:  # noqa: PTH123
        message = bytearray(_message(file.read()))
    at = message.rindex(struct.pack("<q", 1000))
    message[at : at + 8] = struct.pack("<q", declared)
    before = pa.default_memory_pool().max_memory()

    with pytest.raises(CorruptionError, match="unpacks to more than"):
        read_batch(pa.py_buffer(bytes(message)), SCHEMA, "file", 7)

    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def test_commit_is_refused_when_nobody_would_read_its_rows(tmp_path):
    """Catches a version that is durable and that every load refuses."""
    value = bytes(most_unpacked(1 << 14))
    path, length = _stream(tmp_path, "zstd", value)

    with pytest.raises(InvalidArgumentError, match=r"file\.compression to none"):
        describe_stream(path, length, G)

    path, length = _stream(tmp_path, "none", value[: 1 << 20])
    assert len(describe_stream(path, length, G)) == 3


def test_batch_is_refused_when_its_offsets_lead_out_of_it(tmp_path):
    """Catches Arrow reading what lies behind a buffer."""
    path, _ = _stream(tmp_path, value=b"a value")
    with open(path, "rb") as file:  # noqa: PTH123
        message = bytearray(_message(file.read()))
    at = message.index(struct.pack("<ii", 0, 7))
    message[at : at + 8] = struct.pack("<ii", 0, 1 << 30)

    with pytest.raises(CorruptionError, match="has no readable rows"):
        read_batch(pa.py_buffer(bytes(message)), SCHEMA, "file", 7)


def test_stream_is_refused_when_it_begins_with_another_message(tmp_path):
    """Catches a crash of the whole process: Arrow takes a record batch for a schema."""
    path, _ = _stream(tmp_path)
    with open(path, "rb") as file:  # noqa: PTH123
        message = _message(file.read())

    with pytest.raises(CorruptionError):
        list(read_stream(pa.py_buffer(message), SCHEMA, "file", 0))


def test_numbers_are_read_when_a_buffer_is_longer_than_its_column():
    """Catches a buffer that is no whole number of values, which Arrow allows."""
    column = pa.Array.from_buffers(pa.uint16(), 2, [None, pa.py_buffer(b"\1\0\2\0\3")])

    assert to_numpy(column, np.uint16).tolist() == [1, 2]


def _row(*words):
    return struct.pack(f"<{len(words)}q", *words)


def _struct(*kinds):
    fields = [{"name": str(at), "type": kind} for at, kind in enumerate(kinds)]
    return json.dumps({"type": "struct", "fields": fields})


ARRAY = {"type": "array", "elementType": "byte", "containsNull": True}
ARRAYS = {"type": "array", "elementType": ARRAY, "containsNull": True}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (ARRAY, [_row(0, 16 << 32 | 8, (1 << 62) + 1)]),  # more elements than fit 64 bits of bytes
        (ARRAY, [_row(0, 16 << 32 | 8, 1 << 40)]),
        ("string", [_row(0, -(8 << 32) | 4)]),  # before its row
        ("string", [_row(0, 1 << 62 | 0x7FFFFFFF)]),
        (ARRAYS, [_row(0, 16 << 32 | 80, 8, 0, *[0 << 32 | 80] * 8)]),  # eight times the same bytes
    ],
)  # fmt: skip
def test_row_is_refused_when_its_words_lead_elsewhere(kind, rows):
    """Catches an overflow, a read before the row, and a few bytes that become many rows."""
    with pytest.raises(CorruptionError, match="rows do not fit their schema"):
        decode_rows(ByteRanges.of_column(pa.array(rows, pa.binary())), parse_schema(_struct(kind)))


def test_map_is_refused_when_a_key_is_null():
    """Catches a crash of the whole process: Arrow aborts where a map has a null for a key."""
    bad = next(iter(sorted(path for path in _corpus("rows") if "null-map-key" in path.name)))
    raw = bad.read_bytes()
    schema = parse_schema(list(GOLDEN["rows"].values())[raw[0] % len(GOLDEN["rows"])]["schema"])

    with pytest.raises(CorruptionError, match="key that is null"):
        decode_rows(ByteRanges.of_column(pa.array([raw[2:]], pa.binary())), schema)


def _corpus(target):
    from tests.fuzz.test_corpus import INPUTS

    return [path for path in INPUTS if path.parent.name == target]


@pytest.mark.parametrize(
    "family",
    [
        ColumnFamily(0, "f", _struct("long"), None, "prefix", 1 << 60),
        ColumnFamily(0, "f", _struct("long"), None, "range", None, (1,)),
        ColumnFamily(0, "f", _struct("long"), None, "range", None, (0, 0)),
        ColumnFamily(0, "f", _struct(), None, "timestamp-prefix"),
        ColumnFamily(0, "f", _struct("string"), None, "timestamp-postfix"),
    ],
    ids=lambda family: f"{family.encoder}-{family.ordering_ordinals}",
)
def test_key_is_refused_when_its_encoder_names_columns_that_are_not_there(family):
    """Catches an IndexError, and a list as long as a number in the trailer."""
    with pytest.raises(CorruptionError, match="rows do not fit their schema"):
        decode_keys(pa.array([bytes(64)], pa.binary()), family)


@pytest.mark.parametrize(
    "schema",
    [
        "", "long", '"long"', "[]", "{}", '{"type":["struct"]}', '{"type":"struct","fields":{}}',
        '{"type":"struct","fields":[{"name":1,"type":"long"}]}', _struct("decimal(0,0)"),
        _struct("decimal(39,0)"), _struct("decimal(5,6)"), _struct({"type": "array"}), DEEP,
        _struct(json.loads('{"type":"array","elementType":' * 200 + '"long"' + "}" * 200)),
    ],
)  # fmt: skip
def test_schema_is_refused_when_it_is_not_one_of_sparks(schema):
    """Catches a raw exception out of a column family's schema."""
    with pytest.raises(CorruptionError, match="schema of a column family"):
        parse_schema(schema)


LEASE = {
    "holder": {
        "process": {"host": "h", "machine": "m", "pid": 7, "started": 5},
        "application": "", "executor": "", "run": "r", "operation": "",
    },
    "interval_ms": 10, "lasts_ms": 30, "format_version": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("holder.process.pid", 1 << 40), ("holder.process.pid", 0), ("holder.process.pid", -1),
        ("holder.process.pid", "7"), ("holder.process", None), ("holder.run", 5), ("holder", []),
        ("lasts_ms", float("inf")), ("lasts_ms", 10**15), ("interval_ms", 0),
        ("format_version", 0), ("format_version", "1"),
    ],
)  # fmt: skip
def test_lease_is_refused_when_it_says_what_no_holder_writes(path, value):
    """Catches an OverflowError, a signal to a process group, and a wait for years."""
    fields = json.loads(json.dumps(LEASE))
    *to, last = path.split(".")
    holder = fields
    for name in to:
        holder = holder[name]
    holder[last] = value
    io, name = MemoryFileIO(""), f"query-{'a' * 32}.json"
    leases = Leases(io, "/c/state")
    io.write(leases.path(name), json.dumps(LEASE).encode(), sync=False, overwrite=True)
    assert leases.read(name).lasts_ms == 30
    io.write(leases.path(name), json.dumps(fields).encode(), sync=False, overwrite=True)

    with pytest.raises(CorruptionError, match="a lease cannot be read"):
        leases.read(name)


@pytest.mark.parametrize(
    "document", [DEEP, "{}", '{"format_version":1e999,"storage":"s","id":"a"}']
)
def test_placement_is_refused_when_it_is_hostile(document):
    """Catches RecursionError and OverflowError at every start of a query."""
    io = MemoryFileIO("")
    io.write("/c/statestore.json", document.encode(), sync=False, overwrite=True)

    with pytest.raises(CorruptionError, match="placement is damaged"):
        read_placement(io, "/c/state")
