"""Files of a later release, which has other fields in them: refused by name, and not as damage."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.checkpoint.history import Event, append
from statestore.checkpoint.layout import OWNER_NAME, history_path, placement_path
from statestore.checkpoint.lease import Leases
from statestore.checkpoint.placement import read_owner, read_placement
from statestore.core.errors import CorruptionError, IncompatibleError, InUseError, StorageError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from statestore.operations.trial.record import RECORD_NAME, read_record
from tests.checkpoints import files_below, make_query
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at, place_of

from .test_edit_in_place import KEYS, make

Read = Callable[[], object]
NEWER = {"format_version": 2}
IO = LocalFileIO()


def _placement(directory: Path) -> tuple[Path, Read]:
    return Path(placement_path(str(directory))), lambda: read_placement(IO, str(directory))


def _owner(directory: Path) -> tuple[Path, Read]:
    return directory / OWNER_NAME, lambda: read_owner(IO, str(directory))


def _record(directory: Path) -> tuple[Path, Read]:
    return directory / RECORD_NAME, lambda: read_record(IO, str(directory))


def _lease(directory: Path) -> tuple[Path, Read]:
    leases = Leases(IO, str(directory / "state"))
    name = f"query-{1:032x}.json"
    path = Path(leases.path(name))
    path.parent.mkdir(parents=True)
    return path, lambda: leases.read(name)


@pytest.mark.parametrize("of", [_placement, _owner, _record, _lease])
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


def test_lease_of_a_newer_format_keeps_an_operation_away_and_stays(tmp_path: Path) -> None:
    """Catches an operation beside a holder that it cannot read, and one that deletes its lease."""
    query = make_query(tmp_path / "query")
    leases = Leases(IO, str(tmp_path / "query/state"))
    name = f"query-{1:032x}.json"
    Path(leases.directory).mkdir()
    Path(leases.path(name)).write_text(json.dumps(NEWER))

    with pytest.raises(IncompatibleError, match="newer-format"):
        Checkpoint(query.path).rescale(4)

    assert [*leases.list()] == [name]
    assert len(Checkpoint(query.path).history()) == 0


def test_history_that_a_later_release_writes_is_seen_to_grow(tmp_path: Path) -> None:
    """Catches two lines that cannot be read, taken for the same one."""
    query = make_query(tmp_path / "query")
    append(IO, query.path, Event("0" * 32, "edit", 1, 1, 2))
    history = Path(history_path(query.path))
    line = json.dumps(NEWER).encode() + b"\n"
    history.write_bytes(history.read_bytes() + line)
    with open_checkpoint(place_of(query.path)) as opened:
        opened.decide_from_here()
        with exclusive_use(opened, "edit"):
            pass
        history.write_bytes(history.read_bytes() + line.replace(b"2", b"3"))

        with pytest.raises(InUseError, match="history"), exclusive_use(opened, "edit"):
            pass


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"schema_version": 2}, IncompatibleError),
        ({"num_rows": None}, CorruptionError),
        ({"removed": [{"path": "a"}]}, CorruptionError),
    ],
    ids=["newer", "damaged", "damaged-list"],
)
def test_certificate_that_this_release_cannot_complete_is_named(
    tmp_path: Path, changes: dict[str, object], error: type[Exception]
) -> None:
    """Catches a TypeError or a KeyError in place of what is wrong with the file."""
    made, file, keys = make(tmp_path), tmp_path / "certificate.json", pa.table({"key.k": KEYS[3:4]})
    io = FaultFileIO(IO)
    io.arm(Fault(0, calls=("publish",)))
    with pytest.raises(StorageError, match="injected"):
        at(made.path, io=io).forget(keys=keys, certificate=file)
    begun = json.loads(file.read_text())
    file.write_text(json.dumps({**begun, **changes}))
    before = files_below(tmp_path / "query")

    with pytest.raises(error, match=re.escape(str(file))):
        Checkpoint(made.path).forget(keys=keys, certificate=file)

    if error is IncompatibleError:
        with pytest.raises(error, match="newer-format"):
            Checkpoint(made.path).search_keys(keys, certificate=file)
    assert files_below(tmp_path / "query") == before
    # A field more is none that this release needs.
    begun["removed"][0]["more"] = 1
    file.write_text(json.dumps(begun))
    done = Checkpoint(made.path).forget(keys=keys, certificate=file).certificate
    assert (done.status, done.begun_ms) == ("complete", begun["begun_ms"])
