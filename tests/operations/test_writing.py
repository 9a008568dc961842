"""State is written as data: by functions, SQL, rows of any library; routed, sorted, whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from statestore import CapturedQuery, Checkpoint, Edited, Savepoint, write_savepoint
from statestore.codec import sorting
from statestore.codec.spark_types import parse_schema
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.spark_files.schemas import read_schemas, write_families, write_schemas
from statestore.testing.checkpoints import QUERY_ID, MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS, unsafe_row
from tests.checkpoints import DEFAULT, files_below, group_by, write_checkpoint
from tests.operations.given import array, map_of, schema_of, struct
from tests.operations.typed import LEAVES

VARIABLES = Path(__file__).parents[1] / "golden" / "spark" / "rocksdb-ids-variables" / "checkpoint"


def make(tmp_path: Path, **how: Any) -> MadeCheckpoint:
    """Make a checkpoint of an aggregation, a join, and an aggregation without a key."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch", **how)
    made.run_batch({number: number * 1024 for number in range(100)})
    made.run_batch({number: number * 2048 for number in range(50)})
    family = OPERATORS[0][1][0].family
    schema = tmp_path / "query" / "state" / "0" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    assert family.key_schema
    assert family.value_schema
    schema.write_bytes(write_schemas(family.key_schema, family.value_schema))
    return made


def halved(rows: pa.Table) -> pa.Table:
    values = pc.struct_field(rows["value"], "value")
    return pa.table({"key": rows["key"], "value.value": pc.divide(values, 2)})


HALVED_SQL = "SELECT key, {'value': value.value // 2} AS value FROM state"


@pytest.mark.parametrize("makes", [halved, HALVED_SQL], ids=["function", "sql"])
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.few(4)
def test_rows_are_transformed_and_all_others_kept(
    tmp_path: Path, backend: str, checkpoint_format: int, makes: Any
) -> None:
    """Catches a row lost, left in a wrong partition, or an operator that was not to change."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format)
    before = files_below(tmp_path / "query")
    expected = made.expected()
    expected[0, "default"] = {
        key: unsafe_row(int.from_bytes(value[8:], "little") // 2)
        for key, value in expected[0, "default"].items()
    }

    plan = Checkpoint(made.path).transform(tmp_path / "savepoint", {0: makes}, dry_run=True)
    assert not (tmp_path / "savepoint").exists()
    assert "operator 0" in str(plan)
    with pytest.raises(InvalidArgumentError, match="a dry run makes nothing"):
        _ = plan.made
    savepoint = Checkpoint(made.path).transform(tmp_path / "savepoint", {0: makes}).made

    assert files_below(tmp_path / "query") == before
    assert savepoint.verify(deep=True).findings == ()
    assert savepoint.info.num_rows == sum(map(len, expected.values()))
    for number, how in enumerate(({}, {"backend": "filesystem", "num_partitions": 6})):
        restored = savepoint.restore(tmp_path / f"restored-{number}", **how).made
        assert restored.verify(deep=True).findings == ()
        assert read_checkpoint(str(tmp_path / f"restored-{number}")) == expected
        assert restored.info.newest_version == 2


def test_savepoint_of_a_savepoint_is_the_querys_too(tmp_path: Path) -> None:
    """Catches a query that goes on under a new ID, or on another backend, from a second copy."""
    made = make(tmp_path, backend="rocksdb")
    first = Checkpoint(made.path).savepoint(tmp_path / "first").made
    of_savepoint = Checkpoint(first.uri)
    rows = pa.table({"key.k": [1], "value.value": pa.array([2], pa.int32())})
    copies = [
        of_savepoint.savepoint(tmp_path / "canonical").made,
        of_savepoint.savepoint(tmp_path / "native", form="native").made,
        first.transform(tmp_path / "transformed", {0: halved}).made,
        write_savepoint(tmp_path / "written", like=first, rows={0: rows}).made,
    ]

    for number, copy in enumerate(copies):
        assert (copy.info.backend, copy.info.query_id) == ("rocksdb", QUERY_ID)
        restored = copy.restore(tmp_path / f"restored-{number}").made.info
        assert (restored.backend, restored.query_id) == ("rocksdb", QUERY_ID)


@pytest.mark.parametrize(
    "given",
    [
        lambda rows: rows,
        lambda rows: rows.to_reader(max_chunksize=7),
        lambda rows: pl.from_arrow(rows),
        lambda rows: duckdb.connect().from_arrow(rows),
        lambda rows: rows.to_pandas(),
        lambda rows: pa.table({
            "key": pa.array([{"k": key} for key in rows["key.k"].to_pylist()]),
            "value": pa.array([{"value": value} for value in rows["value.value"].to_pylist()]),
        }),
    ],
    ids=["table", "stream", "polars", "duckdb", "pandas", "structs"],
)  # fmt: skip
def test_rows_of_any_library_are_written(tmp_path: Path, given: Any) -> None:
    """Catches a library whose rows are not taken, or taken otherwise."""
    made = make(tmp_path)
    numbers = np.arange(1000)
    rows = pa.table({"key.k": numbers, "value.value": pa.array(numbers * 3, pa.int32())})

    savepoint = write_savepoint(
        tmp_path / "savepoint", like=Checkpoint(made.path), rows={0: given(rows)}
    ).made

    expected = {unsafe_row(int(n)): unsafe_row(int(n) * 3) for n in numbers}
    assert read_checkpoint(str(tmp_path / "savepoint"))[0, "default"] == expected
    assert savepoint.info.operators == ("stateStoreSave", "symmetricHashJoin", "stateStoreSave")


def test_stores_of_a_join_and_an_operator_without_a_key_are_named(tmp_path: Path) -> None:
    """Catches rows of one store written to another, or of no key to a partition nobody reads."""
    made = make(tmp_path)
    rows = pa.table({"key.field0": [7, 8], "key.index": [0, 0], "value.value": [1, 2]})
    total = pa.table({"key": pa.array([{}], pa.struct([])), "value.value": [5]})

    savepoint = (
        Checkpoint(made.path)
        .transform(
            tmp_path / "savepoint",
            {
                "1/left-keyWithIndexToValue": lambda _: rows.slice(0, 0),
                2: "SELECT key, {'value': 5} AS value FROM state",
            },
        )
        .made
    )
    again = write_savepoint(
        tmp_path / "again",
        like=savepoint,
        rows={"left-keyWithIndexToValue": rows, "2/default": total},
    ).made

    expected = made.expected()
    found = read_checkpoint(str(tmp_path / "again"))
    assert found[0, "default"] == expected[0, "default"]
    assert found[1, "left-keyToNumValues"] == expected[1, "left-keyToNumValues"]
    assert found[1, "left-keyWithIndexToValue"] == {
        unsafe_row(7, 0): unsafe_row(1),
        unsafe_row(8, 0): unsafe_row(2),
    }
    assert found[2, "default"] == {b"": unsafe_row(5)}
    assert savepoint.rows("1/left-keyWithIndexToValue").read().num_rows == 0
    assert again.info.query_id == savepoint.info.query_id != ""
    with pytest.raises(InvalidArgumentError, match="left-keyToNumValues"):
        Checkpoint(made.path).transform(tmp_path / "other", {1: HALVED_SQL})


def test_state_larger_than_memory_is_sorted_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches rows of several runs that are lost, doubled or out of order."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 20_000)
    made = make(tmp_path)
    numbers = np.random.default_rng(0).permutation(20_000)
    rows = pa.table({"key.k": numbers, "value.value": numbers})

    savepoint = write_savepoint(
        tmp_path / "savepoint",
        like=Checkpoint(made.path),
        rows={0: rows.to_reader(max_chunksize=500)},
    ).made

    assert savepoint.verify(deep=True).findings == ()
    found = savepoint.rows(0).read(flatten=True)
    assert found.num_rows == len(numbers)
    assert found["key.k"].equals(found["value.value"])


@pytest.mark.parametrize("word", ["user", "CURRENT_USER", '"session_user"'])
def test_sql_is_refused_when_a_word_falls_through_to_a_function(tmp_path: Path, word: str) -> None:
    """Catches rows that are chosen by the name of the database's user."""
    made = make(tmp_path)
    sql = f"SELECT * FROM state WHERE {word} <> 'ann'"
    with pytest.raises(InvalidArgumentError, match=r"not a column.*key\."):
        Checkpoint(made.path).transform(tmp_path / "savepoint", {0: sql})
    assert not (tmp_path / "savepoint").exists()


def test_schema_of_values_changes_only_when_told_so(tmp_path: Path) -> None:
    """Catches another schema by a slip, and one that Spark's own file does not say."""
    made = make(tmp_path)
    sql = "SELECT key, {'value': value.value / 1024, 'most': value.value} AS value FROM state"
    with pytest.raises(InvalidArgumentError, match=r"value\.most.*change_schema"):
        Checkpoint(made.path).transform(tmp_path / "savepoint", {0: sql}, dry_run=True)

    with pytest.raises(InvalidArgumentError, match="columns='b'"):
        Checkpoint(made.path).transform(
            tmp_path / "savepoint",
            {0: lambda rows: pa.table({"key": rows["key"], "value.b": [None] * rows.num_rows})},
            change_schema=True,
            dry_run=True,
        )

    plan = Checkpoint(made.path).transform(tmp_path / "savepoint", {0: sql}, change_schema=True)
    savepoint = plan.made

    assert "values become struct<value: double, most: int64>" in str(plan)
    assert "keys become" not in str(plan)
    assert savepoint.rows(0).find([60]).to_pylist()[0]["value"] == {
        "value": 60.0,
        "most": 60 * 1024,
    }
    path = tmp_path / "savepoint" / "state" / "0" / "0" / "_metadata" / "schema"
    (family,) = read_schemas(path.read_bytes(), "")
    (described,) = savepoint.inspect()[0].column_families
    assert described.value == parse_schema(family.value_schema or "").arrow
    assert family.key_schema == OPERATORS[0][1][0].family.key_schema


def _large(kind: Any) -> Any:
    """Return a type as pandas and Polars lay it out."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_large(kind.key_type), _large(kind.item_type))
    if pa.types.is_list(kind):
        return pa.large_list(_large(kind.value_type))
    others = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return others.get(kind, kind)


@pytest.mark.parametrize("by", ["SQL", "a function"])
def test_columns_that_stay_keep_what_spark_says_of_them(tmp_path: Path, by: str) -> None:
    """Catches a query that Spark refuses for a column that nobody changed."""
    day_time, many = "interval day to second", {"type": "array", "containsNull": False}
    udt = {"type": "udt", "class": "a.B", "sqlType": many | {"elementType": "double"}}
    lists = [many | {"elementType": day_time}, map_of("string", day_time), struct(x=day_time)]
    others = ["variant", "char(5)", "varchar(9)", "interval hour", "interval"]
    kinds = ["string", *LEAVES, *others, *lists, udt, array("string"), map_of("string", udt)]
    described = json.loads(schema_of({f"c{number}": kind for number, kind in enumerate(kinds)}))
    described["fields"][0]["metadata"] = {"__COLLATIONS": {"c0": "UTF8_LCASE"}}
    schema = json.dumps(described)
    path = write_checkpoint(
        tmp_path / "query", [{"default": {}}], families=(replace(DEFAULT, value_schema=schema),)
    )
    file = Path(path, "state", "0", "0", "_metadata", "schema")
    file.parent.mkdir(parents=True)
    file.write_bytes(write_schemas(DEFAULT.key_schema or "", schema))
    given: Any = {
        "SQL": "SELECT key, value FROM state",
        "a function": lambda rows: rows.cast(
            pa.schema([field.with_type(_large(field.type)) for field in rows.schema])
        ),
    }[by]

    Checkpoint(path).transform(tmp_path / "new", {0: given}, change_schema=True)

    file = tmp_path / "new" / "state" / "0" / "0" / "_metadata" / "schema"
    (family,) = read_schemas(file.read_bytes(), "")
    assert json.loads(family.value_schema or "") == described


def test_structs_given_by_their_fields_stay_structs_when_the_schema_changes(tmp_path: Path) -> None:
    """Catches a window that becomes two columns of the key, which Spark refuses."""
    window = struct(start="timestamp", end="timestamp")
    family = replace(
        DEFAULT,
        key_schema=schema_of({"window": window, "shop": "string"}),
        value_schema=schema_of({"count": "long", "v": "variant"}),
    )
    path = write_checkpoint(tmp_path / "query", [{"default": {}}], families=(family,))
    file = Path(path, "state", "0", "0", "_metadata", "schema")
    file.parent.mkdir(parents=True)
    file.write_bytes(write_schemas(family.key_schema or "", family.value_schema or ""))
    times = pa.array([0, 1], pa.timestamp("us", "UTC"))
    flat = pa.table(
        {
            "key.window.start": times,
            "key.window.end": times,
            "key.shop": ["a", "b"],
            "value.count": [1, 2],
            "value.v.metadata": pa.array([b"\1\0\0", None], pa.binary()),
            "value.v.value": pa.array([b"\x0c\1", None], pa.binary()),
            "value.max": [3, 4],
        }
    )

    made = write_savepoint(
        tmp_path / "new", like=Checkpoint(path), rows={0: flat}, change_schema=True
    ).made

    (store,) = made.inspect()
    (found,) = store.column_families
    assert str(found.key).startswith("struct<window: struct<start: timestamp[us, tz=UTC], end: ")
    assert (
        str(found.value)
        == "struct<count: int64, v: struct<value: binary, metadata: binary>, max: int64>"
    )
    head = next(Path(made.uri, "state", "0", "0").glob("*.arrows"))
    trailer = head.read_bytes()
    assert b"variant" in trailer
    assert made.rows().read(flatten=True).num_rows == 2


def test_what_sparks_driver_says_of_nulls_stays(tmp_path: Path) -> None:
    """Catches a query that Spark refuses: in a task fewer columns may be null."""
    key, value = (json.loads(schema_of({name: "long"})) for name in ("k", "n"))
    in_task = [json.loads(json.dumps(of).replace("true", "false")) for of in (key, value)]
    family = replace(
        DEFAULT, key_schema=json.dumps(in_task[0]), value_schema=json.dumps(in_task[1])
    )
    path = write_checkpoint(tmp_path / "query", [{"default": {}}], families=(family,))
    file = Path(path, "state", "0", "0", "_metadata", "schema")
    file.parent.mkdir(parents=True)
    file.write_bytes(write_schemas(json.dumps(key), json.dumps(value)))
    sql = "SELECT key, {'n': value.n, 'more': 1::BIGINT} AS value FROM state"

    Checkpoint(path).transform(tmp_path / "new", {0: sql}, change_schema=True)

    file = tmp_path / "new" / "state" / "0" / "0" / "_metadata" / "schema"
    (found,) = read_schemas(file.read_bytes(), "")
    assert json.loads(found.key_schema or "") == key
    assert json.loads(found.value_schema or "")["fields"][:1] == value["fields"]
    assert [of["name"] for of in json.loads(found.value_schema or "")["fields"]] == ["n", "more"]


def test_variant_of_two_nulls_is_null_and_of_one_is_refused(tmp_path: Path) -> None:
    """Catches a variant without bytes, which nobody can read: SQL makes parts of a null one."""
    schema = schema_of({"v": "variant", "vs": array("variant")})
    family = replace(DEFAULT, key_schema=schema_of({"k": "long"}), value_schema=schema)
    path = write_checkpoint(tmp_path / "query", [{"default": {}}], families=(family,))
    query = Checkpoint(path)
    whole = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    neither = {"value": None, "metadata": None}
    values = [{"v": whole, "vs": [whole, neither]}, {"v": neither, "vs": None}]
    rows = pa.table({"key": [{"k": 1}, {"k": 2}], "value": values})
    savepoint = write_savepoint(tmp_path / "of-structs", like=query, rows={0: rows}).made

    expected = [{"v": whole, "vs": [whole, None]}, {"v": None, "vs": None}]
    read = savepoint.rows().read().sort_by("key")
    assert read["value"].to_pylist() == expected
    flat = savepoint.rows().read(flatten=True)
    assert "value.v.metadata" in flat.column_names
    again = write_savepoint(tmp_path / "of-fields", like=query, rows={0: flat}).made
    assert again.rows().read().sort_by("key")["value"].to_pylist() == expected
    file = tmp_path / "flat.json"
    typed = {"key.k": 1, "value.v.value": "0c01", "value.v.metadata": "010000", "value.vs": None}
    file.write_text(json.dumps(typed))
    of_file = write_savepoint(tmp_path / "of-file", like=query, rows={0: file}).made
    assert of_file.rows().read()["value"].to_pylist() == [{"v": whole, "vs": None}]

    family = replace(family, value_schema=schema_of({"s": struct(a="long", v="variant")}))
    nested = write_checkpoint(tmp_path / "nested", [{"default": {}}], families=(family,))
    flat = pa.table({"key.k": [1], "value.s.a": pa.nulls(1), "value.s.v.value": pa.nulls(1)})
    flat = flat.append_column("value.s.v.metadata", pa.nulls(1))
    with pytest.raises(InvalidArgumentError, match="all fields of a struct are null"):
        write_savepoint(tmp_path / "of-nested", like=Checkpoint(nested), rows={0: flat})

    values[1]["v"] = {"value": None, "metadata": b"\x01\x00\x00"}
    rows = pa.table({"key": [{"k": 1}, {"k": 2}], "value": values})
    with pytest.raises(InvalidArgumentError, match=r"null.*column='value\.v\.value', row=1"):
        write_savepoint(tmp_path / "of-half", like=query, rows={0: rows})


def test_schema_that_a_file_brings_is_taken_when_told_so(tmp_path: Path) -> None:
    """Catches a file whose types become those of the state, without a word."""
    query = Checkpoint(make(tmp_path).path)
    rows = pa.table({"key.k": [1, 2], "value.value": [0.5, None], "value.more": ["a", "b"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    pacsv.write_csv(rows, tmp_path / "rows.csv")
    given = tmp_path / "rows.parquet"
    with pytest.raises(InvalidArgumentError, match=r"value\.more.*change_schema"):
        write_savepoint(tmp_path / "no", like=query, rows={0: given})
    with pytest.raises(InvalidArgumentError, match=r"rows\.csv.*Parquet or Arrow"):
        write_savepoint(
            tmp_path / "no", like=query, rows={0: tmp_path / "rows.csv"}, change_schema=True
        )

    done = write_savepoint(tmp_path / "new", like=query, rows={0: given}, change_schema=True)

    assert "values become struct<value: double, more: string>" in str(done)
    read = done.made.rows(0).read(flatten=True).sort_by("key.k")
    assert read.select(rows.column_names).cast(rows.schema) == rows


def test_schema_of_an_older_version_is_changed_where_that_version_has_it(tmp_path: Path) -> None:
    """Catches a schema that is written into the file of a later run, which the savepoint lacks."""
    made = make(tmp_path)
    made.run_batch({1: 1})
    operator = tmp_path / "query" / "state" / "0"
    old = json.loads((operator / "_metadata" / "metadata").read_text().split("\n")[1])
    (operator / "_metadata" / "metadata").unlink()
    for batch in (0, 2):
        file = operator / "_stateSchema" / "default" / f"{batch}_x"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(write_families([OPERATORS[0][1][0].family]))
        old["stateStoreInfo"][0] |= {
            "stateSchemaId": 0,
            "stateSchemaFilePaths": [f"file:{file}"],
            "numColsPrefixKey": 0,
        }
        metadata = operator / "_metadata" / "v2" / f"{batch}"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"v2\n{json.dumps(old)}")
    sql = "SELECT key, {'most': value.value} AS value FROM state"

    savepoint = tmp_path / "new"
    Checkpoint(made.path).transform(savepoint, {0: sql}, version=2, change_schema=True)

    (named,) = (savepoint / "state" / "0" / "_metadata" / "v2").iterdir()
    (store,) = json.loads(named.read_text().split("\n")[1])["stateStoreInfo"]
    path = Path(store["stateSchemaFilePaths"][0].removeprefix("file:"))
    (family,) = read_schemas(path.read_bytes(), "")
    assert parse_schema(family.value_schema or "").names == ("most",)


def test_rows_without_a_key_get_none(tmp_path: Path) -> None:
    """Catches rows of one state partition that Spark looks for in others."""
    made = make(tmp_path)
    sql = "SELECT {'country': 'DE'} AS key, value FROM state"
    with pytest.raises(IncompatibleError, match=r"without a key.*capture_query"):
        Checkpoint(made.path).transform(tmp_path / "new", {2: sql}, change_schema=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("like", ["/data/checkpoint", Path("/data"), None])
def test_rows_are_written_for_an_object_and_no_directory(tmp_path: Path, like: Any) -> None:
    """Catches an error from the inside where a directory is named as it is elsewhere."""
    with pytest.raises(InvalidArgumentError, match=r"not a Checkpoint, a Savepoint or.*like="):
        write_savepoint(tmp_path / "savepoint", like=like, rows={})


def test_what_is_no_offset_of_a_source_is_refused(tmp_path: Path) -> None:
    """Catches a log that Spark cannot read, told after all state was written, or never."""
    path = write_checkpoint(tmp_path / "query", [{"default": {("a", 1): (1, "x")}}])
    schema = Path(path, "state", "0", "0", "_metadata", "schema")
    schema.parent.mkdir(parents=True)
    schema.write_bytes(write_schemas(DEFAULT.key_schema or "", DEFAULT.value_schema or ""))
    for file in Path(path, "commits").iterdir():
        file.unlink()  # as a batch that is planned

    def write(offsets: Any, *, dry_run: bool = True) -> None:
        captured = CapturedQuery(path, 1)
        write_savepoint(
            tmp_path / "savepoint", like=captured, rows={}, offsets=offsets, dry_run=dry_run
        )

    for offset in ('{"logOffset":-1}', "7", "-"):
        write([offset])
    good = {"logOffset": 7}
    texts = (json.dumps(good, indent=2), "7\r", "", "{", "logOffset", '"\ud800"', "[" * 100_000)
    for offset in (good, 7, None, b"7", *texts):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="form of the planned one: offset="):
                write([offset], dry_run=dry_run)
    with pytest.raises(InvalidArgumentError, match=r"must be a list, not a string.*offsets="):
        write("7")

    assert not (tmp_path / "savepoint").exists()


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.extended) for n in range(8, 200))]
)
def test_columns_of_one_name_stay_what_they_are(tmp_path: Path, seed: int) -> None:
    """Catches values that change places where columns of one name do."""
    rng = Random(seed)
    names = ["sum", "sum", *rng.choices(["sum", "sum_2", "count"], k=rng.randint(0, 2))]
    rng.shuffle(names)
    columns = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
    schema = json.dumps({"type": "struct", "fields": columns})
    path = write_checkpoint(
        tmp_path / "query",
        [{"default": {("a", 1): tuple(range(len(names)))}}],
        families=(replace(DEFAULT, value_schema=schema),),
    )
    file = Path(path, "state", "0", "0", "_metadata", "schema")
    file.parent.mkdir(parents=True)
    file.write_bytes(write_schemas(DEFAULT.key_schema or "", schema))
    before = Checkpoint(path).rows().read(flatten=True)
    known = [name for name in before.schema.names if name.startswith("value.")]
    given = rng.sample(known, rng.randint(1, len(known)))
    if rng.random() < 0.5:
        given.insert(rng.randint(0, len(given)), "value.max")
    fields = [
        f"'{name.removeprefix('value.')}': "
        + ("7::BIGINT" if name == "value.max" else f'value."{name.removeprefix("value.")}"')
        for name in given
    ]
    sql = f"SELECT key, {{{', '.join(fields)}}} AS value FROM state"

    savepoint = Checkpoint(path).transform(tmp_path / "new", {0: sql}, change_schema=True).made

    (row,) = savepoint.rows().read().to_pylist()
    of_name = {name: number for number, name in enumerate(known)} | {"value.max": 7}
    assert [*row["value"].values()] == [of_name[name] for name in given]
    assert [f"value.{name}" for name in row["value"]] == given
    again = savepoint.transform(tmp_path / "again", {0: "SELECT * FROM state"}).made
    assert again.rows().read().to_pylist() == [row]


def test_columns_of_one_name_keep_their_collations(tmp_path: Path) -> None:
    """Catches a collation by the name that a column had, which Spark does not find and drops."""
    described = json.loads(schema_of({"s": "string", "t": array("string")}))
    text, texts = described["fields"]
    texts["name"] = "s"
    text["metadata"] = {"__COLLATIONS": {"s": "spark.UTF8_LCASE"}, "comment": "first"}
    texts["metadata"] = {"__COLLATIONS": {"s.element": "icu.UNICODE"}}
    family = replace(DEFAULT, value_schema=json.dumps(described))
    path = write_checkpoint(tmp_path / "query", [{"default": {}}], families=(family,))
    file = Path(path, "state", "0", "0", "_metadata", "schema")
    file.parent.mkdir(parents=True)
    file.write_bytes(write_schemas(DEFAULT.key_schema or "", family.value_schema or ""))
    sql = "SELECT key, {'s_2': value.s_2, 's': value.s} AS value FROM state"

    Checkpoint(path).transform(tmp_path / "new", {0: sql}, change_schema=True)

    file = tmp_path / "new" / "state" / "0" / "0" / "_metadata" / "schema"
    (changed,) = read_schemas(file.read_bytes(), "")
    first, second = json.loads(changed.value_schema or "")["fields"]
    assert (first["name"], second["name"]) == ("s_2", "s")
    assert first["metadata"] == {"__COLLATIONS": {"s_2.element": "icu.UNICODE"}}
    assert second["metadata"] == text["metadata"]


WRONG: list[tuple[Any, str]] = [
    (pa.table({"key.k": [1, 1], "value.value": [1, 2]}), "duplicate-key"),
    (pa.table({"key.k": [1], "value.valu": [1]}), r"expected='value\.value'"),
    (pa.table({"key.k": [1], "value.value": [1], "n": [1]}), "columns=n|columns='n'"),
    (pa.table({"key.k": [1], "value.value": [1.5]}), r"column='value\.value'"),
    (pa.table({"key": pa.array([None], pa.struct({"k": pa.int64()})), "value.value": [1]}),
     "null"),
    ([1, 2], "type='list'"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "match"), WRONG, ids=range(len(WRONG)))
def test_rows_that_do_not_fit_are_refused_by_name(tmp_path: Path, rows: Any, match: str) -> None:
    """Catches a key written twice, a column mistaken, a value cut; half a savepoint taken whole."""
    made = make(tmp_path)
    with pytest.raises(InvalidArgumentError, match=match):
        write_savepoint(tmp_path / "savepoint", like=Checkpoint(made.path), rows={0: rows})

    with pytest.raises(NotFoundError):
        _ = Savepoint(tmp_path / "savepoint").info


def test_rows_that_are_not_given_by_their_address_are_refused(tmp_path: Path) -> None:
    """Catches a bare AttributeError where somebody gives the rows of the only operator."""
    made = make(tmp_path)
    rows = pa.table({"key.k": [1], "value.value": [1]})
    of, to = Checkpoint(made.path), tmp_path / "savepoint"
    for write in (
        lambda wrong: write_savepoint(to, like=of, rows=wrong),
        lambda wrong: write_savepoint(to, like=of, rows=wrong, dry_run=True),
        lambda wrong: of.transform(to, wrong),
        lambda wrong: of.transform(to, wrong, dry_run=True),
    ):
        for wrong, name in ((rows, "Table"), (None, "NoneType"), ([rows], "list")):
            with pytest.raises(InvalidArgumentError, match=f"rows='{name}'.*a mapping"):
                write(wrong)
    assert not to.exists()


def test_a_dry_run_writes_no_savepoint_and_says_what_is_written(tmp_path: Path) -> None:
    """Catches a dry run that writes, and an operation that does something else."""
    made = make(tmp_path)
    rows = pa.table({"key.k": [1], "value.value": [1]})
    so_far: list[tuple[int, int]] = []
    how: dict[str, Any] = {"like": Checkpoint(made.path), "rows": {0: rows}}
    plan = write_savepoint(tmp_path / "savepoint", **how, dry_run=True)

    assert [str(change) for change in plan.changes] == [f"write {tmp_path / 'savepoint'}"]
    assert not (tmp_path / "savepoint").exists()
    done = write_savepoint(tmp_path / "savepoint", **how, progress=lambda *two: so_far.append(two))
    assert done.made.info.version == 2
    assert done == replace(plan, done=True)
    assert so_far[-1] == (plan.state_bytes, plan.state_bytes)


def test_keys_are_deleted_and_rows_put(tmp_path: Path) -> None:
    """Catches an edit that touches another key, or leaves the old row of one beside the new."""
    made = make(tmp_path)
    put = pd.DataFrame({"key.k": [3, 1000], "value.value": [7, 8]})

    edited = Edited(delete=pa.table({"key.k": [1, 2, 5000]}), upsert=put)
    plan = Checkpoint(made.path).transform(tmp_path / "savepoint", {0: edited})
    savepoint = plan.made

    assert "2 of 3 keys have rows: 2 rows of 100 deleted" in str(plan)
    assert '{"k": 5000}, which has no row' in str(plan)
    assert "2 rows put, in place of those of 1 key" in str(plan)
    expected = made.expected()
    rows = expected[0, "default"]
    del rows[unsafe_row(1)], rows[unsafe_row(2)]
    rows |= {unsafe_row(3): unsafe_row(7), unsafe_row(1000): unsafe_row(8)}
    assert read_checkpoint(str(tmp_path / "savepoint")) == expected
    assert savepoint.verify(deep=True).findings == ()
    fewer = savepoint.transform(
        tmp_path / "fewer", {0: Edited(delete="k >= 10 AND value.value < 50000")}
    ).made
    assert {row["k"] for row in fewer.rows(0).read()["key"].to_pylist() if row["k"] >= 10} == {
        row["key"]["k"]
        for row in savepoint.rows("0").read().to_pylist()
        if row["key"]["k"] >= 10 and row["value"]["value"] >= 50000
    }
    with pytest.raises(InvalidArgumentError, match=r"nothing to edit: rows=0\. To fix: name"):
        savepoint.transform(tmp_path / "again", {0: Edited()})


def test_sql_reads_nothing_but_the_state(tmp_path: Path) -> None:
    """Catches SQL that somebody was sent, and that brings a file or a secret into the state."""
    made = make(tmp_path)
    (tmp_path / "secret").write_text("7")

    for of in (f"(SELECT content FROM read_text('{tmp_path}/secret'))", "getenv('HOME')"):
        sql = f"SELECT key, {{'value': length({of})}} AS value FROM state"
        with pytest.raises(InvalidArgumentError, match=r"disabled by conf|getenv does not exist"):
            Checkpoint(made.path).transform(tmp_path / "savepoint", {0: sql})
    assert not (tmp_path / "savepoint").exists()


def test_rows_of_a_captured_query_are_routed_only_by_what_spark_hashes(tmp_path: Path) -> None:
    """Catches rows given to state partitions in which Spark never looks for them."""
    path = tmp_path / "query"
    shutil.copytree(VARIABLES, path)
    shutil.rmtree(path / "commits")  # as a batch that is planned
    for entry in (path / "offsets").glob("[0-9]*"):
        sparks = PROVIDERS["filesystem"]
        entry.write_text(entry.read_text().replace(SPARK_PROVIDERS["spark-rocksdb"], sparks))
    rows = pa.table({"key.value": ["a", "b"], "value.value": pa.array([1, 2], pa.int64())})

    def write(name: str) -> Any:
        return write_savepoint(
            tmp_path / name, like=CapturedQuery(str(path), 2), rows={"count": rows}
        )

    assert write("by-key").made.rows("count").read().num_rows == 2
    group_by(path, value="integer")
    with pytest.raises(IncompatibleError, match="the key does not tell") as raised:
        write("by-column")
    assert raised.value.kind == "not-rescalable"
    assert not (tmp_path / "by-column").exists()


def test_rows_put_into_a_checkpoint_are_routed_only_by_what_spark_hashes(tmp_path: Path) -> None:
    """Catches an edit whose rows Spark never looks for where the state until now says nothing."""
    own = Checkpoint(VARIABLES).restore(tmp_path / "own").made
    rows = pa.table({"key.value": ["a"], "value.value": pa.array([1], pa.int64())})
    own.edit("count", upsert=rows, dry_run=True)
    group_by(tmp_path / "own", value="integer")

    with pytest.raises(IncompatibleError, match="the key does not tell") as raised:
        own.edit("count", upsert=rows)
    assert raised.value.kind == "not-rescalable"
