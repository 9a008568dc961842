"""`statestore convert`: a checkpoint for one of Spark's own providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from statestore.cli.output import (
    checkpoint_argument,
    command,
    dry_run_option,
    output_option,
    parse_settings,
    print_result,
    progress_bar,
    storage_option,
)
from statestore.core.providers import SUCCESSORS

if TYPE_CHECKING:
    from statestore.operations.conversion import Convert


class _ProviderOfSpark(click.Choice[str]):
    """A name of Spark's own providers; one of this package's state backends is told the way."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in SUCCESSORS.values():
            self.fail(f"use `statestore restore CHECKPOINT NEW --backend {value}`.", param, ctx)
        return super().convert(value, param, ctx)


@command()
@checkpoint_argument()
@checkpoint_argument("new")
@click.option(
    "--provider",
    type=_ProviderOfSpark(list(SUCCESSORS)),
    metavar=f"[{'|'.join(SUCCESSORS)}]",
    required=True,
    help="Provider of the new checkpoint.",
)
@click.option(
    "--session-conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="Configuration of the Spark session, such as spark.driver.memory; may be repeated.",
)
@storage_option
@dry_run_option
@output_option
def convert(
    checkpoint: str,
    new: str,
    provider: str,
    session_conf: tuple[str, ...],
    storage_options: dict[str, str],
    dry_run: bool,
    output: str,
) -> None:
    """Make a checkpoint from which a query goes on with one of Spark's own providers.

    The query must not run. CHECKPOINT is not changed: NEW is made from it, with the newest
    committed state. Spark on this machine writes it, and compares every row. Repeat a conversion
    that was interrupted: until it is whole, no query starts from NEW. `statestore restore` goes
    the other way, from Spark's own providers to those of this package.

    \b
    Examples:
      statestore convert /data/checkpoint /data/converted --provider spark-rocksdb --dry-run
      statestore convert /data/checkpoint /data/converted --provider spark-rocksdb
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    conf = parse_settings("--session-conf", session_conf)
    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("convert", output=output) as progress:
        result = it.convert(new, provider, session_conf=conf, dry_run=dry_run, progress=progress)
    print_result(result, output=output, done=_done(result))


def _done(result: Convert[Any]) -> str:
    """Return the text about a conversion that was done; its paths hold in a query, too."""
    num_rows = sum((result.rows or {}).values())
    return (
        f"{num_rows:,} rows of {result.source} are in {result.target}.\n"
        f"Start the query with checkpointLocation {result.target}."
    )
