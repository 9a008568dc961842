"""Random programs of keyed state on Spark, each beside a model of plain dicts and the harness.

    $ python -m tests.attack.keyed --seed 7 --minutes 5 [--program 12]

A program has states of random types, timers and a time to live; its rows say what is called of
them. It runs in batches with restarts, on a backend, at times with another number of partitions.
What it returns is compared row by row. A program that failed is repeated by `--program`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from statestore import Checkpoint, keyed
from statestore.io.shim_jar import find_jar
from statestore.testing.keyed_harness import KeyedHarness
from tests.attack import keyed_bugs
from tests.attack.keyed_bugs import BUGS
from tests.keyed import kinds, model, program
from tests.keyed.kinds import (
    MISFITS,
    Ddl,
    Given,
    fields_of,
    fits,
    key_kind_of,
    kind_of,
    show,
    value_of,
)
from tests.keyed.program import (
    PLANNED,
    START_MS,
    TICK_MS,
    Call,
    FieldsProgram,
    Program,
    State,
)
from tests.spark.application import start_application
from tests.spark.harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND, Lane, Query

# Workers cannot import the tests.
for _module in (kinds, model, program, keyed_bugs):
    cloudpickle.register_pickle_by_value(_module)

KEYS = ("a", "bé", "c" * 40, "", None)
STEP_MS = 20_000
"""Between batches, by processing time and by event time."""
SCHEMA = "key STRING, part LONG, step LONG, at LONG"
BACKENDS = (FILESYSTEM, FILESYSTEM, ROCKSDB_BACKEND, ROCKSDB)
METHODS = {
    "value": "value value update update update clear misfit",
    "list": "get get_first add add add_all update update_by_itself add_itself get_twice clear "
    "get_and_clear misfit",
    "map": "get get put put put put_all put_itself remove contains items items_by_part keys values "
    "is_any is_empty remove_some clear items_and_clear misfit",
    "reducing": "get add add add clear misfit",
    "aggregating": "get add add add clear",
}


class Plan(NamedTuple):
    """A program with what it is fed.

    Attributes:
        batches: Rows of each batch.
        runs: Batches of each run.
        partitions: Number of state partitions from a run on; None where it stays.
        taken: Numbers of the states that a run has; it deletes the others.
        fails: Steps that fail once.
        key_columns: What the rows are grouped by.
    """

    states: list[State]
    calls: list[list[Call]]
    on_timers: list[list[Call]]
    time_mode: Any
    provider: str
    has_fields: bool
    batches: list[list[dict[str, Any]]]
    runs: list[list[int]]
    partitions: list[int | None]
    taken: list[list[int]]
    fails: set[int]
    key_columns: list[str]

    def function(self, which: int, run: int, directory: Path, bug: str | None = None) -> Program:
        make = FieldsProgram if self.has_fields else Program
        fails_at = {step: str(directory / f"failed-{step}") for step in self.fails}
        return make(
            self.states, self.calls, self.on_timers, self.time_mode, which, self.taken[run],
            fails_at, BUGS.get(bug or ""),
        )  # fmt: skip


def plan_of(rng: Random) -> Plan:
    """Return a random program."""
    time_mode = rng.choice(["None", "EventTime", "ProcessingTime", "ProcessingTime"])
    states = [_state_of(rng, f"s{number}", time_mode) for number in range(rng.randint(3, 7))]
    pool = {number: [value_of(rng, state.key_kind, is_key=True) for _ in range(4)]
            for number, state in enumerate(states) if state.what == "map"}  # fmt: skip
    batches, calls = [], []
    for batch in range(rng.randint(3, 4)):
        rows = []
        for place in range(rng.randint(15, 60)):
            calls.append([_call_of(rng, states, pool, time_mode) for _ in range(rng.randint(1, 9))])
            row = {"key": rng.choice(KEYS), "part": rng.choice([1, 2, None])}
            at_ms = START_MS + batch * STEP_MS + place
            rows.append({**row, "step": len(calls) - 1, "at": at_ms})
        batches.append(rows)
    on_timers = [
        [_call_of(rng, states, pool, time_mode, timers=0.5) for _ in range(rng.randint(0, 7))]
        for _ in range(7)
    ]
    runs: list[list[int]] = []
    for batch in range(len(batches)):
        if not runs or time_mode == "ProcessingTime" or rng.random() < 0.5:
            runs.append([])
        runs[-1].append(batch)
    provider = rng.choice(BACKENDS)
    partitions = [
        rng.choice([2, 4, 6]) if run and provider != ROCKSDB and rng.random() < 0.3 else None
        for run in range(len(runs))
    ]
    everything = [*range(len(states))]
    taken = [everything if rng.random() < 0.7 else everything[rng.randint(1, 2) :] for _ in runs]
    if provider == ROCKSDB:
        taken = [everything for _ in runs]
        calls, on_timers = (
            [[_without_removal(call, states) for call in each] for each in those]
            for those in (calls, on_timers)
        )
    fails = {rng.randrange(len(calls))} if rng.random() < 0.3 else set()
    has_fields = rng.random() < 0.25
    key_columns = ["key"] if rng.random() < 0.7 else ["key", "part"]
    return Plan(
        states, calls, on_timers, time_mode, provider, has_fields, batches, runs, partitions,
        taken, fails, key_columns,
    )  # fmt: skip


def _state_of(rng: Random, name: str, time_mode: str) -> State:
    what = rng.choice([*METHODS])
    kind = kind_of(rng)
    while what == "aggregating" and isinstance(kind, Ddl):
        kind = kind_of(rng)
    if what in ("list", "map") and fields_of(kind) is None and rng.random() < 0.3:
        kind = kind | None
    default = value_of(rng, kind) if what == "value" and rng.random() < 0.3 else None
    ttl = None
    if time_mode == "ProcessingTime" and rng.random() < 0.8:
        lives = timedelta(
            milliseconds=rng.choice([1, *(part * STEP_MS // 2 for part in (2, 3, 5))])
        )
        ttl = keyed.StateTtlConfig(lives, rng.choice(["OnCreateAndWrite", "OnReadAndWrite"]))
    return State(name, what, kind, key_kind_of(rng) if what == "map" else None, default, ttl)


def _call_of(
    rng: Random, states: list[State], pool: dict[int, list[Given]], mode: str, timers: float = 0.15
) -> Call:
    if mode != "None" and rng.random() < timers:
        after_ms = rng.choice([-1, 0, 1, 1, 2, 4, 5, 9]) * TICK_MS
        return Call(after_ms, rng.choice(["register", "register", "delete"]))
    number = rng.randrange(len(states))
    state = states[number]
    method = rng.choice(METHODS[state.what].split())
    if method == "misfit":
        return _misfit(rng, number, state, pool)
    value = value_of(rng, state.kind)
    several = [value_of(rng, state.kind) for _ in range(rng.randint(0, 3))]
    both = Given([each.given for each in several], [each.kept for each in several])
    if method == "update" and state.what == "value":
        return Call(number, method, (Given(None, None) if rng.random() < 0.1 else value,))
    if method == "add":
        return Call(number, method, (value,))
    if method in ("add_all", "update"):
        return Call(number, method, (both,))
    if state.what == "map" and method in ("get", "put", "remove", "contains"):
        key = rng.choice(pool[number])
        return Call(number, method, (key, value) if method == "put" else (key,))
    if method == "put_all":
        keys = [rng.choice(pool[number]) for _ in several]
        entries = {k.kept: (k.given, v) for k, v in zip(keys, several, strict=True)}
        given = {key: each.given for key, each in entries.values()}
        return Call(number, method, (Given(given, {k: v.kept for k, (_, v) in entries.items()}),))
    return Call(number, method)


def _without_removal(call: Call, states: list[State]) -> Call:
    """Return a call that Spark's own provider survives: it evicts what is put again too early."""
    instead = {"remove": "contains", "remove_some": "is_any"}
    has_ttl = call.method in instead and states[call.state].ttl is not None
    return call._replace(method=instead[call.method]) if has_ttl else call


def _misfit(rng: Random, number: int, state: State, pool: dict[int, list[Given]]) -> Call:
    misfit = rng.choice([each for each in MISFITS if not fits(each, state.kind)])
    arguments: list[Any]
    if state.what == "map":
        arguments = ["put", rng.choice(pool[number]).given, misfit]
    elif state.what == "value" and misfit is not None:
        arguments = ["update", misfit]
    elif state.what == "value":
        arguments = ["update", object()]
    else:
        arguments = ["add", misfit]
    return Call(number, "misfit", tuple(Given(each, None) for each in arguments))


class DiffersError(AssertionError):
    """A program returned what the model did not."""


def try_program(
    spark: SparkSession, plan: Plan, directory: Path, tried: Counter[str], bug: str | None = None
) -> None:
    """Run a program and its model, and compare every batch.

    Raises:
        DiffersError: They differ.
    """
    current = 0

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        events = streams["events"].withColumn("ts", sf.timestamp_millis("at"))
        groups = events.withWatermark("ts", "0 seconds").groupBy(*plan.key_columns)
        function = plan.function(0, current, directory, bug)
        return keyed.process(groups, function, time_mode=plan.time_mode)

    by_event = plan.time_mode == "EventTime"
    conf = {
        "spark.sql.streaming.noDataMicroBatches.enabled": str(by_event).lower(),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    query = Query("keyed", build, "append", {"events": SCHEMA}, [], conf)
    lane, plain = Lane(spark, query, plan.provider, directory), model.Plain(plan.key_columns)
    harness = KeyedHarness(
        plan.function(0, 0, directory), plan.key_columns, time_mode=plan.time_mode
    )
    for current, (run, partitions) in enumerate(zip(plan.runs, plan.partitions, strict=True)):
        num_before = len(lane.progress)
        if partitions is not None:
            Checkpoint(lane.checkpoint).rescale(partitions)
            tried["rescale"] += 1
        files = [{"events": plan.batches[batch]} for batch in run]
        if not by_event and plan.time_mode != "None" and run[0]:
            _run_at(lane, files[0])
        else:
            lane.feed(*files)
            _run(lane)
        plain.begin(plan.function(1, current, directory))
        harness.restart(plan.function(0, current, directory))
        _compare(lane, plan, run, plain, harness, lane.progress[num_before:], tried)
        if plan.provider != ROCKSDB:
            _compare_stored(lane, plan, plain, tried)
            _compare_begun(lane, plan, plan.function(0, current, directory), harness, tried)
        tried["run"] += 1
    tried["batch that failed and ran again"] += len([*directory.glob("failed-*")])
    tried.update(plain.seen)


def _run_at(lane: Lane, files: Mapping[str, Any]) -> None:
    """Run a batch 20 s after the one before by its clock: Spark finds it planned."""
    file = lane.root / "input" / "events" / f"{lane._fed:05d}.json"
    number = lane._fed
    lane.feed(files)
    checkpoint = lane.checkpoint
    read = {
        "path": f"file://{file}",
        "timestamp": (1_700_000_000 + number) * 1000,
        "batchId": number,
    }
    log = checkpoint / "sources" / "0" / str(number)
    log.write_text(f"v1\n{json.dumps(read, separators=(',', ':'))}")
    newest = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    batch = newest + 1  # a rescale is a batch of its own
    version, metadata, _ = (checkpoint / "offsets" / str(newest)).read_text().splitlines()
    at = json.loads(metadata)
    at["batchTimestampMs"] += STEP_MS
    offset = json.dumps({"logOffset": number}, separators=(",", ":"))
    planned = "\n".join([version, json.dumps(at, separators=(",", ":")), offset])
    (checkpoint / "offsets" / str(batch)).write_text(planned)
    _run(lane)


def _run(lane: Lane) -> None:
    """Run what was fed; Spark waits 10 s for a worker of Python, which a busy machine exceeds."""
    for attempts_left in range(4, -1, -1):
        try:
            lane.run()
        except StreamingQueryException as error:
            is_expected = "failed to connect back" in str(error) or PLANNED in str(error)
            if not is_expected or not attempts_left:
                raise
        else:
            return


def _compare(
    lane: Lane,
    plan: Plan,
    run: list[int],
    plain: model.Plain,
    harness: KeyedHarness,
    ran: list[dict[str, Any]],
    tried: Counter[str],
) -> None:
    """Compare what the batches of a run returned: Spark, the model, and the harness."""
    fed = iter([plan.batches[batch] for batch in run])
    for progress in ran:
        batch = progress["batchId"]
        rows = next(fed) if progress["numInputRows"] else []
        planned = (lane.checkpoint / "offsets" / str(batch)).read_text().splitlines()[1]
        now_ms, watermark_ms = -1, -1
        if plan.time_mode == "ProcessingTime":
            now_ms = json.loads(planned)["batchTimestampMs"]
        if plan.time_mode == "EventTime":
            at = datetime.strptime(progress["eventTime"]["watermark"], "%Y-%m-%dT%H:%M:%S.%f%z")
            watermark_ms = round(at.timestamp() * 1000)
        returned = plain.run([Row(**row) for row in rows], now_ms, watermark_ms)
        expected = sorted(map(repr, returned))
        if lane.batches[batch] != expected:
            pairs = zip(lane.batches[batch], expected, strict=False)
            different = next((pair for pair in pairs if pair[0] != pair[1]), "in their number")
            raise DiffersError(f"batch {batch}: {different}, states: {plan.states}")
        again = harness.batch(
            [Row(**row) for row in rows],
            at_ms=None if now_ms < 0 else now_ms,
            watermark_ms=None if watermark_ms < 0 else watermark_ms,
        )
        if sorted(map(repr, map(tuple, again))) != expected:
            raise DiffersError(f"batch {batch} of the harness, states: {plan.states}")
        for row in rows:
            for call in plan.calls[row["step"]]:
                is_timer = call.method in ("register", "delete")
                what = "timer" if is_timer else plan.states[call.state].what
                tried[f"{what}.{call.method}"] += 1
        tried["batch"] += 1
    if next(fed, None) is not None:
        raise DiffersError(f"too few batches: {len(ran)}")


def _compare_stored(lane: Lane, plan: Plan, plain: model.Plain, tried: Counter[str]) -> None:
    """Compare what the checkpoint holds: the entries of each key, when they expire, and timers."""
    checkpoint = Checkpoint(lane.checkpoint)
    for name, state in plain.states.items():
        found: Counter[Any] = Counter()
        for row in checkpoint.rows(name).read().to_pylist():
            key = row["key"]["key"] if state.is_map else row["key"]
            ends_ms = row["value"]["ttlExpirationMs"] if state.descriptor.ttl else None
            found[(*(key[each] for each in plan.key_columns), ends_ms)] += 1
        expected: Counter[Any] = Counter()
        for plain.key in state.of_keys:
            for entry in state.alive(is_read=False):
                ttl = state.descriptor.ttl
                expected[(*plain.key, ttl and entry.at_ms + ttl.ttl_ms)] += 1
        if found != expected:
            raise DiffersError(f"stored of {name}: {found - expected}, not {expected - found}")
        tried["state read from the checkpoint"] += 1
    if plan.time_mode == "None":
        return
    by = "event" if plan.time_mode == "EventTime" else "proc"
    timers = {
        (row["key"]["expiryTimestampMs"], tuple(row["key"]["key"].values()))
        for row in checkpoint.rows(f"${by}Timers_keyToTimestamp").read().to_pylist()
    }
    if timers != plain.timers:
        raise DiffersError(f"timers: {timers - plain.timers}, not {plain.timers - timers}")
    tried["timer read from the checkpoint"] += len(timers)


def _compare_begun(
    lane: Lane, plan: Plan, function: Program, harness: KeyedHarness, tried: Counter[str]
) -> None:
    """Compare a harness that begins with the checkpoint to the one that was fed all batches."""
    begun = KeyedHarness(
        function, plan.key_columns, time_mode=plan.time_mode, state=Checkpoint(lane.checkpoint)
    )
    begun.batch()  # at the beginning of time: no timer is due
    begun._store.now_ms = harness._store.now_ms
    for name in [plan.states[each].name for each in function.taken]:
        one, other = (_sorted(each.state(name)) for each in (begun, harness))
        if one != other:
            raise DiffersError(f"{name} of a harness from the checkpoint: {one}, not {other}")
        tried["state of a harness from the checkpoint"] += 1
    if begun.timers() != harness.timers():
        raise DiffersError(f"timers of a harness from the checkpoint: {begun.timers()}")


def _sorted(state: dict[Any, Any]) -> list[str]:
    """Return what keys have as text; the entries of a map have no order."""
    return sorted(
        show((key, sorted(map(show, value.items())) if isinstance(value, dict) else value))
        for key, value in state.items()
    )


def run(
    spark: SparkSession,
    seed: int,
    minutes: float,
    directory: Path,
    *,
    first: int = 0,
    programs: int = 10**6,
    bug: str | None = None,
) -> Counter[str]:
    """Try programs, and return what was tried and how often.

    Args:
        spark: Runs them.
        seed: What programs are planned by.
        minutes: No program begins after so many.
        directory: An empty one.
        first: Number of the first program.
        programs: How many, at most.
        bug: One of BUGS, to be planted.

    Raises:
        DiffersError: A program returned what the model did not; it is named.
    """
    tried: Counter[str] = Counter()
    begun = time.monotonic()
    for number in range(first, first + programs):
        if number > first and time.monotonic() - begun > minutes * 60:
            break
        plan = plan_of(Random(f"{seed}-{number}"))
        try:
            try_program(spark, plan, directory / str(number), tried, bug)
        except Exception as error:
            error.add_note(f"--seed {seed} --program {number}, {plan.provider}")
            raise
        tried["program"] += 1
        tried[plan.provider.rpartition(".")[2]] += 1
        tried[f"time mode {plan.time_mode}"] += 1
        for state in plan.states:
            ttl = "" if state.ttl is None else f" with TTL {state.ttl.update_type}"
            tried[f"{state.what} state{ttl}"] += 1
    return tried


def main() -> int:
    """Print the table of what was tried."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--program", type=int, help="this one alone")
    parser.add_argument("--bug", choices=list(BUGS), help="plant it: the run has to find it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statestore-keyed-") as directory:
        root = Path(directory)
        only = {} if arguments.program is None else {"first": arguments.program, "programs": 1}
        spark = start_application(root / "application", [find_jar()])
        try:
            tried = run(spark, arguments.seed, arguments.minutes, root, bug=arguments.bug, **only)
        except DiffersError as error:
            if arguments.bug is None:
                raise
            sys.stdout.write(f"{arguments.bug}: found in {error.__notes__}: {error}\n"[:2000])
            return 0
        finally:
            spark.stop()
    for name, times in sorted(tried.items()):
        sys.stdout.write(f"{times:8,}  {name}\n")
    return int(arguments.bug is not None)


if __name__ == "__main__":
    sys.exit(main())
