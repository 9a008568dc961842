"""`statestore list`, `verify`, `repair` and `expire`: what a checkpoint has, and its upkeep."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.core.options import StateStoreOptions
    from statestore.operations.upkeep.repair import RepairPlan
    from statestore.operations.upkeep.verify import Finding


@click.command("list")
@checkpoint_argument()
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Newest versions only."
)
@click.option("--savepoints", metavar="DIRECTORY", help="List the query's savepoints in it, too.")
@conf_option
@output_option
def list_command(
    checkpoint: str, limit: int, savepoints: str | None, options: StateStoreOptions, output: str
) -> None:
    """List the versions of a checkpoint.

    Of each version: how it is kept (incremental, full or rescaled), its rows, the bytes it added
    and the bytes that a restore reads, snapshots, when its batch was committed and how long that
    took. A version whose files are gone is unreadable. Savepoints are wherever they were put:
    --savepoints says where to look. Checkpoints of Spark's own providers are read as they are,
    here and by verify, read, inspect and diff.

    \b
    Examples:
      statestore list /data/checkpoint
      statestore list s3://bucket/checkpoint --limit 5 --output json
      statestore list /data/checkpoint --savepoints /backup
    """  # noqa: D301 (click reads the backspace)
    from statestore.operations.upkeep.listing import find_savepoints, list_versions

    info = list_versions(checkpoint, limit=limit, options=options)
    retained = (
        () if savepoints is None else find_savepoints(checkpoint, savepoints, options=options)
    )
    if output == "json":
        print_json({**asdict(info), "savepoints": [asdict(found) for found in retained]})
        return
    click.echo(
        f"{info.uri}: {info.backend} backend, {info.num_partitions} state partitions, "
        f"{format_bytes(info.stored_bytes)} of state files"
    )
    for operator in info.operators:
        stores = ", ".join(store.name for store in operator.stores)
        names = ", ".join(sorted(variable.name for variable in operator.variables))
        variables = f", state variables {names}" if names else ""
        click.echo(f"operator {operator.id}: {operator.name}, stores {stores}{variables}")
    if info.uncommitted_batch is not None:
        click.echo(f"batch {info.uncommitted_batch} is planned and not committed: it runs again")
    columns = ["version", "batch", "kind", "partitions", "rows", "added", "full", "snapshots",
               "committed", "took"]  # fmt: skip
    rows: list[list[object]] = [
        [
            version.version,
            version.batch,
            version.kind,
            version.num_partitions,
            version.num_rows,
            format_bytes(version.incremental_bytes),
            format_bytes(version.full_bytes),
            format_bytes(version.snapshot_bytes) if version.num_snapshots else None,
            _format_time(version.committed_ms),
            None if version.duration_ms is None else f"{version.duration_ms / 1000:.1f} s",
        ]
        for version in info.versions
    ]
    console().print(table(columns, rows))
    for version in (version for version in info.versions[:1] if version.problem):
        click.echo(f"version {version.version}: {version.problem}")
    if retained:
        rows = [
            [
                found.savepoint.version,
                found.savepoint.form,
                found.savepoint.num_rows,
                format_bytes(found.savepoint.state_bytes),
                found.uri,
            ]
            for found in retained
        ]
        console().print(table(["version", "form", "rows", "bytes", "savepoint"], rows))


def _format_time(epoch_ms: int | None) -> str | None:
    if epoch_ms is None:
        return None
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@click.command()
@checkpoint_argument()
@click.option("--version", "version", type=int, help="State version.  [default: newest committed]")
@click.option("--all", "every", is_flag=True, help="Every version that was not expired.")
@click.option("--deep", is_flag=True, help="Read every row, not only the trailers of files.")
@conf_option
@output_option
@click.pass_context
def verify(
    ctx: click.Context,
    checkpoint: str,
    version: int | None,
    every: bool,
    deep: bool,
    options: StateStoreOptions,
    output: str,
) -> None:
    """Prove that versions of a checkpoint are whole.

    Fast reads the trailer of every file that a version is made of: it is there, of the right size,
    and the one its reference names. --deep reads every byte: the checksum of every block, every row
    in the key group and the state partition that its key belongs to, and as many rows as the
    version says. Exit status 1 when something is wrong.

    \b
    Examples:
      statestore verify /data/checkpoint
      statestore verify /data/checkpoint --all --deep
    """  # noqa: D301 (click reads the backspace)
    from statestore.operations.upkeep.verify import verify as run

    if every and version is not None:
        raise click.UsageError("either --version or --all")
    versions: Literal["all"] | list[int] | None = None if version is None else [version]
    with progress("verifying stores", output=output) as report:
        found = run(
            checkpoint,
            versions="all" if every else versions,
            deep=deep,
            options=options,
            report=report,
        )
    if output == "json":
        print_json({"ok": not found.findings, **asdict(found)})
    else:
        _print_findings(found.findings)
        rows = f", {found.num_rows:,} rows" if deep else ""
        click.echo(
            f"{len(found.versions)} versions, {found.num_files} files, "
            f"{format_bytes(found.num_bytes)}{rows}: "
            + (f"{len(found.findings)} findings" if found.findings else "all is well")
        )
        if found.expired:
            click.echo(f"{len(found.expired)} older versions were expired.")
    ctx.exit(1 if found.findings else 0)


def _print_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        note = " (recoverable: every row can be read)" if finding.is_recoverable else ""
        click.echo(f"version {finding.version}, store {finding.store}{note}: {finding.problem}")


@click.command()
@checkpoint_argument()
@click.option("--fast", is_flag=True, help="Trust what the trailers say, do not read every byte.")
@yes_option
@conf_option
@output_option
def repair(checkpoint: str, fast: bool, yes: bool, options: StateStoreOptions, output: str) -> None:
    """Take a checkpoint back to its newest version that can be read.

    Says which version that is, what is wrong with the newer ones, and exactly which batches would
    run again: the first one as it was planned, the later ones planned anew. With --yes the entries
    of those batches are taken out of Spark's logs and kept aside in the checkpoint. A rescale after
    that version is taken back, finished or not. A sink that
    tells batches by their number has seen them before; one that does not sees their rows twice.

    \b
    Examples:
      statestore repair /data/checkpoint
      statestore repair /data/checkpoint --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.operations.upkeep import repair as library

    run = library.repair if yes else library.plan_repair
    with progress("verifying stores", output=output) as report:
        plan = run(checkpoint, deep=not fast, options=options, report=report)
    if output == "json":
        print_json({"done": yes, "is_needed": plan.is_needed, **asdict(plan)})
        return
    _print_findings(plan.findings)
    if not plan.is_needed:
        click.echo(f"Version {plan.version}, the newest, can be read: nothing to repair.")
        return
    _print_repair(plan)
    click.echo(f"Done. Their entries are kept in {plan.aside}." if yes else NOTHING_CHANGED)


def _print_repair(plan: RepairPlan) -> None:
    click.echo(
        f"The newest version that can be read is {plan.version}; {plan.newest_version} was the "
        "newest committed one."
    )
    for batch in plan.undone_rescales:
        click.echo(f"The rescale of batch {batch} would be taken back; it can be done again.")
    if plan.replayed_batch is not None:
        click.echo(f"Batch {plan.replayed_batch} would run again as it was planned.")
    if plan.replanned_batches:
        first, last = plan.replanned_batches[0], plan.replanned_batches[-1]
        click.echo(f"Batches {first} to {last} would be planned anew from their input.")


@click.command()
@checkpoint_argument()
@click.option(
    "--keep",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="Versions that stay loadable.",
)
@yes_option
@conf_option
@output_option
def expire(checkpoint: str, keep: int, yes: bool, options: StateStoreOptions, output: str) -> None:
    """Delete the old versions of a checkpoint, and files that nobody needs.

    What the query's own maintenance does by spark.sql.streaming.minBatchesToRetain, at once and
    from outside. Files that a retained version is made of stay, whatever their age, and so do files
    younger than orphan.ageMs that nobody names: another process may be writing them. Savepoints are
    never touched.

    \b
    Examples:
      statestore expire /data/checkpoint --keep 10
      statestore expire /data/checkpoint --keep 10 --yes
    """  # noqa: D301 (click reads the backspace)
    from statestore.operations.upkeep import expire as library

    run = library.expire if yes else library.plan_expiry
    with progress("cleaning up stores", output=output) as report:
        plan = run(checkpoint, keep, options=options, report=report)
    if output == "json":
        totals = {"num_files": plan.num_files, "num_bytes": plan.num_bytes}
        print_json({"done": yes, **totals, **asdict(plan)})
        return
    rows: list[list[object]] = [
        [str(expiry.store), len(expiry.files), format_bytes(expiry.num_bytes)]
        for expiry in plan.stores
    ]
    if not rows:
        click.echo(f"Nothing to delete: versions from {plan.oldest_version} on stay.")
        return
    console().print(table(["store", "files", "bytes"], rows))
    click.echo(
        f"{plan.num_files} files, {format_bytes(plan.num_bytes)}; versions from "
        f"{plan.oldest_version} on stay."
    )
    click.echo("Done." if yes else NOTHING_CHANGED)
