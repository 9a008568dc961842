"""Storages by URI, and paths on them."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Generic, TypeVar

from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.io.fetch_cache import FetchCache
from statestore.io.hadoop import HadoopFileIO, resolve_hadoop_uri, split_hadoop_uri
from statestore.io.hadoop_process import hadoop_files
from statestore.io.local import LocalFileIO, resolve_local_path, written_scheme
from statestore.io.s3_settings import S3Settings, resolve_s3_path

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.io.file_io import FileIO, TreeFileIO

Storage = TypeVar("Storage", bound="FileIO")
S3_SCHEMES = ("s3", "s3a")
_OF_DEFAULT = ("hdfs", "viewfs")
"""Schemes whose authority a URI may leave out or spell in several ways."""
_ENCODED = re.compile(r"file:.*%[0-9A-Fa-f]{2}", re.DOTALL)


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI, `file` for a plain path, `s3` for all schemes of S3."""
    scheme = written_scheme(uri) or "file"
    return "s3" if scheme in S3_SCHEMES else scheme


def is_hadoop(uri: str) -> bool:
    """Return whether only Hadoop opens a URI: its scheme is neither `file` nor one of S3's."""
    return scheme_of(uri) not in ("file", "s3")


def require_unencoded(uri: str) -> None:
    """Check that a query which is given a URI finds the directory that it names here.

    Raises:
        InvalidArgumentError: It is a `file:` URI that is percent-encoded, which Spark does not
            decode.
    """
    if _ENCODED.match(uri):
        raise InvalidArgumentError(
            "a query would look elsewhere: Spark does not decode a percent-encoded file: URI",
            uri=uri,
            to_fix="give the path, without file:",
        )


def absolute_uri(uri: str) -> str:
    """Return the URI of a directory that a caller names, perhaps by a relative path.

    Every function and command that takes a checkpoint, a savepoint or a new directory begins with
    this. The options of a query are read on other machines, so their paths must be absolute.

    Args:
        uri: A path, also below the working directory or, with `~`, a home directory; or a URI. A
            slash at its end says nothing.

    Raises:
        InvalidArgumentError: It is empty.
    """
    if not uri:
        raise InvalidArgumentError(
            "no directory is named",
            uri=uri,
            to_fix="give a path or a URI; on a command line, see that the shell's variable is set",
        )
    if uri.startswith("file:") or scheme_of(uri) != "file":
        stripped = uri.rstrip("/")
        return uri if stripped.endswith(":") else stripped
    return os.path.abspath(os.path.expanduser(uri))


def hadoop_uri(uri: str) -> str:
    """Return Hadoop's URI of a directory: not encoded, whatever its default file system."""
    if scheme_of(uri) != "file":
        return uri.rstrip("/")
    return f"file:{resolve_path(absolute_uri(uri))}"


def resolve_path(uri: str, *, is_encoded: bool = True) -> str:
    """Return the path of a URI on the storage of its scheme.

    Args:
        uri: `file:`, `s3:` or `s3a:` URI, or a local path.
        is_encoded: Whether a `file:` URI is percent-encoded; see `resolve_local_path`.

    Raises:
        InvalidArgumentError: Another scheme, no bucket, or no absolute path (kind
            unsupported-scheme).
    """
    if scheme_of(uri) == "s3":
        return resolve_s3_path(uri)
    return resolve_local_path(uri, is_encoded=is_encoded)


def place_uri(uri: str, *, is_encoded: bool = True) -> str:
    """Return the one URI of a place whose scheme or slashes may be spelled in several ways.

    Args:
        uri: As `AllStorages.open`.
        is_encoded: As `resolve_path`.

    Returns:
        An absolute path, an `s3://` URI, or the URI of a file system of Hadoop's and a path there.
    """
    match scheme_of(uri):
        case "file":
            return resolve_path(uri, is_encoded=is_encoded)
        case "s3":
            return f"s3:/{resolve_path(uri)}"
        case _:
            return "".join(split_hadoop_uri(uri))


def memory_root(uri: str, *, is_encoded: bool = True) -> str:
    """Return the directory in checkpoint memory of a place, which no other file system's has.

    Arguments as of `place_uri`. A namenode does not count: a URI may leave it out.
    """
    placed = place_uri(uri, is_encoded=is_encoded)
    scheme = scheme_of(placed)
    return f"{scheme}:{split_hadoop_uri(placed)[1]}" if scheme in _OF_DEFAULT else placed


def is_within(uri: str, directory: str) -> bool:
    """Return whether a URI names a directory or a path in it, behind links and spellings.

    Args:
        uri: An absolute path, or a URI of any scheme that Spark opens.
        directory: Likewise.

    Raises:
        InvalidArgumentError, StorageError: As `resolve_path`, or Hadoop cannot tell.
    """
    (storage, path), (other, above) = _place(uri), _place(directory)
    return storage == other and PurePosixPath(path).is_relative_to(above)


def is_same_directory(uri: str, other: str) -> bool:
    """Return whether two URIs name one directory, behind links and spellings.

    Where it cannot be told, as `is_within`, whether they are spelled alike.
    """
    one, two = absolute_uri(uri), absolute_uri(other)
    with suppress(StateStoreError):
        return is_within(one, two) and is_within(two, one)
    return one == two


def _place(uri: str) -> tuple[str, str]:
    """Return the storage that a URI names, and its path there."""
    match scheme_of(uri):
        case "file":
            return "file", os.path.realpath(resolve_path(uri))
        case "s3":
            return "s3", resolve_path(uri)
        case _:
            storage, path = resolve_hadoop_uri(hadoop_files(), uri)
            return ("file", os.path.realpath(path)) if storage == "file:///" else (storage, path)


class AllStorages(ABC, Generic[Storage]):
    """The storages that there are: whoever opens them by URI says how for each.

    An engine keeps them open for all its stores; an operation opens its own.
    """

    @abstractmethod
    def local(self) -> Storage:
        """Return the local disk."""

    @abstractmethod
    def s3(self) -> Storage:
        """Return S3.

        Raises:
            InvalidArgumentError, StorageError: As `open_s3`.
        """

    @abstractmethod
    def hadoop(self, file_system: str) -> Storage:
        """Return one of Hadoop's file systems, by its URI.

        Raises:
            InvalidArgumentError: There is no JVM that opens it (kind unsupported-scheme).
        """

    def open(self, uri: str, *, is_encoded: bool = True) -> tuple[Storage, str]:
        """Return the storage of a URI and the URI's path there.

        Args:
            uri: A local path, or a URI: `file:`, `s3:`, `s3a:`, or of another scheme that Hadoop
                opens.
            is_encoded: As `resolve_path`.

        Raises:
            InvalidArgumentError: No absolute path or no bucket (kind unsupported-scheme); or as the
                storage says.
        """
        match scheme_of(uri):
            case "s3":
                return self.s3(), resolve_path(uri)
            case "file":
                return self.local(), resolve_path(uri, is_encoded=is_encoded)
            case _:
                file_system, path = split_hadoop_uri(uri)
                return self.hadoop(file_system), path


@dataclass(frozen=True, slots=True)
class _OwnStorages(AllStorages["TreeFileIO"]):
    """Storages that are opened for one call."""

    cache_directory: str
    settings: S3Settings
    clock: Clock

    def local(self) -> TreeFileIO:
        return LocalFileIO(clock=self.clock)

    def s3(self) -> TreeFileIO:
        return open_s3(self.cache_directory, self.settings)

    def hadoop(self, file_system: str) -> TreeFileIO:
        cache = FetchCache(self.cache_directory, self.settings.cache_bytes)
        return HadoopFileIO(hadoop_files(), file_system, "", cache)


def open_storage(
    uri: str, cache_directory: str, s3: S3Settings | None, clock: Clock
) -> tuple[TreeFileIO, str]:
    """Return the storage of a URI and the URI's path there.

    Args:
        uri: As `AllStorages.open`.
        cache_directory: Local directory for files fetched from remote storage; owned by the caller.
        s3: How to reach S3, and how many fetched bytes are kept; None for defaults and the AWS
            chain.
        clock: Source of time.

    Raises:
        InvalidArgumentError: As `AllStorages.open`.
    """
    return _OwnStorages(cache_directory, s3 or S3Settings(), clock).open(uri)


def open_s3(
    cache_directory: str, settings: S3Settings, cache: FetchCache | None = None
) -> TreeFileIO:
    """Return storage on S3, with a client of its own; arguments as S3FileIO.

    Raises:
        InvalidArgumentError: boto3 is not installed, or too old (kind unsupported-scheme), or the
            settings contradict each other.
        StorageError: The AWS chain's credentials cannot be fetched (kind permission-denied).
    """
    try:
        # Imported here because it takes as long as all the rest, and is an extra.
        from statestore.io.s3 import S3FileIO
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            "storage on S3 needs a package that is not installed",
            kind="unsupported-scheme",
            missing=error.name,
            to_fix="pip install 'statestore[s3]', or boto3 where the package comes with the jar, "
            "on every executor",
        ) from error
    return S3FileIO(cache_directory, settings, cache=cache)
