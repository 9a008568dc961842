"""The lane before a commit takes seconds: a test here starts no process, so no JVM or server."""

import sys

import pytest

STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
is_watched = False


def refuse_processes(event, _arguments):
    """An audit hook: it cannot be taken away again, so it looks only while a test here runs."""
    if is_watched and event in STARTS:
        raise RuntimeError(f"a test of tests/unit started a process: {event}")


sys.addaudithook(refuse_processes)


@pytest.fixture(autouse=True)
def no_process():
    """Refuse processes while a test runs."""
    global is_watched
    is_watched = True
    yield
    is_watched = False
