"""`statestore convert`: a checkpoint for another provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import TextColumn

from statestore.cli.output import (
    NOTHING_CHANGED,
    checkpoint_argument,
    conf_option,
    console,
    hadoop_conf,
    output_option,
    print_json,
    progress_bar,
    table,
    yes_option,
)
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS
from statestore.operations.savepoint.conversion import TARGETS, ConversionPlan
from statestore.spark.convert import ConversionProgress, Report, open_conversion


@click.command()
@checkpoint_argument()
@checkpoint_argument("new")
@click.option(
    "--to", type=click.Choice(list(TARGETS)), required=True, help="Provider of the new checkpoint."
)
@click.option(
    "--session-conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="Configuration of the Spark session, such as spark.driver.memory; may be repeated.",
)
@conf_option
@yes_option
@output_option
def convert(
    checkpoint: str,
    new: str,
    to: str,
    session_conf: tuple[str, ...],
    options: StateStoreOptions,
    yes: bool,
    output: str,
) -> None:
    """Make a checkpoint from which a query goes on with another provider.

    CHECKPOINT is that of a query on one of Spark's own providers, to go on with this package's
    state stores, or the other way round; the query must not run. It is not changed: NEW is made
    from it, with the newest committed state, every row of which is compared. Runs Spark on this
    machine, with a task for each state partition of each store. A conversion that was interrupted
    leaves a NEW that no query starts from; the same command does it again.

    \b
    Examples:
      statestore convert /data/checkpoint /data/converted --to rocksdb
      statestore convert /data/checkpoint /data/converted --to rocksdb --yes
    """  # noqa: D301 (click reads the backspace)
    conf = hadoop_conf() | _settings(session_conf)
    with open_conversion(checkpoint, new, to, options=options, session_conf=conf) as conversion:
        plan = conversion.plan
        if output == "text":
            _print_plan(plan)
        if not yes:
            if output == "json":
                print_json({"done": False, "plan": _plan_json(plan)})
            else:
                click.echo(NOTHING_CHANGED)
            return
        with _progress(plan.num_stores, output=output) as report:
            rows = conversion.run(report)
    if output == "json":
        stores = [
            {"operator": operator, "store": store, "rows": count}
            for (operator, store), count in rows.items()
        ]
        print_json({"done": True, "plan": _plan_json(plan), "rows": stores})
        return
    click.echo(f"{sum(rows.values()):,} rows are in {new}, each as it was in {checkpoint}.")
    click.echo(f"Start the query with checkpointLocation {new}.")
    if to in PROVIDERS:
        click.echo("Its session needs the jar that `statestore jar` prints in spark.jars.")


def _settings(session_conf: tuple[str, ...]) -> dict[str, str]:
    malformed = [setting for setting in session_conf if "=" not in setting]
    if malformed:
        raise click.UsageError(f"--session-conf takes KEY=VALUE, not {malformed[0]!r}")
    return dict(setting.split("=", 1) for setting in session_conf)


def _print_plan(plan: ConversionPlan) -> None:
    click.echo(f"from  {plan.checkpoint}: {plan.source}, version {plan.version}")
    click.echo(f"to    {plan.new}: {plan.target}")
    if plan.is_begun:
        click.echo("      deletes the unfinished conversion that is there")
    rows: list[list[object]] = [
        [operator.info.id, operator.info.name, store.name, operator.num_partitions]
        for operator in plan.operators
        for store in operator.info.stores
    ]
    console().print(table(["operator", "name", "store", "state partitions"], rows))


def _plan_json(plan: ConversionPlan) -> dict[str, Any]:
    return {
        "checkpoint": plan.checkpoint,
        "new": plan.new,
        "source": plan.source,
        "target": plan.target,
        "version": plan.version,
        "checkpoint_format": plan.checkpoint_format,
        "is_begun": plan.is_begun,
        "stores": [
            {
                "operator": operator.info.id,
                "name": operator.info.name,
                "store": store.name,
                "num_partitions": operator.num_partitions,
            }
            for operator in plan.operators
            for store in operator.info.stores
        ],
    }


@contextmanager
def _progress(num_stores: int, *, output: str) -> Iterator[Report]:
    with progress_bar(TextColumn("{task.fields[rows]:,} rows"), output=output) as bar:
        task = bar.add_task("stores", total=num_stores, rows=0)

        def report(progress: ConversionProgress) -> None:
            bar.update(task, completed=progress.stores, rows=progress.rows)

        yield report
