"""A small disk of the run's own, which may be filled without harm to anybody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 1 << 30
_IN_NAMESPACE = "STATESTORE_TEST_DISK"
_WAYS = (["--mount"], ["--user", "--map-root-user", "--mount"])


def enter_namespace(module: str) -> None:
    """Start a program anew where its mounts are its own, and end with it, if that is allowed."""
    if _IN_NAMESPACE in os.environ or shutil.which("unshare") is None:
        return
    for way in _WAYS:
        command = ["unshare", *way]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[_IN_NAMESPACE] = "1"
            program = [sys.executable, "-m", module, *sys.argv[1:]]
            os.execvp("unshare", [*command, *program])  # noqa: S606 - it takes our place


@contextmanager
def own_disk(directory: Path) -> Iterator[bool]:
    """Mount a tmpfs at a directory while a block runs; say whether that was possible."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", directory]
    is_mounted = _IN_NAMESPACE in os.environ and not subprocess.run(mount, check=False).returncode
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", directory], check=False)


@contextmanager
def small_disk(below: Path, megabytes: int) -> Iterator[Path]:
    """Yield a directory with a disk of its own; skips the test where none can be mounted."""
    directory = below / "small"
    directory.mkdir()
    options = f"size={megabytes}m"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk of its own can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
