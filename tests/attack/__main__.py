"""Attacks checkpoints with random operations for as long as it is told, and compares every row.

    $ python -m tests.attack --seed 7 --minutes 10 [--record FILE] [--keep DIRECTORY] [--write]

A seed says what is done, not how the machine divides its time. What failed is sought again with
`--seed N --life L --lives 1`. Lives go on after one that failed; stopped at any moment, it prints
the table of what was done.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.disk import enter_namespace, own_disk

from statestore.io.shim_jar import find_jar
from tests.chaos.report import read_lines
from tests.spark.application import start_application
from tests.spark.helper_jar import compile_test_jar

from .audit import AttackError
from .filler import Filler
from .life import Life
from .plan import make_plan
from .planted_bugs import BUGS
from .report import make_table, write_line, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

MOST = 12_000
"""Letters of a failure."""


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
    parser.add_argument("--steps", type=int, help="operations of a life, else a few")
    parser.add_argument(
        "--bug", action="append", default=[], choices=list(BUGS),
        help="plant it, and live until it is found: the lane is checked; may be repeated",
    )  # fmt: skip
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
            conf = {
                "spark.ui.showConsoleProgress": "false",
                # A worker of a machine that is busy takes long to begin.
                "spark.python.authenticate.socketTimeout": "120s",
            }
            spark = start_application(Path(work, "application"), jars, conf=conf)
            try:
                if arguments.bug:
                    return _find_bugs(arguments, spark, disk, filler)
                _run(arguments, spark, disk, filler)
            except KeyboardInterrupt:
                _say("stopped; the life under way is not counted")
            finally:
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
    wanted: dict[str, Any] = {}
    if arguments.operator:
        wanted["operator"] = arguments.operator
    if arguments.steps:
        wanted["num_steps"] = arguments.steps
    for number in range(arguments.life, arguments.life + arguments.lives):
        if time.monotonic() > deadline:
            break
        plan = make_plan(arguments.seed, number, **wanted)
        root = disk / f"life-{number}"
        life = Life(plan, spark, root, filler)
        columns = ", ".join(column.ddl for column in life.operator.inputs)
        _say(f"life {number}: {plan}\n  {columns}")
        began = time.monotonic()
        failure = _live(life, lambda: time.monotonic() > deadline)
        if failure:
            _say("\n".join(f"  {line}" for line in life.story))
            again = f"./build.sh attack --seed {arguments.seed} --life {number} --lives 1"
            _say(f"FAILED {failure}\nagain: {again}")
            if arguments.keep:
                kept = arguments.keep / f"life-{arguments.seed}-{number}"
                shutil.copytree(root, kept, dirs_exist_ok=True)
        shutil.rmtree(root)
        write_line(arguments.record, life, failure)
        _say(f"  {len(life.story)} steps in {time.monotonic() - began:.0f} s")


def _live(life: Life, is_over: Callable[[], bool]) -> str:
    """Live a life; return what went wrong."""
    try:
        life.run(is_over)
    except AttackError as error:
        details = error.args[1]
        short = (
            details if len(details) < MOST else f"{details[: MOST // 2]} … {details[-MOST // 2 :]}"
        )
        return f"{error.args[0]}: {short}"
    except Exception:  # noqa: BLE001 - whatever it is, the other lives go on
        return f"the lane failed: {traceback.format_exc()}"
    return ""


def _find_bugs(
    arguments: argparse.Namespace, spark: SparkSession, disk: Path, filler: Filler | None
) -> int:
    """Live with each bug until it is found; exit status 1 where one is not."""
    missed = []
    for name in arguments.bug:
        bug = BUGS[name]
        for number in range(bug.num_lives):
            root = disk / f"{name}-{number}"
            life = Life(make_plan(arguments.seed, number, **bug.wanted), spark, root, filler, name)
            failure = _live(life, lambda: False)
            shutil.rmtree(root)
            if failure:
                break
        is_found = re.search(bug.shown_as, failure) is not None
        _say(f"{name}: {'found' if is_found else 'MISSED'} in life {number}: {failure[-600:]}")
        missed += [] if is_found else [name]
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
