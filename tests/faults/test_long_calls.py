"""Calls that take long: whoever waits sees that they go on, and what they fetched stays."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statestore.codec.rows import PUT, Row
from statestore.io.fetch_cache import FetchCache
from tests.shim import Engine, G, RocksDBShim, Shim, rows

ROW_BYTES = 20_000
NUM_ROWS = 100


def wide_rows():
    """Rows that no compression makes smaller."""
    return [
        Row(number % G, 0, PUT, b"%08d" % number, os.urandom(ROW_BYTES))
        for number in range(NUM_ROWS)
    ]


@pytest.fixture(params=[Shim, RocksDBShim], ids=["filesystem", "rocksdb"])
def shims(request, tmp_path, s3_server, bucket):
    """Two stores on S3, and an engine that has to fetch the first, of 2 MB."""
    options = s3_server.options(s3_timeout_ms=60_000, snapshot_replay_ratio=100.0)
    shims = [
        request.param(tmp_path, root=f"s3://{bucket}/ck/state", partition=number, **options)
        for number in range(2)
    ]
    first = Engine(f"{tmp_path}/first")
    (tmp_path / "statestore-scratch-1").mkdir()
    shims[0].commit(first, wide_rows())
    shims[1].commit(first, rows(1))
    return shims


class Watch:
    """Asks for the steps of calls, as the shim does."""

    def __init__(self, engine):
        self.engine = engine

    def steps(self, call):
        """How far a call is; None where it is not under way."""
        return self.engine.call("progress", of=call)["steps"]

    def most_silent_s(self, call, until):
        """The longest time without a step until a call has ended."""
        longest, seen, since = 0.0, None, time.monotonic()
        while not until.done():
            steps, now = self.steps(call), time.monotonic()
            if steps != seen:
                seen, since = steps, now
            longest = max(longest, now - since)
            time.sleep(0.02)
        return longest


def test_long_load_gives_signs_of_life_while_another_store_commits(shims, tmp_path, s3_server):
    """Catches an engine that is killed in the middle of a restore, with the commits of others.

    Also a second load of the store, which waits behind the first and must not count as hung.
    """
    large, small = shims
    engine = Engine(f"{tmp_path}/second")
    s3_server.bytes_per_s = 500_000
    watch = Watch(engine)

    with ThreadPoolExecutor(3) as pool:
        load = pool.submit(engine.call, "load", **large.load(), call=1)
        while not watch.steps(1):
            time.sleep(0.01)
        started = time.monotonic()
        silent = pool.submit(watch.most_silent_s, 1, load)
        again = pool.submit(engine.call, "load", **large.load(), call=2)
        small.commit(engine, rows(2))
        assert not load.done()
        while not watch.steps(2):
            assert not load.done()
            time.sleep(0.01)
        assert load.result()["num_keys"] == NUM_ROWS
        took_s = time.monotonic() - started
        assert again.result()["num_keys"] == NUM_ROWS

    assert took_s > 0.9 * NUM_ROWS * ROW_BYTES / 500_000
    assert silent.result() < took_s / 2
    assert watch.steps(1) is None


def test_silent_load_gives_no_sign_of_life_while_others_do(shims, tmp_path, s3_server):
    """Catches a load that hangs and is waited for without end, since other calls go on."""
    large, small = shims
    engine = Engine(f"{tmp_path}/second")
    small.view(engine)
    watch = Watch(engine)
    asked, answered = threading.Event(), threading.Event()

    def answer_late():
        asked.set()
        answered.wait()

    s3_server.fail("GET", answer_late)

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(engine.call, "load", **large.load(), call=1)
        assert asked.wait(20)  # or it would be a commit that is answered late
        for number in range(2, 6):
            small.commit(engine, rows(number))
        assert watch.steps(1) == 0
        answered.set()
        assert load.result()["num_keys"] == NUM_ROWS


def test_copies_of_a_load_stay_until_it_ends(tmp_path):
    """Catches a load that is taken up again and fetches once more what an engine before fetched."""
    first = FetchCache(str(tmp_path), 1 << 20)
    fetched = []

    def fetch(cache, name):
        def write(path):
            fetched.append(name)
            Path(path).write_bytes(bytes(8192))

        return cache.get(name, 8192, write)

    for name in "abc":
        fetch(first, name)
    second = FetchCache(str(tmp_path), 10_000)
    with second.keep():
        with second.keep():
            fetch(second, "d")
        paths = [fetch(second, name) for name in "abc"]
        assert fetched == list("abcd")
        del paths

    assert [path.name for path in tmp_path.iterdir()] == ["c"]
