"""SeaweedFS, an S3 server that is no imitation: a process on a host of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from statestore.core.options import PREFIX
from tests.seaweed import find_weed, write_identity

from .cluster import Cluster
from .hosts import MOUNTS, wait_for

HOST = "storage"
BUCKET = "state"
_KEYS = {"accessKey": "cluster", "secretKey": "of-the-lane"}
_PORT = 8333


def host_where_installed(directory: Path) -> tuple[list[str], dict[str, Path]]:
    """Return its host and folder for a cluster, none of them where it is not installed.

    Args:
        directory: Where its folder is made: with the program, and who may do what.
    """
    weed = find_weed()
    if weed is None:
        return [], {}
    folder = directory / "seaweed"
    folder.mkdir()
    shutil.copy(weed, folder / "weed")
    write_identity(folder / "s3.json", *_KEYS.values())
    return [HOST], {"seaweed": folder}


def start(cluster: Cluster) -> None:
    """Start it, and make the bucket; the cluster sees the folder as `seaweed`."""
    data = cluster.hosts.disk(HOST) / "weed"
    data.mkdir()
    data.chmod(0o777)
    given = MOUNTS / "seaweed"
    command = [
        *(f"{given}/weed", "server", "-dir", "/tmp/weed", "-ip", HOST),
        *("-s3", "-s3.port", str(_PORT), "-s3.config", f"{given}/s3.json"),
        *("-master.volumeSizeLimitMB", "64"),
    ]
    cluster.start_daemon(HOST, "weed", command, {})
    made = (
        "import boto3; from botocore.config import Config; "
        f"boto3.client('s3', endpoint_url={endpoint(cluster)!r}, region_name='us-east-1', "
        f"aws_access_key_id={_KEYS['accessKey']!r}, aws_secret_access_key={_KEYS['secretKey']!r}, "
        "config=Config(s3={'addressing_style': 'path'}))"
        f".create_bucket(Bucket={BUCKET!r})"
    )

    def has_bucket() -> bool:
        return cluster.hosts.succeeds(HOST, [f"{MOUNTS}/python/bin/python", "-c", made])

    wait_for(has_bucket, "the bucket")


def endpoint(cluster: Cluster) -> str:
    """Return its address on the network of the hosts."""
    return f"http://{cluster.hosts.address(HOST)}:{_PORT}"


def conf(cluster: Cluster) -> dict[str, str]:
    """Return the configuration of a query that reaches it."""
    return {f"{PREFIX}{name}": value for name, value in _options(cluster).items()}


def command_line(cluster: Cluster) -> list[str]:
    """Return the options of a command that reach it."""
    return [f"--storage-option={name}={value}" for name, value in _options(cluster).items()]


def _options(cluster: Cluster) -> dict[str, str]:
    """Return the options that reach it, by their names without a prefix."""
    return {
        "s3.endpoint": endpoint(cluster),
        "s3.pathStyle": "true",
        "s3.region": "us-east-1",
        **{f"s3.{name}": value for name, value in _KEYS.items()},
    }
