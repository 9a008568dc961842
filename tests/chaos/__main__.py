"""Kills and disturbs real jobs for as long as it is told, and counts every row.

    $ python -m tests.chaos --seed 7 --faults 1000 [--minutes M] [--record FILE] [--write]

What a seed does is planned by it; when it happens is not. A record goes on where it ended: with
another seed, the table adds up. Stopped at any moment, it prints the table of what was audited.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.s3_server import S3Server

from .audit import NeedsAHandError
from .disk import enter_namespace, own_disk
from .life import Life
from .plan import make_plan
from .report import make_table, num_faults, read_lines, write_line, write_table

FAULTS_PER_LIFE = 50


def main() -> int:
    """Run lives; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(prog="build.sh chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="what the run is planned by")
    parser.add_argument("--faults", type=int, default=1000, help="how many, at least")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no fault after so many")
    parser.add_argument("--life", type=int, default=0, help="the first life: 0, or one that failed")
    parser.add_argument("--lives", type=int, default=10**6, help="how many lives, at most")
    parser.add_argument("--record", type=Path, help="file that results are added to")
    parser.add_argument("--keep", type=Path, help="where a life that failed is copied to")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    enter_namespace("tests.chaos")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="statestore-chaos-") as work:
        disk = Path(work, "disk")
        disk.mkdir()
        arguments.record = arguments.record or Path(work, "record.jsonl")
        num_before = len(read_lines(arguments.record))
        try:
            with own_disk(disk) as has_own_disk:
                _run(arguments, disk, has_own_disk=has_own_disk)
        except KeyboardInterrupt:
            _say("stopped; what was not audited is not counted")
        lives = read_lines(arguments.record)
        _say(make_table(lives))
        if arguments.write:
            write_table(lives)
        return int(any(life["failure"] for life in lives[num_before:]))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(arguments: argparse.Namespace, disk: Path, *, has_own_disk: bool) -> None:
    """Live life after life until there were enough faults, or the time is over."""
    deadline = time.monotonic() + 60 * arguments.minutes
    s3 = S3Server()
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    missing = arguments.faults - num_faults(read_lines(arguments.record))
    for number in range(arguments.life, arguments.life + arguments.lives):
        if missing <= 0 or time.monotonic() > deadline:
            break
        plan = make_plan(
            arguments.seed,
            number,
            has_own_disk=has_own_disk,
            s3_endpoint=s3.endpoint,
            bucket=s3.make_bucket(),
        )
        _say(f"life {number}: {plan}")
        life = Life(plan, disk, s3)
        began = time.monotonic()
        failure = "stopped"
        try:
            life.run(min(FAULTS_PER_LIFE, missing), lambda: time.monotonic() > deadline)
            failure = ""
        except NeedsAHandError as error:
            failure = f"{error.args[0]}: {error.args[1][:2000]}"
        except Exception:  # noqa: BLE001 - whatever it is, the other lives go on
            failure = f"the driver of the chaos failed: {traceback.format_exc()}"
        finally:
            life.clean_up(arguments.keep if failure not in ("", "stopped") else None)
        write_line(arguments.record, life, failure)
        missing -= life.tally.num_faults
        took = time.monotonic() - began
        _say(f"  {life.tally} in {took:.0f} s{failure and ' FAIL '}{failure}")
    s3.stop()


if __name__ == "__main__":
    sys.exit(main())
