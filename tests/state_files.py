"""Small state files of every operation, sealed with a whole trailer."""

from dataclasses import replace

from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import FileRef, StoreName, VersionRef
from statestore.codec.rows import DELETE, MERGE, PUT, Row
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import describe_stream
from statestore.codec.trailer import RowCounts, Trailer, compute_lineage
from statestore.testing.deltas import write_stream

G = 8
ID = "ab" * 16
ROWS = [
    Row(group, 0, op, bytes([group, number]), None if op == DELETE else b"v" * number)
    for group in range(G)
    for number, op in enumerate((PUT, DELETE, MERGE))
]


def seal(path, blocks, **changes):
    """Append a trailer for ROWS."""
    trailer = Trailer(
        kind="delta",
        writer="test",
        store=StoreName(1, 2, "left"),
        backend="filesystem",
        version=7,
        checkpoint_id=ID,
        checkpoint_format=2,
        parent=VersionRef(6, "cd" * 16, "ef" * 16),
        lineage=compute_lineage(None, blocks),
        files=(FileRef("6.delta.arrows", "delta", 6, ID, "ef" * 16, 10, 3),),
        blocks=blocks,
        rows=RowCounts(G, G, G),
        num_keys=5,
        max_parallelism=G,
        num_partitions=4,
        rescalable=True,
        column_families=(
            ColumnFamily(0, "default"),
            ColumnFamily(1, "x", "{}", "{}", "range", 2, (0, 1), multi_values=True, internal=True),
        ),
    )
    trailer = replace(trailer, **changes)
    append_trailer(str(path), trailer)
    return trailer


def write_sealed(path, compression):
    """Write a whole state file of several blocks."""
    length = write_stream(str(path), ROWS, G, compression=compression, block_rows=5)
    seal(path, describe_stream(str(path), length, G))
