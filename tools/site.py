"""Hooks of MkDocs: the site is the repository's own pages, under the paths that they have there.

So a link that leads somewhere on GitHub leads there on the site too, and one that does not fails
the build. The one page that exists on the site only is `docs/api.md`: the docstrings of the public
names.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import statestore
from statestore import keyed

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "*.md",
    "LICENSE",
    "build.sh",
    "docs",
    "examples",
    "benchmarks/results",
    "tests/golden/*.md",
)
"""What a page may link to: git's patterns of paths."""

_API = """\
# Python

All that `import statestore` gives, and `statestore.keyed`. How it is used:
[checkpoints in Python](python.md), [selecting a state backend](spark.md#selecting-it),
[restarts](restart.md), [keyed state](keyed.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the repository that pages are or link to, in place of those of `docs`."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *(_file(path, config) for path in _paths()), _api(config)])


def _paths() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted({path for path in listed.split("\0") if path and (ROOT / path).is_file()})


def _file(path: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)


def _api(config: MkDocsConfig) -> File:
    names = [name for name in statestore.__all__ if not name.startswith("__")]
    names += [f"keyed.{name}" for name in keyed.__all__]
    text = _API + "".join(f"\n::: statestore.{name}\n" for name in names)
    return File.generated(config, "docs/api.md", content=text)
