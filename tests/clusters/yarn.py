"""YARN and HDFS, each of their daemons as a JVM on its host, from jars that tests can fetch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.spark.hdfs_cluster import fetch_jar, hadoop_release
from tests.spark.processes import command_line

from .cluster import (
    DRIVER,
    LIGHT_JVM,
    MASTER,
    WORKERS,
    Application,
    Cluster,
    conf_of,
    is_engine,
)
from .hosts import MOUNTS, USER_ID, wait_for

EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
HDFS = f"hdfs://{MASTER}:9000"
_ARCHIVE = "env.tar.gz"
_PYTHON = "./env/bin/python"
"""The engines' Python in a container, from `--archives`."""
_BOUNCY_CASTLE = ("bcprov-jdk18on", "bcpkix-jdk18on", "bcutil-jdk18on")
"""What a resource manager of Hadoop 3.5 does not start without."""
_SERVER = "org.apache.hadoop"
_HUNGER = "hunger"
_EAT = "eat"
_HUNGRY_ENGINE = f"""
import os, sys, threading, time

def eat():
    while True:
        try:
            os.remove("/tmp/{_EAT}")
        except FileNotFoundError:
            time.sleep(0.2)
            continue
        eaten = bytearray(2 << 30)
        for page in range(0, len(eaten), 4096):
            eaten[page] = 1
        time.sleep(3600)

if "statestore.engine" in sys.orig_argv:
    threading.Thread(target=eat, daemon=True).start()
"""
"""Makes an engine take 2 GiB, as one with a leak would, once its host has a file of a name."""


class Yarn(Cluster):
    """A resource manager, two node managers that watch the memory of containers, and an HDFS.

    Raises:
        JarsUnreachableError: As `fetch_jar`.
    """

    def __init__(self, directory: Path) -> None:
        hadoop = directory / "hadoop"
        hadoop.mkdir()
        jars = [
            fetch_jar("org.apache.hadoop", "hadoop-client-minicluster", hadoop_release()),
            *(fetch_jar("org.bouncycastle", name, "1.82") for name in _BOUNCY_CASTLE),
        ]
        for jar in jars:
            (hadoop / jar.name).write_bytes(jar.read_bytes())
        for name, properties in _SITES.items():
            (hadoop / name).write_text(_xml(properties))
        (hadoop / "log4j2.properties").write_text(_LOG4J)
        super().__init__(directory, folders={"hadoop": hadoop})
        self._pack_environment()

    def _pack_environment(self) -> None:
        """Pack what `--archives` brings to containers, as docs/deploy.md has it."""
        (packages,) = self.python.glob("lib/python3.*/site-packages")
        (packages / f"{_HUNGER}.py").write_text(_HUNGRY_ENGINE)
        (packages / f"{_HUNGER}.pth").write_text(f"import {_HUNGER}\n")
        archive = self.directory / "files" / _ARCHIVE
        pack = Path(sys.executable).with_name("venv-pack")
        subprocess.run([pack, "-q", "-p", self.python, "-o", archive], check=True)
        archive.chmod(0o644)

    def start(self) -> None:
        """Start the daemons."""
        name_node = f"{_SERVER}.hdfs.server.namenode.NameNode"
        formatted = [*self._java(), name_node, "-format", "-nonInteractive"]
        assert self.hosts.succeeds(MASTER, formatted, self._environment(MASTER))
        self._start(MASTER, name_node)
        manager = self._start(MASTER, f"{_SERVER}.yarn.server.resourcemanager.ResourceManager")
        self._start(MASTER, f"{_SERVER}.hdfs.server.datanode.DataNode")
        for host in WORKERS:
            self._start(host, f"{_SERVER}.yarn.server.nodemanager.NodeManager")
        registered = "NodeManager from node"
        wait_for(
            lambda: manager.read_text().count(registered) == len(WORKERS), "node managers", 180
        )
        wait_for(lambda: self.files("-mkdir", "-p", "/tmp"), "HDFS", 180)

    def _start(self, host: str, class_name: str) -> Path:
        name = class_name.rpartition(".")[2]
        return self.start_daemon(host, name, [*self._java(), class_name], self._environment(host))

    def _java(self) -> list[str]:
        opens = (f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util"))
        path = f"{MOUNTS}/hadoop:{MOUNTS}/hadoop/*:{MOUNTS}/spark/jars/*"
        java = [f"{MOUNTS}/java/bin/java", "-Xmx400m", *LIGHT_JVM.split(), *opens]
        return [*java, f"-Dlog4j2.configurationFile={MOUNTS}/hadoop/log4j2.properties", "-cp", path]

    def _environment(self, host: str) -> dict[str, str]:
        configuration = f"{MOUNTS}/hadoop"
        return {"SPARK_HOME": f"{MOUNTS}/spark", "HADOOP_CONF_DIR": configuration, "HOST": host}

    def files(self, *arguments: str) -> bool:
        """Run a command of Hadoop's shell for files; return whether it did what it should."""
        command = [*self._java(), f"{_SERVER}.fs.FsShell", *arguments]
        return self.hosts.succeeds(DRIVER, command, self._environment(DRIVER))

    def run(
        self,
        name: str,
        mode: str,
        backend: str,
        arguments: Sequence[str],
        conf: Mapping[str, str],
    ) -> Application:
        """Submit job.py as docs/deploy.md has it, in a deploy mode, with a state backend."""
        mine = {
            **self.conf(mode),
            "spark.archives": f"{MOUNTS}/files/{_ARCHIVE}#env",
            **conf,
        }
        words = [*conf_of(backend, mine), f"{MOUNTS}/files/job.py", *arguments]
        submitted, output = self.submit(name, words, self._environment(DRIVER))

        def logs() -> list[Path]:
            submitted = re.search(r"Submitted application (\w+)", output.read_text())
            if mode == "client" or submitted is None:
                return [output]
            disks = (self.hosts.disk(host) for host in WORKERS)
            found = (disk.glob(f"nm-logs/{submitted[1]}/*_000001/std*") for disk in disks)
            return [path for paths in found for path in paths]

        return Application(submitted, output, logs)

    def conf(self, mode: str) -> dict[str, str]:
        """Return Spark's configuration of an application in a deploy mode, as it is outside."""
        conf = {
            "spark.master": "yarn",
            "spark.submit.deployMode": mode,
            "spark.yarn.jars": f"local:{MOUNTS}/spark/jars/*",
            "spark.archives": f"{self.directory}/files/{_ARCHIVE}#env",
            "spark.pyspark.python": _PYTHON,
            "spark.executor.memoryOverhead": "900m",
            "spark.driver.memoryOverhead": "600m",
            "spark.yarn.maxAppAttempts": "1",
            "spark.task.maxFailures": "10",
        }
        if mode == "cluster":
            return {**conf, "spark.yarn.appMasterEnv.PYSPARK_PYTHON": _PYTHON}
        python = f"{MOUNTS}/python/bin/python"
        return {**conf, "spark.pyspark.driver.python": python, "spark.driver.host": DRIVER}

    def environment(self) -> dict[str, str]:
        """Return what a command beside the hosts needs to find the cluster."""
        return {"HADOOP_CONF_DIR": str(self.directory / "hadoop")}

    def have_an_engine_eat(self) -> str:
        """Let an engine of an executor take more memory than a container may; return its host."""
        host = wait_for(lambda: self._hosts_of(is_engine), "an engine of an executor")[0]
        sign = self.hosts.disk(host) / _EAT
        sign.touch()
        os.chown(sign, USER_ID, USER_ID)
        return host

    def _hosts_of(self, is_meant: Callable[[list[str]], bool]) -> list[str]:
        pids = ((host, pid) for host in WORKERS for pid in self.hosts.pids(host))
        return [host for host, pid in pids if is_meant(command_line(pid))]


def _xml(properties: Mapping[str, str]) -> str:
    lines = (
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


_SITES = {
    "core-site.xml": {"fs.defaultFS": HDFS, "hadoop.tmp.dir": "/tmp/hadoop"},
    "hdfs-site.xml": {
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.rpc-bind-host": "0.0.0.0",  # noqa: S104
        "dfs.namenode.safemode.extension": "0",
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
    },
    "yarn-site.xml": {
        "yarn.resourcemanager.hostname": MASTER,
        "yarn.nodemanager.hostname": "${env.HOST}",
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.nodemanager.local-dirs": "/tmp/nm-local",
        "yarn.nodemanager.log-dirs": "/tmp/nm-logs",
        "yarn.nodemanager.env-whitelist": "JAVA_HOME",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
        # Without this, what a container uses is not looked at where there are no cgroups.
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.pmem-check-enabled": "true",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "1000",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.maximum-allocation-mb": "4096",
    },
    "capacity-scheduler.xml": {
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.8",
        "yarn.scheduler.capacity.resource-calculator": (
            f"{_SERVER}.yarn.util.resource.DefaultResourceCalculator"
        ),
    },
}
_LOG4J = """rootLogger.level=info
rootLogger.appenderRef.c.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
