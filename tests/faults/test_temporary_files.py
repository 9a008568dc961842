"""Directories for temporary files of operations, those of processes that were killed among them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from statestore.io.local import temporary_directory
from statestore.io.scratch import LOCK_NAME


def left_by_a_kill(parent: Path, name: str = "statestore-operation-left") -> Path:
    """A directory that nobody uses any more, with a row in it."""
    left = parent / name
    (left / "files").mkdir(parents=True)
    (left / "files" / "row").touch()
    (left / LOCK_NAME).touch()
    os.utime(left / LOCK_NAME, (0, 0))
    return left


def test_what_others_use_or_own_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a command that deletes the files of another, of its own process or of other users."""
    left = left_by_a_kill(tmp_path)
    elsewhere = left_by_a_kill(tmp_path / "elsewhere", "of-somebody")
    (tmp_path / "statestore-operation-link").symlink_to(elsewhere)
    try_lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | 4)"
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: -1)
        with temporary_directory(str(tmp_path)):
            assert left.exists()

    with temporary_directory(str(tmp_path)) as used:
        lock = Path(used).parent / LOCK_NAME
        os.utime(lock, (0, 0))
        with temporary_directory(str(tmp_path)):
            assert not left.exists()
            assert Path(used).is_dir()
        tried = subprocess.run([sys.executable, "-c", try_lock, lock], capture_output=True)

    assert tried.returncode == 1
    assert b"BlockingIOError" in tried.stderr
    assert (elsewhere / "files" / "row").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "elsewhere",
        "statestore-operation-link",
    ]


def test_a_disk_without_locks_has_temporary_files_that_nobody_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches commands that fail where TMPDIR has no locks, or sweep what they cannot lock."""
    left = left_by_a_kill(tmp_path)

    def fail(*_: Any) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", fail)
        with temporary_directory(str(tmp_path)) as used:
            names = [path.name for path in Path(used).parent.iterdir()]
            with temporary_directory(str(tmp_path)):
                pass

    assert names == ["files"]
    assert [*tmp_path.iterdir()] == [left]


def test_of_a_sweep_that_is_killed_the_rest_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches rows in a directory without a lock, which nobody ever removes."""
    left = left_by_a_kill(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        with temporary_directory(str(tmp_path)):
            pass
    assert (left / LOCK_NAME).exists()
    with temporary_directory(str(tmp_path)):
        assert not left.exists()
