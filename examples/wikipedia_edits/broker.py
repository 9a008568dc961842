"""Starts a Kafka broker, with its own controller (KRaft), in one JVM, and runs until it is stopped.

    python -m examples.wikipedia_edits.broker --directory DIR [--port 9092]

It listens on 127.0.0.1 only. The directory keeps its topics, so it goes on from there when it is
started again. SIGTERM or Ctrl-C stops it cleanly; `kill -9` of this process kills the broker.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

from examples.wikipedia_edits.jars import broker_jars

READY_TIMEOUT_S = 180.0
PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={directory}/log
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
MODULE = "examples.wikipedia_edits.broker"
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Broker:
    """A broker in a process of its own.

    Args:
        directory: What it keeps, and its log `broker.log`.
        port: Port of 127.0.0.1; a free one when None.

    Guarantee: once made, and after `start`, clients are served.
    """

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory, self.port = directory, port or free_port()
        self.servers = f"127.0.0.1:{self.port}"
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it, also again after `kill`.

        Raises:
            RuntimeError: It does not serve; says what its log ends with.
        """
        log = self.directory / "broker.log"
        command = [sys.executable, "-m", MODULE, "--directory", str(self.directory.resolve())]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        end_s = time.monotonic() + READY_TIMEOUT_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > end_s:
                self.kill()
                raise RuntimeError(f"Kafka does not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End it with kill -9; its directory stays as it is."""
        self.process.kill()
        self.process.wait()

    def _serves(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def prepare(directory: Path, port: int) -> list[str]:
    """Format the directory unless it is, and return the command that runs the broker on it."""
    directory.mkdir(parents=True, exist_ok=True)
    properties = directory / "server.properties"
    java = ["java", "-Xmx512m", "-cp", ":".join(map(str, broker_jars()))]
    properties.write_text(
        PROPERTIES.format(port=port, controller_port=free_port(), directory=directory.resolve())
    )
    if not (directory / "log" / "meta.properties").exists():
        # Such an ID may begin with a dash.
        arguments = ["format", f"--cluster-id={secrets.token_urlsafe(16)}"]
        arguments += ["--config", str(properties)]
        subprocess.run([*java, "kafka.tools.StorageTool", *arguments], check=True)
    return [*java, "kafka.Kafka", str(properties)]


def main() -> None:
    """Parse the command line and become the broker."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="what the broker keeps")
    parser.add_argument("--port", type=int, default=9092, help="port of 127.0.0.1")
    arguments = parser.parse_args()
    command = prepare(arguments.directory, arguments.port)
    os.execvp(command[0], command)  # noqa: S606 - so that a signal reaches the broker


if __name__ == "__main__":
    main()
