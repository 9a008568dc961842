"""What is fuzzed: each takes any bytes and raises nothing but a named error of ours.

Checksums are put right first: they keep accidents out, not what somebody wrote on purpose.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from statestore.checkpoint.history import entries_of
from statestore.checkpoint.layout import StoreLocation, store_of_path
from statestore.checkpoint.lease import Leases
from statestore.checkpoint.operator_metadata import (
    copy_operators,
    operator_metadata_path,
    read_operators,
)
from statestore.checkpoint.placement import read_placement
from statestore.checkpoint.rescale_refs import RescaleRefName, release
from statestore.codec.arrow_batch import read_batch, read_stream
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import decode_keys, key_type, split_values, value_type
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.references import StoreName
from statestore.codec.rows import SCHEMA, rows_in, to_numpy
from statestore.codec.spark_types import parse_schema
from statestore.codec.state_file import blocks_of, slices_of
from statestore.codec.trailer import Trailer, decode_trailer, encode_trailer
from statestore.codec.unsafe_row import decode_rows
from statestore.core.clock import ManualClock
from statestore.core.errors import InternalError, StateStoreError
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupSet
from statestore.io.memory import MemoryFileIO
from statestore.io.place import Place
from statestore.operations.checkpoint import OpenCheckpoint
from statestore.operations.metadata_file import check_of_query
from statestore.operations.rescale.rescale import check_rescalable
from statestore.operations.savepoint.savepoint import read_savepoint
from tests.golden.row_cases import ROWS_PATH
from tests.hostile import seal_trailer

GOLDEN = json.loads(ROWS_PATH.read_text())
_SCHEMAS = [golden["schema"] for golden in GOLDEN["rows"].values()]
_PAIR = json.loads(GOLDEN["rows"]["long"]["schema"])["fields"]
_TWO = json.dumps({"type": "struct", "fields": [*_PAIR, {**_PAIR[0], "name": "d"}]})
_FAMILIES = [
    ColumnFamily(0, "default", _TWO, _TWO, *more)
    for more in (
        ("no-prefix",), ("prefix", 1), ("range", None, (1,)), ("timestamp-prefix",),
        ("timestamp-postfix",), ("prefix", 9), ("range", None, (0, 7)),
    )
]  # fmt: skip
_STORES = (StoreName(0, 0), StoreName(1, 3, "left-keyToNumValues"))
G = 8
_CORPUS = Path(__file__).parent / "corpus/json"
_SPARKS = {
    "/ck/offsets/0": (_CORPUS / "offsets.bin").read_bytes(),
    "/ck/commits/0": (_CORPUS / "commits.bin").read_bytes(),
    operator_metadata_path("/ck/state", 0): (_CORPUS / "operator.bin").read_bytes(),
}


class _Named(suppress):
    """Suppresses the named errors of a block; a bug of ours is none."""

    def __init__(self):
        super().__init__(StateStoreError)

    def __exit__(self, kind, error, trace):
        return not isinstance(error, InternalError) and super().__exit__(kind, error, trace)


def fuzz_trailer(data):
    """The bytes are the JSON of a trailer; what is decoded is used as a load does."""
    sealed = seal_trailer(data)
    with _Named():
        decode_trailer(data, len(data), "file")
    try:
        blocks = json.loads(data)["blocks"]
        size = sum(block[1] for block in blocks) + len(sealed)
    except (ValueError, TypeError, LookupError, RecursionError):
        size = len(sealed)
    with _Named():
        trailer = decode_trailer(sealed, size, "file")
        again = encode_trailer(trailer)
        assert decode_trailer(again, trailer.body_length + len(again), "file") == trailer
        _use_trailer(trailer)


def _use_trailer(trailer: Trailer):
    for ref in trailer.files:
        with _Named():
            found = store_of_path(trailer.store, ref.path)
            assert (found.operator, found.name) == (trailer.store.operator, trailer.store.name)
        location = StoreLocation(MemoryFileIO(""), "/ck/state", trailer.store)
        with _Named():
            path = location.path(ref.path)
            assert path.startswith(f"/ck/state/{trailer.store.operator}/")
            assert ".." not in path.split("/")
    assert trailer.version_ref.version >= 0
    for clip in (None, trailer.key_groups, *(ref.clip for ref in trailer.files)):
        blocks_of(trailer, clip)
        assert len(slices_of(trailer, clip)) <= 16
        assert clip is None or (clip & clip) == clip
    for family in trailer.column_families:
        with _Named():
            key_type(family)
            value_type(family)
        with _Named():
            compute_key_groups(
                pa.array([bytes(16), bytes(8)], pa.binary()),
                trailer.store.name,
                family,
                trailer.max_parallelism,
            )


class _Run:
    def __init__(self, batches):
        self._batches = [batch for batch in batches if batch.num_rows]
        self.num_batches = len(self._batches)

    def batch(self, index):
        return self._batches[index]


def fuzz_arrow(data):
    """The bytes are a block of a state file, one record batch; or a whole stream of them."""
    whole = pa.py_buffer(data)
    for read in (lambda: [read_batch(whole, SCHEMA, "file", 0)], lambda: [*_stream(whole)]):
        with _Named():
            batches = read()
            if all(int(to_numpy(batch.column(0), "u2").max(initial=0)) < G for batch in batches):
                for merged in merge_runs([_Run(batches), _Run(batches)], G):
                    merged.validate(full=True)
            for batch in batches:
                rows_in(batch, KeyGroupSet(2, 1)).to_pylist()


def _stream(whole):
    return read_stream(whole, SCHEMA, "file", 0)


def fuzz_rows(data):
    """A byte says which schema and how many rows, the others are the rows, or keys or values."""
    if len(data) < 2:
        return
    number, count, body = data[0], data[1] % 4 + 1, data[2:]
    ends = [len(body) * part // count for part in range(count + 1)]
    rows = pa.array([body[start:end] for start, end in pairwise(ends)], pa.binary())
    schema = parse_schema(_SCHEMAS[number % len(_SCHEMAS)])
    with _Named():
        found = decode_rows(ByteRanges.of_column(rows), schema)
        found.validate()
        assert found.nbytes <= 64 * (len(data) + 1024)
    family = _FAMILIES[number % len(_FAMILIES)]
    with _Named():
        decode_keys(rows, family).validate(full=True)
    with _Named():
        compute_key_groups(rows, "default", family, G)
    with _Named():
        ranges, owners = split_values(rows)
        assert len(ranges) == len(owners)


def fuzz_json(data):
    """The bytes are every JSON document of a checkpoint there is."""
    io = MemoryFileIO("")
    root = "/ck/state"
    for path in (
        "/ck/statestore.json", f"/ck/statestore-leases/query-{'a' * 32}.json",
        f"{root}/0/0/3.0.ref", "/ck/metadata",
    ):  # fmt: skip
        io.write(path, data, sync=False, overwrite=True)
    with _Named():
        read_placement(io, root)
    with _Named():
        lease = Leases(io, root).read(f"query-{'a' * 32}.json")
        lease.holder.process.state()
        lease.has_expired(1)
        lease.holder.describe()
    with _Named():
        release(StoreLocation(io, root, StoreName(0, 0)), [RescaleRefName(3, 0)], 1, 3)
    with _Named():
        parse_schema(data.decode(errors="replace"))
    with _Named():
        read_savepoint(io, "/ck", "/ck")
    with _Named():
        check_of_query(io, "/ck", "/ck")
    for entry in entries_of(data):
        assert entry.is_damaged or entry.begun_at or entry.done_ms is not None
        json.dumps({**asdict(entry), "details": entry.details}, allow_nan=False)
    for path in _SPARKS:
        _use_checkpoint({**_SPARKS, path: data})


def _use_checkpoint(files):
    """Read Spark's files of a checkpoint, and write those that an operation writes again."""
    io = MemoryFileIO("")
    for path, data in files.items():
        io.write(path, data, sync=False, overwrite=True)
    place, root = Place("/ck", io=io, clock=ManualClock()), "/ck/state"
    checkpoint = OpenCheckpoint("/ck", io, "/ck", place, io, root, "")
    for again in (checkpoint.offsets_entry, checkpoint.commit_entry):
        with _Named():
            entry = again(0)
            assert type(entry).parse(entry.encode().encode().decode(), "file") == entry
    with _Named():
        check_rescalable(checkpoint)
        assert 0 < checkpoint.num_own_partitions(1) <= MAX_PARALLELISM_LIMIT
        same = {info.id: info.id for info in checkpoint.operators}
        copy_operators(io, root, io, "/new/state", "file:/new/state", same, 5, 0)
        assert [info.id for info in read_operators(io, "/new/state")] == [
            info.id for info in checkpoint.operators
        ]
    with _Named():
        for info in checkpoint.operators:
            for store in info.stores:
                checkpoint.head(StoreName(info.id, 0, store.name), 1)


TARGETS = {
    "trailer": fuzz_trailer,
    "arrow": fuzz_arrow,
    "rows": fuzz_rows,
    "json": fuzz_json,
}
