"""List, verify, repair and expire: damage is found, and nothing that is needed goes."""

import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.checkpoint.layout import pin_name
from statestore.cli.commands import cli
from statestore.codec.references import FileRef
from statestore.core.errors import InvalidArgumentError
from statestore.core.text import format_count
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.upkeep import what_expired
from statestore.operations.upkeep.verify import verify
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import OPTIONS, files_below, make_query, query_of, read_rows
from tests.damaged import NOW, deltas, flip, make_small, make_with_snapshots, run
from tests.seams import at, place_of

ONE, OTHER = (f"{number}-0000-4000-8000-000000000000" for number in ("0" * 8, "1" * 8))


def test_list_tells_what_each_version_added(made):
    """Catches sizes, or times, of one version taken for another's."""
    for batch in range(4):
        os.utime(Path(made.path, "commits", str(batch)), (0, 1_002.5 + batch * 100))

    made_ms = time.time() * 1000
    info, versions = Checkpoint(made.path).info, Checkpoint(made.path).versions()

    assert [version.version for version in versions] == [4, 3, 2, 1]
    assert [version.kind for version in versions] == ["incremental"] * 3 + ["full"]
    assert versions[-1].full_bytes == versions[-1].incremental_bytes
    for newer, older in pairwise(versions):
        assert newer.full_bytes == older.full_bytes + newer.incremental_bytes
    rows = sum(len(found) for found in read_checkpoint(made.path).values())
    assert versions[0].num_rows == rows
    assert info.uncommitted_batch is None
    assert [version.committed_ms for version in versions] == [
        1_302_500, 1_202_500, 1_102_500, 1_002_500
    ]  # fmt: skip
    assert versions[0].commit is None
    for version in versions[1:]:
        phases = version.commit
        assert phases.checksum_ms > 0
        assert phases.publish_ms >= phases.sync_ms > 0
        assert 0 <= made_ms - phases.committed_ms < 600_000

    Checkpoint(made.path).rescale(8)
    assert Checkpoint(made.path).versions(limit=1)[0].kind == "rescaled"


def test_list_counts_the_files_of_state_partitions_that_are_no_more(made):
    """Catches storage that is used and that nobody sees after a scale-down."""
    Checkpoint(made.path).rescale(2)
    made.run_batch({1: 1})

    files = Path(made.path, "state").rglob("*.[as][rs][rt]*")
    assert Checkpoint(made.path).info.stored_bytes == sum(file.stat().st_size for file in files)


def test_list_finds_the_savepoints_of_the_query_only(made, tmp_path):
    """Catches another query's savepoint, or half of one, taken for the query's own."""
    Path(made.path, "metadata").write_text(f'{{"id":"{ONE}"}}')
    retained = tmp_path / "savepoints"
    Checkpoint(made.path).savepoint(retained / "first")
    made.run_batch({1: 1})
    Checkpoint(made.path).savepoint(retained / "second", form="native")
    Path(made.path, "metadata").write_text(f'{{"id":"{OTHER}"}}')
    Checkpoint(made.path).savepoint(retained / "strange")
    Path(made.path, "metadata").write_text(f'{{"id":"{ONE}"}}')
    (retained / "half").mkdir()

    code, printed = run("list", made.path, "--savepoints", str(retained))

    assert code == 0
    found = [(one["uri"], one["savepoint"]["version"]) for one in printed["savepoints"]]
    assert found == [(f"{retained}/first", 4), (f"{retained}/second", 5)]


def test_verify_finds_nothing_wrong_where_nothing_is(made):
    """Catches findings in files that a query would read without complaint."""
    Checkpoint(made.path).rescale(8)
    made.run_batch({1: 1, 99: 2})

    found = Checkpoint(made.path).verify(versions=[1, 2, 3, 4, 5, 6], deep=True)

    assert found.findings == ()
    assert found.num_rows > 0
    code, printed = run("verify", made.path, "--version", "all", "--deep")
    assert (code, printed["ok"], len(printed["versions"])) == (0, True, 6)


def test_verify_finds_a_flipped_byte_in_every_version_made_of_it(made):
    """Catches damage that shows only when the query needs the file."""
    flip(deltas(made, 2)[0])

    fast = Checkpoint(made.path).verify(versions=[1, 2, 3, 4])
    deep = Checkpoint(made.path).verify(versions=[1, 2, 3, 4], deep=True)

    assert fast.findings == ()
    assert {finding.version for finding in deep.findings} == {2, 3, 4}
    assert {finding.kind for finding in deep.findings} == {"checksum-mismatch"}
    assert 1 in deep.versions
    code, printed = run("verify", made.path, "--deep")
    assert (code, printed["ok"]) == (1, False)


def test_verify_finds_a_missing_file_and_a_cut_one_without_reading_rows(made):
    """Catches a fast verification that trusts the newest trailer."""
    deltas(made, 1)[0].unlink()
    cut = deltas(made, 3, partition=2)[0]
    cut.write_bytes(cut.read_bytes()[:-9])

    found = Checkpoint(made.path).verify()

    assert {(finding.store.partition, finding.kind) for finding in found.findings} >= {
        (1, "file-not-found"),
    }
    assert any(finding.store.partition == 2 for finding in found.findings)


def test_verify_finds_rows_in_the_wrong_state_partition(made):
    """Catches a store directory put in another one's place with its names and sizes right."""
    found = Checkpoint(made.path).verify(deep=True)
    assert found.findings == ()
    one, two = (Path(made.path) / "state" / "0" / str(partition) for partition in (1, 2))
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)

    kinds = {finding.kind for finding in Checkpoint(made.path).verify().findings}
    assert kinds & {"other-store", "fenced", "version-not-found"}


def test_expire_keeps_what_retained_versions_are_made_of(made):
    """Catches an expiry that deletes by age what a later version needs."""
    made.take_snapshots()
    for batch in range(4, 9):
        made.run_batch(dict.fromkeys(range(batch), batch))
    expected = read_checkpoint(made.path)

    plan = at(made.path, options=NOW).expire(2, dry_run=True)
    files = {str(path) for path in Path(made.path).rglob("*.*") if path.is_file()}
    reports = []
    done = at(made.path, options=NOW).expire(2, progress=lambda *stores: reports.append(stores))

    assert plan.stores == done.stores
    assert reports == [(number, len(reports)) for number in range(1, len(reports) + 1)]
    left = {str(path) for path in Path(made.path).rglob("*.*") if path.is_file()}
    assert files - left == {path for store in done.stores for path in store.files}
    assert read_checkpoint(made.path) == expected
    assert Checkpoint(made.path).verify(versions=[8, 9], deep=True).findings == ()
    assert at(made.path, options=NOW).expire(2, dry_run=True).num_files == 0
    made.run_batch({3: 3})


class ListingDisk(LocalFileIO):
    """The local disk, with the directories that were listed."""

    def __init__(self):
        super().__init__()
        self.listed = []

    def list(self, directory):
        self.listed.append(directory)
        return super().list(directory)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_expire_lists_each_store_once(tmp_path, backend, dry_run):
    """Catches requests that cost most on S3, where there are many state partitions."""
    query, _ = make_with_snapshots(tmp_path, backend)
    for number in range(5):
        query.run_batch({f"more {number}": number}, snapshot=number == 2)
    disk = ListingDisk()

    done = at(query.path, options=NOW, io=disk).expire(2, dry_run=dry_run)

    with open_checkpoint(place_of(query.path)) as checkpoint:
        stores = checkpoint.heads(checkpoint.newest_version)
        expected = [checkpoint.location(store).directory for store in stores]
    assert {store.store for store in done.stores} == stores.keys()
    assert sorted(path for path in disk.listed if path in expected) == sorted(expected)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_verify_of_all_versions_leaves_expired_ones_out(tmp_path, backend):
    """Catches a checkpoint that is damaged because it was cleaned up."""
    query, _ = make_with_snapshots(tmp_path, backend)
    for number in range(5):
        query.run_batch({f"more {number}": number}, snapshot=number == 2)
    at(query.path, options=NOW).expire(2)

    code, printed = run("verify", query.path, "--version", "all", "--deep")

    assert (code, printed["findings"]) == (0, [])
    assert {8, 9} <= {*printed["versions"]}
    assert {1, 2} <= {*printed["expired"]}
    assert sorted(printed["versions"] + printed["expired"]) == [*range(1, 10)]
    with open_checkpoint(place_of(query.path)) as checkpoint:
        for version in printed["versions"]:
            assert verify(checkpoint, versions=[version], deep=True).is_readable(version)
        for version in printed["expired"]:
            assert not verify(checkpoint, versions=[version]).is_readable(version)
    deltas(query, 9)[0].unlink()
    assert run("verify", query.path, "--version", "all")[0] == 1


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "file", "0 files"), (1, "file", "1 file"), (300_000, "file", "300,000 files")],
)
def test_count_agrees_with_its_noun(number, noun, text):
    """Catches "1 versions", and 300000 beside 18,610."""
    assert format_count(number, noun) == text


def test_verify_speaks_of_one_version_and_one_finding(tmp_path):
    """Catches "1 versions" and "1 findings" where verify says what it found."""
    query = make_query(tmp_path / "query", num_batches=1, num_partitions=1)
    assert "1 version, 1 file, " in Checkpoint(query.path).verify().describe()
    next(Path(query.path).rglob("1.delta.*")).unlink()
    assert ": 1 finding\n" in Checkpoint(query.path).verify().describe()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_versions_of_a_rescaled_store_expire_oldest_first(tmp_path, backend):
    """Catches expired versions that look lost, as those before the rescale are still there.

    Those are held for other state partitions, which let go of them one after the other.
    """
    query, _ = make_with_snapshots(tmp_path, backend)
    Checkpoint(query.path).rescale(4)
    query.options = {**query.options, "rocksdb_merge_min_files": 2}
    for number in range(9):
        query.run_batch({f"more {number}": number}, snapshot=number in (3, 6))

    for _ in range(3):
        at(query.path, options=NOW).expire(2)
        code, printed = run("verify", query.path, "--version", "all", "--deep")
        assert (code, printed["findings"]) == (0, [])
        assert {13, 14} <= {*printed["versions"]}

    assert {*range(1, 8)} <= {*printed["expired"]}
    assert not [file for version in range(1, 8) for file in deltas(query, version)]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_versions_whose_base_was_expired_are_expired_everywhere(tmp_path, backend, capfd):
    """Catches a healthy checkpoint that is damaged, after compact and expire, or says it may be."""
    query = make_query(tmp_path / "query", num_batches=5, backend=backend, num_partitions=2)
    Checkpoint(query.path).compact()
    query.restart()
    for number in range(7):
        query.run_batch({"more": number}, snapshot=number == 5 and backend == "filesystem")
    Checkpoint(query.path).compact()
    query.restart()
    for number in range(3):
        query.run_batch({"more": number})
    at(query.path, options=NOW).expire(2)

    listed = Checkpoint(query.path).versions()
    found = Checkpoint(query.path).verify(versions="all")
    shown = Checkpoint(query.path).report().versions

    assert {one.kind for one in listed} <= {"incremental", "expired"}
    assert [one.version for one in listed if one.kind == "expired"] == [*found.expired]
    assert (found.findings, shown) == ((), tuple(listed))
    assert {14, 15} <= {*found.versions}
    assert {1, 2, 3, 4} <= {*found.expired}
    for version in (1, 4, found.expired[0]):  # by number it is missed, and nothing mends that
        asked = Checkpoint(query.path).verify(versions=[version])
        assert asked.findings
        assert (asked.versions, asked.expired) == ((), (version,))
        assert "statestore list" in (asked.to_fix or "")
    assert capfd.readouterr().err == ""


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(12))
def test_list_and_verify_agree_on_what_random_upkeep_has_left(tmp_path, seed):
    """Catches an order of batches, snapshots and expiries after which a healthy version is damaged,
    or an expired one is not told as that by both.
    """
    random = np.random.default_rng(seed)
    options = replace(OPTIONS, rocksdb_merge_min_files=2, snapshot_max_chain_length=2)
    query = make_query(
        tmp_path / "query", backend=("filesystem", "rocksdb")[seed % 2], num_partitions=2,
        options=options if seed % 3 else OPTIONS,
    )  # fmt: skip
    for _ in range(10):
        step = random.choice(["batches", "snapshots", "compact", "expire", "rescale"])
        if step in ("batches", "snapshots"):
            for number in range(random.integers(1, 5)):
                query.run_batch({"more": number}, snapshot=step == "snapshots")
        elif step == "compact":
            Checkpoint(query.path).compact()
            query.restart()
        elif step == "expire":
            at(query.path, options=NOW).expire(int(random.integers(2, 4)))
        elif (num_partitions := int(2 ** random.integers(0, 4))) != query.num_partitions:
            Checkpoint(query.path).rescale(num_partitions)
            query.num_partitions = num_partitions

    listed = Checkpoint(query.path).versions()
    found = Checkpoint(query.path).verify(versions="all", deep=True)

    assert found.findings == ()
    assert [one.version for one in listed if one.kind == "expired"] == [*found.expired]
    assert {one.problem for one in listed} == {None}


@pytest.mark.parametrize(
    ("lost", "left", "is_let_go"),
    [
        ("5.delta", ["6.delta", "5_x.snapshot"], True),
        ("5.delta", ["4.delta", "6.delta"], False),
        ("4_x.snapshot", ["6.delta"], True),
        ("5_x.snapshot", ["6.delta"], False),
        ("5_x.snapshot", ["6.delta", "5_y.snapshot"], True),
        ("5_x.snapshot", ["6.delta", "6_y.snapshot"], True),
        ("5_x.snapshot", ["6.delta", "7_y.snapshot"], False),
        ("5_x.snapshot", ["5.delta", "6.delta"], False),
        ("5.delta", [], True),
    ],
)
def test_file_is_let_go_when_later_deltas_are_all_there_is(lost, left, is_let_go):
    """Catches a snapshot that stays, taken for a sign that older deltas should be there."""
    names = [name.replace("x", "0" * 32).replace("y", "1" * 32) + ".arrows" for name in left]
    version, _, kind = lost.replace("_x", "").partition(".")
    ref = FileRef(lost, kind, int(version), None, "", 1, 1)

    assert what_expired.is_let_go(ref, names) == is_let_go


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_list_tells_expired_versions_from_damaged_ones(tmp_path, backend):
    """Catches a version that retention took shown as broken, and a lost one as expired."""
    query, _ = make_with_snapshots(tmp_path, backend)
    for number in range(5):
        query.run_batch({f"more {number}": number}, snapshot=number == 2)
    at(query.path, options=NOW).expire(2)
    expired = run("verify", query.path, "--version", "all")[1]["expired"]
    versions = run("list", query.path)[1]["versions"]

    assert [one["version"] for one in versions if one["kind"] == "expired"] == expired
    assert {one["problem"] for one in versions} == {None}
    assert {1, 2} <= {*expired}
    assert " expired " in CliRunner().invoke(cli, ["list", query.path]).output

    lost = deltas(query, 9)[0]
    lost.unlink()
    kinds = {one["version"]: one["kind"] for one in run("list", query.path)[1]["versions"]}
    assert kinds[9] == "damaged"
    assert [version for version, kind in kinds.items() if kind == "expired"] == expired
    assert "version 9" in CliRunner().invoke(cli, ["list", query.path]).output


def test_list_finds_a_lost_file_that_later_versions_are_made_of(made):
    """Catches versions listed as whole whose older files are gone, which verify finds."""
    lost = min(Path(made.path, "state").rglob("2*.delta.*"))
    lost.unlink()

    versions = run("list", made.path)[1]["versions"]

    assert [one["kind"] for one in versions] == ["damaged", "damaged", "damaged", "full"]
    assert all(str(lost) in one["problem"] for one in versions[:2])
    assert all(one["num_rows"] is None for one in versions[:3])


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_list_shows_nothing_broken_when_a_savepoint_or_restore_is_fresh(made, tmp_path, form):
    """Catches the entry of the version before, which Spark needs, shown as a lost version."""
    savepoint = Checkpoint(made.path).savepoint(tmp_path / "savepoint", form=form).made
    restored = savepoint.restore(tmp_path / "new").made

    for directory in (savepoint, restored):
        versions = run("list", directory.uri)[1]["versions"]
        assert versions[0]["version"] == 4
        assert {one["problem"] for one in versions} == {None}
        assert {one["kind"] for one in versions}.isdisjoint({"damaged", "unreadable"})
        assert len(versions) == 1


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_compact_lets_go_of_what_expire_says_stays(tmp_path, backend):
    """Catches versions that stay without a word, or whatever is done about it."""
    options = replace(OPTIONS, snapshot_max_chain_length=2, rocksdb_merge_min_files=2)
    query = query_of(tmp_path / "query", backend=backend, num_partitions=2, options=options)
    rows = {f"key {number}": number for number in range(40)}
    for _ in range(6):
        query.run_batch(rows)
    expired = at(query.path, options=NOW).expire(2)

    assert [(stay.reason, stay.is_compact, stay.oldest_version) for stay in expired.stays] == [
        ("needed", False, 1)
    ] * 2
    assert sum(stay.num_files for stay in expired.stays) == len(deltas(query, "[1-4]")) * 2 == 8
    assert f"statestore compact {query.path} --yes" in str(expired)

    # A snapshot is stood for by the files that it was made of, until the next one.
    for oldest_left in [1, 7] if backend == "filesystem" else [None]:
        before = files_below(query.path)
        plan = Checkpoint(query.path).compact(dry_run=True)
        assert files_below(query.path) == before
        assert [store.num_files > 1 for store in plan.stores] == [True, True]
        done = Checkpoint(query.path).compact()
        assert done.stores == plan.stores
        assert {change.path for change in done.changes} == {
            str(path) for path in Path(query.path).rglob(f"{query.version}_*.snapshot.*")
        }
        # An edit names the old files.
        assert "that the query commits from its next maintenance on" in str(done)
        assert Checkpoint(query.path).compact().stores == ()
        assert "newest is compact" in str(at(query.path, options=NOW).expire(2, dry_run=True))
        query.restart()
        for _ in range(2):
            query.run_batch(rows)
        expired = at(query.path, options=NOW).expire(2)
        left = {stay.oldest_version for stay in expired.stays}
        assert left == ({oldest_left} if oldest_left else set())

    assert [file for file in deltas(query, "[1-6]") if ".delta." in file.name] == []
    assert read_rows(query.path) == query.expected()
    assert Checkpoint(query.path).verify(versions="all", deep=True).findings == ()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_expire_of_a_rescaled_checkpoint_deletes_what_it_shows(tmp_path, backend):
    """Catches files that go unannounced, since one store lets go of what another one holds."""
    query = query_of(tmp_path / "query", backend=backend, num_partitions=3)
    rows = {f"key {number}": number for number in range(30)}
    for _ in range(3):
        query.run_batch(rows)
    Checkpoint(query.path).rescale(2)
    for _ in range(2):
        query.run_batch(rows)
    for _ in range(3):
        Checkpoint(query.path).compact()
        query.restart()
        for _ in range(2):
            query.run_batch(rows)

        plan = at(query.path, options=NOW).expire(2, dry_run=True)
        assert plan.stores == at(query.path, options=NOW).expire(2).stores
    assert not deltas(query, "[1-3]", partition=2)


def test_expire_names_the_oldest_version_that_there_is(tmp_path):
    """Catches versions that are said to stay, and went long ago."""
    query, _ = make_with_snapshots(tmp_path, "filesystem")
    for number in range(4):
        query.run_batch({f"more {number}": number}, snapshot=number == 1)
    assert at(query.path, options=NOW).expire(50, dry_run=True).oldest_version == 1
    at(query.path, options=NOW).expire(2)
    oldest = min(one.version for one in Checkpoint(query.path).versions() if one.kind != "expired")

    plan = at(query.path, options=NOW).expire(50, dry_run=True)
    assert 1 < plan.oldest_version == oldest
    assert f"Nothing to delete: versions from {oldest} on stay." in str(plan)

    # State partitions that a rescale made have no older versions; those before it stay.
    Checkpoint(query.path).rescale(4)
    assert at(query.path, options=NOW).expire(50, dry_run=True).oldest_version == oldest


def test_expire_says_that_a_pin_or_a_rescale_keeps_versions(tmp_path):
    """Catches advice to compact where a savepoint is being made."""
    query, _ = make_with_snapshots(tmp_path, "filesystem")
    for number in range(4):
        query.run_batch({f"more {number}": number})
    pin = Path(query.path, "state/0/0", pin_name(3, ONE.replace("-", "")))
    pin.touch()

    plan = at(query.path, options=NOW).expire(2, dry_run=True)
    assert [stay.reason for stay in plan.stays] == ["pinned", "needed"]
    pin.unlink()
    Checkpoint(query.path).rescale(4)
    plan = at(query.path, options=NOW).expire(2, dry_run=True)
    assert {stay.reason for stay in plan.stays} == {"rescaled"}
    assert "compact" in str(plan)


@pytest.mark.parametrize("version", [0, -1, 9])
def test_version_that_is_not_committed_is_no_finding(made, version):
    """Catches a mistyped number reported as a damaged checkpoint."""
    result = CliRunner().invoke(cli, ["verify", made.path, "--version", str(version)])

    assert result.exit_code == 1
    assert "the version is not committed" in result.output
    assert "newest_version=4" in result.output


def test_verify_of_a_checkpoint_without_a_version_finds_nothing_wrong(tmp_path):
    """Catches a query reported as damaged in its first batch."""
    made = make_small(tmp_path, 1, num_partitions=1)
    Path(made.path, "commits", "0").unlink()

    assert (Checkpoint(made.path).verify().versions, Checkpoint(made.path).verify().findings) == (
        (),
        (),
    )
    assert run("verify", made.path, "--version", "all")[0] == 0


def test_expire_refuses_to_keep_too_little(made):
    """Catches a checkpoint whose last batch cannot run again."""
    with pytest.raises(InvalidArgumentError, match="keep=1"):
        Checkpoint(made.path).expire(1)


def test_no_checkpoint_is_named():
    """Catches an empty answer for a path that was mistyped."""
    result = CliRunner().invoke(cli, ["list", "/nowhere/checkpoint"])

    assert result.exit_code == 1
    assert "/nowhere/checkpoint" in result.output
    assert "To fix:" in result.output
