"""Which storage a URI names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError
from statestore.io.local import LocalFileIO, resolve_local_path

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.io.file_io import FileIO
    from statestore.io.s3 import S3Settings

S3_SCHEMES = ("s3", "s3a")


def open_storage(
    uri: str, cache_directory: str, s3: S3Settings | None, clock: Clock
) -> tuple[FileIO, str]:
    """Return the storage of a URI and the URI's path there.

    Args:
        uri: `file:`, `s3:` or `s3a:` URI, or a local path.
        cache_directory: Local directory for files fetched from remote storage; owned by the caller.
        s3: How to reach S3; what the AWS chain finds when None.
        clock: Source of time.

    Raises:
        InvalidArgumentError: Another scheme, or boto3 is not installed (kind unsupported-scheme).
    """
    if uri.partition(":")[0] not in S3_SCHEMES:
        return LocalFileIO(clock=clock), resolve_local_path(uri)
    try:
        # Imported here because it takes as long as all the rest, and is an extra.
        from statestore.io.s3 import S3FileIO, resolve_s3_path
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            "storage on S3 needs a package that is not installed",
            kind="unsupported-scheme",
            uri=uri,
            missing=error.name,
            to_fix="pip install 'statestore[s3]'",
        ) from error
    return S3FileIO(cache_directory, s3), resolve_s3_path(uri)
