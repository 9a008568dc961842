"""Who may change a checkpoint: leases of this and other machines, alive, dead and in between."""

import json
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.checkpoint.lease import Holder, Lease, Leases
from statestore.checkpoint.placement import Placement, require_own_state
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import CorruptionError, IncompatibleError, InUseError, StorageError
from statestore.core.ids import RandomIds
from statestore.core.process import Process, find_process
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.io.s3 import S3FileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import (
    exclusive_directory,
    exclusive_use,
    require_not_in_use,
    same_batches,
)
from statestore.operations.step import step
from tests.checkpoints import files_below, write_checkpoint
from tests.fault_io import Fault, FaultFileIO
from tests.seams import place_of

INTERVAL_MS = 10_000
ELSEWHERE = Process("elsewhere", "boot namespace", 1, 1)
OFFSETS = (
    'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2",'
    '"spark.sql.streaming.stateStore.providerClass":"io.statestore.FileSystemStateStoreProvider"}}'
    "\n{}"
)


class Storage:
    """Storage that dates files by a clock of its own, and lets others act while time passes."""

    def __init__(self, directory, apart_ms):
        self.there = ManualClock(1_000_000_000 + apart_ms)
        self.io = MemoryFileIO(str(directory), self.there)
        self.elapsed = 0.0
        self.deeds = []

    def later(self, after_ms, deed):
        """Do something when so many milliseconds have passed from now."""
        self.deeds.append((self.elapsed + after_ms, deed))

    def now_ms(self):
        return 1_000_000_000 + int(self.elapsed)

    def elapsed_ms(self):
        return self.elapsed

    def sleep_ms(self, duration_ms):
        self.elapsed += duration_ms
        self.there.sleep_ms(duration_ms)
        for deed in [deed for at, deed in self.deeds if at <= self.elapsed]:
            deed()
        self.deeds = [(at, deed) for at, deed in self.deeds if at > self.elapsed]


@pytest.fixture(params=[0, -3_600_000, 3_600_000], ids=["same-clock", "behind", "ahead"])
def storage(request, tmp_path):
    """Storage whose clock is that of this machine, or an hour apart."""
    return Storage(tmp_path, request.param)


def held(storage, process=ELSEWHERE, **holder):
    """A lease somebody took."""
    named = Holder(process, **(holder or {"application": "app-1", "run": "run-1"}))
    ids = RandomIds().new_id()
    lease = Lease(storage.io, "/ck/state", ids, named, INTERVAL_MS, storage)
    lease.take()
    return lease


def enter(storage):
    """Begin and end an operation; return how long that took and what is there meanwhile."""
    began_ms = storage.elapsed
    with exclusive_directory(storage.io, "/ck", "rescale", clock=storage) as use:
        use.require_held()
        names = list(Leases(storage.io, "/ck/state").list())
    return storage.elapsed - began_ms, names


def leases(storage):
    """Names of all leases."""
    return list(Leases(storage.io, "/ck/state").list())


def test_operation_begins_at_once_when_nobody_is_there(storage):
    """Catches an operation that waits for nobody, or whose lease nobody sees."""
    waited_ms, names = enter(storage)

    assert waited_ms == 0
    assert [name.split("-")[0] for name in names] == ["operation"]
    assert leases(storage) == []


def test_lease_renewed_elsewhere_is_in_use(storage):
    """Catches clocks of machines being compared: only a renewal that was seen tells."""
    query = held(storage)
    for number in range(1, 9):
        storage.later(number * 3_000, query.renew)

    with pytest.raises(InUseError) as caught:
        enter(storage)

    fields = caught.value.fields
    assert caught.value.kind == "checkpoint-in-use"
    assert (fields["host"], fields["pid"], fields["run"]) == ("elsewhere", 1, "run-1")
    assert fields["application"] == "app-1"
    assert "renewed" in fields["known_by"]
    assert leases(storage) == [query.name]


def test_lease_elsewhere_expires_when_it_is_not_renewed(storage):
    """Catches an executor that was killed on another machine and locks its checkpoint for ever."""
    query = held(storage)
    storage.sleep_ms(7_000)

    waited_ms, _ = enter(storage)

    assert 3 * INTERVAL_MS - 7_000 < waited_ms < 3 * INTERVAL_MS
    assert query.name not in leases(storage)


def test_lease_that_expired_long_ago_is_not_waited_for(storage):
    """Catches a wait for what a look at the storage's own dates tells."""
    held(storage)
    storage.sleep_ms(4 * INTERVAL_MS)

    assert enter(storage)[0] == 0
    assert leases(storage) == []


@pytest.mark.parametrize("process", [ELSEWHERE, find_process()], ids=["elsewhere", "here"])
def test_query_that_stops_is_waited_for(storage, process):
    """Catches an operation right after query.stop() that is refused."""
    query = held(storage, process)
    storage.later(1_500, query.renew)
    storage.later(2_000, query.drop)

    assert 2_000 <= enter(storage)[0] <= 3_000


def test_living_process_of_this_machine_is_in_use_soon(storage):
    """Catches a wait for a renewal where the process itself can be looked at."""
    held(storage, find_process())

    with pytest.raises(InUseError, match="alive on this machine"):
        enter(storage)

    assert storage.elapsed < INTERVAL_MS


@pytest.mark.parametrize("is_renewed", [True, False])
def test_living_process_has_the_time_to_renew_its_lease_when_the_clock_was_set(storage, is_renewed):
    """Catches an operation beside a query, since the clock was set between their leases.

    And one that waits for ever for a lease that was not dropped, of a process that goes on.
    """
    query = held(storage, find_process())
    storage.there.advance(60_000)
    if is_renewed:
        storage.later(3_000, query.renew)
        with pytest.raises(InUseError, match="alive on this machine"):
            enter(storage)
    else:
        assert INTERVAL_MS <= enter(storage)[0] <= INTERVAL_MS + 3_000


def test_process_that_is_gone_is_waited_for_as_long_as_its_engines_may_write(storage):
    """Catches a killed driver that locks its checkpoint for half a minute, or whose engines are
    overlooked, and an operation taken for a query, which has none."""
    own = find_process()
    held(storage, replace(own, started=own.started - 1))
    assert 1_000 <= enter(storage)[0] <= 1_500
    assert leases(storage) == []

    held(storage, replace(own, started=own.started - 1), operation="rescale")
    assert enter(storage)[0] == 0


def test_lease_that_one_listing_misses_is_in_use(storage):
    """Catches a query that is overlooked while its lease is replaced in two steps."""
    query = held(storage)
    path = query.leases.path(query.name)
    for number in range(1, 9):
        # Gone when the next listing comes, and there again at the one after it.
        storage.later(number * 1_500, lambda: storage.io.delete(path))
        storage.later(number * 1_500 + 250, query.renew)

    with pytest.raises(InUseError, match="renewed"):
        enter(storage)


def test_lease_that_is_being_replaced_at_first_is_in_use(storage):
    """Catches a query that the first listing overlooks."""
    query = held(storage)
    path = query.leases.path(query.name)
    write = storage.io.write

    def write_later(*arguments, **options):
        # The renewal's delete comes between the two listings, its rename after them.
        write(*arguments, **options)
        if "operation-" in arguments[0]:
            storage.io.delete(path)
            storage.later(250, query.renew)

    storage.io.write = write_later
    for number in range(1, 5):
        storage.later(number * 3_000, query.renew)

    with pytest.raises(InUseError, match="renewed"):
        enter(storage)


def test_operations_keep_each_other_away(storage):
    """Catches two operations that change a checkpoint at the same time."""
    with exclusive_directory(storage.io, "/ck", "expire", clock=storage):
        before = leases(storage)
        with pytest.raises(InUseError) as caught:
            enter(storage)
        assert leases(storage) == before

    assert caught.value.kind == "checkpoint-under-operation"
    assert caught.value.fields["operation"] == "expire"
    assert enter(storage)[0] == 0


def test_look_without_a_lease(storage):
    """Catches a look that writes, and one that goes by a clock that may be wrong."""
    for log, text in (("offsets", OFFSETS), ("commits", "v1\n{}")):
        storage.io.write(f"/ck/{log}/0", text.encode(), sync=False, overwrite=False)
    query = held(storage)
    with open_checkpoint(place_of("/ck", io=storage.io, clock=storage)) as checkpoint:
        storage.later(9_000, query.renew)
        with pytest.raises(InUseError, match="run-1"):
            require_not_in_use(checkpoint)
        began_ms = storage.elapsed
        require_not_in_use(checkpoint)

    assert storage.elapsed - began_ms < 4 * INTERVAL_MS
    assert leases(storage) == [query.name]


def test_operation_knows_when_it_lost_its_lease(storage):
    """Catches an operation that goes on after its process was frozen for minutes."""
    with exclusive_directory(storage.io, "/ck", "rescale", clock=storage) as use:
        storage.sleep_ms(4 * INTERVAL_MS)
        with pytest.raises(InUseError, match="expired"):
            use.require_held()


def test_damaged_lease_is_named(storage):
    """Catches a stack trace, or a query that is overlooked."""
    name = f"query-{1:032x}.json"
    storage.io.write(Leases(storage.io, "/ck/state").path(name), b"{}", sync=False, overwrite=True)

    with pytest.raises(CorruptionError, match=name):
        enter(storage)


def test_failed_operation_gives_the_checkpoint_free(storage):
    """Catches a lease that outlives the error of its operation."""
    with suppress(ZeroDivisionError), exclusive_directory(storage.io, "/ck", "x", clock=storage):
        _ = 1 // 0

    assert leases(storage) == []


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("happens", [False, True], ids=["fails", "loses-its-reply"])
def test_operation_does_not_begin_when_storage_fails(tmp_path, index, happens):
    """Catches an operation that begins though it could not tell who is there."""
    storage = Storage(tmp_path, 0)
    held(storage, replace(find_process(), started=1))
    storage.io = FaultFileIO(storage.io)
    storage.io.arm(Fault(index, happens))

    with pytest.raises(StorageError):
        enter(storage)


@pytest.fixture(params=["local", "s3"])
def real(request, tmp_path):
    """A storage of users with the checkpoint of a query, and its directory there."""
    if request.param == "local":
        io, path = LocalFileIO(), f"{tmp_path}/ck"
    else:
        server = request.getfixturevalue("s3_server")
        io = S3FileIO(str(tmp_path), server.settings())
        path = f"/{request.getfixturevalue('bucket')}/ck"
    for log, text in (("offsets", OFFSETS), ("commits", "v1\n{}")):
        io.make_directory(f"{path}/{log}")
        io.write(f"{path}/{log}/0", text.encode(), sync=False, overwrite=False)
    return io, path


def test_operation_on_a_real_storage(real):
    """Catches what only a real storage does: directories, dates, renewals by a thread."""
    io, path = real
    leases_of = Leases(io, f"{path}/state")
    writes = FaultFileIO(io)
    dead = replace(find_process(), started=1)
    Lease(io, f"{path}/state", f"{1:032x}", Holder(dead, run="1"), 10_000, SystemClock()).take()

    with exclusive_directory(writes, path, "rescale", interval_ms=1_000) as use:
        (name,) = leases_of.list()
        assert leases_of.read(name).holder.operation == "rescale"
        renewed = threading.Event()
        while not renewed.wait(0.05):
            if sum(call.startswith("write") for call in writes.trace) > 2:
                renewed.set()
        use.require_held()

    assert leases_of.list() == {}


def test_checkpoint_that_moved_on_is_refused(real):
    """Catches an operation that is planned on what a query has changed meanwhile."""
    io, path = real
    with open_checkpoint(place_of(path, io=io)) as checkpoint:
        with exclusive_use(checkpoint, "rescale"):
            require_same = same_batches(checkpoint)
            require_same()

        io.write(f"{path}/offsets/1", OFFSETS.encode(), sync=False, overwrite=False)
        with pytest.raises(InUseError, match=r"a query or an operation has written.*offsets"):
            require_same()
        with pytest.raises(InUseError, match="offsets"), exclusive_use(checkpoint, "rescale"):
            pytest.fail("it must not begin")

    assert Leases(io, f"{path}/state").list() == {}


def test_lease_is_what_the_format_says(tmp_path):
    """Catches a file that docs/format.md does not describe."""
    holder = Holder(find_process(), application="a", executor="driver", run="r")
    lease = Lease(LocalFileIO(), f"{tmp_path}/state", "0" * 32, holder, 5_000, SystemClock())

    lease.take()

    fields = json.loads(Path(lease.leases.path(lease.name)).read_text())
    assert set(fields) == {
        "format_version", "writer", "holder", "interval_ms", "lasts_ms", "renewed_ms",
    }  # fmt: skip
    assert set(fields["holder"]) == {"process", "application", "executor", "run", "operation"}
    assert set(fields["holder"]["process"]) == {"host", "machine", "pid", "started"}
    assert fields["lasts_ms"] == 3 * fields["interval_ms"]
    assert lease.name == f"query-{'0' * 32}.json"


CHANGES = {
    "rescale": lambda checkpoint: checkpoint.rescale(4),
    "edit": lambda checkpoint: checkpoint.edit("default", delete="number < 9"),
    "expire": lambda checkpoint: checkpoint.expire(keep=2),
    "compact": lambda checkpoint: checkpoint.compact(),
    "forget": lambda checkpoint: checkpoint.forget("word = 'word-3'"),
    "repair": lambda checkpoint: checkpoint.repair(),
}


@pytest.fixture
def elsewhere(tmp_path):
    """A checkpoint whose state lies on another storage."""
    rows = {(f"word-{number}", number): (number, "note") for number in range(30)}
    made = write_checkpoint(tmp_path / "made", [{"default": rows}] * 4, checkpoint_format=2)
    options = {"checkpoint_storage": str(tmp_path / "storage")}
    Checkpoint(made, storage_options=options).restore(tmp_path / "original")
    return tmp_path / "original"


def test_operation_waits_for_one_that_ends_and_then_is_done(tmp_path):
    """Catches one that is refused for what the other has written into the history."""
    path = write_checkpoint(tmp_path / "ck", [{"default": {("a", 1): (1, "")}}] * 2)
    holds = threading.Event()

    def compact():
        with open_checkpoint(place_of(str(path))) as checkpoint, step(checkpoint, "compact") as one:
            one.before_change()
            holds.set()
            time.sleep(0.5)

    other = threading.Thread(target=compact)
    other.start()
    assert holds.wait(10)
    Checkpoint(path).compact()
    other.join()

    assert Checkpoint(path).history()[0].operation == "compact"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_copy_of_a_checkpoint_does_not_change_the_state_of_the_original(
    tmp_path, elsewhere, change
):
    """Catches an operation on a copy, or on a made-up checkpoint, that takes other rows."""
    shutil.copytree(elsewhere, tmp_path / "copy", symlinks=True)
    (tmp_path / "other name").symlink_to(elsewhere)
    files = files_below(tmp_path / "storage")

    with pytest.raises(IncompatibleError, match=str(elsewhere)) as caught:
        change(Checkpoint(tmp_path / "copy"))
    assert caught.value.kind == "other-checkpoint"
    assert files_below(tmp_path / "storage") == files
    assert Checkpoint(elsewhere).verify(deep=True).ok
    assert not list((tmp_path / "copy" / "statestore-leases").iterdir())

    change(Checkpoint(tmp_path / "other name"))
    assert Checkpoint(elsewhere).verify(deep=True).ok


def test_store_of_a_copy_does_not_commit_into_the_state_of_the_original(tmp_path, elsewhere):
    """Catches a commit of other rows under the name of a file that the original is made of."""

    def commit(path):
        with Checkpoint(path).open_store() as store:
            batch = store.begin()
            batch.put(b"key", b"value")
            batch.commit()

    shutil.copytree(elsewhere, tmp_path / "copy", symlinks=True)
    (tmp_path / "other name").symlink_to(elsewhere)
    files = files_below(tmp_path / "storage")

    with pytest.raises(IncompatibleError, match=str(elsewhere)) as caught:
        commit(tmp_path / "copy")
    assert caught.value.kind == "other-checkpoint"
    assert files_below(tmp_path / "storage") == files

    commit(tmp_path / "other name")
    assert len(files_below(tmp_path / "storage")) == len(files) + 1


def test_checkpoint_that_was_moved_is_changed_when_its_state_says_where_it_is(tmp_path, elsewhere):
    """Catches a checkpoint that no operation takes any more."""
    elsewhere.rename(tmp_path / "moved")
    (owner,) = (tmp_path / "storage").glob("*/checkpoint.json")

    with pytest.raises(IncompatibleError) as caught:
        Checkpoint(tmp_path / "moved").rescale(4)
    assert f"write {tmp_path}/moved/state as `checkpoint` into {owner}" in caught.value.to_fix
    owner.write_text("{")
    with pytest.raises(CorruptionError):
        Checkpoint(tmp_path / "moved").rescale(4)
    owner.write_text(json.dumps({"checkpoint": f"{tmp_path}/moved/state"}))
    Checkpoint(tmp_path / "moved").rescale(4)
    assert Checkpoint(tmp_path / "moved").verify(deep=True).ok


def test_checkpoint_under_another_mount_is_told_to_leave_the_file_alone(tmp_path, elsewhere):
    """Catches advice whose doing stops the query, to which the directory has its first path."""
    elsewhere.rename(tmp_path / "mounted")

    def advice():
        with pytest.raises(IncompatibleError) as caught:
            Checkpoint(tmp_path / "mounted").rescale(4)
        return caught.value.to_fix

    assert advice().startswith(
        f"if this is the same directory under another mount, do it where the directory is "
        f"{elsewhere}, or mount it there, and write no file"
    )
    shutil.copytree(tmp_path / "mounted", elsewhere, symlinks=True)
    assert advice().startswith("copy checkpoints by `statestore branch`")


@pytest.mark.parametrize(
    ("kind", "found"), [("permission-denied", StorageError), ("directory-gone", IncompatibleError)]
)
def test_checkpoint_that_was_moved_is_told_what_to_do_where_its_old_place_fails(
    tmp_path, kind, found
):
    """Catches an error about a storage that is no more, which no one can mend."""
    io = MemoryFileIO(str(tmp_path))
    io.write("/s/checkpoint.json", b'{"checkpoint":"s3://old/state"}', sync=True, overwrite=False)

    def ask(_uri):
        raise StorageError("cannot list", kind=kind, to_fix="give rights")

    placement = Placement("s3://all", "1d")
    with pytest.raises(found, match="belongs_to='s3://old/state'") as caught:
        require_own_state("s3://new/state", placement, io, "/s", ask)
    file = "s3://all/1d/checkpoint.json"
    assert f"write s3://new/state as `checkpoint` into {file}" in caught.value.to_fix
    assert "write NEW as `storage` into s3://new/statestore.json" in caught.value.to_fix


def test_checkpoint_whose_bucket_is_no_more_is_told_where_its_place_is_written(tmp_path):
    """Catches advice to begin anew, where the state was moved to another bucket."""

    class NoBucket(MemoryFileIO):
        def read_tail(self, path, num_bytes):
            raise StorageError("no bucket", kind="directory-gone", to_fix="create it", path=path)

    with pytest.raises(StorageError, match=r"as `storage` into s3://new/statestore\.json"):
        require_own_state(
            "s3://new/state", Placement("s3://all", "1d"), NoBucket(str(tmp_path)), "/s", bool
        )


def test_checkpoint_that_was_moved_with_its_state_does_what_the_message_says(tmp_path, elsewhere):
    """Catches advice by which a checkpoint takes the state of the place that it was moved from."""
    moved = tmp_path / "moved"
    shutil.copytree(elsewhere, moved)
    shutil.copytree(tmp_path / "storage", tmp_path / "new")
    (owner,) = (tmp_path / "new").glob("*/checkpoint.json")
    files = files_below(tmp_path / "storage")

    with pytest.raises(IncompatibleError) as caught:
        Checkpoint(moved).rescale(4)
    binding = f"{moved}/statestore.json"
    assert f"if the state was moved too, to NEW/{owner.parent.name}" in caught.value.to_fix
    assert f"first write NEW as `storage` into {binding}" in caught.value.to_fix
    said = json.loads(Path(binding).read_text())
    Path(binding).write_text(json.dumps(said | {"storage": str(tmp_path / "new")}))
    owner.write_text(json.dumps({"checkpoint": f"{moved}/state"}))
    Checkpoint(moved).rescale(4)

    assert Checkpoint(moved).verify(deep=True).ok
    assert files_below(tmp_path / "storage") == files


class Suspended(Storage):
    """A machine whose monotonic clock stands still while it is suspended."""

    def elapsed_ms(self):
        return 0.0


def test_operation_knows_that_its_machine_was_suspended(tmp_path):
    """Catches an operation that goes on after an hour in which a query may have begun."""
    storage = Suspended(tmp_path, 0)
    with exclusive_directory(storage.io, "/ck", "rescale", clock=storage) as use:
        use.require_held()
        storage.sleep_ms(3_600_000)
        with pytest.raises(InUseError, match="expired"):
            use.require_held()
