"""An S3 server for tests: moto or SeaweedFS, behind a layer that can make a request fail."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections import Counter
from io import BytesIO
from urllib.parse import parse_qs, unquote

import boto3
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from statestore.io.s3_settings import S3Settings

REGION = "eu-central-1"
WRONG_KEY = "AKIAWRONG"
"""An access key that every request is refused with."""


class S3Server:
    """Serves on a port of its own until `stop`: what moto keeps in memory, or another application.

    What still comes to buckets made before the last one, as from the upkeep of another test's
    stores, is served, but neither counted nor made to fail.

    Attributes:
        requests: Requests by method since `make_bucket`; a listing counts as LIST, the end of an
            upload in parts as COMPLETE.
        statuses: Answers by status since `make_bucket`.
        delay_s: Seconds that every request waits before it is served.
        bytes_per_s: Bytes of an object that a connection is sent in a second; 0 for no limit.
        most_at_once: Most requests of one method that were being served at one time.
        session_tokens: The session tokens of requests since `make_bucket`, None where one had none.
        outage: `throttled` refuses every request; `silent` serves them when it is over, which may
            be long after the client has given up; empty in peace.
    """

    def __init__(self, app=None):
        self.requests = Counter()
        self.statuses = Counter()
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.most_at_once = Counter()
        self.session_tokens = set()
        self.actions = set()
        self.only_below = ""
        self.outage = ""
        self._at_once = Counter()
        self._lock = threading.Lock()
        self._gathering = {}
        self._faults = []
        self._numbers = itertools.count(1)
        self._bucket = ""
        self._made = None
        self._is_moto = app is None
        self._app = app or DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def settings(self, **others):
        """What a client needs to reach this server, impatient."""
        mine = {"endpoint": self.endpoint, "region": REGION, "path_style": True}
        return S3Settings(**{**mine, "max_attempts": 3, "timeout_s": 5.0, **others})

    def make_bucket(self):
        """Create an empty bucket and return its name."""
        self._faults.clear()
        for _, barrier in self._gathering.values():
            barrier.abort()
        self._gathering.clear()
        # What another test still waits for counts there until it is answered.
        self._at_once = Counter()
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.outage = ""
        self.only_below = ""
        name = self._bucket = f"bucket-{next(self._numbers)}"
        self._client().create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.requests.clear()
        self.statuses.clear()
        self.most_at_once.clear()
        self.session_tokens.clear()
        self.actions.clear()
        return name

    def put_many(self, bucket, keys):
        """Make many small objects, without a request for each where that can be."""
        if not self._is_moto:
            for key in keys:
                self._client().put_object(Bucket=bucket, Key=key, Body=b"x")
            return
        (account,) = (
            account for account in s3_backends if bucket in s3_backends[account]["aws"].buckets
        )
        for key in keys:
            s3_backends[account]["aws"].put_object(bucket, key, b"x")

    def keys(self, bucket):
        """Return the keys of every object of a bucket."""
        found = self._client().list_objects_v2(Bucket=bucket)
        return [entry["Key"] for entry in found.get("Contents", [])]

    def num_uploads(self, bucket):
        """Return the number of uploads in parts that were neither ended nor aborted."""
        return len(self._client().list_multipart_uploads(Bucket=bucket).get("Uploads", []))

    def encryption(self, bucket):
        """Return how each object of a bucket is encrypted, and with which key."""
        client = self._client()
        found = {key: client.head_object(Bucket=bucket, Key=key) for key in self.keys(bucket)}
        return {
            key: (head.get("ServerSideEncryption"), head.get("SSEKMSKeyId"))
            for key, head in found.items()
        }

    def _client(self):
        if self._made is None:
            self._made = boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION)
        return self._made

    def options(self, **others):
        """The same as options of a query, by their fields."""
        mine = {"s3_endpoint": self.endpoint, "s3_region": REGION, "s3_path_style": True}
        return {**mine, "s3_max_attempts": 3, "s3_timeout_ms": 30_000, **others}

    def fail(self, method, fault, times=1):
        """Let the next requests of a method be `throttled`, `truncated`, `refused` and the like.

        A lost reply is one to a request that was carried out; `unconditional` carries it out
        whatever its condition is. Of several files to delete, `one-refused` refuses the first, and
        so does `one-throttled`, for now. `conflict` is the answer to one of two writes of a key.
        `replaced` is the answer to a copy of a part of an object that is another by now.
        `no-upload` is the answer where an upload in parts has ended, and `page` that of a web
        server. `kms-throttled` is a refusal of the server of keys. `needs-md5` refuses a request
        without, `without-tags` one that names them. A function is called before the request is
        refused.
        """
        self._faults += [(method, fault)] * times

    def gather(self, method, number, after=0):
        """Answer the next requests of a method only when there are so many of them at one time.

        They fail when that does not come about within 20 s. The first `after` are answered at once.
        """
        barrier = threading.Barrier(number, lambda: self._gathering.pop(method))
        self._gathering[method] = (self.requests[method] + after, barrier)

    def stop(self):
        """Close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, environ, start_response):
        bucket = environ["PATH_INFO"].split("/")[1]
        if bucket.startswith("bucket-") and bucket != self._bucket:
            return self._app(environ, start_response)
        method = environ["REQUEST_METHOD"]
        if method == "GET" and "list-type=" in environ["QUERY_STRING"]:
            method = "LIST"
        if method == "POST" and "uploadId=" in environ["QUERY_STRING"]:
            method = "COMPLETE"
        with self._lock:
            at_once = self._at_once
            self.requests[method] += 1
            number = self.requests[method]
            self.session_tokens.add(environ.get("HTTP_X_AMZ_SECURITY_TOKEN"))
            self.actions |= _actions_of(environ)
            at_once[method] += 1
            self.most_at_once[method] = max(self.most_at_once[method], at_once[method])

        def answer(status, *rest):
            with self._lock:
                self.statuses[int(status.split()[0])] += 1
            return start_response(status, *rest)

        try:
            return self._answer(environ, answer, method, number)
        finally:
            with self._lock:
                at_once[method] -= 1

    def _answer(self, environ, start_response, method, number):
        time.sleep(self.delay_s)
        while self.outage == "silent":
            time.sleep(0.05)
        if self.outage == "throttled":
            return _refuse(start_response, "503 Slow Down", "SlowDown")
        last_free, barrier = self._gathering.get(method, (number, None))
        if number > last_free:
            barrier.wait(20)
        fault = self._take_fault(method)
        if callable(fault):
            fault()
            fault = "throttled"
        if fault == "throttled":
            return _refuse(start_response, "503 Slow Down", "SlowDown")
        if fault == "kms-throttled":
            return _refuse(start_response, "400 Bad Request", "ThrottlingException")
        if fault == "needs-md5":
            if "HTTP_CONTENT_MD5" not in environ:
                return _refuse(start_response, "400 Bad Request", "MissingContentMD5")
            fault = None
        if fault == "page":
            start_response("200 OK", [("Content-Type", "text/html")])
            return [b"<html>Welcome</html>"]
        if fault == "without-tags":
            if "HTTP_X_AMZ_TAGGING_DIRECTIVE" in environ:
                return _refuse(start_response, "501 Not Implemented", "NotImplemented")
            fault = None
        if fault == "replaced":
            return _refuse(start_response, "412 Precondition Failed", "PreconditionFailed")
        if fault == "no-upload":
            return _refuse(start_response, "404 Not Found", "NoSuchUpload")
        if fault == "expired":
            return _refuse(start_response, "400 Bad Request", "ExpiredToken")
        if fault in ("RequestTimeTooSkewed", "InvalidObjectState"):
            return _refuse(start_response, "403 Forbidden", fault)
        if fault == "refused" or f"Credential={WRONG_KEY}/" in environ.get(
            "HTTP_AUTHORIZATION", ""
        ):
            return _refuse(start_response, "403 Forbidden", "InvalidAccessKeyId")
        if self.only_below and not all(
            key.startswith(self.only_below) for key in _keys_of(environ, method)
        ):
            return _refuse(start_response, "403 Forbidden", "AccessDenied")
        if fault == "unconditional":
            environ.pop("HTTP_IF_NONE_MATCH", None)
            fault = None
        if fault == "conflict":
            return _refuse(start_response, "409 Conflict", "ConditionalRequestConflict")
        if fault in ("one-refused", "one-throttled"):
            code = b"AccessDenied" if fault == "one-refused" else b"SlowDown"
            return self._refuse_first_key(environ, start_response, code)
        if fault is None and method == "GET" and self.bytes_per_s:
            return self._slowly(b"".join(self._app(environ, start_response)))
        if fault is None:
            return self._app(environ, start_response)
        body = b"".join(self._app(environ, start_response))
        if fault == "reply-lost":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return [body[: len(body) // 2]]

    def _slowly(self, body):
        step = 16 * 1024
        for start in range(0, len(body), step):
            if self.bytes_per_s:
                time.sleep(step / self.bytes_per_s)
            yield body[start : start + step]

    def _refuse_first_key(self, environ, start_response, code):
        asked = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        key = re.search(rb"<Key>.*?</Key>", asked).group()
        left = re.sub(rb"<Object>.*?</Object>", b"", asked, count=1)
        environ |= {"wsgi.input": BytesIO(left), "CONTENT_LENGTH": str(len(left))}
        body = b"".join(self._app(environ, lambda *_: None))
        refusal = b"<Error>" + key + b"<Code>" + code + b"</Code><Message>no</Message></Error>"
        start_response("200 OK", [("Content-Type", "application/xml")])
        return [body.replace(b"</DeleteResult>", refusal + b"</DeleteResult>")]

    def _take_fault(self, method):
        for index, (wanted, fault) in enumerate(self._faults):
            if wanted == method:
                del self._faults[index]
                return fault
        return None


def _keys_of(environ, method):
    """Return the names that a request is about; of a listing, its prefix."""
    keys = [environ["PATH_INFO"].lstrip("/").partition("/")[2]]
    if method == "LIST":
        keys = parse_qs(environ["QUERY_STRING"]).get("prefix", [""])
    elif not keys[0] and method == "POST":
        asked = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = BytesIO(asked)
        keys = re.findall("<Key>(.*?)</Key>", asked.decode())
    if copied := environ.get("HTTP_X_AMZ_COPY_SOURCE"):
        keys.append(unquote(copied).lstrip("/").partition("/")[2])
    return keys


def _actions_of(environ):
    """Return the permissions that S3 asks for to answer a request: a name, and on what.

    By the method, a word of the query and the copied object, as the reference of S3's actions has
    it. What is not listed is a permission of its own, by the name of the request.
    """
    method, copied = environ["REQUEST_METHOD"], "HTTP_X_AMZ_COPY_SOURCE" in environ
    words = set(parse_qs(environ["QUERY_STRING"], keep_blank_values=True))
    is_object = "/" in environ["PATH_INFO"].lstrip("/").rstrip("/")
    of_uploads = words & {"uploads", "uploadId", "partNumber"}
    known = {"list-type", "uploads", "uploadId", "partNumber", "delete", "prefix", "delimiter"}
    known |= {"encoding-type", "max-keys", "continuation-token", "x-id"}
    if words - known:
        return {(f"{method} {sorted(words - known)}", "object" if is_object else "bucket")}
    if not is_object:
        by_request = {("GET", "list-type"): "s3:ListBucket", ("POST", "delete"): "s3:DeleteObject"}
        found = [name for (of, word), name in by_request.items() if of == method and word in words]
        (name,) = found or [f"{method} of the bucket"]
        return {(name, "object" if name == "s3:DeleteObject" else "bucket")}
    if of_uploads:
        names = {"DELETE": "s3:AbortMultipartUpload", "PUT": "s3:PutObject", "POST": "s3:PutObject"}
    else:
        names = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject"}
        names["DELETE"] = "s3:DeleteObject"
    found = {names.get(method, f"{method} of an object")}
    if copied:
        found.add("s3:GetObject")
        if not of_uploads and environ.get("HTTP_X_AMZ_TAGGING_DIRECTIVE") != "REPLACE":
            found.add("s3:GetObjectTagging")
    return {(name, "object") for name in found}


def _refuse(start_response, status, code):
    body = f"<Error><Code>{code}</Code><Message>as the test wants</Message></Error>".encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]
