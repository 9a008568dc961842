"""Golden checkpoints and savepoints of every format version are read for ever."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import statestore
from statestore.codec.state_file import StateFile
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.savepoint.restore import plan_restore
from statestore.operations.savepoint.savepoint import open_savepoint
from statestore.operations.upkeep.verify import verify
from tests.operations.checkpoints import QUERY_ID, read_rows

CHECKPOINTS = sorted(Path(__file__).parent.glob("v*/filesystem/*"))
SAVEPOINTS = sorted(Path(__file__).parent.glob("v*/savepoints/*"))


@pytest.mark.parametrize("root", CHECKPOINTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_golden_checkpoint_is_read_back(root):
    """Catches a release that no longer reads what an earlier one wrote."""
    expected = json.loads((root / "expected.json").read_text())
    for version, content in expected.items():
        asked = content["checkpoint_id"] if root.name.endswith("2") else None
        with statestore.open_store(
            str(root), 2, 1, "left-keyToNumValues",
            version=int(version), checkpoint_id=asked, num_partitions=4,
        ) as store:  # fmt: skip
            found = {
                family.name: [
                    [key.hex(), value.hex()] for key, value in store.scan(column_family=family.name)
                ]
                for family in store.column_families
            }
            assert found == content["families"]
            assert store.checkpoint_id == content["checkpoint_id"]


@pytest.mark.parametrize("backend", [None, "filesystem"])
@pytest.mark.parametrize("root", SAVEPOINTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_golden_savepoint_is_restored(tmp_path, root, backend):
    """Catches a release for which a savepoint, or an SST file, of an earlier one is none."""
    expected = json.loads((root / "expected.json").read_text())
    new = tmp_path / "checkpoint"

    with open_savepoint(str(root / "savepoint")) as (savepoint, _):
        assert json.loads(json.dumps(asdict(savepoint))) == expected["savepoint"]
    with plan_restore(str(root / "savepoint"), str(new), backend=backend) as plan:
        assert plan.is_copied == ((savepoint.form == "canonical") == (backend == "filesystem"))
        plan.run()

    found = {
        f"{operator}/{name}": {key.hex(): value.hex() for key, value in rows.items()}
        for (operator, name), rows in read_rows(new).items()
    }
    assert found == expected["rows"]
    assert json.loads((new / "metadata").read_text()) == {"id": QUERY_ID}
    with open_checkpoint(str(new)) as checkpoint:
        assert checkpoint.backend == (backend or savepoint.backend)
        assert not verify(checkpoint, deep=True).findings


def test_golden_files_are_there_and_whole():
    """Catches golden files lost from the repository or edited."""
    files = [path for root in CHECKPOINTS for path in root.rglob("*.arrows")]

    assert len(files) == 12
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
