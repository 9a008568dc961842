"""The page of a checkpoint: one HTML file that needs no network.

Jinja fills in every number; the charts are drawn by Apache ECharts, which is in the file.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.text import format_bytes, format_count, format_time

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from jinja2 import Environment

    from statestore.report.facts import Facts

_ASSETS = resources.files("statestore.report") / "assets"


def render(facts: Facts, *, refresh_seconds: int = 0, home: str | None = None) -> str:
    """Return the page of a checkpoint.

    Args:
        facts: What it shows.
        refresh_seconds: Seconds after which the page asks its server for what is new; 0 for a page
            without a server.
        home: Address of the page with all checkpoints, None where there is none.

    Raises:
        IncompatibleError: The package that fills pages in is not installed.
    """
    data = asdict(facts)
    return (
        _environment()
        .get_template("checkpoint.html")
        .render(facts=facts, data=data, refresh_seconds=refresh_seconds, home=home, title=facts.uri)
    )


def write_page(facts: Facts, to: str | os.PathLike[str]) -> None:
    """Write the page of a checkpoint to a file, in place of one there.

    Raises:
        InvalidArgumentError: It cannot be written.
        IncompatibleError: As `render`.
    """
    write_file(render(facts), to)


def fill_in(template: str, **values: Any) -> str:
    """Return a page without charts that reads nothing from a server; errors as `render`."""
    page = _environment().get_template(template)
    return page.render(refresh_seconds=0, home=None, data=None, **values)


def write_file(page: str, to: str | os.PathLike[str]) -> None:
    """Write a page to a file, in place of one there; errors as `write_page`."""
    with _named_errors(to):
        Path(to).write_text(page, encoding="utf-8")


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
    addresses = [
        (uri if facts is None else f"{number}.html", facts, problem)
        for number, (uri, facts, problem) in enumerate(rows)
    ]
    with _named_errors(to):
        Path(to).mkdir(parents=True, exist_ok=True)
        for address, facts, _ in addresses:
            if facts is not None:
                Path(to, address).write_text(render(facts, home="index.html"), encoding="utf-8")
        Path(to, "index.html").write_text(render_index(addresses), encoding="utf-8")


@contextmanager
def _named_errors(to: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(
            "cannot write the page",
            file=str(to),
            reason=error.strerror or str(error),
            to_fix="name a file in a directory that can be written to: -o FILE",
        ) from error


def render_index(
    rows: Sequence[tuple[str, Facts | None, str | None]], *, refresh_seconds: int = 0
) -> str:
    """Return the page with all checkpoints: address, facts, or what is wrong in their place."""
    return (
        _environment()
        .get_template("index.html")
        .render(
            rows=rows, refresh_seconds=refresh_seconds, home=None, title="statestore", data=None
        )
    )


@cache
def _environment() -> Environment:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise IncompatibleError(
            "a page needs a package that is not installed",
            missing=error.name,
            to_fix="pip install 'statestore[ui]'",
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_ASSETS / name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": _bytes, "number": _number, "ms": _ms, "when": _when}
    environment.filters["count"] = _count
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.globals["asset"] = lambda name: (_ASSETS / name).read_text("utf-8")
    environment.globals["json"] = _json
    return environment


def _json(data: Any) -> str:
    """Return JSON that may stand in a script element: nothing in it ends one."""
    text = json.dumps(data, default=str, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _bytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else format_bytes(round(num_bytes))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _count(value: int | None, noun: str) -> str:
    return f"- {noun}s" if value is None else format_count(value, noun)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def _when(epoch_ms: int | None) -> str:
    return "-" if epoch_ms is None else format_time(epoch_ms)
