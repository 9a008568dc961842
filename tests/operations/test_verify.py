"""Deep verification finds rows that checksums cannot: in the wrong place, or too many or few.

Also in processes of its own, as where there are many rows.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of
from statestore.cli.commands import cli
from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.references import StoreName
from statestore.codec.rows import PUT, Row
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.options import StateStoreOptions
from statestore.operations import processes
from statestore.operations.processes import map_in_processes
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.deltas import write_stream
from statestore.testing.stores import OPERATORS, MadeStore, schema_of, unsafe_row
from tests.checkpoints import make_query
from tests.damaged import flip, make_with_snapshots
from tests.seams import at

ROOT = Path(__file__).resolve().parents[2]
STORE = StoreName(0, 1)
((FAMILY_OF,),) = (stores for _, stores in OPERATORS[:1])
NUM_KEY_GROUPS = 32_768


def key_of_partition(partition):
    """A key that belongs to a state partition of four, and its key group."""
    keys = [unsafe_row(number) for number in range(100)]
    encoded = pa.array(keys, pa.binary())
    groups = compute_key_groups(encoded, "default", FAMILY_OF.family, NUM_KEY_GROUPS).tolist()
    return next(
        (key, group) for key, group in zip(keys, groups, strict=True) if group % 4 == partition
    )


def commit_again(made, row, num_keys, class_error):
    """Commit one row, and a number of keys, as the newest version of the store, as a shim that errs
    would.
    """
    for file in Path(made.path, "state/0/1").glob("2.delta.*"):
        file.unlink()
    loaded = made._call("load", STORE, version=1, checkpoint_id=None, num_partitions=4)
    assert loaded["max_parallelism"] == NUM_KEY_GROUPS
    growth = [0] * NUM_CLASSES
    growth[(class_of(row.key_group, 4) + class_error) % NUM_CLASSES] = 1
    path = str(made.scratch / "again.arrows")
    family = FAMILY_OF.family
    made._call(
        "commit",
        STORE,
        version=2,
        parent={name: loaded[name] for name in ("version", "checkpoint_id", "lineage")},
        checkpoint_id="0" * 32,
        delta={
            "path": path,
            "length": write_stream(path, [row], NUM_KEY_GROUPS),
            "put": 1,
            "delete": 0,
            "merge": 0,
        },
        num_keys=num_keys,
        key_group_growth=growth,
        max_parallelism=NUM_KEY_GROUPS,
        num_partitions=4,
        rescalable=True,
        column_families=[
            {
                "id": family.id,
                "name": family.name,
                "key_schema": family.key_schema,
                "value_schema": family.value_schema,
                "encoder": family.encoder,
            }
        ],
    )


@pytest.mark.parametrize(
    ("partition_of_key", "group_error", "num_keys", "class_error", "problem"),
    [
        (1, 0, 1, 0, None),
        (1, 4, 1, 0, "not in the key group or the state partition that its key belongs to"),
        (2, 0, 1, 0, "not in the key group or the state partition that its key belongs to"),
        (1, 0, 2, 0, "not as many as its trailer says: file='2.delta.arrows'"),
        (
            1,
            0,
            1,
            1,
            "field='key_group_rows', expected=(0, ",
        ),
    ],
    ids=["sound", "wrong-key-group", "wrong-partition", "wrong-count", "wrong-key-group-rows"],
)
def test_rows_that_do_not_belong_are_found(
    tmp_path, partition_of_key, group_error, num_keys, class_error, problem
):
    """Catches a row that no task would look for, or one lost, that every checksum agrees with."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(
        str(tmp_path / "checkpoint"), tmp_path / "scratch", operators=OPERATORS[:1]
    )
    made.run_batch({})
    made.run_batch({})
    key, group = key_of_partition(partition_of_key)
    row = Row((group + group_error) % NUM_KEY_GROUPS, 0, PUT, key, unsafe_row(7))
    commit_again(made, row, num_keys, class_error)

    found = Checkpoint(made.path).verify(deep=True).findings
    deep = CliRunner().invoke(cli, ["verify", made.path, "--deep", "--output", "json"])

    assert Checkpoint(made.path).verify().findings == ()
    assert CliRunner().invoke(cli, ["verify", made.path]).exit_code == 0
    if problem is None:
        assert (found, deep.exit_code) == ((), 0)
        return
    assert [(one.version, one.store, one.kind) for one in found] == [(2, STORE, "corruption")]
    assert problem in found[0].problem
    assert deep.exit_code == 1
    assert [one["kind"] for one in json.loads(deep.stdout)["findings"]] == ["corruption"]


class UnreadableStore(MadeStore):
    """A store whose keys are of a type that this release does not have."""

    @property
    def family(self):
        """Its only column family."""
        return ColumnFamily(0, "default", schema_of(t="time(9)"), schema_of(value="long"))

    def key_groups(self, family, keys, max_parallelism):
        """Return key groups as Spark might."""
        return [key[8] % max_parallelism for key in keys]


def test_keys_of_a_type_that_cannot_be_read_are_no_damage(tmp_path):
    """Catches a repair that goes back over batches that are whole."""
    operators = [("stateStoreSave", [UnreadableStore("default", ("t",))])]
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), operators=operators)
    for batch in range(2):
        made.run_batch(dict.fromkeys(range(9), batch))
    checkpoint = Checkpoint(made.path)

    deep = checkpoint.verify(deep=True)
    text = CliRunner().invoke(cli, ["verify", made.path, "--deep"])
    plan = checkpoint.repair(dry_run=True)

    assert (deep.ok, deep.num_rows) == (True, 9)
    (unchecked,) = deep.unchecked
    assert unchecked.startswith("operator 0, store default, default: ")
    assert "time(9)" in unchecked
    assert text.exit_code == 0
    assert "Key groups not checked: operator 0" in text.stdout
    assert (plan.version, plan.findings) == (2, ())
    assert checkpoint.verify().unchecked == ()
    for is_deep in (True, False):
        said = (
            "Not checked were key groups: operator 0" in checkpoint.report(deep=is_deep).all_is_well
        )
        assert said == is_deep


@pytest.fixture(name="many_rows")
def _many_rows(monkeypatch):
    """Take any state for one that is large enough for processes, on a machine with two cores."""
    monkeypatch.setattr(processes, "_MIN_ROWS", 1)
    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    counts = []
    monkeypatch.setattr(
        "statestore.operations.upkeep.verify.map_in_processes",
        lambda function, shares: counts.append(len(shares)) or map_in_processes(function, shares),
    )
    return counts


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_processes_find_what_threads_do(tmp_path, request, backend):
    """Catches damage that is lost on the way from a process, or files and rows counted twice."""
    query, snapshots = make_with_snapshots(tmp_path, backend)

    def verify():
        reports = []
        found = Checkpoint(query.path).verify(
            versions="all", deep=True, progress=lambda done, total: reports.append((done, total))
        )
        return found, reports[-1]

    (whole, done) = verify()
    flip(snapshots[0])
    (damaged, _) = verify()
    counts = request.getfixturevalue("many_rows")
    (damaged_again, done_again) = verify()
    flip(snapshots[0])

    assert verify()[0] == whole
    assert counts == [2, 2]  # both state partitions, by two processes
    assert whole.ok
    assert done == done_again
    assert not damaged.ok
    assert damaged_again == damaged


@pytest.mark.parametrize("module", ["loky", "argparse", "multiprocessing"])
def test_processes_import_nothing_from_the_current_directory(tmp_path, module):
    """Catches a file of somebody else's in a shared directory, run with the rights of the user."""
    (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    command = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from statestore.operations.processes import map_in_processes\n"
        "print([found for _, found in map_in_processes(abs, [-1, -2])])\n"
        "print(os.environ.get('PYTHONSAFEPATH'))\n"
    )
    script = tmp_path / "apart" / "script.py"
    script.parent.mkdir()
    script.write_text(command)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[1, 2]\nNone\n"
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("versions", [12, "12"])
def test_versions_that_are_no_list_are_refused(tmp_path, versions):
    """Catches a bare TypeError, and version '1' that is not there."""
    query, _ = make_with_snapshots(tmp_path, "filesystem")
    with pytest.raises(InvalidArgumentError, match="versions="):
        Checkpoint(query.path).verify(versions=versions)


def test_process_that_is_killed_is_an_error():
    """Catches an operation that waits for ever, or takes what is missing for nothing found."""
    with pytest.raises(StorageError, match="a process of the operation was killed"):
        list(map_in_processes(os._exit, [9]))


def _lose_all(sources):
    shutil.rmtree(sources)


def _lose_newest(sources):
    (sources / "0" / "2").unlink()


def _lose_one_between(sources):
    (sources / "0" / "1").unlink()


def _lose_one_before_compaction(sources):
    (sources / "0" / "2").rename(sources / "0" / "2.compact")
    (sources / "0" / "0").unlink()
    (sources / "0" / "1").unlink()


@pytest.mark.parametrize(
    ("lose", "is_whole", "missing"),
    [
        (_lose_all, False, "sources/0/0"),
        (_lose_newest, False, "sources/0/2"),
        (_lose_one_between, False, "sources/0/1"),
        (_lose_one_before_compaction, True, None),
    ],
)
def test_file_source_that_would_read_again_is_found(tmp_path, lose, is_whole, missing):
    """Catches a checkpoint called whole, and copied, whose query counts all of its input again."""
    query = make_query(tmp_path / "query")
    checkpoint = Checkpoint(query.path)
    whole = checkpoint.savepoint(tmp_path / "whole").made
    lose(tmp_path / "query" / "sources")
    lose(tmp_path / "whole" / "sources")
    actions = [
        lambda: checkpoint.savepoint(tmp_path / "new", dry_run=True),
        lambda: checkpoint.savepoint(tmp_path / "savepoint"),
        lambda: checkpoint.branch(tmp_path / "new", dry_run=True),
        lambda: checkpoint.branch(tmp_path / "branch"),
        lambda: whole.restore(tmp_path / "new", dry_run=True),
        lambda: whole.restore(tmp_path / "restored"),
    ]

    found = [
        *checkpoint.verify().findings,
        *checkpoint.verify(versions="all", deep=True).findings,
        *Checkpoint(tmp_path / "whole").verify().findings,
    ]

    if is_whole:
        assert found == []
        for act in actions:
            act()
        return
    assert {(one.kind, one.is_recoverable) for one in found} == {("file-not-found", False)}
    assert all(f"file='{missing}'" in one.problem for one in found)
    for act in actions:
        with pytest.raises(NotFoundError, match="would read files again") as raised:
            act()
        assert raised.value.kind == "file-not-found"
    assert not (tmp_path / "branch" / "commits").exists()


def test_source_that_a_query_reads_twice_has_one_log(tmp_path):
    """Catches a join of a stream with itself that is called damaged, and cannot be copied."""
    query = make_query(tmp_path / "query")
    for entry in (tmp_path / "query" / "offsets").iterdir():
        *rest, offset = entry.read_text().split("\n")
        entry.write_text("\n".join([*rest, offset, offset]))
    checkpoint = Checkpoint(query.path)

    assert checkpoint.verify(deep=True).findings == ()

    checkpoint.savepoint(tmp_path / "savepoint").made.restore(tmp_path / "restored")
    _lose_newest(tmp_path / "query" / "sources")
    assert len(checkpoint.verify().findings) == 1


def test_source_that_is_lost_before_the_first_commit_is_found(tmp_path):
    """Catches a first batch that would read other files than were planned, called well."""
    query = make_query(tmp_path / "query")
    shutil.rmtree(tmp_path / "query" / "commits")
    for entry in (tmp_path / "query" / "offsets").iterdir():
        if entry.name != "0":
            entry.unlink()
    assert Checkpoint(query.path).verify().ok
    _lose_all(tmp_path / "query" / "sources")

    (finding,) = Checkpoint(query.path).verify().findings

    assert (finding.version, finding.kind) == (0, "file-not-found")


def test_an_entry_that_is_gone_is_one_finding(tmp_path):
    """Catches damage that is told twice."""
    made = make_query(tmp_path, num_batches=2)
    Path(made.path, "offsets", "1").unlink()
    (finding,) = Checkpoint(made.path).verify().findings
    assert finding.version == 2
    assert "lacks the entry of a batch" in str(finding)


@pytest.mark.parametrize("is_uri", [False, True], ids=["path", "uri"])
def test_damaged_metadata_of_a_query_is_told_for_what_it_is(tmp_path, *, is_uri):
    """Catches the word that the query starts, and a command that does not help."""
    query = make_query(tmp_path / "made")
    path = Path(query.path)
    checkpoint = Checkpoint(path.as_uri() if is_uri else path)

    (path / "metadata").write_text("{")
    damaged = checkpoint.verify().to_fix
    (path / "metadata").unlink()
    lost = checkpoint.verify().to_fix
    (path / "state/0/0/_metadata/schema").write_text("{")
    with_another = checkpoint.verify()

    assert len(with_another.findings) == 2
    assert with_another.to_fix == lost
    assert "or delete it" in damaged
    for to_fix in (damaged, lost):
        assert "not start the query without its ID" in to_fix
        assert f"statestore restore {checkpoint.uri} NEW" in to_fix
        assert "compact" not in to_fix
    (path / "state/0/0/_metadata/schema").unlink()
    assert checkpoint.restore(tmp_path / "new").made.verify().ok


@pytest.mark.parametrize("name", ["metadata", "v2/0"])
def test_damaged_metadata_of_an_operator_is_mended_as_its_form_allows(tmp_path, name):
    """Catches a repair that cannot help, and the end of a query that a deleted file would save."""
    query = make_query(tmp_path / "made")
    directory = Path(query.path, "state/0/_metadata")
    (directory / "v2").mkdir()
    (directory / "metadata").rename(directory / name).write_text("")
    checkpoint = Checkpoint(query.path)

    with pytest.raises(CorruptionError) as copied:
        checkpoint.savepoint(tmp_path / "savepoint")
    with pytest.raises(NotFoundError) as repaired:
        checkpoint.repair(dry_run=True)

    for to_fix in (copied.value.to_fix, repaired.value.to_fix, checkpoint.verify().to_fix):
        assert "from a copy" in to_fix
        assert "statestore repair" not in to_fix
        assert "new checkpoint directory" not in to_fix
        assert ("run a batch of the query" in to_fix) == (name == "metadata")


def test_damaged_snapshot_is_told_for_what_it_is_wherever_the_checkpoint_is(tmp_path):
    """Catches a checkpoint below a directory that is called as a part of one."""
    query, (snapshot, _) = make_with_snapshots(tmp_path / "resources/offsets/0", "filesystem")
    flip(snapshot, 400)

    to_fix = Checkpoint(query.path).verify(deep=True).to_fix

    assert "the query starts" in to_fix
    assert "compact" in to_fix


def test_damaged_entry_of_the_batch_under_way_is_told_for_what_it_is(tmp_path):
    """Catches the word that the query starts: Spark reads the newest entry first."""
    query = make_query(tmp_path / "made")
    query.plan()
    entry = max(Path(query.path, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    entry.write_text("v1\n{")

    to_fix = Checkpoint(query.path).verify().to_fix

    assert "Spark does not start the query" in to_fix
    assert f"statestore repair {query.path}" in to_fix
    assert "compact" not in to_fix


def _name_schemas(path):
    """Make the metadata of a checkpoint's operator that of one with state variables."""
    operator = path / "state/0"
    schemas = operator / "_stateSchema/default"
    schemas.mkdir(parents=True)
    for name in ("0_x", "1 %41"):
        shutil.copy(operator / "0/_metadata/schema", schemas / name)
    metadata = operator / "_metadata/metadata"
    fields = json.loads(metadata.read_text().splitlines()[1])
    (store,) = fields["stateStoreInfo"]
    # The shim asks for the newest alone.
    older = "file:/gone/state/0/_stateSchema/default/0_x"
    store["stateSchemaFilePaths"] = [older, f"file:{schemas}/1 %41"]
    metadata.unlink()
    (operator / "_metadata/v2").mkdir()
    (operator / "_metadata/v2/0").write_text(f"v2\n{json.dumps(fields)}")


def test_moved_checkpoint_whose_schemas_are_named_elsewhere_is_told(tmp_path):
    """Catches the word that all is well, where Spark then does not start the query."""
    path = Path(make_query(tmp_path / "made %41").path)
    _name_schemas(path)
    (tmp_path / "link").symlink_to(path)
    assert not Checkpoint(path).verify().schemas_elsewhere
    assert not Checkpoint(tmp_path / "link").verify().schemas_elsewhere
    copy = Checkpoint(shutil.copytree(path, tmp_path / "copy"))
    assert not copy.verify().schemas_elsewhere, "the shim finds the schemas of the original"
    moved = path.rename(tmp_path / "moved")

    found = Checkpoint(moved).verify(deep=True)

    assert found.ok, "it may be the same directory under another mount"
    (named,) = found.schemas_elsewhere
    assert named == f"file:{path}/state/0/_stateSchema/default/1 %41"
    assert f"statestore restore {moved} NEW" in found.describe()
    for copied in (Checkpoint(moved).savepoint, Checkpoint(moved).restore):
        assert not copied(tmp_path / copied.__name__).made.verify().schemas_elsewhere


def test_schemas_of_a_moved_checkpoint_are_looked_for_on_s3(tmp_path, s3_server, bucket):
    """Catches silence where the former bucket is gone, and a word where nobody can tell."""
    path = Path(make_query(tmp_path / "made").path)
    _name_schemas(path)
    metadata = path / "state/0/_metadata/v2/0"
    named = metadata.read_text()
    s3_server.put_many(bucket, ["ck/state/0/_stateSchema/default/1 %41"])

    def is_elsewhere(root):
        metadata.write_text(named.replace(f"file:{path}", root))
        options = StateStoreOptions(**s3_server.options())
        return bool(at(path, options=options).verify().schemas_elsewhere)

    assert not is_elsewhere(f"s3a://{bucket}/ck")
    assert is_elsewhere(f"s3a://{bucket}/other")
    assert is_elsewhere("s3a://gone/ck")
    assert not is_elsewhere("unknown://gone/ck")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("form", "sideways", "sideways"), ("version", "three", "three"), ("operators", 7, "7")],
)
def test_damaged_descriptor_of_a_savepoint_is_found(tmp_path, field, value, said):
    """Catches a savepoint that is called whole and cannot be restored."""
    savepoint = Checkpoint(make_query(tmp_path / "made").path).savepoint(tmp_path / "savepoint")
    assert savepoint.made.verify(deep=True).findings == ()
    path = tmp_path / "savepoint" / "metadata"
    fields = json.loads(path.read_text())
    (ours,) = (found for found in fields.values() if isinstance(found, dict))
    ours["savepoint"][field] = value
    path.write_text(json.dumps(fields))

    (finding,) = savepoint.made.verify().findings

    assert "metadata" in (finding.file or finding.problem)
    assert said in str(finding)
    with pytest.raises(StateStoreError):
        savepoint.made.restore(tmp_path / "restored")
