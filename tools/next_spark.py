"""Says whether the shim fits other releases of Spark than the one that is installed.

    python -m tools.next_spark                  the newest release there is, also a preview
    python -m tools.next_spark DIRECTORY        the Spark whose jars are there
    python -m tools.next_spark --releases 4.1   the jar of a minor, with every release it is for

It compares names in byte code: statestore/io/link_check.py. What it cannot see is tested by
tests/spark/test_next_spark.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from statestore.core.version import SPARK_MINORS
from statestore.io.link_check import describe, find_missing
from tools.shim_jar import build_jar
from tools.spark_jars import RELEASES, jars_of_release, minor_of, releases_of

_NEWEST = SPARK_MINORS[-1]
_OFFERED = re.compile(r"pyspark \(([^)]+)\)")
_FITS = """\
All that the jar for {newest} names is there. To let it serve this Spark, follow docs/new-spark.md:
it is named first, then tested."""
_LACKS = """\
The jar for {newest} does not fit; the package refuses this Spark by name. To make a jar of its own,
take each line above for a line of SparkCalls, StoreMembers or ProviderMembers: docs/new-spark.md"""


def _main() -> int:
    match sys.argv[1:]:
        case ["--releases", *minors]:
            return max([_check_releases(minor) for minor in minors or RELEASES])
        case [directory]:
            return _check_next(Path(directory))
        case []:
            release = _newest_release()
            if minor_of(release) in SPARK_MINORS:
                print(f"the newest Spark is {release}, which has a jar")
                return 0
            return _check_next(jars_of_release(release))
    sys.exit(__doc__)


def _check_releases(minor: str) -> int:
    jar = build_jar(minor)
    return max([_report(f"Spark {of}", jar, jars_of_release(of)) for of in releases_of(minor)])


def _check_next(directory: Path) -> int:
    lacks = _report(str(directory), build_jar(_NEWEST), directory)
    print((_LACKS if lacks else _FITS).format(newest=_NEWEST))
    return lacks


def _report(name: str, jar: Path, directory: Path) -> int:
    jars = sorted(directory.glob("*.jar"))
    if not jars:
        sys.exit(f"no jars found: directory={directory}. To fix: name that of a Spark")
    lines = describe(find_missing(jar, jars))
    print(f"{name}: {len(lines)} missing")
    for line in lines:
        print(f"  {line}")
    return int(bool(lines))


def _newest_release() -> str:
    """Return the newest release of pyspark, also a preview.

    Raises:
        subprocess.CalledProcessError: pip cannot ask for it, and has said why.
    """
    pip = [sys.executable, "-m", "pip", "index", "versions", "pyspark", "--pre"]
    done = subprocess.run(pip, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found = _OFFERED.search(done.stdout)
    if found is None:
        sys.exit(f"pip names no version of pyspark: {done.stdout[:200]!r}")
    return found[1]


if __name__ == "__main__":
    try:
        sys.exit(_main())
    except subprocess.CalledProcessError:
        sys.exit(1)
