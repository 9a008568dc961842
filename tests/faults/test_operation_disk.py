"""Operations whose local disk is full, on a small file system of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.operations.checkpoints import make_query

FULL_DISK = """
set -e
mount -t tmpfs -o size=256k tmpfs "$1"
shift
exec "$@"
"""
DIFF = """
import sys
from statestore import Checkpoint, StateStoreError
try:
    print(Checkpoint(sys.argv[1]).count_differences(sys.argv[2]))
except StateStoreError as error:
    print(error)
"""


def on_a_small_disk(disk, *command):
    """What a command prints that has 256 KiB for its temporary files, its own mount."""
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    done = subprocess.run(
        [*unshare, FULL_DISK, "sh", str(disk), *command],
        capture_output=True, text=True, timeout=120, check=True,
        env={"TMPDIR": str(disk), "PATH": "/usr/bin:/bin"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return done.stdout


def test_diff_says_that_its_disk_is_full(tmp_path):
    """Catches an error of Arrow's that names neither the disk nor what to do."""
    old = make_query(tmp_path / "old", num_partitions=2)
    new = make_query(tmp_path / "new", num_partitions=4)
    new.run({f"more-{number}": "x" * 1000 for number in range(1000)})

    shown = on_a_small_disk(tmp_path / "disk", sys.executable, "-c", DIFF, old.path, new.path)

    assert shown.startswith("[storage-full] cannot sort rows in the scratch directory")
    assert str(tmp_path / "disk") in shown
