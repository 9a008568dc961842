"""Merging runs: last writer wins, merges append, deletes vanish, memory stays bounded."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.codec.merge import append_runs, interleave, merge_rows, merge_runs
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, MERGE, PUT, SCHEMA, Row, batch_from_rows
from statestore.codec.sealed_file import append_trailer
from statestore.codec.sorting import sort_into_runs
from statestore.codec.state_file import StateFile, describe_stream
from statestore.codec.trailer import RowCounts, Trailer
from statestore.core.key_groups import KeyGroupSet
from statestore.testing.deltas import write_stream
from tests.models import keys, rank, values

G = 12


def group_of(key):
    """A key group that is a function of the key."""
    return sum(key) % G


@st.composite
def deltas(draw):
    """Rows of a few versions; a key at most once in each."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.dictionaries(st.tuples(st.integers(0, 1), keys()), st.tuples(
            st.sampled_from([PUT, PUT, DELETE, MERGE]), values()), max_size=12))  # fmt: skip
        found.append(
            [
                Row(group_of(key), family, op, key, None if op == DELETE else value)
                for (family, key), (op, value) in chosen.items()
            ]
        )
    return found


def expected_rows(versions):
    """What a dict says, in file order."""
    state = {}
    for rows in versions:
        for row in rows:
            place = (row.column_family, row.key)
            if row.op == DELETE:
                state.pop(place, None)
            elif row.op == MERGE:
                state[place] = state.get(place, b"") + row.value
            else:
                state[place] = row.value
    ordered = sorted(state, key=lambda place: (rank(group_of(place[1]), G), *place))
    return [
        {"key_group": group_of(key), "column_family": family, "op": PUT, "key": key, "value": value}
        for family, key in ordered
        for value in [state[family, key]]
    ]


@given(deltas())
def test_merged_rows_are_what_a_dict_says(versions):
    """Catches a lost update, a resurrected delete, or values appended in the wrong order."""
    pieces = [batch_from_rows(rows, G) for rows in versions]

    merged = merge_rows(pieces, list(range(len(pieces))), G)

    assert merged.to_pylist() == expected_rows(versions)


def test_values_that_were_overwritten_count_for_nothing():
    """Catches a large value that changes often, of which all versions are to fit 2 GiB."""
    data = pa.py_buffer(bytes(80 << 20))
    whole = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(data)], np.int32)), data]
    )
    first = batch_from_rows([Row(0, 0, PUT, b"k", b"")], G)
    piece = pa.RecordBatch.from_arrays([*first.columns[:4], whole], schema=SCHEMA)
    parts = [batch_from_rows([Row(0, 0, MERGE, b"k", b"%d" % n)], G) for n in range(3)]

    merged = merge_rows([piece] * 32 + parts, list(range(35)), G)

    assert merged["value"].to_pylist() == [data.to_pybytes() + b"012"]


def write_run(directory, number, rows, **how):
    """Rows as a sealed state file."""
    path = f"{directory}/{number}"
    length = write_stream(path, rows, G, **how)
    blocks = describe_stream(path, length, G)
    store = StoreName(0, 0)
    append_trailer(
        path,
        Trailer(
            "delta", "test", store, "filesystem", number + 1, "ab" * 16, 1, None, "cd" * 16, (),
            blocks, RowCounts(put=len(rows)), 0, G, 1, True, (),
        ),
    )  # fmt: skip
    return StateFile(path)


@settings(max_examples=25)
@given(versions=deltas(), slice_bytes=st.sampled_from([1, 64, 500]), zipped=st.booleans())
def test_slices_make_no_difference(tmp_path_factory, versions, slice_bytes, zipped):
    """Catches a row that falls between two slices or comes twice."""
    directory = tmp_path_factory.mktemp("runs")
    how = {"compression": "zstd" if zipped else "none", "block_rows": 3}
    runs = [write_run(directory, number, rows, **how) for number, rows in enumerate(versions)]

    merged = [
        row for batch in merge_runs(runs, G, slice_bytes=slice_bytes) for row in batch.to_pylist()
    ]

    assert merged == expected_rows(versions)


@settings(max_examples=25)
@given(versions=deltas(), piece_rows=st.integers(1, 20), slice_bytes=st.sampled_from([1, 64, 500]))
def test_rows_in_order_of_their_keys_need_no_look_at_them(
    tmp_path_factory, versions, piece_rows, slice_bytes
):
    """Catches an order of rows that is not that of a file, within a run, of several and of slices.

    The runs of the second call take turns: each has rows before and behind those of the others.
    """
    expected = expected_rows(versions)
    by_key = sorted(expected, key=lambda row: (row["column_family"], row["key"]))
    pieces = [
        pa.RecordBatch.from_pylist(by_key[start : start + piece_rows], schema=SCHEMA)
        for start in range(0, len(by_key), piece_rows)
    ]
    runs = [
        sort_into_runs([piece], G, str(tmp_path_factory.mktemp("run")), is_by_key=True)[0]
        for piece in pieces
    ]
    taken_in_turn = [
        pa.RecordBatch.from_pylist(by_key[start::3], schema=SCHEMA)
        for start in range(min(3, len(by_key)))
    ]
    again = [
        sort_into_runs([piece], None, str(tmp_path_factory.mktemp("turn")))[0]
        for piece in taken_in_turn
    ]
    appended = append_runs(runs, G, slice_bytes=slice_bytes)
    interleaved = interleave(again, None, slice_bytes=slice_bytes)

    assert [row for batch in appended for row in batch.to_pylist()] == expected
    assert [row for batch in interleaved for row in batch.to_pylist()] == by_key


@pytest.mark.parametrize("slice_bytes", [20_000, 100_000])
def test_memory_is_bounded_by_slices(tmp_path, slice_bytes):
    """Catches a snapshot that holds the whole state in memory."""
    versions = [
        [Row(n % G, 0, PUT, b"%08d" % n, b"v" * 50) for n in range(start, 20_000, 3)]
        for start in range(3)
    ]
    runs = [write_run(tmp_path, number, rows) for number, rows in enumerate(versions)]

    batches = list(merge_runs(runs, G, slice_bytes=slice_bytes))

    assert sum(batch.num_rows for batch in batches) == 20_000
    assert max(batch.nbytes for batch in batches) < 1.5 * slice_bytes


def test_rows_of_other_partitions_are_skipped(tmp_path):
    """Catches a file shared after a rescale bringing foreign rows in."""
    rows = [Row(group, 0, PUT, bytes([group]), b"") for group in range(G)]
    run = write_run(tmp_path, 0, rows)

    merged = list(merge_runs([StateFile(run.path, KeyGroupSet(4, 1))], G))

    assert sorted(row["key_group"] for batch in merged for row in batch.to_pylist()) == [1, 5, 9]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"b", b"c"]), values())),
    st.integers(1, 5),
    st.integers(0, 40),
)
def test_rows_of_a_key_that_are_in_several_blocks_are_one(elements, block_rows, run_rows):
    """Catches a key that is there twice, where its rows lie over the end of a block."""
    expected = {}
    for family, key, value in elements:
        expected[family, key] = expected.get((family, key), b"") + value
    rows = [Row(group_of(key), family, MERGE, key, value) for family, key, value in elements]
    cuts = [0, run_rows, len(rows)]
    runs = [
        Blocks(batch_from_rows(rows[start:stop], G), block_rows)
        for start, stop in pairwise(cuts)
        if start < stop
    ]

    merged = [row for batch in merge_runs(runs, G) for row in batch.to_pylist()]

    assert [(row["column_family"], row["key"], row["value"]) for row in merged] == sorted(
        ((family, key, value) for (family, key), value in expected.items()),
        key=lambda row: (rank(group_of(row[1]), G), *row),
    )


class Blocks:
    """Rows as a run of blocks of so many rows, with an empty one in front and behind."""

    def __init__(self, rows, block_rows):
        starts = range(0, rows.num_rows, block_rows)
        self._blocks = [
            rows.slice(0, 0),
            *(rows.slice(start, block_rows) for start in starts),
            rows.slice(0, 0),
        ]
        self.num_batches = len(self._blocks)

    def batch(self, index):
        return self._blocks[index]
