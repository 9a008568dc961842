"""A life: an application with its lanes, hit by fault after fault, and audited."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.lives import ProblemError
from tests.spark.processes import engines, scratch_directories

from .application import Application, LostError
from .audit import audit_lane, resident_bytes
from .faults import FAULTS
from .inspection import newest_commit, offsets_of
from .lane import LaneSpec
from .operations import allowed
from .queries import QUERIES
from .stream import Input

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.s3_server import S3Server

    from .plan import LifePlan

MAX_FAULTS_AT_ONCE = 8
BACKLOG = 4
"""Files that wait to be read while faults happen."""
PROGRESS_TIMEOUT_S = 600.0
"""Much longer than every other time-out: what is stuck stays stuck, also on a machine in need."""
OPERATION_SHARE = 0.3
MAX_ENGINE_BYTES = 300 << 20
Outcome = str
BY_ITSELF, BY_RUN, ANEW = "went on", "restarted by run", "started again"
OUTCOMES = (BY_ITSELF, BY_RUN, ANEW)


@dataclass
class LaneState:
    """What the driver knows of a lane: as it is, what it reads, and as it was before operations."""

    spec: LaneSpec
    input: Input
    earlier: list[LaneSpec] = field(default_factory=list)

    def checkpoint(self, root: Path) -> Path:
        """Return its checkpoint directory."""
        return root / self.spec.name / self.spec.checkpoint

    def feed(self, root: Path) -> None:
        """Keep so many files waiting."""
        checkpoint = self.checkpoint(root)
        newest = newest_commit(checkpoint)
        numbers = [0]
        if newest >= 0 and (checkpoint / "offsets" / str(newest)).exists():
            numbers = offsets_of(checkpoint, newest)[0]
        self.input.feed(max(0, BACKLOG + min(numbers) - len(self.input.files)))


@dataclass
class Tally:
    """What happened: faults by kind and outcome, operations, and what was counted beside."""

    faults: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    audits: int = 0
    batches: int = 0
    rows: int = 0
    engine_mib: int = 0
    store_files: int = 0

    @property
    def num_faults(self) -> int:
        """All faults."""
        return sum(self.faults.values())


class Life:
    """One life; `run` it once.

    Attributes:
        plan: What it is made of.
        root: Its folder.
        disk: The file system that `root` is on, where it has one of its own.
        control: Folder of faults for tasks and engines to find; never on a disk that is full.
        rng: Decides what happens.
        s3: The S3 server.
        application: The application.
        lanes: The lanes, as they are now.
        tally: What happened so far.
        abandoned: Scratch directories whose JVM and engine were killed, and the driver as well.
    """

    def __init__(self, plan: LifePlan, disk: Path, s3: S3Server, bug: str = "") -> None:
        self.plan: LifePlan = plan
        self.disk = disk
        self.root = disk / f"life-{plan.seed[0]}-{plan.seed[1]}"
        self.rng = np.random.default_rng([*plan.seed, 1])
        self.s3 = s3
        self.tally = Tally()
        self.abandoned: set[Path] = set()
        self.root.mkdir()
        self.control = Path(tempfile.mkdtemp(prefix="chaos-control-"))
        self.application = Application(plan, self.root, self.control, bug)
        self.lanes = [self._make_lane(spec, index) for index, spec in enumerate(plan.lanes)]
        self._batches: Counter[str] = Counter()

    def _make_lane(self, spec: LaneSpec, index: int) -> LaneState:
        folder = self.root / spec.name
        for name in ("input", "waiting", "sink"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        where = "waiting" if spec.trigger == "once-a-batch" else "input"
        (folder / where).rmdir()
        seed = 1000 * self.plan.seed[0] + 10 * self.plan.seed[1] + index
        has_duplicates = QUERIES[spec.query].has_duplicates
        return LaneState(spec, Input(folder / where, seed, has_duplicates=has_duplicates))

    def run(
        self, num_faults: int, is_over: Callable[[], bool], kinds: tuple[str, ...] = ()
    ) -> None:
        """Live through faults, with operations between them, and be audited at the end.

        Args:
            num_faults: How many at least.
            is_over: Says that there is no more time; the life is audited all the same.
            kinds: Kinds of the faults, all that fit when empty.

        Raises:
            ProblemError: A row is lost or doubled, or the job does not go on by itself.
        """
        self._start_application()
        self._await_progress(self._marks())
        while self.tally.num_faults < num_faults and not is_over():
            self._have_faults(kinds)
            if not kinds and self.rng.random() < OPERATION_SHARE:
                self._operate()
        self._audit()
        self._end()

    def _start_application(self) -> None:
        for lane in self.lanes:
            lane.feed(self.root)
        try:
            self.application.start()
            for lane in self.lanes:
                self.application.call("begin", lane.spec.to_json())
        except LostError as error:
            raise ProblemError("the application does not start", str(error)) from error

    def _marks(self) -> dict[str, int]:
        """Return the newest batch of every lane."""
        return {lane.spec.name: newest_commit(lane.checkpoint(self.root)) for lane in self.lanes}

    def _have_faults(self, kinds: tuple[str, ...]) -> None:
        """Let some faults happen at a time; wait until every lane has got on since."""
        names = [
            name
            for name, fault in FAULTS.items()
            if fault.fits(self) and (not kinds or name in kinds)
        ]
        weights = np.array([FAULTS[name].weight for name in names])
        number = int(self.rng.integers(1, MAX_FAULTS_AT_ONCE + 1))
        chosen = [str(name) for name in self.rng.choice(names, number, p=weights / weights.sum())]
        alone = [name for name in chosen if FAULTS[name].is_alone][:1]
        chosen = [name for name in chosen if not FAULTS[name].is_alone]
        for lane in self.lanes:
            lane.feed(self.root)
        failures = self._num_failures()
        starts = self.application.num_starts
        hit = self._play(chosen) + self._play(alone)
        marks = self._marks()
        self._await_progress(marks)
        if self.application.num_starts > starts:
            outcome = ANEW
        else:
            outcome = BY_RUN if self._num_failures() > failures else BY_ITSELF
        self.tally.faults.update((name, outcome) for name in hit)

    def _play(self, names: list[str]) -> list[str]:
        """Let faults begin within two seconds; return those that hit, once all have ended.

        Of a kind that changes one thing, such as the disk, one at a time.
        """
        once = [name for name in dict.fromkeys(names) if "killed" not in name]
        names = [name for name in names if "killed" in name] + once
        now = time.monotonic()
        due = [(now + self.rng.uniform(0, 2.0), name, FAULTS[name].run(self)) for name in names]
        hit: set[int] = set()
        found: list[str] = []
        while due:
            due.sort(key=lambda item: item[0])
            at, name, steps = due.pop(0)
            time.sleep(max(0.0, at - time.monotonic()))
            lasts = next(steps, None)
            if lasts is not None:
                if id(steps) not in hit:
                    hit.add(id(steps))
                    found.append(name)
                due.append((time.monotonic() + lasts, name, steps))
        return found

    def _num_failures(self) -> int:
        try:
            status = self.application.call("status")
        except LostError:
            return 0
        return sum(len(lane["failures"]) for lane in status.values())

    def _await_progress(self, marks: dict[str, int]) -> None:
        """Wait until every lane has committed a batch after its mark.

        Raises:
            ProblemError: One does not, or ended for good.
        """
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        while True:
            late = [
                lane
                for lane in self.lanes
                if newest_commit(lane.checkpoint(self.root)) <= marks[lane.spec.name]
            ]
            if not late:
                return
            if not self.application.is_alive:
                self._start_again()
            for lane in late:
                lane.feed(self.root)
            self._look_for_obstacles()
            if time.monotonic() > deadline:
                raise ProblemError(
                    f"no batch within {PROGRESS_TIMEOUT_S} s", str([lane.spec for lane in late])
                )
            time.sleep(0.1)

    def _start_again(self) -> None:
        self.application.await_end()
        self._start_application()

    def _look_for_obstacles(self) -> None:
        try:
            status = self.application.call("status")
        except LostError:
            time.sleep(0.5)
            if self.application.is_alive:
                raise
            return
        for name, lane in status.items():
            if lane["obstacle"]:
                raise ProblemError(f"the query of {name} ended", lane["obstacle"])

    def _operate(self) -> None:
        """Have one lane's checkpoint operated on, and go on with more batches."""
        lane = self.lanes[int(self.rng.integers(len(self.lanes)))]
        operation = str(self.rng.choice(allowed(lane.spec)))
        self._finish(lane)
        self._change(lane, operation)
        if operation == "convert to Spark's provider":
            lane.feed(self.root)
            self.application.call("begin", lane.spec.to_json())
            self._await_progress({**dict.fromkeys(self._marks(), -2),
                                  lane.spec.name: self._marks()[lane.spec.name]})  # fmt: skip
            self._finish(lane)
            self._change(lane, "restore from Spark's provider")
        lane.feed(self.root)
        self.application.call("begin", lane.spec.to_json())
        self._await_progress(self._marks())

    def _finish(self, lane: LaneState) -> None:
        obstacle = self.application.call("finish", lane.spec.name)
        if obstacle:
            raise ProblemError(f"the query of {lane.spec.name} ended", obstacle)

    def _change(self, lane: LaneState, operation: str) -> None:
        before = lane.spec
        try:
            lane.spec = LaneSpec(**self.application.call("operate", before.name, operation))
        except RuntimeError as error:
            raise ProblemError(f"operation failed: {operation}", str(error)) from error
        if lane.spec.checkpoint != before.checkpoint and before.has_files:
            lane.earlier.append(before)
        self.tally.operations[operation] += 1

    def _audit(self) -> None:
        """Compare every lane with its batch computation, and look at files and memory.

        Raises:
            ProblemError: Something is wrong.
        """
        memory = [resident_bytes(pid) for pid in engines(self.application.pids())]
        self.tally.engine_mib = max([self.tally.engine_mib, *(size >> 20 for size in memory)])
        if max(memory, default=0) > MAX_ENGINE_BYTES:
            raise ProblemError("an engine has grown", f"bytes={max(memory)}")
        for lane in self.lanes:
            self._finish(lane)
            found = self.application.call("inspect", lane.spec.name)
            for spec in lane.earlier:
                found["findings"] += self.application.call("verify", spec.to_json())
            folder = self.root / lane.spec.name
            rows = audit_lane(lane.spec, folder, lane.input.files, found)
            self.tally.rows += rows
            self.tally.batches += found["batch"] + 1
            self.tally.store_files = max(self.tally.store_files, found["files"])
        self.tally.audits += 1

    def _end(self) -> None:
        """End the application; nothing of it may stay.

        Raises:
            ProblemError: A process or a scratch directory does.
        """
        self.application.call("end")
        try:
            self.application.await_end()
        except AssertionError as error:
            raise ProblemError("a process is left", str(self.application.pids())) from error
        if left := set(scratch_directories(self.root)) - self.abandoned:
            raise ProblemError("a scratch directory is left", str(left))

    def clean_up(self, keep: Path | None) -> None:
        """Kill what is left; keep a copy of the folder where it is asked for."""
        self.s3.outage = ""
        self.application.kill()
        (self.disk / "filler").unlink(missing_ok=True)
        if keep is not None:
            target = keep / self.root.name
            shutil.copytree(self.root, target, ignore=shutil.ignore_patterns("local"),
                            dirs_exist_ok=True)  # fmt: skip
            described: dict[str, Any] = {
                "lanes": [lane.spec.to_json() for lane in self.lanes],
                "master": self.plan.master,
            }
            (target / "plan.json").write_text(json.dumps(described, indent=1))
        for path in (self.root, self.control):
            shutil.rmtree(path, ignore_errors=True)
