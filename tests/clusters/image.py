"""The image of docs/deploy.md, over one with Spark and Java that is made of Debian's packages."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from .hosts import ROOT

TOOLS = ("chroot", "debootstrap")
_SUITE = "bookworm"
_PACKAGES = ("openjdk-17-jre-headless", "python3", "python3-venv", "tini")
_SPARK_HOME = "opt/spark"
_OF_SPARK = ("bin", "jars", "python")
_SPARK_USER = {"uid": 185, "gid": 0}
_CERTIFICATES = "/etc/ssl/certs"
_PASSED_ON = re.compile(r"PIP_|SSL_|[a-z]+_proxy$", re.IGNORECASE)
"""Variables that say how this machine reaches packages."""


def make_base(folder: Path) -> None:
    """Make what stands for `YOUR-SPARK-IMAGE`: Debian with Java, a Python, and this Spark."""
    root = folder / "root"
    listed = f"--include={','.join(_PACKAGES)}"
    _run("debootstrap", "--variant=minbase", listed, _SUITE, root)
    for name in _OF_SPARK:
        shutil.copytree(Path(pyspark.__file__).parent / name, root / _SPARK_HOME / name)
    work = root / _SPARK_HOME / "work-dir"
    work.mkdir()
    work.chmod(0o775)  # Spark fetches jars to it
    shutil.copy(Path(__file__).with_name("entrypoint.sh"), root / "opt" / "entrypoint.sh")
    (root / "etc" / "passwd").chmod(0o664)  # entrypoint.sh adds the user


def build(folder: Path, dockerfile: str, context: Path) -> None:
    """Do what a Dockerfile says to the base of a folder, and write its config.json.

    Args:
        folder: The base, which becomes the image.
        dockerfile: Its text: `FROM`, `USER`, `RUN` and `COPY` are known.
        context: Where its `COPY` finds files.

    Raises:
        RuntimeError: A command fails.
        KeyError: There is another instruction.
    """
    user = "root"
    steps = re.findall(r"^([A-Z]+) +(.+)$", dockerfile.replace("\\\n", ""), re.MULTILINE)
    for instruction, words in steps:
        match instruction:
            case "FROM":
                pass
            case "USER":
                user = words
            case "RUN":
                assert user == "root"
                _run_in(folder / "root", words)
            case "COPY":
                source, target = words.split()
                shutil.copy(context / source, folder / "root" / target.lstrip("/"))
            case _:
                raise KeyError(instruction)
    assert user == str(_SPARK_USER["uid"])
    config = {
        "user": _SPARK_USER,
        "directory": f"/{_SPARK_HOME}/work-dir",
        "entrypoint": ["/opt/entrypoint.sh"],
        "environment": {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp",
            "JAVA_HOME": "/usr/lib/jvm/java-17-openjdk-amd64",
            "SPARK_HOME": f"/{_SPARK_HOME}",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


def archive(folder: Path, file: Path, names: Mapping[str, Sequence[str] | None]) -> None:
    """Write an image as `docker save` does.

    Args:
        folder: The image.
        file: The archive.
        names: Names of the image, with the command that starts it in place of the image's own.
    """
    made = json.loads((folder / "config.json").read_text())
    layer = folder / "layer.tar"
    _run("tar", "--create", "--file", layer, "--directory", folder / "root", ".")
    with layer.open("rb") as content:
        digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    manifest = []
    with tarfile.open(file, "w") as written:
        for number, (name, command) in enumerate(names.items()):
            config = {
                "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [digest]},
                "config": {
                    "User": str(made["user"]["uid"]),
                    "WorkingDir": made["directory"],
                    "Entrypoint": list(command or made["entrypoint"]),
                    "Env": [f"{key}={value}" for key, value in made["environment"].items()],
                },
            }
            (folder / f"{number}.json").write_text(json.dumps(config))
            written.add(folder / f"{number}.json", f"{number}.json")
            tags = [f"docker.io/{name}:latest"]
            manifest += [{"Config": f"{number}.json", "RepoTags": tags, "Layers": [layer.name]}]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        for path in (layer, folder / "manifest.json"):
            written.add(path, path.name)
    layer.unlink()


def _run_in(root: Path, command: str) -> None:
    """Run a command of a shell in an image, with this machine's network and pinned packages."""
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    shutil.copy(ROOT / "constraints.txt", root / "tmp" / "constraints.txt")
    variables = {key: value for key, value in os.environ.items() if _PASSED_ON.match(key)}
    variables |= {"PATH": "/usr/bin:/bin", "PIP_CONSTRAINT": "/tmp/constraints.txt"}
    environment = [f"{key}={value}" for key, value in variables.items()]
    mounted = f'mount --bind {_CERTIFICATES} {root}{_CERTIFICATES}; exec "$@"'
    _run(
        *("unshare", "--mount", "sh", "-ec", mounted, "sh"),
        *("chroot", str(root), "env", "-i", *environment),
        *("sh", "-ec", command),
    )


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
