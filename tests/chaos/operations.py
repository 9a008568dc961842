"""What is done to a lane's checkpoint between two runs of its query, in the driver's program.

An operation takes a lane that stands still and returns the lane as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from statestore import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator
    from pyspark.sql import SparkSession

    from .lane import LaneSpec

SPARK_PROVIDER = {
    "spark-hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark-rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
FILE_BACKENDS = ("filesystem", "rocksdb")
NUM_PARTITIONS = (1, 2, 3, 4, 6)


class Operator:
    """Operates on the lanes of one life.

    Args:
        spark: The application.
        root: Folder of the life.
        rng: Decides the details.
    """

    def __init__(self, spark: SparkSession, root: Path, rng: Generator) -> None:
        self._spark = spark
        self._root = root
        self._rng = rng

    def run(self, name: str, spec: LaneSpec) -> LaneSpec:
        """Do an operation of OPERATIONS and return the lane as it goes on."""
        return OPERATIONS[name](self, spec)

    def _path(self, spec: LaneSpec) -> str:
        return str(self._root / spec.name / spec.checkpoint)

    def _next(self, spec: LaneSpec) -> LaneSpec:
        """Return the lane with a new checkpoint directory, which is not there yet."""
        number = int(spec.checkpoint.rpartition("-")[2]) + 1
        return replace(spec, checkpoint=f"checkpoint-{number}")

    def _checkpoint(self, spec: LaneSpec) -> Checkpoint:
        """Return a lane's checkpoint; only the heap backend's needs the session."""
        spark = self._spark if spec.backend == "heap" else None
        return Checkpoint(self._path(spec), storage_options=spec.storage_options(), spark=spark)

    def _rescale(self, spec: LaneSpec) -> LaneSpec:
        number = int(self._rng.choice([n for n in NUM_PARTITIONS if n != spec.num_partitions]))
        self._checkpoint(spec).rescale(number)
        return replace(spec, num_partitions=number)

    def _undo(self, spec: LaneSpec) -> LaneSpec:
        self._rescale(spec)
        self._checkpoint(spec).undo_rescale()
        return spec

    def _restore(self, spec: LaneSpec) -> LaneSpec:
        """Take a canonical savepoint; go on from it with another state backend."""
        backend = "rocksdb" if spec.backend == "filesystem" else "filesystem"
        new = replace(self._next(spec), backend=backend)
        number = int(self._rng.choice(NUM_PARTITIONS))
        return self._by_savepoint(spec, replace(new, num_partitions=number), "canonical")

    def _savepoint(self, spec: LaneSpec) -> LaneSpec:
        """Take a native savepoint; go on from it as it was."""
        form = "canonical" if spec.backend == "heap" else "native"
        return self._by_savepoint(spec, self._next(spec), form)

    def _by_savepoint(self, spec: LaneSpec, new: LaneSpec, form: Any) -> LaneSpec:
        taken = self._checkpoint(spec).savepoint(f"{self._path(new)}-savepoint", form=form).made
        taken.restore(self._checkpoint(new), backend=new.backend, num_partitions=new.num_partitions)
        self._cut_sink(spec, taken.info.version)
        return new

    def _cut_sink(self, spec: LaneSpec, version: int) -> None:
        """Put the sink back to a version: what came after it comes again."""
        for path in (self._root / spec.name / "sink").glob("*.json"):
            if int(path.stem) >= version:
                path.unlink()

    def _branch(self, spec: LaneSpec) -> LaneSpec:
        # A branch has its state beside Spark's files, on whatever storage the checkpoint's is.
        new = replace(self._next(spec), checkpoint_storage="")
        self._checkpoint(spec).branch(self._path(new))
        return new

    def _expire(self, spec: LaneSpec) -> LaneSpec:
        self._checkpoint(spec).expire(2)
        return spec

    def _to_spark(self, spec: LaneSpec) -> LaneSpec:
        choices = ["spark-rocksdb"] if spec.checkpoint_format == 2 else [*SPARK_PROVIDER]
        to = str(self._rng.choice(choices))
        new = replace(self._next(spec), backend=SPARK_PROVIDER[to])
        options = spec.storage_options()
        source = Checkpoint(self._path(spec), storage_options=options, spark=self._spark)
        source.convert(self._path(new), to)
        return new

    def _from_spark(self, spec: LaneSpec) -> LaneSpec:
        to = str(self._rng.choice(FILE_BACKENDS))
        number = int(self._rng.choice(NUM_PARTITIONS))
        new = replace(self._next(spec), backend=to, num_partitions=number)
        self._checkpoint(spec).restore(self._checkpoint(new), backend=to, num_partitions=number)
        return new


OPERATIONS: dict[str, Callable[[Operator, LaneSpec], LaneSpec]] = {
    "rescale": Operator._rescale,
    "rescale and undo": Operator._undo,
    "savepoint, restore to another backend": Operator._restore,
    "savepoint, restore as it was": Operator._savepoint,
    "branch": Operator._branch,
    "expire": Operator._expire,
    "convert to Spark's provider": Operator._to_spark,
    "restore from Spark's provider": Operator._from_spark,
}


def allowed(spec: LaneSpec) -> list[str]:
    """Return the operations that a lane can have, of which a conversion is one and its way back."""
    names = ["rescale", "rescale and undo", "savepoint, restore to another backend",
             "savepoint, restore as it was"]  # fmt: skip
    if spec.backend != "heap":
        names += ["branch", "expire"]
        if not spec.checkpoint_storage:
            names.append("convert to Spark's provider")
    return names
