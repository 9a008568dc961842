"""What is taken of memory: by a block of this process, by calls of a storage in another one."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_SCRIPT = """
import json, sys
import statestore.engine.service  # what every engine has in memory

def resident_mib(which):
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return int(status[which].split()[0]) // 1024

how = json.loads(sys.stdin.readline())
if "s3" in how:
    from statestore.io.s3 import S3FileIO
    from statestore.io.s3_settings import S3Settings
    io = S3FileIO(how["directory"], S3Settings(**how["s3"]))
else:
    from statestore.io.fetch_cache import FetchCache
    from statestore.io.hadoop import HadoopFileIO
    from statestore.io.shim_files import ShimFiles
    files = ShimFiles(how["port"], how["token"])
    io = HadoopFileIO(files, how["file_system"], "", FetchCache(how["directory"], 1 << 40))
found = []
for call, *arguments in how["calls"]:
    before_mib = resident_mib("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is measured from now on
    named = {"sync": True, "overwrite": True} if call == "publish" else {}
    reply = getattr(io, call)(*arguments, **named)
    peak_mib = resident_mib("VmHWM")
    found.append([reply, peak_mib, peak_mib - before_mib])
print(json.dumps(found))
"""


def call_elsewhere(storage, directory, *calls):
    """Make calls of a storage in a new process that has what an engine has.

    Args:
        storage: How the process opens the storage: `s3` settings, or where a JVM serves files.
        directory: Its local directory for fetched files.
        calls: Name and arguments of each.

    Returns:
        For each what it returned, the most memory that was resident meanwhile, in MiB, and how
        much of that was new.
    """
    how = {**storage, "directory": str(directory), "calls": calls}
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps(how) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout)


@dataclass
class Growth:
    """The most memory of a block beyond what was there before, bytes; known behind the block.

    Attributes:
        resident: Of the process.
        arrow: Of Arrow's default pool.
    """

    resident: int = 0
    arrow: int = 0


_POOLS = []
"""For ever: a buffer does not hold the pool that it is given back to."""


@contextmanager
def measured_growth():
    """Measure what a block takes, whatever this process had at its most before."""
    grown, pool = Growth(), pa.default_memory_pool()
    within = pa.proxy_memory_pool(pool)
    _POOLS.append(within)
    before = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
    pa.set_memory_pool(within)
    try:
        yield grown
    finally:
        pa.set_memory_pool(pool)
        grown.resident = _resident_bytes("VmHWM") - before
        grown.arrow = within.max_memory() or 0


def _resident_bytes(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status[which].split()[0]) * 1024
