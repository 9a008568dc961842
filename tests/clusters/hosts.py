"""Hosts of a cluster on one machine: namespaces of Linux, each with processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from tests.spark.processes import all_pids, descendants

USER, USER_ID = "spark", 1500
"""Who everything on a host runs as, unless it is told otherwise."""
MOUNTS = Path("/mnt")
"""Where a host sees the folders that it is given."""
_T = TypeVar("_T")
ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = Path(__file__).with_name("host.sh")
_NETWORK = "10.77.0"
_SWITCH = "switch"
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
# The kernel ends a host with whoever made it, also one that was killed.
_UNSHARED = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child")
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc")


def why_not() -> str:
    """Return why this machine can have no hosts; "" where it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"the machine lacks the commands {', '.join(missing)}"
    bridge = ("ip", "link", "add", "bridge", "type", "bridge")
    done = subprocess.run(
        [*_UNSHARED, *_NAMESPACES, *bridge], capture_output=True, text=True, check=False
    )
    return f"the machine allows no namespaces: {done.stderr.strip()}" if done.returncode else ""


class Hosts:
    """Machines on one network that nothing else is on, until `stop`.

    A host has a name, processes, mounts and a local disk of its own. Of the checkout it has
    nothing, nor of the home of whoever runs this. It sees the given folders below `MOUNTS`, and
    its disk as `/tmp`. What reaches it otherwise is the operating system.

    Args:
        directory: For the disks, `<directory>/<name>`, and the files of the hosts.
        names: Names of the hosts.
        folders: What every host sees, by the name below `MOUNTS`.
    """

    def __init__(self, directory: Path, names: Sequence[str], folders: Mapping[str, Path]) -> None:
        self.names = tuple(names)
        self._directory = directory
        self._firsts: dict[str, int] = {}
        self._unshared: list[subprocess.Popen[str]] = []
        etc = directory / "etc"
        (etc / "nothing").mkdir(parents=True)
        addresses = {"localhost": "127.0.0.1", **{name: self.address(name) for name in names}}
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        (etc / "hosts").write_text("".join(lines))
        users = (("root", 0), (USER, USER_ID))
        lines = [f"{name}:x:{number}:{number}::/tmp:/bin/sh\n" for name, number in users]
        (etc / "passwd").write_text("".join(lines))
        try:
            self._start(_SWITCH, "sleep", "infinity")
            for command in ("link add bridge type bridge", "link set bridge up"):
                self._ip(_SWITCH, command)
            for name in names:
                self._start_host(name, etc, folders)
        except BaseException:
            self.stop()
            raise

    def _start_host(self, name: str, etc: Path, folders: Mapping[str, Path]) -> None:
        disk = self.disk(name)
        disk.mkdir()
        disk.chmod(0o1777)
        pairs = [word for pair in folders.items() for word in pair]
        unshared = self._start(
            name, "sh", _SCRIPT, name, etc, disk, *pairs, "--", Path.home(), ROOT
        )
        assert unshared.stdout is not None
        if unshared.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {name} does not start: {unshared.communicate()[1]}")
        number = len(self._firsts)
        end = f"eth0 netns {self._firsts[name]}"
        self._ip(_SWITCH, f"link add port{number} type veth peer name {end}")
        self._ip(_SWITCH, f"link set port{number} master bridge up")
        self._ip(name, f"address add {self.address(name)}/24 dev eth0")
        for device in ("lo", "eth0"):
            self._ip(name, f"link set {device} up")

    def _start(self, name: str, *command: str | Path) -> subprocess.Popen[str]:
        unshared = subprocess.Popen(
            [*_UNSHARED, *_NAMESPACES, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._unshared.append(unshared)
        children = Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children")
        self._firsts[name] = int(wait_for(children.read_text, f"host {name}"))
        return unshared

    def _ip(self, name: str, command: str) -> None:
        subprocess.run(
            ["nsenter", "--target", str(self._firsts[name]), "--net", "ip", *command.split()],
            check=True,
        )

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{_NETWORK}.{10 + self.names.index(name)}"

    def disk(self, name: str) -> Path:
        """Return what a host has as `/tmp`."""
        return self._directory / name

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        output: IO[bytes] | int,
        environment: Mapping[str, str] | None = None,
        user_id: int = USER_ID,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, in a session of its own.

        Args:
            name: The host.
            command: Its words, with the paths of the host.
            output: Where it prints.
            environment: Its variables, beside those that all have.
            user_id: Who it runs as.
        """
        variables = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "USER": USER,
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "JAVA_HOME": str(MOUNTS / "java"),
            **(environment or {}),
        }
        words = [
            *("nsenter", "--target", str(self._firsts[name]), "--all", "--wd=/tmp"),
            *("setpriv", f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"),
            *("env", "-i", *(f"{key}={value}" for key, value in variables.items())),
            *map(str, command),
        ]
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def succeeds(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
    ) -> bool:
        """Run a command on a host to its end; return whether it did what it should."""
        return self.start(name, command, subprocess.DEVNULL, environment).wait() == 0

    def run_beside(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command of the checkout as if on the first of the hosts; return what it prints.

        Raises:
            AssertionError: It fails.
        """
        hosts = self._directory / "etc" / "hosts"
        entered = ("nsenter", "--target", str(self._firsts[self.names[0]]), "--net", "--uts")
        named = ("unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts; exec "$@"')
        done = subprocess.run(
            [*entered, *named, "sh", *map(str, command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        assert done.returncode == 0, (command, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout

    def pids(self, name: str) -> list[int]:
        """Return the processes of a host, those in its containers too, but the first one.

        They are numbered as outside.
        """
        first = self._firsts[name]
        space = _pid_namespace(first)
        own = {pid for pid in all_pids() if _pid_namespace(pid) == space}
        return sorted({*own, *descendants(*own)} - {first})

    def stop(self) -> None:
        """End every process of every host, and with them mounts and network."""
        for unshared in self._unshared:
            unshared.kill()
        for unshared in self._unshared:
            unshared.communicate()


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def wait_for(probe: Callable[[], _T], what: str, seconds: float = 60) -> _T:
    """Return what a function returns once that is true.

    Raises:
        AssertionError: It does not become true in that time.
    """
    end_s = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < end_s, f"waited {seconds} s for: {what}"
        time.sleep(0.1)
    return found
