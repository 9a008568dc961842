"""Lives that a seed plans, one after the other, and the record of them: what lanes of chance share.

What a seed does is planned by it; when it happens is not. A record goes on where it ended: with
another seed, the table adds up. Lives go on after one that failed. Stopped at any moment, a run
prints the table of the lives that ended.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from statestore import __version__
from tests.own_disk import enter_namespace, own_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / __version__
MOST = 12_000
"""Letters of a failure."""

Line = dict[str, Any]
"""What is known of a life that ended: its seed, its number, its failure, and what it did."""


class ProblemError(Exception):
    """Something that must not happen: what it is, and all that is known of it."""


class Lives(ABC):
    """The lives of a lane, `tests.NAME`, which `build.sh NAME` runs, with a blank for a dot.

    Args:
        arguments: Options of the command.
        disk: The directory that they live in.
        has_own_disk: Whether it is a file system of its own, which may be filled.
    """

    name: ClassVar[str]
    minutes: ClassVar[float]
    """Minutes of a run that is not told how many."""
    head: ClassVar[str]
    """What the document of the results says above the tables."""

    def __init__(self, arguments: argparse.Namespace, disk: Path, *, has_own_disk: bool) -> None:
        self.arguments = arguments
        self.disk = disk
        self.has_own_disk = has_own_disk

    @staticmethod
    @abstractmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the lane's own options."""

    @abstractmethod
    def begun(self) -> AbstractContextManager[object]:
        """Hold what all lives need while a block runs."""

    @abstractmethod
    def live(self, number: int, is_over: Callable[[], bool]) -> Line:
        """Live a life and return what it did; `is_over` says when no step begins any more."""

    def is_enough(self) -> bool:
        """Whether no other life is needed, however much time is left."""
        return False

    def find_bugs(self) -> bool | None:
        """Live with bugs that were asked for, and say whether all were found; None for none."""
        return None

    @staticmethod
    @abstractmethod
    def table(lives: list[Line]) -> list[str]:
        """Return the lines of the tables of what lives did; the last one sums it up."""

    @classmethod
    def command(cls, seed: int, lives: list[Line]) -> str:
        """Return the command that made the lives of a seed."""
        del lives
        return f"{cls.words()} --seed {seed}"

    @classmethod
    def words(cls) -> str:
        """Return the command of the lane, without options."""
        return f"./build.sh {cls.name.replace('.', ' ')}"


def main(lane: type[Lives], about: str) -> int:
    """Run the lives of a lane; exit status 1 when one failed, or a bug was not found."""
    arguments = _parse(lane, about)
    enter_namespace(f"tests.{lane.name}")
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix=f"statestore-{lane.name}-") as work:
        disk = Path(work, "disk")
        disk.mkdir()
        record = arguments.record = arguments.record or Path(work, "record.jsonl")
        num_before = len(read_lines(record))
        try:
            with own_disk(disk) as has_own_disk:
                lives = lane(arguments, disk, has_own_disk=has_own_disk)
                with lives.begun():
                    if (found := lives.find_bugs()) is not None:
                        return int(not found)
                    _run(lives)
        except KeyboardInterrupt:
            say("stopped; the life under way is not counted")
        lines = read_lines(record)
        say(make_table(lane, lines))
        if arguments.write:
            commands = "\n".join(lane.command(seed, own) for seed, own in _by_seed(lines))
            document = f"{lane.head}\n```\n{commands}\n```\n\n{make_table(lane, lines)}"
            (RESULTS / f"{lane.name}.md").write_text(document)
        return int(any(line["failure"] for line in lines[num_before:]))


def _parse(lane: type[Lives], about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=lane.words(), description=about.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="what the run is planned by")
    parser.add_argument(
        "--minutes", type=float, default=lane.minutes, help="begin no step after so many"
    )
    parser.add_argument("--life", type=int, default=0, help="the first life: 0, or one that failed")
    parser.add_argument("--lives", type=int, default=10**6, help="how many lives, at most")
    parser.add_argument("--record", type=Path, help="file that results are added to")
    parser.add_argument("--keep", type=Path, help="where a life that failed is copied to")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results")
    lane.add_options(parser)
    return parser.parse_args()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(lives: Lives) -> None:
    """Live life after life until there were enough, or the time is over."""
    arguments = lives.arguments
    deadline = time.monotonic() + 60 * arguments.minutes
    for number in range(arguments.life, arguments.life + arguments.lives):
        if lives.is_enough() or time.monotonic() > deadline:
            break
        began = time.monotonic()
        line = lives.live(number, lambda: time.monotonic() > deadline)
        with arguments.record.open("a") as file:
            file.write(json.dumps({"seed": arguments.seed, "life": number, **line}) + "\n")
        if line["failure"]:
            again = f"{lives.words()} --seed {arguments.seed} --life {number} --lives 1"
            say(f"FAILED {line['failure']}\nagain: {again}")
        say(f"  {time.monotonic() - began:.0f} s")


def failure_of(live: Callable[[], None]) -> str:
    """Live, and return what went wrong; nothing where all is well."""
    try:
        live()
    except ProblemError as error:
        what, details = map(str, error.args)
        half = MOST // 2
        short = details if len(details) < MOST else f"{details[:half]} … {details[-half:]}"
        return f"{what}: {short}"
    except Exception:  # noqa: BLE001 - whatever it is, the other lives go on
        return f"the lane failed: {traceback.format_exc()}"
    return ""


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def read_lines(record: Path) -> list[Line]:
    """Return the lives of a record."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines()]


def make_table(lane: type[Lives], lives: list[Line]) -> str:
    """Return what happened as Markdown."""
    *lines, summed = lane.table(lives)
    failures = [life for life in lives if life["failure"]]
    seeds = ", ".join(str(seed) for seed, _ in _by_seed(lives))
    lines += ["", f"Seeds {seeds}; {summed}.", "", f"Failures: {len(failures)}."]
    lines += [f"- seed {life['seed']}, life {life['life']}: {life['failure']}" for life in failures]
    return "\n".join(lines) + "\n"


def counted(title: str, counts: Iterable[tuple[str, int]]) -> list[str]:
    """Return the lines of a table of how often things happened, below another one."""
    rows = [f"| {name} | {number} |" for name, number in sorted(counts)]
    return ["", f"| {title} | times |", "|---|---:|", *rows]


def _by_seed(lives: list[Line]) -> list[tuple[int, list[Line]]]:
    seeds = sorted({life["seed"] for life in lives})
    return [(seed, [life for life in lives if life["seed"] == seed]) for seed in seeds]
