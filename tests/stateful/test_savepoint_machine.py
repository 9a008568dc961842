"""Batches, savepoints, restores, claims and branches in any order, against a model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statestore import Savepoint
from tests.checkpoints import AGGREGATION, GLOBAL_LIMIT, OPTIONS, query_of, read_rows
from tests.seams import at

ROWS = st.dictionaries(
    st.integers(0, 30).map(str), st.none() | st.text("ab", max_size=3), max_size=12
)
BACKENDS = st.sampled_from(["filesystem", "filesystem", "rocksdb"])
PARTITIONS = st.sampled_from([1, 2, 4])


class SavepointMachine(RuleBasedStateMachine):
    """A query that is moved from checkpoint to checkpoint, and the savepoints taken on the way."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="savepoints-"))
        self.made = 0
        self.query = None
        self.savepoints = {}

    def teardown(self):
        shutil.rmtree(self.root)

    def new(self):
        self.made += 1
        return str(self.root / str(self.made))

    @initialize(
        backend=BACKENDS,
        partitions=PARTITIONS,
        fmt=st.sampled_from([1, 2]),
        rows=ROWS.filter(lambda rows: any(text is not None for text in rows.values())),
    )
    def begin(self, backend, partitions, fmt, rows):
        self.query = query_of(
            self.new(),
            backend=backend,
            num_partitions=partitions,
            checkpoint_format=fmt,
            operators=(AGGREGATION, GLOBAL_LIMIT),
        )
        self.query.run_batch(rows)

    @rule(rows=ROWS)
    def run(self, rows):
        self.query.run_batch(rows)

    @rule(form=st.sampled_from(["canonical", "native"]))
    def take(self, form):
        name = self.new()
        taken = at(self.query.path, options=OPTIONS).savepoint(name, form=form).made.info
        assert taken.version == self.query.version
        self.savepoints[name] = (self.query.expected(), dict(self.query.numbers))

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data(), backend=BACKENDS, partitions=PARTITIONS, claims=st.booleans())
    def restore(self, data, backend, partitions, claims):
        name = data.draw(st.sampled_from(sorted(self.savepoints)))
        checkpoint = self.new()
        at(name, kind=Savepoint, options=OPTIONS).restore(
            checkpoint, backend=backend, num_partitions=partitions, claim=claims
        )
        _, numbers = self.savepoints.pop(name) if claims else self.savepoints[name]
        assert Path(name).exists() != claims
        self.query.numbers, self.query.backend = dict(numbers), backend
        self.query.path = checkpoint

    @rule()
    def branch(self):
        checkpoint = self.new()
        at(self.query.path, options=OPTIONS).branch(checkpoint)
        shutil.rmtree(self.query.path)
        self.query.path = checkpoint

    @invariant()
    def every_row_is_there(self):
        if self.query is not None:
            assert read_rows(self.query.path) == self.query.expected()

    @precondition(lambda self: self.savepoints)
    @invariant()
    def newest_savepoint_is_whole(self):
        name = list(self.savepoints)[-1]
        assert read_rows(name) == self.savepoints[name][0]


TestSavepointMachine = SavepointMachine.TestCase
TestSavepointMachine.settings = settings(
    max_examples=max(settings.default.max_examples // 10, 4), stateful_step_count=8, deadline=None
)
