"""`statestore convert`: a checkpoint for another provider."""

from __future__ import annotations

import click

from statestore.cli.output import (
    NOTHING_CHANGED,
    checkpoint_argument,
    output_option,
    parse_settings,
    print_json,
    progress_bar,
    storage_option,
    yes_option,
)
from statestore.core.providers import PROVIDERS, TARGETS


@click.command()
@checkpoint_argument()
@checkpoint_argument("new")
@click.option(
    "--to",
    type=click.Choice(list(TARGETS)),
    metavar=f"[{'|'.join(TARGETS)}]",
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
@yes_option
@output_option
def convert(
    checkpoint: str,
    new: str,
    to: str,
    session_conf: tuple[str, ...],
    storage_options: dict[str, str],
    yes: bool,
    output: str,
) -> None:
    """Make a checkpoint from which a query goes on with another provider.

    CHECKPOINT is that of a query on one of Spark's own providers, to go on with this package's
    state stores, or the other way round; the query must not run. CHECKPOINT is not changed: NEW is
    made from it, with the newest committed state. To a provider of Spark's this runs Spark on this
    machine, which compares every row. A conversion that was interrupted leaves a NEW that no query
    starts from; the same command does it again.

    \b
    Examples:
      statestore convert /data/checkpoint /data/converted --to rocksdb
      statestore convert /data/checkpoint /data/converted --to rocksdb --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    conf = parse_settings("--session-conf", session_conf)
    plan = Checkpoint(checkpoint, storage_options=storage_options).plan_convert(
        new, to, session_conf=conf
    )
    if output == "text":
        click.echo(plan.describe())
    if not yes:
        if output == "json":
            print_json({"done": False, "plan": plan.fields()})
        else:
            click.echo(NOTHING_CHANGED)
        return
    with progress_bar("convert", output=output) as progress:
        rows = plan.run(progress).rows
    if output == "json":
        stores = [
            {"operator": operator, "store": store, "rows": count}
            for (operator, store), count in rows.items()
        ]
        print_json({"done": True, "plan": plan.fields(), "rows": stores})
        return
    click.echo(f"{sum(rows.values()):,} rows of {checkpoint} are in {new}.")
    click.echo(f"Start the query with checkpointLocation {new}.")
    if to in PROVIDERS:
        click.echo("Its session needs the jar that `statestore jar` prints in spark.jars.")
