"""Commands that copy a query's state: savepoint, restore, branch."""

from __future__ import annotations

import errno
import os
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.output import (
    DurationType,
    checkpoint_argument,
    command,
    dry_run_option,
    output_option,
    print_json,
    print_result,
    progress_bar,
    storage_option,
    version_option,
)
from statestore.core.clock import SystemClock
from statestore.core.defaults import SAVEPOINTS_KEPT
from statestore.core.errors import StateStoreError, StorageError
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS
from statestore.core.text import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from statestore.api.checkpoint import Checkpoint
    from statestore.api.schedule import Every
    from statestore.operations.savepoint.savepoint import SavepointForm, SavepointInfo


@command()
@checkpoint_argument()
@click.argument("destination")
@version_option
@click.option(
    "--form",
    type=click.Choice(["canonical", "native"]),
    default="canonical",
    show_default=True,
    help="Full states, which every state backend can be restored from, or the files as they are.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="Take savepoint-<time>-<id> in DESTINATION, and keep so many of those there, the newest.  "
    f"[default: {SAVEPOINTS_KEPT} with --max-age or --every]",
)
@click.option(
    "--max-age",
    type=DurationType(),
    help="Also delete savepoints there that are older, but never the newest: 36h, 7d.",
)
@click.option(
    "--every",
    type=DurationType(),
    help="Take a savepoint at this interval until the command is ended: 90s, 15m, 6h.",
)
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write metrics of the savepoints into this local file, as node_exporter's textfile "
    "collector reads them: a name that ends in .prom.",
)
@dry_run_option
@storage_option
@output_option
def savepoint(
    checkpoint: str,
    destination: str,
    version: int | None,
    form: SavepointForm,
    keep: int | None,
    max_age: timedelta | None,
    every: timedelta | None,
    metrics: Path | None,
    dry_run: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Copy a query's state and position to a new directory that is yours.

    The query may run meanwhile. A savepoint refers to nothing outside of it: move it, copy it,
    delete it as any directory. Only a claim, and the schedule that took it (--keep, --max-age,
    --every), delete one.

    \b
    statestore savepoint /data/checkpoint /backup/before-upgrade
    statestore savepoint /data/checkpoint s3://bucket/savepoint --form native
    statestore savepoint /data/checkpoint /backup/counts --keep 5 --max-age 7d
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint
    from statestore.api.schedule import Every

    it = Checkpoint(checkpoint, storage_options=storage_options)
    if (keep, max_age, every) != (None, None, None):
        if version is not None:
            raise click.UsageError("--version is of one savepoint: leave out --keep and the like")
        take = partial(
            _retain,
            it,
            destination,
            None if dry_run else metrics,
            form=form,
            keep=keep or SAVEPOINTS_KEPT,
            max_age=max_age,
            output=output,
        )
        if every is None or dry_run:
            take(dry_run=dry_run)
        else:
            _repeat(Every(every, destination), it, take)
        return
    if metrics is not None:
        raise click.UsageError("--metrics goes with --keep, --max-age or --every")
    with progress_bar("savepoint", output=output) as progress:
        result = it.savepoint(
            destination, version=version, form=form, dry_run=dry_run, progress=progress
        )
    info = result.made.info if result.done else None
    if output == "json":
        print_json({**result.fields(), "savepoint": info and asdict(info)})
        return
    print_result(result, output=output, done=None if info is None else _taken(info))


def _retain(
    it: Checkpoint,
    destination: str,
    metrics: Path | None,
    *,
    output: str,
    dry_run: bool = False,
    **how: Any,
) -> None:
    """Take a savepoint into a directory, print what was done, and write metrics of it."""
    try:
        with progress_bar("savepoint", output=output) as progress:
            result = it.retain_savepoint(destination, dry_run=dry_run, progress=progress, **how)
    except BaseException:  # also the end of the command, which no other error may take the place of
        try:
            _write_metrics(metrics, it, destination, has_failed=True)
        except StorageError as error:
            with suppress(OSError):
                click.echo(error, err=True)
        raise
    try:
        print_result(result, output=output)
    finally:  # whoever reads the output may be gone
        _write_metrics(metrics, it, destination, has_failed=False)


def _write_metrics(
    path: Path | None, it: Checkpoint, destination: str, *, has_failed: bool
) -> None:
    """Replace a file of metrics, if one is asked for; a collector may read it at any moment."""
    if path is None:
        return
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()

    def tell(name: str, help_text: str, value: float) -> None:
        gauge = Gauge(f"statestore_savepoints_{name}", help_text, ["checkpoint"], registry=registry)
        gauge.labels(it.uri).set(value)

    tell(
        "attempted_seconds",
        "When the last attempt ended, seconds since 1970.",
        SystemClock().now_ms() / 1000,
    )
    try:
        there = [one.info for one in it.savepoints(destination)]
    except StateStoreError:
        has_failed = True
    else:
        tell("kept", "Whole savepoints in the directory.", len(there))
        now_ms = SystemClock().now_ms()
        past = [info for info in there if info.created_ms <= now_ms]
        if past:  # else the age would be hidden by one of a clock that was ahead
            newest = max(past, key=lambda info: info.created_ms)
            taken = newest.created_ms / 1000
            tell("newest_seconds", "When the newest one was taken, seconds since 1970.", taken)
            tell("newest_bytes", "Bytes of state of the newest one.", newest.state_bytes)
    tell("failed", "Whether the last attempt failed.", has_failed)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise StorageError(
            "cannot write the metrics of savepoints",
            file=str(path),
            reason=os.strerror(error.errno or 0),
            to_fix="name a local file, in a directory that exists and may be written to",
        ) from error


def _repeat(every: Every, it: Checkpoint, take: Callable[[], None]) -> None:
    """Take savepoints until Ctrl-C; what fails is printed, and tried again."""
    wait_ms = 0
    with suppress(KeyboardInterrupt):
        while True:
            every.wait(wait_ms, time.sleep)
            try:
                if wait_ms := every.due_in_ms(it):
                    continue
                _take_whole(take)
                wait_ms = every.due_in_ms(it) or every.interval_ms
            except click.Abort:
                raise
            except Exception as error:  # as no thread to be had: the next attempt may have it
                if isinstance(error, OSError) and error.errno == errno.EPIPE:
                    raise
                is_known = isinstance(error, StateStoreError | OSError)
                with suppress(OSError):  # the disk of a log may be full, and have space again
                    click.echo(error if is_known else traceback.format_exc(), err=True)
                wait_ms = every.retry_ms


def _take_whole(take: Callable[[], None]) -> None:
    try:
        take()
    except KeyboardInterrupt as error:  # one was begun and is not there
        raise click.Abort from error


def _taken(info: SavepointInfo) -> str:
    rows = "" if info.num_rows is None else f", {format_count(info.num_rows, 'row')}"
    return f"Done: a {info.form} savepoint of {format_bytes(info.state_bytes)}{rows}."


@command()
@checkpoint_argument("source")
@checkpoint_argument("new")
@version_option
@click.option(
    "--backend",
    type=click.Choice([name for name in PROVIDERS if name not in IN_DRIVER_MEMORY]),
    help="State backend.  [default: as it was; from Spark's own providers, filesystem for "
    "HDFS-backed and rocksdb for RocksDB]",
)
@click.option(
    "--num-partitions",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    help="Number of state partitions, 1 to 32768. For one that does not divide the number of key "
    "groups, every row is hashed anew.  [default: as it was]",
)
@click.option(
    "--map-operator",
    "map_operators",
    metavar="OLD:NEW",
    multiple=True,
    callback=lambda *given: _pairs(given[2], "--map-operator takes OLD:NEW, two operator IDs"),
    help="Operator whose number changed; may be repeated.",
)
@click.option(
    "--drop-operator",
    "drop_operators",
    metavar="OLD",
    type=int,
    multiple=True,
    help="Operator that the query no longer has; its state is left behind. May be repeated.",
)
@click.option(
    "--add-operator",
    "add_operators",
    metavar="NEW:NAME",
    multiple=True,
    callback=lambda *given: _pairs(given[2], "--add-operator takes NEW:NAME, such as 1:dedupe"),
    help="Operator that begins with empty state, by Spark's short name, not transformWithState. "
    "May be repeated.",
)
@click.option(
    "--new-query-id",
    is_flag=True,
    help="Give the query a new ID, so that sinks take it for another one.",
)
@click.option(
    "--claim/--no-claim",
    help="Move the savepoint, so that it is gone afterwards, or copy it.  [default: no-claim]",
)
@dry_run_option
@storage_option
@output_option
def restore(
    source: str,
    new: str,
    version: int | None,
    backend: str | None,
    num_partitions: int | None,
    claim: bool,
    map_operators: dict[int, str],
    drop_operators: tuple[int, ...],
    add_operators: dict[int, str],
    new_query_id: bool,
    dry_run: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Make a new checkpoint of a savepoint or a checkpoint, also of Spark's own providers.

    Start the query with NEW as its checkpointLocation. It may have another state backend, another
    number of state partitions, and other code, as long as its state keeps its schema. SOURCE is
    only read, unless it is claimed; where it is a checkpoint, its query must not run. Repeat a
    restore that was killed: until it is whole, no query starts from NEW. From an older --version
    the query repeats the batches after it, also those that a sink has.

    \b
    statestore restore /backup/before-upgrade /data/new
    statestore restore /data/checkpoint-of-spark /data/new --backend rocksdb --dry-run
    statestore restore /backup/x /data/new --backend rocksdb --num-partitions 8
    statestore restore /data/checkpoint /data/new --version 120
    statestore restore /backup/x /data/new --map-operator 0:1 --add-operator 0:dedupe
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    for old, number in map_operators.items():
        if not number.isdecimal():
            usage = f"--map-operator takes OLD:NEW, two operator IDs: not '{old}:{number}'"
            raise click.UsageError(usage)
    it = Checkpoint(source, storage_options=storage_options)
    with progress_bar("restore", output=output) as progress:
        result = it.restore(
            new,
            version=version,
            backend=backend,
            num_partitions=num_partitions,
            map_operators={old: int(number) for old, number in map_operators.items()},
            drop_operators=drop_operators,
            add_operators=add_operators,
            new_query_id=new_query_id,
            claim=claim,
            dry_run=dry_run,
            progress=progress,
        )
    print_result(result, output=output)


@command()
@checkpoint_argument()
@checkpoint_argument("new")
@version_option
@dry_run_option
@storage_option
@output_option
def branch(
    checkpoint: str,
    new: str,
    version: int | None,
    dry_run: bool,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Make a second checkpoint that shares the state files of the first.

    The query may run meanwhile. Neither query can harm the other's state. To drop the branch,
    delete its directory. A local file system shares your own files by hard links; an S3 storage
    copies the files in the server.

    \b
    statestore branch /data/checkpoint /data/experiment
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    with progress_bar("branch", output=output) as progress:
        result = it.branch(new, version=version, dry_run=dry_run, progress=progress)
    print_result(result, output=output)


def _pairs(given: tuple[str, ...], usage: str) -> dict[int, str]:
    pairs: dict[int, str] = {}
    for pair in given:
        number, _, rest = pair.partition(":")
        if not number.isdecimal() or not rest:
            raise click.UsageError(f"{usage}: not {pair!r}")
        if int(number) in pairs:
            raise click.UsageError(f"{usage}: operator {int(number)} is given twice")
        pairs[int(number)] = rest
    return pairs
