"""A savepoint that somebody made to write elsewhere than into the target it is restored to."""

import json
import shutil
from itertools import pairwise

import pytest

from statestore import Savepoint
from statestore.checkpoint.layout import RescaleRefName, StoreLocation
from statestore.checkpoint.rescale_refs import release
from statestore.codec.references import StoreName
from statestore.core.errors import CorruptionError, StateStoreError
from statestore.io.local import LocalFileIO
from statestore.io.s3 import S3FileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.conversion import decide_convert
from statestore.operations.metadata_file import query_metadata
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import AGGREGATION, JOIN, OPTIONS, files_below, make_query, restore
from tests.hostile import edit_json, edit_trailer
from tests.seams import at, place_of

ID = "0123456789abcdef" * 2
OUT = "../" * 9
SECRET = "below the savepoint's own parent"  # noqa: S105


def _head(savepoint, operator=0):
    """The newest delta of a store, which is the version's."""
    store = "" if operator == 0 else "left-keyToNumValues/"
    return max((savepoint / f"state/{operator}/0").glob(f"{store}*.delta.*"))


def _points_to(path, **changes):
    """The first file that the version is made of is said to be elsewhere."""

    def edit(savepoint):
        def change(fields):
            fields["files"][0] |= {"path": path, **changes}

        edit_trailer(_head(savepoint), change)

    return edit


def _names_checkpoint_id(text):
    def edit(savepoint):
        def change(fields):
            for stores in fields["stateUniqueIds"]["0"]:
                stores[0] = text

        edit_json(savepoint / "commits/2", change)

    return edit


def _names_store(name):
    def edit(savepoint):
        path = savepoint / "state/0/_metadata/metadata"
        edit_json(path, lambda fields: fields["stateStoreInfo"][0].update(storeName=name))

    return edit


def _numbers_operator(number):
    def edit(savepoint):
        path = savepoint / "state/0/_metadata/metadata"
        edit_json(path, lambda fields: fields["operatorInfo"].update(operatorId=number))

    return edit


def _is_elsewhere(savepoint):
    """The savepoint names a storage of others, as a checkpoint may."""
    storage = savepoint.parent / "storage"
    (storage / ID).mkdir(parents=True)
    for name in ("0", "1"):
        (savepoint / "state" / name).rename(storage / ID / name)
        for metadata in sorted((storage / ID / name).rglob("_metadata")):
            back = savepoint / "state" / metadata.relative_to(storage / ID)
            back.parent.mkdir(parents=True, exist_ok=True)
            metadata.rename(back)
    fields = {"format_version": 1, "writer": "x", "storage": str(storage), "id": ID}
    (savepoint / "statestore.json").write_text(json.dumps(fields))


def _describes(**changes):
    def edit(savepoint):
        path = savepoint / "metadata"
        fields = json.loads(path.read_text())
        fields["statestore"]["savepoint"] |= changes
        path.write_text(json.dumps(fields))

    return edit


EDITS = {
    "parent": _points_to("../../../../dot_ssh/authorized_keys"),
    "parent-state-file": _points_to("../../../../dot_ssh/1.delta.arrows"),
    "sibling-and-out": _points_to("../1/../../../../dot_ssh/1.delta.arrows"),
    "other-operator": _points_to("../../1/0/1.delta.arrows"),
    "other-store": _points_to("../../1/left-keyToNumValues/1.delta.arrows"),
    "absolute": _points_to("/dot_ssh/authorized_keys"),
    "no-state-file": _points_to("_metadata/schema"),
    "own-file-of-spark": _points_to("_metadata"),
    "leading-zeros": _points_to("../01/1.delta.arrows"),
    "empty": _points_to(""),
    "dots": _points_to(".."),
    "attempt-of-a-reference": _points_to("x.snapshot", kind="snapshot", checkpoint_id=f"a/{OUT}b"),
    "attempt-in-the-commit-log": _names_checkpoint_id(f"x/{OUT}dot_ssh/3"),
    "attempt-of-another-type": _names_checkpoint_id(["x"]),
    "store-name": _names_store("../../../dot_ssh"),
    "store-name-dots": _names_store(".."),
    "store-name-of-another-type": _names_store(7),
    "operator-text": _numbers_operator("../../.."),
    "operator-negative": _numbers_operator(-1),
    "placement": _is_elsewhere,
}
DESCRIPTORS = {
    "backend": _describes(backend="../x"),
    "partitions": _describes(num_partitions=10**9),
    "query-id": _describes(query_id=["x"]),
    "operators": _describes(operators=7),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A native savepoint of an aggregation and a join, with what lies beside it."""
    root = tmp_path_factory.mktemp("hostile")
    query = make_query(
        root / "query", num_partitions=2, checkpoint_format=2, operators=(AGGREGATION, JOIN)
    )
    at(query.path, options=OPTIONS).savepoint(root / "savepoint", form="native")
    return files_below(root / "savepoint")


@pytest.fixture
def savepoint(made, tmp_path):
    """A copy of it, deep enough that nine times up is still in the test's own directory."""
    savepoint = tmp_path.joinpath(*"abcdefghi", "savepoint")
    for name, data in made.items():
        path = savepoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    secret = savepoint.parent / "dot_ssh"
    secret.mkdir()
    for name in ("authorized_keys", "1.delta.arrows", "3.delta.arrows"):
        (secret / name).write_text(SECRET)
    return savepoint


def _branch(savepoint, target):
    checkpoint = target.with_name(f"{target.name}-of-a-query")
    shutil.copytree(savepoint, checkpoint)
    (checkpoint / "metadata").write_text(query_metadata(QUERY_ID))
    at(checkpoint, options=OPTIONS).branch(target)


def _restore_anew(savepoint, target):
    restore(savepoint, target, num_partitions=1)


def _claim(savepoint, target):
    restore(savepoint, target, claim=True)


def _savepoint_again(savepoint, target):
    at(savepoint, options=OPTIONS).savepoint(target, form="native")


def _convert(savepoint, target):
    with open_checkpoint(place_of(savepoint, options=OPTIONS)) as checkpoint:
        plan = decide_convert(checkpoint, place_of(target), "spark-rocksdb")
        for operator in plan.operators:
            for store in operator.info.stores:
                checkpoint.heads(plan.version, operator=operator.info.id, name=store.name)


OPERATIONS = (restore, _restore_anew, _claim, _branch, _savepoint_again, _convert)


def _open_s3(s3_server, tmp_path):
    (tmp_path / "cache").mkdir()
    return S3FileIO(str(tmp_path / "cache"), s3_server.settings())


@pytest.mark.parametrize(
    ("edit", "operation"),
    [
        pytest.param(edits[edit], operation, id=f"{edit}-{operation.__name__.strip('_')}")
        for edits, operations in ((EDITS, OPERATIONS), (DESCRIPTORS, OPERATIONS[:3]))
        for edit in edits
        for operation in operations
        if (edit, operation) != ("placement", _branch)  # a query's state may be elsewhere
    ],
)
def test_nothing_outside_of_the_target_changes_when_a_savepoint_is_hostile(
    savepoint, tmp_path, edit, operation
):
    """Catches a path or name out of the savepoint's files that is followed before it is checked."""
    # As deep as the savepoint: what leads out of one and into the other would be overwritten.
    target = tmp_path.joinpath(*"qrstuvwxy", "target")
    victim = target.parent / "dot_ssh"
    victim.mkdir(parents=True)
    for name in ("authorized_keys", "1.delta.arrows", "3.delta.arrows"):
        (victim / name).write_text("the user's own")
    edit(savepoint)
    before = files_below(tmp_path)

    with pytest.raises(StateStoreError) as caught:
        operation(savepoint, target)

    assert caught.value.kind != "internal", caught.value
    inside = str(target.relative_to(tmp_path))
    after = {name: data for name, data in files_below(tmp_path).items() if inside not in name}
    assert after == before


@pytest.mark.parametrize("edit", ["parent", "no-state-file", "store-name", "placement"])
def test_a_hostile_savepoint_is_refused_by_what_is_wrong_with_it(savepoint, tmp_path, edit):
    """Catches a refusal that is a plain ValueError, or that only a missing file came to."""
    EDITS[edit](savepoint)

    with pytest.raises(CorruptionError, match=r"To fix: (do not use|take the|put the)"):
        restore(savepoint, tmp_path / "target")

    assert not list((tmp_path / "target").rglob("*.arrows"))


def test_keys_of_an_object_store_stay_in_the_target_when_they_look_like_parents(
    savepoint, bucket, s3_server, tmp_path
):
    """Catches an object `sources/../../../x` that is written above a target on a local disk."""
    io = _open_s3(s3_server, tmp_path)
    for name, data in files_below(savepoint).items():
        io.write(f"/{bucket}/savepoint/{name}", data, sync=True, overwrite=True)
    io.write(f"/{bucket}/savepoint/sources/../../../evil", b"x", sync=True, overwrite=True)
    target = tmp_path.joinpath("deep", "er", "target")
    before = files_below(tmp_path)

    at(f"/{bucket}/savepoint", kind=Savepoint, options=OPTIONS, io=io).restore(target)

    after = files_below(tmp_path)
    assert {name for name in after if name.endswith("evil")} == set()
    assert before.items() <= after.items()


@pytest.mark.parametrize("edit", ["parent", "parent-state-file", "sibling-and-out", "placement"])
def test_no_key_outside_of_the_target_changes_when_both_are_on_s3(
    savepoint, bucket, s3_server, tmp_path, edit
):
    """Catches the same on an object store, where a path is a key."""
    EDITS[edit](savepoint)
    io = _open_s3(s3_server, tmp_path)
    for name, data in files_below(savepoint.parent).items():
        io.write(f"/{bucket}/a/b/{name}", data, sync=True, overwrite=True)
    keys = {info.name: info.size for info in io.list_tree(f"/{bucket}")}

    with pytest.raises(StateStoreError):
        at(f"/{bucket}/a/b/savepoint", kind=Savepoint, options=OPTIONS, io=io).restore(
            at(f"/{bucket}/c/d/target", options=OPTIONS, io=io)
        )

    found = {info.name: info.size for info in io.list_tree(f"/{bucket}")}
    assert {name: size for name, size in found.items() if not name.startswith("c/d/target")} == keys


@pytest.mark.parametrize("source", ["../../../../elsewhere", -1, 1.0, True, "1", None, 10**30])
def test_a_cleanup_deletes_nowhere_when_a_reference_file_names_another_place(tmp_path, source):
    """Catches sources of a rescale's reference file that are put into a path unchecked."""
    state = tmp_path / "checkpoint" / "state"
    store = StoreLocation(LocalFileIO(), str(state), StoreName(0, 0))
    (state / "0/0").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (state / "0/0/3.0.ref").write_text(json.dumps({"format_version": 1, "sources": [0, source]}))
    (elsewhere / "3.0.ref").write_text("somebody's")
    before = files_below(tmp_path)

    with pytest.raises(CorruptionError, match=r"3\.0\.ref"):
        release(store, [RescaleRefName(3, 0)], num_partitions=1, newest=3)

    assert files_below(tmp_path) == before


def _require_no_copy(savepoint, new):
    for copy in (
        lambda: at(savepoint, options=OPTIONS).restore(new),
        lambda: at(savepoint, options=OPTIONS).transform(new, {}),
    ):
        with pytest.raises(CorruptionError, match="leads out of the checkpoint"):
            copy()
        assert not new.exists()


@pytest.mark.parametrize("what", ["state file", "state partition"])
def test_state_of_another_query_that_a_link_leads_to_is_not_copied(savepoint, tmp_path, what):
    """Catches rows of another query's in the copy of a stranger's savepoint."""
    link = savepoint / "state/0/0"
    if what == "state file":
        link = next(path for path in link.rglob("*") if path.is_file())
    link.symlink_to(shutil.move(link, tmp_path / "elsewhere"))
    if what == "state partition":  # of links to one directory a listing follows the first
        for number in range(30):
            (savepoint / f".{number}").symlink_to(tmp_path / "elsewhere")

    _require_no_copy(savepoint, tmp_path / "new")


@pytest.mark.parametrize("leads_to", ["file", "directory", "file below state"])
def test_what_a_link_leads_to_is_not_copied(savepoint, tmp_path, leads_to):
    """Catches private files of whoever copies a stranger's savepoint, in the copy."""
    secret = tmp_path / "secret" / "credentials"
    secret.parent.mkdir()
    secret.write_text(SECRET)
    link = savepoint / ("state/0/_stateSchema/x" if "state" in leads_to else "sources/x")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(secret.parent if leads_to == "directory" else secret)

    _require_no_copy(savepoint, tmp_path / "new")


def test_links_that_fan_out_are_followed_once_each(savepoint):
    """Catches 2 ** 30 ways through thirty directories."""
    levels = [savepoint / "sources" / f"level-{number}" for number in range(31)]
    for directory, below in pairwise(levels):
        directory.mkdir(parents=True)
        below.mkdir(parents=True)
        for name in "ab":
            (directory / name).symlink_to(below)
        below.rmdir()

    assert len(LocalFileIO().list_tree(str(savepoint))) < 1000


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_name_of_an_entry_takes_no_memory(savepoint, log):
    """Catches a tuple of two thousand million batches, in every command."""
    (savepoint / log / "2000000000").write_text("")

    with pytest.raises(CorruptionError, match=r"newest_batch=(2000000000|1999999999)"):
        at(savepoint, options=OPTIONS).versions()
