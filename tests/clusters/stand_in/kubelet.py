"""A stand-in for a kubelet: `kubelet.py NODE API_SERVER CREDENTIALS IMAGES GROUP ADDRESS`.

It runs each pod of its node as a container by runc: with the root of its image, a user without
capabilities, a network of its own, and a memory cgroup of the pod's limit. A name in the cluster is
a line of each pod's `/etc/hosts`, a claim a folder of `/mnt`. There are no probes, no init
containers, no restarts. It stands in for Kubernetes alone, and needs no more than Python, `runc`,
`unshare`, `nsenter` and `ip`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_POLL_S = 0.3
_GRACE_S = 30
_CGROUPS = Path("/sys/fs/cgroup")
_OOM_FILES = ("memory/{group}/memory.oom_control", "{group}/memory.events")
"""Where the kernel counts what it killed for memory: of version 1 and of version 2 of cgroups."""
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_RUNC = ("runc", "--root", "/tmp/runc")
Object = dict[str, Any]


class ApiServer:
    """The API server, over connections that each serve one call."""

    def __init__(self, host: str, credentials: Path) -> None:
        self._host = host
        self._tls = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        self._headers = {"Authorization": f"Bearer {(credentials / 'token').read_text()}"}

    def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Return what it answers; {} where there is no such object."""
        connection = http.client.HTTPSConnection(self._host, 6443, context=self._tls, timeout=30)
        try:
            connection.request(method, path, json.dumps(body) if body else None, self._headers)
            answer = connection.getresponse()
            content = answer.read()
            return json.loads(content) if answer.status == http.HTTPStatus.OK else {}
        finally:
            connection.close()


class Node:
    """A node: what its pods share.

    Args:
        name: Its name, and that of the host.
        server: The API server.
        server_address: The address of that one.
        credentials: What pods see as those of their service account.
        images: Where an image is, by its name: `<image>/root`, `<image>/config.json`.
        group: The cgroup of all pods, below the root.
        first_address: The address of the first pod; the others follow.
    """

    def __init__(
        self,
        name: str,
        server: ApiServer,
        server_address: str,
        credentials: Path,
        images: Path,
        group: str,
        first_address: str,
    ) -> None:
        self.server = server
        self.credentials = credentials
        self.images = images
        self.group = group
        self._name = name
        self._network, _, first = first_address.rpartition(".")
        self._number = int(first)
        self._pods: dict[str, Pod] = {}
        self._hosts = Path("/etc/hosts").read_text()
        self._hosts += f"{server_address} kubernetes.default.svc\n"
        own = self._hosts.partition(f" {name}\n")[0].rpartition("\n")[2]
        for words in (
            "link add pods type bridge",
            "link set eth0 master pods",
            f"address del {own}/24 dev eth0",
            f"address add {own}/24 dev pods",
            "link set pods up",
        ):
            _run("ip", *words.split())

    def look(self) -> None:
        """Start the pods that are new, and stop those that are to be deleted."""
        found = self.server.call("GET", "/api/v1/pods")["items"]
        services = self.server.call("GET", "/api/v1/services")["items"]
        hosts = self._hosts + "".join(_names(found, services))
        for pod in found:
            uid = pod["metadata"]["uid"]
            if pod["spec"]["nodeName"] != self._name:
                continue
            is_new = uid not in self._pods
            if is_new:
                self._pods[uid] = Pod(self, pod, f"{self._network}.{self._number}")
                self._number += 1
            self._pods[uid].write_hosts(hosts)
            if is_new:
                self._pods[uid].start()
            if "deletionTimestamp" in pod["metadata"]:
                self._pods[uid].stop()


def _names(pods: list[Object], services: list[Object]) -> Iterator[str]:
    """Yield the lines of a hosts file that a cluster's DNS would answer with."""
    for service in services:
        metadata, selector = service["metadata"], service["spec"].get("selector") or {}
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            if address := selector.items() <= labels.items() and pod["status"].get("podIP"):
                yield f"{address} {metadata['name']}.{metadata['namespace']}.svc\n"


class Pod(threading.Thread):
    """A pod, from its container's start until it is deleted; what it writes goes with it."""

    def __init__(self, node: Node, pod: Object, address: str) -> None:
        super().__init__()
        self._node = node
        self._pod = pod
        self._address = address
        self._name = pod["metadata"]["name"]
        self._container = pod["spec"]["containers"][0]
        self._path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{self._name}"
        self._folder = Path("/tmp/pods", self._name)
        self._folder.mkdir(parents=True)
        self._hosts = self._folder / "hosts"
        self._hosts.touch()
        self._is_unwanted = threading.Event()

    def write_hosts(self, text: str) -> None:
        """Name all that can be reached, unless the pod is gone.

        At no time is the file without a name that stays.
        """
        with contextlib.suppress(FileNotFoundError), self._hosts.open("r+") as file:
            file.write(f"{text}{self._address} {self._name}\n")
            file.truncate()

    def stop(self) -> None:
        """Have it end, and be deleted."""
        self._is_unwanted.set()

    def run(self) -> None:
        """Run it, say how it ended, and delete it once that is wanted."""
        try:
            phase, state = self._run_container()
        except Exception as error:
            phase, state = "Failed", {"terminated": {"exitCode": 128, "reason": repr(error)}}
        print(self._name, phase, state, flush=True)
        self._report(phase, state)
        self._is_unwanted.wait()
        for mounted in ("root", "network"):
            subprocess.run(["umount", self._folder / mounted], check=False)
        shutil.rmtree(self._folder)
        self._node.server.call("DELETE", f"{self._path}?gracePeriodSeconds=0")

    def _run_container(self) -> tuple[str, Object]:
        group = f"{self._node.group}/{self._name}"
        self._write_bundle(group)
        with Path(f"/tmp/{self._name}.log").open("wb") as log:
            command = [*_RUNC, "run", "--keep", "--bundle", self._folder, self._name]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            self._report("Running", {"running": {}})
            code = self._wait(process)
        num_killed = _num_killed_for_memory(group)
        _run(*_RUNC, "delete", "--force", self._name)
        reason = "OOMKilled" if num_killed else "Error" if code else "Completed"
        state = {"terminated": {"exitCode": code, "reason": reason}}
        return "Failed" if code else "Succeeded", state

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        grace_ends_s = None
        while (code := process.poll()) is None:
            if self._is_unwanted.wait(_POLL_S):
                grace_ends_s = grace_ends_s or time.monotonic() + _GRACE_S
                sign = "TERM" if time.monotonic() < grace_ends_s else "KILL"
                subprocess.run([*_RUNC, "kill", self._name, sign], capture_output=True, check=False)
                time.sleep(_POLL_S)
        return code

    def _report(self, phase: str, state: Object) -> None:
        status = {
            "phase": phase,
            "podIP": self._address,
            "containerStatuses": [
                {"name": self._container["name"], "ready": "running" in state, "state": state}
            ],
        }
        self._node.server.call("PATCH", f"{self._path}/status", {"status": status})

    def _write_bundle(self, group: str) -> None:
        """Write what runc needs: the root, the network, and config.json."""
        image = self._node.images / self._container["image"]
        image_config = json.loads((image / "config.json").read_text())
        layers = {name: self._folder / name for name in ("upper", "work", "root")}
        for folder in layers.values():
            folder.mkdir()
        options = f"lowerdir={image}/root,upperdir={layers['upper']},workdir={layers['work']}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, layers["root"])
        memory = self._container["resources"]["limits"]["memory"].removesuffix("Mi")
        config = {
            "ociVersion": "1.0.2",
            "root": {"path": "root"},
            "hostname": self._name,
            "process": {
                "user": image_config["user"],
                "cwd": image_config["directory"],
                "args": [*image_config["entrypoint"], *self._container.get("args", [])],
                "env": [f"{key}={value}" for key, value in self._environment(image_config)],
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "mounts": [*_SYSTEM_MOUNTS, *self._mounts()],
            "linux": {
                "cgroupsPath": f"/{group}",
                "resources": {"memory": {"limit": int(memory) << 20}},
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                    {"type": "network", "path": str(self._make_network())},
                ],
            },
        }
        (self._folder / "config.json").write_text(json.dumps(config))

    def _environment(self, image_config: Object) -> Iterator[tuple[str, str]]:
        yield from image_config["environment"].items()
        yield from {
            "HOSTNAME": self._name,
            "KUBERNETES_SERVICE_HOST": "kubernetes.default.svc",
        }.items()
        fields = {"status.podIP": self._address, "metadata.name": self._name}
        for variable in self._container.get("env", []):
            if "valueFrom" in variable:
                yield variable["name"], fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                yield variable["name"], variable.get("value", "")

    def _mounts(self) -> Iterator[Object]:
        yield _bind("/etc/hosts", self._hosts)
        yield _bind(_ACCOUNT, self._node.credentials)
        volumes = {volume["name"]: volume for volume in self._pod["spec"].get("volumes", [])}
        for mount in self._container.get("volumeMounts", []):
            yield _bind(mount["mountPath"], self._volume(volumes[mount["name"]]), "rw")

    def _volume(self, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            return Path("/mnt", volume["persistentVolumeClaim"]["claimName"])
        folder = self._folder / volume["name"]
        folder.mkdir()
        folder.chmod(0o777)
        if "configMap" in volume:
            # Spark makes it after the pod.
            path = f"{self._path.rpartition('/pods/')[0]}/configmaps/{volume['configMap']['name']}"
            while not (found := self._node.server.call("GET", path)):
                time.sleep(_POLL_S)
            for name, text in (found.get("data") or {}).items():
                (folder / name).write_text(text)
            for name, text in (found.get("binaryData") or {}).items():
                (folder / name).write_bytes(base64.b64decode(text))
        return folder

    def _make_network(self) -> Path:
        network = self._folder / "network"
        network.touch()
        _run("unshare", f"--net={network}", "ip", "link", "set", "lo", "up")
        port = f"pod{self._address.rpartition('.')[2]}"
        for words in (
            f"link add {port} type veth peer name eth0 netns {network}",
            f"link set {port} master pods up",
        ):
            _run("ip", *words.split())
        for words in (f"address add {self._address}/24 dev eth0", "link set eth0 up"):
            _run("nsenter", f"--net={network}", "ip", *words.split())
        return network


def _bind(target: str, source: Path, mode: str = "ro") -> Object:
    options = ["rbind", mode]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}


_SYSTEM_MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["size=64m"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
    {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]},
]


def _num_killed_for_memory(group: str) -> int:
    for name in _OOM_FILES:
        file = _CGROUPS / name.format(group=group)
        if file.exists():
            counted = re.search(r"^oom_kill (\d+)", file.read_text(), re.MULTILINE)
            return int(counted[1]) if counted else 0
    return 0  # it did not start


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")


def main(
    name: str, server: str, credentials: str, images: str, group: str, first_address: str
) -> None:
    """Look after a node for ever."""
    lines = [line.split() for line in Path("/etc/hosts").read_text().splitlines() if line]
    hosts = {host: address for address, host in lines}
    api = ApiServer(server, Path(credentials))
    node = Node(name, api, hosts[server], Path(credentials), Path(images), group, first_address)
    print("ready", flush=True)
    while True:
        node.look()
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
