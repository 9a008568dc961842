"""A stranger finds the page of a task by headings alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = {
    "move from RocksDB": "docs/convert.md",
    "change the number of partitions": "docs/rescaling.md",
    "a damaged file": "docs/upkeep.md",
    "add a column": "docs/schema.md",
    "size an executor": "docs/sizing.md",
    "S3": "docs/storage.md",
    "Kubernetes": "docs/deploy.md",
    "read state in pandas": "docs/reading.md",
    "restart strategy": "docs/restart.md",
    "what an error message means": "docs/errors/README.md",
}


SMALL = {"a", "an", "and", "from", "in", "of", "on", "or", "the", "what"}
"""Words that tell nothing."""


def words_of(text: str) -> set[str]:
    """Return the words of a text, in lower case and without an s at the end."""
    return {word.removesuffix("s") for word in re.findall(r"\w+", text.lower())} - SMALL


def navigation() -> dict[str, str]:
    """Return the entries of the site's navigation by their pages."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return {page: title for title, page in re.findall(r"^ +- (.+): (\S+\.md)$", text, re.MULTILINE)}


def headings() -> dict[str, str]:
    """Return the first heading of every page that the navigation names."""
    pages = [page for page in navigation() if (ROOT / page).is_file()]  # one is made of docstrings
    return {page: (ROOT / page).read_text().partition("\n")[0].lstrip("# ") for page in pages}


def readme() -> dict[str, str]:
    """Return the rows of the README's table of pages by the page that they lead to."""
    text = (ROOT / "README.md").read_text().partition("\n## Find the page\n")[2]
    rows = re.findall(r"^\| (.+)\]\(([\w/]+\.md)\) \|$", text.partition("\n## ")[0], re.MULTILINE)
    return {page: row for row, page in rows}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("named", [navigation, headings, readme], ids=lambda of: of.__name__)
def test_task_leads_to_its_page(task: str, named: object) -> None:
    """Catches a heading that says what a page is, and not what it is for."""
    assert callable(named)
    titles: Mapping[str, str] = named()
    shared = {page: len(words_of(task) & words_of(title)) for page, title in titles.items()}

    best = max(shared.values())
    assert [page for page, number in shared.items() if number == best > 0] == [TASKS[task]]
