"""Restore of a savepoint: which shapes a query goes on in, and which it does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from tests.checkpoints import (
    AGGREGATION,
    GLOBAL_AGGREGATION,
    GLOBAL_LIMIT,
    JOIN,
    OPTIONS,
    group_by,
    make_query,
    query_of,
    read_rows,
    restore,
)
from tests.seams import at

VARIABLES = Path(__file__).parents[1] / "golden" / "spark" / "rocksdb-ids-variables" / "checkpoint"


def test_restore_has_as_many_state_partitions_as_the_savepoints_logs_say(tmp_path):
    """Catches a rescale that nobody asked for, by a digit of the descriptor."""
    query = make_query(tmp_path / "query")
    saved = tmp_path / "saved"
    at(query.path, options=OPTIONS).savepoint(saved)
    path = saved / "metadata"
    path.write_text(path.read_text().replace('"num_partitions": 4', '"num_partitions": 7'))

    plan = Savepoint(saved).restore(tmp_path / "new", dry_run=True)
    assert (Savepoint(saved).info.num_partitions, plan.num_partitions) == (7, 4)


@pytest.mark.parametrize("join_format", ["2", "3", "4"])
def test_join_that_is_added_has_four_stores_whatever_is_pinned(tmp_path, join_format):
    """Catches a query that never starts: it looks for one store, and finds four others."""
    query = make_query(tmp_path / "query", checkpoint_format=2, operators=(AGGREGATION,))
    for path in (tmp_path / "query" / "offsets").iterdir():
        head, metadata, *rest = path.read_text().split("\n")
        fields = json.loads(metadata)
        fields["conf"]["spark.sql.streaming.join.stateFormatVersion"] = join_format
        path.write_text("\n".join([head, json.dumps(fields), *rest]))
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")

    restore(tmp_path / "savepoint", tmp_path / "new", add_operators={1: "symmetricHashJoin"})

    entry = json.loads((tmp_path / "new" / "commits" / "2").read_text().split("\n")[1])
    assert {len(ids) for ids in entry["stateUniqueIds"]["1"]} == {4}
    files = [*(tmp_path / "new" / "state" / "1").rglob("3_*.arrows")]
    assert len(files) == 4 * 4
    assert not [path for path in files if path.parent.name.isdigit()]
    # A join with one store is begun by Spark in batch 0 of a query alone.
    planned = json.loads((tmp_path / "new" / "offsets" / "2").read_text().split("\n")[1])
    assert planned["conf"]["spark.sql.streaming.join.stateFormatVersion"] == "2"


def test_operators_are_renumbered_dropped_and_added(tmp_path):
    """Catches state under another operator's number."""
    query = make_query(
        tmp_path / "query", checkpoint_format=2, operators=(AGGREGATION, GLOBAL_LIMIT, JOIN)
    )
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")

    restore(
        tmp_path / "savepoint", tmp_path / "again",
        map_operators={0: 1, 2: 0}, drop_operators=[1], add_operators={2: "dedupe"},
    )  # fmt: skip

    # With an operator that is new, Spark writes all operators' metadata in its first batch.
    metadata = tmp_path / "again" / "state" / "0" / "_metadata" / "metadata"
    assert not metadata.exists()
    assert (
        "as the first one after a restore with --add-operator does"
        in Checkpoint(tmp_path / "again").verify().to_fix
    )
    entry = json.loads((tmp_path / "again" / "commits" / "2").read_text().split("\n")[1])
    assert {number: (len(ids), len(ids[0])) for number, ids in entry["stateUniqueIds"].items()} == {
        "0": (4, 4),
        "1": (4, 1),
        "2": (4, 1),
    }
    for partition, ((checkpoint_id,), (empty_id,)) in enumerate(
        zip(entry["stateUniqueIds"]["1"], entry["stateUniqueIds"]["2"], strict=True)
    ):
        with Checkpoint(tmp_path / "again").open_store(
            1, partition, version=3, checkpoint_id=checkpoint_id
        ) as store:
            assert dict(store.scan()).items() <= query.expected()[0, "default"].items()
        with Checkpoint(tmp_path / "again").open_store(
            2, partition, version=3, checkpoint_id=empty_id
        ) as store:
            assert len(store) == 0

    restore(
        tmp_path / "savepoint", tmp_path / "fewer",
        map_operators={2: 0, 0: 1},
        drop_operators=[1],
    )  # fmt: skip
    rows = read_rows(tmp_path / "fewer")
    assert rows[1, "default"] == query.expected()[0, "default"]
    assert rows[0, JOIN[1][0].name] == query.expected()[2, JOIN[1][0].name]
    assert (tmp_path / "fewer/state/0/0" / JOIN[1][1].name / "_metadata/schema").exists()
    for wrong, message in (
        ({"map_operators": {0: 2}}, "operators 0, 1, 2"),
        ({"map_operators": {7: 0}}, "no such operator"),
        ({"drop_operators": [0]}, "operators 0, 1, 2"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            restore(tmp_path / "savepoint", tmp_path / "wrong", **wrong)


def test_what_has_no_key_stays_in_one_partition_from_one_to_many(tmp_path):
    """Catches a limit or a global aggregation dealt out where one partition does not tell."""
    query = query_of(
        tmp_path / "query", num_partitions=1, checkpoint_format=2,
        operators=(AGGREGATION, GLOBAL_LIMIT, GLOBAL_AGGREGATION),
    )  # fmt: skip
    query.run_batch({f"key-{number}": "value" for number in range(20)})
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")

    restore(tmp_path / "savepoint", tmp_path / "again", num_partitions=4)

    assert read_rows(tmp_path / "again") == query.expected()
    entry = json.loads((tmp_path / "again" / "commits" / "0").read_text().split("\n")[1])
    assert [len(ids) for ids in entry["stateUniqueIds"].values()] == [4, 1, 1]


@pytest.mark.parametrize("num_partitions", [0, -1, 32_769])
def test_parallelism_out_of_range_is_refused(tmp_path, num_partitions):
    """Catches a checkpoint without state partitions, and 0 taken for "as before"."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    with pytest.raises(InvalidArgumentError, match="out of range"):
        restore(tmp_path / "savepoint", tmp_path / "again", num_partitions=num_partitions)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("num_partitions", [2, 3])
def test_rows_that_do_not_follow_their_keys_are_not_dealt_out(tmp_path, num_partitions):
    """Catches rows dealt out to partitions in which Spark does not look for them."""
    query = make_query(tmp_path / "query")
    with Checkpoint(query.path).open_store(0, 0) as store:
        batch = store.begin()
        batch.put(b"of another partition", b"", key_group=1)
        batch.commit()
    for partition in range(1, 4):
        with Checkpoint(query.path).open_store(0, partition) as store:
            store.begin().commit()
    query.plan()
    query.commit({})
    at(query.path, options=OPTIONS).savepoint(tmp_path / "foreign")
    with pytest.raises(IncompatibleError) as raised:
        restore(tmp_path / "foreign", tmp_path / "again", num_partitions=num_partitions)
    assert raised.value.kind == "not-rescalable"


@pytest.mark.parametrize(
    "columns", [{"value": "integer"}, {"value": "decimal(10,2)"}, {"a": "string", "b": "string"}]
)
def test_state_by_another_key_than_its_input_is_not_dealt_out(tmp_path, columns):
    """Catches state of `groupBy(columns).as[K, V]` where Spark, by the columns, does not look."""
    shutil.copytree(VARIABLES, tmp_path / "sparks")
    Checkpoint(tmp_path / "sparks").restore(tmp_path / "own", num_partitions=1)
    for name in ("sparks", "own"):
        group_by(tmp_path / name, **columns)
    Checkpoint(tmp_path / "own").savepoint(tmp_path / "saved")

    of_each = (Checkpoint, "sparks"), (Checkpoint, "own"), (Savepoint, "saved")
    for kind, name in of_each:
        with pytest.raises(IncompatibleError, match=r"grouped_by=.* key=") as raised:
            kind(tmp_path / name).restore(tmp_path / "new", num_partitions=4)
        assert raised.value.kind == "not-rescalable"
        kind(tmp_path / name).restore(tmp_path / f"{name}-as-it-was")
    with pytest.raises(IncompatibleError, match="by other columns") as raised:
        Checkpoint(tmp_path / "own").rescale(4)
    assert raised.value.kind == "not-rescalable"
    assert not (tmp_path / "new").exists()
    (converted,) = Checkpoint(tmp_path / "sparks-as-it-was").inspect()
    assert not converted.rescalable


def test_state_by_the_columns_of_its_input_is_dealt_out_whatever_they_are_called(tmp_path):
    """Catches a query refused for the name of its column, which a key of one value has not."""
    shutil.copytree(VARIABLES, tmp_path / "sparks")
    group_by(tmp_path / "sparks", shop="string")
    before = Checkpoint(VARIABLES).rows("count").read(columns=["key", "value"]).to_pylist()

    Checkpoint(tmp_path / "sparks").restore(tmp_path / "own", num_partitions=1)
    Checkpoint(tmp_path / "own").rescale(3)
    Checkpoint(tmp_path / "own").restore(tmp_path / "again", num_partitions=4)

    rows = Checkpoint(tmp_path / "again").rows("count").read(columns=["key", "value"])
    assert sorted(rows.to_pylist(), key=repr) == sorted(before, key=repr)


@pytest.mark.parametrize("is_saved", [False, True], ids=["checkpoint", "savepoint"])
def test_state_from_before_strict_distribution_is_not_dealt_out(tmp_path, is_saved):
    """Catches rows of one state partition that no Spark looks for in the others by their keys."""
    query = query_of(
        tmp_path / "query", num_partitions=1, operators=(GLOBAL_AGGREGATION, AGGREGATION)
    )
    query.run_batch({"a": "b"})
    for path in (tmp_path / "query" / "offsets").glob("[0-9]*"):
        path.write_text(path.read_text().replace("useStrictDistribution", "of an old Spark"))
    source = at(query.path, options=OPTIONS)
    if is_saved:
        source.savepoint(tmp_path / "saved")
        source = Savepoint(tmp_path / "saved")

    with pytest.raises(IncompatibleError, match="useStrictDistribution") as raised:
        source.restore(tmp_path / "new", num_partitions=2)
    assert raised.value.kind == "not-rescalable"
    source.restore(tmp_path / "single", num_partitions=2, drop_operators=[1])
    source.restore(tmp_path / "as-it-was")


def test_restore_to_the_heap_backend_needs_the_drivers_memory(tmp_path):
    """Catches state written where no query would look for it."""
    query = make_query(tmp_path / "query")
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    with pytest.raises(InvalidArgumentError, match="memory of the query's driver"):
        restore(tmp_path / "savepoint", tmp_path / "again", backend="heap")
