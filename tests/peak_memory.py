"""What calls of a storage take of memory, measured in a process of its own."""

import json
import subprocess
import sys

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
