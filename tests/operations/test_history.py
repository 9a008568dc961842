"""The history of operations: who changed a checkpoint, whatever people do to the file."""

import getpass
import json
import os
import random
import socket
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.checkpoint.history import Event, append
from statestore.checkpoint.layout import history_path
from statestore.cli.commands import cli
from statestore.core.clock import ManualClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.ids import RandomIds
from statestore.core.version import WRITER
from statestore.io.local import LocalFileIO
from tests.checkpoints import OPTIONS, query_of
from tests.damaged import NOW
from tests.rescaled import KEYED, listing, make
from tests.seams import at

OPERATIONS = {
    "rescale": (lambda found: found.rescale(4), 3, 4, {"num_partitions": 4}),
    "undo of a rescale": (lambda found: found.undo_rescale(), 4, 3, {}),
    "edit": (
        lambda found: found.edit(delete=pa.table({"key.k": [5]}), watermark_ms=9),
        3, 4, {"column_families": [[0, "default", "default"]], "watermark_ms": 9},
    ),
    "forget": (
        lambda found: found.forget("k = 7"),
        4, 5, {"operator": 0, "num_keys": 1, "all_rows": False},
    ),
    "compact": (lambda found: found.compact(), 5, 5, {}),
    "expire": (lambda found: found.expire(2), 5, 5, {"keep": 2}),
}  # fmt: skip


@pytest.fixture
def made(tmp_path):
    """A checkpoint of three versions in two state partitions."""
    return make(tmp_path, operators=KEYED, num_partitions=2)


def test_history_says_who_did_what_when(made):
    """Catches an operation that leaves no entry, or one that says something else than was done."""
    clock = ManualClock()
    for operation, _, _, _ in OPERATIONS.values():
        clock.advance(1000)
        operation(at(made.path, clock=clock))

    entries = Checkpoint(made.path).history()

    # The newest version is whole after a forget, and nothing is older: no file is touched.
    names = [name for name in OPERATIONS if name not in ("compact", "expire")]
    assert [entry.operation for entry in entries] == names[::-1]
    for entry in entries:
        _, before, after, options = OPERATIONS[entry.operation]
        assert (entry.status, entry.from_version, entry.to_version) == ("done", before, after)
        assert entry.options == options
        assert (entry.user, entry.host, entry.writer) == (
            getpass.getuser(), socket.gethostname(), WRITER
        )  # fmt: skip
    begun = [entry.begun_ms for entry in entries]
    assert begun == sorted(begun, reverse=True)
    assert begun[-1] == 1_001_000
    by_name = {entry.operation: entry for entry in entries}
    assert by_name["edit"].result == {"rows_put": 0, "rows_deleted": 1}
    assert by_name["rescale"].taken_back_by == "undo of a rescale"
    assert by_name["edit"].taken_back_by is None
    certificate = by_name["forget"].result["certificate"]
    assert (certificate["status"], certificate["num_rows"]) == ("complete", 1)
    # As many files as there were would make every later operation read and write them.
    assert not {"written", "removed"} & certificate.keys()
    assert certificate["num_removed"] > certificate["num_written"] > 0
    assert len(Checkpoint(made.path).history(limit=1)) == 1
    for asked in (Checkpoint(made.path).history, Checkpoint(made.path).versions):
        for limit in (0, -1):
            with pytest.raises(InvalidArgumentError, match=f"limit={limit}"):
                asked(limit=limit)


def test_directories_that_operations_make_begin_with_what_made_them(made, tmp_path):
    """Catches a savepoint or checkpoint that does not say what it is a copy of."""
    Checkpoint(made.path).compact()
    checkpoint = Checkpoint(made.path)
    savepoint = checkpoint.savepoint(tmp_path / "savepoint").made
    checkpoint.branch(tmp_path / "branch")
    checkpoint.transform(tmp_path / "transformed", {0: "SELECT * FROM state"})
    restored = savepoint.restore(tmp_path / "restored", num_partitions=4).made
    restored.rescale(2)

    def found(name):
        return [
            (entry.operation, entry.status, entry.to_version, entry.options.get("of"))
            for entry in Checkpoint(tmp_path / name).history()
        ]

    assert found("savepoint") == [("savepoint", "done", 3, made.path)]
    assert found("branch") == [("branch", "done", 3, made.path)]
    assert found("transformed") == [("transform", "done", 3, made.path)]
    assert found("restored") == [
        ("rescale", "done", 4, None),
        ("restore", "done", 3, str(tmp_path / "savepoint")),
    ]


def test_operations_that_change_files_alone_are_in_it(tmp_path):
    """Catches a delete that nobody has answered for."""
    options = replace(OPTIONS, snapshot_max_chain_length=2, rocksdb_merge_min_files=2)
    query = query_of(tmp_path / "query", backend="rocksdb", options=options)
    for number in range(6):
        query.run_batch({f"key {key}": number for key in range(40)})
        if number == 3:
            Checkpoint(query.path).compact()
            query.restart()
    done = at(query.path, options=NOW).expire(2)
    assert done.num_files

    expired, compacted = Checkpoint(query.path).history()

    assert (compacted.operation, compacted.from_version, compacted.to_version) == ("compact", 4, 4)
    assert compacted.result["num_files"] > 4
    assert (expired.operation, expired.options, expired.result["num_files"]) == (
        "expire", {"keep": 2}, done.num_files
    )  # fmt: skip


def test_operation_that_changes_nothing_is_not_in_it(made):
    """Catches a history full of plans, and of calls that found nothing to do."""
    Checkpoint(made.path).rescale(4, dry_run=True)
    Checkpoint(made.path).expire(2, dry_run=True)
    Checkpoint(made.path).rescale(2)
    Checkpoint(made.path).repair()

    assert len(Checkpoint(made.path).history()) == 0
    assert not Path(history_path(made.path)).exists()


DAMAGES = {
    "cut": lambda data: data[:-40],
    "without its end": lambda data: data[:-1],
    "no text": lambda data: data + b"\xff\xfe\n",
    "no JSON": lambda data: data + b"who was that\n",
    "another form": lambda data: data + b'{"format_version":2}\n',
    "nested": lambda data: data + b"[" * 100_000 + b"\n",
    "too late": lambda data: data.replace(b'"at_ms":1', b'"at_ms":99991'),
    "deep options": lambda data: data.replace(b"{}", b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"),
    "no number": lambda data: data.replace(b"{}", b'{"a":NaN}'),
    "empty": lambda data: b"",
    "blank lines": lambda data: b"\n" + data + b"\n \r\n",
}
NUM_DAMAGED = dict.fromkeys(DAMAGES, 1) | {
    "without its end": 0,
    "too late": 2,
    "empty": 0,
    "blank lines": 0,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_history_survives_what_people_do_to_it(made, kind):
    """Catches an operation that a file for people stops, or lines that it makes away with."""
    Checkpoint(made.path).rescale(4)
    path = Path(history_path(made.path))
    path.write_bytes(DAMAGES[kind](path.read_bytes()))
    before = path.read_bytes()

    Checkpoint(made.path).undo_rescale()

    assert path.read_bytes().startswith(before)
    entries = Checkpoint(made.path).history()
    assert (entries[0].operation, entries[0].status) == ("undo of a rescale", "done")
    assert sum(entry.is_damaged for entry in entries) == NUM_DAMAGED[kind]
    for entry in entries:
        if entry.is_damaged:
            assert entry.text.encode(errors="replace")[:9] in path.read_bytes() + b"\\xff\\xfe"
            assert entry.operation is None
    for arguments in (["history", made.path], ["list", made.path]):
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert len(entries.to_arrow()) == len(entries)


def test_history_tells_of_users_that_are_not_utf8(made, monkeypatch):
    """Catches an operation that ends at its first step, by the name of who does it."""
    monkeypatch.setenv("LOGNAME", os.fsdecode(b"us\xffer"))

    Checkpoint(made.path).rescale(4)

    assert Checkpoint(made.path).history()[0].user == "us?er"


@pytest.mark.parametrize("seed", range(20))
def test_who_took_a_version_back_is_the_first_that_went_behind_it(made, seed):
    """Catches an operation that is shown as standing when its version is gone."""
    rng = random.Random(seed)
    events = [
        Event(f"{number:032x}", f"operation {number}", number, rng.randint(1, 9), rng.randint(1, 9))
        for number in range(60)
    ]
    Path(history_path(made.path)).write_bytes(b"".join(event.encode() for event in events))
    expected = [
        next(
            (
                later.operation
                for later in events[number + 1 :]
                if event.to_version > event.from_version and later.to_version < event.to_version
            ),
            None,
        )
        for number, event in enumerate(events)
    ]

    told = {entry.operation: entry.taken_back_by for entry in Checkpoint(made.path).history()}

    assert told == {event.operation: of for event, of in zip(events, expected, strict=True)}


def test_history_shows_no_key(made):
    """Catches a condition with a user's name that outlives the user's rows."""
    key = 1_234_567_890_123
    made.run_batch({key: key})
    checkpoint = Checkpoint(made.path)
    checkpoint.edit(upsert=pa.table({"key.k": [key, 9], "value.value": [key, 8]}), watermark_ms=3)
    checkpoint.edit(delete=f"value.value = {key}")
    checkpoint.edit(upsert=pa.table({"key.k": [key], "value.value": [key]}))
    checkpoint.forget(f"k = {key}")

    assert len(checkpoint.history()) == 4
    assert str(key).encode() not in Path(history_path(made.path)).read_bytes()
    assert checkpoint.search_keys(pa.table({"key.k": [key]})).is_forgotten


def test_copies_begin_a_history_of_their_own(made, tmp_path):
    """Catches a new directory that says of itself what was done to another."""
    checkpoint = Checkpoint(made.path)
    checkpoint.rescale(4)
    checkpoint.branch(tmp_path / "branch")
    checkpoint.savepoint(tmp_path / "savepoint")
    Savepoint(tmp_path / "savepoint").restore(tmp_path / "restored")

    for name in ("branch", "savepoint", "restored"):
        kind = Savepoint if name == "savepoint" else Checkpoint
        made_by = [entry.operation for entry in kind(tmp_path / name).history()]
        assert "rescale" not in made_by


def test_entry_of_a_new_directory_is_appended(tmp_path):
    """Catches what makes a new directory and cannot say so in its first line."""
    event = Event(RandomIds().new_id(), "branch", 1000, 3, 3, "done", {"of": "/ck"}, {"files": 2})
    tmp_path.joinpath("offsets").mkdir()
    tmp_path.joinpath("offsets/0").touch()

    append(LocalFileIO(), str(tmp_path), event)

    (entry,) = Checkpoint(tmp_path).history()
    assert (entry.status, entry.operation, entry.begun_ms, entry.done_ms) == (
        "done", "branch", None, 1000
    )  # fmt: skip
    assert (entry.options, entry.result) == ({"of": "/ck"}, {"files": 2})


def test_history_is_shown_by_shell_and_page(made, tmp_path):
    """Catches an entry that a shell, a script or the page has not."""
    Checkpoint(made.path).rescale(4)
    Checkpoint(made.path).forget("k = 7")
    with Path(history_path(made.path)).open("a") as file:
        file.write("<b>who</b> \x1b[31m\n")

    text = CliRunner().invoke(cli, ["history", made.path]).output
    printed = json.loads(CliRunner().invoke(cli, ["history", made.path, "--output", "json"]).output)
    versions = CliRunner().invoke(cli, ["list", made.path, "--output", "json"]).output
    facts = Checkpoint(made.path).report(tmp_path / "page.html")

    assert f"{getpass.getuser()}@{socket.gethostname()}" in text
    assert "num_partitions=4, num_partitions_before=2" in text
    assert "\x1b" not in text
    damaged, forgotten, rescaled = printed["entries"]
    assert (damaged["status"], damaged["text"]) == ("damaged", "<b>who</b> \x1b[31m")
    assert forgotten["result"]["certificate"]["search"]["outcomes"]
    assert rescaled["status"] == "done"
    made_by = [version["made_by"] for version in json.loads(versions)["versions"]]
    assert made_by == ["forget", "rescale", None, None, None]
    assert [entry.operation for entry in facts.history] == [None, "forget", "rescale"]
    page = (tmp_path / "page.html").read_text()
    assert "<td>rescale</td>" in page
    assert "<b>who</b>" not in page
    assert forgotten["result"]["certificate"]["fingerprints"]["salt"] not in page


def test_history_is_beside_the_checkpoint_and_no_part_of_it(made):
    """Catches what takes the history for state, or for a file of Spark's."""
    before = listing(made.path)
    Checkpoint(made.path).rescale(4)
    Checkpoint(made.path).undo_rescale()

    assert listing(made.path) == before
    assert Checkpoint(made.path).verify(deep=True).findings == ()
    assert Path(history_path(made.path)).read_text().count("\n") == 4
