"""`statestore explain`: what a kind of error means, as a page that comes with the package."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from statestore.cli.output import command
from statestore.core.errors import NotFoundError

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "cli" / "documents", _PACKAGE.parent / "docs")
"""Where documents are: in a wheel, in a checkout."""


def _find(name: str) -> Path:
    return next(path for place in _PLACES if (path := place / name).exists())


def find_pages() -> dict[str, Path]:
    """Return the page of every kind of error, a Markdown file, by its kind."""
    pages = sorted(_find("errors").glob("*.md"))
    return {page.stem: page for page in pages if page.stem != "README"}


@command()
@click.argument("kind", required=False)
def explain(kind: str | None) -> None:
    """Print what an error message means, by the kind that it has in brackets.

    Without KIND it prints the names of all kinds; with the word options, the page about the options
    of a query. It needs no network.

    \b
    Examples:
      statestore explain
      statestore explain version-not-found
      statestore explain options
    """  # noqa: D301 (click reads the backspace)
    pages = find_pages()
    if kind in ("option", "options"):
        click.echo(_find("configuration.md").read_text("utf-8"), nl=False)
        return
    if kind is None:
        click.echo("\n".join(pages))
        return
    name = kind.strip("[]")
    if name not in pages:
        near = get_close_matches(name, pages, n=1)
        raise NotFoundError(
            "no such kind of error",
            to_fix=f"use {near[0]!r}" if near else "`statestore explain` names all",
            kind_asked=kind,
        )
    click.echo(pages[name].read_text("utf-8"), nl=False)
