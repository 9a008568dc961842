"""Settings and URIs of S3, without boto3, which takes long to import."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from statestore.core.options import StateStoreOptions

ProfileMark = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach S3. The AWS chain (environment, profile, role) fills in empty values.

    Attributes:
        endpoint: URL of a server other than AWS's own.
        region: For example eu-central-1.
        path_style: Whether the bucket is part of the path instead of the host name; False takes the
            AWS profile's addressing_style, by default the path on a named endpoint.
        sse: Server-side encryption, AES256 or aws:kms.
        sse_kms_key: ID of the key for aws:kms.
        access_key, secret_key, session_token: Credentials; never shown.
        max_attempts: Tries of a request that the server throttled or did not answer, at least 1;
            they wait longer from try to try, with jitter (botocore's "standard" mode).
        timeout_s: Seconds to wait for an answer's next bytes, and, 5 at most, for a connection.
        cache_bytes: Fetched files kept on the local disk, in bytes.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool = False
    sse: str = ""
    sse_kms_key: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    max_attempts: int = 8
    timeout_s: float = 30.0
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidArgumentError(
                "one half of a pair of S3 credentials is missing",
                kind="invalid-option",
                missing="s3.secretKey" if self.access_key else "s3.accessKey",
                to_fix="set both, or neither to take the AWS chain's",
            )
        if self.session_token and not self.access_key:
            raise InvalidArgumentError(
                "the token of temporary S3 credentials is without its keys",
                kind="invalid-option",
                missing="s3.accessKey, s3.secretKey",
                to_fix="set them beside s3.sessionToken, or leave all three out to take the AWS "
                "chain's",
            )
        if self.sse_kms_key and self.sse != "aws:kms":
            raise InvalidArgumentError(
                "S3 takes the ID of a key with aws:kms alone",
                kind="invalid-option",
                **{"s3.sseKmsKey": self.sse_kms_key, "s3.sse": self.sse},
                to_fix="set s3.sse to aws:kms, or leave s3.sseKmsKey out",
            )

    def profile_mark(self) -> ProfileMark:
        """Return what changes with the files of the AWS profile, whose keys a client reads once.

        Of a file that is not there, or is empty, it is empty.
        """
        if self.access_key:
            return ()
        files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
        marks: list[tuple[int, ...]] = []
        for variable, name in files.items():
            # Of a user without a home, as in some containers, pathlib raises.
            path = os.path.expanduser(os.environ.get(variable, f"~/.aws/{name}"))
            try:
                found = os.stat(path)
                marks.append((found.st_mtime_ns, found.st_size) if found.st_size else ())
            except OSError:
                marks.append(())
        return tuple(marks)

    @classmethod
    def from_options(cls, options: StateStoreOptions) -> S3Settings:
        """Return the settings of a query's options."""
        return cls(
            endpoint=options.s3_endpoint,
            region=options.s3_region,
            path_style=options.s3_path_style,
            sse=options.s3_sse,
            sse_kms_key=options.s3_sse_kms_key,
            access_key=options.s3_access_key,
            secret_key=options.s3_secret_key,
            session_token=options.s3_session_token,
            max_attempts=options.s3_max_attempts,
            timeout_s=options.s3_timeout_ms / 1000,
            cache_bytes=options.fetch_cache_bytes,
        )


def resolve_s3_path(uri: str) -> str:
    """Return the path `/bucket/key` of an `s3:` or `s3a:` URI.

    Slashes that follow each other are one, `.` and `..` are resolved: as in Hadoop's `Path`, by
    which Spark opens the same URI.

    Raises:
        InvalidArgumentError: It names no bucket, or has credentials or a port in it.
    """
    bucket, _, key = uri.partition("://")[2].partition("/")
    if "@" in bucket or ":" in bucket:  # the URI is not shown: somebody's secret may be in it
        raise InvalidArgumentError(
            "storage URI has credentials or a port in it",
            kind="unsupported-scheme",
            scheme=uri.partition(":")[0],
            to_fix="give it as s3://bucket/path: credentials by options or the AWS chain, a server "
            "by s3.endpoint",
        )
    if not bucket:
        raise InvalidArgumentError(
            "storage URI names no bucket",
            kind="unsupported-scheme",
            uri=uri,
            to_fix="give it as s3://bucket/path",
        )
    return f"/{bucket}{posixpath.normpath('/' + key.lstrip('/'))}".rstrip("/")
