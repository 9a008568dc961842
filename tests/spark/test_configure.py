"""A session made by `statestore.configure` has its state where the arguments say."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from statestore.io.shim_jar import find_jar

JOB = Path(__file__).with_name("configured_job.py")

pytestmark = pytest.mark.ours


@pytest.mark.timeout(240)
def test_query_of_a_configured_session_uses_backend_options_and_all_jars(tmp_path: Path) -> None:
    """Catches configuration that the builder holds and the application does not see."""
    jar, storage = tmp_path / "mine.jar", tmp_path / "elsewhere"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("mine.txt", "")
    storage.mkdir()

    done = subprocess.run(
        [sys.executable, JOB, "rocksdb", str(storage), str(jar)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    expected = f"{ {'a': 1, 'b': 2} } {['mine.jar', find_jar().name]}"
    assert done.stdout.splitlines()[-1] == expected
    assert list(storage.rglob("1*.delta.sst"))
    assert not list((tmp_path / "checkpoint").rglob("*.sst"))
