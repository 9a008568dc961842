"""S3 as it fails: throttling, lost replies, truncated bodies, wrong credentials, no server."""

import errno
import gc
import json
import os
import pwd
import shutil
import socket
import sys
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.awsrequest import AWSResponse
from botocore.response import StreamingBody
from urllib3.exceptions import SSLError

from statestore import Checkpoint
from statestore.codec.sealed_file import cannot_be_read
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.liveness import Steps, watched
from statestore.core.options import StateStoreOptions
from statestore.engine.storages import Storages
from statestore.io import s3_client, storage
from statestore.io.fetch_cache import open_fetched
from statestore.io.s3 import MOST_PARTS, PART_BYTES, S3FileIO, part_bytes_of
from statestore.io.s3_settings import S3Settings, resolve_s3_path
from statestore.spark.failures import find_obstacle
from tests.s3_server import REGION, WRONG_KEY
from tests.seams import at
from tests.seaweed import IS_CHOSEN

LARGE = 2 * PART_BYTES + 1
"""Bytes of a file that is sent in parts."""


@pytest.fixture
def io(s3_server, bucket, tmp_path):
    return S3FileIO(str(tmp_path), s3_server.settings())


@pytest.fixture
def local_file(tmp_path):
    """Make a local file of given bytes."""

    def make(data):
        path = tmp_path / "local"
        path.write_bytes(data)
        return str(path)

    return make


@pytest.fixture
def profile(bucket, tmp_path, monkeypatch):
    """Files of an AWS profile, of keys and of all else, after which nothing else has keys."""
    files = tmp_path / "credentials", tmp_path / "config"
    for variable, file in zip(("SHARED_CREDENTIALS", "CONFIG"), files, strict=True):
        monkeypatch.setenv(f"AWS_{variable}_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return files


def _sent_by(client, call):
    """Return the first request of a call, which an empty answer ends."""
    sent = []

    def answer(request, **_):
        sent.append(request)
        return AWSResponse(request.url, 200, {}, BytesIO(b""))

    client.meta.events.register("before-send.s3", answer)
    with suppress(AttributeError):  # the answer has no body that could be read
        call(client)
    return sent[0]


def test_steady_state_is_one_put(io, s3_server, bucket, local_file):
    """Catches a listing or a look at the object beside every upload."""
    local_path = local_file(b"rows")
    io.publish(local_path, f"/{bucket}/a/1", sync=True, overwrite=True)

    assert dict(s3_server.requests) == {"PUT": 1}
    assert not Path(local_path).exists()


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, 3 * PART_BYTES + 17])
def test_files_come_back_whole_whatever_their_size(io, bucket, local_file, size):
    """Catches a part that is lost, repeated or out of order."""
    data = os.urandom(size)
    path = f"/{bucket}/large"
    io.publish(local_file(data), path, sync=True, overwrite=False)

    assert Path(io.fetch(path)).read_bytes() == data
    assert io.read_tail(path, 10) == (data[-10:] if size else b"", size)
    assert io.read_range(path, 3, 5) == data[3:8]


def test_slices_come_at_their_place_and_nothing_else_does(io, s3_server, bucket, local_file):
    """Catches a part of a file that is fetched whole, or that lies where it does not belong."""
    size = 3 * PART_BYTES
    data = os.urandom(size)
    path = f"/{bucket}/large"
    io.publish(local_file(data), path, sync=True, overwrite=False)
    slices = ((0, 100), (PART_BYTES - 7, PART_BYTES + 20), (size - 50, 50))
    s3_server.requests.clear()

    fetched = Path(io.fetch_slices(path, size, slices)).read_bytes()

    expected = bytearray(size)
    for offset, length in slices:
        expected[offset : offset + length] = data[offset : offset + length]
    assert fetched == bytes(expected)
    assert dict(s3_server.requests) == {"GET": 4}


def _fetch_whole(io, path):
    return io.fetch(path)


def _fetch_slices(io, path):
    size = len(io.read_range(path, 0, 1 << 30))
    return io.fetch_slices(path, size, ((0, 2), (size - 2, 2)))


@pytest.mark.parametrize("fetch", [_fetch_whole, _fetch_slices])
def test_file_that_is_here_is_not_sent_again_until_it_changes(io, s3_server, bucket, fetch):
    """Catches a cache that saves no byte, and one that hides a version written once more."""
    path = f"/{bucket}/1.delta.arrows"
    io.write(path, b"rows", sync=True, overwrite=True)

    first = Path(fetch(io, path)).read_bytes()
    s3_server.statuses.clear()
    again = Path(fetch(io, path)).read_bytes()

    assert again == first == b"rows"
    assert s3_server.statuses[304] == 1
    io.write(path, b"other", sync=True, overwrite=True)
    changed = Path(fetch(io, path)).read_bytes()
    assert changed == (b"other" if fetch is _fetch_whole else b"ot\0er")
    assert s3_server.statuses[304] == 1
    io.delete(path)
    with pytest.raises(NotFoundError):
        io.fetch(path)


def test_file_that_is_no_longer_here_is_sent_again(s3_server, bucket, tmp_path):
    """Catches a copy that was deleted to make room, and is taken for the one on the disk."""
    io = S3FileIO(str(tmp_path), s3_server.settings(cache_bytes=5))
    for name in ("a", "b", "a", "b"):
        io.write(f"/{bucket}/{name}", name.encode() * 4, sync=True, overwrite=True)
        assert Path(io.fetch(f"/{bucket}/{name}")).read_bytes() == name.encode() * 4

    assert s3_server.statuses[304] == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_parts_go_side_by_side(s3_server, bucket, tmp_path, local_file):
    """Catches parts that are sent or fetched one after another."""
    # More patient than the server: a request that is tried again would be counted twice.
    io = S3FileIO(str(tmp_path), s3_server.settings(timeout_s=30.0))
    size = 8 * PART_BYTES + 1
    path = f"/{bucket}/large"
    s3_server.gather("PUT", 8)
    # The first part says how many there are.
    s3_server.gather("GET", 8, after=1)

    io.publish(local_file(bytes(size)), path, sync=True, overwrite=False)
    fetched = io.fetch(path)

    assert Path(fetched).stat().st_size == size
    assert (s3_server.most_at_once["PUT"], s3_server.most_at_once["GET"]) == (8, 8)


def test_file_of_any_size_goes_in_no_more_parts_than_s3_takes():
    """Catches a file above 78 GiB that can never be published."""
    most = MOST_PARTS * PART_BYTES
    assert [part_bytes_of(size) for size in (1, most)] == [PART_BYTES] * 2
    assert part_bytes_of(most + 1) == 2 * PART_BYTES
    for size in (78 << 30, 79 << 30, 200 << 30, 5 * 10**12):
        assert -(-size // part_bytes_of(size)) <= MOST_PARTS
        assert part_bytes_of(size) < 5 << 30


def test_parts_grow_where_there_would_be_too_many(io, s3_server, bucket, local_file, monkeypatch):
    """Catches parts of the old size, or in the wrong place, once they have grown."""
    monkeypatch.setattr("statestore.io.s3.MOST_PARTS", 2)
    data = os.urandom(LARGE)

    io.publish(local_file(data), f"/{bucket}/large", sync=True, overwrite=False)

    assert s3_server.requests["PUT"] == 2
    assert Path(io.fetch(f"/{bucket}/large")).read_bytes() == data


@pytest.mark.skipif(IS_CHOSEN, reason="SeaweedFS has no keys to encrypt with")
@pytest.mark.parametrize("size", [1, LARGE])
def test_every_object_is_encrypted_as_the_options_say(
    s3_server, bucket, tmp_path, local_file, size
):
    """Catches state that is kept in the clear, or encrypted with another key than the one named."""
    options = StateStoreOptions(**s3_server.options(s3_sse="aws:kms", s3_sse_kms_key="key-1"))
    plain = S3FileIO(str(tmp_path), s3_server.settings())
    io = S3FileIO(str(tmp_path), S3Settings.from_options(options))
    plain.publish(local_file(bytes(size)), f"/{bucket}/plain", sync=True, overwrite=False)

    io.publish(local_file(bytes(size)), f"/{bucket}/published", sync=True, overwrite=False)
    io.write(f"/{bucket}/written", b"rows", sync=True, overwrite=False)
    io.link(f"/{bucket}/plain", f"/{bucket}/linked", sync=True)

    expected = dict.fromkeys(["published", "written", "linked"], ("aws:kms", "key-1"))
    assert s3_server.encryption(bucket) == {"plain": (None, None), **expected}
    assert s3_server.requests["COMPLETE"] == (3 if size == LARGE else 0)


@pytest.mark.skipif(IS_CHOSEN, reason="SeaweedFS knows its own keys only")
def test_session_token_of_the_options_is_sent(s3_server, bucket, tmp_path):
    """Catches temporary credentials that a server refuses for want of their third part."""
    keys = {"s3_access_key": "temporary", "s3_secret_key": "secret", "s3_session_token": "token-1"}
    options = StateStoreOptions(**s3_server.options(**keys))

    io = S3FileIO(str(tmp_path), S3Settings.from_options(options))
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    assert s3_server.session_tokens == {"token-1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s3.accessKey": "key"}, r"missing='s3.secretKey'.* set both"),
        ({"s3.sessionToken": "t"}, r"missing='s3.accessKey, s3.secretKey'.* set them beside"),
        ({"s3.sseKmsKey": "id"}, r"s3.sseKmsKey='id', s3.sse=''.* set s3.sse to aws:kms"),
        ({"s3.sseKmsKey": "id", "s3.sse": "AES256"}, r"s3.sse='AES256'.* set s3.sse to aws:kms"),
    ],
)
def test_settings_that_lack_another_are_refused(options, message):
    """Catches an error of boto3's own, and writes that the server refuses one after the other."""
    unreached = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": REGION, "s3.maxAttempts": 1}

    with pytest.raises(InvalidArgumentError, match=message) as raised:
        _ = Checkpoint("s3://bucket/query", storage_options=unreached | options).info

    assert raised.value.kind == "invalid-option"


@pytest.mark.skipif(IS_CHOSEN, reason="the settings of the other server have no token")
@pytest.mark.parametrize("option", ["s3_access_key", "s3_session_token"])
def test_credentials_with_a_line_break_are_not_shown(
    s3_server, bucket, tmp_path, monkeypatch, option
):
    """Catches a token in logs, events and files: HTTP's error has the header that it refuses."""
    keys = {"s3_access_key": "temporary", "s3_secret_key": "hush", "s3_session_token": "token-1"}
    options = StateStoreOptions(**s3_server.options(**keys | {option: "quiet\nplease"}))
    io = S3FileIO(str(tmp_path), S3Settings.from_options(options))
    monkeypatch.setattr(s3_client, "wait_s", lambda _: pytest.fail("is tried again"))

    for call in (
        lambda: io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True),
        lambda: io.list(f"/{bucket}/a"),
    ):
        with pytest.raises(StorageError, match="take line breaks out of") as told:
            call()
        assert told.value.kind == "permission-denied"
        assert "quiet" not in "".join(traceback.format_exception(told.value))


@pytest.mark.skipif(IS_CHOSEN, reason="the other server is reached without a proxy")
def test_proxy_that_is_none_is_no_matter_of_credentials(s3_server, bucket, tmp_path, monkeypatch):
    """Catches credentials that are looked through for what is wrong with an address."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:abc")
    monkeypatch.setattr(s3_client, "wait_s", lambda _: 0.0)
    options = StateStoreOptions(**s3_server.options())
    io = S3FileIO(str(tmp_path), S3Settings.from_options(options))

    with pytest.raises(StorageError, match="proxy:abc") as told:
        io.list(f"/{bucket}/a")
    assert told.value.kind == "storage"


@pytest.mark.parametrize("size", [100, 3 * PART_BYTES])
def test_existing_file_is_not_replaced(io, s3_server, bucket, local_file, size):
    """Catches two writers of one name that both think they won."""
    path = f"/{bucket}/once"
    io.write(path, b"first", sync=True, overwrite=False)

    with pytest.raises(FencedError) as caught:
        io.publish(local_file(b"x" * size), path, sync=True, overwrite=False)

    assert caught.value.kind == "file-exists"
    assert io.read_tail(path, 100)[0] == b"first"
    assert s3_server.num_uploads(bucket) == 0


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_lost_reply_is_read_back(io, s3_server, bucket, overwrite, times):
    """Catches a commit that fails though it is durable, or that mistakes itself for another."""
    s3_server.fail("PUT", "reply-lost", times)

    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=overwrite)

    assert io.read_tail(f"/{bucket}/a", 10) == (b"rows", 4)


def test_lost_reply_is_read_back_whatever_the_case_of_headers(io, s3_server, bucket, monkeypatch):
    """Catches an edit that counts and fails, and is done twice: proxies change names of headers."""
    head = io._client.head_object

    def in_title_case(**names):
        found = head(**names)
        return found | {"Metadata": {key.title(): mark for key, mark in found["Metadata"].items()}}

    monkeypatch.setattr(io._client, "head_object", in_title_case)
    s3_server.fail("PUT", "reply-lost")

    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=False)

    assert io.read_tail(f"/{bucket}/a", 10) == (b"rows", 4)


@pytest.mark.parametrize("is_there", [True, False])
def test_lost_reply_to_the_end_of_a_copy_in_parts_is_read_back(
    io, s3_server, bucket, local_file, is_there
):
    """Catches a promote that stays half way, and a copy that is taken for one and is not there."""
    io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=False)
    if is_there:
        s3_server.fail("COMPLETE", "reply-lost")
    s3_server.fail("COMPLETE", "no-upload")

    if is_there:
        io.link(f"/{bucket}/a", f"/{bucket}/b", sync=True)
        assert io.read_tail(f"/{bucket}/b", 1) == (b"\0", LARGE)
    else:
        with pytest.raises(StorageError, match="check the storage, and try again"):
            io.link(f"/{bucket}/a", f"/{bucket}/b", sync=True)
        with pytest.raises(NotFoundError):
            io.read_tail(f"/{bucket}/b", 1)


def test_file_is_copied_on_a_server_that_has_no_tags(io, s3_server, bucket):
    """Catches a branch that such a server refuses for ever."""
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=False)
    s3_server.fail("PUT", "without-tags", times=2)

    io.link(f"/{bucket}/a", f"/{bucket}/b", sync=True)

    assert io.read_tail(f"/{bucket}/b", 4)[0] == b"rows"


def test_file_that_is_replaced_while_it_is_copied_is_named(io, s3_server, bucket, local_file):
    """Catches an error of a library that nothing of ours turns into one."""
    io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=False)
    s3_server.fail("PUT", "replaced")

    with pytest.raises(StorageError, match="a file was replaced while it was read"):
        io.link(f"/{bucket}/a", f"/{bucket}/b", sync=True)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("faults", [["reply-lost"] * 3, ["reply-lost", "no-upload"]])
def test_lost_reply_to_the_end_of_an_upload_is_read_back(
    io, s3_server, bucket, local_file, overwrite, faults
):
    """Catches a commit that fails though it is durable, for a server that forgets ended uploads."""
    for fault in faults:
        s3_server.fail("COMPLETE", fault)

    io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=overwrite)

    assert s3_server.requests["COMPLETE"] == len(faults)
    assert io.read_tail(f"/{bucket}/a", 1) == (b"\0", LARGE)


def test_upload_that_was_aborted_elsewhere_is_an_error(io, s3_server, bucket, local_file):
    """Catches a file taken for durable because its upload is gone, and a misleading error."""
    io.write(f"/{bucket}/a", b"of another", sync=True, overwrite=True)
    s3_server.fail("COMPLETE", "no-upload")

    with pytest.raises(StorageError, match="check the storage, and try again") as caught:
        io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=True)

    assert caught.value.fields["code"] == "NoSuchUpload"
    assert io.read_tail(f"/{bucket}/a", 20)[0] == b"of another"


def test_upload_is_aborted_when_none_of_its_parts_is_under_way(io, s3_server, bucket, local_file):
    """Catches a part that arrives after the abort, and is stored and paid for without end."""
    under_way = []
    s3_server.gather("PUT", 3)
    s3_server.fail("PUT", "refused")
    s3_server.fail("PUT", lambda: time.sleep(0.5), 2)
    s3_server.fail("DELETE", lambda: under_way.append(s3_server._at_once["PUT"]))

    with pytest.raises(StorageError):
        io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=True)

    assert under_way == [0]
    assert s3_server.num_uploads(bucket) == 0


@pytest.mark.parametrize("fault", ["throttled", "kms-throttled"])
def test_throttled_request_is_repeated(io, s3_server, bucket, fault):
    """Catches a batch that fails because of one 503, or of a 400 that says the same."""
    s3_server.fail("PUT", fault, 2)
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    assert s3_server.requests["PUT"] == 3


def test_server_that_is_away_for_a_while_is_asked_again(tmp_path, monkeypatch):
    """Catches a query that ends within a second, since the server was starting anew."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = S3Settings(
        endpoint, REGION, path_style=True, max_attempts=3, access_key=WRONG_KEY, secret_key=REGION
    )
    io = S3FileIO(str(tmp_path), settings)
    slept = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", slept.append)

    with pytest.raises(StorageError, match="cannot be reached"):
        io.read_tail("/bucket/a", 1)

    assert len(slept) == 2


@pytest.mark.parametrize("endpoint", [None, ""])
def test_files_are_deleted_where_the_server_asks_for_the_older_checksum(
    s3_server, bucket, tmp_path, monkeypatch, endpoint
):
    """Catches files that no cleanup deletes, on servers that do not know the newer ones."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    settings = s3_server.settings(**({} if endpoint is None else {"endpoint": endpoint}))
    io = S3FileIO(str(tmp_path), settings)
    for name in "ab":
        io.write(f"/{bucket}/d/{name}", b"rows", sync=True, overwrite=True)
    s3_server.fail("POST", "needs-md5")

    io.delete_files(f"/{bucket}/d", ["a", "b"])

    assert s3_server.keys(bucket) == []


@pytest.mark.parametrize(
    ("endpoint", "of_environment", "asked", "is_sent"),
    [
        ("https://127.0.0.1:9", "", True, True),
        ("https://127.0.0.1:9", "", False, False),
        ("", "https://127.0.0.1:9", False, False),
        ("", "", False, True),
        ("https://s3.eu-central-1.amazonaws.com", "", False, True),
    ],
)
def test_no_checksum_is_sent_unasked_to_servers_of_others(
    monkeypatch, endpoint, of_environment, asked, is_sent
):
    """Catches a server that refuses every write, since it knows no checksum behind the body."""
    if of_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", of_environment)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    if asked:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    client, _ = s3_client.make_client(S3Settings(endpoint, REGION, path_style=True))

    sent = _sent_by(client, lambda to: to.put_object(Bucket="b", Key="k", Body=b"rows"))

    assert ("x-amz-trailer" in {name.lower() for name in sent.headers}) == is_sent


@pytest.mark.parametrize(
    ("style", "path_style", "url"),
    [
        ("", False, "http://server:9/bucket/k"),
        ("", True, "http://server:9/bucket/k"),
        ("virtual", False, "http://bucket.server:9/k"),
        ("virtual", True, "http://server:9/bucket/k"),
    ],
)
def test_bucket_is_where_option_and_profile_say(profile, style, path_style, url):
    """Catches an option that does nothing, and a server that only knows buckets by their host."""
    keys, others = profile
    keys.write_text("[default]\naws_access_key_id=key\naws_secret_access_key=s\n")
    others.write_text(f"[default]\ns3 =\n  addressing_style = {style}\n" if style else "")
    client, _ = s3_client.make_client(S3Settings("http://server:9", REGION, path_style=path_style))

    assert _sent_by(client, lambda to: to.head_object(Bucket="bucket", Key="k")).url == url


@pytest.mark.parametrize(
    ("size", "method"), [(1, "PUT"), (LARGE, "POST"), (LARGE, "PUT"), (LARGE, "COMPLETE")]
)
def test_write_that_no_s3_has_answered_is_not_durable(
    io, s3_server, bucket, local_file, size, method
):
    """Catches a commit that is nowhere, for a proxy that welcomes everything."""
    s3_server.fail(method, "page", 3)

    with pytest.raises(StorageError, match=f"(?s)file='/{bucket}/a'.*the port of the API"):
        io.publish(local_file(bytes(size)), f"/{bucket}/a", sync=True, overwrite=True)


def test_what_is_no_s3_is_told(io, s3_server, bucket):
    """Catches a KeyError where the endpoint is that of a console."""
    s3_server.fail("GET", "page")

    with pytest.raises(StorageError, match="the port of the API"):
        io.read_tail(f"/{bucket}/a", 10)


def test_old_boto_is_told(tmp_path, monkeypatch):
    """Catches commits that go well, and merges that fail for ever."""
    monkeypatch.setattr("boto3.__version__", "1.34.46")

    with pytest.raises(InvalidArgumentError, match=r"boto3 is too old.*1\.34\.46.*boto3>=1\.36"):
        storage.open_s3(str(tmp_path), S3Settings())


def test_throttling_that_does_not_end_is_an_error(io, s3_server, bucket):
    """Catches a retry without end."""
    s3_server.fail("PUT", "throttled", 10)
    with pytest.raises(StorageError) as caught:
        io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    assert caught.value.fields["code"] == "SlowDown"
    assert s3_server.requests["PUT"] == 3


def test_each_try_is_a_sign_of_life(io, s3_server, bucket):
    """Catches an engine that is killed as hung while it tries a server again."""
    s3_server.fail("DELETE", "throttled", 2)

    with watched(steps := Steps()):
        io.delete(f"/{bucket}/a")

    assert steps.steps == 3


@pytest.mark.parametrize(("timeout_s", "expected"), [(30.0, 5.0), (1.0, 1.0)])
def test_addresses_of_a_server_that_does_not_answer_are_soon_done(timeout_s, expected):
    """Catches a try that takes the whole timeout for each address of the server's name."""
    client, _ = s3_client.make_client(S3Settings("http://there:9", REGION, timeout_s=timeout_s))

    config = client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (expected, timeout_s)


def test_many_requests_at_once_are_each_tried_as_often_as_the_option_says(io, s3_server, bucket):
    """Catches one budget of tries for a whole engine: a short outage fails most of its commits."""
    s3_server.outage = "throttled"

    def write(number):
        with pytest.raises(StorageError, match="SlowDown"):
            io.write(f"/{bucket}/{number}", b"rows", sync=True, overwrite=True)

    with ThreadPoolExecutor(60) as pool:
        list(pool.map(write, range(120)))

    assert s3_server.requests["PUT"] == 120 * 3


def test_waits_between_tries_have_a_limit(s3_server, bucket, tmp_path, monkeypatch):
    """Catches a call that sleeps for hours where somebody has asked for more tries."""
    io = S3FileIO(str(tmp_path), s3_server.settings(max_attempts=20))
    s3_server.fail("PUT", "throttled", 18)
    slept = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", slept.append)

    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    waits = [each for each in slept if each]  # the server sleeps for no time
    assert len(waits) == 18
    assert 10 <= max(waits) <= 20


def test_storage_that_can_have_no_more_threads_is_an_error(tmp_path, monkeypatch):
    """Catches a process that never ends, since threads wait for others that never come."""
    start, started = threading.Thread.start, []

    def limited(thread):
        if thread.name.startswith("s3-part"):
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        S3FileIO(str(tmp_path), S3Settings())

    assert len(started) == 3
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(("size", "last"), [(1, "PUT"), (LARGE, "COMPLETE")])
def test_write_that_met_another_one_is_repeated(io, s3_server, bucket, local_file, size, last):
    """Catches a commit that fails, or parts that stay, where two writes of a name meet."""
    s3_server.fail(last, "conflict", 2)
    data = os.urandom(size)

    io.publish(local_file(data), f"/{bucket}/a", sync=True, overwrite=False)

    assert Path(io.fetch(f"/{bucket}/a")).read_bytes() == data
    assert (s3_server.requests[last], s3_server.num_uploads(bucket)) == (3, 0)


def test_write_that_always_meets_another_one_is_an_error(io, s3_server, bucket):
    """Catches a repetition without end."""
    s3_server.fail("PUT", "conflict", 10)
    with pytest.raises(StorageError, match="ConditionalRequestConflict"):
        io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=False)

    assert s3_server.requests["PUT"] == 3


def test_file_whose_deletion_is_throttled_among_others_is_deleted_again(io, s3_server, bucket):
    """Catches an operation that ends half way by what passes: the answer as a whole is 200."""
    s3_server.put_many(bucket, [f"d/{number}" for number in range(4)])
    s3_server.fail("POST", "one-throttled", 2)

    io.delete_files(f"/{bucket}/d", [str(number) for number in range(4)])

    assert s3_server.keys(bucket) == []
    assert s3_server.requests["POST"] == 3


def test_marks_of_directories_go_with_a_tree(io, s3_server, bucket):
    """Catches a dropped trial that is still there to list: Hadoop marks each directory it makes."""
    s3_server.put_many(bucket, ["d/", "d/a/", "d/a/file", "d/b/", "dd/", "e"])

    io.delete_tree(f"/{bucket}/d")

    assert s3_server.keys(bucket) == ["dd/", "e"]
    assert io.list_directories(f"/{bucket}") == ["dd"]


def test_body_that_ends_by_a_broken_record_is_read_again(io, bucket, monkeypatch):
    """Catches a fault of the network that is called one of the engine."""
    io.write(f"/{bucket}/a", b"rows" * 1000, sync=True, overwrite=True)
    read, faults = StreamingBody.read, [SSLError("BAD_RECORD_MAC")] * 2

    def broken(body, amt=None):
        if faults:
            raise faults.pop()
        return read(body, amt)

    monkeypatch.setattr(StreamingBody, "read", broken)

    assert Path(io.fetch(f"/{bucket}/a")).read_bytes() == b"rows" * 1000
    faults += [SSLError("BAD_RECORD_MAC")] * 4
    with pytest.raises(StorageError, match="BAD_RECORD_MAC"):
        io.read_tail(f"/{bucket}/a", 10)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities are of processes")
def test_parts_are_not_sent_at_the_priority_of_whoever_came_first(io, bucket, local_file):
    """Catches commits that go slow for good once a merge has sent a large file."""

    def publish():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        io.publish(local_file(bytes(LARGE)), f"/{bucket}/a", sync=True, overwrite=False)

    merge = threading.Thread(target=publish)
    merge.start()
    merge.join()

    parts = [one.native_id for one in io._parts._threads]
    assert parts
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in parts} == {base}


def test_truncated_body_is_read_again(io, s3_server, bucket):
    """Catches half a file taken for the whole."""
    io.write(f"/{bucket}/a", b"rows" * 1000, sync=True, overwrite=True)
    s3_server.fail("GET", "truncated", 2)

    assert Path(io.fetch(f"/{bucket}/a")).read_bytes() == b"rows" * 1000


def test_read_without_an_answer_is_tried_as_often_as_the_option_says(
    io, s3_server, bucket, tmp_path
):
    """Catches tries that multiply: an engine that is silent for so long is killed as hung."""
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)
    impatient = S3FileIO(str(tmp_path), s3_server.settings(max_attempts=2, timeout_s=1.0))
    began = s3_server.requests["GET"]
    s3_server.outage = "silent"
    try:
        with pytest.raises(StorageError, match="cannot read a file"):
            impatient.read_tail(f"/{bucket}/a", 10)
    finally:
        s3_server.outage = ""

    assert s3_server.requests["GET"] - began == 2


def test_copy_that_something_else_has_deleted_is_fetched_again(io, bucket, local_file):
    """Catches a query that fails until its application ends: temporary files are cleaned up."""
    data = os.urandom(2 * PART_BYTES)
    path = f"/{bucket}/large"
    io.publish(local_file(data), path, sync=True, overwrite=False)
    Path(io.fetch(path)).unlink()

    assert Path(io.fetch(path)).read_bytes() == data


def test_directory_of_copies_that_something_else_has_deleted_is_made_again(io, bucket, tmp_path):
    """Catches a query on an unharmed checkpoint that never loads again."""
    for _ in range(2):
        io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)
        copy = io.fetch(f"/{bucket}/a")
        assert Path(copy).read_bytes() == b"rows"
        del copy
        shutil.rmtree(tmp_path)


def test_full_local_disk_is_not_taken_for_a_full_bucket(io, bucket, local_file, monkeypatch):
    """Catches versions that are deleted to make room where there is enough."""
    path = f"/{bucket}/large"
    io.publish(local_file(bytes(10)), path, sync=True, overwrite=False)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError) as caught:
        io.fetch(path)

    assert caught.value.kind == "storage-full"
    assert caught.value.fields["file"] == io._cache.directory


@pytest.mark.parametrize("how", ["refused", "expired"])
def test_wrong_credentials_fail_at_once(io, s3_server, bucket, how):
    """Catches a storm of requests that can only be refused."""
    s3_server.fail("PUT", how, 10)
    with pytest.raises(StorageError) as caught:
        io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    assert caught.value.kind == "permission-denied"
    assert "credentials" in caught.value.to_fix
    assert dict(s3_server.requests) == {"PUT": 1}


@pytest.mark.parametrize(
    ("code", "to_fix"), [("RequestTimeTooSkewed", "clock"), ("InvalidObjectState", "archive")]
)
def test_refusal_that_is_no_matter_of_permission_says_its_cause(
    io, s3_server, bucket, code, to_fix
):
    """Catches a policy that somebody changes because a clock is wrong."""
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)
    s3_server.fail("GET", code, 1)
    with pytest.raises(StorageError) as caught:
        io.fetch(f"/{bucket}/a")

    assert caught.value.kind == "storage"
    assert to_fix in caught.value.to_fix
    assert caught.value.fields["code"] == code


def test_user_without_a_home_has_no_profile(monkeypatch):
    """Catches an engine that does not start in a container whose user has no entry there."""

    def nobody(_):
        raise KeyError("uid not found")

    for name in ("HOME", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)

    assert S3Settings().profile_mark() == ((), ())


def test_profile_that_was_renewed_is_read_again(s3_server, bucket, tmp_path, profile):
    """Catches keys that have expired, and stores that are restored anew for each new key."""
    keys, _ = profile
    storages = Storages(str(tmp_path / "fetched"), SystemClock())

    def write(key):
        keys.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\n")
        io = storages.open_s3(s3_server.settings())
        io.write(f"/{bucket}/{key}", b"rows", sync=True, overwrite=True)
        return io

    with pytest.raises(StorageError) as caught:
        write(WRONG_KEY)
    assert caught.value.kind == "permission-denied"
    first = storages.open_s3(s3_server.settings())
    assert write("another") is first

    for number, text in enumerate(("", "[default\n", "[default]\naws_access_key_id=a\n")):
        keys.write_text(text)  # as while it is being written
        first.write(f"/{bucket}/{number}", b"rows", sync=True, overwrite=True)
    assert write("fourth") is first


@pytest.mark.usefixtures("profile")
def test_missing_credentials_fail_at_once_until_they_come(monkeypatch, s3_server, bucket, tmp_path):
    """Catches a traceback of botocore, and an engine that never asks again what was away."""
    io = S3FileIO(str(tmp_path), s3_server.settings())
    first = io._client
    with pytest.raises(StorageError) as caught:
        io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)

    assert caught.value.kind == "permission-denied"
    assert io._client is first  # to ask takes seconds where nothing answers
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 6, sleep=time.sleep)
    monkeypatch.setattr("statestore.io.s3.time", clock)
    io.write(f"/{bucket}/a", b"rows", sync=True, overwrite=True)
    last = io._client
    clock.monotonic = lambda: time.monotonic() + 60
    assert io._client is last


@pytest.mark.parametrize("is_started", [False, True])
def test_credentials_that_cannot_be_fetched_are_no_mistake_in_an_option(
    s3_server, bucket, tmp_path, profile, is_started
):
    """Catches a query that ends for good since a service was away, as it starts or later."""
    until = datetime.now(UTC) + timedelta(minutes=1)
    keys = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "s", "Expiration": str(until)}
    program = tmp_path / "program"
    asked = tmp_path / "asked"
    if not is_started:
        asked.touch()
    program.write_text(f"[ -e {asked} ] && exit 1\ntouch {asked}\necho '{json.dumps(keys)}'\n")
    profile[1].write_text(f"[default]\ncredential_process = sh {program}\n")

    with pytest.raises(StorageError, match="credentials cannot be fetched") as caught:
        S3FileIO(str(tmp_path), s3_server.settings()).list(f"/{bucket}")

    assert caught.value.kind == "permission-denied"
    assert find_obstacle(caught.value) is None


def test_storage_in_use_is_opened_once_however_many_there_are(s3_server, tmp_path):
    """Catches stores that are restored anew by each call, and threads without end."""
    storages = Storages(str(tmp_path), SystemClock())

    def open_s3(number):
        return storages.open_s3(s3_server.settings(access_key=str(number), secret_key=REGION))

    used, unused = open_s3(0), weakref.ref(open_s3(1))
    for number in range(2, 20):
        open_s3(number)
    gc.collect()

    assert open_s3(0) is used
    assert unused() is None


@pytest.mark.skipif(IS_CHOSEN, reason="SeaweedFS makes the bucket that a file is written to")
def test_missing_bucket_and_file_are_named(io, bucket):
    """Catches a missing bucket that looks like a version that was never written."""
    with pytest.raises(NotFoundError) as no_file:
        io.read_tail(f"/{bucket}/missing", 10)
    with pytest.raises(StorageError) as no_bucket:
        io.write("/no-such-bucket/a", b"", sync=True, overwrite=True)

    assert no_file.value.kind == "file-not-found"
    assert no_bucket.value.kind == "directory-gone"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", ""])
def test_unreachable_server_is_named(s3_server, tmp_path, monkeypatch, endpoint):
    """Catches an endless wait, and an error that does not say which server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    io = S3FileIO(str(tmp_path), s3_server.settings(endpoint=endpoint, max_attempts=1))
    with pytest.raises(StorageError) as caught:
        io.read_tail("/bucket/a", 10)

    assert caught.value.fields["endpoint"] == "http://127.0.0.1:9"


def test_fetched_files_stay_within_their_budget(s3_server, bucket, tmp_path):
    """Catches a local disk that fills up with files nobody reads any more."""
    io = S3FileIO(str(tmp_path), s3_server.settings(cache_bytes=2500))
    for number in range(5):
        io.write(f"/{bucket}/{number}", bytes([number]) * 1000, sync=True, overwrite=True)
        io.fetch(f"/{bucket}/{number}")

    assert sorted(path.name.split("-")[-1] for path in tmp_path.iterdir()) == ["3", "4"]


def test_listing_has_the_files_of_one_directory_only(io, bucket):
    """Catches files of directories below, and pages after the first that are left out."""
    for number in range(3):
        io.write(f"/{bucket}/d/{number}", b"x" * number, sync=True, overwrite=True)
    io.write(f"/{bucket}/d/below/4", b"", sync=True, overwrite=True)

    assert {info.name: info.size for info in io.list(f"/{bucket}/d")} == {"0": 0, "1": 1, "2": 2}
    assert io.list(f"/{bucket}/none") == []


def test_store_of_a_bucket_is_opened_by_its_uri(s3_server, bucket):
    """Catches an API that only the local disk can be used with, and requests nobody needs."""
    uri = f"s3://{bucket}/checkpoint"
    with Checkpoint(uri, storage_options=s3_server.options()).open_store(
        checkpoint_format=2
    ) as store:
        for version in range(1, 4):
            s3_server.requests.clear()
            batch = store.begin()
            batch.put(b"key", b"value %d" % version)
            batch.commit()
            assert s3_server.requests["PUT"] == 1
            assert s3_server.requests.total() <= 2
    with Checkpoint(uri, storage_options=s3_server.options()).open_store() as again:
        assert (again.version, again.get(b"key")) == (3, b"value 3")


def test_bucket_is_the_host_of_a_uri():
    """Catches state in a bucket called after the scheme."""
    assert resolve_s3_path("s3://bucket/a/b/") == "/bucket/a/b"
    assert resolve_s3_path("s3a://bucket") == "/bucket"
    # As Spark opens them, by Hadoop's Path.
    assert resolve_s3_path("s3://bucket//a//b/./c/../d//") == "/bucket/a/b/d"
    assert resolve_s3_path("s3://bucket//") == "/bucket"
    with pytest.raises(InvalidArgumentError):
        resolve_s3_path("s3:/no-host")


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_copy_that_is_damaged_is_fetched_again(io, s3_server, bucket, backend):
    """Catches damage of a local disk that stays, or that is mended in the bucket."""
    checkpoint = at(f"/{bucket}/checkpoint", io=io)
    directory = f"/{bucket}/checkpoint/state/0/0"
    with checkpoint.open_store(backend=backend) as store:
        for number in range(2):
            batch = store.begin()
            batch.put(b"key", b"value %d" % number)
            batch.commit()

    def damage_copies(kind):
        for name in (info.name for info in io.list(directory) if kind in info.name):
            copy = Path(io.fetch(f"{directory}/{name}"))
            data = bytearray(copy.read_bytes())
            data[20] ^= 1
            copy.write_bytes(data)

    damage_copies("delta")
    with checkpoint.open_store(version=2) as store, checkpoint.open_store(version=2) as another:
        assert store.get(b"key") == another.get(b"key") == b"value 1"
        store.snapshot()
        damage_copies("snapshot")
        s3_server.requests.clear()
        another.snapshot()
    assert s3_server.requests["PUT"] == 1  # which was refused


def test_copy_that_cannot_be_read_is_fetched_again(io, s3_server, bucket):
    """Catches a query that ends at each start on a machine with one bad sector."""
    path = f"/{bucket}/file"
    io.write(path, b"rows", sync=True, overwrite=False)
    Path(io.fetch(path)).unlink()
    s3_server.requests.clear()
    errors = [cannot_be_read(path, 0, 4)]

    def read(local_path):
        if errors:
            raise errors.pop()
        return Path(local_path).read_bytes()

    assert open_fetched(lambda: io.fetch(path), read) == b"rows"
    assert s3_server.requests["GET"] == 2


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_damaged_file_is_named_as_it_is_in_the_bucket(io, bucket, backend):
    """Catches an error that names the copy on the local disk, which is gone by then."""
    uri = f"/{bucket}/checkpoint"
    with at(uri, io=io).open_store(backend=backend) as store:
        batch = store.begin()
        batch.put(b"key", b"value")
        batch.commit()
    (info,) = io.list(f"{uri}/state/0/0")
    path = f"{uri}/state/0/0/{info.name}"
    data = bytearray(Path(io.fetch(path)).read_bytes())
    data[20] ^= 1
    io.write(path, bytes(data), sync=True, overwrite=True)

    with (
        pytest.raises(CorruptionError, match=f"file='{path}'"),
        at(uri, io=io).open_store(version=1) as store,
    ):
        store.get(b"key")
