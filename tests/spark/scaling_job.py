"""A query that scales by itself, whose driver kills itself in the middle of the change."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import statestore
from statestore import Between, Checkpoint, NoRestart
from statestore.api import scaling
from statestore.core.clock import ManualClock
from statestore.operations.step import Step

from .application import start_application
from .harness import Lane, wait_for
from .queries import AGGREGATION, one_input

SCALED = replace(AGGREGATION, name="killed", plan=one_input(12))
MOMENTS = {
    "stopping": 4, "stopped": 4, "first": 4, "state": 4, "planned": 4, "committed": 8,
    "rescaled": 8, "started": 8,
}  # fmt: skip
"""Of a change, in order, with the number of state partitions that a kill leaves: before the query
is stopped, and when it was; before anything is written, among the state files, when it is planned
in Spark's offset log and not committed, before the history says that it is done; before the query
is started, and when it was."""


class Killer:
    """Kills this process in a moment of the first change of a checkpoint."""

    def __init__(self, checkpoint: Path, moment: str) -> None:
        self._checkpoint, self._moment = checkpoint, moment
        self._num_changes = 0
        before_change, end = Step.before_change, Step.end

        def ask(step: Step) -> None:
            self._num_changes += 1
            self.kill({1: "first", 4: "state"}.get(self._num_changes, ""))
            if newest(checkpoint, "offsets") > newest(checkpoint, "commits"):
                self.kill("planned")
            before_change(step)

        def end_of(step: Step) -> None:
            self.kill("committed")
            end(step)

        Step.before_change, Step.end = ask, end_of  # type: ignore[method-assign]
        stop, rescale = scaling.stop_after_batch, scaling.rescale

        def stop_query(*arguments: Any, **named: Any) -> bool:
            self.kill("stopping")
            is_alone = stop(*arguments, **named)
            self.kill("stopped")
            return is_alone

        def rescale_all(*arguments: Any, **named: Any) -> Any:
            result = rescale(*arguments, **named)
            if not named.get("dry_run"):
                self.kill("rescaled")
            return result

        scaling.stop_after_batch, scaling.rescale = stop_query, rescale_all

    def kill(self, moment: str) -> None:
        """Kill this process where it is the moment."""
        if moment == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


def newest(checkpoint: Path, log: str) -> int:
    """Return the newest batch in a log of Spark's, -1 where there is none."""
    names = [path.name for path in (checkpoint / log).iterdir()]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def main(moment: str, text: str) -> None:
    """Run the query until it has 8 state partitions and has read all, or is killed."""
    arguments = json.loads(text)
    root = Path(arguments["root"])
    jars = [Path(jar) for jar in arguments["jars"]]
    session = start_application(root, jars, conf={"spark.sql.shuffle.partitions": "4"})
    lane = Lane(session, SCALED, arguments["provider"], root / SCALED.name)
    if not lane.checkpoint.exists():
        lane.feed(*SCALED.plan[0])
    killer = Killer(lane.checkpoint, moment)
    clock = ManualClock(now_ms=0)
    handles: list[Any] = []

    def on_batch(_: int) -> None:
        time.sleep(0.6)  # longer than the time between two looks: no batch is passed over
        clock.advance(200_000)

    def start() -> Any:
        handles.append(lane.start(every="100 milliseconds"))
        if len(handles) == 2:
            killer.kill("started")
        return handles[-1]

    def has_read_all() -> bool:
        batch = newest(lane.checkpoint, "commits")
        if batch < 0 or Checkpoint(lane.checkpoint).info.num_partitions != 8:
            return False
        planned = (lane.checkpoint / "offsets" / str(batch)).read_text()
        offset = json.loads(planned.splitlines()[-1])["logOffset"]
        return bool(offset == len(SCALED.plan[0]) - 1)

    def stop() -> None:
        wait_for(has_read_all, "the last file", timeout_s=100)
        handles[-1].stop()

    lane.on_batch = on_batch
    threading.Thread(target=stop).start()
    past = statestore.run(start, NoRestart(), scale=Between(8, 8, cool_down=300), clock=clock)
    session.stop()
    report = {"batches": lane.batches, "starts": past.attempts}
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
