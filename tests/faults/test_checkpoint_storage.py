"""State outside of Spark's checkpoint directory: the engine's calls, on S3 and on the disk."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.layout import OWNER_NAME, StoreLocation
from statestore.checkpoint.placement import make_placement, read_placement
from statestore.codec.references import StoreName
from statestore.codec.rows import PUT, Row
from statestore.core.errors import IncompatibleError
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.s3 import S3FileIO
from tests.checkpoints import write_checkpoint
from tests.engine_process import EngineGoneError, EngineProcess
from tests.s3_server import WRONG_KEY
from tests.seaweed import IS_CHOSEN
from tests.shim import Engine, G, Shim, rows

SECRET = "not-to-be-seen"  # noqa: S105


@pytest.fixture(params=["s3", "s3a", "file"])
def storage(request, tmp_path):
    """A URI and the options to reach it."""
    if request.param == "file":
        return f"file://{tmp_path}/else%20where", {}
    server = request.getfixturevalue("s3_server")
    return f"{request.param}://{request.getfixturevalue('bucket')}/a/b", server.options()


@pytest.fixture
def make_shim(tmp_path, storage):
    """Make a shim whose query has the option; a run each."""
    uri, options = storage

    def make(run="1", checkpoint_storage=uri, **others):
        (tmp_path / "ck" / "state").mkdir(parents=True, exist_ok=True)
        # No snapshot in the background, so that requests can be counted.
        more = {**options, "checkpoint_storage": checkpoint_storage}
        more["snapshot_max_chain_length"] = 100
        return Shim(tmp_path, run=run, **{**more, **others})

    return make


def commit_all(engine, shim, *numbers):
    """Load the empty store and commit a row each."""
    engine.call("load", **shim.load(0))
    for number in numbers:
        shim.commit(engine, rows(number))


def error_of(reply):
    """The error of a reply, which must name what to do."""
    assert "error" in reply, reply
    assert "To fix: " in reply["error"]["message"]
    return reply["error"]


@pytest.mark.parametrize("key", ["with-key", "without-key"])
def test_restart_finds_the_state(make_shim, tmp_path, storage, key):
    """Catches a checkpoint that forgets where its state is."""
    first = make_shim()
    commit_all(Engine(first.scratch), first, 1, 2, 3)

    again = make_shim("2") if key == "with-key" else make_shim("2", checkpoint_storage="")
    again.parent, again.num_keys = first.parent, first.num_keys
    engine = Engine(again.scratch)
    loaded = engine.call("load", **again.load())
    again.commit(engine, rows(4))

    assert (loaded["num_keys"], again.parent["version"]) == (3, 4)
    assert not list((tmp_path / "ck").rglob("*.arrows"))
    placement = read_placement(LocalFileIO(), f"{tmp_path}/ck/state")
    assert placement.storage == storage[0]
    assert (tmp_path / "ck/state/0/0").is_dir()


@pytest.mark.parametrize(
    ("uri", "written"),
    [("file:///", "file:///"), ("/", "/"), ("hdfs:///", "hdfs:///"), ("s3://b/a/", "s3://b/a")],
)
def test_storage_may_be_a_root_directory(tmp_path, uri, written):
    """Catches a placement that names no place: the query does not start again."""
    io = MemoryFileIO(str(tmp_path))
    home = StoreLocation(io, "/ck/state", StoreName(0, 0))

    make_placement(home, "/ck/state", io, "/", uri, sync=False)

    assert read_placement(io, "/ck/state").storage == written


def test_another_uri_is_refused(make_shim, storage, tmp_path):
    """Catches a query that starts empty, or splits its state over two storages."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    other = make_shim("2", checkpoint_storage="file:/some/where")
    other.parent, other.num_keys = shim.parent, shim.num_keys

    for call in (other.load(), other.load(0)):
        error = error_of(engine.request("load", **call))
        assert (error["class"], error["kind"]) == ("IncompatibleError", "storage-changed")
        assert "file:/some/where" in error["message"]
        assert storage[0] in error["message"]
        assert f"write that as `storage` into {tmp_path}/ck/statestore.json" in error["message"]
    error = error_of(engine.request("commit", **other.request(rows(2))))
    assert error["kind"] == "storage-changed"


def test_checkpoint_with_state_of_its_own_refuses_the_option(make_shim, tmp_path):
    """Catches state left behind in the checkpoint directory."""
    shim = make_shim(checkpoint_storage="")
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    moved = make_shim("2")
    moved.parent, moved.num_keys = shim.parent, shim.num_keys

    for op, call in (("load", moved.load()), ("commit", moved.request(rows(2)))):
        error = error_of(engine.request(op, **call))
        assert (error["class"], error["kind"]) == ("IncompatibleError", "storage-changed")
    assert not (tmp_path / "ck/statestore.json").exists()


def test_checkpoint_begun_anew_has_nothing_of_the_old_one(make_shim, tmp_path):
    """Catches state of a deleted checkpoint that shows in the one made under its path."""
    old = make_shim()
    engine = Engine(old.scratch)
    commit_all(engine, old, 1, 2)
    shutil.rmtree(tmp_path / "ck")

    new = make_shim("2")
    commit_all(engine, new, 7)

    assert engine.call("load", **new.load())["num_keys"] == 1
    error = error_of(engine.request("load", **new.load(2)))
    assert (error["class"], error["kind"]) == ("NotFoundError", "version-not-found")


def test_engines_agree_on_one_directory(make_shim, tmp_path):
    """Catches two executors that each give the checkpoint a directory."""
    shims = [make_shim() for _ in range(4)]
    engines = []
    for partition, shim in enumerate(shims):
        shim.store["partition"] = partition
        engines.append(Engine(shim.scratch))
    for shim, engine in zip(shims, engines, strict=True):
        engine.call("load", **shim.load(0))
    commits = [shim.request(rows(1)) for shim in shims]
    replies = [None] * len(shims)

    def commit(index):
        replies[index] = engines[index].request("commit", **commits[index])

    threads = [threading.Thread(target=commit, args=(index,)) for index in range(len(shims))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    fresh = Engine(f"{tmp_path}/fresh")
    for shim, call, reply in zip(shims, commits, replies, strict=True):
        shim.committed(call, reply["ok"])
        assert fresh.call("load", **{**shim.load(), "options": shim.options})["num_keys"] == 1


def test_directory_that_is_bound_keeps_its_owner():
    """Catches state of nobody, where a write that has counted is sent again by the file system."""

    class SentAgain(MemoryFileIO):
        def write(self, path, data, **how):
            super().write(path, data, **how)
            super().write(path, data, **how)

    home = StoreLocation(SentAgain(""), "/ck/state", StoreName(0, 0))
    io = MemoryFileIO("")

    made, late = (make_placement(home, "/ck", io, "/all", "/all", sync=False) for _ in range(2))

    assert made == late == read_placement(home.io, home.root)
    assert [info.name for info in io.list_tree("/all")] == [f"{made.id}/{OWNER_NAME}"]


def test_executor_learns_where_another_put_the_state(make_shim):
    """Catches an executor that looked before the first commit and never again."""
    shim = make_shim()
    early, other = Engine(shim.scratch), Engine(shim.scratch)
    early.call("load", **shim.load(0))
    commit_all(other, shim, 1)

    assert early.call("load", **shim.load())["num_keys"] == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_store_is_open_once_and_not_when_it_is_closed(make_shim, is_first):
    """Catches the place of version 0 that stays open: memory is divided by all that are."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    engine.call("load", **shim.load(0))
    if is_first:
        shim.commit(engine, rows(1))
        assert engine._sessions.num_open == 1
    else:
        commit_all(Engine(shim.scratch), shim, 1)

    engine.call("close", **shim.load())

    assert engine._sessions.num_open == 0


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format_version": 1}', b'{"format_version": 9,'
    b' "storage": "s3://b", "id": "x"}'])  # fmt: skip
def test_damaged_placement_is_named(make_shim, tmp_path, damage):
    """Catches a query that starts empty where nobody knows where its state is."""
    shim = make_shim()
    commit_all(Engine(shim.scratch), shim, 1)
    (tmp_path / "ck/statestore.json").write_bytes(damage)

    error = error_of(Engine(shim.scratch).request("load", **shim.load()))

    assert error["class"] == ("IncompatibleError" if b"9" in damage else "CorruptionError")
    assert "statestore.json" in error["message"]


@pytest.mark.parametrize("key", ["with-key", "without-key"])
@pytest.mark.parametrize("store", ["default", "left-keyToNumValues"])
def test_lost_placement_is_named(make_shim, tmp_path, storage, key, store):
    """Catches advice to give whole state up, and advice by which it is not found again."""
    shim = make_shim()
    shim.store["name"] = store
    commit_all(Engine(shim.scratch), shim, 1)
    placement = tmp_path / "ck/statestore.json"
    directory = json.loads(placement.read_text())["id"]
    placement.unlink()
    again = make_shim("2") if key == "with-key" else make_shim("2", checkpoint_storage="")
    again.store["name"], again.parent, again.num_keys = store, shim.parent, shim.num_keys

    error = error_of(Engine(again.scratch).request("load", **again.load()))

    assert (error["class"], error["kind"]) == ("IncompatibleError", "storage-changed")
    assert error["fields"]["file"] == str(placement)
    written = error["message"][error["message"].index("{") : error["message"].index("}") + 1]
    placement.write_text(written.replace("URI", storage[0]).replace("ID", directory))
    assert Engine(again.scratch).call("load", **again.load())["num_keys"] == 1


def test_operations_say_that_the_placement_is_lost(tmp_path):
    """Catches a repair that calls whole state lost, and says to begin anew."""
    made = write_checkpoint(tmp_path / "made", [{"default": {("a", 1): (1, "")}}] * 2)
    options = {"checkpoint_storage": str(tmp_path / "storage")}
    Checkpoint(made, storage_options=options).restore(tmp_path / "ck")
    checkpoint = Checkpoint(tmp_path / "ck")
    (tmp_path / "ck/statestore.json").unlink()

    for call in (checkpoint.verify, checkpoint.repair, lambda: checkpoint.rows().read()):
        with pytest.raises(IncompatibleError, match=r"statestore\.json") as caught:
            call()
        assert caught.value.kind == "storage-changed"
    with pytest.raises(IncompatibleError, match=r"statestore\.json"), checkpoint.open_store():
        pass


def test_state_that_was_moved_back_by_hand_is_not_called_lost(make_shim, tmp_path):
    """Catches advice that leads a checkpoint to state which it has left."""
    shim = make_shim(checkpoint_storage=str(tmp_path / "storage"))
    commit_all(Engine(shim.scratch), shim, 1)
    placement = tmp_path / "ck/statestore.json"
    state = tmp_path / "storage" / json.loads(placement.read_text())["id"]
    shutil.copytree(state, tmp_path / "ck/state", dirs_exist_ok=True)
    placement.unlink()
    again = make_shim("2")
    again.parent, again.num_keys = shim.parent, shim.num_keys

    error = error_of(Engine(again.scratch).request("load", **again.load()))

    assert "keeps its state in its own directory" in error["message"]


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_batch_on_s3_is_one_put(make_shim, s3_server, checkpoint_format, backend):
    """Catches requests nobody needs, and counts that are not those of the server."""
    shim = make_shim()
    shim.backend = backend
    shim.format = checkpoint_format
    # With more versions than it retains, a store that was loaded is cleaned up beside the calls.
    shim.options = shim.options | {"min_versions_to_retain": 10}
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)

    for number in range(2, 4):
        s3_server.requests.clear()
        reply = shim.commit(engine, rows(number))

        # Format v1 names a version the same in every attempt: only a look tells whose it is.
        num_gets = 1 if checkpoint_format == 1 else 0
        assert s3_server.requests == {"PUT": 1, **({"GET": num_gets} if num_gets else {})}
        assert reply["requests"] == {"put": 1, "get": num_gets, "head": 0, "list": 0, "delete": 0}

    s3_server.requests.clear()
    loaded = engine.call("load", **shim.load())
    assert loaded["requests"]["get"] == s3_server.requests["GET"] == s3_server.requests.total()


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_placement_is_read_once(make_shim, bucket, s3_server):
    """Catches a look at the checkpoint in every batch, or for every store."""
    root = f"s3a://{bucket}/ck/state"
    shims = [make_shim(checkpoint_storage="") for _ in range(3)]
    engine = Engine(shims[0].scratch)
    for partition, shim in enumerate(shims):
        shim.store |= {"partition": partition, "root": root}
        commit_all(engine, shim, 1, 2)

    # A commit of version 1 looks for what a lost engine may have done, one of version 2 for its
    # parent.
    assert s3_server.requests["GET"] == 1 + 2 * len(shims)


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_checkpoint_on_s3_with_state_on_another_bucket(make_shim, bucket, s3_server, tmp_path):
    """Catches partitions that Spark's state reader does not find on an object store."""
    shim = make_shim()
    shim.store["root"] = f"s3a://{bucket}/ck/state"
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)

    uri = f"s3://{bucket}/ck"
    with Checkpoint(uri, storage_options=s3_server.options()).open_store() as store:
        assert store.get(b"%08d" % 1) == b"v"
    keys = s3_server.keys(bucket)
    assert "ck/state/0/0/.statestore" in keys
    file = S3FileIO(str(tmp_path), s3_server.settings())
    (owner,) = (key for key in keys if key.endswith("/checkpoint.json"))
    assert json.loads(file.read_tail(f"/{bucket}/{owner}", 1000)[0])["checkpoint"] == (
        f"s3://{bucket}/ck/state"
    )
    assert not [key for key in keys if key.startswith("ck/") and key.endswith(".arrows")]


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_commits_on_s3_go_side_by_side(make_shim, s3_server, tmp_path):
    """Catches partitions that wait for each other's round trip."""
    num_tasks = 64
    shims = [make_shim() for _ in range(200)]
    for partition, shim in enumerate(shims):
        shim.store["partition"] = partition
    with EngineProcess(shims[0].scratch) as engine, ThreadPoolExecutor(num_tasks) as tasks:
        commit_all(engine, shims[0], 1)
        calls = [shims[0].request(rows(2)), *(shim.request(rows(1)) for shim in shims[1:])]
        s3_server.delay_s = 0.05
        s3_server.gather("PUT", num_tasks)

        replies = list(tasks.map(lambda call: engine.request("commit", **call), calls))

    assert [reply for reply in replies if "ok" not in reply] == []
    assert s3_server.most_at_once["PUT"] == num_tasks


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_files_of_a_load_come_side_by_side(make_shim, s3_server, tmp_path, backend):
    """Catches a restore that fetches one file after another."""
    shim = make_shim()
    shim.backend = backend
    engine = Engine(shim.scratch)
    commit_all(engine, shim, *range(6))
    engine.settle()
    fresh = Engine(f"{tmp_path}/fresh")
    # The newest file, asked first, names the others.
    s3_server.gather("GET", 4, after=1)

    loaded = fresh.call("load", **shim.load())

    assert loaded["num_keys"] == 6
    assert s3_server.most_at_once["GET"] == 4


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_engine_killed_before_the_end_of_an_upload(make_shim, s3_server, bucket):
    """Catches a version of which a part is seen, or that cannot be committed once more."""
    shim = make_shim()
    with EngineProcess(shim.scratch) as engine:
        commit_all(engine, shim, 1)
        keys = s3_server.keys(bucket)
        large = [Row(n % G, 0, PUT, b"%08d" % n, os.urandom(1 << 20)) for n in range(2, 20)]
        call = shim.request(large)
        s3_server.fail("COMPLETE", engine.process.kill)
        with pytest.raises((EngineGoneError, OSError)):
            engine.call("commit", **call)
        engine.process.wait()

    assert s3_server.keys(bucket) == keys
    assert s3_server.num_uploads(bucket) == 1
    with EngineProcess(shim.scratch) as engine:
        assert engine.call("load", **shim.load())["num_keys"] == 1
        shim.committed(call, engine.call("commit", **call))
        assert engine.call("load", **shim.load())["num_keys"] == 19
    assert len(s3_server.keys(bucket)) == len(keys) + 1
    # What the rule of docs/storage.md removes.
    assert s3_server.num_uploads(bucket) == 1


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"s3_access_key": WRONG_KEY, "s3_secret_key": SECRET}, "permission-denied"),
        pytest.param(
            {"checkpoint_storage": "s3://no-such-bucket/a"},
            "directory-gone",
            marks=pytest.mark.skipif(IS_CHOSEN, reason="SeaweedFS makes the bucket"),
        ),
        ({"s3_endpoint": "http://127.0.0.1:9", "s3_max_attempts": 1}, "storage"),
        ({"s3_access_key": "half", "s3_secret_key": ""}, "invalid-option"),
        ({"s3_endpoint": "no url"}, "invalid-option"),
        ({"checkpoint_storage": "s3:/a"}, "unsupported-scheme"),
        ({"checkpoint_storage": "relative/path"}, "unsupported-scheme"),
    ],
)
def test_wrong_settings_bind_a_checkpoint_to_nothing(
    make_shim, s3_server, tmp_path, options, kind, caplog
):
    """Catches a checkpoint that a typing error makes useless, retries without hope, and secrets."""
    shim = make_shim(**options)
    engine = Engine(shim.scratch)

    reply = engine.request("commit", **shim.request(rows(1)))

    assert error_of(reply)["kind"] == kind
    assert s3_server.requests.total() <= 1
    assert SECRET not in json.dumps(reply) + caplog.text
    assert not (tmp_path / "ck/statestore.json").exists()
    commit_all(engine, make_shim("2"), 1)


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize("fault", ["throttled", "reply-lost"])
def test_commit_survives_a_fault_of_the_server(make_shim, s3_server, fault):
    """Catches a batch that fails, or is there twice, for one bad reply."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    s3_server.fail("PUT", fault, 2)

    reply = shim.commit(engine, rows(2))

    assert reply["requests"]["put"] == 3
    assert engine.call("load", **shim.load())["num_keys"] == 2


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_server_that_does_not_answer_is_an_error(make_shim, s3_server):
    """Catches a call that waits without end, and a commit that cannot be repeated after it."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    call = shim.request(rows(2))
    impatient = {**call["options"], "s3_timeout_ms": 100, "s3_max_attempts": 1}
    s3_server.delay_s = 1.0

    error = error_of(engine.request("commit", **{**call, "options": impatient}))
    s3_server.delay_s = 0.0
    shim.committed(call, engine.call("commit", **call))

    assert (error["class"], error["kind"]) == ("StorageError", "storage")
    assert engine.call("load", **shim.load())["num_keys"] == 2


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_load_survives_truncated_bodies(make_shim, s3_server):
    """Catches half a file handed to the shim."""
    shim = make_shim()
    commit_all(Engine(shim.scratch), shim, 1, 2)
    s3_server.fail("GET", "truncated", 2)

    assert Engine(shim.scratch).call("load", **shim.load())["num_keys"] == 2


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_throttling_without_end_is_an_error(make_shim, s3_server):
    """Catches a call that never comes back, and a commit that cannot be repeated after it."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    s3_server.fail("PUT", "throttled", 3)
    call = shim.request(rows(2))

    error = error_of(engine.request("commit", **call))
    shim.committed(call, engine.call("commit", **call))

    assert (error["class"], error["fields"]["code"]) == ("StorageError", "SlowDown")
    assert engine.call("load", **shim.load())["num_keys"] == 2


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_files_of_a_load_stay_until_they_are_read(make_shim, tmp_path):
    """Catches a cache that deletes what the shim has not opened yet, or that only grows."""
    shims = [make_shim(fetch_cache_bytes=0) for _ in range(4)]
    engine = Engine(shims[0].scratch)
    for partition, shim in enumerate(shims):
        shim.store["partition"] = partition
        commit_all(engine, shim, 1, 2)

    loaded = [engine.call("load", **shim.load()) for shim in shims]
    paths = [Path(file["path"]) for reply in loaded for file in reply["files"]]
    assert len(paths) == 8
    assert all(path.exists() for path in paths)

    for shim in shims[:2]:
        shim.commit(engine, rows(3))
    for shim in shims[2:]:
        engine.call("close", store=shim.store, options=shim.options)
    loaded = engine.call("load", **shims[0].load())
    cached = set(paths[0].parent.iterdir())
    assert {Path(file["path"]) for file in loaded["files"]} == cached


def test_reader_of_a_copy_does_not_bring_its_commit_log(make_shim, tmp_path):
    """Catches a committed version that a late attempt replaces, since a copy's log has it not."""
    shim = make_shim()
    engine = Engine(shim.scratch)
    commit_all(engine, shim, 1)
    first = shim.parent
    shim.commit(engine, rows(2))
    shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    (tmp_path / "ck/commits").mkdir()
    for batch in (0, 1):
        (tmp_path / "ck/commits" / str(batch)).write_text("v1\n{}")

    another = Engine(shim.scratch)
    reader = make_shim("", root=f"file:{tmp_path}/copy/state")
    found = another.call("load", **reader.load(2, num_partitions=None))
    late = make_shim("2")
    late.parent, late.num_keys = first, 1
    attempt = {**late.request(rows(9)), "checkpoint_id": "f" * 32}
    error = error_of(another.request("commit", **attempt))

    assert found["num_keys"] == 2
    assert error["class"] == "FencedError"
