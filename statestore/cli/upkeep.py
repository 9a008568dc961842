"""Upkeep: verify, repair, expire, compact."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import click

from statestore.cli.output import (
    checkpoint_argument,
    checkpoints_below,
    command,
    output_option,
    print_json,
    print_result,
    progress_bar,
    storage_option,
    yes_option,
)
from statestore.core.errors import StateStoreError
from statestore.core.text import escape_controls, escape_lines


@command()
@checkpoint_argument()
@click.option(
    "--version",
    "versions",
    metavar="V",
    multiple=True,
    callback=lambda *given: _versions(given[2]),
    help="State version, or all for every one that was not expired; may be repeated.  [default: "
    "newest committed]",
)
@click.option("--deep", is_flag=True, help="Read every row, not only the trailers of files.")
@storage_option
@output_option
@click.pass_context
def verify(
    ctx: click.Context,
    checkpoint: str,
    versions: Literal["all"] | list[int] | None,
    deep: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Prove that versions of a checkpoint are whole, or of each checkpoint below a directory.

    Without --deep it reads the trailer of every file of a version: the file is there, has the right
    size, and is the one that was committed. With --deep it reads every byte and checks the checksum
    of every block, the key group and state partition of every row, and the number of rows. Exit
    status 1 when something is wrong; then it says what to do, mostly `statestore repair`.

    \b
    Examples:
      statestore verify /data/checkpoint
      statestore verify /data/checkpoint --version all --deep
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    several = checkpoints_below(checkpoint, storage_options)
    every: list[dict[str, object]] = []
    for it in several or [Checkpoint(checkpoint, storage_options=storage_options)]:
        if several and output == "text":
            click.echo(f"{escape_controls(it.uri)}:")
        try:
            with progress_bar("verifying stores", output=output) as progress:
                found = it.verify(versions=versions, deep=deep, progress=progress)
        except StateStoreError as error:
            if not several:
                raise
            every.append({"ok": False, "checkpoint": it.uri, "problem": str(error)})
            click.echo(escape_lines(str(error)), err=output == "json")
            continue
        every.append({"ok": found.ok, "to_fix": found.to_fix, **asdict(found)})
        if output == "text":
            click.echo(escape_lines(found.describe()))
    ok = all(one["ok"] for one in every)
    if output == "json":
        print_json({"ok": ok, "checkpoints": every} if several else every[0])
    ctx.exit(0 if ok else 1)


def _versions(given: tuple[str, ...]) -> Literal["all"] | list[int] | None:
    if given == ("all",):
        return "all"
    try:
        return [int(version) for version in given] or None
    except ValueError as error:
        named = " ".join(given)
        raise click.UsageError(f"--version takes state versions, or all: not {named!r}") from error


@command()
@checkpoint_argument()
@click.option(
    "--deep/--no-deep",
    default=True,
    show_default=True,
    help="Read every byte, or trust what the trailers say.",
)
@yes_option
@storage_option
@output_option
@click.pass_context
def repair(
    ctx: click.Context,
    checkpoint: str,
    deep: bool,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Take a checkpoint back to its newest version that can be read.

    The plan names that version, what is wrong with the newer ones, and the batches that run again:
    the first as it was planned, the later ones planned anew. With --yes it moves the entries of
    those batches out of Spark's logs; the checkpoint keeps them. A rescale after that version is
    taken back, finished or not. A sink that knows batches by their number ignores the repeated
    ones; any other sink gets their rows twice. Exit status 1 when there is something to repair and
    --yes is not given.

    \b
    Examples:
      statestore repair /data/checkpoint
      statestore repair /data/checkpoint --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("verifying stores", output=output) as progress:
        result = it.repair(deep=deep, dry_run=not yes, progress=progress)
    print_result(result, output=output)
    ctx.exit(1 if result.is_needed and not yes else 0)


@command()
@checkpoint_argument()
@click.option(
    "--keep",
    type=click.IntRange(2),
    required=True,
    help="Versions that stay loadable.",
)
@yes_option
@storage_option
@output_option
def expire(
    checkpoint: str, keep: int, yes: bool, storage_options: dict[str, str], output: str
) -> None:
    """Delete the old versions of a checkpoint, and files that nobody needs.

    The query's own maintenance does the same by spark.sql.streaming.minBatchesToRetain. Files of a
    kept version stay, whatever their age. So do unknown files younger than orphan.ageMs: another
    process may be writing them. Savepoints are never touched. Where older versions stay, the plan
    says why; `statestore compact` writes the rows that keep them anew.

    \b
    Examples:
      statestore expire /data/checkpoint --keep 10
      statestore expire /data/checkpoint --keep 10 --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("cleaning up stores", output=output) as progress:
        result = it.expire(keep, dry_run=not yes, progress=progress)
    print_result(result, output=output)


@command()
@checkpoint_argument()
@yes_option
@storage_option
@output_option
def compact(checkpoint: str, yes: bool, storage_options: dict[str, str], output: str) -> None:
    """Write the newest version as one file a store, so that older versions can go.

    A version holds the changes to the version before it, so it needs that one's files. Written
    whole, as a snapshot or on the rocksdb backend as one merged file, it needs none: then older
    versions can expire. The command needs local disk for the state of one store.

    \b
    Examples:
      statestore compact /data/checkpoint
      statestore compact /data/checkpoint --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("compacting stores", output=output) as progress:
        result = it.compact(dry_run=not yes, progress=progress)
    print_result(result, output=output)
