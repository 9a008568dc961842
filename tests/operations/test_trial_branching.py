"""What a trial begins with: the version before batches that can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import Checkpoint, Trial, try_job
from statestore.core.errors import InvalidArgumentError
from statestore.operations.batches import read_own_batch
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.trial.branching import first_version_of, hand
from statestore.spark.job_on_branch import Repeat
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import OPTIONS, query_of
from tests.rescaled import KEYED, make
from tests.seams import place_of


def test_fewer_batches_are_repeated_where_versions_are_gone(tmp_path: Path) -> None:
    """Catches a version that was expired, or that an operation made, to begin a trial with."""
    query = query_of(tmp_path / "query", num_partitions=2, options=OPTIONS)
    for number in range(6):
        query.run_batch({f"key-{key}": str(number) for key in range(10)}, snapshot=True)
    ck = Checkpoint(query.path)

    def first(num_batches: int) -> int:
        with open_checkpoint(place_of(ck.uri)) as checkpoint:
            return first_version_of(checkpoint, num_batches)

    assert [first(number) for number in (1, 3, 100)] == [5, 3, 1]
    ck.expire(3)
    assert first(100) == 3  # a snapshot that the next version is made of
    Path(ck.uri, "sources", "0", "4").unlink()
    assert first(100) == 5
    ck.rescale(4)
    with pytest.raises(InvalidArgumentError, match="no batch of the query can be repeated"):
        first(100)


@pytest.mark.parametrize("rows", [{}, {0: "SELECT * FROM state"}], ids=["as they are", "made"])
def test_branch_has_a_query_id_of_its_own(tmp_path: Path, rows: Any) -> None:
    """Catches a trial that Spark takes for a second start of the query, which it then stops."""
    query = make(tmp_path, operators=KEYED)
    job, trial = tmp_path / "job.py", tmp_path / "trial"
    job.write_text("")

    with pytest.raises(InvalidArgumentError, match="ended before its time"):
        try_job(query.path, job, rows=rows, trial=trial, batches=1, submit=["false"])

    assert Trial(trial).branch.info.query_id not in (None, QUERY_ID)


@pytest.mark.parametrize("name", ["arguments", "ignore", "submit"])
def test_a_text_where_several_are_meant_is_refused_before_anything_runs(
    tmp_path: Path, name: str
) -> None:
    """Catches the letters of a text, each as a word of its own."""
    given: Any = {name: "spark-submit --master yarn"}
    with pytest.raises(InvalidArgumentError, match=f"{name}='spark-submit"):
        try_job(tmp_path / "query", tmp_path / "job.py", **given)


def test_a_trial_that_is_gone_shows_why(tmp_path: Path) -> None:
    """Catches a notebook that ends in a traceback where its last word is a trial."""
    trial = Trial(tmp_path / "gone")
    assert "gone" in repr(trial)
    assert "there is no trial" in str(trial)
    assert "there is no trial" in trial._repr_html_()


@pytest.mark.parametrize(
    ("location", "scheme"), [("s3a://b/ck", "s3a"), ("s3://b/ck", "s3"), ("hdfs://n/ck", "s3a")]
)
def test_a_job_is_given_the_scheme_that_it_names_itself(location: str, scheme: str) -> None:
    """Catches a branch that Spark cannot open, told as a mistake of the job's."""
    repeat = Repeat("s3://b/ck", "s3://b/t/checkpoint", 2, "s3a://b/t/new", "/t/old", 0)

    named = repeat.named_as(location)

    assert named.branch == f"{scheme}://b/t/checkpoint"
    assert named.rows == f"{scheme}://b/t/new"
    assert (named.old_rows, named.checkpoint) == ("/t/old", "s3://b/ck")


def test_version_that_is_compared_stays_while_the_code_runs(tmp_path: Path) -> None:
    """Catches a trial that ends without a comparison, since the old query went on for long."""
    query = make(tmp_path, operators=KEYED)
    job, pins = tmp_path / "job.py", tmp_path / "pins"
    job.write_text("")
    lists = f"find {query.path}/state -name '*.pin' > {pins}; exit 1"

    with pytest.raises(InvalidArgumentError, match="ended before its time"):
        try_job(query.path, job, trial=tmp_path / "trial", submit=["sh", "-c", lists])

    found = pins.read_text().split()
    version = Checkpoint(query.path).info.newest_version
    assert {Path(one).name.partition(".")[0] for one in found} == {str(version)}
    assert not list(Path(query.path).rglob("*.pin"))


@pytest.mark.parametrize("operation", ["edit", "rescale"])
def test_batch_after_one_of_an_operation_is_the_querys_own(tmp_path: Path, operation: str) -> None:
    """Catches a batch whose rows no sink is thought to have, after a promote of its branch."""
    query = make(tmp_path, operators=KEYED)
    ck = Checkpoint(query.path)
    if operation == "edit":
        ck.edit(delete="k = 1")
    else:
        ck.rescale(8)
    query.run_batch({1: 2})
    branch = ck.branch(tmp_path / "branch", version=4).made

    with (
        open_checkpoint(place_of(ck.uri)) as old,
        open_checkpoint(place_of(branch.uri)) as made,
    ):
        hand(old, made, 4)

    with open_checkpoint(place_of(branch.uri)) as made:
        conf = made.offsets_entry(4).conf
        assert not [key for key in conf if key.startswith("statestore.")]
        assert read_own_batch(made, 4) is None
