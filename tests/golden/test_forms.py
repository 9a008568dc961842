"""Every form of file that a checkpoint may hold is in the golden files, and is written the same."""

import json
import re
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.history import entries_of, read_history
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.lease import Leases
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.rescaling import undo_rescaled_version
from statestore.codec.references import StoreName
from statestore.codec.sealed_file import SealedFile
from statestore.core.errors import StateStoreError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.trial.record import HISTORY, read_record
from statestore.operations.upkeep.verify import verify
from tests.checkpoints import NUM_VERSIONS, read_rows
from tests.golden import forms
from tests.seams import place_of

GOLDEN = Path(__file__).parent
FORMS = GOLDEN / "v1" / "forms"
EXPECTED = json.loads((FORMS / "expected.json").read_text())
PAGE = GOLDEN.parents[1] / "docs" / "format.md"
PARTS = {"version": r"\d+", "partition": r"\d+", "checkpoint ID": "[0-9a-f]{32}", "id": "[0-9a-f]+"}
TEMPORARY = re.compile(r"\.tmp")
FILE_NAME = re.compile(
    r"(?:[\w<>.*-]|<checkpoint ID>)*[\w>-](?:\.[a-z]+)+|heap-backend|\.statestore"
)


def documented():
    """Names of files in the directory trees of the page, as patterns; not those being written."""
    trees = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [
        line
        for tree in trees
        for line in tree.splitlines()
        if line.lstrip().startswith(("<", "*", "statestore", "heap-backend"))
    ]
    shown = [re.split(r" {2,}", line.strip())[0] for line in lines]
    names = {
        found
        for line in shown
        for name in line.split(", ")
        for found in FILE_NAME.findall(name.rpartition("/")[2])
        if not TEMPORARY.search(found)
    }
    return {
        name: re.sub(
            "<([^>]+)>", lambda part: PARTS[part[1]], name.replace(".", r"\.").replace("*", ".*")
        )
        for name in names
    }


@pytest.fixture
def copied(tmp_path):
    """The forms where a test may write."""
    return forms.placed_at(FORMS, tmp_path / "forms")


def rows_of(directory):
    """The rows of a checkpoint of one operator."""
    ((_, rows),) = read_rows(directory).items()
    return {key.hex(): value.hex() for key, value in rows.items()}


def test_every_form_of_the_page_has_a_golden_file():
    """Catches a form that a release could change and no test would tell."""
    files = {path.name for path in GOLDEN.glob("v*/**/*") if path.is_file()}
    names = documented()

    known = {"<version>.<id>.pin", "heap-backend", "*.snapshot.sst", "checkpoint.json"}
    assert known | {"statestore-trial.json"} <= {*names}
    assert len(names) >= 12
    missing = {
        name
        for name, pattern in names.items()
        if not any(re.fullmatch(pattern, file) for file in files)
    }
    assert missing == set()


def test_forms_are_written_as_before(tmp_path):
    """Catches a field, a name or an order of rows that changes while its version stays."""
    forms.write_forms(tmp_path / "forms")

    found, before = forms.fixed_bytes(tmp_path / "forms"), forms.fixed_bytes(FORMS)

    assert {*found} == {*before}
    for name, content in found.items():
        assert content == before[name], name


def test_sst_files_are_whole():
    """Catches golden files that were edited, or changed by who checked them out."""
    files = [*GOLDEN.glob("v*/**/*.sst")]

    assert len(files) > 20
    for path in files:
        file = SealedFile(str(path))
        file.verify()
        assert file.trailer.kind == path.name.split(".")[-2]


def test_every_version_upon_a_merged_file_is_read(copied):
    """Catches a release that reads no snapshot or merged file of an earlier one's SSTs."""
    for version, expected in EXPECTED["merged"].items():
        with Checkpoint(copied / "merged").open_store(
            version=int(version),
            checkpoint_id=expected["checkpoint_id"],
            num_partitions=1,
            backend="rocksdb",
            checkpoint_format=2,
        ) as store:
            assert {key.hex(): value.hex() for key, value in store.scan()} == expected["rows"]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_rescaled_version_is_read_and_its_clips_hold(copied, backend):
    """Catches rows of a file taken over that another state partition has as well."""
    root = copied / f"rescaled-{backend}"

    assert rows_of(root) == EXPECTED[root.name]
    with open_checkpoint(place_of(root)) as checkpoint:
        assert not verify(checkpoint, deep=True).findings
        clips = [
            ref["clip"]
            for path in root.glob("state/0/*/4.delta.*")
            for ref in json.loads(trailer_of(path))["files"]
            if "clip" in ref
        ]
    assert {tuple(clip) for clip in clips} == {(4, partition) for partition in range(4)}


def trailer_of(path):
    """The bytes of a trailer."""
    data = path.read_bytes()
    end = forms.TRAILER_END
    length, _, _ = end.unpack(data[-end.size :])
    return data[-end.size - length : -end.size]


@pytest.mark.parametrize("body", ["arrows", "sst"])
def test_reference_files_are_read(copied, body):
    """Catches sources that are not found any more: their files would be held for ever, or go."""
    root = copied / ("rescaled-filesystem" if body == "arrows" else "rescaled-rocksdb")
    before = {*root.glob("state/0/*/3.*.ref")}

    for partition in range(4):
        location = StoreLocation(
            LocalFileIO(), f"{root}/state", StoreName(0, partition, "default"), body
        )
        undo_rescaled_version(location, 3)

    assert len(before) == 6
    assert not {*root.glob("state/0/*/3.*.ref")}


def test_pin_holds_its_version(copied):
    """Catches a pin of an earlier release that holds nothing."""
    files = LocalFileIO().list(str(copied / "merged/state/0/0"))

    oldest, expired = oldest_to_retain(NUM_VERSIONS, 1, files, files[0].modified_ms)

    assert (oldest, expired) == (forms.PINNED, [])


def test_leases_name_their_holders(copied):
    """Catches a query of an earlier release that an operation does not see."""
    leases = Leases(LocalFileIO(), str(copied / "merged/state"))

    found = {leases.read(name).holder for name in leases.list()}

    assert found == {*forms.HOLDERS}


def test_history_tells_what_was_done(copied):
    """Catches a history of an earlier release whose lines are shown as damaged."""
    (entry,) = read_history(LocalFileIO(), str(copied / "rescaled-filesystem"))

    assert (entry.status, entry.operation, entry.from_version, entry.to_version) == (
        "done", "rescale", 2, 3
    )  # fmt: skip
    assert (entry.user, entry.host, entry.options) == (
        "somebody", "somewhere", {"num_partitions": 4}
    )  # fmt: skip


def test_trial_is_what_it_was(copied):
    """Catches a trial of an earlier release that is neither promoted nor dropped any more."""
    assert read_record(LocalFileIO(), str(copied / "trial")) == forms.TRIAL

    (entry,) = entries_of((copied / "trial" / HISTORY).read_bytes())
    assert (entry.status, entry.operation, entry.to_version) == ("begun", "edit", 2)


def test_placement_leads_to_the_state(copied):
    """Catches a checkpoint whose state on another storage is no longer found."""
    assert rows_of(copied / "placed/checkpoint") == EXPECTED["placed"]


def test_store_of_the_heap_is_not_taken_for_a_new_one(copied):
    """Catches a query that starts from nothing beside the state that the driver held."""
    with (
        pytest.raises(StateStoreError, match="heap"),
        Checkpoint(copied / "heap").open_store(num_partitions=2, backend="filesystem"),
    ):
        pass
