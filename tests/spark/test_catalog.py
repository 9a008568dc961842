"""State as tables of Spark SQL, by `io.statestore.StateCatalog`."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.errors import IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from statestore import Checkpoint
from statestore.checkpoint.operator_metadata import OperatorInfo, read_operators
from statestore.core.errors import InvalidArgumentError
from statestore.core.text import to_time
from statestore.io.local import LocalFileIO
from statestore.operations.addresses import NO_SUCH_ROWS, RowsPlace, find_place, places_of
from statestore.operations.reading.tables import TableInfo

from .conftest import EXTENDED, ON_EACH_SPARK, PROVIDER, MakeLane
from .features import missing
from .harness import FILESYSTEM, HDFS, HEAP, ROCKSDB, Query
from .join_formats import join_in
from .queries import AGGREGATION, WITH_SCHEMAS
from .state_variables import everything
from .upgrades import UPGRADED, archives, unpack

pytestmark = pytest.mark.ours

CATALOG = "spark.sql.catalog.state"
METADATA = ["history", "operators", "partitions", "versions"]
IN_FILES = pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="each checkpoint has its backend")
SHORT = ("aggregation-then-dedup", "everything-pandas-EventTime-0-0-0")
"""Golden checkpoints of a short run: of two operators, and of state variables."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session with the catalog."""
    session = spark.newSession()
    session.conf.set(CATALOG, "io.statestore.StateCatalog")
    return session


def _golden() -> list[Any]:
    return [
        pytest.param(
            name,
            marks=[
                *([] if name.endswith(SHORT) else ON_EACH_SPARK),
                *([pytest.mark.needs("reader-of-ids")] if "-v2-" in name else []),
            ],
        )
        for name in UPGRADED
    ]


def _lanes() -> list[Any]:
    """Checkpoints that are made for this: joins in column families, and Spark's own providers."""
    some: list[tuple[str, Query, str, Any]] = [
        ("join-4", join_in("inner", "interval", "4"), PROVIDER, []),
        ("join-3", join_in("inner", "interval", "3"), PROVIDER, ON_EACH_SPARK),
        ("spark-hdfs", AGGREGATION, HDFS, []),
        ("spark-rocksdb-variables", everything("scala"), ROCKSDB, ON_EACH_SPARK),
        ("spark-rocksdb-join-4", join_in("inner", "interval", "4"), ROCKSDB, ON_EACH_SPARK),
    ]
    some += [
        (f"{provider.rpartition('.')[2]}-{query.name}", query, provider, [EXTENDED])
        for query in WITH_SCHEMAS
        for provider in (PROVIDER, query.built_in)
    ]
    return [
        pytest.param(
            query,
            provider,
            id=name,
            marks=[
                *marks,
                *(
                    [pytest.mark.needs(f"join-format-{query.name[-1]}")]
                    if query.name.endswith(("format-3", "format-4"))
                    else []
                ),
            ],
        )
        for name, query, provider, marks in some
    ]


def _name(table: TableInfo) -> str:
    return table.name[1:-1].replace('""', '"')


def _is_shown(table: TableInfo) -> bool:
    """Whether Spark's reader has the rows: they are not what Spark keeps beside a variable."""
    return table.variable is not None or not _name(table).startswith(("$", "default"))


def _place(path: Path, *more: str) -> str:
    """Return a name of SQL, in backticks."""
    return ".".join(["state", *(f"`{part}`" for part in (path, *more))])


def _tables(session: SparkSession, *place: Any) -> list[str]:
    return [row.tableName for row in session.sql(f"SHOW TABLES IN {_place(*place)}").collect()]


def _of_reader(session: SparkSession, path: Path, table: TableInfo, version: int) -> DataFrame:
    """Return what Spark's reader has, asked by hand for the rows of a table of the package."""
    options: dict[str, Any] = {"operatorId": table.operator, "batchId": version - 1}
    name = _name(table).rpartition("/")[2]
    if table.variable == "TimerState":
        options["readRegisteredTimers"] = True
    elif table.variable is not None:
        options["stateVarName"] = name
    else:
        options["storeName"] = table.store if name in ("state", str(table.operator)) else name
    return session.read.format("statestore").options(**options).load(str(path))


def _rows(frame: DataFrame) -> list[str]:
    # As text, since intervals cannot be collected.
    texts = frame.select(*(sf.col(name).cast("string") for name in frame.columns))
    return sorted(map(repr, texts.collect()))


def _error(session: SparkSession, sql: str) -> str:
    with pytest.raises(Exception, match=r"To fix|does not support") as raised:
        session.sql(sql).collect()
    return str(raised.value)


def _assert_equals_reader(session: SparkSession, path: Path, version: int) -> None:
    """The tables are those of the package, and have the rows that Spark's reader has."""
    known = Checkpoint(path, spark=session if PROVIDER == HEAP else None).tables()
    shown = [table for table in known if _is_shown(table)]
    assert sorted(_tables(session, path)) == sorted(map(_name, shown))
    num_rows = []
    for table in shown:
        found = session.sql(f"SELECT * FROM {_place(path, _name(table))} VERSION AS OF {version}")
        expected = _of_reader(session, path, table, version)
        assert found.schema == expected.schema
        rows = _rows(found)
        assert rows == _rows(expected), table.name
        num_rows.append(len(rows))
    assert sum(num_rows), "no table has a row: the test tests nothing"
    assert session.table(_place(path, f"{_name(table)}@{version}")).count() == num_rows[-1]
    for table in known:
        if table not in shown:
            error = _error(session, f"SELECT * FROM {_place(path, _name(table))}")
            # A join of state format 4 has it without rows, and Spark's schemas without a word.
            assert "`statestore sql`" in error or "table=default, known=" in error


@IN_FILES
@pytest.mark.parametrize("name", _golden())
def test_tables_have_the_rows_of_the_state_reader(
    session: SparkSession, tmp_path: Path, name: str
) -> None:
    """Catches rows of another operator, variable or version, and names that the package has not."""
    unpack(archives()[0], name, tmp_path)
    for key, value in UPGRADED[name][2].items():  # before 4.2 the session says the format
        session.conf.set(key, value)

    _assert_equals_reader(session, tmp_path / "checkpoint", 1)


@pytest.mark.parametrize(("query", "provider"), _lanes())
def test_tables_of_a_query_have_the_rows_of_the_state_reader(
    session: SparkSession, make_lane: MakeLane, query: Query, provider: str
) -> None:
    """Catches a layout of state, or a provider of Spark's, that the names do not fit."""
    lane = make_lane(query, provider)
    lane.run(*query.plan[0])

    _assert_equals_reader(session, lane.checkpoint, max(lane.batches) + 1)


NAMES = [
    *("clicks", "Clicks", "CLICKS", "state", "State", "default", "7", "0", "1/clicks", "clicks@1"),
    *("a b", "a`b", 'a"b', "é", "É", "/", "0/", "metadata", "versions", "$ttl_clicks"),
]
STORES = [name for name in NAMES if "/" not in name]


def _write_operators(rng: random.Random, checkpoint: Path) -> None:
    """Write Spark's metadata of random operators, of a query that has committed a batch."""
    for log in ("commits", "offsets"):
        (checkpoint / log).mkdir(parents=True)
        (checkpoint / log / "0").write_text("v1\n{}")
    for operator in range(rng.randint(1, 3)):
        kind = rng.choice(("one", "stores", "variables"))
        names = rng.sample(STORES, rng.randint(2, 4)) if kind == "stores" else ["default"]
        variables = rng.sample(NAMES, rng.randint(1, 4)) if kind == "variables" else []
        store = {"numColsPrefixKey": 0, "numPartitions": 2}
        fields: dict[str, Any] = {
            "operatorInfo": {"operatorId": operator, "operatorName": "any"},
            "stateStoreInfo": [{"storeName": name, **store} for name in names],
        }
        path = checkpoint / "state" / str(operator) / "_metadata" / "metadata"
        if kind == "variables":
            fields["stateStoreInfo"][0]["stateSchemaFilePaths"] = []
            named = [
                {"stateName": name, "stateVariableType": "ValueState", "ttlEnabled": False}
                for name in variables
            ]
            fields["operatorPropertiesJson"] = json.dumps({"stateVariables": named})
            path = path.with_name("v2") / "0"
        path.parent.mkdir(parents=True)
        path.write_text(f"{'v2' if variables else 'v1'}\n{json.dumps(fields)}")


def _folded(name: str) -> str:
    return name.encode().lower().decode()


def _meant(operators: Sequence[OperatorInfo], name: str) -> list[tuple[int, str | None]]:
    """Return the rows that `statestore sql` takes a name for; several where it asks which."""
    places = [place for one in operators for place in places_of(one, lambda *_: ())]

    def found(address: str | None) -> list[RowsPlace]:
        try:
            return [find_place(address, operators, lambda *_: ())]
        except InvalidArgumentError as error:
            is_none = error.problem == NO_SUCH_ROWS or "operator" in error.fields
            return [] if is_none else places

    by_case = [one for one in places if _folded(one.address(among=places)) == _folded(name)]
    of = found(name) or (found(None) if _folded(name) == "state" else [])
    of = of or (by_case if len(by_case) == 1 else [])
    return [(place.operator, place.name) for place in of]


def _elements(found: Any) -> Iterator[Any]:
    return (found.apply(number) for number in range(found.size()))


@IN_FILES
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=EXTENDED) for seed in range(1, 9))])
def test_a_name_means_what_it_means_to_the_package(
    session: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Catches a name that leads to other rows than in `statestore sql`, which errors would name."""
    rng = random.Random(seed)
    jvm: Any = session._jvm
    conf = session.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    num_meant = 0
    for number in range(30):
        path = tmp_path / str(number)
        _write_operators(rng, path)
        operators = read_operators(LocalFileIO(), str(path / "state"))
        places = [place for one in operators for place in places_of(one, lambda *_: ())]
        shown = [place.address(among=places) for place in places]
        files = jvm.io.statestore.catalog.CheckpointFiles(str(path), conf)
        addresses = files.addressesAt(1)

        for name in {*NAMES, *shown, *(f"{n}/{rng.choice(NAMES)}" for n in range(4))}:
            found = addresses.find(name)
            found = addresses.findFolded(name) if found.isEmpty() else found
            rows = [
                (place.operator(), place.name().get() if place.name().isDefined() else None)
                for place in _elements(found)
            ]
            meant = _meant(operators, name)
            assert rows == meant or (len(rows) > 1 and len(meant) > 1), (number, name)
            num_meant += len(meant) == 1
        # `$…` is no variable to Python's rule of what is Spark's own, and Spark refuses the name.
        expected = ["state"] if len(shown) == 1 else shown
        assert sorted(_tables(session, path)) == sorted(expected)
    assert num_meant > 100


@IN_FILES
def test_metadata_tables_say_what_the_package_says(session: SparkSession, tmp_path: Path) -> None:
    """Catches a batch taken for a version, files of another partition, and a line that is lost."""
    unpack(archives()[0], "FileSystemStateStoreProvider-v1-aggregation-update", tmp_path)
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(path)
    checkpoint.rescale(6)
    with Path(path, "statestore-history.jsonl").open("a") as history:
        history.write("not a line\n")

    def rows(table: str) -> list[Any]:
        return session.table(_place(path, "metadata", table)).collect()

    assert _tables(session, path, "metadata") == METADATA
    assert [
        (row.version, row.batch, row.committed_at.replace(tzinfo=UTC)) for row in rows("versions")
    ] == sorted(
        (info.version, info.batch, to_time(info.committed_ms)) for info in checkpoint.versions()
    )
    (store,) = checkpoint.inspect()
    assert [tuple(row) for row in rows("operators")] == [
        (0, store.operator_name, store.name, 6),
    ]
    partitions = rows("partitions")
    assert [(row.operator, row.partition_id) for row in partitions] == [(0, n) for n in range(6)]
    for row in partitions:
        files = (path / f"state/0/{row.partition_id}").rglob("*")
        # Hadoop hides its checksum files.
        sizes = [file.stat().st_size for file in files if file.suffix != ".crc" and file.is_file()]
        assert sizes
        assert (row.num_files, row.bytes) == (len(sizes), sum(sizes))
    done, damaged = sorted(checkpoint.history(), key=lambda entry: entry.is_damaged)
    begun, ended, unread = rows("history")
    assert (begun.event, ended.event, unread.event) == ("begun", "done", "damaged")
    for line in (begun, ended):
        assert (line.operation, line.from_version, line.to_version) == ("rescale", 2, 3)
        assert (line.user, line.host, line.writer) == (done.user, done.host, done.writer)
        assert json.loads(line.options) == done.options
    assert json.loads(ended.result) == done.result
    assert (unread.result, damaged.text) == ("not a line", "not a line")
    if missing("reader-of-fewer"):  # of version 2 it would look for the state partitions of 3
        return
    by_version = session.sql(
        f"SELECT count(*) FROM {_place(path, 'state')} VERSION AS OF 2 UNION ALL "
        f"SELECT count(*) FROM {_place(path, 'state')} VERSION AS OF 3"
    )
    assert len({tuple(row) for row in by_version.collect()}) == 1


def test_query_without_state_has_no_state_partitions(session: SparkSession, tmp_path: Path) -> None:
    """Catches an error of Hadoop's in place of an empty table."""
    query = session.readStream.format("rate").load().writeStream.format("noop")
    query = query.trigger(availableNow=True).option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(60)

    assert session.table(_place(tmp_path, "metadata", "partitions")).collect() == []


@IN_FILES
def test_what_cannot_be_read_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    """Catches a name, path or version taken for another one, and an error without advice."""
    unpack(archives()[0], "FileSystemStateStoreProvider-v1-aggregation-then-dedup", tmp_path)
    path = tmp_path / "checkpoint"
    place = _place(path, "0")
    newest = len(list((path / "commits").iterdir()))

    for sql, told in {
        f"SELECT * FROM {_place(path, 'nope')}": "table=nope, known=0, 1",
        f"SELECT * FROM {_place(path, 'state')}": "in several places",
        f"SELECT * FROM {_place(path, 'metadata', 'nope')}": f"known={', '.join(METADATA)}",
        "SELECT * FROM state.clicks": "state.`PATH`.TABLE",
        "SHOW TABLES IN state": "state.`PATH`.TABLE",
        f"SHOW TABLES IN {_place(tmp_path)}": "[checkpoint-not-found]",
        f"SELECT * FROM {_place(tmp_path / 'none', '0')}": "[checkpoint-not-found]",
        f"SELECT * FROM {place} VERSION AS OF 99": f"version=99, newest_version={newest}",
        f"SELECT * FROM {place} VERSION AS OF 0": f"version=0, newest_version={newest}",
        f"SELECT * FROM {_place(path, '0@99')}": f"version=99, newest_version={newest}",
        f"SELECT * FROM {place} VERSION AS OF 'first'": "version=first",
        f"SELECT * FROM {place} TIMESTAMP AS OF '2024-01-01'": "VERSION AS OF",
        f"SELECT * FROM {_place(path, 'metadata', 'versions')} VERSION AS OF 1": "leave VERSION",
    }.items():
        assert told in _error(session, sql), sql
    (path / "commits").rename(path / "offsets-only")
    assert "[version-not-found] no batch" in _error(session, f"SELECT * FROM {place}")


@IN_FILES
def test_what_is_not_there_does_not_exist(session: SparkSession, tmp_path: Path) -> None:
    """Catches a question for a table that ends in an error, and one answered without looking."""
    unpack(archives()[0], "FileSystemStateStoreProvider-v1-aggregation-then-dedup", tmp_path)
    path = tmp_path / "checkpoint"

    for name, expected in {
        _place(path, "0"): True,
        _place(path, "0@1"): True,
        _place(path, "metadata", "history"): True,
        _place(path, "state"): False,  # rows of two operators
        _place(path, "nope"): False,
        _place(path, "0@99"): False,
        _place(path, "metadata", "nope"): False,
        _place(tmp_path / "none", "0"): False,
        _place(tmp_path / "none", "metadata", "history"): False,
        "state.`0`": False,
    }.items():
        assert session.catalog.tableExists(name) is expected, name


@IN_FILES
def test_a_path_that_cannot_be_asked_is_refused_with_the_reason(session: SparkSession) -> None:
    """Catches an error of Hadoop's alone, and a file system out of reach taken for no table."""
    for path, kind, told in (
        ("", "invalid-argument", "path=''"),
        ("a:b", "invalid-argument", "path='a:b'"),
        ("foo:/a", "unsupported-scheme", "path=foo:/a, reason='UnsupportedFileSystemException"),
        ("hdfs://no.invalid/a", "storage", "UnknownHostException"),
    ):
        place = f"state.`{path}`"
        for refused in (
            lambda place=place: session.sql(f"SELECT * FROM {place}.state"),
            lambda place=place: session.sql(f"SHOW TABLES IN {place}"),
            lambda place=place: session.catalog.tableExists(f"{place}.state"),
        ):
            with pytest.raises(IllegalArgumentException, match="To fix") as raised:
                refused()
            assert str(raised.value).startswith(f"[{kind}]"), path
            assert told in str(raised.value), path


@IN_FILES
@pytest.mark.parametrize("name", ["a b", "a%b", "a%20b", "a#b", "a[b]", "a?b", "a+b", "ä", "a*b"])
def test_a_path_is_read_where_the_state_reader_reads_it(
    session: SparkSession, tmp_path: Path, name: str
) -> None:
    """Catches rows of the checkpoint whose path is the escaped one, and an error without a path."""
    unpack(archives()[0], "FileSystemStateStoreProvider-v1-aggregation-update", tmp_path)
    path = (tmp_path / "checkpoint").rename(tmp_path / name)
    other = tmp_path / quote(name)
    if other != path:
        shutil.copytree(path, other)
        Checkpoint(other).rescale(1)
    place = _place(path, "state")
    expected = Checkpoint(path).rows().read().num_rows
    partitions = len({file.name for file in (path / "state/0").iterdir() if file.name.isdigit()})

    assert _tables(session, path) == ["state"]
    assert session.table(_place(path, "metadata", "partitions")).count() == partitions
    if name in ("a+b", "ä", "a*b"):
        assert session.table(place).count() == expected
        return
    # It takes the escaped path, at which there is another checkpoint.
    assert (
        session.read.format("statestore").load(str(path)).select("partition_id").distinct().count()
        == 1
    )
    error = _error(session, f"SELECT * FROM {place}")
    assert f"path={path}, reader_looks_at=" in error
    assert "`statestore sql`" in error
    assert Checkpoint(path).sql("SELECT * FROM state").read().num_rows == expected


@IN_FILES
def test_state_is_not_changed_by_sql(session: SparkSession, tmp_path: Path) -> None:
    """Catches a statement that changes state, or that does nothing and says so to nobody."""
    unpack(archives()[0], "FileSystemStateStoreProvider-v1-aggregation-update", tmp_path)
    path = tmp_path / "checkpoint"
    place = _place(path, "state")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    for sql in (
        f"INSERT INTO {place} SELECT * FROM {place}",
        f"INSERT OVERWRITE {place} SELECT * FROM {place}",
        f"DELETE FROM {place} WHERE true",
        f"UPDATE {place} SET partition_id = 1",
        f"MERGE INTO {place} a USING {place} b ON a.key = b.key WHEN MATCHED THEN DELETE",
        f"CREATE TABLE {_place(path, 'new')} (id INT)",
        f"CREATE TABLE {_place(path, 'new')} AS SELECT 1",
        f"ALTER TABLE {place} ADD COLUMN more INT",
        f"ALTER TABLE {place} RENAME TO {_place(path, 'new')}",
        f"DROP TABLE {place}",
        f"DROP TABLE IF EXISTS {place}",
    ):
        with pytest.raises(UnsupportedOperationException, match="To fix: use `statestore edit`"):
            session.sql(sql).collect()
    assert "truncate" in _error(session, f"TRUNCATE TABLE {place}")

    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@IN_FILES
def test_a_checkpoint_can_be_the_current_namespace(session: SparkSession, tmp_path: Path) -> None:
    """Catches names that only work when they are written out, and joins of two checkpoints."""
    names = ("aggregation-update", "session-append")
    paths = [tmp_path / name / "checkpoint" for name in names]
    for name, path in zip(names, paths, strict=True):
        unpack(archives()[0], f"FileSystemStateStoreProvider-v1-{name}", path.parent)

    session.sql(f"USE {_place(paths[0])}")

    assert [row.tableName for row in session.sql("SHOW TABLES").collect()] == ["state"]
    expected = Checkpoint(paths[0]).rows().read().num_rows
    assert session.sql("SELECT * FROM state").count() == expected
    assert session.sql("SELECT * FROM STATE VERSION AS OF 2").count() == expected
    both = session.sql(f"SELECT 1 FROM state c CROSS JOIN {_place(paths[1], 'state')} s")
    assert both.count() == expected * Checkpoint(paths[1]).rows().read().num_rows
