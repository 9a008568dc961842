"""What has to be true before a release is made, and of what was built."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path


class ReleaseError(Exception):
    """Nothing was released; the text says why, and what to do."""


def check_clean(root: Path) -> None:
    """Refuse a directory with anything that its commit has not.

    Raises:
        ReleaseError: It is no checkout, or a file was changed, added or deleted.
    """
    if not (root / ".git").exists():
        raise ReleaseError(
            f"this is no checkout: directory={root}. To fix: run it in a clone of the repository"
        )
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        raise ReleaseError(
            "the checkout differs from its commit: "
            f"files={', '.join(line[3:] for line in changed[:5])}, number={len(changed)}. "
            "To fix: commit the files, or `git stash --include-untracked`"
        )


def check_tags(root: Path, version: str) -> None:
    """Refuse a commit that is tagged as another version, or a version that is another commit.

    Raises:
        ReleaseError: As said.
    """
    wanted = f"v{version}"
    here = [tag for tag in git(root, "tag", "--points-at", "HEAD").split() if _is_version(tag)]
    if here and here != [wanted]:
        raise ReleaseError(
            f"tag and version differ: tags={here}, version={version!r}. To fix: set the version in "
            "statestore/core/version.py and commit it, or delete the tag"
        )
    if not here and git(root, "tag", "--list", wanted).strip():
        raise ReleaseError(
            f"another commit is this version: tag={wanted!r}. To fix: check that tag out, or set "
            "the next version in statestore/core/version.py"
        )


def notes_of(changelog: str, version: str) -> str:
    """Return the section of a version, which has to be the first one.

    Raises:
        ReleaseError: The first section is of something else, or it is empty.
    """
    _, *sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    heading, _, body = (sections or [""])[0].partition("\n")
    if re.match(rf"\[{re.escape(version)}\]", heading) is None:
        raise ReleaseError(
            f"changelog and version differ: first_section={heading!r}, version={version!r}. "
            f"To fix: let the first section of CHANGELOG.md be [{version}], or set the version in "
            "statestore/core/version.py"
        )
    if not body.strip():
        raise ReleaseError(
            f"the changelog says nothing of the version: section={heading!r}. To fix: write into "
            "CHANGELOG.md what changed"
        )
    return body.strip() + "\n"


def check_contents(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Refuse an archive that lacks a file, or has one that is not meant to be published.

    Raises:
        ReleaseError: As said.
    """
    names = list(found)
    lacking = sorted(set(expected).difference(names))
    extra = sorted(set(names).difference(expected)) + sorted(
        {name for name in names if names.count(name) > 1}
    )
    if lacking or extra:
        raise ReleaseError(
            f"the {what} does not hold what it should: lacking={lacking[:5]}, extra={extra[:5]}. "
            "To fix: mend [tool.hatch.build] of pyproject.toml"
        )


def git(root: Path, *arguments: str) -> str:
    """Return what git prints in a directory.

    Raises:
        subprocess.CalledProcessError: It failed, and has said why.
    """
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=root, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout


def _is_version(tag: str) -> bool:
    return re.match(r"v\d", tag) is not None
