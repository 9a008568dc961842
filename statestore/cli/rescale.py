"""`statestore rescale`: change the number of state partitions of a query that is stopped."""

from __future__ import annotations

import click

from statestore.cli.output import (
    checkpoint_argument,
    command,
    output_option,
    print_result,
    progress_bar,
    storage_option,
    yes_option,
)
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT

_DONE = "Done. Start the query as it was; --undo goes back until then."


@command()
@checkpoint_argument()
@click.option(
    "--num-partitions",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    metavar="N",
    help="State partitions to have, 1 to 32768.",
)
@click.option("--undo", is_flag=True, help="Go back, as long as no batch has run since.")
@click.option(
    "--count-rows",
    is_flag=True,
    help="Read every row first, for exact numbers of rows and the skew.",
)
@yes_option
@storage_option
@output_option
def rescale(
    checkpoint: str,
    num_partitions: int | None,
    undo: bool,
    count_rows: bool,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Change the number of state partitions of a query that is stopped.

    The plan names the files that the query will read, the rows of each new state partition, and the
    skew: rows of the largest divided by the mean. Where files do not say how many rows there are,
    --count-rows reads every row. Where N divides the number of key groups no row is read or
    written; for any other N every row is hashed anew.

    The query then starts unchanged: spark.sql.shuffle.partitions comes from its checkpoint. --undo
    goes back. After a kill the same N finishes the rescale, or --undo takes it back. --undo also
    takes back a repartition of Spark's own that was refused. To rescale state of the heap backend,
    call statestore.Checkpoint.rescale in its driver's Python program.

    \b
    Examples:
      statestore rescale /data/checkpoint --num-partitions 8
      statestore rescale /data/checkpoint --num-partitions 8 --count-rows
      statestore rescale /data/checkpoint --num-partitions 8 --yes
      statestore rescale s3://bucket/checkpoint --undo --yes
    """  # noqa: D301 (click reads the backspace)
    # Imported late like every command's library: it needs pyarrow, which takes long.
    from statestore.api.checkpoint import Checkpoint

    if undo == (num_partitions is not None):
        raise click.UsageError("either --num-partitions N or --undo")
    if count_rows and undo:
        raise click.UsageError("--count-rows goes with --num-partitions N")
    it = Checkpoint(checkpoint, storage_options=storage_options)
    if num_partitions is None:
        print_result(it.undo_rescale(dry_run=not yes), output=output)
        return
    with progress_bar("rescaling", output=output) as progress:
        result = it.rescale(
            num_partitions, count_rows=count_rows, dry_run=not yes, progress=progress
        )
    print_result(result, output=output, done=_DONE)
