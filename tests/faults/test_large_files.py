"""Files larger than an engine's memory: they travel in parts that are never together in it."""

import hashlib
import mmap
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from moto.s3.models import FakeKey

from statestore.io.hadoop_process import HadoopProcess
from tests.peak_memory import call_elsewhere

MIB = 1 << 20
MOST_MIB, MOST_NEW_MIB = 200, 48  # libraries that were just installed take 30 MiB more
SIZES = [
    64 * MIB,
    pytest.param(1024 * MIB, marks=[pytest.mark.extended, pytest.mark.timeout(1800)]),
]
"""Neither fits into MOST_NEW_MIB, the larger one not into MOST_MIB."""


def write_numbered(path, size):
    """Write bytes of which no two runs of 4 KiB are the same."""
    filler = bytes(4088)
    with Path(path).open("wb") as file:
        file.writelines(number.to_bytes(8) + filler for number in range(size // 4096))


def digest(path, start=0, length=None):
    """A digest of a part of a local file, or of all of it."""
    found = hashlib.sha256()
    left = Path(path).stat().st_size if length is None else length
    with Path(path).open("rb") as file:
        file.seek(start)
        while data := file.read(min(MIB, left)):
            found.update(data)
            left -= len(data)
    return found.hexdigest()


@pytest.fixture
def large_objects(monkeypatch):
    """Let the S3 server map a large object, which it else reads whole for each part of it."""
    read = FakeKey.value

    def value(key):
        if key.contentsize < 16 * MIB:
            return read.fget(key)
        return mmap.mmap(key._value_buffer.fileno(), 0, access=mmap.ACCESS_READ)

    monkeypatch.setattr(FakeKey, "value", property(value, read.fset))


@pytest.mark.usefixtures("large_objects")
@pytest.mark.parametrize("size", SIZES)
def test_memory_stays_small_when_a_large_file_goes_to_s3_and_back(
    s3_server, bucket, tmp_path, size
):
    """Catches an engine that holds a file of gigabytes whole, is killed for it, and so on."""
    local, wanted = tmp_path / "local", (size // 4, size // 2)
    write_numbered(local, size)
    digests = digest(local), digest(local, *wanted)
    path = f"/{bucket}/large"

    calls = (
        ("publish", str(local), path),
        ("fetch", path),
        ("fetch_slices", path, size, [wanted]),
    )
    storage = {"s3": asdict(s3_server.settings(timeout_s=900.0))}
    replies, peaks_mib, new_mib = zip(*call_elsewhere(storage, tmp_path, *calls), strict=True)

    assert (digest(replies[1]), digest(replies[2], *wanted)) == digests
    assert max(peaks_mib) <= MOST_MIB
    assert max(new_mib) <= MOST_NEW_MIB


@pytest.mark.timeout(180)  # a JVM, and a gigabyte written, sent and read
@pytest.mark.parametrize("size", SIZES)
def test_memory_stays_small_when_a_large_file_comes_through_hadoop(tmp_path, size):
    """Catches a slice of gigabytes that is read whole, and lies on the disk twice."""
    folder, fetched = tmp_path / "folder", tmp_path / "fetched"
    folder.mkdir()
    fetched.mkdir()
    local, wanted = folder / "large", (4096, size // 8 * 7)
    write_numbered(local, size)
    digests = digest(local), digest(local, *wanted)
    conf = {"spark.hadoop.fs.viewfs.mounttable.large.link./data": folder.as_uri()}

    with closing(HadoopProcess(conf)) as files:
        files.ask("stat", checkpoint="", path="viewfs://large/data/large")
        port, token = files._jvm.files._address
        storage = {
            "port": port, "token": token, "file_system": "viewfs://large",
        }  # fmt: skip
        calls = (("fetch", "/data/large"), ("fetch_slices", "/data/large", size, [wanted]))
        replies, peaks_mib, new_mib = zip(*call_elsewhere(storage, fetched, *calls), strict=True)

    assert (digest(replies[0]), digest(replies[1], *wanted)) == digests
    assert max(peaks_mib) <= MOST_MIB
    assert max(new_mib) <= MOST_NEW_MIB
    assert Path(replies[1]).stat().st_blocks * 512 <= wanted[1] + MIB
