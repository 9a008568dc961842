"""Attacks checkpoints with random operations for as long as it is told, and compares every row.

    $ python -m tests.attack --seed 7 --minutes 10 [--record FILE] [--keep DIRECTORY] [--write]

A seed says what is done, not how the machine divides its time. What failed is sought again with
`--seed N --life L --lives 1`. Lives go on after one that failed; stopped at any moment, it prints
the table of what was done.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.io.shim_jar import find_jar
from tests.chaos.disk import enter_namespace, own_disk
from tests.chaos.report import read_lines
from tests.spark.application import start_application
from tests.spark.helper_jar import compile_test_jar

from .audit import AttackError
from .filler import Filler
from .life import Life
from .plan import make_plan
from .report import make_table, write_line, write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> int:
    """Run lives; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(prog="build.sh attack", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="what the run is planned by")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no step after so many")
    parser.add_argument("--life", type=int, default=0, help="the first life: 0, or one that failed")
    parser.add_argument("--lives", type=int, default=10**6, help="how many lives, at most")
    parser.add_argument("--operator", help="the query of all lives, else all in turn")
    parser.add_argument("--record", type=Path, help="file that results are added to")
    parser.add_argument("--keep", type=Path, help="where a life that failed is copied to")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results")
    parser.add_argument("--bug", default="", help="plant one of planted_bugs.py")
    arguments = parser.parse_args()
    enter_namespace("tests.attack")
    signal.signal(signal.SIGTERM, _interrupt)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="statestore-attack-") as work:
        disk = Path(work, "disk")
        disk.mkdir()
        arguments.record = arguments.record or Path(work, "record.jsonl")
        num_before = len(read_lines(arguments.record))
        with own_disk(disk) as has_own_disk:
            filler = Filler(disk) if has_own_disk else None
            jars = [compile_test_jar("queries"), find_jar()]
            conf = {"spark.ui.showConsoleProgress": "false"}
            spark = start_application(Path(work, "application"), jars, conf=conf)
            try:
                _run(arguments, spark, disk, filler)
            except KeyboardInterrupt:
                _say("stopped; the life under way is not counted")
            spark.stop()
        lives = read_lines(arguments.record)
        _say(make_table(lives))
        if arguments.write:
            write_table(arguments.record)
        return int(any(life["failure"] for life in lives[num_before:]))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(
    arguments: argparse.Namespace, spark: SparkSession, disk: Path, filler: Filler | None
) -> None:
    """Live life after life until the time is over."""
    deadline = time.monotonic() + 60 * arguments.minutes
    wanted = {"operator": arguments.operator} if arguments.operator else {}
    for number in range(arguments.life, arguments.life + arguments.lives):
        if time.monotonic() > deadline:
            break
        plan = make_plan(arguments.seed, number, **wanted)
        root = disk / f"life-{number}"
        root.mkdir()
        life = Life(plan, spark, root, filler, arguments.bug)
        columns = ", ".join(column.ddl for column in life.operator.inputs)
        _say(f"life {number}: {plan}\n  {columns}")
        began = time.monotonic()
        failure = ""
        try:
            life.run(lambda: time.monotonic() > deadline)
        except AttackError as error:
            failure = f"{error.args[0]}: {error.args[1][-1500:]}"
        except Exception:  # noqa: BLE001 - whatever it is, the other lives go on
            failure = f"the lane failed: {traceback.format_exc()}"
        if failure:
            _say("\n".join(f"  {line}" for line in life.story))
            again = f"./build.sh attack --seed {arguments.seed} --life {number} --lives 1"
            _say(f"FAILED {failure}\nagain: {again}")
            if arguments.keep:
                shutil.copytree(root, arguments.keep / f"life-{arguments.seed}-{number}")
        shutil.rmtree(root)
        write_line(arguments.record, life, failure)
        _say(f"  {len(life.story)} steps in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
