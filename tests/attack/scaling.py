"""Steps in which a query has another number of state partitions by itself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import statestore
from statestore import Between, FixedDelay
from tests.spark.harness import STATE_STORE

from .audit import require
from .child import run
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
    """Run a query that scales by itself; at times behind one that was killed while it did."""
    directory = world.current
    if world.has_planned_batch(directory):
        return None
    least = int(rng.choice([1, 2, 3, 4, 6, 8]))
    most = least * int(rng.choice([1, 2]))
    kills, at = bool(rng.random() < 0.5), int(rng.integers(0, 50))
    world.feed(rng, int(rng.integers(2, 5)))

    def scales() -> None:
        # What a driver leaves which is killed between the stop of the query and its next start.
        if kills:
            run(by_call(directory, "rescale", least), "kill", at)
        handles: list[Any] = []

        def start() -> Any:
            handles.append(world.start(directory, every="100 milliseconds"))
            return handles[-1]

        def stop() -> None:
            until = time.monotonic() + LONGEST_S
            while runs.is_set() and not (
                world.has_read_all(directory)
                and (time.monotonic() > until or least <= world.partitions_of(directory) <= most)
            ):
                time.sleep(0.2)
            while runs.is_set():
                handles[-1].stop()
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

    call = by_call(directory, "start", scale=(least, most), killed_at=at if kills else None)
    return Step("scale", call, in_process=scales)
