"""Checkpoints of each Spark, to go on with under the same or a later one: `tests/golden`.

    .venv-spark-4.0/bin/python -m tests.spark.upgrades --rewrite-golden

writes `tests/golden/spark-4.0.tar.xz`, in the environment of that Spark. Every query has processed
the first run of its plan. Lists of files and of schemas name them by their absolute path: in the
archive, the folder of every query is below `/golden`.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.io.shim_jar import find_jar
from tools.spark_jars import INSTALLED

from .application import start_application
from .harness import FILESYSTEM, FORMAT_2, ROCKSDB_BACKEND, Lane, Query
from .helper_jar import compile_test_jar
from .queries import (
    AGGREGATION,
    AGGREGATION_THEN_DEDUP,
    DEDUPS,
    EVENT_TIME_GROUPS,
    JOIN,
    LIMITS,
    SESSION_APPEND,
    WINDOW_APPEND,
)
from .state_variables import everything

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PLACE = "/golden"
UPGRADED: Mapping[str, tuple[Query, str, Mapping[str, str]]] = {
    f"{provider.removeprefix('io.statestore.')}-{'v2' if conf else 'v1'}-{query.name}": (
        query,
        provider,
        conf,
    )
    for provider, conf, queries in (
        (
            FILESYSTEM,
            {},
            [
                AGGREGATION,
                WINDOW_APPEND,
                SESSION_APPEND,
                *DEDUPS,
                *LIMITS,
                AGGREGATION_THEN_DEDUP,
                JOIN,
                EVENT_TIME_GROUPS,
                everything("pandas"),
            ],
        ),
        (ROCKSDB_BACKEND, FORMAT_2, [AGGREGATION, JOIN, everything("scala")]),
    )
    for query in queries
}
"""Queries by name, with the provider and the confs that they were begun with."""


def archives() -> list[Path]:
    """Return the archives of the installed Spark and of those before it, oldest first."""
    return sorted(path for path in GOLDEN.glob("spark-*.tar.xz") if _minor(path) <= INSTALLED)


def _minor(archive: Path) -> str:
    return archive.name.removeprefix("spark-").removesuffix(".tar.xz")


def unpack(archive: Path, name: str, root: Path) -> None:
    """Put the checkpoint of a query below a folder, as if it had been written there."""
    with tarfile.open(archive) as members:
        for member in members:
            folder, _, path = member.name.partition("/")
            if folder == name:
                content = members.extractfile(member)
                assert content is not None
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(_moved(path, content.read(), PLACE, str(root)))


def pack(lanes: Mapping[str, Lane], archive: Path) -> None:
    """Write the checkpoints of lanes, by name, without Hadoop's checksum files."""
    with tarfile.open(archive, "w:xz", preset=9) as members:
        for name, lane in lanes.items():
            for path in _files(lane.checkpoint):
                place = str(path.relative_to(lane.root))
                content = _moved(place, path.read_bytes(), str(lane.root), PLACE)
                member = tarfile.TarInfo(f"{name}/{place}")
                member.size = len(content)
                members.addfile(member, io.BytesIO(content))


def _files(checkpoint: Path) -> Iterator[Path]:
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.suffix != ".crc":
            yield path


def _moved(place: str, content: bytes, old: str, new: str) -> bytes:
    """The content of a file of Spark's with another absolute path in it."""
    is_text = place.startswith("checkpoint/sources/") or "/_metadata/" in place
    assert is_text or old.encode() not in content, place
    return content.replace(old.encode(), new.encode()) if is_text else content


def main() -> None:
    """Write the checkpoints of the installed Spark anew."""
    if sys.argv[1:] != ["--rewrite-golden"]:
        sys.exit("usage: python -m tests.spark.upgrades --rewrite-golden")
    with tempfile.TemporaryDirectory() as work:
        spark = start_application(Path(work, "app"), [compile_test_jar("queries"), find_jar()])
        lanes = {}
        for name, (query, provider, conf) in UPGRADED.items():
            lanes[name] = Lane(spark, query, provider, Path(work, name), conf)
            lanes[name].run(*query.plan[0])
        spark.stop()
        partial = GOLDEN / ".partial"
        pack(lanes, partial)
        partial.replace(GOLDEN / f"spark-{INSTALLED}.tar.xz")


if __name__ == "__main__":
    main()
