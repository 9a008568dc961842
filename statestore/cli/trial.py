"""Commands that try new code on real state: try, promote, drop."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from statestore.cli.output import (
    command,
    output_option,
    parse_selects,
    print_json,
    print_result,
    progress_bar,
    storage_option,
    yes_option,
)
from statestore.core.defaults import BATCHES_REPEATED
from statestore.core.text import escape_lines

if TYPE_CHECKING:
    from statestore.api.trial import Trial

_TRIAL = "trial"


@command("try")
@click.argument("directory", metavar="CHECKPOINT")
@click.argument("job")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--trial",
    metavar="DIRECTORY",
    help="Directory of the trial.  [default: CHECKPOINT with -trial behind its name]",
)
@click.option(
    "--batches",
    type=click.IntRange(1),
    default=BATCHES_REPEATED,
    show_default=True,
    help="Repeat at most so many batches, the newest.",
)
@click.option(
    "--against",
    metavar="JOB",
    help="Old code: it repeats the batches, too, and its rows are compared.",
)
@click.option(
    "--sql",
    "sqls",
    metavar="NAME=SELECT",
    multiple=True,
    help="Make rows of state for the new code, as transform does; may be repeated.",
)
@click.option(
    "--ignore",
    metavar="COLUMN",
    multiple=True,
    help="Do not compare this column; may be repeated.",
)
@click.option(
    "--submit",
    metavar="COMMAND",
    default="",
    help="Run the job by this, such as 'spark-submit --master yarn --jars shim.jar'.  [default: "
    "this Python]",
)
@click.option("--to", metavar="FILE", help="Also write the result to this HTML file.")
@storage_option
@output_option
@click.pass_context
def try_command(
    ctx: click.Context,
    directory: str,
    job: str,
    arguments: tuple[str, ...],
    trial: str | None,
    batches: int,
    against: str | None,
    sqls: tuple[str, ...],
    ignore: tuple[str, ...],
    submit: str,
    to: str | None,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Try new code on a branch of a checkpoint, and compare it with the old.

    JOB is the new program: a Python script that starts the query with CHECKPOINT as its
    checkpointLocation. ARGUMENTS are the script's; its options come behind --. The script runs up
    to that start. The query repeats the newest batches on a branch, by the same offsets of its
    sources. Its sink is not written: its rows are kept in the trial.

    The rows are compared with those in the job's file sink, or with those of --against; the state
    with that of CHECKPOINT. The old query may run meanwhile. The same command goes on with its
    trial, and begins anew where JOB, ARGUMENTS, --against or --sql have changed. Exit status 0:
    nothing that was compared differs; 1: something does.

    \b
    Examples:
      statestore try /data/checkpoint new_job.py --to trial.html -- --topic orders
      statestore try /data/checkpoint new_job.py --against old_job.py --ignore largest
    """  # noqa: D301
    from statestore.api.try_job import try_job
    from statestore.report.page import check_writable

    if to is not None:
        check_writable(to)
    it = try_job(
        directory,
        job,
        arguments=arguments,
        trial=trial,
        batches=batches,
        against=against,
        rows=dict(parse_selects(sqls)),
        ignore=ignore,
        submit=_words(submit),
        storage_options=storage_options,
    )
    ctx.exit(_show(it, to, output))


@command()
@click.argument(_TRIAL)
@click.option(
    "--savepoint",
    metavar="DIRECTORY",
    help="Keep the old checkpoint here.  [default: beside the checkpoint, with its version in the "
    "name]",
)
@click.option("--accept", is_flag=True, help="Approve the differences.")
@yes_option
@storage_option
@output_option
def promote(
    trial: str,
    savepoint: str | None,
    accept: bool,
    yes: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Put the branch of a trial in the place of its checkpoint.

    Stop the query first. The trial must have its newest batch: if it has not, repeat `statestore
    try`. The old checkpoint stays as a savepoint. The query goes on with the next batch, from where
    the old had read to. Repeat a promote that was killed, or put the old checkpoint back with
    `statestore drop`.

    \b
    Examples:
      statestore promote /data/checkpoint-trial
      statestore promote /data/checkpoint-trial --accept --yes
    """  # noqa: D301
    from statestore.api.trial import Trial

    it = Trial(trial, storage_options=storage_options)
    with progress_bar("promote", output=output) as progress:
        result = it.promote(savepoint, accept=accept, dry_run=not yes, progress=progress)
    print_result(result, output=output)


@command()
@click.argument(_TRIAL)
@yes_option
@storage_option
@output_option
def drop(trial: str, yes: bool, storage_options: dict[str, str], output: str) -> None:
    """Delete a trial, and take back a promote that did not end.

    \b
    Example:
      statestore drop /data/checkpoint-trial --yes
    """  # noqa: D301
    from statestore.api.trial import Trial

    it = Trial(trial, storage_options=storage_options)
    print_result(it.drop(dry_run=not yes), output=output)


def _words(submit: str) -> list[str]:
    try:
        return shlex.split(submit)
    except ValueError as error:
        raise click.UsageError(f"--submit takes words as of a shell: {error}") from error


def _show(it: Trial, to: str | None, output: str) -> int:
    """Print what a trial found, write its page, and return the exit status."""
    report = it.result
    if output == "json":
        print_json({**report.fields(), "result": report.result})
    else:
        click.echo(escape_lines(str(report)))
    if to is not None:
        it.report(to)
    return 0 if report.is_same else 1
