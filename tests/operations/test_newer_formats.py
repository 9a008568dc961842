"""Files of a later release, which has other fields in them: refused by name, and not as damage."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.layout import OWNER_NAME, placement_path
from statestore.checkpoint.placement import read_owner, read_placement
from statestore.core.errors import IncompatibleError
from statestore.io.local import LocalFileIO
from statestore.operations.trial.record import RECORD_NAME, read_record
from tests.checkpoints import make_query

Read = Callable[[], object]
NEWER = {"format_version": 2}
IO = LocalFileIO()


def _placement(directory: Path) -> tuple[Path, Read]:
    return Path(placement_path(str(directory))), lambda: read_placement(IO, str(directory))


def _owner(directory: Path) -> tuple[Path, Read]:
    return directory / OWNER_NAME, lambda: read_owner(IO, str(directory))


def _record(directory: Path) -> tuple[Path, Read]:
    return directory / RECORD_NAME, lambda: read_record(IO, str(directory))


@pytest.mark.parametrize("of", [_placement, _owner, _record])
def test_file_of_a_newer_format_is_no_damaged_one(
    tmp_path: Path, of: Callable[[Path], tuple[Path, Read]]
) -> None:
    """Catches the advice to put back, or to delete, a file that a later release has written."""
    path, read = of(tmp_path)
    path.write_text(json.dumps(NEWER))

    with pytest.raises(IncompatibleError) as caught:
        read()

    assert caught.value.kind == "newer-format"
    assert caught.value.fields["file"] == str(path)
    assert (caught.value.fields["format_version"], caught.value.fields["newest_known"]) == (2, 1)


def test_savepoint_of_a_newer_format_is_no_damaged_one(tmp_path: Path) -> None:
    """Catches a savepoint of a later release that counts as lost."""
    query = make_query(tmp_path / "query")
    savepoint = Checkpoint(query.path).savepoint(tmp_path / "savepoint").made
    metadata = Path(savepoint.uri, "metadata")
    found = json.loads(metadata.read_text())
    assert found["statestore"]["savepoint"]["format_version"] == 1
    found["statestore"]["savepoint"] = NEWER
    metadata.write_text(json.dumps(found))

    with pytest.raises(IncompatibleError) as caught:
        savepoint.info  # noqa: B018

    assert caught.value.kind == "newer-format"
