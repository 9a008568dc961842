"""Commands that show checkpoints as pages: report, ui."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from statestore.cli.output import (
    checkpoint_argument,
    checkpoints_below,
    command,
    limit_of,
    output_option,
    print_json,
    storage_option,
)
from statestore.core.clock import SystemClock
from statestore.core.errors import NotFoundError, StateStoreError
from statestore.core.text import escape_controls, format_count
from statestore.io.storage import resolve_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statestore.api.checkpoint import Checkpoint
    from statestore.report.facts import Facts

_LOOPBACK = "127.0.0.1"

_limit_option = limit_of("versions, the newest; 0 for all", 100)
_deep_option = click.option(
    "--deep",
    is_flag=True,
    help="Read every row: for the heaviest keys of large state, and all that verify --deep checks.",
)
_savepoints_option = click.option(
    "--savepoints",
    metavar="DIRECTORY",
    help="Look here for savepoints and branches of the query.",
)


@command()
@checkpoint_argument()
@click.option(
    "--to",
    metavar="FILE",
    help="HTML file to write, in place of one there; for several checkpoints, the directory of "
    "their pages.",
)
@_limit_option
@_deep_option
@_savepoints_option
@storage_option
@output_option
def report(
    checkpoint: str,
    to: str | None,
    limit: int,
    deep: bool,
    savepoints: str | None,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Write a page about a checkpoint, or about each one below a directory.

    A page is one HTML file that needs no network.

    It shows the operators and the history of versions. It shows how rows, bytes and commit times
    are spread over state partitions and key groups, and the heaviest keys. It names damaged files
    and says what to do. The command also reads checkpoints of Spark's own providers. It changes
    nothing.

    \b
    Examples:
      statestore report /data/checkpoint --to page.html
      statestore report /data/checkpoint --deep --output json
      statestore report /data/pipeline-storage --to pages
    """  # noqa: D301 (click reads the backspace)
    from statestore.api.checkpoint import Checkpoint

    if to is None and output == "text":
        raise click.UsageError("say where to write the page: --to page.html; or --output json")

    def look(it: Checkpoint) -> Facts:
        return it.report(limit=limit or None, deep=deep, savepoints=savepoints)

    if several := checkpoints_below(checkpoint, storage_options):
        _report_each(several, look, to, output)
        return
    it = Checkpoint(checkpoint, storage_options=storage_options)
    facts = it.report(to, limit=limit or None, deep=deep, savepoints=savepoints)
    if output == "json":
        print_json(asdict(facts))
        return
    count = format_count(len(facts.advice), "piece of advice", "pieces of advice")
    click.echo(f"{to}: version {facts.newest_version}, {count}")
    if not facts.advice:
        click.echo(facts.all_is_well)
    for advice in facts.advice:
        click.echo(escape_controls(f"{advice.severity}: {advice.text}"))
        if advice.command:
            click.echo(f"  {escape_controls(advice.command)}")


def _report_each(
    several: Sequence[Checkpoint], look: Callable[[Checkpoint], Facts], to: str | None, output: str
) -> None:
    """Write a page for each of several checkpoints, and `index.html`, which leads to them."""
    from statestore.report.page import check_writable, write_pages

    if to is not None:
        with suppress(OSError):
            Path(to).mkdir(parents=True, exist_ok=True)
        check_writable(Path(to, "index.html"))
    looked: list[tuple[str, Facts | None, str | None]] = []
    for it in several:
        try:
            looked.append((it.uri, look(it), None))
        except StateStoreError as error:
            looked.append((it.uri, None, str(error)))
    if to is not None:
        write_pages(looked, to)
    if output == "json":
        print_json(
            {
                "checkpoints": [
                    {"uri": uri, "problem": problem} if facts is None else asdict(facts)
                    for uri, facts, problem in looked
                ]
            }
        )
        return
    for uri, facts, problem in looked:
        count = (
            ""
            if facts is None
            else format_count(len(facts.advice), "piece of advice", "pieces of advice")
        )
        click.echo(escape_controls(f"{uri}: {problem or count}"))
    click.echo(f"{to}/index.html")


@command()
@click.argument("checkpoints", metavar="CHECKPOINT...", nargs=-1, required=True)
@click.option("--host", default=_LOOPBACK, show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port.  [default: any that is free]"
)
@_limit_option
@_deep_option
@_savepoints_option
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let the page do savepoint, branch, rescale and repair, each after its plan "
    "and a confirmation; without it the page shows plans and commands.",
)
@storage_option
def ui(
    checkpoints: tuple[str, ...],
    host: str,
    port: int,
    limit: int,
    deep: bool,
    savepoints: str | None,
    allow_changes: bool,
    storage_options: dict[str, str],
) -> None:
    """Serve the pages of checkpoints to this machine's browser, always as they are now.

    A directory stands for the checkpoints below it. The pages are those of report, and follow the
    query: batch, watermark, lag, offsets, rows per second. They answer SQL, show a key over the
    versions, and plan operations. The address that is printed has a token, without which nothing is
    shown. Only this machine can reach it, unless --host says otherwise. Nothing can be changed,
    unless --allow-changes says so.

    \b
    Examples:
      statestore ui /data/checkpoint
      statestore ui /data/one /data/other s3://bucket/third --port 8080
      statestore ui /data/checkpoint --allow-changes
    """  # noqa: D301 (click reads the backspace)
    from statestore.ui.server import serve

    found = [one for uri in checkpoints for one in _to_serve(uri, storage_options)]
    status: object = 0
    try:
        with suppress(KeyboardInterrupt):
            serve(
                found,
                lambda it: it.report(limit=limit or None, deep=deep, savepoints=savepoints),
                host=host,
                port=port,
                clock=SystemClock(),
                announce=lambda address: click.echo(f"{address}\nCtrl-C ends it."),
                allows_changes=allow_changes,
                storage_options=storage_options,
            )
    except SystemExit as end:  # of SIGTERM or SIGHUP
        status = end.code
    _end_beside_looks(status)


def _end_beside_looks(status: object) -> None:
    """End the process now, though a thread of it may look at a checkpoint: that may take hours."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    if all(one.daemon for one in others):
        raise SystemExit(status)
    sys.stdout.flush()
    atexit._run_exitfuncs()  # noqa: SLF001 (directories for temporary files go by one)
    os._exit(status if isinstance(status, int) else 1)


def _to_serve(uri: str, storage_options: dict[str, str]) -> Sequence[Checkpoint]:
    """Return the checkpoints at or below a directory; without one the directory, with a warning.

    Raises:
        NotFoundError: The directory does not exist. One of an object store always may.
    """
    from statestore.api.checkpoint import Checkpoint

    try:
        return Checkpoint.find(uri, storage_options=storage_options)
    except NotFoundError:
        it = Checkpoint(uri, storage_options=storage_options)
        if scheme_of(it.uri) == "file" and not Path(resolve_path(it.uri)).exists():
            raise NotFoundError(
                "the directory does not exist",
                kind="checkpoint-not-found",
                directory=it.uri,
                to_fix="name the directory that the query has as its checkpointLocation, or one "
                "above it; for a query that has not begun yet, make the directory first",
            ) from None
        click.echo(
            f"Warning: there is no checkpoint at or below {it.uri}. Its page comes when a query "
            "begins with it as its checkpointLocation; for those that come below it, start this "
            "command again.",
            err=True,
        )
        return [it]
