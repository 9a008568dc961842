"""Storage on S3, and on servers that speak its protocol, through boto3.

A file is one object. Objects appear whole or not at all, so nothing is renamed and nothing is
cleaned up; large ones are sent and fetched in parts, several at a time.
"""

from __future__ import annotations

import builtins
import math
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.response import StreamingBody
from s3transfer import exceptions as s3transfer_exceptions
from s3transfer.utils import ReadFileChunk
from urllib3.exceptions import HTTPError

from statestore.core.digest import digest_of
from statestore.core.errors import FencedError, InvalidArgumentError, StorageError
from statestore.core.ids import RandomIds
from statestore.core.liveness import CallPool, step
from statestore.io.fetch_cache import FetchCache, sliced_name, slices_size
from statestore.io.file_io import (
    FileInfo,
    FileIO,
    delete_batches,
    existing_file,
    replaced_file,
    unasked,
)
from statestore.io.local import named_errors
from statestore.io.s3_client import (
    check_answer,
    is_certain,
    is_conflict,
    is_passing,
    is_upload_gone,
    make_client,
    named_s3_errors,
    status_of,
    wait_s,
)
from statestore.io.s3_settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from statestore.io.s3_settings import ProfileMark

T = TypeVar("T")
_REPLACED: Any = getattr(s3transfer_exceptions, "S3CopyFailedError", ())
"""Raised by s3transfer that asks for parts by the tag of the first; an older one does not."""
U = TypeVar("U")

PART_BYTES = 8 * 1024 * 1024
PARALLEL_PARTS = 8
MOST_PARTS = 10_000
"""Parts that S3 takes of one object."""
_COPY_BYTES = 128 * 1024
READ_ATTEMPTS = 4
_RENEWAL_S = 5.0
"""Seconds until a client is made anew that could not be made, or without credentials."""
_MAX_ETAGS = 10_000
"""Fetched objects of which the ETag is remembered; one that is forgotten is sent again."""
_NOT_MODIFIED = "304"
_NOT_IMPLEMENTED = 501
_PUBLICATION = "statestore-publication"
_BROKEN_READS = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError, HTTPError)


@dataclass(frozen=True, slots=True)
class _Target:
    """Arguments of a PUT: destination, condition, and how the object is kept."""

    names: dict[str, Any]
    is_new: dict[str, Any]
    how: dict[str, Any]


class S3FileIO:
    """FileIO whose paths are `/bucket/key`; counts its requests itself, tries included.

    Args:
        cache_directory: Local directory into which `fetch` writes; owned by the caller.
        settings: How to reach the server.
        cache: Local copies shared with other storages; None for its own, in cache_directory and
            within the settings' cache_bytes.
    """

    def __init__(
        self,
        cache_directory: str,
        settings: S3Settings | None = None,
        cache: FetchCache | None = None,
    ) -> None:
        self._settings = settings or S3Settings()
        self._ids = RandomIds()
        self._cache = cache or FetchCache(cache_directory, self._settings.cache_bytes)
        self._lock = threading.Lock()
        self._etags: OrderedDict[str, str] = OrderedDict()
        self._parts = CallPool(PARALLEL_PARTS, thread_name_prefix="s3-part")
        # Now: a thread has the priority of the one that starts it, and a merge has a low one.
        started = threading.Barrier(PARALLEL_PARTS)
        try:
            wait([self._parts.submit(started.wait) for _ in range(PARALLEL_PARTS)])
        except BaseException:  # as where no more threads may be
            started.abort()
            raise
        self._client_lock = threading.Lock()
        self._made: Any = None
        self._make(self._settings.profile_mark())

    @property
    def _client(self) -> Any:
        """The client, made anew where the AWS profile has changed, or credentials were missing.

        A profile that is gone, empty, or cannot be read, perhaps since it is being written, leaves
        the client as it is.
        """
        mark = self._settings.profile_mark()
        if self._is_due(mark):
            with self._client_lock, suppress(InvalidArgumentError, StorageError):
                is_whole = all(now or not was for was, now in zip(self._made_of, mark, strict=True))
                if is_whole and self._is_due(mark):
                    self._make(mark)
        return self._made

    @property
    def _endpoint(self) -> str:
        return str(self._made.meta.endpoint_url)

    def _is_due(self, mark: ProfileMark) -> bool:
        return mark != self._made_of or time.monotonic() >= self._due

    def _make(self, mark: ProfileMark) -> None:
        # A service that gives out credentials may be away for a moment, and has none then.
        self._made_of, self._due = mark, time.monotonic() + _RENEWAL_S
        made, has_credentials = make_client(self._settings)
        if has_credentials:
            self._due = math.inf
        if has_credentials or self._made is None:
            self._made = made

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:  # noqa: ARG002
        """See FileIO; an object that was accepted is durable."""
        with named_errors("read a file to publish", local_path):
            size = os.path.getsize(local_path)

        def put(target: _Target) -> None:
            if size <= 2 * PART_BYTES:
                with ReadFileChunk.from_filename(local_path, 0, size, [step]) as file:
                    self._put(file, target)
            else:
                self._put_in_parts(local_path, size, target)

        self._publish(path, put, overwrite=overwrite)
        os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:  # noqa: ARG002
        """See FileIO."""
        self._publish(path, lambda target: self._put(data, target), overwrite=overwrite)

    def sync(self, path: str) -> None:
        """See FileIO; nothing to wait for."""

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        try:
            data, size, _ = self._read(path, f"bytes=-{num_bytes}")
        except StorageError as error:
            # The only file of which no byte can be asked for.
            if error.fields.get("code") != "InvalidRange":
                raise
            return b"", 0
        return data, size

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        if length == 0:
            return b""
        try:
            return self._read(path, f"bytes={offset}-{offset + length - 1}")[0]
        except StorageError as error:
            if error.fields.get("code") != "InvalidRange":
                raise
            return b""

    def fetch(self, path: str) -> str:
        """See FileIO; one local file for each content, the least recently used ones are deleted.

        An object that has not changed since it was fetched is not sent again.
        """
        held, unless_held = self._find(path)
        try:
            first, size, etag = self._read(path, f"bytes=0-{PART_BYTES - 1}", **unless_held)
        except StorageError as error:
            if held is not None and error.fields.get("code") == _NOT_MODIFIED:
                return held
            if error.fields.get("code") != "InvalidRange":
                raise
            first, size, etag = b"", 0, "empty"

        def write(local_path: str) -> None:
            Path(local_path).write_bytes(first)
            self._fetch_parts(path, etag, local_path, _parts_of(len(first), size))

        return self._keep(path, etag, size, write)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO; one local file for each content and slices, otherwise as `fetch`."""
        (start, end), *rest = chain.from_iterable(
            _parts_of(offset, offset + length) for offset, length in slices
        )
        held, unless_held = self._find(path, slices)
        try:
            first, _, etag = self._read(path, f"bytes={start}-{end - 1}", **unless_held)
        except StorageError as error:
            if held is None or error.fields.get("code") != _NOT_MODIFIED:
                raise
            return held

        def write(local_path: str) -> None:
            with open(local_path, "wb") as file:
                file.seek(start)
                file.write(first)
                file.truncate(size)
            self._fetch_parts(path, etag, local_path, rest)

        return self._keep(path, etag, slices_size(slices), write, slices)

    def delete(self, path: str) -> None:
        """See FileIO."""
        bucket, key = _split(path)
        with named_s3_errors("delete a file", path, self._endpoint):
            self._client.delete_object(Bucket=bucket, Key=key)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO; if the server refuses some files, the others are still deleted."""
        bucket, _ = _split(directory)
        keys = [_split(f"{directory}/{name}")[1] for name in names]
        with named_s3_errors("delete files", directory, self._endpoint):
            refused = self._delete(bucket, keys)
            for attempt in range(1, self._settings.max_attempts):
                if not (keys := [key for key, error in refused.items() if is_passing(error)]):
                    break
                time.sleep(wait_s(attempt))
                refused = {key: refused[key] for key in refused.keys() - keys}
                refused |= self._delete(bucket, keys)
        for key, error in refused.items():
            with named_s3_errors("delete a file", f"/{bucket}/{key}", self._endpoint):
                raise error

    def _delete(self, bucket: str, keys: Sequence[str]) -> dict[str, ClientError]:
        """Delete objects; return the errors of those that the server refused."""
        objects = [{"Key": key} for key in keys]
        answer = self._client.delete_objects(
            Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
        )
        errors = answer.get("Errors", [])
        return {one["Key"]: ClientError({"Error": one}, "DeleteObjects") for one in errors}

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        return self._list(directory, "/")

    def make_directory(self, directory: str) -> None:
        """See FileIO; directories exist by being named."""

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """See TreeFileIO."""
        return self._list(directory, "")

    def list_directories(self, directory: str) -> builtins.list[str]:
        """See TreeFileIO."""
        prefix, pages = self._pages(directory, "/")
        with named_s3_errors("list a directory", directory, self._endpoint):
            return [
                found["Prefix"].removeprefix(prefix).rstrip("/")
                for page in pages
                for found in page.get("CommonPrefixes", [])
            ]

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """See TreeFileIO; a thousand objects a request, those that mark directories included."""
        names = [info.name for info in self._list(directory, "", has_marks=True)]
        for batch in delete_batches(names):
            ask()
            self.delete_files(directory, batch)

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:  # noqa: ARG002
        """See TreeFileIO."""
        return isinstance(other, S3FileIO) and other._settings == self._settings  # noqa: SLF001

    def link(self, path: str, new_path: str, *, sync: bool) -> None:  # noqa: ARG002
        """See TreeFileIO; the server copies, in parts where the object is large."""
        bucket, key = _split(path)
        new_bucket, new_key = _split(new_path)
        with named_s3_errors("copy a file", path, self._endpoint):
            try:
                self._client.head_object(Bucket=new_bucket, Key=new_key)
            except ClientError as error:
                if status_of(error) != 404:
                    raise
            else:
                raise existing_file(new_path)
            source = {"Bucket": bucket, "Key": key}
            try:
                self._copy(source, new_bucket, new_key)
            except _REPLACED as error:  # each part is asked for by the tag of the first
                raise replaced_file(path) from error
            except ClientError as error:
                # Of the copy in parts that had ended the reply was lost.
                if not is_upload_gone(error) or not self._is_like(path, new_path):
                    raise

    def _copy(self, source: dict[str, str], bucket: str, key: str) -> None:
        """Copy without tags, which another permission shows than that of the object's bytes."""
        how = {"TaggingDirective": "REPLACE", **self._encryption()}
        try:
            self._client.copy(source, bucket, key, ExtraArgs=how)
        except ClientError as error:
            if status_of(error) != _NOT_IMPLEMENTED:  # as servers say that have no tags
                raise
            self._client.copy(source, bucket, key, ExtraArgs=self._encryption())

    def _is_like(self, *paths: str) -> bool:
        """Return whether objects are there, of one size."""
        names = [dict(zip(("Bucket", "Key"), _split(path), strict=True)) for path in paths]
        try:
            return len({self._client.head_object(**one)["ContentLength"] for one in names}) == 1
        except (ClientError, BotoCoreError):
            return False

    def _list(
        self, directory: str, delimiter: str, *, has_marks: bool = False
    ) -> builtins.list[FileInfo]:
        prefix, pages = self._pages(directory, delimiter)
        with named_s3_errors("list a directory", directory, self._endpoint):
            return [
                FileInfo(
                    found["Key"].removeprefix(prefix),
                    found["Size"],
                    int(found["LastModified"].timestamp() * 1000),
                )
                for page in pages
                for found in page.get("Contents", [])
                # Other tools mark a directory by an object of its name.
                if has_marks or not found["Key"].endswith("/")
            ]

    def _pages(self, directory: str, delimiter: str) -> tuple[str, Iterable[dict[str, Any]]]:
        """Return the prefix of a directory's keys, and the pages of its listing."""
        bucket, key = _split(directory)
        prefix = f"{key}/" if key else ""
        paginator = self._client.get_paginator("list_objects_v2")
        return prefix, paginator.paginate(Bucket=bucket, Prefix=prefix, Delimiter=delimiter)

    def _find(
        self, path: str, slices: Sequence[tuple[int, int]] = ()
    ) -> tuple[str | None, dict[str, str]]:
        """Return the local copy, if any, and the condition to read only another object."""
        with self._lock:
            etag = self._etags.get(path)
        held = None if etag is None else self._cache.find(self._copy_name(path, etag, slices))
        return held, {} if etag is None or held is None else {"IfNoneMatch": etag}

    def _keep(
        self,
        path: str,
        etag: str,
        size: int,
        write: Callable[[str], None],
        slices: Sequence[tuple[int, int]] = (),
    ) -> str:
        """Return the local copy of an object, made when there is none, and remember it by path."""
        with named_errors("keep a fetched file", self._cache.directory):
            copy = self._cache.get(self._copy_name(path, etag, slices), size, write)
        with self._lock:
            self._etags[path] = etag
            self._etags.move_to_end(path)
            if len(self._etags) > _MAX_ETAGS:
                self._etags.popitem(last=False)
        return copy

    def _copy_name(self, path: str, etag: str, slices: Sequence[tuple[int, int]]) -> str:
        identity = f"{self._settings.endpoint}{path} {etag}"
        name = f"{digest_of(identity.encode())}-{os.path.basename(path)}"
        return sliced_name(name, slices) if slices else name

    def _publish(self, path: str, put: Callable[[_Target], None], *, overwrite: bool) -> None:
        """Put an object; if the reply was lost, look whether it is there after all."""
        bucket, key = _split(path)
        publication = self._ids.new_id()
        how = {"Metadata": {_PUBLICATION: publication}, **self._encryption()}
        target = _Target(
            {"Bucket": bucket, "Key": key}, {} if overwrite else {"IfNoneMatch": "*"}, how
        )
        with named_s3_errors("publish a file", path, self._endpoint):
            for attempt in range(1, self._settings.max_attempts + 1):
                try:
                    return put(target)
                except (ClientError, BotoCoreError) as error:
                    if not is_certain(error) and self._holds(target, publication):
                        return None
                    if not is_conflict(error) or attempt == self._settings.max_attempts:
                        raise
                time.sleep(wait_s(attempt))
        raise AssertionError("unreachable")

    def _encryption(self) -> dict[str, str]:
        """Return how the server is to encrypt an object, as arguments of a request."""
        named = {
            "ServerSideEncryption": self._settings.sse,
            "SSEKMSKeyId": self._settings.sse_kms_key,
        }
        return {name: value for name, value in named.items() if value}

    def _holds(self, target: _Target, publication: str) -> bool:
        try:
            found = self._client.head_object(**target.names)
        except (ClientError, BotoCoreError):
            return False
        # Some servers, and proxies before them, send names of headers in upper case.
        marks = {name.lower(): mark for name, mark in found["Metadata"].items()}
        return bool(marks.get(_PUBLICATION) == publication)

    def _put(self, body: bytes | BinaryIO, target: _Target) -> None:
        answer = self._client.put_object(Body=body, **target.names, **target.is_new, **target.how)
        self._check_put(answer, "ETag", target)

    def _check_put(self, answer: dict[str, Any], field: str, target: _Target) -> Any:
        path = "/{Bucket}/{Key}".format(**target.names)
        return check_answer(answer, field, "publish a file", path, self._endpoint)

    def _put_in_parts(self, local_path: str, size: int, target: _Target) -> None:
        part_bytes = part_bytes_of(size)
        begun = self._client.create_multipart_upload(**target.names, **target.how)
        upload = self._check_put(begun, "UploadId", target)

        def put(number: int) -> dict[str, Any]:
            start = (number - 1) * part_bytes
            with ReadFileChunk.from_filename(local_path, start, part_bytes, [step]) as part:
                answer = self._client.upload_part(
                    Body=part, PartNumber=number, UploadId=upload, **target.names
                )
            return {"PartNumber": number, "ETag": self._check_put(answer, "ETag", target)}

        num_parts = -(-size // part_bytes)
        try:
            parts = self._in_parallel(put, range(1, num_parts + 1))
            done = self._client.complete_multipart_upload(
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **target.names,
                **target.is_new,
            )
            self._check_put(done, "ETag", target)
        except BaseException:
            # Parts of an upload that is not ended are stored, and paid for, without end.
            with suppress(ClientError, BotoCoreError):
                self._client.abort_multipart_upload(UploadId=upload, **target.names)
            raise

    def _fetch_parts(
        self, path: str, etag: str, local_path: str, parts: Iterable[tuple[int, int]]
    ) -> None:
        """Write parts of an object to the same places of a present local file."""

        def fetch(part: tuple[int, int]) -> None:
            start, end = part

            def take(body: StreamingBody) -> None:
                # By its name: after a failure elsewhere the file is deleted under this thread.
                with open(local_path, "r+b") as file:
                    file.seek(start)
                    file.writelines(_chunks_of(body))

            try:
                self._get(path, f"bytes={start}-{end - 1}", take, IfMatch=etag)
            except FencedError as error:
                raise replaced_file(path) from error

        self._in_parallel(fetch, parts)

    def _read(self, path: str, byte_range: str, **conditions: str) -> tuple[bytes, int, str]:
        """Return bytes, size of the whole object and its ETag."""
        return self._get(path, byte_range, lambda body: b"".join(_chunks_of(body)), **conditions)

    def _get(
        self, path: str, byte_range: str, take: Callable[[StreamingBody], T], **conditions: str
    ) -> tuple[T, int, str]:
        """Return what `take` makes of bytes, size of the whole object and its ETag.

        It is called again, with all of them, if the bytes end early.
        """
        bucket, key = _split(path)
        with named_s3_errors("read a file", path, self._endpoint):
            for attempt in range(READ_ATTEMPTS):
                # What raises here was tried as often as the settings say.
                answer = self._client.get_object(
                    Bucket=bucket, Key=key, Range=byte_range, **conditions
                )
                etag = check_answer(answer, "ETag", "read a file", path, self._endpoint)
                try:
                    taken = take(answer["Body"])
                except _BROKEN_READS as error:
                    if attempt == READ_ATTEMPTS - 1:
                        if isinstance(error, BotoCoreError):
                            raise
                        raise ResponseStreamingError(error=error) from error
                else:
                    # A server may answer for the whole object, as some do for an empty one.
                    whole = answer.get("ContentRange", f"/{answer['ContentLength']}")
                    return taken, int(whole.rpartition("/")[2]), etag
        raise AssertionError("unreachable")

    def _in_parallel(self, do: Callable[[T], U], items: Iterable[T]) -> builtins.list[U]:
        """Return the results, in order; all are kept until the last, so they must be small."""
        futures = [self._parts.submit(do, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            # Of an upload that is aborted meanwhile, a part that arrives later would stay.
            wait([future for future in futures if not future.cancel()])


def part_bytes_of(size: int) -> int:
    """Return the bytes of a part such that a file is sent in at most 10,000.

    Args:
        size: Bytes of the file; S3 takes none above 5 TB.

    Returns:
        A multiple of PART_BYTES.
    """
    num_units = -(-size // (MOST_PARTS * PART_BYTES))
    return max(1, num_units) * PART_BYTES


def _chunks_of(body: StreamingBody) -> Iterator[bytes]:
    while data := body.read(_COPY_BYTES):
        step()
        yield data


def _parts_of(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of a byte range."""
    for offset in range(start, end, PART_BYTES):
        yield offset, min(offset + PART_BYTES, end)


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key
