"""The policy in docs/security.md is what the storage asks S3 for, and no more."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint
from statestore.cli.commands import cli
from statestore.core.errors import StorageError
from statestore.io.s3 import S3FileIO
from tests.checkpoints import write_checkpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
LARGE = 20 << 20


def written():
    """Return the permissions of the policy: a name, and on what."""
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = []
    for statement in json.loads(text)["Statement"]:
        of = "object" if "/" in statement["Resource"] else "bucket"
        found += [(action, of) for action in statement["Action"]]
    return found


@pytest.mark.timeout(180)
def test_policy_is_what_all_operations_ask_for(tmp_path, s3_server, bucket):
    """Catches an action that is missing in the policy, or that nothing asks for any more."""
    options = s3_server.options()
    rows = {(f"word-{number}", number): (number, "note") for number in range(30)}
    path = write_checkpoint(tmp_path / "query", [{"default": rows}] * 4, checkpoint_format=2)
    remote = f"s3://{bucket}/checkpoints"
    s3_server.only_below = "checkpoints/"
    local = Checkpoint(path, storage_options=options)

    local.savepoint(f"{remote}/savepoint")
    Savepoint(f"{remote}/savepoint", storage_options=options).restore(f"{remote}/checkpoint")
    checkpoint = Checkpoint(f"{remote}/checkpoint", storage_options=options)
    assert checkpoint.verify(deep=True).ok
    checkpoint.rows("default").read()
    checkpoint.rescale(4)
    checkpoint.undo_rescale()
    checkpoint.compact()
    checkpoint.forget("word = 'word-5'")
    checkpoint.repair()
    checkpoint.branch(f"{remote}/branch")
    checkpoint.expire(keep=2)
    assert checkpoint.verify(deep=True).ok
    with Checkpoint(f"{remote}/stores", storage_options=options).open_store() as store:
        for number in range(4):
            batch = store.begin()
            batch.put(b"key", b"%d" % number)
            batch.commit()
        store.clean_up()
    _move_a_large_file(tmp_path, s3_server, bucket)
    conf = [f"--storage-option={key}={value}" for key, value in _keys(s3_server).items()]
    done = CliRunner().invoke(cli, ["doctor", f"--storage={remote}/doctor", *conf])
    assert done.output.count("OK   storage") == 6, done.output

    assert len(written()) == len(set(written()))
    assert s3_server.actions == set(written())

    s3_server.actions.clear()
    checkpoint.versions()
    checkpoint.inspect()
    checkpoint.report(deep=True)
    checkpoint.verify(deep=True)
    assert checkpoint.rows("default").read().num_rows == 29
    assert s3_server.actions == {("s3:ListBucket", "bucket"), ("s3:GetObject", "object")}


def _keys(server):
    return {"s3.endpoint": server.endpoint, "s3.region": "eu-central-1", "s3.pathStyle": "true"}


def _move_a_large_file(tmp_path, server, bucket):
    """Send, copy and fetch a file in parts; and fail while it is sent."""
    (tmp_path / "cache").mkdir()
    io = S3FileIO(str(tmp_path / "cache"), server.settings())
    for name in ("large", "refused"):
        (tmp_path / name).write_bytes(bytes(LARGE))
    io.publish(str(tmp_path / "large"), f"/{bucket}/checkpoints/large", sync=True, overwrite=False)
    io.link(f"/{bucket}/checkpoints/large", f"/{bucket}/checkpoints/again", sync=True)
    io.write(f"/{bucket}/checkpoints/small", b"rows", sync=True, overwrite=False)
    io.link(f"/{bucket}/checkpoints/small", f"/{bucket}/checkpoints/as small", sync=True)
    assert Path(io.fetch(f"/{bucket}/checkpoints/again")).stat().st_size == LARGE
    server.fail("PUT", "refused", times=3)
    with pytest.raises(StorageError):
        io.publish(
            str(tmp_path / "refused"), f"/{bucket}/checkpoints/refused", sync=True, overwrite=False
        )
