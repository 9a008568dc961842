"""What the engine reads of its container's memory, of both forms of Linux's control groups."""

import pytest

from statestore.codec.commit_times import MemoryUse
from statestore.engine.memory import EngineMemory, resident_bytes

MACHINE = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"
UNLIMITED = str(1 << 62)


def second(root, group, most, taken, inactive=0):
    """A group of the second form."""
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{taken}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def first(root, group, most, taken, inactive=0):
    """A group of the first form."""
    folder = root / "sys/fs/cgroup/memory" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{taken}\n")
    (folder / "memory.stat").write_text(f"rss 5\ntotal_inactive_file {inactive}\n")


def use(root, groups, elapsed_ms=lambda: 0.0, machine=MACHINE):
    """Memory by the files of a made-up system; what the engine holds is real."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/meminfo").write_text(machine)
    return EngineMemory(elapsed_ms, root)


@pytest.mark.parametrize("make", [first, second])
def test_the_tightest_limit_counts_without_what_the_system_takes_back(tmp_path, make):
    """Catches a pod's limit that is above the process's group, and page cache taken for need."""
    make(tmp_path, "pod", 50_000, 45_000, inactive=5_000)
    make(tmp_path, "pod/task", "max" if make is second else UNLIMITED, 7_000)
    groups = "0::/pod/task\n" if make is second else "5:cpu:/x\n4:memory:/pod/task\n"
    found = use(tmp_path, groups).use()
    assert (found.taken_bytes, found.limit_bytes, found.share) == (40_000, 50_000, 0.8)
    assert found.engine_bytes == pytest.approx(resident_bytes(), rel=0.5)


def test_a_container_that_sees_its_own_group_as_the_root_is_found(tmp_path):
    """Catches a path of the host's that is not there inside of the container."""
    first(tmp_path, "", 30_000, 3_000)
    assert use(tmp_path, "4:memory:/kube/pod\n").use().limit_bytes == 30_000


@pytest.mark.parametrize("groups", ["", "0::/\n"])
def test_without_a_limit_the_machine_is_it(tmp_path, groups):
    """Catches a share of 0 on a machine that is full."""
    second(tmp_path, "", "max", 10)
    found = use(tmp_path, groups).use()
    assert (found.taken_bytes, found.limit_bytes) == (600 * 1024, 1000 * 1024)


def test_a_system_that_tells_nothing_costs_no_commit(tmp_path):
    """Catches an engine that fails where /proc is not there."""
    found = EngineMemory(lambda: 0.0, tmp_path).use()
    assert found == MemoryUse(found.engine_bytes, 0, 0)
    assert found.share == 0


def test_the_container_is_read_once_a_second(tmp_path):
    """Catches a commit that reads six files of the system for nothing."""
    now = [0.0]
    second(tmp_path, "", 20_000, 1_000)
    memory = use(tmp_path, "0::/\n", lambda: now[0])
    taken = []
    for now[0], holds in ((0.0, 1_000), (999.0, 2_000), (1_000.0, 3_000)):
        second(tmp_path, "", 20_000, holds)
        taken.append(memory.use().taken_bytes)
    assert taken == [1_000, 1_000, 3_000]
