"""The command that makes something to look at."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import click

from statestore.cli.output import command
from statestore.core.errors import InvalidArgumentError

_NEXT = """\
Made a checkpoint: sales by shop and product, 20 batches in 4 state partitions.
Look at it, without Spark:

  statestore list {path}
  statestore read {path} --limit 5
  statestore sql {path} \\
    "SELECT key.shop, sum(value.count) AS sold FROM state GROUP BY 1 ORDER BY 2 DESC"
  statestore report {path} --to page.html
  statestore ui {path}

Change it: 8 state partitions, and back.

  statestore rescale {path} --num-partitions 8 --yes
  statestore rescale {path} --undo --yes

Delete the directory when you have seen enough."""


@command()
@click.argument("directory", default="statestore-demo", type=click.Path(path_type=Path))
def demo(directory: Path) -> None:
    """Make a small checkpoint to look at, without Spark and without a JVM.

    DIRECTORY must not be there; without it the checkpoint goes to statestore-demo.

    \b
    statestore demo
    statestore demo /tmp/sales
    """  # noqa: D301
    from statestore.testing.sample import make_sample

    if directory.exists():
        raise InvalidArgumentError(
            "the directory of the demo is there",
            directory=str(directory),
            to_fix="name another one, or delete it",
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=directory.parent) as work:
        make_sample(Path(work, "made"))
        Path(work, "made").rename(directory)
    click.echo(_NEXT.format(path=shlex.quote(str(directory))))
