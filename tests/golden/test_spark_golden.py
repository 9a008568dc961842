"""Golden checkpoints of Spark's own providers are read for ever, and damage to them is named."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.codec.evolution import decode_value_rows, decode_values
from statestore.codec.key_bytes import decode_keys, split_values
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
)
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.reading.diff import DiffCounts
from statestore.operations.spark_states import find_states, find_versions
from statestore.spark_files import rows
from tests.seams import place_of

GOLDEN = Path(__file__).parent / "spark"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
CHANGES = {"hdfs": "*.delta", "rocksdb-ids-variables": "*.changelog"}
SNAPSHOTS = {"hdfs": "3.snapshot", "rocksdb-no-changelog": "4.zip"}


def path_of(name):
    return str(GOLDEN / name / "checkpoint")


@pytest.fixture
def copy(tmp_path):
    """Returns a function that copies a golden checkpoint, to be damaged."""

    def make(name):
        shutil.copytree(GOLDEN / name / "checkpoint", tmp_path / name)
        return tmp_path / name

    return make


def read_all(path, version=None):
    """Rows of every column family as text."""
    return {
        family.name: sorted(
            json.dumps(row, default=str)
            for row in Checkpoint(path).rows(family.name, version=version).read().to_pylist()
        )
        for store in Checkpoint(path).inspect(version=version)
        for family in store.column_families
        if len(store.column_families) == 1 or family.name != "default"
    }


@pytest.mark.parametrize("name", NAMES)
def test_golden_checkpoint_is_read(name):
    """Catches a release that reads what Spark wrote otherwise than the one that was compared."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text())["rows"]

    assert any(expected.values())
    assert read_all(path_of(name)) == {
        family: sorted(map(json.dumps, rows)) for family, rows in expected.items()
    }


def test_changes_by_key_are_refused_by_name():
    """Catches an empty table, which would say that no key changes."""
    with pytest.raises(IncompatibleError, match="statestore diff") as raised:
        Checkpoint(path_of("hdfs")).rows().most_changed()
    assert raised.value.kind == "other-provider"


@pytest.mark.parametrize("piece_bytes", [1, 700, 3000])
def test_rows_are_the_same_when_few_of_them_fit_memory(monkeypatch, piece_bytes):
    """Catches a key that is there twice, or again, where its records are sorted apart."""
    whole = read_all(path_of("hdfs"))
    monkeypatch.setattr(rows, "RUN_BYTES", piece_bytes)
    assert read_all(path_of("hdfs")) == whole


@pytest.mark.parametrize("name", NAMES)
def test_golden_checkpoint_is_verified_and_listed(name):
    """Catches a whole checkpoint that is taken for a damaged one."""
    verified = Checkpoint(path_of(name)).verify(versions="all", deep=True)
    listed, versions = Checkpoint(path_of(name)).info, Checkpoint(path_of(name)).versions()

    assert verified.findings == ()
    assert verified.num_rows
    assert len(verified.versions) == len(versions) >= 4
    assert listed.backend == f"spark-{name.split('-')[0]}"
    assert listed.stored_bytes >= verified.num_bytes
    for version in versions:
        assert version.problem is None
        assert version.kind == ("full" if name == "rocksdb-no-changelog" else "incremental")
        assert 0 < version.incremental_bytes <= version.full_bytes


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_encoded_to_the_bytes_that_spark_wrote(name):
    """Catches a row written as data that differs from Spark's own in a byte."""
    num_rows = 0
    with open_checkpoint(place_of(path_of(name))) as checkpoint:
        for state in find_states(checkpoint, checkpoint.newest_version).values():
            for family in state.column_families:
                for batch in state.rows(family.name):
                    keys, values = batch.column("key"), batch.column("value")
                    assert encode_keys(decode_keys(keys, family), family).equals(keys)
                    if family.multi_values:
                        ranges, _ = split_values(values)
                        rows = encode_values(decode_value_rows(ranges, family), family)
                        found = b"".join(rows.to_pylist())
                        assert found == b"".join(values.to_pylist())
                    else:
                        assert encode_values(decode_values(values, family), family).equals(values)
                    num_rows += len(keys)
    assert num_rows


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("name", NAMES)
def test_golden_checkpoint_becomes_one_of_ours_without_spark(name, backend, tmp_path):
    """Catches a row that is lost or changed on the way in, and a checkpoint that is not whole."""
    done = Checkpoint(path_of(name)).restore(tmp_path / "new", backend=backend)

    assert read_all(tmp_path / "new") == read_all(path_of(name))
    verified = done.made.verify(deep=True)
    assert verified.findings == ()
    assert done.made.info.backend == backend
    assert done.made.info.newest_version == Checkpoint(path_of(name)).info.newest_version
    assert json.loads((tmp_path / "new" / "metadata").read_text()) == json.loads(
        (Path(path_of(name)) / "metadata").read_text()
    )
    assert Checkpoint(tmp_path / "new").rescale(6, dry_run=True).changes


@pytest.mark.parametrize(
    ("name", "backend"),
    [("hdfs", "filesystem"), ("rocksdb-no-changelog", "rocksdb")],
)
def test_golden_checkpoint_comes_to_the_backend_that_is_most_like_it(name, backend, tmp_path):
    """Catches state on executors' disks that is in their memory afterwards, unasked for."""
    assert Checkpoint(path_of(name)).restore(tmp_path / "new", dry_run=True).backend == backend


def without_partitions(path):
    """Rows of every column family as text, wherever they are."""
    return {
        family: sorted(
            json.dumps({**json.loads(row), "partition_id": None}, sort_keys=True) for row in rows
        )
        for family, rows in read_all(path).items()
    }


@pytest.mark.parametrize("num_partitions", [1, 2, 5, 6, 8])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.few(8)
def test_golden_checkpoint_gets_another_number_of_state_partitions(name, num_partitions, tmp_path):
    """Catches a row that is lost, or put where Spark does not look for it."""
    before = Checkpoint(path_of(name)).info.num_partitions
    max_parallelism = 30 * num_partitions if num_partitions == 5 else 0
    source = Checkpoint(path_of(name), storage_options={"maxParallelism": str(max_parallelism)})

    made = source.restore(tmp_path / "new", num_partitions=num_partitions).made

    assert without_partitions(tmp_path / "new") == without_partitions(path_of(name))
    assert made.verify(deep=True).findings == ()
    assert made.info.num_partitions == num_partitions
    (store,) = made.inspect()
    if max_parallelism:
        assert store.max_parallelism == max_parallelism
    else:
        assert store.max_parallelism % before == store.max_parallelism % num_partitions == 0
    again = made.savepoint(tmp_path / "savepoint").made.restore(
        tmp_path / "again", num_partitions=before
    )
    assert without_partitions(again.made.uri) == without_partitions(path_of(name))


def test_rows_that_are_not_where_their_keys_belong_are_refused(copy, tmp_path):
    """Catches rows of a partitioning that is not known here, spread so that no query finds them."""
    path = copy("hdfs")
    zero, one, between = (path / "state/0" / name for name in ("0", "1", "between"))
    (zero / "_metadata").rename(path / "kept")
    zero.rename(between)
    one.rename(zero)
    between.rename(one)
    (path / "kept").rename(zero / "_metadata")

    with pytest.raises(IncompatibleError, match="not-rescalable"):
        Checkpoint(path).restore(tmp_path / "new", num_partitions=6)
    assert Checkpoint(path).restore(tmp_path / "as-it-was").made.info.num_partitions


def test_golden_checkpoints_begin_with_snapshots_and_go_on():
    """Catches golden files that would not show an error in either: they must have both."""
    for name in CHANGES:
        with open_checkpoint(place_of(path_of(name))) as checkpoint:
            chains = [
                found.chain
                for version in range(1, checkpoint.newest_version + 1)
                for found in find_versions(checkpoint, version).values()
            ]
        assert any(chain.snapshot and chain.changes for chain in chains), name


def test_two_versions_are_compared():
    """Catches a diff that passes over state partitions, or finds what did not change."""
    path = path_of("hdfs")
    counts = Checkpoint(path).rows(version=1).count_differences(Checkpoint(path).rows())
    old, new = (
        {
            json.dumps(row["key"]): row
            for row in Checkpoint(path).rows(version=version).read().to_pylist()
        }
        for version in (1, None)
    )

    assert counts == DiffCounts(
        added=len({*new} - {*old}),
        removed=len({*old} - {*new}),
        changed=sum(old[key] != new[key] for key in {*old} & {*new}),
    )
    assert counts.changed
    assert (
        Checkpoint(path)
        .rows()
        .count_differences(Checkpoint(path_of("rocksdb-no-changelog")).rows())
        == DiffCounts()
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda path: Checkpoint(path).rescale(4),
        lambda path: Checkpoint(path).repair(),
        lambda path: Checkpoint(path).expire(2),
        lambda path: Checkpoint(path).savepoint(f"{path}-savepoint"),
        lambda path: Checkpoint(path).branch(f"{path}-branch", dry_run=True),
    ],
    ids=["rescale", "repair", "expire", "savepoint", "branch"],
)
def test_what_changes_state_refuses_it_by_name(copy, change):
    """Catches a command that changes what it only knows how to read."""
    path = copy("hdfs")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    with pytest.raises(IncompatibleError) as caught:
        change(str(path))

    assert caught.value.kind == "other-provider"
    assert "statestore restore" in caught.value.to_fix
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def files_of(path, pattern):
    return sorted((path / "state/0").rglob(pattern))


FILES = [
    ("hdfs", "3.snapshot"),
    ("hdfs", "4.delta"),
    ("hdfs-session-zstd", "1.delta"),
    ("rocksdb-no-changelog", "4.zip"),
    ("rocksdb-no-changelog", "*.sst"),
    ("rocksdb-ids-variables", "4_*.changelog"),
    ("rocksdb-ids-variables", "3_*.zip"),
    ("rocksdb-ids-variables", "*.sst"),
]
# A file of checksums is the same beside any file: one of each provider is enough.
WITH_CHECKSUMS = [("hdfs", "4.delta"), ("rocksdb-ids-variables", "3_*.zip")]


@pytest.mark.parametrize(
    ("name", "pattern", "keeps_checksum_files"),
    [
        pytest.param(
            *file,
            kept,
            marks=pytest.mark.extended if kept and file not in WITH_CHECKSUMS else [],
            id=f"{'-'.join(file)}-{'checksum-files' if kept else 'alone'}",
        )
        for file in FILES
        for kept in (True, False)
    ],
)
@pytest.mark.few(5)
def test_damage_is_found_wherever_it_is(copy, name, pattern, keeps_checksum_files):
    """Catches bytes that are believed, and errors that name no file."""
    path = copy(name)
    if not keeps_checksum_files:
        for file in path.rglob("*.crc"):
            file.unlink()
    files = files_of(path, pattern)
    assert files
    wrong = missed = 0
    expected = read_all(path)
    for file in files[:2]:
        data = file.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 8)):
            file.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
            found = Checkpoint(path).verify(versions="all", deep=True)
            if found.findings:
                wrong += 1
                assert all(finding.kind in DAMAGE for finding in found.findings), found.findings
                assert any(file.name in finding.problem for finding in found.findings) or any(
                    finding.store is not None for finding in found.findings
                )
            else:
                missed += 1
                assert keeps_checksum_files is False or file.suffix == ".sst"
                # What nothing covers is nothing that rows are made of.
                if name != "hdfs-session-zstd":
                    assert read_all(path) == expected
        file.write_bytes(data)
    assert wrong > missed


DAMAGE = {"corruption", "checksum-mismatch", "truncated", "newer-format", "file-not-found"}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("hdfs", "4.delta"),
        ("hdfs-session-zstd", "1.delta"),
        ("rocksdb-no-changelog", "4.zip"),
        ("rocksdb-no-changelog", "*.sst"),
        ("rocksdb-ids-variables", "4_*.changelog"),
    ],
)
def test_files_that_are_cut_off_or_gone_are_named(copy, name, pattern):
    """Catches a part of the rows taken for all of them."""
    path = copy(name)
    for file in path.rglob("*.crc"):
        file.unlink()
    file = files_of(path, pattern)[-1]
    data = file.read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 1, None):
        if length is None:
            file.unlink()
        else:
            file.write_bytes(data[:length])
        found = Checkpoint(path).verify(versions="all", deep=True).findings
        assert found, length
        assert all(one.kind in DAMAGE | {"version-not-found"} for one in found), found
        assert any(file.name in one.problem for one in found), found


@pytest.mark.parametrize(
    ("name", "stale", "of_other"),
    [
        ("hdfs", ".4.delta.crc", ".3.delta.crc"),
        ("rocksdb-ids-variables", "5_*.zip.crc", "3_*.zip.crc"),
    ],
)
def test_checksum_file_that_may_be_older_than_its_file_is_named(copy, name, stale, of_other):
    """Catches the advice to give batches up, where a checksum file that nobody renews is stale."""
    path = copy(name)
    expected = read_all(path)
    (checksums, *_), (other, *_) = (files_of(path, pattern) for pattern in (stale, of_other))
    checksums.write_bytes(other.read_bytes())

    with pytest.raises(CorruptionError, match="delete the checksum file") as caught:
        read_all(path)
    assert caught.value.kind == "checksum-mismatch"
    assert caught.value.fields["checksum_file"] == str(checksums)
    checksums.unlink()
    assert read_all(path) == expected


def test_checksum_files_of_a_local_disk_mean_nothing_elsewhere(copy, tmp_path, monkeypatch):
    """Catches a sound checkpoint, copied to where Hadoop renews no such file, called damaged."""
    path = copy("hdfs")
    expected = read_all(path)
    for checksums in files_of(path, ".4.delta.crc"):
        checksums.write_bytes(checksums.with_name(".3.delta.crc").read_bytes())

    def fetch(_, path):
        return shutil.copy(path, tmp_path / path.replace("/", "-"))

    monkeypatch.setattr(LocalFileIO, "fetch", fetch)
    assert read_all(path) == expected


def test_version_that_spark_deletes_while_it_is_read_is_said_to_be_old(copy):
    """Catches an alarm over a cleaner of files, where a query runs and deletes old versions."""
    path = copy("hdfs")
    with open_checkpoint(place_of(str(path))) as checkpoint:
        states = find_states(checkpoint, 2)
        for file in files_of(path, "1.delta"):
            file.unlink()
        for state in states.values():
            with pytest.raises(NotFoundError, match="read a newer version where the query runs"):
                list(state.rows(None))


@pytest.mark.parametrize(
    ("name", "pattern", "is_gone"),
    [
        ("hdfs", "3.snapshot", False),
        ("rocksdb-ids-variables", "SSTs/000022-*.sst", False),
        ("rocksdb-ids-variables", "SSTs/000022-*.sst", True),
    ],
)
def test_damaged_snapshot_is_passed_over(copy, tmp_path, name, pattern, is_gone):
    """Catches batches given up, where Spark starts from an older snapshot and the changes since."""
    path = copy(name)
    expected = read_all(path)
    files = files_of(path, pattern)
    for file in files:
        if is_gone:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])

    assert read_all(path) == expected
    found = Checkpoint(path).verify(deep=True)
    assert {(of.is_recoverable, of.file) for of in found.findings} == {
        (True, str(file)) for file in files
    }
    assert found.is_readable(found.versions[0])
    assert "every row can be read all the same" in found.to_fix
    assert found.to_fix.endswith(f"statestore restore {path} NEW")
    restored = Checkpoint(path).restore(tmp_path / "new").made
    assert read_all(restored.uri) == expected

    for file in files_of(path, "1.delta" if name == "hdfs" else "4_*.changelog"):
        file.unlink()
    found = Checkpoint(path).verify(deep=True)
    assert found.findings
    assert not any(of.is_recoverable for of in found.findings)
    with pytest.raises((CorruptionError, NotFoundError)):
        read_all(path)


def test_way_on_from_a_damaged_newest_version_is_named(copy, tmp_path):
    """Catches a circle of refusals, where an older version that is whole can be restored."""
    path = copy("hdfs")
    checkpoint = Checkpoint(path)
    newest = checkpoint.info.newest_version
    expected = read_all(path, newest - 1)
    for file in files_of(path, f"{newest}.delta"):
        file.write_bytes(file.read_bytes()[:-1])

    named = f"statestore restore {path} NEW --version"
    found = checkpoint.verify(versions="all", deep=True)
    with pytest.raises(IncompatibleError, match="--version names an older one"):
        checkpoint.repair(dry_run=True)

    assert {finding.version for finding in found.findings} == {newest}
    assert named in found.to_fix
    assert f"statestore verify {path} --version all --deep" in found.to_fix
    restored = checkpoint.restore(tmp_path / "new", version=newest - 1).made
    assert read_all(restored.uri) == expected


def test_damage_is_recoverable_only_where_a_reader_gets_past_it(copy):
    """Catches a verify without --deep that promises rows which nobody can read."""
    path = copy("rocksdb-ids-variables")
    for checksums in path.rglob("*.crc"):
        checksums.unlink()
    for file in files_of(path, "SSTs/000022-*.sst"):
        file.unlink()
    assert all(of.is_recoverable for of in Checkpoint(path).verify().findings)

    for file in files_of(path, "4_*.changelog"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    for is_deep in (False, True):
        found = Checkpoint(path).verify(deep=is_deep)
        assert found.findings
        assert not any(of.is_recoverable for of in found.findings)


def replace_in_snapshots(path, pattern, old, new):
    """Change what snapshots say of their column families."""
    for file in files_of(path, pattern):
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        members["metadata"] = members["metadata"].replace(old, new)
        with zipfile.ZipFile(file, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, member)
    for checksums in path.rglob("*.crc"):
        checksums.unlink()


def test_snapshot_that_alone_has_the_id_of_a_column_family_is_not_passed_over(copy):
    """Catches rows of a column family that are left out: an older snapshot does not know of it."""
    path = copy("rocksdb-ids-variables")
    replace_in_snapshots(path, "3_*.zip", b'"count":2,', b"")
    for file in files_of(path, "SSTs/000022-*.sst"):
        file.unlink()

    with pytest.raises(NotFoundError, match="000022"):
        Checkpoint(path).rows("seen").read()
    found = Checkpoint(path).verify(deep=True)
    assert found.findings
    assert not any(of.is_recoverable for of in found.findings)


@pytest.mark.parametrize("spelled", ["true", "True", " TRUE "])
def test_other_checksums_of_a_row_are_an_error(copy, spelled):
    """Catches row checksums that are cut off and not compared: here there are none.

    Also a setting that is on for Spark, in the user's own spelling, and off here.
    """
    path = copy("hdfs")
    for entry in (path / "offsets").iterdir():
        text = entry.read_text(errors="replace")
        off, on = (f'rowChecksum.enabled":"{value}"' for value in ("false", spelled))
        if off in text:
            entry.write_text(text.replace(off, on))

    with pytest.raises(CorruptionError) as caught:
        Checkpoint(path).rows().read()

    assert caught.value.kind == "checksum-mismatch"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('encodingFormat":"unsaferow', 'encodingFormat":"json', IncompatibleError),
        ('compression.codec":"lz4', 'compression.codec":"lzf', IncompatibleError),
        ('compression.codec":"lz4', 'compression.codec":"zstd', CorruptionError),
        ('compression.codec":"lz4', 'compression.codec":"snappy', CorruptionError),
    ],
)
def test_what_cannot_be_read_is_said_by_name(copy, old, new, error):
    """Catches files read by a codec or an encoding that they are not of."""
    path = copy("hdfs")
    changed(path, old, new)

    with pytest.raises(error):
        Checkpoint(path).rows().read()


def changed(path, old, new):
    """Change the conf that a checkpoint pins."""
    for entry in (path / "offsets").glob("[0-9]*"):
        text = entry.read_text()
        assert old in text
        entry.write_text(text.replace(old, new))


def test_encoding_is_known_however_it_is_spelled(copy):
    """Catches a state that Spark reads, and that is refused here for a capital letter."""
    path = copy("hdfs")
    before = read_all(path)
    changed(path, 'encodingFormat":"unsaferow', 'encodingFormat":"UnsafeRow')

    assert read_all(path) == before


def test_rows_are_not_looked_up_by_key_where_nothing_pins_where_they_are(copy):
    """Catches rows that are left out: before Spark 3.3 they did not follow their keys alone."""
    path = copy("hdfs")
    assert all(store.rescalable for store in Checkpoint(path).inspect())
    changed(path, "useStrictDistribution", "useStrictDistributionNot")

    assert not all(store.rescalable for store in Checkpoint(path).inspect())


def test_missing_schema_is_named(copy):
    """Catches rows shown without their columns."""
    path = copy("hdfs")
    schema = path / "state/0/0/_metadata/schema"
    schema.unlink()

    with pytest.raises(NotFoundError, match="_metadata/schema"):
        Checkpoint(path).rows().read()


@pytest.mark.parametrize("length", [0, 1, 5, 40])
def test_damaged_schema_is_an_error(copy, length):
    """Catches a schema that is cut off: another exception, or columns that are not there."""
    path = copy("hdfs")
    schema = path / "state/0/0/_metadata/schema"
    schema.write_bytes(schema.read_bytes()[:length])

    with pytest.raises(CorruptionError) as caught:
        Checkpoint(path).rows().read()

    assert caught.value.fields["file"] == str(schema)


def test_newest_version_that_lacks_a_file_is_not_said_to_have_expired(copy, tmp_path):
    """Catches the advice to ask for a newer version, where there is none."""
    for name, newest in (("hdfs", "4.delta"), ("rocksdb-no-changelog", "4.zip")):
        path = copy(name)
        for file in files_of(path, newest):
            file.unlink()
        with pytest.raises(NotFoundError, match="put the file back") as caught:
            Checkpoint(path).restore(tmp_path / f"new-{name}")
        assert "newer version" not in str(caught.value)
        for file in (path / "state/0/0").iterdir():
            if file.is_file():
                file.unlink()
        with pytest.raises(NotFoundError, match="put the file back"):
            Checkpoint(path).restore(tmp_path / f"new-{name}")


@pytest.mark.parametrize("is_committed", [False, True], ids=["planned", "committed"])
def test_list_that_later_code_has_no_more_is_read_as_the_list_that_it_was(
    copy, tmp_path, is_committed
):
    """Catches a sound checkpoint that is called damaged, since its newest code has other variables.

    Spark writes the new code's metadata before its first batch.
    """
    path = copy("rocksdb-ids-variables")
    expected = read_all(path)
    metadata = path / "state/0/_metadata/v2"
    text = (metadata / "0").read_text()
    variable = r",{\"stateName\":\"seen\",\"stateVariableType\":\"ListState\",\"ttlEnabled\":false}"
    assert variable in text
    (metadata / "5").write_text(text.replace(variable, ""))
    (path / "offsets/5").write_bytes((path / "offsets/4").read_bytes())
    if is_committed:
        (path / "commits/5").write_bytes((path / "commits/4").read_bytes())

    assert read_all(path, version=5) == expected
    lists = {
        (family.name, family.variable)
        for store in Checkpoint(path).inspect(version=5)
        for family in store.column_families
        if family.multi_values
    }
    assert lists == {("seen", "ListState")}
    if not is_committed:
        assert read_all(path) == expected
        restored = Checkpoint(path).restore(tmp_path / "new").made
        assert read_all(restored.uri) == expected


def families_of(schema):
    """The column families of a schema file by name, each as its bytes."""

    def after_text(at):
        return at + 2 + int.from_bytes(schema[at : at + 2])

    def after_chunks(at):
        count, at = int.from_bytes(schema[at : at + 4]), at + 4
        for _ in range(count):
            at = after_text(at)
        return at

    found, at = {}, after_text(0) + 4
    while at < len(schema):
        start, at = at, after_text(at)
        name = schema[start + 2 : at].decode()
        for num_bytes in (2, 2, 0, 0):
            at = after_chunks(at + num_bytes)
        found[name] = schema[start:at]
    return found


def begin_batch_by_another_program(path):
    """Make the metadata of the newest batch that of a program without the list `seen`.

    Returns the schema file of the program before.
    """
    metadata = path / "state/0/_metadata/v2"
    (schema,) = (path / "state/0/_stateSchema/default").glob("0_*")
    families = families_of(schema.read_bytes())
    kept = [data for name, data in families.items() if name.rpartition("_")[2] != "seen"]
    assert len(kept) == len(families) - 2
    of_other = schema.with_name("4_of-another-program")
    of_other.write_bytes(b"\0\2v3" + len(kept).to_bytes(4) + b"".join(kept))
    variable = r",{\"stateName\":\"seen\",\"stateVariableType\":\"ListState\",\"ttlEnabled\":false}"
    text = (metadata / "0").read_text()
    assert variable in text
    (metadata / "4").write_text(text.replace(variable, "").replace(schema.name, of_other.name))
    return schema


@pytest.mark.parametrize("is_named", [True, False], ids=["former-file", "unnamed-file"])
def test_variable_of_the_program_that_ended_a_batch_is_read(copy, tmp_path, is_named):
    """Catches rows that nobody sees, and a restore refused with the advice to delete them.

    Spark keeps the metadata of the first program that began a batch, also where another ended it.
    """
    path = copy("rocksdb-ids-variables")
    expected, num_rows = read_all(path), Checkpoint(path).verify(deep=True).num_rows
    schema = begin_batch_by_another_program(path)
    if not is_named:
        schema.rename(schema.with_name("4_of-the-program-that-ended-it"))

    assert expected["seen"]
    assert read_all(path) == expected
    assert Checkpoint(path).verify(deep=True).num_rows == num_rows
    restored = Checkpoint(path).restore(tmp_path / "new").made
    assert read_all(restored.uri) == expected


def test_list_with_a_ttl_of_a_former_program_is_a_list(copy):
    """Catches a sound checkpoint called damaged: with a TTL, counts of a list are elsewhere."""
    path = copy("rocksdb-ids-variables")
    expected = read_all(path)["seen"]
    begin_batch_by_another_program(path)
    replace_in_snapshots(path, "*.zip", b"$rowCounter_seen", b"$count_seen")

    assert read_all(path)["seen"] == expected
    assert Checkpoint(path).verify(deep=True).ok


def test_variable_that_is_described_in_two_ways_is_not_restored(copy, tmp_path):
    """Catches a guess at what rows are, and the advice to delete rows that a program needs."""
    path = copy("rocksdb-ids-variables")
    schema = begin_batch_by_another_program(path)
    data = schema.read_bytes()
    seen = families_of(data)["seen"]
    schema.with_name("4_one").write_bytes(data)
    schema.with_name("4_two").write_bytes(
        data.replace(seen, seen.replace(b'"type":"long"', b'"type":"date"'))
    )

    with pytest.raises(IncompatibleError, match="column_families='seen'") as caught:
        Checkpoint(path).restore(tmp_path / "new")
    assert caught.value.to_fix.startswith("where the program has this state variable, start")
    schema.with_name("4_two").write_bytes(data)
    assert Checkpoint(path).restore(tmp_path / "new").made.verify().ok


def test_expired_versions_are_told_from_lost_ones(copy):
    """Catches an alarm over what Spark deleted, and silence over what was lost."""
    path = copy("hdfs")
    for file in files_of(path, "[12].delta"):
        file.unlink()

    found = Checkpoint(path).verify(versions="all", deep=True)
    assert (found.findings, found.expired) == ((), (2, 1))
    with pytest.raises(NotFoundError) as caught:
        Checkpoint(path).rows(version=2).read()
    assert caught.value.kind == "version-not-found"
    assert caught.value.fields["oldest_version"] == 3
    (first, *_) = files_of(path, "3.snapshot")
    first.unlink()
    assert Checkpoint(path).verify(versions="all", deep=True).findings


def test_rocksdict_is_asked_for_only_by_snapshots(monkeypatch):
    """Catches a bare ImportError where the extra is not installed, and an extra nobody needs."""
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)

    with pytest.raises(InvalidArgumentError, match=r"statestore\[rocksdb\]"):
        Checkpoint(path_of("rocksdb-no-changelog")).rows().read()
    assert Checkpoint(path_of("hdfs")).rows().read().num_rows
    assert isinstance(Checkpoint(path_of("rocksdb-no-changelog")).versions()[0].num_rows, int)
    assert issubclass(InvalidArgumentError, StateStoreError)


SCHEMAS = [
    (name, str(path.relative_to(path_of(name))))
    for name in NAMES
    for path in sorted(Path(path_of(name)).glob("state/**/*"))
    if path.is_file() and ("_stateSchema" in path.parts or path.match("_metadata/schema"))
    if path.suffix != ".crc"
]


@pytest.mark.parametrize("is_restored", [False, True], ids=["sparks", "restored"])
@pytest.mark.parametrize(("name", "schema"), SCHEMAS, ids=[name for name, _ in SCHEMAS])
def test_damaged_state_schema_is_found(copy, tmp_path, name, schema, is_restored):
    """Catches a checkpoint called whole whose query Spark does not start."""
    path = copy(name)
    if is_restored:
        Checkpoint(path).restore(tmp_path / "restored")
        path = tmp_path / "restored"
        (schema,) = (
            str(found.relative_to(path))
            for found in path.glob("state/**/*")
            if found.name == Path(schema).name and found.parent.name == Path(schema).parent.name
        )
    file = path / schema
    whole = file.read_bytes()
    assert Checkpoint(path).verify().ok
    for end in (*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1):
        file.write_bytes(whole[:end])
        found = Checkpoint(path).verify()
        assert {(of.kind, of.file) for of in found.findings} == {("corruption", str(file))}, end
        if is_restored:
            assert "put the state schemas back" in found.to_fix
    json_start = whole.index(b"{")
    file.write_bytes(whole[:json_start] + b"[" + whole[json_start + 1 :])
    assert not Checkpoint(path).verify(deep=True).ok
    file.write_bytes(whole)
    assert Checkpoint(path).verify(deep=True).ok
