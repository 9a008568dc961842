"""Checkpoints that are damaged and looked after."""

import json
from pathlib import Path

from click.testing import CliRunner

from statestore.cli.commands import cli
from statestore.core.options import StateStoreOptions
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import OPERATORS
from tests.checkpoints import query_of

NOW = StateStoreOptions(orphan_age_ms=0)


def deltas(made, version, operator=0, partition=1):
    """The state files of a version of a store."""
    directory = Path(made.path) / "state" / str(operator) / str(partition)
    return sorted(directory.glob(f"{version}[._]*"))


def flip(path, offset=20):
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def without_leases(made):
    """Every file of a checkpoint but for leases, and its bytes."""
    return {
        str(file): file.read_bytes()
        for file in Path(made.path).rglob("*")
        if file.is_file() and "statestore-leases" not in file.parts
    }


def run(*arguments):
    """A command's exit status and the JSON object it printed."""
    result = CliRunner().invoke(cli, [*arguments, "--output", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout)


def make_with_snapshots(tmp_path, backend):
    """A checkpoint of four versions, the last two built on a snapshot; and the snapshots."""
    query = query_of(tmp_path / "query", backend=backend, num_partitions=2)
    query.run_batch({"one": 1, "two": 2, "three": 3})
    query.run_batch({"four": 4, "two": 5})
    query.run_batch({"one": 6}, snapshot=True)
    query.run_batch({"five": 7})
    snapshots = list(Path(query.path).rglob("2_*.snapshot.*"))
    assert len(snapshots) == 2
    return query, snapshots


def make_small(tmp_path, num_batches, **arguments):
    """A checkpoint of an aggregation, small enough to be made and repaired many times."""
    scratch = tmp_path / "small-scratch"
    scratch.mkdir()
    made = MadeCheckpoint(str(tmp_path / "small"), scratch, operators=OPERATORS[:1], **arguments)
    for batch in range(num_batches):
        made.run_batch(dict.fromkeys(range(20), batch))
    return made
