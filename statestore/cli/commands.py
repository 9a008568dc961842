"""The commands of `statestore`; every one has help, and errors of ours end it with status 1."""

from __future__ import annotations

import difflib
import errno
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from types import FrameType
from typing import Any

import click

from statestore.cli.output import (
    OneValueCommand,
    output_option,
    print_json,
    print_table,
    storage_option,
)
from statestore.core.errors import StateStoreError
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS
from statestore.core.version import SPARK_MINORS, __version__
from statestore.io.shim_jar import find_jar
from statestore.operations.database import QUERY_INTERRUPTED

_ELSEWHERE: dict[str, str] = {
    "branch": "statestore.cli.savepoints",
    "compact": "statestore.cli.upkeep",
    "convert": "statestore.cli.converting",
    "demo": "statestore.cli.demo",
    "diff": "statestore.cli.inspecting",
    "drop": "statestore.cli.trial",
    "edit": "statestore.cli.writing",
    "forget": "statestore.cli.writing",
    "expire": "statestore.cli.upkeep",
    "explain": "statestore.cli.explaining",
    "history": "statestore.cli.listing",
    "inspect": "statestore.cli.inspecting",
    "list": "statestore.cli.listing:list_command",
    "promote": "statestore.cli.trial",
    "read": "statestore.cli.inspecting",
    "repair": "statestore.cli.upkeep",
    "report": "statestore.cli.pages",
    "rescale": "statestore.cli.rescale",
    "restore": "statestore.cli.savepoints",
    "savepoint": "statestore.cli.savepoints",
    "sql": "statestore.cli.sql",
    "transform": "statestore.cli.writing",
    "try": "statestore.cli.trial:try_command",
    "ui": "statestore.cli.pages",
    "verify": "statestore.cli.upkeep",
}
"""Module of every command that is not in this one, imported when it is used; `module:name` where
the function is not called as the command is."""


_LONGEST_SINGULAR = 3
"""Letters of the longest name that is not taken for a plural."""


@contextmanager
def _cleaned_up_when_terminated() -> Iterator[None]:
    """Leave a block by an exception when the process is asked to end, as Ctrl-C does.

    So it is by SIGTERM, and by SIGHUP when its terminal is closed.
    """
    told: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # what is being cleaned up is not to be left half
        told.append(128 + number)
        raise SystemExit(told[0])

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it ignored
        before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    except BaseException as error:
        if told:  # whatever DuckDB has raised in its place
            raise SystemExit(told[0]) from error
        raise
    finally:
        if not told:
            for each, handler in before.items():
                signal.signal(each, handler)


class _Group(click.Group):
    """A group that imports its commands late and reports errors of the package as text."""

    command_class = OneValueCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Click knows the commands of this module only.
        is_known = args[0].startswith("-") or self.get_command(ctx, _singular(args[0]))
        if not is_known and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = _ELSEWHERE[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click cuts what a command does off after some words.
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, " ".join((command.help or "").partition("\n\n")[0].split()))
                    for name, command in commands.items()
                    if command is not None and not command.hidden
                ]
            )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _cleaned_up_when_terminated():
                return super().invoke(ctx)
        except RuntimeError as error:
            if str(error) != QUERY_INTERRUPTED:
                raise
            raise KeyboardInterrupt from error
        except StateStoreError as error:
            more = f"More: statestore explain {error.kind}"
            raise click.ClickException(f"{error}\n{more}") from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly
            where = error.filename or "the output"
            raise click.ClickException(f"{where}: {error.strerror}") from error


def _singular(name: str) -> str:
    """Return a name of a command or option by which its plural goes as well."""
    return name.removesuffix("s") if len(name) > _LONGEST_SINGULAR else name


@click.group(
    cls=_Group,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _singular,
    },
    epilog="A message begins with its kind in brackets: statestore explain KIND says what it "
    "means, whether anything is lost, and what to do; statestore explain options describes every "
    "option of a query.\n\n"
    "Commands and options may be written in singular or plural. The shell completes them "
    'after: eval "$(_STATESTORE_COMPLETE=bash_source statestore)", or zsh_source, fish_source.',
)
@click.version_option(
    __version__, "-v", "--version", message="%(version)s", help="Print the version and exit."
)
def cli() -> None:
    """State stores of Spark Structured Streaming, owned by Python."""


@cli.command()
@click.pass_context
@click.option("--storage", metavar="URI", help="Where state or checkpoints are to be.")
@click.option(
    "--backend",
    type=click.Choice(list(PROVIDERS)),
    help="State backend of the query.  [default: that of spark-defaults.conf, else any]",
)
@click.option(
    "--python",
    metavar="PATH",
    help="Python of the engines.  [default: of spark-defaults.conf, $PYSPARK_PYTHON, this one]",
)
@click.option(
    "--spark-submit",
    metavar="ARGUMENTS",
    help="Check the executors of an application in place of this machine. ARGUMENTS are those of "
    "the query, without its program.",
)
@storage_option
@output_option
def doctor(
    ctx: click.Context,
    storage: str | None,
    backend: str | None,
    python: str | None,
    spark_submit: str | None,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Check what a query needs on this machine, and say what to fix.

    It starts Java, imports pyspark, opens the jar, and starts and ends an engine. It writes,
    reads, lists and deletes a small file on the storage, on S3 also one of 16 MiB: that of
    --storage, or else the directory for temporary files. Without --backend it checks the state
    backend that spark-defaults.conf names (in SPARK_CONF_DIR, or else in SPARK_HOME). Where
    that names none, what only one backend needs is shown too: SKIP and not FAIL where it is
    missing. Exit status 0 when all is well, 1 when there is something to fix.

    \b
    Examples:
      statestore doctor
      statestore doctor --backend rocksdb --storage s3://bucket/checkpoints
      statestore doctor --spark-submit "--master yarn --jars shim.jar"
    """  # noqa: D301 (click reads the backspace)
    # Imported here because no other command needs pyarrow, which takes long.
    from statestore.api.reaching import Reach
    from statestore.cli.diagnosis import Diagnosis, find_backend
    from statestore.io.storage import absolute_uri

    if spark_submit is not None:
        if python:
            raise click.UsageError("--python is spark.pyspark.python in --spark-submit")
        ctx.exit(_doctor_of_cluster(spark_submit, backend, storage, storage_options, output))
    found = None if backend else find_backend()
    if found is not None:
        backend, path = found
        click.echo(f"state backend {backend}, of {path}", err=True)
    if backend in IN_DRIVER_MEMORY and storage:
        raise click.UsageError(
            f"--backend {backend} keeps state in checkpoint memory: no --storage"
        )
    if storage is not None:
        storage = absolute_uri(storage)
    elif backend not in IN_DRIVER_MEMORY:
        storage = tempfile.gettempdir()
    checks = []
    # The heap backend has no storage; the options are read all the same.
    reach = Reach(storage or tempfile.gettempdir(), storage_options, None)
    with reach.using():
        for check in Diagnosis(backend, storage, python, reach.place.options).run():
            checks.append(check)
            if output == "text":
                fix = f". To fix: {check.to_fix}" if check.to_fix else ""
                click.echo(f"{check.status.upper():<5}{check.name}: {check.detail}{fix}")
    is_ok = all(check.status != "fail" for check in checks)
    if output == "json":
        print_json({"ok": is_ok, "checks": [asdict(check) for check in checks]})
    ctx.exit(0 if is_ok else 1)


def _doctor_of_cluster(
    arguments: str, backend: str | None, storage: str | None, options: dict[str, str], output: str
) -> int:
    """Check every executor; return the exit status."""
    from statestore.cli.cluster_diagnosis import check_executors

    executors = check_executors(arguments, backend, storage, options)
    found = [(of, check) for of in executors for check in of.checks]
    is_ok = all(check.status != "fail" for _, check in found)
    if output == "json":
        print_json({"ok": is_ok, "executors": [asdict(of) for of in executors]})
        return 0 if is_ok else 1
    names = list(dict.fromkeys(check.name for _, check in found))
    rows: list[list[object]] = [
        [f"{of.host}, process {of.executor}", *(statuses.get(name, "") for name in names)]
        for of in executors
        for statuses in [{check.name: check.status.upper() for check in of.checks}]
    ]
    print_table(["executor", *names], rows)
    for of, check in found:
        if check.status == "fail":
            fix = f". To fix: {check.to_fix}" if check.to_fix else ""
            click.echo(f"FAIL {check.name} on {of.host}: {check.detail}{fix}")
    return 0 if is_ok else 1


@cli.command()
@click.option(
    "--spark",
    type=click.Choice(SPARK_MINORS),
    help="Spark of the cluster.  [default: that of $SPARK_HOME, or of this Python's pyspark]",
)
def jar(spark: str | None) -> None:
    """Print the path of the jar that goes into spark.jars: there is one for each Spark minor.

    \b
    Examples:
      spark-submit --jars "$(statestore jar)" query.py
      spark-submit --jars "$(statestore jar --spark 4.1)" query.py
    """  # noqa: D301 (click reads the backspace)
    click.echo(find_jar(spark=spark))
