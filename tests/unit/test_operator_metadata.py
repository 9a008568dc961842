"""Spark's metadata of operators, as Spark 4.3 writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statestore.checkpoint.operator_metadata import (
    OperatorInfo,
    StateVariable,
    StoreInfo,
    copy_operators,
    parse_operator,
    read_operators,
    write_num_partitions,
    write_operator,
)
from statestore.core.errors import CorruptionError
from statestore.io.file_io import FileInfo
from statestore.io.local import LocalFileIO

SCHEMA = "0_212b8b69-421a-4430-9aaa-50558ef4b22d"
JOIN = (
    'v1\n{"operatorInfo":{"operatorId":1,"operatorName":"symmetricHashJoin"},"stateStoreInfo":'
    '[{"storeName":"left-keyToNumValues","numColsPrefixKey":0,"numPartitions":4},'
    '{"storeName":"left-keyWithIndexToValue","numColsPrefixKey":0,"numPartitions":4}]}'
)


def _with_families(root: str, *variables: tuple[str, str, bool], operator: int = 0) -> str:
    properties = {
        "timeMode": "EventTime",
        "stateVariables": [
            {"stateName": name, "stateVariableType": kind, "ttlEnabled": ttl}
            for name, kind, ttl in variables
        ],
    }
    store = {
        "storeName": "default",
        "numColsPrefixKey": 0,
        "numPartitions": 4,
        "stateSchemaFilePaths": [f"{root}/{operator}/_stateSchema/default/{SCHEMA}"],
    }
    fields = {
        "operatorInfo": {"operatorId": operator, "operatorName": "transformWithStateExec"},
        "stateStoreInfo": [store],
        "operatorPropertiesJson": json.dumps(properties),
    }
    return f"v2\n{json.dumps(fields, separators=(',', ':'))}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _numbers(path: Path) -> list[int]:
    stores = json.loads(path.read_text().splitlines()[-1])["stateStoreInfo"]
    return [store["numPartitions"] for store in stores]


def test_stores_are_named_in_order() -> None:
    """Catches the stores of a join taken in another order than their checkpoint IDs."""
    operator = parse_operator(JOIN, "metadata", 1)

    assert (operator.id, operator.name) == (1, "symmetricHashJoin")
    assert operator.stores == (
        StoreInfo("left-keyToNumValues", 0, 4),
        StoreInfo("left-keyWithIndexToValue", 0, 4),
    )
    assert not operator.has_families


def test_newest_metadata_names_the_variables(tmp_path: Path) -> None:
    """Catches an operator with column families that is overlooked, or taken as it once was."""
    root = f"file:{tmp_path}"
    _write(tmp_path / "0/_metadata/v2/2", _with_families(root, ("old", "ValueState", False)))
    newest = _with_families(root, ("seen", "ListState", True), ("count", "ValueState", False))
    _write(tmp_path / "0/_metadata/v2/10", newest)
    _write(tmp_path / "1/_metadata/metadata", JOIN)

    first, second = read_operators(LocalFileIO(), str(tmp_path))

    assert first.variables == (
        StateVariable("seen", "ListState", True),
        StateVariable("count", "ValueState", False),
    )
    assert first.stores[0].schema_files == (f"_stateSchema/default/{SCHEMA}",)
    assert (first.has_families, second.has_families) == (True, False)


@pytest.mark.parametrize("left", [5, None])
def test_metadata_that_spark_purges_meanwhile_hides_no_operator(
    tmp_path: Path, left: int | None
) -> None:
    """Catches an operator that is overlooked, with its state, where the oldest file has gone."""
    directory = tmp_path / "0/_metadata/v2"
    text = _with_families(f"file:{tmp_path}", ("count", "ValueState", False))
    for batch in (0, left):
        if batch is not None:
            _write(directory / str(batch), text)

    class Purged(LocalFileIO):
        def list(self, path: str) -> list[FileInfo]:
            found = super().list(path)
            _write(directory / "5", text)
            (directory / "0").unlink(missing_ok=True)
            return found

    (operator,) = read_operators(Purged(), str(tmp_path))

    assert [variable.name for variable in operator.variables] == ["count"]


@pytest.mark.parametrize(
    ("root", "uri", "expected"),
    [
        ("file:/a/state", "file:/b/state", "file:/b/state"),
        ("s3a://old/ck/state", "s3://new/ck/state", "s3a://new/ck/state"),
        ("s3a://old/ck/state", "s3a://new/ck/state", "s3a://new/ck/state"),
        ("s3://old/ck/state", "s3://new/ck/state", "s3://new/ck/state"),
        ("s3://old/ck/state", "s3a://new/ck/state", "s3a://new/ck/state"),
        ("s3://old/ck/state", "hdfs://h:1/ck/state", "hdfs://h:1/ck/state"),
        ("file:/a/state", "s3://new/ck/state", "s3a://new/ck/state"),
        ("hdfs://h:1/a/state", "s3a://new/ck/state", "s3a://new/ck/state"),
    ],
)
def test_schemas_of_a_copy_are_its_own(tmp_path: Path, root: str, uri: str, expected: str) -> None:
    """Catches a copy that reads, and later deletes, the schemas of the original."""
    old, new = tmp_path / "old", tmp_path / "new"
    for batch in (0, 3, 5):
        text = _with_families(root, ("count", "ValueState", False), operator=1)
        _write(old / f"1/_metadata/v2/{batch}", text)
    io = LocalFileIO()

    copy_operators(io, str(old), io, str(new), uri, {1: 0}, 8, newest_batch=4)

    assert sorted(path.name for path in (new / "0/_metadata/v2").iterdir()) == ["0", "3"]
    for batch in (0, 3):
        text = (new / f"0/_metadata/v2/{batch}").read_text()
        wanted = _with_families(expected, ("count", "ValueState", False), operator=0)
        assert text == wanted.replace('"numPartitions":4', '"numPartitions":8')


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_schemas_that_are_made_are_where_spark_opens_them(scheme: str) -> None:
    """Catches a scheme that Hadoop has no file system for."""
    store = StoreInfo("default", 0, 4, ("_stateSchema/default/0_a",))
    operator = OperatorInfo(1, "symmetricHashJoin", (store,), has_families=True)

    text = write_operator(operator, f"{scheme}://new/ck/state")

    assert '"s3a://new/ck/state/1/_stateSchema/default/0_a"' in text


def test_number_of_partitions_holds_from_a_batch_on_and_is_taken_back(tmp_path: Path) -> None:
    """Catches older versions that are read with a later number, and what an undo leaves behind."""
    path = tmp_path / "0/_metadata/v2"
    text = _with_families("file:/a/state", ("count", "ValueState", False))
    for batch in (0, 3):
        _write(path / str(batch), text)
    io = LocalFileIO()

    for _ in range(2):
        write_num_partitions(io, str(tmp_path), [0], 8, 5)
    assert [_numbers(path / str(batch)) for batch in (0, 3, 5)] == [[4], [4], [8]]
    _write(path / "7", text)
    _write(path / ".7.crc", "")

    write_num_partitions(io, str(tmp_path), [0], 4, 5)

    assert sorted(file.name for file in path.iterdir()) == ["0", "3"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"operatorPropertiesJson":"{', '"operatorPropertiesJson":"{{'),
        ("stateVariableType", "type"),
        ("/_stateSchema/", "/schemas/"),
        (f"/default/{SCHEMA}", f"/../../../{SCHEMA}"),
    ],
)
def test_damaged_metadata_is_named(old: str, new: str) -> None:
    """Catches a raw exception, or a path that leads out of the checkpoint."""
    text = _with_families("file:/a/state", ("count", "ValueState", False)).replace(old, new)

    with pytest.raises(CorruptionError):
        parse_operator(text, "v2/0", 0)
