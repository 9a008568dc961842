"""The shim's commit when the executor's local disk has no space, in a JVM."""

from __future__ import annotations

import re
import resource
import subprocess
from pathlib import Path

import pytest

from statestore.io.shim_jar import find_jar
from tools.scala import SPARK_JARS, compile_scala

CHECK = "io/statestore/provider/FullDiskCheck"
PARTS = ("io/statestore/provider/LongCommits", "io/statestore/view/LongRows")
SOURCES = Path(__file__).resolve().parents[2] / "jvm-shim/src/test/scala"
MAX_FILE_BYTES = 1 << 14


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_commit_or_engine_without_space_for_its_files_says_so_by_path(tmp_path: Path) -> None:
    """Catches a full disk that is shown as an error of RocksDB's, or a file that is left there."""
    classes, local = tmp_path / "classes", tmp_path / "local"
    classes.mkdir()
    local.mkdir()
    jar = find_jar()
    sources = [SOURCES / f"{name}.scala" for name in (CHECK, *PARTS)]
    compile_scala(sources, classes, class_path=(str(jar),), flags=())
    command = ["java", "-Xmx512m", "-XX:-UsePerfData", f"-Djava.io.tmpdir={local}"]
    command += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "java.lang")]
    command += ["-cp", f"{classes}:{jar}:{SPARK_JARS}/*", CHECK.replace("/", ".")]

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        # Not before: RocksDB unpacks its library into a file that is larger.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        shown, _ = process.communicate("\n", timeout=100)

    assert process.returncode == 0
    *failures, start, left = shown.splitlines()
    assert left == "left="
    assert [line.partition(" ")[0] for line in failures] == ["filesystem"] * 2 + ["rocksdb"] * 2
    for line in failures:
        path = rf"{local}/statestore-scratch-\S+/delta-\d+"
        assert re.search(rf"cannot write the delta: path={path}, error=", line)
    assert re.search(rf"lay out the engine's package: path={local}/\S+/python, error=", start)
    for line in (*failures, start):
        assert "LocalDiskException: [storage-full] cannot " in line
        assert "To fix: free space on the local disk of the executor (spark.local.dir)" in line
