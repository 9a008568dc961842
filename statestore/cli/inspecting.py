"""Commands that look into state: read, inspect, diff."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from statestore.cli.output import (
    checkpoint_argument,
    command,
    console,
    is_given,
    limit_option,
    output_option,
    print_json,
    print_rows,
    print_table,
    print_written,
    progress_bar,
    rows_option,
    storage_option,
    to_option,
    version_option,
)
from statestore.cli.rows_to_file import write_rows
from statestore.codec.joined_trailers import add_counts
from statestore.core.text import escape_controls, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from statestore.operations.reading.inspection import StoreDescription

_SPREAD_BARS = 16
_VARIABLES: dict[str | None, str] = {
    "ValueState": "value state",
    "ListState": "list state",
    "MapState": "map state",
    "TimerState": "timers",
}


_where_option = click.option(
    "--where",
    metavar="SQL",
    help='Only rows for which this condition holds, such as "shop = \'x\'" or "value.count > 3".',
)


@command()
@checkpoint_argument()
@rows_option
@version_option
@click.option(
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    help="Only this state partition; may be repeated.",
)
@click.option(
    "--column",
    "columns",
    metavar="NAME",
    multiple=True,
    help="Only this column, or field of one, such as key.shop; may be repeated.",
)
@_where_option
@click.option("--flatten", is_flag=True, help="Print every field as a column of its own.")
@to_option
@limit_option
@storage_option
@output_option
def read(
    checkpoint: str,
    rows: str | None,
    version: int | None,
    partitions: tuple[int, ...],
    columns: tuple[str, ...],
    where: str | None,
    flatten: bool,
    to: str | None,
    limit: int,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Print rows of state, or write them to a file.

    \b
    statestore read /data/checkpoint --limit 5
    statestore read /data/checkpoint --rows left-keyToNumValues --output json
    statestore read /data/checkpoint --rows 1/clicks
    statestore read s3://bucket/checkpoint --version 12 --to state.parquet
    statestore read /data/checkpoint --column key.shop --column value.count
    statestore read /data/checkpoint --where "shop = 'x' and key.window.start < '2024-01-31 12:00'"
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    it = Checkpoint(checkpoint, storage_options=storage_options)
    read_some = partial(
        it.rows(rows, version=version).read_batches,
        partitions=partitions or None,
        columns=columns or None,
        filter=where,
        flatten=flatten,
    )
    if to is None:
        with closing(read_some()) as batches:
            print_rows(batches, limit, output)
        return
    with (
        progress_bar("reading rows", output=output) as progress,
        closing(read_some(progress=progress)) as batches,
    ):
        num_rows = write_rows(batches, to)
    print_written(num_rows, to, output)


@command()
@checkpoint_argument()
@click.option(
    "--find",
    "key",
    metavar="JSON",
    help='Show the rows of a key or of its first columns, as ["a", 3]; a window as [start, end].',
)
@click.option(
    "--largest", metavar="N", type=click.IntRange(1), help="Show the N keys with the most bytes."
)
@click.option(
    "--most-changed",
    metavar="N",
    type=click.IntRange(1),
    help="Show the N keys that were written or deleted in most of the 20 newest versions.",
)
@click.option("--key-groups", is_flag=True, help="Show how rows and bytes spread over key groups.")
@rows_option
@version_option
@limit_option
@storage_option
@output_option
def inspect(
    checkpoint: str,
    rows: str | None,
    version: int | None,
    key: str | None,
    largest: int | None,
    most_changed: int | None,
    key_groups: bool,
    limit: int,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Show operators, stores, schemas and row counts; or rows by key, or the largest keys.

    It lists every store with the addresses of its rows, and reads no row for that. Where the
    columns in --find decide on one state partition, only that one is read. To show rows by a
    condition use the command read.

    \b
    statestore inspect /data/checkpoint
    statestore inspect /data/checkpoint --find '["user-17"]'
    statestore inspect /data/checkpoint --find '[["2024-01-31T12:00Z", "2024-01-31T13:00Z"], "x"]'
    statestore inspect /data/checkpoint --rows 1/clicks --largest 10
    statestore inspect /data/checkpoint --rows 1/clicks --most-changed 10
    statestore inspect /data/checkpoint --key-groups --output json
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    asked = (key is not None, largest is not None, most_changed is not None, key_groups)
    if sum(asked) > 1:
        raise click.UsageError(
            "--find, --largest, --most-changed and --key-groups exclude each other"
        )
    if key is None and is_given("limit"):
        raise click.UsageError("--limit goes with --find")
    it = Checkpoint(checkpoint, storage_options=storage_options)
    of = it.rows(rows, version=version)
    if key is not None:
        print_rows(iter(of.find(_parse_key(key)).to_batches()), limit, output)
    elif largest is not None:
        print_rows(iter(of.largest(min(largest, sys.maxsize)).to_batches()), 0, output)
    elif most_changed is not None:
        print_rows(iter(of.most_changed(min(most_changed, sys.maxsize)).to_batches()), 0, output)
    elif key_groups:
        _print_key_groups(of.key_groups(), output)
    elif rows is not None:
        raise click.UsageError("--rows goes with --find, --largest, --most-changed or --key-groups")
    else:
        _print_stores(it.inspect(version=version), output)


@command()
@checkpoint_argument("old")
@click.argument("new", required=False)
@click.option(
    "--old-version", type=int, metavar="V", help="Version of OLD.  [default: newest committed]"
)
@click.option(
    "--new-version", type=int, metavar="V", help="Version of NEW.  [default: newest committed]"
)
@rows_option
@click.option("--counts", is_flag=True, help="Print only how many rows differ.")
@limit_option
@storage_option
@output_option
@click.pass_context
def diff(
    ctx: click.Context,
    old: str,
    new: str | None,
    rows: str | None,
    old_version: int | None,
    new_version: int | None,
    counts: bool,
    limit: int,
    storage_options: dict[str, str],
    output: str,
) -> None:
    """Show rows added, removed and changed between two versions, or two checkpoints.

    Without NEW it compares two versions of OLD. Exit status 0 whether rows differ or not.

    \b
    statestore diff /data/checkpoint --old-version 11 --new-version 12
    statestore diff /data/checkpoint /data/savepoint --counts
    """  # noqa: D301
    from statestore.api.checkpoint import Checkpoint

    if new is None and old_version == new_version:
        raise click.UsageError("a version is not compared with itself: give --old-version", ctx)
    it = Checkpoint(old, storage_options=storage_options)
    there = it if new is None else Checkpoint(new, storage_options=storage_options)
    before = it.rows(rows, version=old_version)
    after = there.rows(rows, version=new_version)
    if not counts:
        with closing(before.diff_batches(after)) as batches:
            print_rows(batches, limit, output)
        return
    found = before.count_differences(after)
    numbers = {"added": found.added, "removed": found.removed, "changed": found.changed}
    if output == "json":
        print_json(numbers)
    else:
        print_table(list(numbers), [list(numbers.values())])


def _parse_key(text: str) -> list[Any]:
    try:
        key = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise click.UsageError(
            f'--find takes a JSON list such as ["a", 3], not {text!r}'
        ) from error
    return key if isinstance(key, list) else [key]


def _print_key_groups(found: pa.Table, output: str) -> None:
    rows = found.to_pylist()
    if output == "json":
        print_json({"key_groups": rows})
        return
    width = -(-(max((row["key_group"] for row in rows), default=0) + 1) // _SPREAD_BARS)
    cells: list[list[object]] = []
    for start in range(0, width * _SPREAD_BARS, width):
        inside = [row for row in rows if start <= row["key_group"] < start + width]
        num_bytes = sum(row["key_bytes"] + row["value_bytes"] for row in inside)
        num_rows = [row["num_rows"] for row in inside]
        label = f"{start}-{start + width - 1}" if width > 1 else str(start)
        largest = max(num_rows, default=0)
        cells.append([label, len(inside), sum(num_rows), largest, format_bytes(num_bytes)])
    count = format_count(sum(row["num_rows"] for row in rows), "row")
    payload = sum(row["key_bytes"] + row["value_bytes"] for row in rows)
    click.echo(f"{count}, {format_bytes(payload)} of keys and values")
    print_table(["key groups", "with rows", "rows", "most in one", "bytes"], cells)


def _print_stores(stores: Iterable[StoreDescription], output: str) -> None:
    if output == "json":
        print_json({"stores": [store.fields() for store in stores]})
        return
    out = console()
    stores = list(stores)
    if not stores:
        click.echo("No stores: the query keeps no state, or none of its batches is committed yet.")
    for store in stores:
        rows = add_counts(store.num_keys.values())
        title = f"operator {store.operator} {store.operator_name}, store {store.name}"
        out.print(
            Text(escape_controls(title), style="bold"),
            f"{'rows not counted yet' if rows is None else format_count(rows, 'row')} in "
            f"{len(store.num_keys)} of {store.num_partitions} state partitions, "
            f"{store.max_parallelism:,} key groups"
            + ("" if store.rescalable else ", not rescalable by key groups"),
            sep=": ",
        )
        for family in store.column_families:
            kind = f"{family.encoder} keys" + (", multi-value" if family.multi_values else "")
            kind += ", entries expire" if family.has_ttl else ""
            variable = _VARIABLES.get(family.variable, "column family")
            if family.address is None:
                out.print(f"  {variable} {escape_controls(family.name)}: {kind}")
            else:
                out.print(f"  rows {escape_controls(family.address)}: {variable}, {kind}")
            out.print(f"    key    {escape_controls(str(family.key))}")
            out.print(f"    value  {escape_controls(str(family.value))}")


__all__ = ["diff", "inspect", "read"]
