"""Golden checkpoints of every format version are read for ever."""

import json
from pathlib import Path

import pytest

import statestore
from statestore.codec.state_file import StateFile

CHECKPOINTS = sorted(Path(__file__).parent.glob("v*/filesystem/*"))


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
