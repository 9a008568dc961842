"""Plans: which applications and lanes a seed makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .lane import LaneSpec
from .queries import QUERIES

LANES_PER_LIFE = 2
BACKENDS = ("filesystem", "rocksdb", "filesystem", "rocksdb", "heap")
CLUSTER = "local-cluster[2,1,1024]"
LOCAL = "local[2,4]"


@dataclass(frozen=True)
class LifePlan:
    """A life: one application, and its successors where it is killed.

    Attributes:
        seed: The run's and the life's number: what all its choices come from.
        master: Of Spark.
        has_own_disk: Whether its folder is a file system of its own, which may be filled.
        lanes: Its lanes.
    """

    seed: tuple[int, int]
    master: str
    has_own_disk: bool
    lanes: tuple[LaneSpec, ...]

    @property
    def is_cluster(self) -> bool:
        """Whether its executors are processes of their own."""
        return "cluster" in self.master

    @property
    def conf(self) -> dict[str, str]:
        """Configuration of the application."""
        return {"spark.speculation": str(self.is_cluster).lower()}


def make_plan(
    seed: int, number: int, *, has_own_disk: bool, s3_endpoint: str, bucket: str, **wanted: Any
) -> LifePlan:
    """Return a life of a seed.

    Args:
        seed: The run's.
        number: The life's, from 0. Lives go through all combinations of query and state backend
            in turn; the rest is left to chance.
        has_own_disk: As LifePlan.
        s3_endpoint, bucket: Where there is S3.
        wanted: Fields of every lane that are not left to chance, and `master`.
    """
    rng = np.random.default_rng([seed, number])
    master = wanted.pop("master", LOCAL if rng.random() < 0.4 else CLUSTER)
    combinations = [(query, backend) for query in QUERIES for backend in BACKENDS]
    order = np.random.default_rng(seed).permutation(len(combinations))
    lanes = []
    for index in range(LANES_PER_LIFE):
        turn = (number * LANES_PER_LIFE + index) % len(combinations)
        query, backend = combinations[order[turn]]
        on_s3 = backend != "heap" and rng.random() < 0.4
        fields = {
            "name": f"lane-{index}",
            "query": query,
            "backend": backend,
            "checkpoint_format": int(rng.integers(1, 3)),
            "checkpoint_storage": f"s3://{bucket}/{number}/{index}" if on_s3 else "",
            "s3_endpoint": s3_endpoint,
            "trigger": "once-a-batch" if rng.random() < 0.3 else "always",
            "num_partitions": int(rng.integers(1, 4)),
            "retained": int(rng.choice([3, 10])),
        }
        lanes.append(LaneSpec(**{**fields, **wanted}))
    return LifePlan((seed, number), master, has_own_disk, tuple(lanes))
