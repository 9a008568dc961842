"""Pods of Spark, by a stand-in for Kubernetes: an API server, and a kubelet on each of two hosts.

The image and the line that submits are those of docs/deploy.md.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.spark.processes import command_line

from . import image
from .cluster import DRIVER, JOB_CONF, MASTER, WORKERS, Application, Cluster
from .hosts import MOUNTS, ROOT, wait_for

TOOLS = (*image.TOOLS, "openssl", "runc")
_STAND_IN = Path(__file__).with_name("stand_in")
_REGISTRY = "registry"
IMAGE = f"{_REGISTRY}/spark-statestore"
CLAIM = "shared"
TOKEN = "of-the-lane"  # noqa: S105
_CGROUPS = Path("/sys/fs/cgroup")
_FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_OF_KUBERNETES = ("kubernetes", "kube-root-ca.crt")
"""What is in every namespace."""


def why_not() -> str:
    """Return why this machine can run no pods; "" where it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"the machine lacks the commands {', '.join(missing)}" if missing else ""


def documented() -> dict[str, str]:
    """Return the blocks of the part on Kubernetes of docs/deploy.md, by their language."""
    text = (ROOT / "docs" / "deploy.md").read_text()
    part = text.partition("\n## Kubernetes\n")[2].partition("\n### ")[0]
    return dict(_FENCE.findall(part))


def _line() -> list[str]:
    """Return what the line of docs/deploy.md gives spark-submit."""
    line = documented()["sh"].replace("\\\n", " ")
    command, *words = shlex.split(line.replace("HOST", MASTER).replace("REGISTRY", _REGISTRY))
    assert command == "spark-submit"
    return words


class Kubernetes(Cluster):
    """An API server and two nodes. Pods have the shared directory as the claim `shared`.

    Attributes:
        KIND: Whose control plane it is, in the record of what ran.
    """

    KIND = "stand-in"

    def __init__(self, directory: Path, others: Sequence[str], folders: Mapping[str, Path]) -> None:
        images, stand_in = directory / "images", directory / "stand-in"
        images.mkdir()
        shutil.copytree(_STAND_IN, stand_in)
        super().__init__(directory, others, {**folders, "images": images, "stand-in": stand_in})
        self._group = directory.name

    def start(self) -> None:
        """Make the image, and start the daemons."""
        files, made = self.directory / "files", self.directory / "images" / IMAGE
        shutil.copy(files / "shim.jar", files / "statestore-shim.jar")
        made.mkdir(parents=True)
        image.make_base(made)
        image.build(made, documented()["dockerfile"], files)
        self._write_credentials()
        self._start_daemons(made)

    def _start_daemons(self, made: Path) -> None:
        shutil.copy(shutil.which("runc") or "", self.directory / "stand-in" / "runc")
        stand_in = MOUNTS / "stand-in"
        pair = (f"{stand_in}/ca.crt", f"{stand_in}/server.key")
        server = self._start(MASTER, "api_server", *pair, *WORKERS)
        _await_ready(server, "the API server")
        for number, host in enumerate(WORKERS):
            address = re.sub(r"\d+$", str(100 + 50 * number), self.hosts.address(host))
            given = (f"{stand_in}/account", f"{MOUNTS}/images", self._group, address)
            kubelet = self._start(host, "kubelet", host, MASTER, *given)
            _await_ready(kubelet, "a kubelet")

    def _start(self, host: str, name: str, *arguments: str) -> Path:
        command = ["/usr/bin/python3", f"{MOUNTS}/stand-in/{name}.py", *arguments]
        path = f"{MOUNTS}/stand-in:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.start_daemon(host, name, command, {"PATH": path}, user_id=0)

    def conf(self, name: str) -> dict[str, str]:
        """Return the defaults of Spark for an application of the lane."""
        claims = {
            f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.{CLAIM}.{key}": value
            for role in ("driver", "executor")
            for key, value in {
                "mount.path": str(MOUNTS / CLAIM),
                "options.claimName": CLAIM,
            }.items()
        }
        return {
            **JOB_CONF,
            **claims,
            "spark.app.name": name,
            "spark.kubernetes.driver.pod.name": _driver(name),
            "spark.kubernetes.executor.podNamePrefix": name,
            "spark.driver.memoryOverhead": "640m",
            "spark.executor.instances": "2",
            "spark.executor.cores": "2",
            "spark.task.maxFailures": "10",
        }

    def _write_credentials(self) -> None:
        """Write a certificate of the API server, and who may call it."""
        folder = self.directory / "stand-in"
        account = folder / "account"
        account.mkdir()
        authority = folder / "ca.crt"
        names = f"DNS:{MASTER},DNS:kubernetes.default.svc,IP:{self.hosts.address(MASTER)}"
        made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        told = ("-subj", f"/CN={MASTER}", "-addext", f"subjectAltName={names}")
        to = ("-keyout", folder / "server.key", "-out", authority)
        subprocess.run([*made, *told, *to], check=True, capture_output=True)
        for path in (folder, account):
            shutil.copy(authority, account)
            (path / "token").write_text(TOKEN)
        (account / "namespace").write_text("default")
        (folder / "kubeconfig").write_text(json.dumps(self._kubeconfig(TOKEN)))

    def _kubeconfig(self, token: str) -> dict[str, Any]:
        data = base64.b64encode((self.directory / "stand-in" / "ca.crt").read_bytes()).decode()
        server = {"server": f"https://{MASTER}:6443", "certificate-authority-data": data}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lane", "cluster": server}],
            "users": [{"name": "lane", "user": {"token": token}}],
            "contexts": [{"name": "lane", "context": {"cluster": "lane", "user": "lane"}}],
            "current-context": "lane",
        }

    def run(
        self,
        name: str,
        arguments: Sequence[str],
        conf: Mapping[str, str],
        changed: Mapping[str, str] | None = None,
    ) -> Application:
        """Submit job.py by the line of docs/deploy.md.

        Args:
            name: Name of the application, and of its pods.
            arguments: What follows the line.
            conf: What the defaults of Spark say beside those of the lane.
            changed: Values of the line that are others here.
        """
        words = _line()
        for key, value in (changed or {}).items():
            (place,) = (at for at, word in enumerate(words) if word.startswith(f"{key}="))
            words[place] = f"{key}={value}"
        settings = self.directory / "files" / name
        settings.mkdir()
        lines = [f"{key} {value}\n" for key, value in {**self.conf(name), **conf}.items()]
        (settings / "spark-defaults.conf").write_text("".join(lines))
        environment = {
            "SPARK_HOME": f"{MOUNTS}/spark",
            "SPARK_CONF_DIR": f"{MOUNTS}/files/{name}",
            "KUBECONFIG": f"{MOUNTS}/stand-in/kubeconfig",
        }
        submitted, output = self.submit(name, [*words, *arguments], environment)

        def logs() -> Iterable[Path]:
            return self._logs(_driver(name))

        return Application(submitted, output, logs)

    def client_conf(self, name: str) -> dict[str, str]:
        """Return all of Spark's configuration by the line of docs/deploy.md in client mode."""
        words = _line()
        line = dict(value.split("=", 1) for word, value in pairwise(words) if word == "--conf")
        conf = {"spark.master": words[words.index("--master") + 1], **self.conf(name), **line}
        del conf["spark.kubernetes.driver.pod.name"]  # it is no pod
        return {**conf, "spark.driver.host": self.hosts.address(DRIVER)}

    def environment(self) -> dict[str, str]:
        """Return what a command beside the hosts needs to find the cluster."""
        return {"KUBECONFIG": str(self.directory / "stand-in" / "kubeconfig")}

    def _logs(self, pod: str) -> list[Path]:
        disks = (self.hosts.disk(host) for host in WORKERS)
        return [path for disk in disks for path in disk.glob(f"{pod}.log")]

    def delete_pod(self, name: str) -> None:
        """Delete a pod, as `kubectl delete pod` does."""
        self._call("DELETE", f"pods/{name}")

    def _call(self, method: str, path: str) -> dict[str, Any]:
        """Ask the API server for what it has in the namespace of the lane."""
        folder = str(self.directory / "stand-in")
        program = (
            "import json, kubelet, pathlib; "
            f"server = kubelet.ApiServer({MASTER!r}, pathlib.Path({folder!r})); "
            f"print(json.dumps(server.call({method!r}, '/api/v1/namespaces/default/{path}')))"
        )
        words = ["/usr/bin/python3", "-c", program]
        return json.loads(self.hosts.run_beside(words, {"PYTHONPATH": folder}))

    def kill_in_pod(self, name: str, is_meant: Callable[[list[str]], bool]) -> None:
        """Kill, with SIGKILL, a process of a pod whose command line is meant."""

        group = self._group_of(name)

        def find() -> list[int]:
            pids = {pid for file in self._groups(f"{group}/cgroup.procs") for pid in _pids(file)}
            return [pid for pid in pids if is_meant(command_line(pid))]

        os.kill(wait_for(find, f"what is to be killed in {name}")[0], signal.SIGKILL)

    def _group_of(self, pod: str) -> str:
        """Return a pattern of the cgroups of a pod, below that of the lane."""
        return pod

    def _groups(self, pattern: str) -> Iterable[Path]:
        """Yield what is in the cgroups of the lane, where there is one tree of them or several."""
        for tree in (_CGROUPS, *_CGROUPS.iterdir()):
            yield from (tree / self._group).glob(pattern)

    def await_nothing_left(self) -> None:
        """Wait until the pods of executors are gone, and delete that of the driver.

        Raises:
            AssertionError: An engine, a scratch directory or an object stays.
        """
        wait_for(lambda: len(self._objects("pods")) <= 1, "executors' pods to be deleted")
        for pod in self._objects("pods"):
            self._logs(pod)
        super().await_nothing_left()
        self._call("DELETE", "pods")
        for kind in ("pods", "services", "configmaps"):
            self._await_none(kind)

    def _await_none(self, kind: str) -> None:
        wait_for(lambda: not self._objects(kind), f"{kind} to be deleted")

    def _objects(self, kind: str) -> list[str]:
        names = (found["metadata"]["name"] for found in self._call("GET", kind)["items"])
        return [name for name in names if name not in _OF_KUBERNETES]

    def stop(self) -> None:
        """End everything, also the cgroups that killed containers leave."""
        super().stop()
        for group in sorted(self._groups("**"), reverse=True):
            if group.is_dir():
                wait_for(partial(_is_removed, group), f"{group} to be empty")


def _await_ready(output: Path, what: str) -> None:
    wait_for(lambda: "ready" in output.read_text(), what)


def _pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


def _driver(name: str) -> str:
    return f"{name}-driver"
