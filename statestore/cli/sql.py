"""The command sql: state as tables, by one query or in a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from statestore.cli.output import (
    DurationType,
    checkpoint_argument,
    command,
    console,
    limit_option,
    output_option,
    parse_settings,
    print_json,
    print_rows,
    print_written,
    storage_option,
    to_option,
)
from statestore.cli.rows_to_file import write_rows
from statestore.core.errors import StateStoreError
from statestore.core.text import escape_controls

if TYPE_CHECKING:
    from datetime import timedelta

    from statestore.api.checkpoint import Checkpoint

_HELP = "Statements end with ; and may have several lines. .tables lists the tables, .exit ends."
_PROMPT, _MORE = "sql> ", "...> "
_MOST_KEPT = 10_000
"""Lines of the history of the shell."""


@command()
@checkpoint_argument()
@click.argument("sql", required=False)
@click.option(
    "--attach",
    metavar="ALIAS=CHECKPOINT",
    multiple=True,
    help="Attach one more checkpoint or savepoint; its tables are ALIAS.NAME. May be repeated.",
)
@click.option("--tables", is_flag=True, help="List the tables and their columns.")
@to_option
@limit_option
@click.option(
    "--memory-limit",
    metavar="SIZE",
    default="1GB",
    show_default=True,
    help="Memory of the database; what does not fit goes to the local disk.",
)
@click.option(
    "--timeout", type=DurationType(), help="End SQL that runs longer: 90s, 15m.  [default: never]"
)
@storage_option
@output_option
def sql(
    checkpoint: str,
    sql: str | None,
    attach: tuple[str, ...],
    tables: bool,
    to: str | None,
    limit: int,
    memory_limit: str,
    timeout: timedelta | None,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Run SQL over state: stores and state variables are tables, by the names of `inspect`.

    SQL is one SELECT of DuckDB's. A table has the columns that `read` shows: the structs key and
    value, with dots before their fields, and partition_id. If there is only one table, its name is
    state. The table "NAME@VERSION" has an older version. Without SQL the command reads it from the
    input; on a terminal it opens a shell with a history.

    \b
    statestore sql /data/checkpoint "SELECT key.shop, value.count FROM state WHERE key.shop = 'x'"
    statestore sql /data/checkpoint 'SELECT count(*) FROM "clicks@12"'
    statestore sql /data/new --attach old=/data/old \\
      "SELECT n.key FROM state n ANTI JOIN old.state o ON n.key = o.key" --to added.csv
    statestore sql /data/checkpoint --tables
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    others = {
        alias: Checkpoint(uri, storage_options=storage_options)
        for alias, uri in parse_settings("--attach", attach, "ALIAS=CHECKPOINT").items()
    }
    if tables and sql is not None:
        raise click.UsageError("--tables and SQL exclude each other")
    if tables and to is not None:
        raise click.UsageError("--to goes with SQL")

    def run(text: str) -> None:
        rows = it.sql(text, attach=others, memory_limit=memory_limit, timeout=timeout)
        with closing(rows.read_batches()) as batches:
            if to is None:
                print_rows(batches, limit, output)
            else:
                print_written(write_rows(batches, to), to, output)

    if tables:
        _print_tables(it, others, output)
    elif sql is not None:
        run(sql)
    elif sys.stdin.isatty():
        if to is not None or output == "json" or not sys.stdout.isatty():
            raise click.UsageError("give SQL: only a terminal has the shell, which prints text")
        _shell(run, lambda: _print_tables(it, others, output))
    else:
        run(sys.stdin.read())


def _print_tables(it: Checkpoint, others: dict[str, Checkpoint], output: str) -> None:
    found = [(alias, one) for alias, of in {"": it, **others}.items() for one in of.tables()]
    if output == "json":
        fields = [{"alias": alias or None, **asdict(one)} for alias, one in found]
        print_json({"tables": fields})
        return
    if not found:
        click.echo("No tables: the query keeps no state, or none of its batches is committed yet.")
    out = console()
    for alias, one in found:
        name = f"{alias}.{one.name}" if alias else one.name
        kind = f"{one.operator} {one.operator_name}"
        out.print(escape_controls(f"{name}: operator {kind}"), style="bold")
        out.print(f"  key    {escape_controls(one.key)}")
        out.print(f"  value  {escape_controls(one.value)}")


def _shell(run: Callable[[str], None], list_tables: Callable[[], None]) -> None:
    click.echo(_HELP)
    keep = _history()
    held = ""
    while True:
        try:
            line = input(_MORE if held else _PROMPT)
        except KeyboardInterrupt:
            click.echo()
            held = ""
            continue
        except EOFError:
            click.echo()
            return
        if not held and line.strip() in (".exit", ".quit"):
            return
        if not held and line.strip().startswith("."):
            if line.strip() == ".tables":
                _shown(list_tables)
            else:
                click.echo(_HELP)
            continue
        held = f"{held}\n{line}" if held else line
        if held.strip() and held.rstrip().endswith(";"):
            statement, held = held.strip().rstrip(";"), ""
            keep()
            _shown(partial(run, statement))
        elif not held.strip():
            held = ""


def _shown(act: Callable[[], None]) -> None:
    try:
        act()
    except StateStoreError as error:
        click.echo(str(error), err=True)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _history() -> Callable[[], None]:
    """Let lines be edited, with those of earlier shells; returns what keeps them in a file."""
    try:
        import readline
    except ModuleNotFoundError:  # some Pythons are built without it
        return lambda: None
    above = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(above) / "statestore" / "sql_history"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_MOST_KEPT)

    def keep() -> None:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # it has values of keys
            readline.write_history_file(file)

    return keep


__all__ = ["sql"]
