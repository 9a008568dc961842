"""What commands share: arguments and options, text or JSON output, progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.core.text import (
    escape_controls,
    escape_lines,
    format_bytes,
    format_cell,
    format_count,
    format_table,
    is_numeric,
    to_cell,
    to_json,
)
from statestore.io.hadoop_process import HADOOP_PREFIXES
from statestore.operations.rows_file_form import form_of

if TYPE_CHECKING:
    import pyarrow as pa

    from statestore.api.checkpoint import Checkpoint
    from statestore.operations.result import Result

Command = TypeVar("Command", bound=Callable[..., Any])

SCHEMA_VERSION = 1
"""Of every JSON object: one more where a field goes or means something else."""

_SELECT = re.compile(r"\s*(select|with|from)\s", re.IGNORECASE)

WITH_YES = "Nothing was changed. Repeat the command with --yes to do it."
WITHOUT_DRY_RUN = "Nothing was changed. Repeat the command without --dry-run to do it."


class OneValueCommand(click.Command):
    """A command that refuses an option of one value which is given twice: click takes the last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        seen: set[str] = set()
        for parameter in order:
            if not isinstance(parameter, click.Option) or parameter.multiple or parameter.is_flag:
                continue
            name = max(parameter.opts, key=len)
            if name in seen and not ctx.resilient_parsing:
                raise click.UsageError(f"{name} is given twice: give it one value", ctx)
            seen.add(name)
        return super().parse_args(ctx, args)


command = partial(click.command, cls=OneValueCommand)
"""As `click.command`, for every command."""


def checkpoint_argument(name: str = "checkpoint") -> Callable[[Command], Command]:
    """Add an argument that names a checkpoint or savepoint."""
    return click.argument(name, metavar=name.upper())


def checkpoints_below(uri: str, storage_options: dict[str, str]) -> list[Checkpoint]:
    """Return the checkpoints below a directory; none where it is a checkpoint, or has none."""
    from statestore.api.checkpoint import Checkpoint

    itself = Checkpoint(uri, storage_options=storage_options)
    try:
        found = Checkpoint.find(uri, storage_options=storage_options)
    except NotFoundError:
        return []
    return [] if [one.uri for one in found] == [itself.uri] else found


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
    """Add --yes, passed as `yes`, to a command that changes a checkpoint where it is.

    Without it the command shows its plan and changes nothing.
    """
    return click.option("--yes", is_flag=True, help="Do it; without it only the plan is shown.")(
        command
    )


def dry_run_option(command: Command) -> Command:
    """Add --dry-run, passed as `dry_run`, to a command that makes a new directory.

    With it the command shows its plan and makes nothing.
    """
    return click.option("--dry-run", is_flag=True, help="Only show the plan; make nothing.")(
        command
    )


version_option = click.option(
    "--version",
    type=int,
    metavar="V",
    help="State version, batch + 1.  [default: newest committed]",
)


def storage_option(command: Command) -> Command:
    """Add --storage-option, passed as `storage_options`, as Checkpoint takes them."""
    return click.option(
        "--storage-option",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parse_storage_options,
        help="Option of the query, such as s3.endpoint; or, for storage that Hadoop opens, "
        "spark.jars, spark.jars.packages or spark.hadoop.*; may be repeated.",
    )(command)


def _parse_storage_options(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    options = parse_settings("--storage-option", given)
    of_query = {key: options[key] for key in options if not key.startswith(HADOOP_PREFIXES)}
    try:
        StateStoreOptions.from_options(of_query)
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from error
    return options


class DurationType(click.ParamType[timedelta]):
    """A duration as a number with a unit: 90s, 15m, 6h, 7d."""

    name = "duration"
    _UNITS: ClassVar = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return it as a timedelta of at least a second."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", value)
        if found is None:
            self.fail(
                f"{value!r} is not a duration: write a number from 1 to 999999 with s, m, h or d, "
                "such as 90s or 7d",
                param,
                ctx,
            )
        return timedelta(**{self._UNITS[found[2]]: int(found[1])})


def limit_of(what: str, default: int = 20) -> Callable[[Command], Command]:
    """Return the option `--limit` of a command that prints at most so many, or all of them."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        help=f"Print at most so many {what}.",
    )


def require_form(path: str | None) -> str | None:
    """Return a path whose name says the form of a file of rows; None for none.

    Raises:
        click.UsageError: It does not.
    """
    if path is not None:
        try:
            form_of(Path(path))
        except InvalidArgumentError as error:
            raise click.UsageError(str(error)) from error
    return path


limit_option = limit_of("rows; 0 for all, which memory has to hold")
to_option = click.option(
    "--to",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True),
    callback=lambda *given: require_form(given[2]),
    help="Write all rows to a file instead, which appears when it is whole: Parquet, Arrow, CSV, "
    "or JSON with a row a line, where its name ends with .parquet, .arrow, .csv, .json or .jsonl; "
    "Parquet without a suffix.",
)
rows_option = click.option(
    "--rows",
    metavar="NAME",
    help="A state variable of transformWithState or a store of a join, as NAME or OPERATOR/NAME; "
    "or the number of an operator that has no others.  [default: the only rows there are]",
)


def is_given(name: str) -> bool:
    """Return whether a parameter of the command that runs was given, and is no default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def parse_settings(option: str, given: Iterable[str], form: str = "KEY=VALUE") -> dict[str, str]:
    """Return settings of the form KEY=VALUE that an option was given with; `form` says which.

    Raises:
        click.UsageError: One is of another form, or two are of one key.
    """
    settings: dict[str, str] = {}
    for setting in given:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.UsageError(f"{option} takes {form}, not {setting!r}")
        if key in settings:
            raise click.UsageError(f"{option} is given twice for {key}")
        settings[key] = value
    return settings


def parse_selects(given: Iterable[str]) -> dict[str, str]:
    """Return the statements that --sql was given, by the name of the rows that they make.

    Raises:
        click.UsageError: As `parse_settings`.
    """
    given = list(given)
    for one in given:
        if _SELECT.match(one):
            raise click.UsageError(f"--sql takes NAME=SELECT, such as 0=SELECT …, not {one!r}")
    return parse_settings("--sql", given, "NAME=SELECT")


def print_result(result: Result, *, output: str, done: str | None = "Done.") -> None:
    """Print what an operation that changes something did, or would do.

    Args:
        result: What it returned.
        output: text or json.
        done: Said after the text of one that was done; None for nothing.
    """
    if output == "json":
        print_json(result.fields())
        return
    click.echo(escape_lines(str(result)))
    if not result.done:
        done = WITHOUT_DRY_RUN if result.makes_new else WITH_YES
    if result.changes and done:
        click.echo(done)


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; one that the shell has closed is None."""
    return stream is not None and stream.isatty()


def console() -> Console:
    """Return a console on standard output; where that is no terminal, lines are not broken.

    Text is printed as it is: what people keep in state and call their files looks like markup.
    """
    is_terminal = _is_terminal(sys.stdout)
    return Console(
        force_terminal=is_terminal,  # else FORCE_COLOR says so, of a pipe too
        soft_wrap=not is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(fields: dict[str, Any]) -> None:
    """Print one JSON object, with its schema version; what JSON does not have is printed as text.

    Args:
        fields: As docs/cli.md describes those of the command.
    """
    click.echo(to_json({"schema_version": SCHEMA_VERSION, **fields}))


def print_rows(batches: Iterator[pa.RecordBatch], limit: int, output: str) -> None:
    """Print rows, nested values as JSON; as one JSON object with --output json.

    Args:
        batches: The rows, at least one batch of them.
        limit: At most so many, 0 for all.
        output: text or json.
    """
    # Arrow takes long to import.
    from statestore.codec.python_values import to_pylist

    columns: list[str] = []

    def all_rows() -> Iterator[dict[str, Any]]:
        for batch in batches:
            columns[:] = batch.schema.names
            yield from to_pylist(batch)

    found = all_rows()
    shown = list(islice(found, min(limit, sys.maxsize))) if limit else list(found)
    more = next(found, None) is not None
    if output == "json":
        print_json({"rows": shown, "more": more})
        return
    if not shown:
        click.echo("No rows.")
        return
    cells = [[to_cell(row[column]) for column in columns] for row in shown]
    print_table(columns, cells)
    if more:
        click.echo(f"The first {format_count(limit, 'row')}. Use --limit to see more.")


def print_written(num_rows: int, path: str, output: str) -> None:
    """Print that rows were written to a file."""
    if output == "json":
        print_json({"file": path, "rows": num_rows})
        return
    size = format_bytes(Path(path).stat().st_size)
    click.echo(f"{format_count(num_rows, 'row')} in {path}, {size}")


def print_table(columns: list[str], rows: list[list[object]]) -> None:
    """Print a table of plain cells; columns of numbers only are aligned to the right.

    A terminal breaks what is wider than it. Elsewhere each row is one line, for `grep` and `awk`.
    """
    out = console()
    if not out.is_terminal:
        out.print(format_table(columns, rows))
        return
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = is_numeric([row[index] for row in rows])
        justify: Literal["left", "right"] = "right" if numeric else "left"
        made.add_column(escape_controls(column), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*map(format_cell, row))
    out.print(made)


@contextmanager
def progress_bar(title: str, *, output: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time that remains, on a terminal; yields what moves it."""
    shown_on = Console(stderr=True, force_terminal=_is_terminal(sys.stderr))
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=shown_on,
        disable=output != "text" or not shown_on.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move
