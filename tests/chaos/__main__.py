"""Kills and disturbs real jobs for as long as it is told, and counts every row.

$ python -m tests.chaos --seed 7 --faults 1000 [--minutes M] [--record FILE] [--write]
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lives import Line, Lives, failure_of, main, read_lines, say
from tests.s3_server import S3Server

from .life import Life
from .plan import make_plan
from .report import HEAD, line_of, num_faults, table

if TYPE_CHECKING:
    import argparse

FAULTS_PER_LIFE = 50


class Chaos(Lives):
    """Lives of applications, until there were enough faults."""

    name = "chaos"
    minutes = 1e6
    head = HEAD
    table = staticmethod(table)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--faults", type=int, default=1000, help="how many, at least")

    @classmethod
    def command(cls, seed: int, lives: list[Line]) -> str:
        return f"{super().command(seed, lives)} --faults {num_faults(lives)}"

    @contextmanager
    def begun(self) -> Iterator[None]:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self._s3 = S3Server()
        self._missing = self.arguments.faults - num_faults(read_lines(self.arguments.record))
        yield
        self._s3.stop()

    def is_enough(self) -> bool:
        return self._missing <= 0

    def live(self, number: int, is_over: Callable[[], bool]) -> Line:
        plan = make_plan(
            self.arguments.seed,
            number,
            has_own_disk=self.has_own_disk,
            s3_endpoint=self._s3.endpoint,
            bucket=self._s3.make_bucket(),
        )
        say(f"life {number}: {plan}")
        life, failure = Life(plan, self.disk, self._s3), ""
        try:
            failure = failure_of(lambda: life.run(min(FAULTS_PER_LIFE, self._missing), is_over))
        finally:
            life.clean_up(self.arguments.keep if failure else None)
        self._missing -= life.tally.num_faults
        say(f"  {life.tally}")
        return {"failure": failure, **line_of(life)}


if __name__ == "__main__":
    sys.exit(main(Chaos, __doc__))
