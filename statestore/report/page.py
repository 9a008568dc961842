"""The page of a checkpoint: one HTML file that needs no network.

Jinja fills in every number; the charts are drawn by Apache ECharts, which is in the file.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.io.local import written_beside
from statestore.report.words import FILTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jinja2 import Environment

    from statestore.operations.upkeep.query_info import QueryInfo
    from statestore.report.facts import Facts

_ASSETS = resources.files("statestore.report") / "assets"


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a page comes from.

    Attributes:
        address: Address of the page on it, such as `/checkpoints/0`; `/` for the index.
        token: Word that each request has to show.
        nonce: Word that scripts of the page show to the browser, which runs no others.
        home: Address of the page with all checkpoints, None where there is none.
        allows_changes: Whether operations may be done from the page.
        limits: Memory and time that SQL of the page may use, in words.
    """

    address: str
    token: str
    nonce: str
    home: str | None = None
    allows_changes: bool = False
    limits: str = ""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A checkpoint of the page with all of them.

    Attributes:
        uri: The checkpoint.
        address: Address of its page; None where there is none.
        query: Its query; None where it cannot be read.
        facts: Facts that its page shows; None where nobody has looked at it yet.
        problem: What is wrong with it; None where it can be read.
    """

    uri: str
    address: str | None
    query: QueryInfo | None
    facts: Facts | None
    problem: str | None


def render(facts: Facts, server: Server | None = None, *, home: str | None = None) -> str:
    """Return the page of a checkpoint.

    Args:
        facts: Facts that it shows.
        server: The server that it comes from, which it asks for what is new; None for a file.
        home: Of a file, address of the page with all checkpoints, None where there is none.

    Raises:
        IncompatibleError: The package that fills pages in is not installed.
    """
    return fill_in("checkpoint.html", server, home, **_of_checkpoint(facts))


def render_facts(facts: Facts) -> str:
    """Return the parts of a checkpoint's page that change, as HTML that replaces the old ones."""
    return fill_in("facts.html", None, None, **_of_checkpoint(facts))


def _of_checkpoint(facts: Facts) -> dict[str, Any]:
    return {
        "facts": facts,
        "data": asdict(facts),
        "told": facts.query.words(),
        "title": facts.query.name or facts.uri,
    }


def fill_in(
    template: str, server: Server | None = None, home: str | None = None, **values: Any
) -> str:
    """Return a page of values; arguments and errors as `render`."""
    values = {"title": "statestore", "data": None, "problem": None, **values}
    home = server.home if server is not None else home
    return _environment().get_template(template).render(server=server, home=home, **values)


def render_waiting(uri: str, problem: str, server: Server) -> str:
    """Return the page of a checkpoint that cannot be read yet; its own one comes by itself.

    Args:
        uri: The checkpoint.
        problem: Why it cannot be read.
        server: As `render`, and so are the errors.
    """
    return fill_in("waiting.html", server, title=uri, problem=problem)


def write_page(facts: Facts, to: str | os.PathLike[str]) -> None:
    """Write the page of a checkpoint to a file, in place of one there.

    Guarantee: as `written_beside`.

    Raises:
        InvalidArgumentError: It cannot be written.
        IncompatibleError: As `render`.
    """
    write_file(render(facts), to)


def write_file(page: str, to: str | os.PathLike[str]) -> None:
    """Write a page to a file; guarantee and errors as `write_page`."""
    with _named_errors(to), written_beside(to) as file:
        Path(file).write_text(page, encoding="utf-8", errors="backslashreplace")


def check_writable(to: str | os.PathLike[str]) -> None:
    """Check that a page can be written to a file, before anything that takes long.

    Raises:
        InvalidArgumentError: Its directory is not there, or cannot be written.
        IncompatibleError: As `render`.
    """
    require_jinja()
    file = Path(to).absolute()
    with _named_errors(to):
        is_there = file.exists()
        if file.is_dir() or not (is_there or file.parent.is_dir()):
            number = errno.EISDIR if file.is_dir() else errno.ENOENT
            raise OSError(number, os.strerror(number))
        needed = [file] if is_there else []
        if file.is_file() or not is_there:
            needed.append(file.resolve().parent)
        if not all(os.access(one, os.W_OK) for one in needed):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def write_pages(
    rows: Sequence[tuple[str, Facts | None, str | None]], to: str | os.PathLike[str]
) -> None:
    """Write the pages of several checkpoints into a directory, and `index.html`.

    Args:
        rows: URI, facts, or what is wrong in their place, of each.
        to: The directory, which need not be there.

    Raises:
        InvalidArgumentError: A page cannot be written.
        IncompatibleError: As `render`.
    """
    index = [
        IndexRow(
            uri, f"{number}.html" if facts else None, facts.query if facts else None, facts, problem
        )
        for number, (uri, facts, problem) in enumerate(rows)
    ]
    with _named_errors(to):
        Path(to).mkdir(parents=True, exist_ok=True)
        for row in index:
            if row.facts is not None and row.address is not None:
                write_file(render(row.facts, home="index.html"), Path(to, row.address))
        write_file(render_index(index), Path(to, "index.html"))


@contextmanager
def _named_errors(to: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(
            "cannot write the page",
            file=str(to),
            reason=error.strerror or str(error),
            to_fix="name a file in a directory that can be written to: --to FILE",
        ) from error


def render_index(rows: Sequence[IndexRow], server: Server | None = None) -> str:
    """Return the page with all checkpoints; errors as `render`."""
    return fill_in("index.html", server, None, rows=_told(rows))


def render_rows(rows: Sequence[IndexRow]) -> str:
    """Return the parts of the page with all checkpoints that change, as `render_facts`."""
    return fill_in("rows.html", None, None, rows=_told(rows))


def _told(rows: Sequence[IndexRow]) -> list[tuple[IndexRow, dict[str, str] | None]]:
    return [(row, row.query.words() if row.query else None) for row in rows]


def require_jinja() -> None:
    """Check that the package that fills pages in is installed.

    Raises:
        IncompatibleError: It is not.
    """
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise IncompatibleError(
            "a page needs a package that is not installed",
            missing=error.name,
            to_fix="pip install 'statestore[ui]'",
        ) from error


@cache
def _environment() -> Environment:
    require_jinja()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_ASSETS / name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.globals["asset"] = lambda name: (_ASSETS / name).read_text("utf-8")
    environment.globals["json"] = _json
    return environment


def _json(data: Any) -> str:
    """Return JSON that may stand in a script element: nothing in it ends one."""
    text = json.dumps(data, default=str, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
