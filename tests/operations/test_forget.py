"""Keys forgotten in every file: what is found is what goes, and the certificate says no more."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.checkpoint.pins import pinned
from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import StoreName
from statestore.codec.sealed_file import MappedFile, cannot_be_read
from statestore.core.clock import ManualClock
from statestore.core.errors import (
    CorruptionError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.io.file_io import FileInfo
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import schema_of, unsafe_row
from tests.checkpoints import WordStore, files_below, write_checkpoint
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at, place_of

from .test_edit_in_place import KEYS, make
from .test_forget_random import has_bytes
from .test_given_in_operations import family


def verdicts(search: Any) -> list[str]:
    """What a search says of each operator, and of Spark's files."""
    return [outcome.verdict for outcome in search.outcomes]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.few(2)
def test_forgotten_keys_are_in_no_byte_of_the_checkpoint(
    tmp_path: Path, backend: str, checkpoint_format: int
) -> None:
    """Catches a key left in a delta, a tombstone, a snapshot, a merged file or a rescaled one."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format)
    made.take_snapshots()
    checkpoint = Checkpoint(made.path)
    checkpoint.rescale(2)
    made.run_batch({KEYS[3]: None, KEYS[4]: 5})
    gone = [KEYS[3], KEYS[4], KEYS[5]]
    keys = {0: pa.table({"key.k": gone}), 1: pa.table({"key.field0": gone})}
    assert {"row", "key.field0"} <= {hit.path for hit in checkpoint.search_keys(keys[0]).hits}
    for key in gone:
        assert has_bytes(Path(made.path), key.to_bytes(8, "little"), tmp_path / "search")
    expected = made.expected()
    for (operator, _), rows in expected.items():
        if operator < 2:
            for key in [key for key in rows if int.from_bytes(key[8:16], "little") in gone]:
                del rows[key]

    told: list[tuple[int, int]] = []
    planned = checkpoint.forget(
        keys=keys[0], dry_run=True, progress=lambda *done: told.append(done)
    )
    assert planned.num_keys == 3
    assert told[-1] == (len(told), len(told))  # files that were read, and their number
    first = checkpoint.forget(keys=keys[0]).certificate
    # The same numbers are keys of the join as well.
    assert first.search is not None
    assert verdicts(first.search) == ["forgotten", "found", "forgotten", "forgotten"]
    assert not first.is_forgotten
    assert all("/state/1/" in hit.file for hit in first.search.hits)
    names = " or ".join(f"field0 = {key}" for key in gone)
    removed = {
        path: data for path, data in files_below(tmp_path / "query").items() if "state/1/" in path
    }
    second = checkpoint.forget(names, operator=1).certificate

    assert second.is_forgotten, second.describe()
    assert read_checkpoint(made.path) == expected
    assert checkpoint.verify(versions="all", deep=True).findings == ()
    assert second.versions_removed == (1, 2, 3, 4, 5)
    known = {hashlib.sha256(data).hexdigest() for data in removed.values()}
    assert {record.sha256 for record in second.removed} <= known
    left = files_below(tmp_path / "query")
    for record in second.written:
        data = left[str(Path(record.path).relative_to(tmp_path / "query"))]
        assert (record.size, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    document = json.dumps(second.fields())
    assert not any(str(key) in document for key in gone)
    for operator, of in keys.items():
        assert checkpoint.search_keys(of, operator=operator).hits == ()
    for key in gone:
        assert has_bytes(Path(made.path), key.to_bytes(8, "little"), tmp_path / "search") == []


def test_the_plan_says_what_was_found_and_its_run_forgets_just_that(tmp_path: Path) -> None:
    """Catches a stream of keys that the plan has used up, and a plan that repeats what it got."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)
    keys = pa.table({"key.k": [KEYS[3], KEYS[30], 99]})
    missing = "2 of 3 keys have rows: 2 rows of 40 in version 2; 3 rows in 3 files of all versions"

    plan = checkpoint.forget(keys=keys.to_reader(), dry_run=True)
    assert missing in str(plan)
    assert f'["{KEYS[3]}"]' in str(plan)
    assert not plan.done
    with pytest.raises(InvalidArgumentError, match="a dry run has no certificate"):
        _ = plan.certificate
    done = checkpoint.forget(keys=keys.to_reader())

    assert done.done
    assert missing in str(done)
    certificate = done.certificate
    assert (certificate.num_keys, certificate.num_rows, done.num_rows_before) == (3, 2, 40)
    assert checkpoint.rows(0).read().num_rows == 38
    by_condition = checkpoint.forget(f"k = {KEYS[1]} or k = {KEYS[2]}")
    assert (by_condition.num_keys, by_condition.num_keys_found) == (2, 2)
    assert checkpoint.rows(0).read().num_rows == 36
    of_one = str(checkpoint.forget(f"k = {KEYS[5]}"))
    assert "1 of 1 key has rows: 1 row of 36 in version 4; 1 row in 1 file" in of_one
    assert "1 key, 1 row of 36, " in of_one


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({}, "either `where` or `keys` must be"),
        ({"where": "k = 1", "keys": pa.table({"key.k": [1]})}, "either `where` or `keys` must be"),
        ({"keys": pa.table({"key.k": [99]})}, r"keys-not-found.*num_keys=1"),
        ({"where": "k = 99"}, r"keys-not-found.*--verify --keys"),
        ({"keys": pa.table({"key.k": pa.array([], pa.int64())})}, "no key is given"),
        ({"where": "k is not null"}, r"40 of 40.*--all"),
        ({"where": "no_such_column = 1"}, "condition"),
        ({"keys": pa.table({"key.user_id": [1]})}, "not those of the column family"),
        ({"where": "k = 1", "operator": 7}, "no such stateful operator"),
    ],
)
def test_what_forgets_nobody_or_everybody_is_refused_without_a_certificate(
    tmp_path: Path, how: dict[str, Any], match: str
) -> None:
    """Catches a typing error that forgets nobody and says that it did, or forgets all."""
    made = make(tmp_path)
    before = files_below(tmp_path / "query")
    file = tmp_path / "certificate.json"

    for dry_run in (False, True):
        with pytest.raises(StateStoreError, match=match):
            Checkpoint(made.path).forget(**how, certificate=file, dry_run=dry_run)

    assert files_below(tmp_path / "query") == before
    assert not file.exists()


def test_all_rows_go_where_that_is_said(tmp_path: Path) -> None:
    """Catches a store that cannot be emptied on purpose."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)

    done = checkpoint.forget("k is not null", all_rows=True).certificate

    assert (done.num_rows, checkpoint.rows(0).read().num_rows) == (40, 0)
    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten"


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_small_numbers_and_ones_are_told_apart_from_other_numbers(
    tmp_path: Path, backend: str
) -> None:
    """Catches a search that takes every count of 1 for user 1, or -1 for the end of a stream."""
    made = make(tmp_path, backend=backend)
    put = pa.table({"key.k": [1, -1], "value.value": [9, 9]})
    Checkpoint(made.path).edit(0, upsert=put)
    keys = pa.table({"key.k": [1, -1]})
    found = Checkpoint(made.path).search_keys(keys)
    assert {hit.path for hit in found.hits} == {"row"}
    assert verdicts(found) == ["found", "forgotten", "forgotten", "forgotten"]

    done = Checkpoint(made.path).forget(keys=keys).certificate

    assert done.is_forgotten, done.describe()
    assert done.search is not None
    maybe = {hit.path for outcome in done.search.outcomes for hit in outcome.hits}
    assert maybe == {"value.value"}
    judged = re.findall(r"forgotten, but for ([0-9]+) places? to be judged", done.describe())
    assert sum(map(int, judged)) == sum(len(of.hits) for of in done.search.outcomes)


def test_a_key_in_logs_of_the_query_is_found(tmp_path: Path) -> None:
    """Catches a certificate over a file of Spark's that names the key."""
    made = make(tmp_path)
    log = tmp_path / "query" / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    (log / "0").write_text(f'v1\n{{"path":"file:/in/id={KEYS[3]}/a.parquet","batchId":0}}')
    (log / "1").write_text(f'v1\n{{"path":"file:/in/id=7{KEYS[4]}/a.parquet","batchId":1}}')

    found = Checkpoint(made.path).search_keys(pa.table({"key.k": [KEYS[3], KEYS[4]]}))

    of_spark = found.outcomes[-1]
    assert (of_spark.operator, of_spark.verdict) == (None, "found")
    assert [Path(hit.file).name for hit in of_spark.hits] == ["0"]


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("urn:user:1", "in/user=urn%253Auser%253A1/a.parquet"),
        ("ann@example.org", "the%20files/ann@example.org.csv"),
        ("ann@example.org", "ann%40example.org"),
        ("Zoë Ω", "in/user=Zo%C3%AB%20%ce%a9"),
        ("Zoë Ω", "Zo\\u00EB \\u03a9"),
        ('say "hi"', 'as it was: say \\"hi\\"'),
        ("🙂 smile", "\\ud83d\\ude42 smile"),
        ("ann@example.org", "first\\nann@example.org"),
        ("100%user", "100%user"),
    ],
)
def test_a_key_in_a_log_is_found_as_a_uri_or_json_spells_it(
    tmp_path: Path, key: str, named: str
) -> None:
    """Catches a file source's log that has the key in its paths, which are quoted twice."""
    root = write_checkpoint(
        tmp_path / "query",
        [{"default": {(key,): (1,), ("else",): (2,)}}],
        families=(family({"user": "string"}, {"count": "long"}),),
    )
    log = tmp_path / "query/sources/0/0"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f'v1\n{{"path":"file:///{named}","batchId":0}}')

    found = Checkpoint(root).search_keys(pa.table({"key.user": [key]})).outcomes[-1]
    other = Checkpoint(root).search_keys(pa.table({"key.user": ["user:"]})).outcomes[-1]

    assert [hit.file for hit in found.hits] == [str(log)]
    assert other.verdict == "forgotten"


@pytest.mark.parametrize(
    ("column", "kind", "key", "named", "found"),
    [
        ("user", "string", "ann", "user=ann/a", ["found"]),
        ("User", "string", "ann", "uSER=ann/a", ["found"]),
        ("Größe", "string", "ann", "GRÖßE=ann/a", ["found"]),
        ("user", "string", "a b", "user%3Da%2520b", ["found"]),
        ("user", "string", "Zë", "user=Z\\u00eb/a", ["found"]),
        ("user", "string", "ann", "of-ann/a", ["maybe"]),
        ("user", "string", "ann", "user=ann-marie/a", ["maybe"]),
        ("user", "string", "ann", "user=ann@x.org/a", ["maybe"]),
        ("user", "long", 5, "user=5-17/a", []),
        ("user", "string", "ann", "superuser=ann/a", ["maybe"]),
        ("user", "string", "ann", "user=anna/annë/Ann/_ann", []),
        ("user", "string", "", "user=/a", []),
        ("user", "long", 123456, "user=123456/a", ["found"]),
        ("user", "long", 123456, "id=123456/a", ["maybe"]),
        ("user", "long", 123, "a-123", ["maybe"]),
        ("user", "long", -12, "user=-12/a", ["found"]),
        ("user", "long", 12, "id=12/user=123/user=2012", []),
        ("user", "string", "12", "id=12/a", []),
    ],
)
def test_a_short_key_in_a_log_is_found_behind_its_name_and_else_perhaps(
    tmp_path: Path, column: str, kind: str, key: Any, named: str, found: list[str]
) -> None:
    """Catches all is well said while a short name or number stands in the paths of a log."""
    root = write_checkpoint(
        tmp_path / "query",
        [{"default": {("else" if kind == "string" else 77,): (2,)}}],
        families=(family({column: kind}, {"count": "long"}),),
    )
    log = tmp_path / "query/sources/0/0"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f'v1\n{{"path":"file:///in/{named}","batchId":0}}')
    more = ["_1", "_2"] if kind == "string" else [901, 902]

    done = Checkpoint(root).search_keys(pa.table({f"key.{column}": [key, *more]}))

    hits = [hit for hit in done.outcomes[-1].hits if hit.file == str(log)]
    assert [hit.certainty for hit in hits] == found
    assert done.is_forgotten == (found != ["found"])


def test_of_a_key_of_two_columns_one_alone_is_perhaps_of_somebody_else(tmp_path: Path) -> None:
    """Catches people who are never certified, since their country is in the paths of a log."""
    root = write_checkpoint(
        tmp_path / "user=somebody/country=DE/query",
        [{"default": {("else", "FR"): (2,)}}],
        families=(family({"user": "string", "country": "string"}, {"count": "long"}),),
    )
    log = Path(root) / "sources/0/0"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text('v1\n{"path":"file:///in/country=DE/a","batchId":0}')
    keys = {"key.user": ["somebody"], "key.country": ["DE"]}

    done = Checkpoint(root).search_keys(pa.table(keys))

    assert [(hit.file, hit.certainty) for hit in done.outcomes[-1].hits] == [(str(log), "maybe")]
    assert done.is_forgotten


@pytest.mark.parametrize("key", [b"\xff" * 4, bytes(8), b"\0\0\0\1"])
def test_bytes_that_are_in_every_file_can_be_forgotten(tmp_path: Path, key: bytes) -> None:
    """Catches keys of numbers as bytes, whose users are never certified."""
    root = write_checkpoint(
        tmp_path / "query",
        [{"default": {("else",): (2,)}}],
        families=(family({"id": "binary"}, {"count": "long"}),),
    )
    keys = pa.table({"key.id": pa.array([key], pa.binary())})
    Checkpoint(root).edit(upsert=keys.append_column("value.count", [[1]]))
    before = Checkpoint(root).search_keys(keys)

    done = Checkpoint(root).forget(keys=keys).certificate

    assert verdicts(before) == ["found", "forgotten"]
    assert done.is_forgotten, done.describe()


def test_words_of_a_state_file_are_no_key(tmp_path: Path) -> None:
    """Catches a user who is never certified, for a name that begins as that of a column does."""
    root = write_checkpoint(
        tmp_path / "query",
        [{"default": {("coun",): (1,), ("else",): (2,)}}],
        families=(family({"user": "string"}, {"count": "long"}),),
    )
    checkpoint = Checkpoint(root)
    keys = pa.table({"key.user": ["coun"]})

    done = checkpoint.forget(keys=keys).certificate

    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten", done.describe()
    assert done.search.outcomes[0].hits == ()
    # Of a file that cannot be read its bytes tell what they can.
    with_row = [
        file
        for file in Path(root).rglob("*.delta.arrows")
        if unsafe_row("else") in file.read_bytes()
    ]
    for file in with_row:
        file.write_bytes(file.read_bytes()[:-1])
    for key, certainty, verdict in (
        ("coun", "maybe", "not searched"),
        ("else", "found", "found"),
        ("nobody", None, "not searched"),
    ):
        found = checkpoint.search_keys(pa.table({"key.user": [key]})).outcomes[0]
        hits = {(Path(hit.file), hit.path, hit.certainty) for hit in found.hits}
        assert hits == {(file, "bytes", certainty) for file in with_row if certainty}
        assert found.verdict == verdict


def test_the_history_keeps_few_of_many_hits(tmp_path: Path) -> None:
    """Catches a history of megabytes, which each operation reads and writes, for a common value."""
    made = make(tmp_path)
    log = tmp_path / "query" / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    unknown = tmp_path / "query" / "moved"
    unknown.mkdir()
    for number in range(1, 31):
        (log / f"1{number}").write_text(f'v1\n{{"path":"file:/in/{KEYS[3]}/{number}"}}')
        (unknown / f"{number}.delta.arrows").write_bytes(b"")

    done = Checkpoint(made.path).forget(f"k = {KEYS[3]}").certificate

    assert done.search is not None
    (entry,) = Checkpoint(made.path).history()
    for kept, outcome in zip(
        entry.result["certificate"]["search"]["outcomes"], done.search.outcomes, strict=True
    ):
        assert kept["num_hits"] == len(outcome.hits)
        assert [hit["file"] for hit in kept["hits"]] == [hit.file for hit in outcome.hits[:20]]
        assert kept["num_reasons"] == len(outcome.reasons)
        assert kept["reasons"] == [*outcome.reasons[:20]]
    of_spark = done.search.outcomes[-1]
    assert (len(of_spark.hits), len(of_spark.reasons)) == (30, 30)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_what_cannot_be_read_is_told_as_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """Catches all is well said of an operator whose file is damaged."""
    made = make(tmp_path)
    damaged = next((tmp_path / "query" / "state" / "2").rglob("2.delta.arrows"))
    if is_hidden:
        hide(damaged, monkeypatch)
    else:
        damaged.write_bytes(damaged.read_bytes()[:-40] + bytes(40))

    done = Checkpoint(made.path).search_keys(pa.table({"key.k": [123456789]}))

    assert verdicts(done) == ["forgotten", "forgotten", "not searched", "forgotten"]
    assert str(damaged) in done.outcomes[2].reasons[0]
    assert not done.is_forgotten


def test_the_certificate_is_begun_before_anything_changes_and_completed_after(
    tmp_path: Path,
) -> None:
    """Catches what cannot be undone, done without a document; and one that holds a key."""
    made = make(tmp_path)
    before = files_below(tmp_path / "query")
    file = tmp_path / "certificate.json"
    keys = pa.table({"key.k": [KEYS[3]]})
    nowhere = tmp_path / "none" / "certificate.json"
    with pytest.raises(StorageError, match="nothing was changed"):
        Checkpoint(made.path).forget(keys=keys, certificate=nowhere)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="file-exists"):
        Checkpoint(made.path).forget(keys=keys, certificate=tmp_path / "other.json")
    assert files_below(tmp_path / "query") == before
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(0, calls=("publish",)))
    with pytest.raises(StorageError, match="injected"):
        at(made.path, io=io).forget(keys=keys, certificate=file)
    begun = json.loads(file.read_text())
    assert (begun["status"], begun["search"], begun["written"]) == ("begun", None, [])
    assert len(begun["removed"]) == 8

    done = Checkpoint(made.path).forget(keys=keys, certificate=file).certificate

    document = json.loads(file.read_text())
    assert document == json.loads(json.dumps(done.fields()))
    assert document["status"] == "complete"
    assert document["begun_ms"] == begun["begun_ms"]
    assert (document["num_rows"], document["num_rows_before"]) == (1, 40)
    assert document["operator_name"] == "stateStoreSave"
    assert {"statestore", "host", "user", "begun_at", "completed_at", "not_reached"} <= {*document}
    assert "trials" in str(document["not_reached"])
    (noted,) = Checkpoint(made.path).history()
    assert noted.result["certificate"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    prints = document["fingerprints"]
    # Whoever has a key can check it without this package.
    text = json.dumps([str(KEYS[3])]).encode()
    told = hmac.new(bytes.fromhex(prints["salt"]), text, "sha256").hexdigest()
    assert prints["of_keys"] == [told]
    for of, is_of_keys in ((keys, True), (pa.table({"key.k": [KEYS[4]]}), False)):
        found = Checkpoint(made.path).search_keys(of.to_reader(), certificate=file)
        assert found.certificate_is_of_keys is is_of_keys
    with pytest.raises(NotFoundError, match="keys-not-found"):
        Checkpoint(made.path).forget(keys=keys)


def test_a_certificate_is_of_each_of_its_keys(tmp_path: Path) -> None:
    """Catches a key that was forgotten, told that it was not: whoever asks has but his own."""
    made = make(tmp_path)
    file = tmp_path / "certificate.json"
    Checkpoint(made.path).forget(keys=pa.table({"key.k": KEYS[3:6]}), certificate=file)

    def told(*keys: int) -> bool | None:
        asked = pa.table({"key.k": keys})
        return Checkpoint(made.path).search_keys(asked, certificate=file).certificate_is_of_keys

    assert told(*KEYS[3:6])
    assert told(KEYS[4])
    assert not told(KEYS[7])
    assert not told(KEYS[4], KEYS[7])
    document = json.loads(file.read_text())
    for damaged in (None, {}, {**document["fingerprints"], "salt": "x"}):
        file.write_text(json.dumps({**document, "fingerprints": damaged}))
        with pytest.raises(InvalidArgumentError, match="not a certificate"):
            told(KEYS[4])
    # As one of more than a thousand keys: each has no fingerprint of its own.
    document["fingerprints"]["of_keys"] = None
    file.write_text(json.dumps(document))
    assert told(*KEYS[3:6])
    assert not told(KEYS[4])


def test_a_certificate_that_cannot_be_completed_is_in_the_error(tmp_path: Path) -> None:
    """Catches the only document of what cannot be done again, lost with its directory."""
    made = make(tmp_path)
    directory = tmp_path / "certificates"
    directory.mkdir()

    class Gone(LocalFileIO):
        def delete_files(self, of: str, names: Any) -> None:
            super().delete_files(of, names)
            shutil.rmtree(directory, ignore_errors=True)

    with pytest.raises(StorageError, match="cannot be written") as caught:
        at(made.path, io=Gone()).forget(f"k = {KEYS[3]}", certificate=directory / "c.json")

    document = json.loads(str(caught.value.fields["certificate"]))
    assert (document["status"], len(document["removed"])) == ("complete", 8)


@pytest.mark.parametrize(("operator", "merges"), [("stateStoreSave", True), ("dedupe", False)])
def test_zeros_are_one_key_where_spark_groups_by_it(
    tmp_path: Path, operator: str, *, merges: bool
) -> None:
    """Catches another key, forgotten and certified in place of the one that was given."""
    of = ColumnFamily(0, "default", schema_of(d="double"), schema_of(n="long"))
    stores = (WordStore((of,), columns=("d",)),)
    made = MadeCheckpoint(str(tmp_path / "query"), operators=((operator, stores),))
    zeros = [(unsafe_row(0), 1), (unsafe_row(-(1 << 63)), 2)]  # the bits of 0.0 and -0.0
    made.run_batch({("default", key): (number,) for key, number in zeros[: 1 if merges else 2]})
    checkpoint = Checkpoint(made.path)

    done = checkpoint.forget(keys=pa.table({"key.d": [-0.0]}), all_rows=True)

    assert done.keys == ('["0"]' if merges else '["-0.0"]',)
    assert done.certificate.is_forgotten
    left = checkpoint.rows(0).read(flatten=True)["key.d"].to_pylist()
    assert list(map(str, left)) == ([] if merges else ["0.0"])


def test_files_that_a_savepoint_reads_or_a_branch_shares_are_named(tmp_path: Path) -> None:
    """Catches a savepoint that loses its files under way, a branch that keeps a key unsaid."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)
    with open_checkpoint(place_of(made.path)) as opened:
        location = opened.location(StoreName(0, 1))
        with pinned([location], 2, "0" * 32), pytest.raises(InUseError, match="savepoint"):
            checkpoint.forget(f"k = {KEYS[0]}")
    checkpoint.branch(tmp_path / "branch")

    plan = checkpoint.forget(f"k = {KEYS[0]}", dry_run=True)
    assert plan.num_shared > 0
    assert "a branch's as well" in str(plan)
    checkpoint.forget(f"k = {KEYS[0]}")

    assert Checkpoint(tmp_path / "branch").rows(0).read().num_rows == 40
    assert checkpoint.rows(0).read().num_rows == 39


def test_nothing_is_deleted_by_who_stood_still_after_the_commit(tmp_path: Path) -> None:
    """Catches files of batches of a query that started meanwhile, deleted with no way back."""
    made = make(tmp_path)
    clock = ManualClock()
    stood_still = []

    class Pausing(LocalFileIO):
        """Stands still behind the entry of the commit log, while a query runs two batches."""

        def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
            super().write(path, data, sync=sync, overwrite=overwrite)
            if path.endswith("/commits/2"):
                stood_still.append(path)
                clock.advance(10 * 60 * 1000)
                made.run_batch({KEYS[0]: 7})
                made.run_batch({KEYS[1]: 8})

    with pytest.raises(InUseError, match="lease on the checkpoint has expired"):
        at(made.path, io=Pausing(), clock=clock).forget(f"k = {KEYS[3]}")

    assert len(stood_still) == 1
    expected = made.expected()
    del expected[0, "default"][unsafe_row(KEYS[3])]
    assert read_checkpoint(made.path) == expected
    assert Checkpoint(made.path).info.newest_version == 5
    done = Checkpoint(made.path).forget(f"k = {KEYS[3]}").certificate
    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten"
    assert read_checkpoint(made.path) == expected


def test_who_may_not_delete_is_told_what_counts(tmp_path: Path) -> None:
    """Catches an error that reads as if nothing was done, where files with the keys are left."""
    made = make(tmp_path)

    class Denying(LocalFileIO):
        def delete_files(self, of: str, names: Any) -> None:
            raise StorageError("cannot delete", kind="permission-denied", to_fix="give rights")

    to = tmp_path / "c.json"
    with pytest.raises(StorageError, match=r"goes on without.*files that may.*version=3") as caught:
        at(made.path, io=Denying()).forget(f"k = {KEYS[3]}", certificate=to)
    assert caught.value.kind == "permission-denied"

    expected = made.expected()
    del expected[0, "default"][unsafe_row(KEYS[3])]
    assert read_checkpoint(made.path) == expected
    done = Checkpoint(made.path).forget(f"k = {KEYS[3]}", certificate=to).certificate
    assert done.search is not None
    assert done.search.outcomes[0].verdict == "forgotten"


def hide(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the disk not give a file."""
    read_in = MappedFile._read_in

    def read(file: MappedFile, piece: pa.Buffer, offset: int) -> None:
        if file._name == str(path):
            raise cannot_be_read(file._name, offset, piece.size)
        read_in(file, piece, offset)

    monkeypatch.setattr(MappedFile, "_read_in", read)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_damaged_file_that_no_version_needs_goes_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """Catches keys that can never be forgotten once a repair has left a damaged file."""
    made = make(tmp_path, checkpoint_format=2)
    old = next(Path(made.path).glob("state/0/0/1_*.delta.arrows"))
    left = old.with_name(old.name.replace("1_", "2_", 1))
    left.write_bytes(old.read_bytes()[:-40] + bytes(40))
    if is_hidden:
        hide(left, monkeypatch)
    keys = pa.table({"key.k": [KEYS[3]]})

    plan = Checkpoint(made.path).forget(keys=keys, dry_run=True)
    assert [Path(path).name for path in plan.damaged] == [left.name]
    assert "1 of the files cannot be read" in str(plan)
    with pytest.raises(CorruptionError):
        Checkpoint(made.path).forget(keys=pa.table({"key.k": [-77]}))
    assert left.exists()

    assert verdicts(Checkpoint(made.path).forget(keys=keys).certificate.search)[0] == "forgotten"
    assert not left.exists()


def test_nothing_goes_where_what_was_written_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches all versions deleted but for one that the disk does not give."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)
    before = {file for file in Path(made.path).rglob("*") if file.is_file()}
    newest = checkpoint.info.newest_version

    def read_in(file: MappedFile, piece: pa.Buffer, offset: int) -> None:
        if Path(file._name).name.startswith(f"{newest + 1}."):
            raise cannot_be_read(file._name, offset, piece.size)

    monkeypatch.setattr(MappedFile, "_read_in", read_in)
    with pytest.raises(CorruptionError, match="cannot be read"):
        checkpoint.forget(f"k = {KEYS[3]}")

    assert checkpoint.info.newest_version == newest
    assert before <= {*Path(made.path).rglob("*")}


def test_a_damaged_file_expires_where_no_other_has_the_keys(tmp_path: Path) -> None:
    """Catches an error that only a copy helps against, where the file can go."""
    made = make(tmp_path, checkpoint_format=2)
    checkpoint = Checkpoint(made.path)
    checkpoint.compact()
    made.restart()
    made.run_batch({})
    old = next(Path(made.path).glob("state/0/0/1_*.delta.arrows"))
    old.write_bytes(old.read_bytes()[:-40] + bytes(40))
    keys = pa.table({"key.k": [-77]})

    with pytest.raises(CorruptionError, match=old.name) as raised:
        checkpoint.forget(keys=keys)
    for step in ("statestore compact", "a few batches", "statestore expire"):
        assert step in raised.value.to_fix

    checkpoint.compact()
    made.restart()
    for _ in range(2):
        made.run_batch({})
    checkpoint.expire(2)
    with pytest.raises(NotFoundError, match="keys-not-found"):
        checkpoint.forget(keys=keys)


def test_state_behind_a_link_is_searched(tmp_path: Path) -> None:
    """Catches a verdict on files that nobody has looked at, on another disk."""
    made = make(tmp_path)
    for name in ("state/0", "offsets"):
        moved = tmp_path / "other disk" / name
        moved.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "query" / name).rename(moved)
        (tmp_path / "query" / name).symlink_to(moved)
    (tmp_path / "other disk/state/0/round").symlink_to(tmp_path / "other disk")

    found = Checkpoint(made.path).search_keys(pa.table({"key.k": [KEYS[3]]}))

    assert verdicts(found)[0] == "found"
    assert {hit.path for hit in found.hits} >= {"row"}


def test_a_file_that_no_listing_shows_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a verdict on an operator of which a file was left out."""
    made = make(tmp_path)
    whole = LocalFileIO.list_tree

    def without_first(io: LocalFileIO, directory: str) -> list[FileInfo]:
        return [info for info in whole(io, directory) if not info.name.startswith("state/0/1/")]

    monkeypatch.setattr(LocalFileIO, "list_tree", without_first)
    found = Checkpoint(made.path).search_keys(pa.table({"key.k": [7]}))

    assert verdicts(found)[0] == "not searched"


def test_a_directory_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches files that are left out because a network disk has lost its directory."""
    made = make(tmp_path)
    scan = os.scandir

    def stale(path: str) -> Any:
        if str(path).endswith("state/0/1"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", stale)
    with pytest.raises(StorageError, match="state/0/1"):
        Checkpoint(made.path).search_keys(pa.table({"key.k": [KEYS[3]]}))
