"""The commands of `statestore`; every one has help, and errors of ours end it with status 1."""

from __future__ import annotations

from typing import Any

import click

from statestore.core.errors import StateStoreError
from statestore.core.version import __version__
from statestore.spark.jar import find_jar


class _Group(click.Group):
    """A group whose commands report errors of the package as text instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StateStoreError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """State stores of Spark Structured Streaming, owned by Python."""


@cli.command()
def jar() -> None:
    """Print the path of the jar that goes into spark.jars."""
    click.echo(find_jar())


@cli.command()
def version() -> None:
    """Print the version of the package."""
    click.echo(__version__)
