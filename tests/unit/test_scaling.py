"""The number of state partitions under loads of all kinds, of a query that is simulated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from statestore.api.scaling import Between, load_of
from statestore.core.clock import ManualClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.scaling import BUSY, IDLE, Load, Scaler

Curve = Callable[[float], float]
"""Rows a second at a time in seconds."""

COOL_DOWN_S = 300
HOUR_S = 3600


@dataclass
class Machine:
    """What a query runs on, and how it costs.

    Attributes:
        cores: Tasks at once.
        batch_s: What a batch takes beside its tasks.
        task_s: What a task takes beside its rows.
        row_s: What a row takes of a core.
        sink_s: What a row takes outside of the tasks, one after the other.
        skew: How much more rows the largest state partition has than the mean.
        noise: Standard deviation of the logarithm of what a batch takes.
        most_rows: Of a batch; None for all that there are.
        interval_s: Of the trigger.
        tells_backlog: Whether the source does.
        pause_s: What a change takes.
    """

    cores: int = 64
    batch_s: float = 0.3
    task_s: float = 0.02
    row_s: float = 0.001
    sink_s: float = 0.0
    skew: float = 1.0
    noise: float = 0.0
    most_rows: int | None = None
    interval_s: float = 10.0
    tells_backlog: bool = False
    pause_s: float = 3.0

    def takes_s(self, rows: float, num_partitions: int) -> float:
        """Seconds of a batch of so many rows."""
        waves = math.ceil(num_partitions / self.cores)
        largest = min(1.0, self.skew / num_partitions) * rows
        in_tasks = max(
            waves * (self.task_s + rows / num_partitions * self.row_s),
            self.task_s + largest * self.row_s,
        )
        return self.batch_s + in_tasks + rows * self.sink_s

    def rate(self, num_partitions: int, busy: float) -> float:
        """Rows a second that make a batch take so much of the interval."""
        low, high = 0.0, 1e9
        for _ in range(60):
            middle = (low + high) / 2
            takes_s = self.takes_s(middle * self.interval_s, num_partitions)
            low, high = (middle, high) if takes_s < busy * self.interval_s else (low, middle)
        return low


def simulate(
    machine: Machine,
    curve: Curve,
    numbers: list[int],
    start: int,
    *,
    hours: float = 1.0,
    seed: int = 0,
) -> list[tuple[float, int]]:
    """Run a query of simulated time; return when it had which number, the first at 0 s."""
    dice = random.Random(seed)
    clock = ManualClock(now_ms=0)
    scaler = Scaler(numbers, machine.interval_s * 1000, COOL_DOWN_S * 1000, 0)
    found = [(0.0, start)]
    waiting, seen_s, is_first, triggered_s = 0.0, 0.0, True, 0.0
    while clock.now_ms() < hours * HOUR_S * 1000:
        begun_s = clock.now_ms() / 1000
        waiting += curve(begun_s) * (begun_s - seen_s)
        seen_s = begun_s
        rows = waiting if machine.most_rows is None else min(waiting, machine.most_rows)
        waiting -= rows
        now = found[-1][1]
        took_s = machine.takes_s(rows, now) * math.exp(dice.gauss(0, machine.noise))
        clock.advance(math.ceil(took_s * 1000))
        gap_s = max(begun_s - triggered_s, 0.001)
        triggered_s = begun_s
        if rows:
            backlog = round(waiting) if machine.tells_backlog else None
            arriving = None if is_first else rows / gap_s
            scaler.note(Load(clock.elapsed_ms(), took_s * 1000, arriving, rows / took_s, backlog))
        is_first = False
        decision = scaler.decide(now, clock.elapsed_ms())
        if decision is not None:
            assert decision.reason
            clock.advance(math.ceil(machine.pause_s * 1000))
            scaler.changed(decision.num_partitions, now, clock.elapsed_ms())
            found.append((clock.now_ms() / 1000, decision.num_partitions))
            is_first = True
        next_s = begun_s + machine.interval_s
        clock.advance(max(0, math.ceil(next_s * 1000) - clock.now_ms()))
    return found


def numbers_of(found: list[tuple[float, int]]) -> list[int]:
    return [number for _, number in found]


def assert_allowed(found: list[tuple[float, int]], numbers: list[int]) -> None:
    """Every number is one of those allowed, and changes are as far apart as they have to be."""
    assert set(numbers_of(found[1:])) <= set(numbers)
    assert all(after != before for (_, before), (_, after) in pairwise(found))
    assert all(at - before >= COOL_DOWN_S for (before, _), (at, _) in pairwise(found[1:]))


POWERS = [4, 8, 16, 32, 64]


def test_number_follows_a_load_that_is_four_times_as_high_and_back():
    """Catches a number that does not follow, or that follows in more steps than it takes."""
    machine = Machine(noise=0.1)
    base = machine.rate(4, 0.45)

    def curve(at_s: float) -> float:
        return base * (4 if 1200 <= at_s < 2400 else 1)

    found = simulate(machine, curve, POWERS, 4)

    assert numbers_of(found) == [4, 16, 4] or numbers_of(found) == [4, 8, 16, 4]
    assert 1200 < found[1][0] < 1200 + 2 * COOL_DOWN_S
    assert found[-1][0] < 2400 + 2 * COOL_DOWN_S


def test_number_of_an_idle_query_falls_to_the_least():
    """Catches a query that keeps its partitions since no batch tells that there is no load."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)

    assert scaler.decide(16, 300_000.0) is None
    found = scaler.decide(16, 300_001.0)

    assert found is not None
    assert found.num_partitions == 4


def test_number_outside_of_those_allowed_is_left_at_once():
    """Catches a query that stays where it must not be."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)

    assert scaler.decide(200, 0).num_partitions == 64
    assert scaler.decide(1, 0).num_partitions == 4


def test_backlog_raises_the_number_where_batches_are_short():
    """Catches a query that falls behind unseen, since a limit keeps its batches short."""
    machine = Machine(interval_s=1, most_rows=5000, tells_backlog=True)
    capacity = 5000 / machine.takes_s(5000, 4)

    found = simulate(machine, lambda _: capacity * 1.5, POWERS, 4)

    assert numbers_of(found) in ([4, 8], [4, 16])


def test_load_of_before_an_outage_decides_nothing():
    """Catches a number that is risen to for rows that came hours ago, as the query comes back."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)
    for at_ms in (100_000, 110_000, 120_000):
        scaler.note(Load(at_ms, 30_000, 100.0, 50.0))
    for minute in range(1, 180):
        scaler.started(120_000 + minute * 60_000)
    back_ms = 120_000 + 180 * 60_000

    scaler.note(Load(back_ms, 30_000, 100.0, 50.0))

    assert scaler.decide(4, back_ms) is None


def test_one_quiet_batch_after_an_outage_does_not_lower_the_number():
    """Catches a number that is too small for the next peak, and stays for a whole cool-down."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)
    scaler.note(Load(100_000, 9_000, 100.0, 110.0))
    back_ms = 100_000
    for _ in range(10):
        back_ms += 60_000
        scaler.started(back_ms)

    for number in range(1, 40):
        at_ms = back_ms + number * 10_000
        scaler.note(Load(at_ms, 500, 1.0, 2.0))
        found = scaler.decide(64, at_ms)
        assert (found is None) == (number < 30), number


def test_slow_sink_does_not_raise_the_number_for_ever():
    """Catches pauses and tasks for nothing: more state partitions do not make a sink faster."""
    machine = Machine(sink_s=0.001, row_s=0.00001)

    found = simulate(machine, lambda _: 990.0, POWERS, 4, hours=5)

    assert len(found) <= 2


def _noted(scaler: Scaler, until_s: int, load: Callable[[int], Load], since_s: int = 0) -> None:
    for at_s in range(since_s + 10, until_s + 1, 10):
        scaler.note(load(at_s))


def _risen(read_by_s: int) -> tuple[Scaler, int]:
    """Return a scaler that has risen from 4 for a backlog, and to which number."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)
    waiting = 20_000_000
    _noted(scaler, 310, lambda at: Load(at * 1000, 5000, 1000.0, 2000.0, waiting - read_by_s * at))
    risen = scaler.decide(4, 310_000)
    assert risen is not None
    scaler.changed(risen.num_partitions, 4, 310_000)
    return scaler, risen.num_partitions


def test_number_that_was_left_for_a_backlog_is_gone_back_to():
    """Catches a query that has read its topic from the beginning, and keeps the number of then."""
    scaler, number = _risen(900)

    _noted(scaler, 700, lambda at: Load(at * 1000, 500, 100.0, 2000.0, 0), since_s=310)

    fallen = scaler.decide(number, 700_000)
    assert fallen is not None
    assert fallen.num_partitions == 4


def test_backlog_that_a_slow_sink_makes_is_no_reason_for_ever_more():
    """Catches a rise that is judged by what arrives alone, where nothing does any more."""
    scaler, number = _risen(1000)

    waiting = 19_000_000
    _noted(scaler, 700, lambda at: Load(at * 1000, 5000, 1000.0, 2000.0, waiting - 1000 * at), 310)

    assert scaler.decide(number, 700_000) is None


def _machine(dice: random.Random) -> Machine:
    """Any machine: cores for all or for few, skewed or not, with every kind of trigger."""
    return Machine(
        cores=dice.choice([4, 6, 16, 64, 256]),
        batch_s=dice.choice([0.05, 0.3, 2.0]),
        task_s=dice.choice([0.0, 0.02, 0.1]),
        row_s=dice.choice([1e-5, 1e-4, 1e-3]),
        sink_s=dice.choice([0.0, 0.0, 1e-6]),
        skew=dice.choice([1.0, 1.0, 1.3, 4.0]),
        noise=dice.choice([0.0, 0.05, 0.15, 0.3]),
        interval_s=dice.choice([1.0, 10.0, 10.0, 60.0]),
        tells_backlog=dice.random() < 0.5,
        pause_s=dice.choice([1.0, 5.0]),
    )


def _numbers(dice: random.Random) -> list[int]:
    """Divisors of a number of key groups between two bounds."""
    key_groups = dice.choice([32768, 25600, 24576])
    found: list[int] = []
    while not found:
        least, most = sorted(dice.sample(range(1, 129), 2))
        found = [number for number in range(least, most + 1) if key_groups % number == 0]
    return found


def _limit(dice: random.Random, machine: Machine, num_partitions: int) -> None:
    """Limit a batch to what some share of the interval takes, or not."""
    if dice.random() < 0.4:
        rate = machine.rate(num_partitions, dice.uniform(0.2, 1.5))
        machine.most_rows = max(1, round(rate * machine.interval_s))


def _steady(dice: random.Random, seed: int) -> None:
    machine, numbers = _machine(dice), _numbers(dice)
    _limit(dice, machine, dice.choice(numbers))
    rate = machine.rate(dice.choice(numbers), dice.uniform(0.05, 1.5))

    found = simulate(machine, lambda _: rate, numbers, dice.choice(numbers), hours=3, seed=seed)

    assert_allowed(found, numbers)
    assert len(found) <= 2 * len(numbers) + 1
    # No number is risen from twice, which is what an oscillation is.
    risen_from = [before for (_, before), (_, after) in pairwise(found) if after > before]
    assert len(risen_from) == len(set(risen_from)), (machine, numbers, found)


def _monotone(dice: random.Random, seed: int) -> None:
    machine, numbers = _machine(dice), _numbers(dice)
    machine.noise = dice.choice([0.0, 0.05, 0.1])
    machine.skew = 1.0
    low = machine.rate(numbers[0], dice.uniform(0.0, 0.5))
    high = machine.rate(numbers[-1], dice.uniform(0.1, 1.2))
    is_rising = dice.random() < 0.5
    steepness = dice.choice([0.5, 1.0, 3.0])

    def curve(at_s: float) -> float:
        part = min(1.0, at_s / (2 * HOUR_S)) ** steepness
        first, last = (low, max(low, high)) if is_rising else (max(low, high), low)
        return first + (last - first) * part

    start = numbers[0] if is_rising else numbers[-1]
    found = simulate(machine, curve, numbers, start, hours=2.5, seed=seed)

    assert_allowed(found, numbers)
    ways = [after > before for (_, before), (_, after) in pairwise(found)]
    assert set(ways) <= {is_rising}, (machine, numbers, found)


def _any(dice: random.Random, seed: int) -> None:
    """Days and nights, peaks, steps and random walks."""
    machine, numbers = _machine(dice), _numbers(dice)
    _limit(dice, machine, numbers[-1])
    most = machine.rate(numbers[-1], 0.8)
    steps = [most * dice.random() ** 2 for _ in range(40)]
    period_s = dice.uniform(60, HOUR_S)
    kind = dice.choice(["steps", "wave", "peaks"])

    def curve(at_s: float) -> float:
        if kind == "steps":
            return steps[int(at_s / 300) % len(steps)]
        if kind == "wave":
            return most * (0.5 + 0.5 * math.sin(at_s * 2 * math.pi / period_s))
        return most if at_s % period_s < 60 else most / 20

    found = simulate(machine, curve, numbers, dice.choice(numbers), hours=1, seed=seed)

    assert_allowed(found, numbers)
    assert len(found) - 1 <= HOUR_S / COOL_DOWN_S


CASES = {"steady": _steady, "monotone": _monotone, "any": _any}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "num_curves",
    [20, pytest.param(3400, marks=[pytest.mark.extended, pytest.mark.timeout(1200)])],
)
def test_number_does_not_oscillate(case: str, num_curves: int):
    """Catches a number that goes back and forth under a load that does not."""
    for seed in range(num_curves):
        try:
            CASES[case](random.Random(seed), seed)
        except AssertionError as error:
            error.add_note(f"seed={seed}")
            raise


@pytest.mark.parametrize(
    ("sources", "backlog"),
    [
        ([], None),
        ([(None, None)], None),
        ([({"logOffset": 3}, None)], None),
        ([(17, 20)], None),
        ([({"offset": 1, "timestamp": 5}, {"offset": 3, "timestamp": 9})], None),
        ([({"edits": {"0": 5, "1": 7}}, {"edits": {"0": 9, "1": 7}})], 4),
        ([({"edits": {"0": 5}}, {"edits": {"0": 5, "1": 7}})], None),
        ([({"a": {"0": 5}}, {"a": {"0": 6}}), ({"b": {"0": 1}}, {"b": {"0": 3}})], 3),
        ([({"a": {"0": 5}}, {"a": {"0": 6}}), (None, None)], 1),
    ],
)
def test_rows_that_wait_are_those_that_a_source_tells(sources: list[Any], backlog: int | None):
    """Catches times that are counted as rows, and errors where a source tells nothing."""
    progress = {
        "batchDuration": 250,
        "numInputRows": 10,
        "inputRowsPerSecond": None,
        "processedRowsPerSecond": 40.0,
        "sources": [{"endOffset": end, "latestOffset": latest} for end, latest in sources],
    }

    assert load_of(progress, 1.0) == Load(1.0, 250, None, 40.0, backlog)
    for unknown in (math.inf, math.nan, 0.0):  # 0 of the first batch of a run
        assert load_of({**progress, "inputRowsPerSecond": unknown}, 1.0).arriving is None
    none = {**progress, "numInputRows": 0, "inputRowsPerSecond": 0.0}
    assert load_of(none, 1.0).arriving == 0.0
    unknown_rates = {name: told for name, told in progress.items() if "PerSecond" not in name}
    assert load_of(unknown_rates, 1.0) == Load(1.0, 250, None, 0.0, backlog)


def test_between_shows_what_it_was_given():
    """Catches a notebook that shows an address in memory."""
    assert repr(Between(2, 8)) == "Between(2, 8, cool_down=300)"
    assert repr(Between(4, 4, cool_down=1.5)) == "Between(4, 4, cool_down=1.5)"


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Between(8, 4), "least"),
        (lambda: Between(0, 4), "least"),
        (lambda: Between(1, 1 << 16), "most"),
        (lambda: Between(1, 4, cool_down=0.5), "cool_down"),
        (lambda: Between(1, 4, cool_down=float("nan")), "cool_down"),
    ],
)
def test_bounds_out_of_range_are_refused_by_name(make: Callable[[], Between], argument: str):
    """Catches bounds that fail only when the query is to be scaled."""
    with pytest.raises(InvalidArgumentError) as raised:
        make()

    assert argument in str(raised.value)


def test_bounds_leave_room_for_each_other():
    """Catches shares by which a number that was just chosen is left again."""
    assert 2 * IDLE < 0.7 < BUSY


def test_number_outside_of_those_allowed_is_not_tried_again_within_the_cool_down():
    """Catches a query that is stopped for each batch, for a change that is refused each time."""
    scaler = Scaler(POWERS, 10_000, 300_000, 0)
    assert scaler.decide(200, 0).num_partitions == 64

    scaler.changed(200, 200, 1_000)

    assert scaler.decide(200, 300_999) is None
    assert scaler.decide(200, 301_000).num_partitions == 64
