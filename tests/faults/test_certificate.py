"""The certificate of a `forget` that ends at any step, by a fault of the storage."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from statestore import Checkpoint
from statestore.core.errors import StorageError
from statestore.io.local import LocalFileIO
from tests.fault_io import Fault, FaultFileIO
from tests.rescaled import KEYED, MUTATIONS, end_process, listing, make
from tests.seams import at

KEY = 5


def paths_in(records, copy):
    """Paths of a certificate's files below a checkpoint."""
    return {Path(record["path"]).relative_to(copy).as_posix() for record in records}


def test_fault_at_every_step_leaves_a_certificate_of_what_was_begun(tmp_path):
    """Catches files that are gone and in no certificate, and one that cannot be completed."""
    made = make(tmp_path, operators=KEYED, num_partitions=2)
    keys = pa.table({"key.k": [KEY]})
    copy, file = tmp_path / "copy", tmp_path / "certificate.json"
    statuses = set()
    for index in range(200):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        file.unlink(missing_ok=True)
        before = {name for name in listing(copy) if name.endswith(".arrows")}
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(index, True, MUTATIONS))
        with suppress(StorageError):
            at(str(copy), io=io).forget(keys=keys, certificate=file)
        if not io.has_failed:
            break
        end_process(copy)
        left = {*listing(copy)}
        status = json.loads(file.read_text())["status"] if file.exists() else None
        statuses.add(status)
        assert status or before <= left

        if status != "complete":
            done = Checkpoint(copy).forget(keys=keys, certificate=file)
            assert done.certificate.is_forgotten, str(done)
            assert (done.version, done.batch + 1) == (done.certificate.version,) * 2
            written = {change.path for change in done.changes if change.verb == "write"}
            assert bool(written) == bool(done.files)
        document = json.loads(file.read_text())
        assert document["status"] == "complete"
        assert document["num_rows"] == 1
        state = {name for name in listing(copy) if name.endswith(".arrows")}
        assert before - state <= paths_in(document["removed"], copy)
        assert state == paths_in(document["written"], copy)
    # The lease is taken before the certificate, and dropped behind it.
    assert {None, "begun"} <= statuses
