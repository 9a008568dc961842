"""Storages on which whole directories are worked on: listed, deleted, files shared."""

from __future__ import annotations

import pytest

from statestore.core.errors import FencedError, NotFoundError
from statestore.io.fetch_cache import FetchCache
from statestore.io.hadoop import HadoopFileIO
from statestore.io.hadoop_process import HadoopProcess
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.s3 import S3FileIO


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """A process that opens a file system which Hadoop alone opens, over a folder."""
    folder = tmp_path_factory.mktemp("mounted").as_uri()
    files = HadoopProcess({"spark.hadoop.fs.viewfs.mounttable.tree.link./data": folder})
    yield files
    files.close()


@pytest.fixture(params=["local", "memory", "s3", "hadoop"])
def place(request, tmp_path):
    """A storage and a directory of it."""
    if request.param == "hadoop":
        files = request.getfixturevalue("mounted")
        io = HadoopFileIO(files, "viewfs://tree", "", FetchCache(str(tmp_path), 0))
        return io, f"/data/{tmp_path.name}"
    if request.param == "local":
        return LocalFileIO(), str(tmp_path / "root")
    if request.param == "memory":
        return MemoryFileIO(str(tmp_path)), "/root"
    server, bucket = (request.getfixturevalue(name) for name in ("s3_server", "bucket"))
    return S3FileIO(str(tmp_path), server.settings()), f"/{bucket}/root"


def write(io, path, data):
    io.make_directory(path.rpartition("/")[0])
    io.write(path, data, sync=False, overwrite=False)


def test_tree_is_listed_and_deleted_whole_and_nothing_beside_it(place):
    """Catches a file below a directory that is left behind, or a neighbour taken with it."""
    io, root = place
    for name in ("a", "b/c", "b/d/.e"):
        write(io, f"{root}/{name}", name.encode())
    write(io, f"{root}-beside/a", b"")

    assert {(info.name, info.size) for info in io.list_tree(root)} == {
        ("a", 1), ("b/c", 3), ("b/d/.e", 6),
    }  # fmt: skip
    io.delete_tree(f"{root}/b")
    assert [info.name for info in io.list_tree(root)] == ["a"]
    io.delete_tree(root)
    io.delete_tree(root)
    assert io.list_tree(root) == []
    assert [info.name for info in io.list_tree(f"{root}-beside")] == ["a"]


def test_nothing_is_deleted_that_was_denied(place):
    """Catches files that another process wrote since, and a deletion that asks too early takes."""
    io, root = place
    for name in ("a", "b/c"):
        write(io, f"{root}/{name}", b"")

    def deny():
        write(io, f"{root}/b/late", b"")
        raise LookupError("denied")

    with pytest.raises(LookupError, match="denied"):
        io.delete_tree(root, deny)

    assert {info.name for info in io.list_tree(root)} == {"a", "b/c", "b/late"}


def test_directories_are_listed_one_level_deep(place):
    """Catches a search for savepoints that lists every file below them, or takes a file for one."""
    io, root = place
    for name in ("a", "b/c", "b/d/e", "f/g/h"):
        write(io, f"{root}/{name}", b"")
    write(io, f"{root}-beside/x/y", b"")

    assert sorted(io.list_directories(root)) == ["b", "f"]
    assert io.list_directories(f"{root}/b/d") == []
    assert io.list_directories(f"{root}/missing") == []


def test_linked_file_outlives_the_first_and_replaces_none(place):
    """Catches a branch that loses a file with the original, or writes over one."""
    io, root = place
    write(io, f"{root}/a", b"bytes")
    io.make_directory(f"{root}/b")

    io.link(f"{root}/a", f"{root}/b/a", sync=True)

    with pytest.raises(FencedError, match=r"file=\S*/b/a"):
        io.link(f"{root}/a", f"{root}/b/a", sync=False)
    with pytest.raises(NotFoundError, match=r"file=\S*/missing"):
        io.link(f"{root}/missing", f"{root}/b/other", sync=False)
    io.write(f"{root}/a", b"replaced", sync=False, overwrite=True)
    assert io.read_tail(f"{root}/b/a", 9) == (b"bytes", 5)
    io.delete(f"{root}/a")
    assert io.read_tail(f"{root}/b/a", 9) == (b"bytes", 5)
    assert io.shares(io, f"{root}/a", f"{root}/b/c")
    assert not io.shares(MemoryFileIO(root), f"{root}/a", f"{root}/b/c")
