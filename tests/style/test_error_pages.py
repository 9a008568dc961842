"""Every kind of error that the code can raise has a page, and every page a kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statestore.core.errors import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "errors"
SHIM = ROOT / "jvm-shim" / "src"
HEADINGS = ["What happened", "Is anything lost?", "What to do"]


def kinds_of_the_shim() -> set[str]:
    """Return the kinds that begin a text of the Scala sources."""
    return {
        kind
        for path in SHIM.rglob("*.scala")
        if not path.is_relative_to(SHIM / "test")
        for kind in re.findall(r'"\[([a-z]+(?:-[a-z]+)*)\] ', path.read_text())
    }


def pages() -> dict[str, str]:
    """Return the text of each page by the kind that its file is named after."""
    return {path.stem: path.read_text() for path in PAGES.glob("*.md") if path.stem != "README"}


def test_every_kind_has_a_page_and_every_page_a_kind() -> None:
    """Catches a message that leads nowhere, and a page that no message leads to."""
    of_shim = kinds_of_the_shim()

    assert {"schema-changed", "wrong-spark"} <= of_shim
    assert pages().keys() == KINDS.keys() | of_shim, "write or delete docs/errors/KIND.md"


@pytest.mark.parametrize("kind", sorted(pages()))
def test_page_says_what_happened_what_is_lost_and_what_to_do(kind: str) -> None:
    """Catches a page that leaves its reader alone, or tells another kind's story."""
    text = pages()[kind]

    assert text.startswith(f"# `{kind}`\n")
    if kind in KINDS:
        assert text.splitlines()[2].lower() == f"{KINDS[kind]}.".lower()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    sections = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert all(section.strip() for section in sections)


def test_list_of_kinds_names_each_once() -> None:
    """Catches a page that the list does not lead to."""
    text = (PAGES / "README.md").read_text()

    listed = re.findall(r"^\| \[`([a-z-]+)`\]\(\1\.md\) \|", text, re.MULTILINE)

    assert sorted(listed) == sorted(pages())
