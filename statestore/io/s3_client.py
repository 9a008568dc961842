"""The boto3 client of an S3 storage: its connection, the count of its requests, its errors."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import (
    ConnectionError as ConnectionFailure,
)
from botocore.loaders import Loader
from urllib3.exceptions import LocationValueError

from statestore.core.errors import InvalidArgumentError, StorageError
from statestore.core.liveness import step
from statestore.core.version import OLDEST, is_too_old
from statestore.io.counting import count_request
from statestore.io.file_io import existing_file, missing_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.io.s3_settings import S3Settings

PARALLEL_REQUESTS = 64
_KINDS = (
    ("Get", "get"), ("Head", "head"), ("List", "list"), ("Delete", "delete"), ("Abort", "delete"),
)  # fmt: skip
"""Kind of a request by the first word of its operation; every other one is a put."""
_NO_UPLOAD = "NoSuchUpload"
_CONFLICT = "ConditionalRequestConflict"
_PASSING_STATUS = {429, 500, 502, 503, 504, 509}
_PASSING_CODES = {
    "BadDigest", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown",
    # Of KMS, with status 400, and of others.
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "Throttling",
    "ThrottledException", "ThrottlingException", "TooManyRequestsException",
}  # fmt: skip
_MOST_WAIT_S = 20.0
_MOST_CONNECT_S = 5.0
"""Most seconds for a connection: each address of the server's name is tried for so long."""
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
_NOT_FETCHED = (CredentialRetrievalError, MetadataRetrievalError)
_NOT_PERMITTED = {"AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
"""Codes of credentials that do not do, some of which come with status 400."""
_NO_MATTER_OF_PERMISSION = {
    "RequestTimeTooSkewed": "set the clock of this machine: the server's shows another time",
    "InvalidObjectState": "bring the object back from the archive, and leave state out of the "
    "bucket's rules that archive",
}
"""What to do about codes that come with status 403, too."""


class _Descriptions(Loader):  # type: ignore[misc]
    """S3 as botocore describes it, read once for all clients: most of a client's start is that."""

    @property
    def search_paths(self) -> list[str]:
        """Return a copy of the directories: each session of boto3 adds one, for no client."""
        return list(super().search_paths)


_descriptions = _Descriptions()


def make_client(settings: S3Settings) -> tuple[Any, bool]:
    """Return a client that counts every try on the wire, and whether it has credentials.

    Raises:
        InvalidArgumentError: The settings, or the AWS profile, name no server that can be reached;
            or boto3 is too old (kind unsupported-scheme).
        StorageError: What gives out credentials did not (kind permission-denied).
    """
    if is_too_old("boto3", boto3.__version__):
        raise InvalidArgumentError(
            "boto3 is too old: it knows no conditional write, by which no file is replaced",
            kind="unsupported-scheme",
            found=boto3.__version__,
            to_fix=f"pip install 'boto3>={OLDEST['boto3']}', on every executor",
        )
    config = Config(
        retries={"total_max_attempts": 1, "mode": "legacy"},  # `_retry` is in its place
        connect_timeout=min(settings.timeout_s, _MOST_CONNECT_S),
        read_timeout=settings.timeout_s,
        max_pool_connections=PARALLEL_REQUESTS,
        s3={"addressing_style": "path"} if settings.path_style else None,  # None: the profile's
    )
    # A session of its own: the default one is not thread-safe and keeps the first credentials.
    descriptions = botocore.session.get_session()
    descriptions.register_component("data_loader", _descriptions)
    try:
        session = boto3.session.Session(
            botocore_session=descriptions,
            aws_access_key_id=settings.access_key or None,
            aws_secret_access_key=settings.secret_key or None,
            aws_session_token=settings.session_token or None,
            region_name=settings.region or None,
        )
        has_credentials = session.get_credentials() is not None
        client = session.client("s3", endpoint_url=settings.endpoint or None, config=config)
    except _NOT_FETCHED as error:
        raise _without_credentials("reach S3", error) from error
    except (BotoCoreError, ValueError) as error:
        raise InvalidArgumentError(
            "S3 cannot be reached with these settings",
            kind="invalid-option",
            endpoint=settings.endpoint,
            region=settings.region,
            reason=str(error),
            to_fix="correct the options s3.*, or the AWS profile of the executors",
        ) from error
    events = client.meta.events
    events.unregister("needs-retry.s3", unique_id="retry-config-s3")
    events.register("needs-retry.s3", partial(_retry, settings.max_attempts))
    if not (urlsplit(client.meta.endpoint_url).hostname or "").endswith(_AWS_HOSTS):
        events.register("before-call.s3.DeleteObjects", _add_md5)
        # Other servers of S3's protocol do not all know the checksums that boto sends unasked. The
        # client alone knows its server: environment and profile name one, too.
        is_asked = "AWS_REQUEST_CHECKSUM_CALCULATION" in os.environ
        if not is_asked and "request_checksum_calculation" not in descriptions.get_scoped_config():
            client.meta.config.request_checksum_calculation = "when_required"
            client.meta.config.response_checksum_validation = "when_required"
    # Once for each try on the wire.
    events.register("before-send.s3", _count)
    return client, has_credentials


def _retry(
    max_attempts: int,
    attempts: int,
    response: tuple[Any, dict[str, Any]] | None,
    caught_exception: BaseException | None,
    **_: Any,
) -> float | None:
    """Return in how many seconds a request is made again; None where it is not.

    Of boto's own modes one waits longer and longer, without a limit. The others have one budget of
    retries for all requests of a client: an engine that commits many state partitions has used it
    up within a second.
    """
    step()  # tries have an end, also those without an answer
    if attempts >= max_attempts:
        return None
    if response is not None:
        status, code = response[0].status_code, response[1].get("Error", {}).get("Code", "")
        if status not in _PASSING_STATUS and code not in _PASSING_CODES:
            return None
    elif not isinstance(caught_exception, HTTPClientError | ConnectionFailure) or _is_unsendable(
        caught_exception
    ):
        return None
    return wait_s(attempts)


def wait_s(attempts: int) -> float:
    """Return seconds to wait before a request is made again that was made so often, 20 at most."""
    return min(2.0 ** (attempts - 1), _MOST_WAIT_S) * (0.5 + secrets.randbelow(500) / 1000)


def _add_md5(params: dict[str, Any], **_: Any) -> None:
    """Add the checksum that S3's protocol asks for here, and boto has put another in place of."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _count(event_name: str, **_: Any) -> None:
    operation = event_name.rpartition(".")[2]
    count_request(next((kind for name, kind in _KINDS if operation.startswith(name)), "put"))


def _code(error: ClientError | BotoCoreError) -> str:
    return str(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def is_passing(error: ClientError | BotoCoreError) -> bool:
    """Return whether what was refused among others, in an answer of status 200, may be tried again.

    The client tries again by itself what was refused alone.
    """
    return _code(error) in _PASSING_CODES


def is_conflict(error: ClientError | BotoCoreError) -> bool:
    """Return whether a write met another one of its key, and is to be made again as a whole."""
    return _code(error) == _CONFLICT


def is_upload_gone(error: ClientError | BotoCoreError) -> bool:
    """Return whether an upload was ended, maybe by a try whose reply was lost."""
    return _code(error) == _NO_UPLOAD


def is_certain(error: ClientError | BotoCoreError) -> bool:
    """Return whether a failed write has surely left nothing.

    Otherwise the reply to a successful try may have been lost.
    """
    status = status_of(error)
    return (
        status is not None
        and status < 500
        and status not in (408, 412)
        and not is_upload_gone(error)
    )


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error stands for, None without one."""
    if not isinstance(error, ClientError):
        return None
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None


def _is_unsendable(error: BaseException) -> bool:
    """Return whether a request cannot be written down, since HTTP has no such header."""
    cause = error.kwargs.get("error") if isinstance(error, HTTPClientError) else None
    return isinstance(cause, ValueError) and not isinstance(cause, LocationValueError)


@contextmanager
def named_s3_errors(action: str, path: str, endpoint: str) -> Iterator[None]:
    """Turn errors of boto3 into errors of this package, which name the server.

    Raises:
        NotFoundError, FencedError, StorageError: By the server's answer.
    """
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        _raise_named(error, action, path, endpoint)


def check_answer(answer: dict[str, Any], field: str, action: str, path: str, endpoint: str) -> Any:
    """Return a field that is in each answer of S3's.

    Raises:
        StorageError: It is not in this one, as in a page of a console.
    """
    if field not in answer:
        raise StorageError(
            f"cannot {action}: the server does not answer as S3 does",
            file=path,
            endpoint=endpoint,
            to_fix="correct the endpoint: it names the port of the API, and not that of a console "
            "or a proxy",
        )
    return answer[field]


def _without_credentials(action: str, error: BotoCoreError, **where: str) -> StorageError:
    return StorageError(
        f"cannot {action}: AWS credentials cannot be fetched",
        kind="permission-denied",
        **where,
        reason=str(error),
        to_fix="try again; if that does not help, check the role of the machine or the container, "
        "or the command that the AWS profile names",
    )


def _raise_named(
    error: ClientError | BotoCoreError, action: str, path: str, endpoint: str
) -> NoReturn:
    code = _code(error)
    status = status_of(error)
    if _is_unsendable(error):
        # Its text has the header, and so the token: it is shown nowhere.
        raise StorageError(
            f"cannot {action}: its request cannot be sent",
            kind="permission-denied",
            file=path,
            endpoint=endpoint,
            to_fix="take line breaks out of the AWS credentials: the options s3.accessKey and "
            "s3.sessionToken, AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN, or the profile",
        ) from None
    if code == "NoSuchBucket":
        raise StorageError(
            f"cannot {action}: its bucket does not exist",
            kind="directory-gone",
            file=path,
            endpoint=endpoint,
            to_fix="create the bucket, or correct the URI or the endpoint",
        ) from error
    if status == 404 and not is_upload_gone(error):
        raise missing_file(path, action) from error
    if status == 412:
        raise existing_file(path) from error
    if isinstance(error, _NOT_FETCHED):
        raise _without_credentials(action, error, file=path, endpoint=endpoint) from error
    has_none = isinstance(error, NoCredentialsError | PartialCredentialsError)
    if code in _NO_MATTER_OF_PERMISSION:
        raise StorageError(
            f"cannot {action}",
            file=path,
            endpoint=endpoint,
            code=code,
            reason=str(error),
            to_fix=_NO_MATTER_OF_PERMISSION[code],
        ) from error
    if status in (401, 403) or code in _NOT_PERMITTED or has_none:
        raise StorageError(
            f"cannot {action}: no permission",
            kind="permission-denied",
            file=path,
            endpoint=endpoint,
            code=code or type(error).__name__,
            to_fix="give executors and commands AWS credentials that may read, write, list and "
            "delete below this path (options s3.accessKey and s3.secretKey, environment, profile "
            "or role)",
        ) from error
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        raise StorageError(
            f"cannot {action}: the server cannot be reached",
            file=path,
            endpoint=endpoint,
            reason=str(error),
            to_fix="check endpoint and region, and the network of this machine",
        ) from error
    raise StorageError(
        f"cannot {action}",
        file=path,
        endpoint=endpoint,
        code=code or type(error).__name__,
        reason=str(error),
        to_fix="check the storage, and try again",
    ) from error
