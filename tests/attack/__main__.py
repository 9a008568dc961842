"""Attacks checkpoints with random operations for as long as it is told, and compares every row.

    $ python -m tests.attack --seed 7 --minutes 10 [--record FILE] [--keep DIRECTORY] [--write]

A seed says what is done, not how the machine divides its time.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from statestore.io.shim_jar import find_jar
from tests.lives import Line, Lives, failure_of, main, say
from tests.spark.application import start_application
from tests.spark.helper_jar import compile_test_jar

from .filler import Filler
from .life import DISTURBANCES, Life
from .operations import OPERATIONS
from .plan import make_plan
from .planted_bugs import BUGS
from .report import HEAD, line_of, table

if TYPE_CHECKING:
    import argparse


class Attack(Lives):
    """Lives of checkpoints, in one application."""

    name = "attack"
    minutes = 10.0
    head = HEAD
    table = staticmethod(table)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--operator", help="the query of all lives, else all in turn")
        parser.add_argument(
            "--operation", action="append", default=[], choices=list(OPERATIONS),
            help="of all lives, else all; may be repeated",
        )  # fmt: skip
        parser.add_argument(
            "--disturbance", action="append", default=[], choices=list(DISTURBANCES),
            help="what may happen to one, else all; may be repeated",
        )  # fmt: skip
        parser.add_argument("--steps", type=int, help="operations of a life, else a few")
        parser.add_argument(
            "--bug", action="append", default=[], choices=list(BUGS),
            help="plant it, and live until it is found: the lane is checked; may be repeated",
        )  # fmt: skip

    @contextmanager
    def begun(self) -> Iterator[None]:
        logging.getLogger("py4j").setLevel(logging.ERROR)
        self._filler = Filler(self.disk) if self.has_own_disk else None
        jars = [compile_test_jar("queries"), find_jar()]
        conf = {"spark.ui.showConsoleProgress": "false"}
        self._spark = start_application(self.disk.parent / "application", jars, conf=conf)
        try:
            yield
        finally:
            self._spark.stop()

    def live(self, number: int, is_over: Callable[[], bool]) -> Line:
        arguments = self.arguments
        wanted: dict[str, Any] = {
            "operator": arguments.operator,
            "num_steps": arguments.steps,
            "operations": tuple(arguments.operation),
            "disturbances": tuple(arguments.disturbance),
        }
        plan = make_plan(
            arguments.seed, number, **{name: value for name, value in wanted.items() if value}
        )
        root = self.disk / f"life-{number}"
        life = Life(plan, self._spark, root, self._filler)
        columns = ", ".join(column.ddl for column in life.operator.inputs)
        say(f"life {number}: {plan}\n  {columns}")
        failure = failure_of(lambda: life.run(is_over))
        say("\n".join(f"  {line}" for line in life.story))
        if failure and arguments.keep:
            kept = arguments.keep / f"life-{arguments.seed}-{number}"
            shutil.copytree(root, kept, dirs_exist_ok=True)
        shutil.rmtree(root)
        return {"failure": failure, **line_of(life)}

    def find_bugs(self) -> bool | None:
        if not self.arguments.bug:
            return None
        missed = []
        for name in self.arguments.bug:
            bug = BUGS[name]
            for number in range(bug.num_lives):
                root = self.disk / f"{name}-{number}"
                plan = make_plan(self.arguments.seed, number, **bug.wanted)
                life = Life(plan, self._spark, root, self._filler, name)
                with bug.planted_here():
                    failure = failure_of(partial(life.run, lambda: False))
                say("\n".join(f"  {line}" for line in [f"life {number}", *life.story]))
                shutil.rmtree(root)
                if failure:
                    break
            is_found = re.search(bug.shown_as, failure) is not None
            say(f"{name}: {'found' if is_found else 'MISSED'} in life {number}: {failure[-600:]}")
            missed += [] if is_found else [name]
        return not missed


if __name__ == "__main__":
    sys.exit(main(Attack, __doc__))
