"""Pods of Spark by Kubernetes itself: its control plane; kubelet and containerd on each node.

There is no DNS and no kube-proxy: pods reach the API server, the driver and S3 by addresses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import image
from .cluster import MASTER, WORKERS
from .hosts import MOUNTS, wait_for
from .kubernetes import CLAIM, IMAGE, TOKEN, Kubernetes

BINARY = "STATESTORE_KUBERNETES"
"""The variable with the path of the program that control_plane/build.sh makes."""
_TOOLS = ("containerd", "ctr", "runc")
_PLUGINS = Path("/usr/lib/cni")
_PAUSE = "registry/pause"
_GIVEN = MOUNTS / "control-plane"
_NODE = Path(__file__).with_name("control_plane") / "node.sh"
_VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_TREES = ("cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "systemd")
_USERS = {
    TOKEN: ("lane", "system:masters"),
    "of-the-controllers": ("system:kube-controller-manager", ""),
    "of-the-scheduler": ("system:kube-scheduler", ""),
    **{f"of-{node}": (f"system:node:{node}", "system:nodes") for node in WORKERS},
}
"""Name and group, by token."""


def why_not() -> str:
    """Return why this machine has no Kubernetes of its own; "" where it has."""
    if not os.environ.get(BINARY):
        return f"{BINARY} is not set"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not _PLUGINS.exists():
        missing.append(str(_PLUGINS))
    return f"the machine lacks {', '.join(missing)}" if missing else ""


class RealKubernetes(Kubernetes):
    """etcd, API server, controllers and scheduler on one host, kubelet and containerd on two."""

    KIND = "Kubernetes 1.34"

    def __init__(self, directory: Path, others: Sequence[str], folders: Mapping[str, Path]) -> None:
        given = directory / "control-plane"
        given.mkdir()
        shutil.copy(os.environ[BINARY], given / "hyperkube")
        shutil.copy(_NODE, given)
        super().__init__(directory, others, {**folders, "control-plane": given})

    def _start_daemons(self, made: Path) -> None:
        given = self.directory / "control-plane"
        image.archive(made, given / "image.tar", {IMAGE: None, _PAUSE: ["/bin/sleep", "infinity"]})
        for name in ("ca.crt", "server.key"):
            shutil.copy(self.directory / "stand-in" / name, given)
        lines = [f'{token},{name},{name},"{group}"\n' for token, (name, group) in _USERS.items()]
        (given / "tokens.csv").write_text("".join(lines))
        for token, (name, _) in _USERS.items():
            kubeconfig = self._kubeconfig(token)
            (given / f"{name.rpartition(':')[2]}.json").write_text(json.dumps(kubeconfig))
        self._start_control_plane()
        for number, host in enumerate(WORKERS):
            self._start_node(host, 100 + 50 * number)
        (given / "objects.json").write_text(json.dumps(_objects()))
        self.kubectl("apply", "-f", str(_GIVEN / "objects.json"))
        ready = self._kubectl("wait", "--for=condition=Ready", "node", *WORKERS, "--timeout=1s")
        wait_for(lambda: self.hosts.succeeds(MASTER, ready), "the nodes")

    def _start_control_plane(self) -> None:
        etcd = (f"{_GIVEN}/hyperkube", "etcd", "--data-dir=/tmp/etcd", "--unsafe-no-fsync")
        self._daemon(MASTER, "etcd", etcd)
        self._daemon(
            MASTER,
            "kube-apiserver",
            (
                *(f"{_GIVEN}/hyperkube", "kube-apiserver", "--secure-port=6443"),
                "--etcd-servers=http://127.0.0.1:2379",
                f"--advertise-address={self.hosts.address(MASTER)}",
                *(f"--tls-cert-file={_GIVEN}/ca.crt", "--cert-dir=/tmp/certificates"),
                f"--tls-private-key-file={_GIVEN}/server.key",
                *(f"--token-auth-file={_GIVEN}/tokens.csv", "--authorization-mode=Node,RBAC"),
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={_GIVEN}/server.key",
                f"--service-account-signing-key-file={_GIVEN}/server.key",
                "--service-cluster-ip-range=10.96.0.0/16",
            ),
        )
        wait_for(
            lambda: self.hosts.succeeds(MASTER, self._kubectl("get", "--raw=/readyz")),
            "the API server",
            seconds=180,
        )
        self._daemon(
            MASTER,
            "kube-controller-manager",
            (
                *(f"{_GIVEN}/hyperkube", "kube-controller-manager", "--leader-elect=false"),
                f"--kubeconfig={_GIVEN}/kube-controller-manager.json",
                f"--root-ca-file={_GIVEN}/ca.crt",
                f"--service-account-private-key-file={_GIVEN}/server.key",
                *("--use-service-account-credentials", "--cert-dir=/tmp/certificates"),
            ),
        )
        self._daemon(
            MASTER,
            "kube-scheduler",
            (
                *(f"{_GIVEN}/hyperkube", "kube-scheduler", "--leader-elect=false"),
                *(f"--kubeconfig={_GIVEN}/kube-scheduler.json", "--cert-dir=/tmp/certificates"),
            ),
        )

    def _start_node(self, host: str, first: int) -> None:
        group = f"/{self._group}/{host}"
        self._make_group(group)
        own = self.hosts.address(host)
        network = own.rpartition(".")[0]
        disk = self.hosts.disk(host)
        plugin = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "type": "bridge",
            "bridge": "pods",
            "ipam": {
                "type": "host-local",
                "dataDir": "/tmp/addresses",
                "ranges": [
                    [
                        {
                            "subnet": f"{network}.0/24",
                            "rangeStart": f"{network}.{first}",
                            "rangeEnd": f"{network}.{first + 49}",
                        }
                    ]
                ],
            },
        }
        (disk / "cni").mkdir()
        (disk / "cni" / "pods.conf").write_text(json.dumps(plugin))
        (disk / "containerd.toml").write_text(_CONTAINERD)
        (disk / "kubelet.json").write_text(json.dumps({**_KUBELET, "cgroupRoot": group}))
        self._run_on(host, "sh", f"{_GIVEN}/node.sh", own)
        self._daemon(host, "containerd", ("containerd", "--config", "/tmp/containerd.toml"))
        ctr = ("ctr", "--namespace", "k8s.io", "images", "import")
        wait_for(lambda: "serving" in self.log("containerd", host), "containerd")
        self._run_on(host, *ctr, f"{_GIVEN}/image.tar")
        self._daemon(
            host,
            "kubelet",
            (
                *(f"{_GIVEN}/hyperkube", "kubelet", "--config=/tmp/kubelet.json"),
                *(f"--kubeconfig={_GIVEN}/{host}.json", f"--hostname-override={host}"),
                *(f"--node-ip={own}", "--root-dir=/tmp/kubelet", "--cert-dir=/tmp/certificates"),
            ),
        )

    def _daemon(self, host: str, name: str, command: Sequence[str]) -> None:
        self.start_daemon(host, name, command, _VARIABLES, user_id=0)

    def _run_on(self, host: str, *command: str) -> str:
        started = self.hosts.start(host, command, subprocess.PIPE, _VARIABLES, user_id=0)
        printed = started.communicate()[0].decode(errors="replace")
        assert started.returncode == 0, (command, printed[-2000:])
        return printed

    def _kubectl(self, *arguments: str) -> list[str]:
        return [f"{_GIVEN}/hyperkube", "kubectl", f"--kubeconfig={_GIVEN}/lane.json", *arguments]

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl on the host of the control plane; return what it prints.

        Raises:
            AssertionError: It fails.
        """
        return self._run_on(MASTER, *self._kubectl(*arguments))

    def _make_group(self, group: str) -> None:
        """Make a cgroup where pods of a node are: a kubelet makes none at the top."""
        for tree in _TREES:
            folder = Path("/sys/fs/cgroup", tree)
            for name in group.strip("/").split("/"):
                above, folder = folder, folder / name
                folder.mkdir(exist_ok=True)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if (folder / file).exists():
                        (folder / file).write_text((above / file).read_text())

    def _group_of(self, pod: str) -> str:
        return f"**/pod{self._call('GET', f'pods/{pod}')['metadata']['uid']}/*"

    def _logs(self, pod: str) -> list[Path]:
        """Return what a pod prints; a kubelet deletes it with the pod, so it gets another name."""
        for host in WORKERS:
            disk = self.hosts.disk(host)
            for path in disk.glob(f"pod-logs/default_{pod}_*/*/*.log"):
                kept = disk / f"{pod}.log"
                if not kept.exists():
                    kept.hardlink_to(path)
        return super()._logs(pod)

    def conf(self, name: str) -> dict[str, str]:
        return {
            **super().conf(name),
            "spark.kubernetes.driver.master": f"https://{self.hosts.address(MASTER)}:6443",
            "spark.kubernetes.executor.useDriverPodIP": "true",
            # A scheduler counts what pods ask for, and a node may have two cores.
            "spark.kubernetes.driver.request.cores": "100m",
            "spark.kubernetes.executor.request.cores": "100m",
        }


def _objects() -> dict[str, Any]:
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": CLAIM,
    }
    volume = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(MOUNTS / CLAIM)},
        "claimRef": {"namespace": "default", "name": CLAIM},
    }
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "spark", "namespace": "default"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "edit",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    named = {"metadata": {"name": CLAIM}}
    items = [
        {"apiVersion": "v1", "kind": "PersistentVolume", **named, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **named, "spec": claim},
        role,
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


_CONTAINERD = f"""
version = 2
root = "/tmp/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/{_PAUSE}:latest"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{_PLUGINS}"
conf_dir = "/tmp/cni"
"""
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "failCgroupV1": False,
    "cgroupDriver": "cgroupfs",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
    "authorization": {"mode": "Webhook"},
    "enforceNodeAllocatable": ["none"],
    "evictionHard": {"memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100,
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "podLogsDir": "/tmp/pod-logs",
    "containerLogMaxSize": "1Gi",
    "resolvConf": "",
}
