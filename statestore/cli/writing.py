"""Commands that write state as data: transform, edit, forget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.output import (
    DurationType,
    checkpoint_argument,
    command,
    dry_run_option,
    output_option,
    parse_selects,
    print_json,
    print_result,
    progress_bar,
    require_form,
    rows_option,
    storage_option,
    version_option,
    yes_option,
)
from statestore.core.text import escape_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from statestore.api.checkpoint import Checkpoint


def _all_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--all", "all_rows", is_flag=True, help="Do it even if no row is left.")(
        command
    )


def _edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which rows go, and which are put."""
    for option in (
        click.option(
            "--upsert", metavar="FILE", help="Put these rows in place of those of their keys."
        ),
        click.option(
            "--where",
            metavar="SQL",
            help="Delete the rows for which this condition holds, in place of --delete.",
        ),
        click.option("--delete", metavar="FILE", help="Delete the rows of these keys."),
        rows_option,
    ):
        command = option(command)
    return command


def _edited(
    delete: str | None, where: str | None, upsert: str | None, *, all_rows: bool
) -> dict[str, Any]:
    """Return which rows go and which are put, as Python's arguments."""
    if delete is not None and where is not None:
        raise click.UsageError("either --delete FILE or --where SQL")
    return {
        "delete": _rows_file(delete) if where is None else where,
        "upsert": _rows_file(upsert),
        "all_rows": all_rows,
    }


@command()
@checkpoint_argument()
@click.argument("destination")
@click.option(
    "--sql",
    "sqls",
    metavar="NAME=SELECT",
    multiple=True,
    callback=lambda *given: _queries(given[2]),
    help="Make rows by DuckDB's SQL over the table state. NAME is as for --rows. May be repeated.",
)
@_edit_options
@_all_option
@version_option
@click.option(
    "--change-schema",
    is_flag=True,
    help="Make the selected columns the schemas of keys and values.",
)
@click.option(
    "--join-format",
    type=click.Choice(["4"]),
    help="Give joins of two streams this state format, in place of 2 or 3.",
)
@dry_run_option
@storage_option
@output_option
def transform(
    checkpoint: str,
    destination: str,
    sqls: dict[Any, Any],
    rows: str | None,
    delete: str | None,
    where: str | None,
    upsert: str | None,
    all_rows: bool,
    change_schema: bool,
    join_format: str | None,
    version: int | None,
    dry_run: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Make a savepoint of a checkpoint, with other rows.

    --sql names rows and a SELECT that makes them. Its table state has the columns that `statestore
    read` shows, the structs key and value. The SELECT returns these, or their fields as columns
    named "key.NAME" and "value.NAME". --delete, --where and --upsert are those of `statestore
    edit`, whose help describes FILE. Rows that are not named stay as they are. The query may run
    meanwhile.

    `statestore restore` makes a checkpoint of the savepoint.

    \b
    Examples:
      statestore transform /data/checkpoint /data/savepoint --change-schema \\
        --sql "0=SELECT key, {'sum': value.sum / 1024} AS value FROM state"
      statestore transform /data/checkpoint /data/savepoint \\
        --sql "left-keyWithIndexToValue=SELECT * FROM state WHERE key.field0 > 5"
      statestore transform /data/checkpoint /data/savepoint --delete users.csv
      statestore transform /data/checkpoint /data/savepoint --join-format 4
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint
    from statestore.operations.writing.edited import Edited

    if (delete, where, upsert) != (None,) * 3:
        if rows in sqls:
            raise click.UsageError(f"the rows of {rows} are made in two ways")
        sqls[rows] = Edited(**_edited(delete, where, upsert, all_rows=all_rows))
    elif rows is not None or all_rows:
        raise click.UsageError("--rows and --all go with --delete, --where or --upsert")
    if not sqls and join_format is None:
        raise click.UsageError(
            "--sql SELECT, --delete FILE, --where SQL, --upsert FILE or --join-format 4"
        )
    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("transform", output=output) as progress:
        result = it.transform(
            destination,
            sqls,
            version=version,
            change_schema=change_schema,
            join_format=None if join_format is None else int(join_format),
            dry_run=dry_run,
            progress=progress,
        )
    print_result(result, output=output)


def _queries(given: tuple[str, ...]) -> dict[Any, Any]:
    """Return the SQL that makes rows, by their address."""
    return dict(parse_selects(given))


@command()
@checkpoint_argument()
@_edit_options
@click.option(
    "--watermark-ms", type=int, help="Set the watermark, in milliseconds since the Unix epoch."
)
@click.option(
    "--expire", metavar="COLUMN", help="Delete rows whose COLUMN is older than --older-than."
)
@click.option(
    "--older-than",
    metavar="AGE",
    type=DurationType(),
    help="With --expire: how old, such as 90m, 36h or 7d.",
)
@_all_option
@yes_option
@storage_option
@output_option
def edit(
    checkpoint: str,
    rows: str | None,
    delete: str | None,
    where: str | None,
    upsert: str | None,
    all_rows: bool,
    watermark_ms: int | None,
    expire: str | None,
    older_than: timedelta | None,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Delete rows of a stopped query's state, and put rows in.

    FILE is .parquet (or has no suffix), .arrow, .csv, or .json or .jsonl (a row a line). It has the
    structs key and value, or their fields as columns named key.NAME and value.NAME; keys to delete
    have no value. Values are read by the types of the state: 007 stays 007 where the state has
    text. What does not fit is refused.

    The plan says how many rows go, and of which keys. Exit status 1 where no row is there to
    delete by --delete or --where and none is put, or where all would go and --all is not given.

    When the query is started, it goes on from the edited rows. Older versions keep their rows until
    they expire; `statestore forget` deletes keys there as well. `statestore transform` makes a
    savepoint with edited rows instead.

    \b
    Examples:
      statestore edit /data/checkpoint --where "user_id = 'x'" --yes
      statestore edit /data/checkpoint --upsert corrected.parquet --yes
      statestore edit /data/checkpoint --expire value.max --older-than 7d --yes
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    if (expire is None) != (older_than is None):
        raise click.UsageError("--expire COLUMN and --older-than AGE go together")
    if (delete, where, upsert, expire, watermark_ms) == (None,) * 5:
        raise click.UsageError(
            "one of --delete FILE, --where SQL, --expire COLUMN; or --upsert FILE, --watermark-ms"
        )
    how = _edited(delete, where, upsert, all_rows=all_rows)
    with progress_bar("edit", output=output) as progress:
        result = Checkpoint(checkpoint, storage_options=storage_options).edit(
            rows,
            watermark_ms=watermark_ms,
            expire=expire,
            older_than=older_than,
            dry_run=not yes,
            progress=progress,
            **how,
        )
    print_result(result, output=output)


@command()
@checkpoint_argument()
@click.option(
    "--where",
    metavar="SQL",
    help="Forget the keys for which this holds, over columns of the grouping key.",
)
@click.option(
    "--keys",
    metavar="FILE",
    help="Forget the keys in this file, columns key.NAME, in place of --where.",
)
@click.option("--operator", type=int, default=0, show_default=True, help="Operator ID.")
@_all_option
@click.option(
    "--certificate",
    metavar="FILE",
    help="Write the certificate here, as JSON. With --verify: compare it with the keys.",
)
@click.option("--verify", is_flag=True, help="Search every file for --keys; change nothing.")
@yes_option
@storage_option
@output_option
@click.pass_context
def forget(
    ctx: click.Context,
    checkpoint: str,
    operator: int,
    where: str | None,
    keys: str | None,
    all_rows: bool,
    certificate: str | None,
    verify: bool,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Delete keys from every version of an operator, and search every file for them.

    It writes the newest version whole without the keys, in every store and state variable of the
    operator, and deletes all older files of the operator: there is no way back. Then it searches
    every file of the checkpoint. The query must be stopped; it goes on from all other rows.

    Exit status 0: every operator and log was searched, and no key was found. Exit status 1: a key
    was found, or something could not be searched; or no key has a row, and nothing was done. A
    value that equals a key but may mean something else, such as a small number in another column,
    is reported as `maybe`; it does not change the exit status. Somebody who knows the query has to
    judge it.

    Savepoints, branches, the query's input, its sink and the local disks of executors keep the
    keys: see docs/forget.md. --verify with --keys searches at any time.

    The plan reads every state file of the operator.

    \b
    Examples:
      statestore forget /data/checkpoint --where "user_id = 'x'"
      statestore forget /data/checkpoint --where "user_id = 'x'" --certificate forgotten.json --yes
      statestore forget /data/checkpoint --keys users.csv --verify --certificate forgotten.json
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    if (where is None) == (keys is None):
        raise click.UsageError("either --where SQL or --keys FILE")
    if verify and (yes or all_rows):
        raise click.UsageError("--verify changes nothing: leave --yes and --all out")
    if verify and where is not None:
        raise click.UsageError("--verify takes --keys: a condition finds no key that is gone")
    it = Checkpoint(checkpoint, storage_options=storage_options)
    given = _rows_file(keys)
    if verify:
        ctx.exit(_verify(it, given, operator, certificate, output))
    with progress_bar("forget", output=output) as progress:
        result = it.forget(
            where,
            keys=given,
            operator=operator,
            all_rows=all_rows,
            certificate=certificate,
            dry_run=not yes,
            progress=progress,
        )
    print_result(result, output=output, done=None)
    ctx.exit(0 if not result.done or result.certificate.is_forgotten else 1)


def _verify(
    it: Checkpoint, keys: Path | None, operator: int, certificate: str | None, output: str
) -> int:
    """Search for keys, print what was found, and return the exit status."""
    found = it.search_keys(keys, operator=operator, certificate=certificate)
    is_of_keys = found.certificate_is_of_keys
    if output == "json":
        fields = {"is_forgotten": found.is_forgotten, "certificate_is_of_keys": is_of_keys}
        print_json({**fields, "search": found.fields()})
    else:
        click.echo(escape_lines(str(found)))
    return 0 if found.is_forgotten and is_of_keys is not False else 1


def _rows_file(given: str | None) -> Path | None:
    """Return the path of a file of rows, None for none; its rows are read by the state's types."""
    if given is None:
        return None
    require_form(given)
    path = Path(given)
    if not path.is_file():
        raise click.UsageError(f"there is no such file of rows: {path}")
    return path
