"""Random lookups of rows in the page cache, in RocksDB and by an index of all keys in memory.

    $ python -m benchmarks.lookups
    $ python -m benchmarks.lookups --rows 100000 --rounds 2

No Spark runs and no store: `jvm/IndexedLookups.scala` is a program of its own over RocksDB's Java
API and over files of its own, with four views of so many rows. It prints what `profiles.md` of the
results has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from benchmarks.sessions import benchmark_jar
from tools.scala import SPARK_JARS, find_java

PROGRAM = "io.statestore.bench.IndexedLookups"


def main() -> int:
    """Measure and print; return the program's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=3_000_000, help="of each of the four views")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    class_path = f"{benchmark_jar()}:{SPARK_JARS}/*"
    with tempfile.TemporaryDirectory(prefix="statestore-lookups-") as work:
        sizes = [str(arguments.rows), str(arguments.rounds)]
        command = [str(find_java()), "-Xmx2g", "-cp", class_path, PROGRAM, work, *sizes]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
