"""The stores that are compared, the floor below them, and one that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyspark

from benchmarks.workloads import COUNTS_ROWS, FORMAT_2, OUR_ROCKSDB, OURS, Provider, find_provider

JOINS: tuple[tuple[str, str], ...] = (
    (("spark.sql.streaming.join.stateFormatVersion", "4"),)
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)
    else ()
)
"""The newest state format of joins, which Spark opens to stores of this package from 4.3 on."""
GIVEN = "given"
"""ID of the store of `--provider`."""
FLOOR = Provider(
    "floor",
    "floor",
    "io.statestore.bench.MapStateStoreProvider",
    (FORMAT_2, *JOINS),
    is_durable=False,
    keeps_state=False,
    has_families=True,
)
"""A map on the heap. What its calls take is subtracted: the rest is Spark's."""


def _best(provider: Provider) -> Provider:
    """Return a store with joins as `statestore.configure` has them."""
    return replace(provider, has_families=True, conf=(*provider.conf, *JOINS))


STORES = (
    find_provider("hdfs"),
    replace(find_provider("rocksdb"), has_families=True),
    replace(
        _best(find_provider("rocksdb-changelog")),
        title="Spark RocksDB + changelog, checkpoint format 2",
    ),
    _best(find_provider("rocksdb-tuned")),
    _best(find_provider(OURS)),
    _best(find_provider(OUR_ROCKSDB)),
    _best(find_provider("heap")),
    FLOOR,
)
"""Those of Spark, ours as `statestore.configure` sets them up, and the floor."""


def find_stores(names: Sequence[str], given: Provider | None = None) -> list[Provider]:
    """Return the stores of those IDs.

    Raises:
        LookupError: There is none of one of them; the message names those there are.
    """
    known = {store.id: store for store in (*STORES, *([given] if given else []))}
    if unknown := [name for name in names if name not in known]:
        raise LookupError(f"no such store: {', '.join(unknown)}. To fix: use {', '.join(known)}")
    return [known[name] for name in names]


def given_store(provider_class: str, conf: Sequence[str]) -> Provider:
    """Return the store of a provider class and of settings, each `key=value`.

    Its state is below the checkpoint directory: it goes on from a copy of that.
    """
    settings = tuple((key, value) for key, _, value in (one.partition("=") for one in conf))
    title = provider_class.rpartition(".")[2]
    counts = dict(settings).get(COUNTS_ROWS, "true").lower() == "true"
    return Provider(GIVEN, title, provider_class, settings, counts_rows=counts, has_families=True)
