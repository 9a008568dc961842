"""Golden checkpoints and savepoints of every format version are read for ever."""

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import Checkpoint, Savepoint
from statestore.codec.evolution import decode_values
from statestore.codec.state_file import StateFile
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.savepoint.savepoint import open_savepoint
from statestore.operations.upkeep.verify import verify
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import read_rows
from tests.seams import place_of

CHECKPOINTS = sorted(Path(__file__).parent.glob("v*/filesystem/*"))
EVOLVED = Path(__file__).parent / "v2" / "evolved"
SAVEPOINTS = sorted(Path(__file__).parent.glob("v*/savepoints/*"))


@pytest.mark.parametrize("root", CHECKPOINTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_golden_checkpoint_is_read_back(root):
    """Catches a release that no longer reads what an earlier one wrote."""
    expected = json.loads((root / "expected.json").read_text())
    for version, content in expected.items():
        asked = content["checkpoint_id"] if root.name.endswith("2") else None
        with Checkpoint(root).open_store(
            2, 1, "left-keyToNumValues", version=int(version), checkpoint_id=asked, num_partitions=4
        ) as store:
            found = {
                family.name: [
                    [key.hex(), value.hex()] for key, value in store.scan(column_family=family.name)
                ]
                for family in store.column_families
            }
            assert found == content["families"]
            assert store.checkpoint_id == content["checkpoint_id"]


def test_golden_values_of_several_schemas_are_read_back():
    """Catches a release for which the number behind a row is a part of it, or no number."""
    expected = json.loads((EVOLVED / "expected.json").read_text())
    shown = {
        1: [{"a": 10 + key} for key in range(4)],
        2: [{"a": 10, "b": None}, *({"a": 10 + key, "b": 20 + key} for key in range(1, 4))],
        3: [{"b": None}, {"b": 21}, {"b": 12}, {"b": 13}],
    }
    for version, content in expected.items():
        with Checkpoint(EVOLVED).open_store(version=int(version), num_partitions=1) as store:
            family = store.column_families[1]
            found = {
                key.decode(): value.hex() for key, value in store.scan(column_family=family.name)
            }
        assert found == content
        values = pa.array([bytes.fromhex(content[key]) for key in sorted(content)], pa.binary())
        assert decode_values(values, family).to_pylist() == shown[int(version)]


@pytest.mark.parametrize("backend", [None, "filesystem"])
@pytest.mark.parametrize("root", SAVEPOINTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_golden_savepoint_is_restored(tmp_path, root, backend):
    """Catches a release for which a savepoint, or an SST file, of an earlier one is none."""
    expected = json.loads((root / "expected.json").read_text())
    new = tmp_path / "checkpoint"

    with open_savepoint(place_of(root / "savepoint")) as (savepoint, _):
        assert json.loads(json.dumps(asdict(savepoint))) == expected["savepoint"]
    plan = Savepoint(root / "savepoint").restore(new, backend=backend)
    assert (plan.state_files == "copied") == (
        (savepoint.form == "canonical") == (backend == "filesystem")
    )

    found = {
        f"{operator}/{name}": {key.hex(): value.hex() for key, value in rows.items()}
        for (operator, name), rows in read_rows(new).items()
    }
    assert found == expected["rows"]
    assert json.loads((new / "metadata").read_text()) == {"id": QUERY_ID}
    with open_checkpoint(place_of(new)) as checkpoint:
        assert checkpoint.backend == (backend or savepoint.backend)
        assert not verify(checkpoint, deep=True).findings


def test_golden_files_are_there_and_whole():
    """Catches golden files lost from the repository or edited."""
    files = [path for root in (*CHECKPOINTS, EVOLVED) for path in root.rglob("*.arrows")]

    assert len(files) == 16
    for path in files:
        file = StateFile(str(path))
        file.verify()
        released = path.relative_to(Path(__file__).parent).parts[0]
        assert released == f"v{file.trailer.format_version}"
        assert file.trailer.writer.startswith("statestore ")
        assert file.trailer.rescalable
    forms = [
        {path.suffix for path in (root / "savepoint" / "state").rglob("*.*")} for root in SAVEPOINTS
    ]
    assert forms == [{".arrows"}, {".sst"}]
