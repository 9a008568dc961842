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
        assert document["version"] not in document["versions_removed"]
        assert not state & paths_in(document["removed"], copy)
    # The lease is taken before the certificate, and dropped behind it.
    assert {None, "begun"} <= statuses


def test_certificate_that_is_completed_counts_the_rows_of_the_version_that_it_names(tmp_path):
    """Catches counts of a call that deleted nothing, beside the version of the one that did."""
    made = make(tmp_path, operators=KEYED, num_partitions=2)
    keys = pa.table({"key.k": [KEY]})
    file = tmp_path / "certificate.json"
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(0, happens=False, calls=("publish",)))
    with suppress(StorageError):
        at(made.path, io=io).forget(keys=keys, certificate=file)
    begun = json.loads(file.read_text())
    end_process(made.path)
    made.run_batch({KEY: 9, 1000: 1, 1001: 1})

    done = Checkpoint(made.path).forget(keys=keys, certificate=file)

    document = json.loads(file.read_text())
    counts = ("version", "num_rows", "num_rows_before", "num_rows_of_files")
    assert begun["status"] == "begun"
    assert [document[name] for name in counts] == [getattr(done, name) for name in counts]
    assert document["num_rows_before"] == begun["num_rows_before"] + 2
    assert document["num_rows_of_files"] == begun["num_rows_of_files"] + 1
