"""The session that the README shows is one that happened."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def test_python_session_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an interface that changed under the README."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    result = doctest.testfile(str(README), module_relative=False)

    assert result.attempted > 0
    assert result.failed == 0
