"""Storage on S3, and on whatever speaks its protocol, through boto3.

A file is one object. Objects appear whole or not at all, so nothing is renamed and nothing is
cleaned up; large ones are sent and fetched in parts, several at a time.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from statestore.core.errors import StorageError
from statestore.core.ids import IdSource, RandomIds
from statestore.io.fetch_cache import FetchCache, sliced_name, slices_size, write_slices
from statestore.io.file_io import FileInfo, FileIO
from statestore.io.local import named_errors
from statestore.io.s3_client import is_certain, make_client, named_s3_errors, status_of
from statestore.io.s3_settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")
U = TypeVar("U")

PART_BYTES = 8 * 1024 * 1024
PARALLEL_PARTS = 8
READ_ATTEMPTS = 4
_DELETED_AT_ONCE = 1000
_MAX_ETAGS = 10_000
"""Fetched objects of which the ETag is remembered; one that is forgotten is sent again."""
_NOT_MODIFIED = "304"
_PUBLICATION = "statestore-publication"
_BROKEN_READS = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)


@dataclass(frozen=True, slots=True)
class _Target:
    """Arguments of a PUT: where to, on which condition, and how the object is kept."""

    names: dict[str, Any]
    is_new: dict[str, Any]
    how: dict[str, Any]


class S3FileIO:
    """FileIO whose paths are `/bucket/key`; counts its requests itself, tries included.

    Args:
        cache_directory: Local directory into which `fetch` writes; owned by the caller.
        settings: How to reach the server.
        ids: Source of the identifiers by which a publication recognises itself.
    """

    def __init__(
        self, cache_directory: str, settings: S3Settings | None = None, ids: IdSource | None = None
    ) -> None:
        self._settings = settings or S3Settings()
        self._ids = ids or RandomIds()
        self._cache = FetchCache(cache_directory, self._settings.cache_bytes)
        self._lock = threading.Lock()
        self._etags: OrderedDict[str, str] = OrderedDict()
        self._parts = ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="s3-part")
        self._client = make_client(self._settings)

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:  # noqa: ARG002
        """See FileIO; an object that was accepted is durable."""
        with self._publication(path, overwrite=overwrite) as target:
            if os.path.getsize(local_path) <= 2 * PART_BYTES:
                with open(local_path, "rb") as file:
                    self._client.put_object(
                        Body=file, **target.names, **target.is_new, **target.how
                    )
            else:
                self._put_in_parts(local_path, target)
        os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:  # noqa: ARG002
        """See FileIO."""
        with self._publication(path, overwrite=overwrite) as target:
            self._put(data, target)

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

        An object that is still what it was when it was fetched last is not sent again.
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

        def part(offset: int) -> bytes:
            last = min(offset + PART_BYTES, size) - 1
            return self._read(path, f"bytes={offset}-{last}", IfMatch=etag)[0]

        def write(local_path: str) -> None:
            with open(local_path, "wb") as file:
                file.write(first)
                file.writelines(self._in_parallel(part, range(len(first), size, PART_BYTES)))

        with named_errors("fetch a file", path):
            return self._keep(path, etag, size, write)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO; one local file for each content and slices, otherwise as `fetch`."""
        parts = [
            (start, min(PART_BYTES, offset + length - start))
            for offset, length in slices
            for start in range(offset, offset + length, PART_BYTES)
        ]

        def read(part: tuple[int, int], **conditions: str) -> tuple[bytes, str]:
            start, length = part
            data, _, etag = self._read(path, f"bytes={start}-{start + length - 1}", **conditions)
            return data, etag

        held, unless_held = self._find(path, slices)
        try:
            first, etag = read(parts[0], **unless_held)
        except StorageError as error:
            if held is None or error.fields.get("code") != _NOT_MODIFIED:
                raise
            return held
        rest = self._in_parallel(lambda part: read(part, IfMatch=etag)[0], parts[1:])

        def write(local_path: str) -> None:
            found = chain([first], rest)
            write_slices(local_path, size, parts, lambda *_: next(found))

        with named_errors("fetch a file", path):
            return self._keep(path, etag, slices_size(slices), write, slices)

    def delete(self, path: str) -> None:
        """See FileIO."""
        bucket, key = _split(path)
        with named_s3_errors("delete a file", path, self._settings):
            self._client.delete_object(Bucket=bucket, Key=key)

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
        with named_s3_errors("list a directory", directory, self._settings):
            return [
                found["Prefix"].removeprefix(prefix).rstrip("/")
                for page in pages
                for found in page.get("CommonPrefixes", [])
            ]

    def delete_tree(self, directory: str) -> None:
        """See TreeFileIO; a thousand objects a request."""
        bucket, _ = _split(directory)
        files = self._list(directory, "")
        with named_s3_errors("delete a directory", directory, self._settings):
            for start in range(0, len(files), _DELETED_AT_ONCE):
                keys = [
                    {"Key": _split(f"{directory}/{info.name}")[1]}
                    for info in files[start : start + _DELETED_AT_ONCE]
                ]
                answer = self._client.delete_objects(
                    Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
                )
                for refused in answer.get("Errors", []):
                    raise ClientError({"Error": refused}, "DeleteObjects")

    def shares(self, other: FileIO) -> bool:
        """See TreeFileIO."""
        return isinstance(other, S3FileIO) and other._settings == self._settings  # noqa: SLF001

    def link(self, path: str, new_path: str, *, sync: bool) -> None:  # noqa: ARG002
        """See TreeFileIO; the server copies, in parts where the object is large."""
        bucket, key = _split(path)
        new_bucket, new_key = _split(new_path)
        with named_s3_errors("copy a file", path, self._settings):
            try:
                self._client.head_object(Bucket=new_bucket, Key=new_key)
            except ClientError as error:
                if status_of(error) != 404:
                    raise
            else:
                raise ClientError(
                    {"Error": {}, "ResponseMetadata": {"HTTPStatusCode": 412}}, "CopyObject"
                )
            how = {}
            if self._settings.sse:
                how["ServerSideEncryption"] = self._settings.sse
            if self._settings.sse_kms_key:
                how["SSEKMSKeyId"] = self._settings.sse_kms_key
            self._client.copy({"Bucket": bucket, "Key": key}, new_bucket, new_key, ExtraArgs=how)

    def _list(self, directory: str, delimiter: str) -> builtins.list[FileInfo]:
        prefix, pages = self._pages(directory, delimiter)
        with named_s3_errors("list a directory", directory, self._settings):
            return [
                FileInfo(
                    found["Key"].removeprefix(prefix),
                    found["Size"],
                    int(found["LastModified"].timestamp() * 1000),
                )
                for page in pages
                for found in page.get("Contents", [])
                # Other tools mark a directory by an object of its name.
                if not found["Key"].endswith("/")
            ]

    def _pages(self, directory: str, delimiter: str) -> tuple[str, Iterable[dict[str, Any]]]:
        """Return what the keys of a directory begin with, and the pages of its listing."""
        bucket, key = _split(directory)
        prefix = f"{key}/" if key else ""
        paginator = self._client.get_paginator("list_objects_v2")
        return prefix, paginator.paginate(Bucket=bucket, Prefix=prefix, Delimiter=delimiter)

    def _find(
        self, path: str, slices: Sequence[tuple[int, int]] = ()
    ) -> tuple[str | None, dict[str, str]]:
        """Return the local copy, if any, and the condition to read the object unless it is that."""
        with self._lock:
            etag = self._etags.get(path)
        held = None if etag is None else self._cache.find(_copy_name(path, etag, slices))
        return held, {} if etag is None or held is None else {"IfNoneMatch": etag}

    def _keep(
        self,
        path: str,
        etag: str,
        size: int,
        write: Callable[[str], None],
        slices: Sequence[tuple[int, int]] = (),
    ) -> str:
        """Return the local copy of an object, made when there is none, to be found by its path."""
        copy = self._cache.get(_copy_name(path, etag, slices), size, write)
        with self._lock:
            self._etags[path] = etag
            self._etags.move_to_end(path)
            if len(self._etags) > _MAX_ETAGS:
                self._etags.popitem(last=False)
        return copy

    @contextmanager
    def _publication(self, path: str, *, overwrite: bool) -> Iterator[_Target]:
        """Put an object; where the reply was lost, look whether it is there after all."""
        bucket, key = _split(path)
        publication = self._ids.new_id()
        how: dict[str, Any] = {"Metadata": {_PUBLICATION: publication}}
        if self._settings.sse:
            how["ServerSideEncryption"] = self._settings.sse
        if self._settings.sse_kms_key:
            how["SSEKMSKeyId"] = self._settings.sse_kms_key
        target = _Target(
            {"Bucket": bucket, "Key": key}, {} if overwrite else {"IfNoneMatch": "*"}, how
        )
        with named_s3_errors("publish a file", path, self._settings):
            try:
                yield target
            except (ClientError, BotoCoreError) as error:
                if is_certain(error) or not self._holds(target, publication):
                    raise

    def _holds(self, target: _Target, publication: str) -> bool:
        try:
            found = self._client.head_object(**target.names)
        except (ClientError, BotoCoreError):
            return False
        return bool(found["Metadata"].get(_PUBLICATION) == publication)

    def _put(self, body: bytes | BinaryIO, target: _Target) -> None:
        self._client.put_object(Body=body, **target.names, **target.is_new, **target.how)

    def _put_in_parts(self, local_path: str, target: _Target) -> None:
        upload = self._client.create_multipart_upload(**target.names, **target.how)["UploadId"]

        def put(number: int) -> dict[str, Any]:
            with open(local_path, "rb") as file:
                data = os.pread(file.fileno(), PART_BYTES, (number - 1) * PART_BYTES)
            answer = self._client.upload_part(
                Body=data, PartNumber=number, UploadId=upload, **target.names
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        num_parts = -(-os.path.getsize(local_path) // PART_BYTES)
        try:
            parts = list(self._in_parallel(put, range(1, num_parts + 1)))
            self._client.complete_multipart_upload(
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **target.names,
                **target.is_new,
            )
        except BaseException:
            # Parts of an upload that is not ended are stored, and paid for, without end.
            with suppress(ClientError, BotoCoreError):
                self._client.abort_multipart_upload(UploadId=upload, **target.names)
            raise

    def _read(self, path: str, byte_range: str, **conditions: str) -> tuple[bytes, int, str]:
        """Return bytes, size of the whole object and its ETag."""
        bucket, key = _split(path)
        with named_s3_errors("read a file", path, self._settings):
            for attempt in range(READ_ATTEMPTS):
                try:
                    answer = self._client.get_object(
                        Bucket=bucket, Key=key, Range=byte_range, **conditions
                    )
                    data = answer["Body"].read()
                except _BROKEN_READS:
                    if attempt == READ_ATTEMPTS - 1:
                        raise
                else:
                    # A server may answer for the whole object, as some do for an empty one.
                    whole = answer.get("ContentRange", f"/{len(data)}")
                    return data, int(whole.rpartition("/")[2]), answer["ETag"]
        raise AssertionError("unreachable")

    def _in_parallel(self, do: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        # Each in a context of its own, so that its requests count to the call.
        futures = [self._parts.submit(copy_context().run, do, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _copy_name(path: str, etag: str, slices: Sequence[tuple[int, int]]) -> str:
    name = f"{etag.strip(chr(34))}-{os.path.basename(path)}"
    return sliced_name(name, slices) if slices else name


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key
