"""`statestore rescale`: change the number of state partitions of a query that is stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from statestore.cli.output import (
    NOTHING_CHANGED,
    checkpoint_argument,
    conf_option,
    console,
    format_bytes,
    output_option,
    print_json,
    progress,
    table,
    yes_option,
)
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.core.options import StateStoreOptions
    from statestore.operations.rescale.plan import RescalePlan, StoreRescale, UndoPlan

_WAYS = {
    "key-groups": "state files stay as they are, each state partition reads its key groups of them",
    "whole": "stays whole in state partition 0",
    "rehash": "every row is read, hashed anew and written",
}

_MOST_LINES, _LARGEST = 40, 10


@click.command()
@checkpoint_argument()
@click.option(
    "--partitions",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    metavar="N",
    help="State partitions to have, 1 to 32768.",
)
@click.option("--undo", is_flag=True, help="Go back, as long as no batch has run since.")
@click.option(
    "--count-rows", is_flag=True, help="For the plan read every row: exact rows, known skew."
)
@yes_option
@conf_option
@output_option
def rescale(
    checkpoint: str,
    partitions: int | None,
    undo: bool,
    count_rows: bool,
    yes: bool,
    options: StateStoreOptions,
    output: str,
) -> None:
    """Change the number of state partitions of a query that is stopped.

    Without --yes the plan is shown: the files that the query will read when it starts, the rows of
    the new state partitions, and the skew, rows of the largest by those of the mean. Where the
    files do not tell them, --count-rows does: it reads every row. Where N divides the number of key
    groups no state file is read or written; for any other N every row is hashed anew.

    The query then restarts as it was; spark.sql.shuffle.partitions comes from its checkpoint.
    --undo goes back. A rescale that was killed, and what Spark's own repartition leaves behind when
    it refuses the provider, is finished by the same N and taken away by --undo. State of the heap
    backend is rescaled from its driver's Python program: statestore.rescale.

    \b
    Examples:
      statestore rescale /data/checkpoint --partitions 8
      statestore rescale /data/checkpoint --partitions 8 --count-rows
      statestore rescale /data/checkpoint --partitions 8 --yes
      statestore rescale s3://bucket/checkpoint --undo --yes
    """  # noqa: D301 (click reads the backspace)
    if undo == (partitions is not None):
        raise click.UsageError("either --partitions N or --undo")
    if count_rows and (undo or yes):
        raise click.UsageError("--count-rows is for the plan of --partitions N")
    if partitions is None:
        _undo(checkpoint, options, yes=yes, output=output)
    else:
        _rescale(checkpoint, partitions, options, counts=count_rows, yes=yes, output=output)


def _rescale(
    uri: str, partitions: int, options: StateStoreOptions, *, counts: bool, yes: bool, output: str
) -> None:
    # Imported late like every command's library: it needs pyarrow, which takes long.
    from statestore.operations.rescale.rescale import plan_rescale, rescale

    if yes:
        with progress("rescaling", output=output) as report:
            plan = rescale(uri, partitions, options=options, report=report)
    else:
        plan = plan_rescale(uri, partitions, count_rows=counts, options=options)
    if output == "json":
        stores = [asdict(store) | {"skew": store.skew} for store in plan.stores]
        print_json({"done": yes or plan.is_done, **asdict(plan), "stores": stores})
        return
    if plan.is_done:
        click.echo(f"The checkpoint has {plan.num_partitions} state partitions already.")
    elif yes:
        click.echo(
            f"Rescaled from {plan.num_partitions_before} to {plan.num_partitions} state partitions "
            f"as batch {plan.batch}. Start the query as it was; --undo goes back until then."
        )
    else:
        _print_plan(plan)
        click.echo(NOTHING_CHANGED)


def _print_plan(plan: RescalePlan) -> None:
    click.echo(
        f"From {plan.num_partitions_before} to {plan.num_partitions} state partitions as batch "
        f"{plan.batch}, {plan.backend} backend."
    )
    if plan.is_begun:
        click.echo("It was begun before, by a rescale or by Spark's own repartition: to finish it.")
    for store in plan.stores:
        click.echo("")
        click.echo(
            f"Operator {store.operator} ({store.operator_name}), store {store.name}: "
            f"{_WAYS[store.way]}."
        )
        click.echo(f"{_summary(store)}.")
        _print_partitions(store.partition_rows or ())
    click.echo("")


def _summary(store: StoreRescale) -> str:
    files = f"{store.num_files} files of {format_bytes(store.num_bytes)}"
    parts = [files if store.num_rows is None else f"{store.num_rows} rows in {files}"]
    if store.partition_rows is None:
        parts.append("skew unknown (--count-rows reads every row to know it)")
    elif store.skew is not None:
        parts.append(f"skew {store.skew:.2f}")
    if store.way == "rehash":
        parts.append(f"{store.max_parallelism} key groups afterwards")
    return ", ".join(parts)


def _print_partitions(num_rows: Sequence[int]) -> None:
    """Print the rows of every state partition, or of the largest where there are many."""
    partitions = list(range(len(num_rows)))
    if len(num_rows) > _MOST_LINES:
        partitions = sorted(partitions, key=lambda number: -num_rows[number])[:_LARGEST]
        click.echo(f"The {_LARGEST} largest of {len(num_rows)}; --output json has all:")
    rows: list[list[object]] = [[number, num_rows[number]] for number in partitions]
    if rows:
        console().print(table(["partition", "rows"], rows))


def _undo(uri: str, options: StateStoreOptions, *, yes: bool, output: str) -> None:
    from statestore.operations.rescale.rescale import plan_undo, undo_rescale

    plan = (undo_rescale if yes else plan_undo)(uri, options=options)
    if output == "json":
        print_json({"done": yes, **asdict(plan)})
        return
    _print_undo(plan, yes=yes)
    if not yes:
        click.echo(NOTHING_CHANGED)


def _print_undo(plan: UndoPlan, *, yes: bool) -> None:
    verb = "Took" if yes else "To take"
    if plan.batch is None:
        click.echo(
            f"{verb} away the state files of a rescale that was killed before it planned its "
            f"batch; the checkpoint has {plan.num_partitions} state partitions."
        )
        return
    kind = "finished" if plan.was_committed else "unfinished"
    click.echo(
        f"{verb} back the {kind} rescale of batch {plan.batch}: from {plan.num_partitions_before} "
        f"to {plan.num_partitions} state partitions."
    )
