"""What commands share: arguments and options, text or JSON output, progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from statestore.core.errors import InvalidArgumentError
from statestore.core.options import StateStoreOptions
from statestore.io.hadoop_process import HADOOP_PREFIXES, HadoopProcess, use

Command = TypeVar("Command", bound=Callable[..., Any])
Report = Callable[[int, int], None]
"""Called with what is done and the total, in one unit."""

_PLAIN_WIDTH = 240
_HADOOP_CONF = "statestore.hadoop_conf"
NOTHING_CHANGED = "Nothing was changed. Repeat the command with --yes to do it."


def checkpoint_argument(name: str = "checkpoint") -> Callable[[Command], Command]:
    """Add an argument that names a checkpoint or savepoint."""
    return click.argument(name, metavar=name.upper())


def output_option(command: Command) -> Command:
    """Add --output, passed as `output`."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text for people, or one JSON object.",
    )(command)


def yes_option(command: Command) -> Command:
    """Add --yes, passed as `yes`: without it the command shows its plan and changes nothing."""
    return click.option("--yes", is_flag=True, help="Do it; without it only the plan is shown.")(
        command
    )


def conf_option(command: Command) -> Command:
    """Add --conf, passed as `options`: what the query is configured with to reach its storage.

    Keys of Spark's own are for the JVM that opens Hadoop's file systems while the command runs.
    """
    return click.option(
        "--conf",
        "options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parse_conf,
        help="Option of the query, such as s3.endpoint; or, for storage that Hadoop opens, "
        "spark.jars, spark.jars.packages or spark.hadoop.*; may be repeated.",
    )(command)


def _parse_conf(
    context: click.Context, _parameter: click.Parameter, settings: tuple[str, ...]
) -> StateStoreOptions:
    malformed = [setting for setting in settings if "=" not in setting]
    if malformed:
        raise click.UsageError(f"--conf takes KEY=VALUE, not {malformed[0]!r}")
    conf = dict(setting.split("=", 1) for setting in settings)
    for_hadoop = {key: conf.pop(key) for key in list(conf) if key.startswith(HADOOP_PREFIXES)}
    try:
        options = StateStoreOptions.from_spark_conf(conf)
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from error
    context.meta[_HADOOP_CONF] = for_hadoop
    context.with_resource(use(context.with_resource(closing(HadoopProcess(for_hadoop)))))
    return options


def hadoop_conf() -> dict[str, str]:
    """Return those settings of --conf, of the command under way, that are Spark's own."""
    found: dict[str, str] = click.get_current_context().meta[_HADOOP_CONF]
    return found


def console() -> Console:
    """Return a console on standard output; where that is no terminal, plain and with long lines.

    Text is printed as it is: what people keep in state and call their files looks like markup.
    """
    plain = partial(Console, highlight=False, markup=False, emoji=False)
    made = plain()
    return made if made.is_terminal else plain(width=_PLAIN_WIDTH)


def print_json(fields: Any) -> None:
    """Print one JSON value; what JSON does not have is printed as text."""
    click.echo(json.dumps(fields, default=str))


def table(columns: list[str], rows: list[list[object]]) -> Table:
    """Return a table of plain cells; columns of numbers only are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        made.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def format_bytes(num_bytes: int) -> str:
    """Return a number of bytes for people: `12.3 MB`."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{num_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def progress_bar(column: ProgressColumn, *, output: str) -> Progress:
    """Return a bar with one more column, for text output and a terminal on standard error."""
    shown_on = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        column,
        TimeRemainingColumn(),
        console=shown_on,
        disable=output != "text" or not shown_on.is_terminal,
        transient=True,
    )


@contextmanager
def progress(title: str, *, output: str) -> Iterator[Report]:
    """Show a bar with the time that remains; yields what moves it."""
    with progress_bar(TimeElapsedColumn(), output=output) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
