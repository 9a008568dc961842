"""Checkpoint and Savepoint as a program or a notebook uses them."""

import inspect
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import statestore
from statestore import Checkpoint, Savepoint
from statestore.core.errors import InvalidArgumentError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.operations.result import Change, Result
from tests.checkpoints import contents, files_below, make_query, read_rows, write_checkpoint

VERSIONS = [
    {"default": {("a", n): (n * 7, f"note {n}") for n in range(20)} | {(None, 1): (5, None)}},
    {"default": {("a", 3): None, ("b", 1): (-4, "new")}},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A checkpoint that is only read."""
    return Path(write_checkpoint(tmp_path_factory.mktemp("read") / "ck", VERSIONS))


@pytest.fixture
def query(tmp_path):
    """A query's checkpoint, and what its newest version holds."""
    return make_query(tmp_path / "query", num_partitions=2)


def rows_of(table):
    return {tuple(row["key"].values()): tuple(row["value"].values()) for row in table.to_pylist()}


@pytest.mark.parametrize("spell", [str, Path, Path.as_uri], ids=["str", "path", "uri"])
def test_a_directory_is_named_as_anywhere_else(path, spell):
    """Catches a directory that has to be text, or is looked for below another."""
    assert rows_of(Checkpoint(spell(path)).rows("default").read()) == contents(VERSIONS)


def test_a_relative_path_stays_that_of_then_and_a_tilde_is_home(path, monkeypatch, tmp_path):
    """Catches an object that is another checkpoint after a change of the working directory."""
    monkeypatch.chdir(path.parent)
    relative = Checkpoint("ck")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(path.parent))

    assert relative.info.newest_version == Checkpoint("~/ck").info.newest_version == 2
    assert relative.uri == str(path)


def test_making_the_object_touches_nothing(tmp_path):
    """Catches an object that cannot be made before its checkpoint, or that makes a directory."""
    checkpoint = Checkpoint(tmp_path / "none")

    assert repr(checkpoint) == f"Checkpoint({str(tmp_path / 'none')!r})"
    assert "checkpoint-not-found" in checkpoint._repr_html_()
    with pytest.raises(NotFoundError, match="checkpoint-not-found"):
        checkpoint.versions()
    assert not (tmp_path / "none").exists()


def test_importing_the_package_imports_neither_arrow_nor_spark():
    """Catches an import that costs a query's start a second."""
    code = "import statestore, sys; print('pyarrow' in sys.modules or 'pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_options_are_those_of_the_query_by_key_or_by_field(path):
    """Catches a misspelt option that is passed over in silence."""
    for name in ("s3.pathStyle", "s3_path_style", "spark.sql.streaming.stateStore.s3.pathStyle"):
        made = Checkpoint(path, storage_options={name: True})
        assert made._reach.place.options.s3_path_style
    with pytest.raises(InvalidArgumentError, match="nearest="):
        Checkpoint(path, storage_options={"s3.pathStile": True})
    with pytest.raises(InvalidArgumentError, match=r"key='\S+s3.region', value=None"):
        Checkpoint(path, storage_options={"s3.region": None})
    with pytest.raises(InvalidArgumentError, match="a session has its own"):
        Checkpoint(
            path,
            storage_options={"spark.hadoop.x": "y"},
            spark=type("Session", (), {"_jsparkSession": None})(),
        )


def test_hadoop_is_reached_by_one_session_or_by_options(path):
    """Catches a session or options that are dropped, and those refused that nothing needs."""

    def of_session(jvm_session):
        conf = type("Conf", (), {"getAll": {}})()
        return type("Session", (), {"_jsparkSession": jvm_session, "conf": conf})()

    options = {"spark.hadoop.x": "y"}
    one, same, other = of_session(1), of_session(1), of_session(2)
    here = Checkpoint("hdfs:/here", spark=one)
    for there, keys in (
        (Checkpoint("hdfs:/there", spark=other), "spark"),
        (Checkpoint("hdfs:/there", storage_options=options), "spark.hadoop.x"),
        (
            Checkpoint("/there", storage_options={**options, "checkpointStorage": "hdfs:/state"}),
            "spark.hadoop.x",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match="contradict each other") as raised:
            here.savepoint(there)
        assert raised.value.fields["keys"] == keys
    for there in (
        Checkpoint("hdfs:/there", spark=same),
        Checkpoint("hdfs:/there"),
        Checkpoint("/there", storage_options=options),
        "hdfs:/there",
    ):
        reach, _ = here._reach.with_new(there)
        assert (reach.spark, reach.hadoop_conf) == (one, {})
    for local, there, expected in (
        ({"spark": one}, {"storage_options": options}, (one, options)),
        ({"storage_options": options}, {"spark": one}, (one, {})),
    ):
        reach, _ = Checkpoint("/here", **local)._reach.with_new(Checkpoint("hdfs:/there", **there))
        assert (reach.spark, reach.hadoop_conf) == expected
    reach, _ = Checkpoint(path)._reach.with_new(here)
    assert (reach.spark, reach.place.uri) == (one, str(path))


def test_columns_and_rows_are_chosen_by_names_with_dots(path):
    """Catches a filter on a column that is not asked for, or by another name than is shown."""
    checkpoint, expected = Checkpoint(path), contents(VERSIONS)
    large = {key: value for key, value in expected.items() if value[0] > 100}

    found = checkpoint.rows("default").read(
        columns=["key.word", "key.number", "value"], filter=pc.field("value.total") > 100
    )
    assert found.schema.names == ["key.word", "key.number", "value"]
    assert {
        (row["key.word"], row["key.number"]): tuple(row["value"].values())
        for row in found.to_pylist()
    } == large
    assert (
        rows_of(checkpoint.rows("default").read(filter=pc.field("value", "total") > 100)) == large
    )
    assert checkpoint.rows("default").read(filter=pc.field("key.word").is_null()).num_rows == 1
    batches = list(
        checkpoint.rows("default").read_batches(
            columns=["partition_id"], filter=pc.field("key.number") < 0
        )
    )
    assert [batch.schema.names for batch in batches[:1]] == [["partition_id"]]
    assert sum(batch.num_rows for batch in batches) == 0
    with pytest.raises(InvalidArgumentError, match=r"known='key, key\.word, key\.number, value"):
        checkpoint.rows("default").read(columns=["key.words"])
    with pytest.raises(InvalidArgumentError, match="the filter does not fit"):
        checkpoint.rows("default").read(filter=pc.field("nothing") > 1)


def test_nested_columns_are_flattened_on_request(path):
    """Catches a null struct whose fields become other than null, and a name without its parent."""
    checkpoint = Checkpoint(path)

    flat = checkpoint.rows("default").read(flatten=True)

    assert flat.schema.names == [
        "key.word", "key.number", "value.total", "value.note", "partition_id"
    ]  # fmt: skip
    rows = zip(*(flat.column(number).to_pylist() for number in range(4)), strict=True)
    assert {row[:2]: row[2:] for row in rows} == contents(VERSIONS)
    assert checkpoint.rows("default").read(columns=["value"], flatten=True).schema.names == [
        "value.total", "value.note"
    ]  # fmt: skip


def test_tables_and_listings_are_frames_of_other_packages(path):
    """Catches an interface that only pyarrow knows."""
    checkpoint = Checkpoint(path)
    versions, stores = checkpoint.versions(), checkpoint.inspect()

    assert pl.from_arrow(checkpoint.rows("default").read(flatten=True))["value.total"].sum() == sum(
        total for total, _ in contents(VERSIONS).values()
    )
    for listing in (versions, stores):
        table = pa.table(listing)
        assert pl.DataFrame(listing).height == pd.DataFrame.from_arrow(listing).shape[0]
        assert table.num_rows == len(listing)
        assert pa.table(listing[:0]).schema == table.schema
    assert pl.DataFrame(versions)["version"].to_list() == [2, 1]
    found = checkpoint.rows("default")  # noqa: F841 (DuckDB finds it by its name)
    query = "SELECT max(value.total) FROM found"
    assert duckdb.sql(query).fetchall() == [(19 * 7,)]
    listed = versions.to_arrow()  # noqa: F841 (likewise)
    assert duckdb.sql("SELECT sum(num_stores) FROM listed").fetchall() == [(4,)]
    assert pl.from_arrow(checkpoint.rows("default").key_groups())["num_rows"].sum() == len(
        contents(VERSIONS)
    )


def test_what_is_seen_has_a_text_and_html(path):
    """Catches a notebook that shows an address in memory."""
    checkpoint = Checkpoint(path)
    with checkpoint.open_store() as store:
        shown = [
            checkpoint, checkpoint.versions(), checkpoint.inspect(), checkpoint.verify(),
            checkpoint.expire(2, dry_run=True), checkpoint.rescale(4, dry_run=True), store,
            checkpoint.query,
        ]  # fmt: skip
        for what in shown:
            assert " object at 0x" not in repr(what)
            assert what._repr_html_().startswith("<")
    assert repr(store) == "<Store 0/0/default: closed>"
    assert "filesystem" in checkpoint._repr_html_()
    assert "stateStoreSave" in repr(checkpoint.inspect())


def test_completion_finds_what_there_is():
    """Catches names that only an attribute hook knows, and seams of tests among them."""
    names = {name for name in dir(Checkpoint) if not name.startswith("_")}

    assert {"info", "rows", "rescale", "versions", "open_store"} <= names
    assert {"Checkpoint", "Savepoint", "stop_with_savepoint"} <= {*dir(statestore)}
    for kind in (Checkpoint, Savepoint, statestore.Rows):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                parameters = {*inspect.signature(method).parameters}
                assert not parameters & {"io", "ids", "clock", "memory", "options"}, name


def dry_runs(query, tmp_path):
    """What every operation says that it would do."""
    checkpoint = Checkpoint(query.path)
    savepoint = checkpoint.savepoint(tmp_path / "savepoint").made
    checkpoint.rescale(4)
    return {
        "undo_rescale": checkpoint.undo_rescale(dry_run=True),
        "rescale": checkpoint.rescale(6, dry_run=True),
        "repair": checkpoint.repair(dry_run=True),
        "expire": checkpoint.expire(2, dry_run=True),
        "compact": checkpoint.compact(dry_run=True),
        "savepoint": checkpoint.savepoint(tmp_path / "other", form="native", dry_run=True),
        "retain_savepoint": checkpoint.retain_savepoint(tmp_path / "kept", dry_run=True),
        "branch": checkpoint.branch(tmp_path / "branch", dry_run=True),
        "convert": checkpoint.convert(tmp_path / "converted", "spark-rocksdb", dry_run=True),
        "restore": savepoint.restore(tmp_path / "restored", num_partitions=8, dry_run=True),
    }


def test_a_dry_run_of_every_operation_says_the_same_words_and_changes_nothing(query, tmp_path):
    """Catches an operation whose effect is known only after it, or a dry run that has one."""
    would = dry_runs(query, tmp_path)
    before = files_below(tmp_path)

    # Which need schemas: operations/test_writing.py, operations/test_edit_in_place.py.
    of_rows = {"transform", "edit", "forget"}
    methods = {
        name
        for kind in (Checkpoint, Savepoint)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "dry_run" in inspect.signature(method).parameters
    }
    assert methods == {*would} | of_rows
    assert "copied" in str(
        Savepoint(tmp_path / "savepoint").restore(tmp_path / "again", dry_run=True)
    )
    for name, result in would.items():
        assert isinstance(result, Result), name
        assert not result.done, name
        assert result.fields()["done"] is False, name
        assert str(result) != "", name
        assert result.size_bytes is None or result.size_bytes >= 0, name
        assert all(isinstance(change, Change) for change in result.changes), name
        assert bool(result.changes) == (name not in ("repair", "expire")), name
    assert would["savepoint"].size_bytes > 0
    assert would["branch"].size_bytes == 0  # hard links
    assert files_below(tmp_path) == before


def test_changes_of_a_dry_run_are_what_the_operation_changes(query):
    """Catches a file that changes and is not said, or one that is said and stays."""
    checkpoint = Checkpoint(query.path)
    for operation in (partial(checkpoint.rescale, 8), checkpoint.undo_rescale):
        before, would = files_below(query.path), operation(dry_run=True)
        done = operation()
        after = files_below(query.path)
        # Beside them only reference files, in state partitions that were there, and the history.
        touched = {
            name
            for name in before.keys() ^ after.keys()
            | {name for name in before.keys() & after.keys() if before[name] != after[name]}
            if not name.endswith((".ref", ".jsonl"))
        }
        paths = tuple(change.path for change in would.changes)
        assert touched
        assert {name for name in touched if not name.startswith(paths)} == set()
        assert [path for path in paths if not any(n.startswith(path) for n in touched)] == []
        assert (done.done, str(done), done.changes) == (True, str(would), would.changes)


def test_an_operation_decides_anew_what_a_dry_run_has_said(query):
    """Catches an operation that holds on to what the query has changed since."""
    checkpoint = Checkpoint(query.path)
    would = checkpoint.rescale(4, dry_run=True)
    query.run_batch({"key-1": "later"})

    done = checkpoint.rescale(4)

    assert (would.batch, done.batch) == (3, 4)
    assert read_rows(query.path) == query.expected()
    again = checkpoint.rescale(4)
    assert (again.done, again.is_needed, again.changes) == (True, False, ())


def test_numbers_out_of_a_frame_are_taken(query, tmp_path):
    """Catches a number of numpy that fails as JSON when state was copied, after a dry run."""
    checkpoint = Checkpoint(query.path)
    versions = pd.DataFrame.from_arrow(checkpoint.versions())["version"]
    version, two, zero = versions.iloc[1], np.int64(2), np.int32(0)
    assert (type(version), int(version)) == (np.int64, 2)

    savepoint = checkpoint.savepoint(tmp_path / "savepoint", version=version).made
    restored = savepoint.restore(
        tmp_path / "restored", num_partitions=two, map_operators={zero: zero}
    ).made
    branch = checkpoint.branch(tmp_path / "branch", version=version).made
    results = [checkpoint.rescale(two * 2), branch.expire(two)]

    assert savepoint.info.version == branch.info.newest_version == 2
    assert branch.expire(50, dry_run=True).oldest_version == 2  # files of the first came with it
    assert all(json.dumps(result.fields()) for result in results)
    assert json.dumps(branch.verify(versions=[version]).versions) == "[2]"
    assert restored.info.num_partitions == 2
    assert checkpoint.rows(zero, version=version).key_groups().num_rows > 0
    with branch.open_store(zero, zero, version=version, num_partitions=two) as store:
        assert store.begin().commit() == 3


@pytest.mark.parametrize("wrong", [2.0, "2", True])
def test_what_is_no_whole_number_is_refused_by_name(query, tmp_path, wrong):
    """Catches 2.0 that passes for version 2 until a file of that name is looked for."""
    checkpoint = Checkpoint(query.path)
    before = files_below(tmp_path)
    for call in (
        lambda: checkpoint.savepoint(tmp_path / "new", version=wrong),
        lambda: checkpoint.branch(tmp_path / "new", version=wrong),
        lambda: checkpoint.restore(tmp_path / "new", num_partitions=wrong),
        lambda: checkpoint.restore(tmp_path / "new", map_operators={0: wrong}),
        lambda: checkpoint.verify(versions=[wrong]),
        lambda: checkpoint.inspect(version=wrong),
        lambda: checkpoint.rows(version=wrong).read(),
        lambda: checkpoint.rescale(wrong),
        lambda: checkpoint.expire(wrong),
        lambda: checkpoint.open_store(wrong),
        lambda: checkpoint.open_store(partition=wrong),
        lambda: checkpoint.open_store(version=wrong),
        lambda: checkpoint.open_store(num_partitions=wrong),
    ):
        with pytest.raises(InvalidArgumentError, match="is not a whole number"):
            call()

    assert files_below(tmp_path) == before


def test_state_goes_round_by_the_objects_that_operations_return(query, tmp_path):
    """Catches an operation whose result has to be named once more to go on."""
    checkpoint = Checkpoint(query.path)

    savepoint = checkpoint.savepoint(tmp_path / "savepoints" / "one").made
    restored = savepoint.restore(tmp_path / "restored", backend="rocksdb", num_partitions=4).made
    branch = restored.branch(Checkpoint(tmp_path / "branch")).made

    assert (savepoint.info.version, Checkpoint(savepoint.uri).info.newest_version) == (3, 3)
    assert (restored.info.backend, restored.info.num_partitions) == ("rocksdb", 4)
    assert read_rows(branch.uri) == read_rows(restored.uri) == query.expected()
    (found,) = listed = checkpoint.savepoints(tmp_path / "savepoints")
    assert (found.uri, found.info) == (savepoint.uri, savepoint.info)
    (row,) = listed.to_arrow().to_pylist()
    assert (row["uri"], row["version"], row["num_rows"]) == (
        savepoint.uri,
        3,
        savepoint.info.num_rows,
    )
    assert savepoint.uri in repr(listed)
    assert f"<td>{savepoint.uri}</td>" in listed._repr_html_()
    assert checkpoint.savepoints(tmp_path).to_arrow().schema == listed.to_arrow().schema


def test_savepoints_are_found_by_the_options_of_their_directory(query, tmp_path, s3_server, bucket):
    """Catches options of a directory that are dropped, there or in what is found."""
    options = s3_server.options()
    directory = Savepoint(f"s3://{bucket}/savepoints", storage_options=options)
    checkpoint = Checkpoint(query.path)
    checkpoint.savepoint(Savepoint(f"{directory.uri}/one", storage_options=options))

    (found,) = checkpoint.savepoints(directory)

    assert found.uri == f"{directory.uri}/one"
    assert found.verify(deep=True).ok


def test_savepoints_of_a_query_without_an_id_are_found(query, tmp_path):
    """Catches savepoints that nobody finds once Spark's file with the ID was lost."""
    for file in Path(query.path).glob("*metadata*"):
        file.unlink()
    checkpoint = Checkpoint(query.path)
    savepoint = checkpoint.savepoint(tmp_path / "savepoints" / "one").made

    assert [one.uri for one in checkpoint.savepoints(tmp_path / "savepoints")] == [savepoint.uri]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("http://here", "key", 7)),
        ({"s3_timeout_ms": 9000}, ("http://here", "key", 9000)),
        ({"s3.endpoint": "http://there"}, ("http://there", "", 7)),
        ({"s3_access_key": "mine", "s3_secret_key": "x"}, ("", "mine", 7)),
    ],
)
def test_options_of_a_session_count_where_none_says_who_or_where(tmp_path, given, expected):
    """Catches one's credentials at another's server, and a session that counts for nothing."""
    prefix = "spark.sql.streaming.stateStore."
    told = {"s3.endpoint": "http://here", "s3.accessKey": "key", "s3.secretKey": "secret",
            "s3.timeoutMs": "7", "checkpointStorage": "s3://others/x"}  # fmt: skip
    conf = type("Conf", (), {"getAll": {f"{prefix}{key}": told[key] for key in told}})()
    session = type("Session", (), {"_jsparkSession": 1, "conf": conf})()

    reach = Checkpoint(tmp_path, spark=session, storage_options=given)._reach

    options = reach.place.options
    assert (options.s3_endpoint, options.s3_access_key, options.s3_timeout_ms) == expected
    assert options.checkpoint_storage == ""
    assert StateStoreOptions.from_options(reach.given) == options
