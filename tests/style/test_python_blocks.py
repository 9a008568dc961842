"""Python in the documents names nothing that the page has not made or imported before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from sys import executable
from textwrap import dedent

from .test_commands_in_documents import FENCE
from .test_repo_style import ROOT, committed_files

GIVEN = {"spark"}
"""A session, which every reader has."""
GIVEN_ON = {
    "docs/errors/restarts-exhausted.md": {"start_query"},
    "docs/errors/unfinished-batch.md": {"writer"},
    "docs/keyed.md": {"pairs"},
    "docs/restart.md": {"frame", "publish", "source", "upsert"},
    "docs/savepoints.md": {"query", "start_query"},
    "docs/scaling.md": {"source", "upsert"},
    "docs/writing.md": {"corrected", "frame", "new_frame", "rows", "rows_of_the_list"},
}
"""What the reader of a page has: a query, a frame, rows, a function."""


def undefined(pages: dict[str, str], directory: Path) -> dict[str, set[str]]:
    """Return the names that blocks of Python use and their page does not make, by page."""
    by_file = {}
    for page, text in pages.items():
        blocks = [dedent(block) for language, block in FENCE.findall(text) if language == "python"]
        if blocks:
            file = directory / f"{page.replace('/', '-')}.py"
            file.write_text("\n".join(blocks))
            by_file[str(file)] = page
    command = f"{executable} -m ruff check --isolated --select=F821 --output-format=json".split()
    done = subprocess.run([*command, directory], capture_output=True, text=True, check=False)
    found: dict[str, set[str]] = {}
    for one in json.loads(done.stdout):
        assert one["code"] == "F821", one  # a block that is no Python
        found.setdefault(by_file[one["filename"]], set()).add(one["message"].split("`")[1])
    return found


def test_blocks_of_python_name_what_the_page_has(tmp_path: Path) -> None:
    """Catches an example that ends with a NameError, and a name that no example lacks any more."""
    pages = {str(path.relative_to(ROOT)): path.read_text() for path in committed_files(".md")}
    pages = {page: text for page, text in pages.items() if "/design/" not in page}  # sketches
    found = undefined(pages, tmp_path)

    assert {page: names - GIVEN for page, names in found.items() if names - GIVEN} == GIVEN_ON


def test_a_name_that_nobody_made_is_found(tmp_path: Path) -> None:
    """Catches a check that finds nothing."""
    text = "```python\nimport a\n```\n\n- So:\n\n  ```python\n  a.b(c)\n  ```\n"

    assert undefined({"docs/page.md": text}, tmp_path) == {"docs/page.md": {"c"}}
