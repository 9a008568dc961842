"""Steps in which a query has another number of state partitions by itself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import statestore
from statestore import Between, FixedDelay
from tests.spark.harness import STATE_STORE

from .audit import audit, require
from .child import run
from .driver import EVERY, Driven, drive
from .steps import Step, by_call
from .world import NO_WORKER, NUM_TRIES

if TYPE_CHECKING:
    from typing import Any

    from numpy.random import Generator

    from .world import Directory, World

LONGEST_S = 30.0
"""So long a query may take to be scaled, where it can be."""


def ask_partitions(world: World, rng: Generator) -> Step | None:
    """Have the query's next start change the number of state partitions, by its configuration."""
    number = int(rng.choice([1, 2, 3, 4, 6]))
    directory, before = world.current, world.current.num_partitions
    if world.has_planned_batch(directory):
        return None

    def ask() -> None:
        conf = {f"{STATE_STORE}.partitions": str(number)}
        statestore.run(lambda: world.start(directory, conf=conf))

    def note(directory: Directory) -> None:
        if number != before:
            directory.before_rescale, directory.num_partitions = before, number

    call = by_call(directory, "start", partitions=number)
    return Step("ask partitions", call, note=note, in_process=ask)


def scale(world: World, rng: Generator) -> Step | None:
    """Run a query that scales by itself; at times behind one that was killed while it did.

    What is killed is a driver, at some moment from its first start of the query to the one behind
    a change; or, which takes less time, the change alone.
    """
    directory = world.current
    if world.has_planned_batch(directory):
        return None
    least = int(rng.choice([1, 2, 3, 4, 6, 8]))
    most = least * int(rng.choice([1, 2]))
    killed = str(rng.choice(["", "change", "driver"], p=[0.4, 0.3, 0.3]))
    # The first ones are a start, the stop for a change, and the begin of that.
    at = int(rng.integers(0, 80 if rng.random() < 0.6 else 8))
    before = directory.num_partitions
    world.feed(rng, int(rng.integers(2, 5)))

    def scales() -> None:
        if killed == "change":
            run(by_call(directory, "rescale", least), "kill", at)
        if killed == "driver":
            drive(Driven(world.plan, world.root, directory, world.files, least, most, at))
            world.absorb(directory)
            number = world.partitions_of(directory)
            is_one = number == before or least <= number <= most
            require(is_one, "a killed driver left another number", f"{number}, before: {before}")
            audit(world, directory)
        handles: list[Any] = []

        def start() -> Any:
            handles.append(world.start(directory, every=EVERY))
            return handles[-1]

        def stop() -> None:
            until = time.monotonic() + LONGEST_S
            while runs.is_set() and not (
                world.has_read_all(directory)
                and (time.monotonic() > until or least <= world.partitions_of(directory) <= most)
            ):
                time.sleep(0.2)
            while runs.is_set():
                for handle in handles[-1:]:  # none before its first start
                    handle.stop()
                time.sleep(0.2)

        runs = threading.Event()
        runs.set()
        stopping = threading.Thread(target=stop)
        stopping.start()
        try:
            past = statestore.run(
                start, FixedDelay(NUM_TRIES, 0.1), scale=Between(least, most, cool_down=1)
            )
        finally:
            runs.clear()
            stopping.join()
            world.absorb(directory)
        wrong = [one for one in past.failures if NO_WORKER not in str(one)]
        require(not wrong, "a query that scales has failed", str(wrong))

    call = by_call(directory, "start", scale=(least, most), killed=(killed, at))
    return Step(f"scale, killed: {killed}" if killed else "scale", call, in_process=scales)
