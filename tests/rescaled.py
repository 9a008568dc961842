"""Checkpoints that are rescaled, and what may be found of them when an operation ended half way."""

from pathlib import Path

from statestore.checkpoint.layout import history_path, lease_directory
from statestore.checkpoint.query_log import OffsetsEntry
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS

MUTATIONS = ("write", "publish", "delete")
KEYED = OPERATORS[:1]


def make(tmp_path, **arguments):
    """A checkpoint of three batches."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), scratch, **arguments)
    made.run_batch({key: key for key in range(40)})
    made.run_batch(dict.fromkeys(range(0, 40, 3)) | {50: 1})
    made.run_batch({key: -key for key in range(30, 60)})
    return made


def listing(path):
    """Every file and its bytes, but for the history, which nothing takes back."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in Path(path).rglob("*")
        if file.is_file() and file != Path(history_path(str(path)))
    }


def end_process(path, io=None):
    """Let the lease of an operation that failed go, as the end of its process does."""
    io = io or LocalFileIO()
    directory = lease_directory(f"{path}/state")
    for info in io.list(directory):
        io.delete(f"{directory}/{info.name}")


def newest(path, log):
    """Newest batch of a log."""
    return max(int(file.name) for file in (Path(path) / log).glob("[0-9]*"))


def edit_conf(made, **changes):
    """Change the conf that the query pins."""
    for path in Path(made.path, "offsets").iterdir():
        entry = OffsetsEntry.parse(path.read_text(), str(path))
        path.write_text(entry.with_conf(changes).encode())
