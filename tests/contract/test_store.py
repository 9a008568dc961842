"""What every state store keeps to, whatever its backend and storage."""

from contextlib import suppress

import pytest

from statestore.checkpoint.trailers import read_delta_trailer
from statestore.codec import arrow_batch, merge
from statestore.codec.rows import PUT, Row, batch_from_rows
from statestore.core.errors import (
    FencedError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
    StoreClosedError,
)
from statestore.store.table import MAX_RUNS, ArrowRun, Table, ViewRun


def commit(store, puts=(), deletes=(), merges=()):
    """Commit one batch and return its version."""
    batch = store.begin()
    for key, value in dict(puts).items():
        batch.put(key, value)
    for key in deletes:
        batch.delete(key)
    for key, value in dict(merges).items():
        batch.merge(key, value)
    return batch.commit()


def commit_with_snapshots(store, numbers):
    """Commit versions, one a number, and take a snapshot of every third."""
    for number in numbers:
        commit(store, {b"k%d" % (number % 4): b"%d" % number})
        if number % 3 == 0:
            store.snapshot()


class TestReadsAndWrites:
    """Reads see exactly one version; a batch sees its own writes."""

    def test_empty_store_has_no_rows(self, bench):
        """Catches a first batch that fails or writes."""
        store = bench.open()

        assert (store.version, len(store), list(store.scan())) == (0, 0, [])
        assert store.get(b"a") is None
        assert bench.file_names() == []

    def test_committed_rows_are_read_back_by_another_handle(self, any_format):
        """Catches rows that live only in memory."""
        store = any_format.open()
        assert commit(store, {b"a": b"1", b"b": b"", b"": b"empty key"}) == 1

        other = any_format.open()

        assert other.version == 1
        assert list(other.scan()) == [(b"", b"empty key"), (b"a", b"1"), (b"b", b"")]
        assert (other.get(b"b"), other.get(b"c"), len(other)) == (b"", None, 3)

    def test_rows_are_found_among_a_bounded_number_of_runs(self, bench):
        """Catches a store that is slower with every commit, and a state on disk kept in memory."""
        store, model = bench.open(), {}
        for number in range(MAX_RUNS + 8):
            batch = store.begin()
            batch.put(b"k%d" % (number % 5), b"%d" % number)
            batch.merge(b"all", b"%d," % number)
            batch.delete(b"k%d" % (number % 3))
            batch.commit()
            model[b"k%d" % (number % 5)] = b"%d" % number
            model[b"all"] = model.get(b"all", b"") + b"%d," % number
            model.pop(b"k%d" % (number % 3), None)

        assert len(store.table.runs) <= 9
        is_on_disk = any(isinstance(run, ViewRun) for run in store.table.runs)
        assert is_on_disk == (bench.backend == "rocksdb")
        assert dict(store.scan()) == model
        assert [store.get(b"k%d" % n) for n in range(5)] == [
            model.get(b"k%d" % n) for n in range(5)
        ]
        assert len(store) == len(model)

    def test_batch_sees_its_writes_and_the_store_does_not(self, bench):
        """Catches uncommitted rows leaking to readers."""
        store = bench.open()
        commit(store, {b"a": b"1", b"b": b"2"})

        batch = store.begin()
        batch.put(b"a", b"3")
        batch.delete(b"b")
        batch.merge(b"c", b"x")
        batch.merge(b"c", b"y")

        assert list(batch.scan()) == [(b"a", b"3"), (b"c", b"xy")]
        assert (batch.get(b"a"), batch.get(b"b"), batch.get(b"c")) == (b"3", None, b"xy")
        assert list(store.scan()) == [(b"a", b"1"), (b"b", b"2")]

    def test_merge_appends_in_order_across_versions(self, bench):
        """Catches appended values lost or turned round."""
        store = bench.open()
        commit(store, merges={b"k": b"1"})
        commit(store, merges={b"k": b"2"})
        commit(store, deletes=[b"k"])
        commit(store, merges={b"k": b"3"})
        commit(store, merges={b"k": b"4"})

        assert bench.open().get(b"k") == b"34"
        assert bench.open(version=2).get(b"k") == b"12"

    def test_merge_copies_no_value_that_was_appended_before(self, bench):
        """Catches a batch that takes the square of the appends to one key."""

        class Piece(bytes):
            def __radd__(self, before):
                joined.append(before)
                return bytes(before) + bytes(self)

        joined: list[bytes] = []
        batch = bench.open().begin()
        batch.put(b"a", b"0")
        for number in range(1, 200):
            batch.merge(b"a", Piece(b",%d" % number))
            batch.merge(b"b", Piece(b",%d" % number))
        assert joined == []
        pieces = b"".join(b",%d" % number for number in range(1, 200))
        assert (batch.get(b"a"), batch.get(b"a")) == (b"0" + pieces, b"0" + pieces)
        batch.merge(b"a", b".")
        batch.merge(b"c", b"gone")
        batch.merge(b"c", b"gone")
        batch.put(b"c", b"1")
        batch.merge(b"c", b"2")
        batch.merge(b"d", b"gone")
        batch.merge(b"d", b"gone")
        batch.delete(b"d")
        rows = [(b"a", b"0" + pieces + b"."), (b"b", pieces), (b"c", b"12")]
        assert list(batch.scan()) == rows
        batch.commit()

        assert list(bench.open().scan()) == rows

    def test_delete_then_merge_in_one_batch_forgets_the_old_value(self, bench):
        """Catches a merge reaching over a delete of the same batch."""
        store = bench.open()
        commit(store, {b"k": b"old"})
        batch = store.begin()
        batch.delete(b"k")
        batch.merge(b"k", b"new")
        batch.commit()

        assert bench.open().get(b"k") == b"new"

    def test_scan_by_prefix_and_key_group(self, bench):
        """Catches a scan that misses or adds rows at the edges of a prefix."""
        store = bench.open()
        batch = store.begin()
        for number, key in enumerate([b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff\xff"]):
            batch.put(key, b"", key_group=number % 2)
        batch.commit()
        commit(store, {b"a\xff\x01": b"new"}, deletes=[b"a\x00"])

        assert [key for key, _ in store.scan(b"a")] == [b"a", b"a\xff", b"a\xff\x01", b"a\xff\xff"]
        assert [key for key, _ in store.scan(b"a\xff")] == [b"a\xff", b"a\xff\x01", b"a\xff\xff"]
        assert [key for key, _ in store.scan(b"\xff")] == [b"\xff\xff"]
        assert [key for key, _ in store.scan(key_group=1)] == [b"a\xff\xff", b"\xff\xff"]

    @pytest.mark.parametrize("method", ["put", "merge"])
    @pytest.mark.parametrize(("key", "value"), [(b"k", None), (b"k", "v"), ("k", b"v")])
    def test_what_is_not_bytes_is_refused(self, bench, method, key, value):
        """Catches a key that goes when it is put, and a store that no snapshot can be made of."""
        batch = bench.open().begin()

        with pytest.raises(InvalidArgumentError, match=r"not bytes.*(value=|key=)"):
            getattr(batch, method)(key, value)
        with pytest.raises(InvalidArgumentError, match="not bytes"):
            batch.delete("k")

        assert batch.rows == {}

    def test_column_families_are_apart(self, bench):
        """Catches keys of two column families overwriting each other."""
        store = bench.open()
        batch = store.begin()
        batch.create_column_family("timers", multi_values=True)
        batch.put(b"k", b"default")
        batch.put(b"k", b"timer", column_family="timers")
        batch.commit()

        other = bench.open()
        assert other.get(b"k") == b"default"
        assert list(other.scan(column_family="timers")) == [(b"k", b"timer")]
        assert [family.name for family in other.column_families] == ["default", "timers"]
        with pytest.raises(InvalidArgumentError, match="known='default, timers'"):
            other.get(b"k", column_family="timer")


class TestVersions:
    """Every retained version stays readable; commits are all or nothing."""

    def test_every_version_is_loadable(self, any_format):
        """Catches a later commit changing an earlier version."""
        store = any_format.open(snapshot_max_chain_length=1000)
        versions, rows = {}, {}
        for number in range(1, 8):
            puts = {b"n": b"%d" % number, b"k%d" % number: b""}
            commit(store, puts, [b"k%d" % (number - 3)])
            rows = {key: value for key, value in rows.items() if key != b"k%d" % (number - 3)}
            versions[number] = rows = rows | puts

        for number, expected in versions.items():
            old = any_format.open(version=number)
            assert old.get(b"n") == b"%d" % number
            assert dict(old.scan()) == expected
            assert len(old) == len(expected)

    def test_aborted_batch_leaves_nothing(self, bench):
        """Catches an abort that writes."""
        store = bench.open()
        batch = store.begin()
        batch.put(b"a", b"1")
        batch.abort()
        batch.abort()

        assert (len(bench.open()), bench.file_names()) == (0, [])
        with pytest.raises(StoreClosedError, match="aborted: batch_version=0"):
            batch.put(b"a", b"1")
        with pytest.raises(StoreClosedError):
            batch.commit()

    def test_batch_without_writes_is_a_version(self, bench):
        """Catches a batch without data breaking the chain of versions."""
        store = bench.open()
        assert [commit(store), commit(store, {b"a": b"1"}), commit(store)] == [1, 2, 3]

        assert list(bench.open().scan()) == [(b"a", b"1")]

    def test_old_version_can_be_taken_up_again(self, any_format):
        """Catches a retried batch that sees the rows of its first try."""
        store = any_format.open()
        commit(store, {b"a": b"1"})
        commit(store, {b"a": b"2", b"lost": b""})

        store.load(1)
        commit(store, {b"a": b"3"})

        again = any_format.open(version=2, checkpoint_id=store.checkpoint_id)
        assert list(again.scan()) == [(b"a", b"3")]

    def test_version_that_is_not_there_names_what_is(self, bench):
        """Catches an error that leaves the user guessing."""
        commit(bench.open(), {b"a": b"1"})

        with pytest.raises(NotFoundError, match="oldest_version=1, newest_version=1") as caught:
            bench.open(version=5)

        assert "minBatchesToRetain" in caught.value.to_fix

    def test_batch_of_a_store_that_moved_on_is_refused(self, bench):
        """Catches two batches that both think they follow the same version."""
        store = bench.open()
        first, second = store.begin(), store.begin()
        first.put(b"a", b"1")
        first.commit()

        with pytest.raises(StoreClosedError, match="moved on"):
            second.commit()

    def test_batch_of_a_store_at_another_attempt_is_refused(self, bench):
        """Catches rows that are merged on those of an attempt that they were not read from."""
        bench.checkpoint_format = 2
        one, two = bench.open(), bench.open()
        commit(one, {b"a": b"1"})
        commit(two, {b"a": b"2"})
        batch = one.begin()
        batch.merge(b"a", b"3")
        one.load(1, two.checkpoint_id)

        with pytest.raises(StoreClosedError, match="moved on"):
            batch.commit()

        assert (one.version, one.get(b"a")) == (1, b"2")

    def test_closed_store_refuses_work(self, bench):
        """Catches use after close."""
        store = bench.open()
        store.close()
        store.close()

        for use in (store.begin, store.scan, store.snapshot, lambda: store.get(b"a")):
            with pytest.raises(StoreClosedError):
                use()


class TestAttempts:
    """Two attempts of one version: one wins, the other never makes wrong rows."""

    def test_v1_replaced_parent_fences_the_stale_attempt(self, bench):
        """Catches a zombie building on rows that are no longer there."""
        stale, winner = bench.open(), bench.open()
        commit(stale, {b"a": b"zombie"})
        commit(winner, {b"a": b"winner"})

        with pytest.raises(FencedError) as caught:
            commit(stale, {b"b": b"2"})

        assert caught.value.kind == "lineage-broken"
        assert list(bench.open().scan()) == [(b"a", b"winner")]

    def test_v1_late_overwrite_with_other_rows_is_a_named_error(self, bench):
        """Catches a zombie's file mixed into a newer version."""
        zombie, winner = bench.open(), bench.open()
        commit(winner, {b"a": b"winner"})
        commit(winner, {b"b": b"2"})
        commit(zombie, {b"a": b"zombie"})

        with pytest.raises(FencedError) as caught:
            bench.open(version=2)

        assert caught.value.kind == "lineage-broken"

    def test_v1_late_overwrite_with_equal_rows_is_harmless(self, bench):
        """Catches fencing a retry that wrote the same."""
        zombie, winner = bench.open(), bench.open()
        commit(winner, {b"a": b"1"})
        winner.snapshot()
        commit(winner, {b"b": b"2"})
        commit(zombie, {b"a": b"1"})
        commit(winner, {b"c": b"3"})

        assert [key for key, _ in bench.open().scan()] == [b"a", b"b", b"c"]

    def test_v2_attempts_live_side_by_side(self, bench):
        """Catches unique names that are not."""
        bench.checkpoint_format = 2
        one, two = bench.open(), bench.open()
        commit(one, {b"a": b"1"})
        commit(two, {b"a": b"2"})
        commit(one, {b"b": b""})
        commit(two, {b"b": b""})

        for store, value in ((one, b"1"), (two, b"2")):
            assert bench.open(version=2, checkpoint_id=store.checkpoint_id).get(b"a") == value
        with pytest.raises(InvalidArgumentError, match="several attempts") as caught:
            bench.open()
        assert "Store.checkpoint_id" in caught.value.to_fix
        with pytest.raises(NotFoundError):
            bench.open(version=2, checkpoint_id="0" * 32)


MANY = {b"k%04d" % number * 100: b"%04d" % number * 500 for number in range(200)}


class TestMoreThanOneBatch:
    """Rows that are more than the columns of one record batch hold."""

    def test_commit_of_more_than_a_batch_holds(self, bench, monkeypatch):
        """Catches a batch that can never be committed, or read, since it is large."""
        monkeypatch.setattr("statestore.codec.rows.MAX_BATCH_BYTES", 10_000)
        store = bench.open()
        batch = store.begin()
        for key, value in MANY.items():
            batch.put(key, value)

        assert list(batch.scan()) == list(MANY.items())
        batch.commit()

        assert store.table.runs[-1].num_batches > 10
        for of in (store, bench.open()):
            assert list(of.scan()) == list(MANY.items())
            assert all(of.get(key) == value for key, value in MANY.items())

    def test_scan_of_more_than_a_batch_holds(self, bench, monkeypatch):
        """Catches a scan that puts all rows that match into one record batch."""
        store = bench.open()
        halves = [dict(list(MANY.items())[half::2]) for half in (0, 1)]
        for half in halves:
            commit(store, half)
        commit(store, merges=dict.fromkeys(halves[0], b"!"))
        single_batch = merge._single_batch

        def limited(pieces):
            assert sum(piece.nbytes for piece in pieces) < 200_000
            return single_batch(pieces)

        monkeypatch.setattr(merge, "_single_batch", limited)
        monkeypatch.setattr(merge.merge_runs, "__kwdefaults__", {"slice_bytes": 50_000})
        monkeypatch.setattr("statestore.store.table.MAX_BATCH_BYTES", 50_000)

        expected = MANY | {key: value + b"!" for key, value in halves[0].items()}
        assert list(store.scan()) == sorted(expected.items())


class TestSnapshotsAndRetention:
    """Snapshots shorten restores; retention never takes a loadable version away."""

    def test_snapshot_shortens_the_chain_and_changes_no_row(self, any_format):
        """Catches a snapshot that resurrects deletes, loses merges, or is never used."""
        store = any_format.open()
        commit(store, {b"a": b"1", b"b": b"2"})
        commit(store, deletes=[b"a"], merges={b"b": b"3"})
        store.snapshot()
        commit(store, merges={b"b": b"4"})
        commit(store, {b"c": b"5"})

        other = any_format.open()

        assert list(other.scan()) == [(b"b", b"234"), (b"c", b"5")]
        assert any_format.files_before(other) == ["snapshot", "delta"]

    def test_snapshot_of_a_list_that_packs_too_well(self, any_format, monkeypatch):
        """Catches a snapshot that no commit may write: each chain is longer than the last."""
        monkeypatch.setattr(arrow_batch, "_UNPACKED_BYTES", 1 << 14)
        monkeypatch.setattr(arrow_batch, "_UNPACKED_RATIO", 2)
        store = any_format.open()
        for _ in range(5):
            commit(store, merges={b"a": bytes(1 << 13)})

        store.snapshot()
        commit(store, {b"b": b""})

        other = any_format.open()
        assert any_format.files_before(other) == ["snapshot"]
        assert list(other.scan()) == [(b"a", bytes(5 << 13)), (b"b", b"")]

    def test_summaries_that_are_known_have_no_schemas(self, bench):
        """Catches memory of an executor for the schemas of a store once more for each summary."""
        store = bench.open()
        commit(store, {b"a": b"1"})
        store.snapshot()
        summaries = store._versions._summaries
        known = [*summaries._known.values()]
        summaries.forget()
        store.clean_up()
        known += summaries._known.values()

        assert [file.ref.kind for file in known] == ["snapshot"] * 2
        assert {file.trailer.column_families for file in known} == {()}
        assert {file.trailer.key_group_rows for file in known} == {None}

    def test_snapshot_twice_writes_once(self, bench):
        """Catches replacing a snapshot that trailers name already."""
        store, other = bench.open(), None
        commit(store, {b"a": b"1"})
        other = bench.open()
        store.snapshot()
        names = bench.file_names()
        other.snapshot()

        assert bench.file_names() == names
        commit(other, {b"b": b"2"})
        assert len(bench.open()) == 2

    @pytest.mark.slow_on_s3
    def test_cleanup_keeps_what_retained_versions_need(self, any_format):
        """Catches deleting a file that a retained version reaches."""
        store = any_format.open(min_versions_to_retain=2, orphan_age_ms=0)
        contents = {}
        for number in range(1, 21):
            commit(store, {b"k%d" % (number % 4): b"%d" % number})
            contents[number] = (store.checkpoint_id, list(store.scan()))
            if number % 5 == 0:
                store.snapshot()
            store.clean_up()

            for version in {max(1, number - 1), number}:
                checkpoint_id, rows = contents[version]
                wanted = checkpoint_id if any_format.checkpoint_format == 2 else None
                assert list(any_format.open(version=version, checkpoint_id=wanted).scan()) == rows

        versions = {int(name.split(".")[0].split("_")[0]) for name in any_format.file_names()}
        assert min(versions) >= 9
        with pytest.raises(NotFoundError):
            any_format.open(version=5)

    @pytest.mark.slow_on_s3
    @pytest.mark.parametrize("hole", ["expired", "branched", "replaced"])
    @pytest.mark.few(5)
    def test_cleanup_behind_a_hole_in_the_lineage_takes_no_retained_version(self, bench, hole):
        """Catches a walk that ends early and takes what it did not see for expired."""
        num_retained, newest, last = 10, 12, 29
        store = bench.open(min_versions_to_retain=2, orphan_age_ms=0)
        commit_with_snapshots(store, range(1, newest + 1))
        if hole == "expired":
            store.clean_up()
        elif hole == "branched":
            head = read_delta_trailer(store._versions.location, newest, None)
            kept = {head.ref.path, *(ref.path for ref in head.trailer.files)}
            for name in set(bench.file_names()) - kept:
                bench.io.delete(f"{bench.directory}/{name}")
        else:
            commit(bench.open(version=newest - 4), {b"zombie": b""})
        loadable = {}
        for version in range(newest - num_retained, newest + 1):
            with suppress(NotFoundError, FencedError):
                loadable[version] = list(bench.open(version=version).scan())
        assert newest in loadable

        store = bench.open(min_versions_to_retain=num_retained, orphan_age_ms=0)
        for number in range(newest + 1, last + 1):
            commit_with_snapshots(store, [number])
            loadable[number] = list(store.scan())
            store.clean_up()
            for version, rows in loadable.items():
                # What is gone stays gone: to look at times is enough.
                if number % 4 == last % 4 and version > number - num_retained:
                    assert list(bench.open(version=version).scan()) == rows, (number, version)

        assert min(int(name.split(".")[0].split("_")[0]) for name in bench.file_names()) >= newest

    def test_cleanup_deletes_old_orphans_only(self, bench):
        """Catches deleting a file another process is still writing, or Spark's own."""
        bench.checkpoint_format = 2
        loser, store = bench.open(), bench.open(orphan_age_ms=60_000)
        commit(loser, {b"a": b"loser"})
        commit(store, {b"a": b"winner"})
        commit(store, {b"b": b""})
        lost = [name for name in bench.file_names() if loser.checkpoint_id in name]
        for name in (".tmp-1", "_metadata", "schema"):
            bench.io.write(f"{bench.directory}/{name}", b"x", sync=False, overwrite=True)

        # Object stores tell times in whole seconds.
        newest = max(info.modified_ms for info in bench.io.list(bench.directory))
        bench.clock.advance(newest - bench.clock.now_ms())
        store.clean_up()
        kept = bench.file_names()
        bench.clock.advance(120_000)
        store.clean_up()
        unfinished = bench.file_names()
        bench.clock.advance(3_600_000)
        store.clean_up()

        assert {".tmp-1", *lost} <= set(kept)
        assert set(kept) - set(unfinished) == set(lost)
        assert set(unfinished) - set(bench.file_names()) == {".tmp-1"}


class TestRefusals:
    """A checkpoint that does not fit is refused by name, with both values."""

    def test_number_of_partitions(self, bench):
        """Catches rows silently lost because Spark routes them elsewhere."""
        commit(bench.open(num_partitions=4), {b"a": b"1"})

        with pytest.raises(IncompatibleError, match="checkpoint=4, query=8") as caught:
            bench.open(num_partitions=8)

        assert caught.value.to_fix == "leave num_partitions out, or give 4"

    def test_max_parallelism_stays_what_it_was_at_first(self, bench):
        """Catches key groups computed with two different moduli in one checkpoint."""
        commit(bench.open(max_parallelism=64), {b"a": b"1"})

        assert bench.open().max_parallelism == 64
        with pytest.raises(IncompatibleError, match="checkpoint=64, query=128"):
            bench.open(max_parallelism=128)

    @pytest.mark.parametrize(
        ("name", "provider"), [("1.delta", "HDFSBacked"), ("1.zip", "RocksDB")]
    )
    @pytest.mark.parametrize("version", [0, 1])
    def test_checkpoint_of_another_provider(self, bench, name, provider, version):
        """Catches starting empty beside another provider's state."""
        bench.io.make_directory(bench.directory)
        bench.io.write(f"{bench.directory}/{name}", b"x", sync=False, overwrite=True)

        with pytest.raises(IncompatibleError, match=provider) as caught:
            bench.open(version=version)

        assert "io.statestore.FileSystemStateStoreProvider" in str(caught.value)

    def test_file_of_another_store(self, bench):
        """Catches a file copied into the wrong partition being read."""
        commit(bench.open(), {b"a": b"1"})
        (name,) = bench.file_names()
        data, _ = bench.io.read_tail(f"{bench.directory}/{name}", 1 << 20)
        directory = f"{bench.root}/state/0/1"
        bench.io.make_directory(directory)
        bench.io.write(f"{directory}/{name}", data, sync=False, overwrite=True)

        with pytest.raises(IncompatibleError, match="expected='0/1/default', found='0/0/default'"):
            bench.open(partition=1)

    def test_checkpoint_removed_while_the_store_is_open(self, bench):
        """Catches a commit that would start a new chain in an empty directory."""
        store = bench.open()
        commit(store, {b"a": b"1"})
        for name in bench.file_names():
            bench.io.delete(f"{bench.directory}/{name}")

        with pytest.raises(StorageError) as caught:
            commit(store, {b"b": b"2"})

        assert caught.value.kind == "directory-gone"

    def test_key_group_that_does_not_fit_the_key(self, bench):
        """Catches one key stored twice under two key groups."""
        store = bench.open(max_parallelism=8)
        batch = store.begin()
        batch.put(b"a", b"1", key_group=3)
        batch.commit()

        with pytest.raises(InvalidArgumentError, match="known=3"):
            store.begin().put(b"a", b"2", key_group=4)
        with pytest.raises(InvalidArgumentError):
            store.begin().put(b"b", b"2", key_group=8)
        with pytest.raises(InvalidArgumentError):
            store.begin().delete(b"b", key_group=8)
        store.begin().put(b"a", b"2")

    def test_delete_of_a_key_that_is_not_there(self, bench):
        """Catches a store that can be rescaled no more, for a row that it never had."""
        store = bench.open(max_parallelism=8)
        batch = store.begin()
        batch.put(b"a", b"1", key_group=3)
        batch.delete(b"b")
        batch.delete(b"c", key_group=3)
        batch.delete(b"a")
        batch.commit()

        assert batch.is_rescalable
        assert set(batch.rows) == {(0, b"a")}
        assert list(bench.open().scan()) == []


class TestCopyOnWrite:
    """A version is an immutable tuple of runs; nothing is copied to make the next one."""

    def test_next_version_shares_every_run(self, bench):
        """Catches copying the state at every commit."""
        store = bench.open()
        commit(store, {b"a": b"1"})
        before = store.table
        commit(store, {b"a": b"2"})

        assert all(a is b for a, b in zip(before.runs, store.table.runs, strict=False))
        assert len(store.table.runs) == len(before.runs) + 1

    def test_held_version_does_not_change(self, bench):
        """Catches a reader whose rows change under its hands."""
        store = bench.open()
        commit(store, {b"a": b"1"})
        held = store.table
        reading = store.scan()
        commit(store, {b"a": b"2"}, deletes=[b"b"])

        assert list(reading) == [(b"a", b"1")]
        assert held.get(0, b"a") == b"1"
        assert store.get(b"a") == b"2"

    def test_batch_works_on_the_runs_of_its_version(self):
        """Catches a batch that copies what it does not write."""
        run = ArrowRun([batch_from_rows([Row(0, 0, PUT, b"a", b"1")], 8)])
        table = Table((run,), 8, 1)

        assert table.apply(run, 1).runs[0] is run
        assert table.runs == (run,)
