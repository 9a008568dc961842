"""A life: a query's checkpoint, attacked by operation after operation, and audited after each."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore import Checkpoint, StateStoreError
from statestore.core.errors import KINDS
from statestore.io.local import LocalFileIO
from statestore.operations.metadata_file import unfinished_operation
from tests.lives import ProblemError

from .all_operators import make_operator
from .audit import audit, forgotten_bytes, read_state, require
from .child import Child, Outcome, in_this_process, run
from .operations import draw_step
from .steps import Step, grouping_keys
from .world import LEASE_INTERVAL_MS, OURS, QueryFailedError, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from .families import State
    from .filler import Filler
    from .plan import LifePlan
    from .world import Directory

MAX_OTHERS = 4
LEASE_LOST = "the operation's lease on the checkpoint has expired"
"""Said on a machine so busy that a process of ours stood still for seconds."""
UNDISTURBED = ("read", "diff", "repair")
"""Operations that change nothing here, and one before which the state cannot be read."""
DISTURBANCES = {
    "": 10, "killed": 5, "full disk": 2, "beside another": 2, "beside the query": 2,
}  # fmt: skip
"""What happens to a step, and how often."""
AT_A_TURN, BEHIND_ITS_COMMIT = 0.3, 0.3
"""How often a moment is one at which a step goes from one part of the directory on to another; and
how often shortly behind its last entry of the commit log, from which on a query may run from it."""
EXPIRED_S = 3 * LEASE_INTERVAL_MS / 1000 + 2.5
"""So long an operation stands still until the query may start: its lease lasts three intervals, and
two seconds by which dates of a storage may be wrong."""
SOMEBODY_ELSE = (
    "checkpoint-in-use", "checkpoint-under-operation", "fenced", "unfinished-operation",
    "unfinished-batch", "lineage-broken", "file-not-found", "version-not-found",
    "checkpoint-exists", "keys-not-found",
)  # fmt: skip
"""Kinds of errors by which one of two at a time may end."""


@dataclass
class Tally:
    """What happened.

    Attributes:
        steps: By operation, disturbance and ending.
        audits, batches, rows: Audits, batches of the query, rows compared.
        searches: Searches for the bytes of forgotten keys.
    """

    steps: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    audits: int = 0
    batches: int = 0
    rows: int = 0
    searches: int = 0


class Life:
    """One life; `run` it once.

    Attributes:
        plan: What it is made of.
        world: Its directories.
        tally: What happened so far.
        story: What was called, a line a step.
    """

    def __init__(
        self,
        plan: LifePlan,
        spark: SparkSession,
        root: Path,
        filler: Filler | None,
        bug: str = "",
    ) -> None:
        self.plan = plan
        self.rng = np.random.default_rng([*plan.seed, 1])
        self.operator = make_operator(plan.operator, (*plan.seed, 2))
        self.world = World(plan, self.operator, spark, root)
        self.tally = Tally()
        self.story: list[str] = []
        self._filler = filler
        self._bug = self.world.bug = bug
        self._calls: dict[str, tuple[str, ...]] = {}

    def run(self, is_over: Callable[[], bool]) -> None:
        """Live until all steps are done or the time is over.

        Raises:
            ProblemError: Something is wrong.
        """
        self._batches(int(self.rng.integers(1, 4)))
        self._audit()
        for number in range(self.plan.num_steps):
            if is_over():
                break
            # A step is drawn anew: how those before it came to their ends changes no number.
            self.rng = np.random.default_rng([*self.plan.seed, 1, number])
            step = draw_step(self.world, self.rng)
            self.story.append(step.call.describe())
            self._perform(step)
            self._audit()
            # Where the query has gone on, a trial is not promoted.
            if self.rng.random() < (0.6 if self.world.tried is None else 0.3):
                self._batches(int(self.rng.integers(1, 3)))
                self._audit()

    def _batches(self, number: int) -> None:
        self.world.feed(self.rng, number)
        self.story.append(f"the query reads up to file {len(self.world.files)}")
        before = self.world.current.batch
        try:
            self.world.run_query(self.world.current)
        except QueryFailedError as error:
            raise ProblemError("the query failed", str(error)) from error
        self.tally.batches += self.world.current.batch - before
        self._audit_sink()

    def _audit_sink(self) -> None:
        """Compare the file sink with what the query must have written, where it has one."""
        current = self.world.current
        if current.sink is None or current.backend not in OURS:
            return
        try:
            found = self.world.read_sink(current)
        except Exception as error:
            raise ProblemError("the sink cannot be read", str(error)[:1500]) from error
        lost, more = current.output - found, found - current.output
        require(not lost and not more, "the sink is wrong", f"lost: {lost}, not expected: {more}")

    # Disturbances

    def _perform(self, step: Step) -> None:
        if step.name in UNDISTURBED or step.in_process is not None:
            self._undisturbed(step)
            return
        able = dict(DISTURBANCES)
        if self._filler is None:
            del able["full disk"]
        if step.source is not self.world.current:
            del able["beside another"], able["beside the query"]
        if step.must_be_refused and self.rng.random() < 0.8:
            able = {"": 1}  # nothing is changed that could be disturbed
        elif self.plan.disturbances:
            able = {name: able[name] for name in self.plan.disturbances if name in able}
        names = list(able) or [""]
        weights = np.array([able.get(name, 1) for name in names])
        chosen = str(self.rng.choice(names, p=weights / weights.sum()))
        {
            "": self._undisturbed,
            "killed": self._killed,
            "full disk": self._on_a_full_disk,
            "beside another": self._beside_another,
            "beside the query": self._beside_the_query,
        }[chosen](step)

    def _run(self, step: Step, disturbance: Any = "", at: int = 0) -> Outcome:
        if step.in_process is not None:
            return in_this_process(step.in_process)
        outcome = run(step.call, disturbance, at, self._bug, step.serve)
        self._note_calls(step, outcome)
        return outcome

    def _note_calls(self, step: Step, outcome: Outcome) -> None:
        if outcome.ending == "done":
            self._calls[step.name] = outcome.calls

    def _somewhere(self, step: Step) -> int:
        """Draw a moment of a step: twice the number of a call, and one more for after it."""
        calls = self._calls.get(step.name, ("",) * 20)
        turns = [
            2 * number for number in range(1, len(calls)) if calls[number - 1] != calls[number]
        ]
        chance, end = self.rng.random(), 2 * len(calls) + 2
        if turns and chance < AT_A_TURN:
            return int(self.rng.choice(turns))
        if "commits" in calls and chance > 1 - BEHIND_ITS_COMMIT:
            later = calls[::-1].index("commits")
            return min(end - 2 * later - 4 + int(self.rng.geometric(0.25)), end - 1)
        return int(self.rng.integers(0, end))

    def _undisturbed(self, step: Step) -> None:
        self._settle(step, self._run(step))

    def _count(self, step: Step, disturbance: str, outcome: Outcome) -> None:
        self.tally.steps[step.name, disturbance, outcome.ending] += 1
        how = [disturbance, outcome.ending, outcome.kind]
        self.story[-1] += f"   # {', '.join(filter(None, how))}"

    def _settle(self, step: Step, outcome: Outcome, disturbance: str = "") -> None:
        """Note how a step ended that nothing else disturbs any more."""
        if LEASE_LOST in outcome.text or outcome.ending == "killed":
            self._repeated(step, disturbance or outcome.ending)
            return
        self._count(step, disturbance, outcome)
        require(outcome.ending in ("done", "refused"), "an operation failed", outcome.text)
        if outcome.ending == "done":
            require(not step.must_be_refused, "what must be refused was done", outcome.text)
            self._done(step, outcome.value)
        else:
            is_right = step.may_be_refused and outcome.kind != "trial-failed"
            is_right = is_right or step.must_be_refused or self._has_to_wait(step, outcome)
            require(is_right, "an operation was refused", outcome.text)
            self._require_no_target(step)

    def _has_to_wait(self, step: Step, outcome: Outcome) -> bool:
        """Return whether a step was refused until somebody else has ended.

        That is a batch that was planned, and that the query runs next; or an operation that was
        killed: then an hour passes.
        """
        if outcome.kind == "unfinished-batch" and self.world.has_planned_batch(step.source):
            return True
        if step.name not in ("forget", "promote") or outcome.kind != "checkpoint-in-use":
            return False
        source = step.source
        pins = list((source.elsewhere or source.path).rglob("*.pin"))
        for pin in pins:
            pin.unlink()
        return bool(pins)

    def _done(self, step: Step, value: Any) -> None:
        before = step.source.state
        after = step.apply(before)
        if step.check is not None:
            try:
                step.check(before, value)
            except AssertionError as error:
                raise ProblemError("an operation answers wrong", str(error)) from error
        if step.target is not None:
            self._made(step, after)
        else:
            self._changed(step, before, after)

    def _changed(self, step: Step, before: State, after: State) -> None:
        directory = step.source
        version = self.world.newest_version(directory)
        if version != directory.version or after != before:
            directory.note(after, batch=version - 1)
        if step.note is not None:
            step.note(directory)
        if step.forgotten is not None:
            directory.gone |= step.forgotten(before)

    def _made(self, step: Step, after: State) -> None:
        target: Any = step.target
        target.batch = self.world.newest_version(target) - 1
        target.state = after
        target.versions = {target.version: after}
        audit(self.world, target)
        if step.goes_on:
            self._keep(self.world.current)
            self.world.current = target
        else:
            self._keep(target)

    def _keep(self, directory: Directory) -> None:
        self.world.others.append(directory)
        while len(self.world.others) > MAX_OTHERS:
            shutil.rmtree(self.world.others.pop(0).path)

    def _require_no_target(self, step: Step) -> None:
        """Require that what was not made is not taken for a checkpoint or savepoint."""
        if step.target is None:
            return
        try:
            read_state(self.world, step.target)
        except StateStoreError:
            shutil.rmtree(step.target.path, ignore_errors=True)
            return
        raise ProblemError("what was refused was made", str(step.target.path))

    def _killed(self, step: Step) -> None:
        """Kill it at some moment, look, and do it again."""
        outcome = self._run(step, "kill", self._somewhere(step))
        if outcome.ending != "killed":
            self._settle(step, outcome)
            return
        self._repeated(step, "killed")

    def _on_a_full_disk(self, step: Step) -> None:
        """Let it run out of space, look, and do it again."""
        filler: Any = self._filler
        with filler.filled(int(self.rng.integers(0, 96)) << 10):
            outcome = self._run(step)
        if outcome.kind not in ("storage-full", "trial-failed"):
            self._settle(step, outcome, "full disk")
            return
        self._repeated(step, "full disk")

    def _repeated(self, step: Step, disturbance: str) -> None:
        """Require that a step that ended half way left all of before or all of after; repeat it."""
        before, after = step.source.state, step.apply(step.source.state)
        version = step.source.version
        if step.must_be_refused:
            after = before
        if step.look is not None:
            step.look()
        if step.target is None and not self._is_unfinished(step):
            found = self._one_of([before, after], step.source)
            step.source.note(found, batch=self.world.newest_version(step.source) - 1)
            self._read_partitions(step.source)
        if step.instead is not None and self.rng.random() < 0.4:
            self._settle(step.instead, self._run(step.instead), disturbance)
            return
        outcome = self._run(step)
        if LEASE_LOST in outcome.text or outcome.ending == "killed":
            self._repeated(step, disturbance)
            return
        self._count(step, disturbance, outcome)
        require(outcome.ending in ("done", "refused"), "the repetition failed", outcome.text)
        if outcome.ending == "done":
            require(not step.must_be_refused, "what must be refused was done", outcome.text)
            self._done(step, outcome.value)
            if step.forgotten is not None:
                step.source.gone |= step.forgotten(before) - _keys(self.world, step.source)
            return
        if step.target is None:
            found = self._one_of([before, after], step.source)
            step.source.note(found, batch=self.world.newest_version(step.source) - 1)
            is_right = found == after or step.may_be_refused or self._has_to_wait(step, outcome)
            require(is_right, "the repetition was refused", outcome.text)
            self._read_partitions(step.source)
            if step.note is not None and step.source.version > version:
                step.note(step.source)  # it was made before the kill, also where no row changed
            if step.name == "undo":
                step.source.before_rescale, step.source.was_undone = None, True
            return
        try:
            read_state(self.world, step.target)
        except StateStoreError:
            is_right = step.may_be_refused or step.must_be_refused
            require(is_right, "the repetition was refused", outcome.text)
            self._require_no_target(step)
            return
        self._made(step, after)

    def _is_unfinished(self, step: Step) -> bool:
        """Return whether no query starts from a checkpoint until a step is repeated."""
        path = str(step.source.path)
        return step.instead is not None and unfinished_operation(LocalFileIO(), path) is not None

    def _finish(self, step: Step) -> None:
        """Repeat a step, or take it back, where it left an unfinished checkpoint."""
        if self._is_unfinished(step):
            chosen: Any = step if self.rng.random() < 0.5 else step.instead
            outcome = self._run(chosen)
            require(outcome.ending == "done", "an end was refused", outcome.text)

    def _read_partitions(self, directory: Directory) -> None:
        """Take over what a checkpoint says of its state partitions."""
        number = Checkpoint(directory.path).inspect()[0].num_partitions
        if number != directory.num_partitions:
            directory.before_rescale = directory.num_partitions
        directory.num_partitions = number

    def _one_of(self, states: Iterable[State], directory: Directory) -> State:
        """Return the state that a directory has, which must be one of some."""
        found = read_state(self.world, directory)
        for state in states:
            if found == state:
                return state
        raise ProblemError("rows are neither of before nor of after", f"{found}")

    def _beside_another(self, step: Step) -> None:
        """Let it stand still at some moment, while another one begins and ends.

        That may be the same command, or what takes it back.
        """
        other, chance = step, self.rng.random()
        if step.instead is None or chance < 0.4:
            other = draw_step(self.world, self.rng, beside=True)
        elif chance < 0.7:
            other = step.instead
        self.story[-1] += f"\n  beside {other.call.describe()}"
        child = Child(step.call, "stop", self._somewhere(step), self._bug)
        is_stopped = child.is_stopped(serve=step.serve)
        second = run(other.call, bug=self._bug, serve=other.serve)
        if is_stopped:
            child.go_on()
        first = child.end(serve=step.serve)
        self._note_calls(step, first)
        ends = [(step, first), (other, second)]
        directory = self.world.current
        for one, outcome in ends:
            self._count(one, "beside another", outcome)
            require(outcome.ending != "failed", "one of two failed", outcome.text)
            is_right = (
                outcome.ending in ("done", "killed") or one.must_be_refused or one.may_be_refused
                or outcome.kind in SOMEBODY_ELSE or "--all" in outcome.text
            )  # fmt: skip
            require(is_right, "one of two was refused", outcome.text)
        self._finish(step)
        self.world.tried = None
        changing = [
            (one, end) for one, end in ends if one.target is None and one.source is directory
        ]
        states = list(_sequences(directory.state, changing))
        before = directory.state
        self._note_one_of(states, directory)
        for one, outcome in ends:
            if one.target is not None and outcome.ending == "done":
                self._made_beside(one, [before, *states])
            elif one.target is not None:
                self._require_no_target(one)
            elif one.forgotten is not None and outcome.ending == "done":
                directory.gone |= one.forgotten(directory.state) - _keys(self.world, directory)
        if step.serve is not None and first.ending == "done" and other.name == "read":
            self._done(step, first.value)  # what was tried may be promoted next
            return
        directory.begin_sink()
        self._batches(1)

    def _made_beside(self, step: Step, states: list[State]) -> None:
        """Note what was made of a checkpoint that changed meanwhile."""
        target: Any = step.target
        made = states if step.source is self.world.current else [step.source.state]
        state = self._one_of([step.apply(one) for one in made], target)
        target.batch = self.world.newest_version(target) - 1
        target.state, target.versions = state, {target.version: state}
        self._read_partitions(target)
        self._keep(target)

    def _note_one_of(self, states: list[State], directory: Directory) -> None:
        found = self._one_of(states, directory)
        directory.note(found, batch=self.world.newest_version(directory) - 1)
        directory.versions = {directory.version: found}
        self._read_partitions(directory)

    def _beside_the_query(self, step: Step) -> None:
        """Let it stand still at some moment, while the query starts."""
        directory = self.world.current
        before, batch = directory.state, directory.batch
        self.world.feed(self.rng, 1)
        child = Child(step.call, "stop", self._somewhere(step), self._bug)
        is_stopped = child.is_stopped(serve=step.serve)
        if is_stopped and self.rng.random() < 0.8:
            time.sleep(EXPIRED_S)
        refusal = self._started()
        if is_stopped:
            child.go_on()
        outcome = child.end(serve=step.serve)
        self._note_calls(step, outcome)
        self._count(step, "beside the query", outcome)
        require(outcome.ending != "failed", "beside the query it failed", outcome.text)
        self._finish(step)
        self.world.tried = None
        newest = self.world.newest_version(directory) - 1
        read = [self.world.read_by(directory, one) for one in range(batch + 1, newest + 1)]

        def batches(state: State) -> State:
            for one in read:
                state = self.operator.step(state, one)
            return state

        after = [batches(before), batches(step.apply(before)), step.apply(batches(before))]
        if step.target is not None:
            after = after[:1]
        if step.instead is not None and read:
            del after[2]  # what was tried has not read them
        self._note_one_of(after, directory)
        directory.begin_sink()  # the order of the two decides what it has
        if step.target is not None and outcome.ending == "done":
            self._made_beside(step, [before, directory.state])
        elif step.target is not None:
            self._require_no_target(step)
        if refusal:
            kind = next((kind for kind in KINDS if f"[{kind}]" in refusal), refusal[:200])
            self.story.append(f"  the query was refused: {kind}")
        self._batches(1)

    def _started(self) -> str:
        """Start the query; return how it was refused, if it was."""
        try:
            self.world.run_query(self.world.current)
        except QueryFailedError as error:
            return str(error)
        return ""

    # Audit

    def _audit(self) -> None:
        current = self.world.current
        current.gone -= _keys(self.world, current)
        self.world.ever |= _keys(self.world, current)
        self.tally.rows += audit(self.world, current, self.rng)
        self.tally.audits += 1
        if current.gone:
            self.tally.searches += 1
            found = forgotten_bytes(self.world, current)
            require(not found, "bytes of a forgotten key are there", "\n".join(found[:5]))
        if self.world.others and self.rng.random() < 0.3:
            other = self.world.others[self.rng.integers(len(self.world.others))]
            self.tally.rows += audit(self.world, other, self.rng)


def _keys(world: World, directory: Directory) -> set[Any]:
    return grouping_keys(world, directory.state)


def _sequences(state: State, ends: list[tuple[Step, Outcome]]) -> Iterable[State]:
    """Yield what steps may have made of a state: those that are done, in any order, and others."""
    for length in range(len(ends) + 1):
        for chosen in permutations(ends, length):
            if all(any(end is one for one in chosen) for end in ends if end[1].ending == "done"):
                after = state
                for step, _ in chosen:
                    after = step.apply(after)
                yield after
