"""Commands that write state as data: transform, edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.output import (
    checkpoint_argument,
    output_option,
    parse_settings,
    run_plan,
    storage_option,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}


def _version_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--version", type=int, help="State version.  [default: the newest committed one]"
    )(command)


@click.command()
@checkpoint_argument()
@click.argument("destination")
@click.option(
    "--sql",
    "sqls",
    metavar="OPERATOR[/NAME]=SELECT",
    multiple=True,
    required=True,
    callback=lambda *given: _queries(given[2]),
    help="What makes the rows of an operator: DuckDB's SQL over the table state. NAME is the store "
    "of a join, or a state variable. May be repeated.",
)
@click.option(
    "--change-schema",
    is_flag=True,
    help="The columns selected are the schemas of keys and values from now on.",
)
@_version_option
@yes_option
@storage_option
@output_option
def transform(
    checkpoint: str,
    destination: str,
    sqls: dict[int, Any],
    change_schema: bool,
    version: int | None,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Make a savepoint of which some operators have other rows, made by SQL of those they have.

    The table state has the columns that `statestore read` shows: the structs key and value. The
    SELECT returns the same, or their fields as columns named "key.NAME" and "value.NAME". The query
    may run meanwhile. Operators that are not named keep their rows.

    Without --yes the plan is shown. `statestore restore` makes a checkpoint of the savepoint.

    \b
    Examples:
      statestore transform /data/checkpoint /data/savepoint --change-schema --yes \\
        --sql "0=SELECT key, {'sum': value.sum / 1024} AS value FROM state"
      statestore transform /data/checkpoint /data/savepoint --yes \\
        --sql "1/left-keyWithIndexToValue=SELECT * FROM state WHERE key.field0 > 5"
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    plan = it.plan_transform(destination, sqls, version=version, change_schema=change_schema)
    run_plan(plan, "transform", yes=yes, output=output)


def _queries(given: tuple[str, ...]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for place, sql in parse_settings("--sql", given).items():
        operator, _, name = place.partition("/")
        if not operator.isdecimal():
            raise click.UsageError(f"--sql takes OPERATOR=SELECT, a number before =, not {place!r}")
        if name:
            found.setdefault(int(operator), {})[name] = sql
        else:
            found[int(operator)] = sql
    return found


@click.command()
@checkpoint_argument()
@click.argument("destination")
@click.option("--operator", type=int, default=0, show_default=True, help="Operator ID.")
@click.option("--name", help="Store of a join, or state variable.  [default: the only one]")
@click.option("--delete", metavar="FILE", help="Keys whose rows go.")
@click.option("--upsert", metavar="FILE", help="Rows, in place of those of their keys.")
@_version_option
@yes_option
@storage_option
@output_option
def edit(
    checkpoint: str,
    destination: str,
    operator: int,
    name: str | None,
    delete: str | None,
    upsert: str | None,
    version: int | None,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Make a savepoint without some keys, and with some rows that are new or other.

    FILE is .parquet, .csv or .json (a row a line), with the structs key and value, or their fields
    as columns named key.NAME and value.NAME; keys that go need no value. The query may run
    meanwhile.

    Without --yes the plan is shown. `statestore restore` makes a checkpoint of the savepoint. The
    checkpoint itself keeps its rows.

    \b
    Examples:
      statestore edit /data/checkpoint /data/savepoint --delete users.csv
      statestore edit /data/checkpoint /data/savepoint --upsert corrected.parquet --yes
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    if delete is None and upsert is None:
        raise click.UsageError("--delete FILE, --upsert FILE, or both")
    it = Checkpoint(checkpoint, storage_options=storage_options)
    plan = it.plan_edit(
        destination,
        operator=operator,
        name=name,
        delete=_rows(delete),
        upsert=_rows(upsert),
        version=version,
    )
    run_plan(plan, "edit", yes=yes, output=output)


def _rows(path: str | None) -> Any:
    """Return the rows of a file as Arrow data, None for none."""
    if path is None:
        return None
    import pyarrow as pa
    import pyarrow.dataset as ds

    form = _FORMS.get(Path(path).suffix)
    if form is None:
        raise click.UsageError(f"a file of rows ends with {', '.join(_FORMS)}: {path}")
    try:
        found: Any = ds
        return found.dataset(path, format=form).to_table()
    except (OSError, pa.ArrowException) as error:
        raise click.UsageError(f"rows cannot be read from {path}: {error}") from error
