"""Commands that copy a query's state: savepoint, restore, branch."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.output import (
    NOTHING_CHANGED,
    checkpoint_argument,
    conf_option,
    format_bytes,
    output_option,
    print_json,
    progress,
    yes_option,
)
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.core.providers import PROVIDERS
from statestore.operations.operator_map import OperatorMap
from statestore.operations.savepoint.branch import plan_branch
from statestore.operations.savepoint.restore import plan_restore
from statestore.operations.savepoint.savepoint import take_savepoint

if TYPE_CHECKING:
    from statestore.core.options import StateStoreOptions
    from statestore.operations.savepoint.branch import Branch
    from statestore.operations.savepoint.restore import Restore
    from statestore.operations.savepoint.savepoint import SavepointForm


@click.command()
@checkpoint_argument()
@click.argument("destination")
@click.option("--version", type=int, help="State version.  [default: the newest committed one]")
@click.option(
    "--canonical",
    "form",
    flag_value="canonical",
    default="canonical",
    help="Full states that every state backend can be restored from.  [default]",
)
@click.option("--native", "form", flag_value="native", help="The files of the version as they are.")
@conf_option
@output_option
def savepoint(
    checkpoint: str,
    destination: str,
    version: int | None,
    form: SavepointForm,
    options: StateStoreOptions,
    output: str,
) -> None:
    """Copy a query's state and position, whole, to a new directory that is yours.

    The query may run meanwhile. Nothing of this package ever deletes a savepoint, and it refers to
    nothing outside of it: move it, copy it, delete it as any directory.

    \b
    statestore savepoint /data/checkpoint /backup/before-upgrade
    statestore savepoint /data/checkpoint s3://bucket/savepoint --native
    """  # noqa: D301
    with progress("savepoint", output=output) as report:
        taken = take_savepoint(
            checkpoint, destination, version=version, form=form, options=options, report=report
        )
    if output == "json":
        print_json({"destination": destination, **asdict(taken)})
        return
    _show({"savepoint": destination, **asdict(taken)})


@click.command()
@checkpoint_argument("savepoint")
@checkpoint_argument()
@click.option(
    "--backend",
    type=click.Choice([name for name in PROVIDERS if name != "heap"]),
    help="State backend.  [default: the one the savepoint was taken of]",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    help="Number of state partitions, 1 to 32768. For one that does not divide the number of key "
    "groups every row is hashed anew.  [default: as it was]",
)
@click.option(
    "--claim/--no-claim",
    "claims",
    help="Move the savepoint, which is gone then, or copy it.  [default: no-claim]",
)
@click.option(
    "--map-operator",
    "moved",
    metavar="OLD:NEW",
    multiple=True,
    callback=lambda *given: _pairs(given[2], "--map-operator takes OLD:NEW, two operator IDs"),
    help="Operator whose number changed; may be repeated.",
)
@click.option(
    "--drop-operator",
    "dropped",
    metavar="OLD",
    type=int,
    multiple=True,
    help="Operator that the query no longer has; its state is left behind. May be repeated.",
)
@click.option(
    "--add-operator",
    "added",
    metavar="NEW:NAME",
    multiple=True,
    callback=lambda *given: _pairs(given[2], "--add-operator takes NEW:NAME, such as 1:dedupe"),
    help="Operator that begins with empty state, by Spark's short name. May be repeated.",
)
@click.option("--new-query-id", is_flag=True, help="A query beside the one that was, for sinks.")
@yes_option
@conf_option
@output_option
def restore(
    savepoint: str,
    checkpoint: str,
    backend: str | None,
    partitions: int | None,
    claims: bool,
    moved: dict[int, str],
    dropped: tuple[int, ...],
    added: dict[int, str],
    new_query_id: bool,
    yes: bool,
    options: StateStoreOptions,
    output: str,
) -> None:
    """Make a new checkpoint of a savepoint; start the query with it as its checkpointLocation.

    The query may have another state backend, another number of state partitions, and other code, as
    long as its state keeps its schema. Shows what would be done; --yes does it. A restore that was
    killed is repeated: until it is whole, no query starts from the checkpoint.

    \b
    statestore restore /backup/before-upgrade /data/new --yes
    statestore restore /backup/x /data/new --backend rocksdb --partitions 8 --yes
    statestore restore /backup/x /data/new --map-operator 0:1 --add-operator 0:dedupe --yes
    """  # noqa: D301
    if not all(new.isdecimal() for new in moved.values()):
        raise click.UsageError("--map-operator takes OLD:NEW, two operator IDs")
    operators = OperatorMap(
        {old: int(new) for old, new in moved.items()}, frozenset(dropped), added
    )
    with plan_restore(
        savepoint,
        checkpoint,
        backend=backend,
        num_partitions=partitions,
        operators=operators,
        claims=claims,
        keeps_query_id=not new_query_id,
        options=options,
    ) as plan:
        _run(plan, _of_restore(plan), yes=yes, output=output)


@click.command()
@checkpoint_argument()
@checkpoint_argument("new")
@click.option("--version", type=int, help="State version.  [default: the newest committed one]")
@yes_option
@conf_option
@output_option
def branch(
    checkpoint: str,
    new: str,
    version: int | None,
    yes: bool,
    options: StateStoreOptions,
    output: str,
) -> None:
    """Make a second checkpoint of a query's state, sharing its files, to try new code on it.

    The query may run meanwhile. Neither query can harm the other's state: drop the branch by
    deleting its directory. On one local file system files are shared by hard links, on one S3
    storage they are copied by the server. Shows what would be done; --yes does it.

    \b
    statestore branch /data/checkpoint /data/experiment --yes
    """  # noqa: D301
    with plan_branch(checkpoint, new, version=version, options=options) as plan:
        _run(plan, _of_branch(plan), yes=yes, output=output)


def _run(plan: Restore | Branch, fields: dict[str, Any], *, yes: bool, output: str) -> None:
    if output == "text":
        _show(fields)
    if yes:
        with progress(type(plan).__name__.lower(), output=output) as report:
            plan.run(report)
    if output == "json":
        print_json({**fields, "done": yes})
    else:
        click.echo("Done." if yes else NOTHING_CHANGED)


def _of_restore(plan: Restore) -> dict[str, Any]:
    operators = {f"operator {old}": new for old, new in plan.operators.kept.items()}
    before = plan.version.checkpoint.operators
    dropped = [f"operator {info.id}" for info in before if info.id not in plan.operators.kept]
    return {
        "savepoint": plan.version.checkpoint.uri,
        "checkpoint": plan.target,
        "version": plan.version.version,
        "query_id": (plan.keeps_query_id and plan.savepoint.query_id) or "new",
        "backend": plan.backend,
        "num_partitions": plan.num_partitions,
        **operators,
        **dict.fromkeys(dropped, "dropped"),
        **{f"new operator {new}": f"{name}, empty" for new, name in plan.operators.added.items()},
        "state_files": _how(plan),
        "state_bytes": plan.state_bytes,
        "afterwards": f"the savepoint {'is deleted' if plan.claims else 'stays'}",
    }


def _how(plan: Restore) -> str:
    if any(plan.is_rehashed(*store) for store in plan.store_names):
        return "written anew, every row hashed anew"
    if not plan.is_copied:
        return "written anew"
    return "moved" if plan.claims else "copied"


def _of_branch(plan: Branch) -> dict[str, Any]:
    return {
        "checkpoint": plan.version.checkpoint.uri,
        "branch": plan.target,
        "version": plan.version.version,
        "state_bytes": plan.version.state_bytes(),
    }


def _show(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        shown = "-" if value == "" else str(value)
        if name.endswith("_bytes"):
            shown = format_bytes(value)
        if isinstance(value, tuple):
            shown = ", ".join(value)
        if name != "created_ms":
            click.echo(f"{name.removeprefix('num_').replace('_', ' '):<18} {shown}")


def _pairs(given: tuple[str, ...], usage: str) -> dict[int, str]:
    pairs: dict[int, str] = {}
    for pair in given:
        number, _, rest = pair.partition(":")
        if not number.isdecimal() or not rest:
            raise click.UsageError(usage)
        pairs[int(number)] = rest
    return pairs
