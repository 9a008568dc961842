"""SeaweedFS: an S3 server that is no imitation, for tests that ask for a second one."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3

IS_CHOSEN = os.environ.get("STATESTORE_S3_SERVER") == "seaweedfs"
KEY = "test"
"""Access key and secret that it takes."""
REGION = "eu-central-1"
_READY_TIMEOUT_S = 60.0
_OF_ONE_HOP = {"connection", "expect", "keep-alive", "transfer-encoding"}


def find_weed():
    """Return its program, None where it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    return Path(found) if found else None


def write_identity(path, key, secret):
    """Write who may do what: everything, with a key."""
    credentials = [{"accessKey": key, "secretKey": secret}]
    user = {"name": "tests", "credentials": credentials, "actions": ["Admin"]}
    path.write_text(json.dumps({"identities": [user]}))


class Seaweed:
    """A server on this machine until `stop`; as a WSGI application it passes requests on to it.

    Args:
        directory: For its files.
    """

    def __init__(self, directory: Path) -> None:
        identity = directory / "s3.json"
        write_identity(identity, KEY, KEY)
        ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(4), strict=True))
        self.port = ports["s3"]
        self._process = subprocess.Popen(
            [
                *(str(find_weed()), "server", "-dir", str(directory), "-ip", "127.0.0.1"),
                *("-s3", "-s3.config", str(identity), "-volume.max", "10000"),
                *(f"-{name}.port={port}" for name, port in ports.items()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + _READY_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.stop()
                raise RuntimeError("SeaweedFS does not start")
            time.sleep(0.2)

    def _is_ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/status")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def __call__(self, environ, start_response):
        # What is signed is passed on as it came, the name of the host too.
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or (name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value)
        }
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            kept = {name: value for name, value in headers.items() if name not in _OF_ONE_HOP}
            connection.request(environ["REQUEST_METHOD"], environ["RAW_URI"], body, kept)
            answer = connection.getresponse()
            found = [pair for pair in answer.getheaders() if pair[0].lower() not in _OF_ONE_HOP]
            content = answer.read()
            if not any(name.lower() == "content-length" for name, _ in found):
                found.append(("Content-Length", str(len(content))))
            start_response(f"{answer.status} {answer.reason}", found)
            return [content]
        finally:
            connection.close()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """Return a client that may do everything there."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
        )

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def _free_ports(number):
    """Return ports that nothing listens on, nor on those 10,000 above, where it has others."""
    found = []
    port = 20_000
    while len(found) < number:
        port += 1
        if all(_is_free(each) for each in (port, port + 10_000)):
            found.append(port)
    return found


def _is_free(port):
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
