"""The local disk: URIs, order of durable steps, and errors with a name."""

import errno
import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from statestore.core.errors import (
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.ids import CountingIds
from statestore.io import local
from statestore.io.local import LocalFileIO, named_errors, resolve_local_path
from statestore.io.storage import absolute_uri, scheme_of


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/data/ck", "/data/ck"),
        ("/data/100%25/a b", "/data/100%25/a b"),
        ("file:/data/ck", "/data/ck"),
        ("file:///data/ck/", "/data/ck"),
        ("file://localhost/data/ck", "/data/ck"),
        ("file:/data/a%20b%25", "/data/a b%"),
        ("file:/data/a?b#c", "/data/a?b#c"),
    ],
)
def test_file_uris_and_paths_resolve(uri, path):
    """Catches state written beside the checkpoint because of an escaped character."""
    assert resolve_local_path(uri) == path


def test_name_with_a_colon_is_no_uri():
    """Catches a savepoint of this minute that a JVM looks for, and a directory called `s3:ck`."""
    for name in ("backup-2026-11-28T12:30", "run:1", "C:x", "a:b/c"):
        assert absolute_uri(name) == str(Path.cwd() / name)
        assert resolve_local_path(f"/data/{name}") == f"/data/{name}"
    for uri, scheme in (("s3:ck", "s3"), ("s3a://ck", "s3"), ("x:/ck", "x"), ("x:", "x")):
        assert scheme_of(uri) == scheme


def test_path_as_hadoop_prints_it_is_not_decoded():
    """Catches state written beside a checkpoint whose name holds a percent sign."""
    assert resolve_local_path("file:/data/a%20b", is_encoded=False) == "/data/a%20b"
    assert resolve_local_path("file:///data/a b", is_encoded=False) == "/data/a b"


@pytest.mark.parametrize("uri", ["s3a://bucket/ck", "hdfs:/ck", "file://host/ck", "relative/ck"])
def test_other_schemes_are_refused_by_name(uri):
    """Catches a directory called "s3a:" on the local disk."""
    with pytest.raises(InvalidArgumentError) as caught:
        resolve_local_path(uri)

    assert caught.value.kind == "unsupported-scheme"
    assert uri in str(caught.value)


@pytest.fixture
def trace(monkeypatch):
    """Names of the durable system calls, in order."""
    calls = []
    for name in ("fsync", "rename", "link", "unlink"):
        real = getattr(os, name)

        def record(*args, _name=name, _real=real, **kwargs):
            target = args[0]
            if isinstance(target, int):
                target = Path(f"/proc/self/fd/{target}").readlink()
            calls.append(f"{_name} {Path(target).name}")
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, record)
    return calls


def test_publish_syncs_file_then_renames_then_syncs_directory(tmp_path, trace):
    """Catches an order in which a power failure leaves a name without bytes."""
    (tmp_path / "dest").mkdir()
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"rows")

    LocalFileIO().publish(str(source), f"{tmp_path}/dest/1", sync=True, overwrite=True)

    assert trace == ["fsync scratch.arrows", "rename scratch.arrows", "fsync dest"]
    assert (tmp_path / "dest" / "1").read_bytes() == b"rows"


def test_directory_that_cannot_be_synced_is_published_into(tmp_path, monkeypatch, caplog):
    """Catches a commit that fails where directories cannot be synced, or not where files cannot."""
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"rows")
    fsync = os.fsync

    def refuse(descriptor, refuses=stat.S_ISDIR):
        if refuses(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(local, "_warned", threading.Event())
    for name in "12":
        source.write_bytes(b"rows")
        LocalFileIO().publish(str(source), f"{tmp_path}/{name}", sync=True, overwrite=False)
        assert (tmp_path / name).read_bytes() == b"rows"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a file system syncs no directories"
    ]

    source.write_bytes(b"rows")
    monkeypatch.setattr(os, "fsync", partial(refuse, refuses=stat.S_ISREG))
    with pytest.raises(StorageError):
        LocalFileIO().publish(str(source), f"{tmp_path}/3", sync=True, overwrite=False)


def test_publish_without_sync_only_renames(tmp_path, trace):
    """Catches waiting for the disk although fsync.enabled is false."""
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"rows")

    LocalFileIO().publish(str(source), f"{tmp_path}/1", sync=False, overwrite=True)

    assert trace == ["rename scratch.arrows"]


def test_publish_copies_when_scratch_is_on_another_file_system(tmp_path, monkeypatch, trace):
    """Catches a commit that fails because executors keep scratch files in memory."""
    real_rename = os.rename

    def rename(source, path):
        if "scratch" in str(source):
            raise OSError(errno.EXDEV, "cross-device link")
        real_rename(source, path)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(local, "RandomIds", CountingIds)
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"rows")

    LocalFileIO().publish(str(source), f"{tmp_path}/1", sync=True, overwrite=True)

    assert (tmp_path / "1").read_bytes() == b"rows"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]
    assert f"fsync .tmp-{1:032x}" in trace


def test_publish_without_overwrite_leaves_what_is_there(tmp_path):
    """Catches a snapshot that replaces one other trailers already name."""
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"new")
    (tmp_path / "1").write_bytes(b"old")

    with pytest.raises(FencedError) as caught:
        LocalFileIO().publish(str(source), f"{tmp_path}/1", sync=False, overwrite=False)

    assert caught.value.kind == "file-exists"
    assert (tmp_path / "1").read_bytes() == b"old"
    assert source.read_bytes() == b"new"


def test_directory_gone_missing_file_and_full_disk_have_names(tmp_path, monkeypatch):
    """Catches a bare OSError reaching the user."""
    io = LocalFileIO()
    source = tmp_path / "scratch.arrows"
    source.write_bytes(b"rows")

    with pytest.raises(StorageError) as gone:
        io.publish(str(source), f"{tmp_path}/no/1", sync=False, overwrite=True)
    with pytest.raises(NotFoundError) as missing:
        io.read_tail(f"{tmp_path}/no", 10)
    monkeypatch.setattr(local.os, "fsync", _full_disk)
    with pytest.raises(StorageError) as full:
        io.publish(str(source), f"{tmp_path}/1", sync=True, overwrite=True)

    assert gone.value.kind == "directory-gone"
    assert f"{tmp_path}/no" in str(gone.value)
    assert missing.value.kind == "file-not-found"
    assert full.value.kind == "storage-full"
    assert source.exists()
    assert io.list(f"{tmp_path}/no") == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, "permission-denied"),
        (errno.EROFS, "permission-denied"),
        (errno.EDQUOT, "storage-full"),
        (errno.EIO, "storage"),
    ],
)
def test_reasons_are_told_apart(number, kind):
    """Catches retrying what cannot succeed, or giving up on what can."""
    with pytest.raises(StorageError) as caught, named_errors("write a file", "/ck/1"):
        raise OSError(number, os.strerror(number))

    assert caught.value.kind == kind
    assert "file='/ck/1'" in str(caught.value)


def test_publish_without_overwrite_works_without_hard_links(tmp_path, monkeypatch):
    """Catches snapshots failing for ever on a file system without hard links."""

    def no_links(source, path):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    io = LocalFileIO()

    io.publish(f"{tmp_path}/a", f"{tmp_path}/1", sync=False, overwrite=False)
    with pytest.raises(FencedError):
        io.publish(f"{tmp_path}/b", f"{tmp_path}/1", sync=False, overwrite=False)

    assert (tmp_path / "1").read_bytes() == b"a"


def test_link_to_a_file_is_listed_as_what_it_leads_to(tmp_path):
    """Catches a newest batch that nobody sees, since a tool has put a link in its file's place."""
    (tmp_path / "elsewhere").write_bytes(b"bytes")
    log = tmp_path / "log"
    log.mkdir()
    (log / "0").symlink_to(tmp_path / "elsewhere")
    (log / "1").symlink_to(tmp_path / "gone")
    (log / "2").symlink_to(log / "2")
    io = LocalFileIO()

    for listed in (io.list(str(log)), io.list_tree(str(log))):
        assert [(info.name, info.size) for info in listed] == [("0", 5)]
    io.link(f"{log}/0", f"{tmp_path}/linked", sync=False)
    io.delete(f"{log}/0")
    (tmp_path / "elsewhere").unlink()
    assert not (tmp_path / "linked").is_symlink()
    assert (tmp_path / "linked").read_bytes() == b"bytes"


def _full_disk(_descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")
