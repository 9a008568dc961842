"""What there is: list, history."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from statestore.cli.output import (
    checkpoint_argument,
    checkpoints_below,
    command,
    is_given,
    limit_of,
    output_option,
    print_json,
    print_table,
    storage_option,
)
from statestore.core.errors import StateStoreError
from statestore.core.text import (
    escape_controls,
    format_bytes,
    format_count,
    format_duration,
    format_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statestore.api.checkpoint import Checkpoint, Savepoint
    from statestore.api.listing import Listing
    from statestore.operations.upkeep.survey import CheckpointInfo, VersionInfo

Listed = TypeVar("Listed")

_SHOWN = 200
"""Characters of an offset that are shown: that of a Kafka source names every partition."""
_limit_option = limit_of("of the newest; 0 for all")


@command("list")
@checkpoint_argument()
@_limit_option
@click.option(
    "--savepoints", metavar="DIRECTORY", help="List the query's savepoints in this directory, too."
)
@storage_option
@output_option
def list_command(
    checkpoint: str,
    limit: int,
    savepoints: str | None,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """List the versions of a checkpoint, or the checkpoints below a directory.

    It shows how each version is kept (incremental, full or rescaled), its rows, and the operation
    that made it if the query did not. Then come the bytes that it added, the bytes that a restore
    reads, its snapshots, the time of its commit, and how long the slowest store took for it. An
    expired version was deleted by retention, or left behind by a savepoint or restore: nothing is
    wrong with it. A damaged version lost files or has wrong ones. An unreadable one cannot be
    reached. This command, report, verify, read, inspect, sql and diff also read checkpoints of
    Spark's own providers.

    A directory that is no checkpoint, such as the storage of a declarative pipeline, stands for
    those below it: each is a line. A flow of a pipeline has one more checkpoint for each full
    refresh: the last one counts.

    \b
    Examples:
      statestore list /data/checkpoint
      statestore list /data/pipeline-storage
      statestore list s3://bucket/checkpoint --limit 5 --output json
      statestore list /data/checkpoint --savepoints /backup
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    if several := checkpoints_below(checkpoint, storage_options):
        if savepoints is not None or is_given("limit"):
            raise click.UsageError("--limit and --savepoints go with one checkpoint: name it")
        _list_checkpoints(checkpoint, several, output)
        return
    it = Checkpoint(checkpoint, storage_options=storage_options)
    info, (versions, more) = it.info, _newest(it.versions, limit)
    retained = None if savepoints is None else it.savepoints(savepoints)
    if output == "json":
        listed = [asdict(version) for version in versions]
        fields = {**asdict(info), "versions": listed, "more": more}
        if retained is not None:
            fields["savepoints"] = [
                {"uri": one.uri, "savepoint": asdict(one.info)} for one in retained
            ]
        print_json(fields)
        return
    _print_info(info)
    _print_versions(versions)
    if more:
        click.echo(f"The {limit} newest. Use --limit to see more.")
    if savepoints is not None and retained is not None:
        _print_savepoints(retained, savepoints)


def _newest(look: Callable[..., Listing[Listed]], limit: int) -> tuple[list[Listed], bool]:
    """Return what is listed first, at most so many but for 0, and whether there is more."""
    found = [*look(limit=limit + 1 if limit else None)]
    shown = found[: limit or None]
    return shown, len(shown) < len(found)


def _in_format(info: CheckpointInfo) -> str:
    return f", checkpoint format v{info.checkpoint_format}" if info.checkpoint_format else ""


def _print_info(info: CheckpointInfo) -> None:
    """Print what there is in a checkpoint, beside its versions."""
    click.echo(
        f"{escape_controls(info.uri)}: {info.kept_as}, {info.num_partitions} state partitions, "
        f"{format_bytes(info.stored_bytes)} of state files{_in_format(info)}"
    )
    if info.query_id is not None:
        name = "" if info.query_name is None else f" {escape_controls(info.query_name)}"
        click.echo(f"query{name} {info.query_id}{', running' if info.is_running else ''}")
    for line in info.position.lines(info.lag_ms) if info.position is not None else ():
        click.echo(escape_controls(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"))
    for operator in info.operators:
        stores = ", ".join(store.name for store in operator.stores)
        names = ", ".join(sorted(variable.name for variable in operator.variables))
        variables = f", state variables {names}" if names else ""
        told = f"operator {operator.id}: {operator.name}, stores {stores}{variables}"
        click.echo(escape_controls(told))
    if info.uncommitted_batch is not None:
        now = "is running" if info.is_running else "is planned and not committed"
        again = ": it runs again" if info.is_running is False else ""
        click.echo(f"batch {info.uncommitted_batch} {now}{again}")


def _print_versions(versions: Sequence[VersionInfo]) -> None:
    columns = ["version", "batch", "kind", "made by", "partitions", "rows", "added", "full",
               "snapshots", "committed", "took"]  # fmt: skip
    rows: list[list[object]] = [
        [
            version.version,
            version.batch,
            version.kind,
            version.made_by,
            version.num_partitions,
            version.num_rows,
            format_bytes(version.incremental_bytes) if version.num_stores else None,
            format_bytes(version.full_bytes) if version.num_stores else None,
            format_bytes(version.snapshot_bytes) if version.num_snapshots else None,
            None if version.committed_ms is None else format_time(version.committed_ms),
            None if version.commit is None else format_duration(version.commit.total_ms),
        ]
        for version in versions
    ]
    if rows:
        print_table(columns, rows)
    else:
        click.echo("No batch is committed yet.")
    for version in (version for version in versions if version.problem):
        click.echo(f"version {version.version}: {escape_controls(version.problem or '')}")


def _print_savepoints(retained: Listing[Savepoint], directory: str) -> None:
    if not retained:
        click.echo(f"No savepoint of the query in {directory}.")
        return
    infos = [(one.uri, one.info) for one in retained]
    print_table(
        ["version", "form", "rows", "bytes", "savepoint"],
        [
            [of.version, of.form, of.num_rows, format_bytes(of.state_bytes), uri]
            for uri, of in infos
        ],
    )


def _list_checkpoints(directory: str, found: Sequence[Checkpoint], output: str) -> None:
    """Print a line for each of several checkpoints, then what is wrong with them."""
    from statestore.api.checkpoint import Checkpoint

    infos = [_info_or_problem(one) for one in found]
    if output == "json":
        listed = [
            {"uri": one.uri, "problem": info} if isinstance(info, str) else asdict(info)
            for one, info in zip(found, infos, strict=True)
        ]
        print_json({"checkpoints": listed})
        return
    above = Checkpoint(directory).uri.rstrip("/")
    click.echo(f"{format_count(len(found), 'checkpoint')} below {above}")
    named = [(one.uri[len(above) + 1 :], info) for one, info in zip(found, infos, strict=True)]
    rows: list[list[object]] = [
        [name, None, None, None, None, None, "unreadable"]
        if isinstance(info, str)
        else [
            name,
            info.backend if info.savepoint is None else info.savepoint.backend,
            info.newest_version,
            info.num_partitions,
            ", ".join(operator.name for operator in info.operators),
            format_bytes(info.stored_bytes),
            _now(info),
        ]
        for name, info in named
    ]
    columns = ["checkpoint", "backend", "version", "partitions", "operators", "state files", "now"]
    print_table(columns, rows)
    for name, info in named:
        if isinstance(info, str):
            click.echo(escape_controls(f"{name}: {info}"))


def _now(info: CheckpointInfo) -> str | None:
    if info.savepoint is not None:
        return f"{info.savepoint.form} savepoint"
    return "running" if info.is_running else None


def _info_or_problem(one: Checkpoint) -> CheckpointInfo | str:
    try:
        return one.info
    except StateStoreError as error:
        return str(error)


@command()
@checkpoint_argument()
@_limit_option
@storage_option
@output_option
def history(checkpoint: str, limit: int, storage_options: dict[str, str], output: str) -> None:
    """List the operations that changed a checkpoint where it is, and the copy that made it.

    The newest is first. For each operation: when it began, its user and machine, the newest version
    before it, and the version that it made or went back to. An operation that has begun and is not
    done is running, failed or was killed; the same command finishes it, but for an edit or a forget
    that was killed after its commit: that has nothing left to do. The JSON has the certificate of a
    forget, without its lists of files. It has no keys and no values of rows. A damaged line is
    shown as it is.

    \b
    Examples:
      statestore history /data/checkpoint
      statestore history /data/checkpoint --limit 100 --output json
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    entries, more = _newest(it.history, limit)
    if output == "json":
        print_json({"entries": [asdict(entry) for entry in entries], "more": more})
        return
    columns = ["at", "operation", "status", "from", "to", "by", "details"]
    rows: list[list[object]] = [
        [
            None if entry.at_ms is None else format_time(entry.at_ms),
            entry.operation,
            f"taken back by {entry.taken_back_by}" if entry.taken_back_by else entry.status,
            entry.from_version,
            entry.to_version,
            None if entry.is_damaged else f"{entry.user or 'unknown'}@{entry.host}",
            entry.details or None,
        ]
        for entry in entries
    ]
    if rows:
        print_table(columns, rows)
    else:
        click.echo("No operation has changed it.")
    if more:
        click.echo(f"The {limit} newest. Use --limit to see more.")
