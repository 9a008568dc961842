"""Spark's jars, to compile against: of the installed pyspark, or fetched for another release.

    python -m tools.spark_jars 4.1

prints the release of a minor that everything is compiled and tested with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pyspark

_LISTED = Path(__file__).resolve().parents[1] / "jvm-shim" / "spark-releases.txt"


def minor_of(release: str) -> str:
    """Return the minor of a release: 4.1 of 4.1.4."""
    return ".".join(release.split(".")[:2])


_BOUNDS = [line.split() for line in _LISTED.read_text().splitlines()]
RELEASES = {minor_of(newest): newest for _, newest in _BOUNDS}
"""The release of each Spark minor that a jar is compiled against, its newest; in order."""
OLDEST = {minor_of(oldest): oldest for oldest, _ in _BOUNDS}
"""The oldest release of each Spark minor that has all that the minor's jar needs."""
INSTALLED = minor_of(pyspark.__version__)
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statestore"
"""What was fetched or made once stays there."""


def release_of(minor: str) -> str:
    """Return the release that a jar for a minor is compiled against."""
    return RELEASES[minor]


def releases_of(minor: str) -> list[str]:
    """Return all releases that the jar of a minor is for, oldest first."""
    first, last = (int(of[minor].rpartition(".")[2]) for of in (OLDEST, RELEASES))
    return [f"{minor}.{patch}" for patch in range(first, last + 1)]


def jars_of(minor: str) -> Path:
    """Return the directory with the jars that a Spark minor is compiled against.

    Raises:
        subprocess.CalledProcessError: As `jars_of_release`.
    """
    return jars_of_release(release_of(minor))


def jars_of_release(release: str) -> Path:
    """Return the directory with the jars of a release of Spark.

    Those of a release that is not installed come from its source archive, and are kept below
    `~/.cache/statestore`, or where XDG_CACHE_HOME says.

    Guarantee: all jars of the release are in the directory; a fetch that fails leaves none.

    Raises:
        subprocess.CalledProcessError: pip cannot fetch it, and has said why.
    """
    if release == pyspark.__version__:
        return Path(pyspark.__file__).resolve().parent / "jars"
    kept = CACHES / f"spark-jars-{release}"
    if not kept.exists():
        CACHES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHES) as work:
            _fetch(release, Path(work))
            Path(work, "jars").replace(kept)
    return kept


def _fetch(release: str, work: Path) -> None:
    """Fill the directory `jars` below a new one."""
    print(f"fetching the jars of Spark {release}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    source = ["--no-deps", "--no-binary", "pyspark", f"pyspark=={release}"]
    subprocess.run([*pip, "--dest", str(work), *source], check=True, timeout=1800)
    (work / "jars").mkdir()
    with tarfile.open(next(work.glob("pyspark-*.tar.gz"))) as archive:
        for member in archive:
            path = Path(member.name)
            content = archive.extractfile(member)
            if content is not None and path.parent.name == "jars" and path.suffix == ".jar":
                with content, (work / "jars" / path.name).open("wb") as jar:
                    shutil.copyfileobj(content, jar)


if __name__ == "__main__":
    print(RELEASES[sys.argv[1]])
