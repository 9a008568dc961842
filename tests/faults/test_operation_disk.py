"""Operations, and engines that start, whose disk is full, on a small file system of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.spark_files.schemas import write_schemas
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS
from tests.checkpoints import make_query
from tests.faults.full_disk import OPERATIONS

ROOT = Path(__file__).parents[2]
SMALL_DISK = """
set -e
mount -t tmpfs -o size="$1" tmpfs "$2"
shift 2
exec "$@"
"""
DIFF = """
import sys
from statestore import Checkpoint, StateStoreError
try:
    old, new = (Checkpoint(at).rows(0) for at in sys.argv[1:3])
    print(old.count_differences(new))
except StateStoreError as error:
    print(error)
"""


def on_a_small_disk(disk, size, *command):
    """What a command prints that has a small disk for its temporary files, its own mount."""
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    done = subprocess.run(
        [*unshare, SMALL_DISK, "sh", size, str(disk), *map(str, command)],
        capture_output=True, text=True, timeout=240, check=True,
        env={"TMPDIR": str(disk), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )  # fmt: skip
    return done.stdout


def test_diff_says_that_its_disk_is_full(tmp_path):
    """Catches an error of Arrow's that names neither the disk nor what to do."""
    old = make_query(tmp_path / "old", num_partitions=2)
    new = make_query(tmp_path / "new", num_partitions=4)
    new.run_batch({f"more-{number}": "x" * 1000 for number in range(1000)})

    shown = on_a_small_disk(
        tmp_path / "disk", "256k", sys.executable, "-c", DIFF, old.path, new.path
    )

    assert shown.startswith("[storage-full] cannot sort rows in the scratch directory")
    assert str(tmp_path / "disk") in shown


@pytest.fixture(
    scope="module", params=["filesystem", pytest.param("rocksdb", marks=pytest.mark.extended)]
)
def outcomes(request, tmp_path_factory):
    """What came of every operation with little space left on the disk of the checkpoint."""
    path = tmp_path_factory.mktemp("full")
    (path / "scratch").mkdir()
    made = MadeCheckpoint(str(path / "ck"), path / "scratch", backend=request.param)
    for _ in range(2):
        made.run_batch({number: number * 1024 for number in range(1000)})
    family = OPERATORS[0][1][0].family
    schema = path / "ck" / "state" / "0" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    schema.write_bytes(write_schemas(family.key_schema, family.value_schema))
    Checkpoint(made.path).savepoint(path / "sp")
    shown = on_a_small_disk(
        path / "disk", "3m", sys.executable, "-m", "tests.faults.full_disk", path / "disk", path
    )
    return dict(map(json.loads, shown.splitlines())), str(path / "disk")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_says_that_the_disk_is_full_and_can_be_repeated(outcomes, operation):
    """Catches an error of a library that names no disk, and half of a result that is in the way."""
    found, disk = outcomes
    failures = [outcome for outcome, _ in found[operation] if outcome != "done"]

    assert failures
    for failure in failures:
        assert failure.startswith("storage-full: [storage-full] ")
        assert disk in failure
    assert [findings for _, findings in found[operation] if findings] == []


ENGINE = """
import sys
from pathlib import Path
from tests.engine_process import EngineProcess, EngineRefusedError
from tests.faults.full_disk import fill
scratch = Path(sys.argv[1], "statestore-scratch-a")
scratch.mkdir()
(scratch / "lock").write_text(sys.argv[2])
fill(scratch.parent, 0)
try:
    EngineProcess(str(scratch)).kill()
except EngineRefusedError as error:
    print(error.refusal["kind"], error)
"""


@pytest.mark.parametrize("lock", ["", "its space is there"], ids=["lock", "directory"])
def test_engine_says_that_its_disk_is_full(tmp_path, lock):
    """Catches a query that fails with neither the disk nor what to do."""
    disk = tmp_path / "disk"

    shown = on_a_small_disk(disk, "64k", sys.executable, "-c", ENGINE, disk, lock)

    assert shown.startswith("storage-full ")
    assert f"file='{disk}/statestore-scratch-a'" in shown
    assert "To fix: free space on the file system of this path" in shown
