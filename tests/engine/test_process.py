"""Processes told apart: this one, one that ended, one whose ID was used again, one elsewhere."""

import os
import subprocess
import sys
from dataclasses import replace

from statestore.core.process import find_process


def test_process_is_alive_until_it_ended():
    """Catches a process that counts as alive while nobody has asked for its exit code."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = find_process(child.pid)
    assert found.state() == find_process().state() == "alive"

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    as_zombie = found.state()
    child.communicate()

    assert (as_zombie, found.state()) == ("gone", "gone")


def test_process_is_gone_when_its_id_is_another_ones():
    """Catches a holder that comes to life again because the system reuses process IDs."""
    own = find_process()

    assert own.started > 0
    assert replace(own, started=own.started - 1).state() == "gone"
    assert replace(own, started=0).state() == "alive"


def test_processes_elsewhere_are_unknown():
    """Catches a verdict about another machine's, or another container's, process IDs."""
    own = find_process()

    assert replace(own, host="other", pid=1 << 22).state() == "unknown"
    assert replace(own, machine="boot namespace", pid=1 << 22).state() == "unknown"
    assert replace(own, machine="").state() == "unknown"
