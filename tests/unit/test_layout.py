"""Layout: names are built and taken apart in one place, and strangers are recognised."""

import pytest

from statestore.checkpoint.layout import (
    StateFileName,
    StoreLocation,
    is_temporary,
    other_provider,
    parse_state_file_name,
    store_of_path,
)
from statestore.codec.references import FileRef, StoreName
from statestore.io.local import LocalFileIO

ID = "0123456789abcdef" * 2


def test_names_survive_the_round_trip():
    """Catches a name that retention would not recognise as its own."""
    for body in ("arrows", "sst"):
        location = StoreLocation(LocalFileIO(), "/ck/state", StoreName(0, 0), body)
        for checkpoint_id in (None, ID):
            name = location.delta_name(12, checkpoint_id)
            assert parse_state_file_name(name) == StateFileName("delta", 12, checkpoint_id, body)
        for kind in ("snapshot", "merged"):
            name = location.summary_name(kind, 12, ID)
            assert parse_state_file_name(name) == StateFileName(kind, 12, ID, body)


@pytest.mark.parametrize(
    "name",
    [
        "12.delta", "12.snapshot.arrows", "12.merged.sst", "0.delta.arrows",
        "012.delta.arrows", "_metadata", "_stateSchema",
        "12_abc.delta.arrows", "12.delta.arrows.crc", "12_" + ID.upper() + ".delta.arrows",
    ],
)  # fmt: skip
def test_files_of_others_are_not_taken_for_ours(name):
    """Catches retention deleting Spark's files."""
    assert parse_state_file_name(name) is None
    assert not is_temporary(name)


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("1.delta", "HDFSBackedStateStoreProvider"),
        ("10.snapshot", "HDFSBackedStateStoreProvider"),
        ("3.zip", "RocksDBStateStoreProvider"),
        ("3.changelog", "RocksDBStateStoreProvider"),
        ("3_5b8f-77.zip", "RocksDBStateStoreProvider"),
    ],
)
def test_other_providers_are_named_by_their_files(name, provider):
    """Catches starting an empty store beside another provider's state."""
    assert other_provider(["_metadata", name]) == (name, provider)
    assert other_provider(["_metadata", "1.delta.arrows"]) is None


def test_directories_of_default_and_named_stores():
    """Catches a store in a place where Spark's readers do not look."""
    io = LocalFileIO()
    default = StoreLocation(io, "/ck/state", StoreName(0, 3))
    named = StoreLocation(io, "/ck/state", StoreName(0, 3, "left-keyToNumValues"))

    assert default.directory == "/ck/state/0/3"
    assert named.directory == "/ck/state/0/3/left-keyToNumValues"
    assert default.path("../5/1.delta.arrows") == "/ck/state/0/5/1.delta.arrows"


@pytest.mark.parametrize(
    ("store", "path", "expected"),
    [
        (StoreName(2, 3), "1.delta.arrows", StoreName(2, 3)),
        (StoreName(2, 3), "../5/1.delta.arrows", StoreName(2, 5)),
        (StoreName(2, 3, "left"), "../../5/left/1.delta.arrows", StoreName(2, 5, "left")),
    ],
)
def test_referenced_file_belongs_to_where_its_path_leads(store, path, expected):
    """Catches refusing a file of another partition that a rescale refers to."""
    ref = FileRef(path, "delta", 1, ID, "", 0, 0)

    assert store_of_path(store, ref.path) == expected
