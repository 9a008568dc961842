"""Promote on S3, where nothing but one object is replaced at once: it is old, refused, or new.

The process is killed between any two requests that change the bucket. Its leases stay.
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint, Trial
from statestore.core.options import StateStoreOptions
from statestore.io import s3_client
from statestore.io.s3 import S3FileIO
from statestore.io.s3_settings import S3Settings
from statestore.operations.metadata_file import unfinished_operation
from statestore.operations.trial.record import read_record, write_record
from statestore.testing.checkpoints import read_checkpoint
from tests.faults.steps import processes
from tests.made_trials import tried_with_rows
from tests.seaweed import KEY

pytestmark = pytest.mark.timeout(900)
"""Each death is a process and a copy of the bucket."""

CHANGING = ("put", "delete")


class Bucket:
    """A checkpoint and its trial in a bucket, which is filled anew for each death.

    Attributes:
        uri: The folder of both.
        given: Storage options, as users give them.
    """

    def __init__(self, original, server, cache):
        self._original, self._server = original, server
        self.given = {"s3.accessKey": KEY, "s3.secretKey": KEY, "lease.intervalMs": "1000"}
        options = server.options()
        self.given |= {
            "s3.endpoint": options["s3_endpoint"],
            "s3.region": options["s3_region"],
            "s3.pathStyle": "true",
        }
        settings = S3Settings.from_options(StateStoreOptions.from_options(self.given))
        self.io = S3FileIO(str(cache), settings)
        self.fill()

    def fill(self):
        """Begin anew, in a bucket of its own."""
        self.path = f"/{self._server.make_bucket()}/folder"
        self.uri = f"s3:/{self.path}"
        for file in Path(self._original).rglob("*"):
            if file.is_file() and "scratch" not in file.parts:
                name = file.relative_to(self._original)
                self.io.write(f"{self.path}/{name}", file.read_bytes(), sync=True, overwrite=True)
        record = read_record(self.io, f"{self.path}/trial")
        write_record(self.io, f"{self.path}/trial", record, checkpoint=f"{self.uri}/checkpoint")

    @property
    def trial(self):
        return Trial(f"{self.uri}/trial", storage_options=self.given)

    @property
    def stands(self):
        """What a query goes on from: its rows, or "refused"."""
        path = f"{self.path}/checkpoint"
        if unfinished_operation(self.io, path) is not None:
            return "refused"
        return read_checkpoint(path, io=self.io)

    def is_killed(self, method, lives):
        """Do it in a process that is killed before a request; return whether it came to that."""
        process = processes.Process(target=_do_and_die, args=(self.uri, self.given, method, lives))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    def check_whole(self):
        """Check the checkpoint: a query's, whole, with its history."""
        ck = Checkpoint(f"{self.uri}/checkpoint", storage_options=self.given)
        assert ck.verify(deep=True).findings == ()
        assert ck.info.newest_version == 3
        assert "compact" in [entry.operation for entry in ck.history()]


def _do_and_die(uri, given, method, lives):
    count_request = s3_client.count_request

    def counted(kind):
        nonlocal lives
        lives -= kind in CHANGING
        if lives < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        count_request(kind)

    s3_client.count_request = counted
    arguments = [f"{uri}/before"] if method == "promote" else []
    getattr(Trial(f"{uri}/trial", storage_options=given), method)(*arguments)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.extended)])
def original(request, tmp_path):
    """A directory with a checkpoint and a trial, and their rows."""
    return tried_with_rows(tmp_path / "original", request.param)


@pytest.fixture
def made(original, s3_server, tmp_path):
    """What is above in a bucket, and the rows of old and new."""
    folder, old, new = original
    (tmp_path / "cache").mkdir()
    return Bucket(folder, s3_server, tmp_path / "cache"), old, new


def test_trial_in_a_bucket_is_promoted_and_dropped(made):
    """Catches a promote or a drop that needs what only a disk can do."""
    bucket, old, new = made

    bucket.trial.promote()

    assert bucket.stands == new
    bucket.check_whole()
    kept = Savepoint(f"{bucket.uri}/checkpoint-before-3", storage_options=bucket.given)
    assert kept.verify(deep=True).findings == ()
    assert read_checkpoint(f"{bucket.path}/checkpoint-before-3", io=bucket.io) == old
    assert bucket.trial.result.state == "promoted"
    bucket.trial.drop()
    assert bucket.io.list_tree(f"{bucket.path}/trial") == []


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.extended)])
def test_promote_in_a_bucket_that_is_killed_goes_on_or_back(made, every):
    """Catches a `kill -9` between two requests after which the old or the new is lost, or neither
    goes on, or a query starts from what is neither.
    """
    bucket, old, new = made
    seen = []
    for lives in count(0, every):
        bucket.fill()
        was_killed = bucket.is_killed("promote", lives)
        stood = bucket.stands
        seen.append(["old", "refused", "new"][[old, "refused", new].index(stood)])
        if len(seen) % 2 and stood != new:
            bucket.trial.drop()
            assert bucket.stands == old
            assert bucket.io.list_tree(f"{bucket.path}/trial") == []
        else:
            bucket.trial.promote(f"{bucket.uri}/before")
            assert bucket.stands == new
            assert bucket.trial.result.state == "promoted"
            assert read_checkpoint(f"{bucket.path}/before", io=bucket.io) == old
        bucket.check_whole()
        if not was_killed:
            break
    order = ["old", "refused", "new"]
    assert seen == sorted(seen, key=order.index)
    assert set(seen) == set(order)


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.extended)])
def test_old_in_a_bucket_that_is_put_back_when_killed_is_whole_or_refused(made, every):
    """Catches a way back that ends between two requests, and cannot be gone on either side."""
    bucket, old, new = made
    bucket.fill()
    half = next(n for n in count(40, 5) if _is_refused_after(bucket, n))
    for lives in count(0, every):
        bucket.fill()
        assert bucket.is_killed("promote", half)
        was_killed = bucket.is_killed("drop", lives)
        assert bucket.stands in ("refused", old)
        if lives % 2 and bucket.stands == "refused":
            bucket.trial.promote()
            assert bucket.stands == new
        elif bucket.io.list_tree(f"{bucket.path}/trial"):
            bucket.trial.drop()
            assert bucket.stands == old
        bucket.check_whole()
        if not was_killed:
            break


def _is_refused_after(bucket, lives):
    bucket.fill()
    bucket.is_killed("promote", lives)
    return bucket.stands == "refused"


def test_promote_is_repeated_under_another_spelling(made):
    """Catches a promote that was done, and that the same call with `s3a:` takes for another's."""
    bucket, _, new = made
    for lives in count(60):
        bucket.fill()
        assert bucket.is_killed("promote", lives)
        if bucket.stands == new:
            break
    assert bucket.trial.result.state == "promoting"

    uri = bucket.uri.replace("s3:", "s3a:")
    Trial(f"{uri}/trial", storage_options=bucket.given).promote(f"{uri}/before")

    assert bucket.trial.result.state == "promoted"
