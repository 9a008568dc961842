"""A small checkpoint to look at: sales by shop and product, made without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore.codec.column_family import ColumnFamily
from statestore.spark_files.schemas import write_schemas
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import Changes, StoreOfQuery, schema_of, unsafe_row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHOPS = ("Aarhus", "Bergen", "Gdańsk", "Lyon", "Porto", "Turku")
PRODUCTS = 400
NUM_BATCHES = 20
SALES_A_BATCH = 500
NUM_PARTITIONS = 4
_SEED = 1
_DEAREST = 90


@dataclass(frozen=True)
class _Sales(StoreOfQuery):
    """How often a product was sold in a shop, and for how much, by (shop, product)."""

    name: str = "default"
    columns: tuple[str, ...] = ("shop", "product")

    @property
    def family(self) -> ColumnFamily:
        return ColumnFamily(
            0,
            "default",
            schema_of(shop="string", product="string"),
            schema_of(count="long", revenue="long"),
        )

    @property
    def schema_file(self) -> bytes:
        return write_schemas(self.family.key_schema or "", self.family.value_schema or "")

    def rows(self, changes: Mapping[Any, Any]) -> Changes:
        return {
            unsafe_row(*key): None if sold is None else unsafe_row(*sold)
            for key, sold in changes.items()
        }


def make_sample(path: Path) -> None:
    """Make the checkpoint of a query that counted sales by shop and product, always the same rows.

    Args:
        path: Its directory, which must not be there.

    It is what `groupBy("shop", "product").agg(count("*"), sum("price"))` leaves: some 2,000 keys
    in 4 state partitions, after 20 batches. One shop sells most.
    """
    random = np.random.default_rng(_SEED)
    query = MadeCheckpoint(
        str(path.absolute()),
        num_partitions=NUM_PARTITIONS,
        checkpoint_format=2,
        operators=(("stateStoreSave", (_Sales(),)),),
        watermark_ms=lambda _: 0,
    )
    for _ in range(NUM_BATCHES):
        sold: dict[tuple[str, str], tuple[int, int]] = {}
        for _ in range(SALES_A_BATCH):
            shop = SHOPS[min(int(random.exponential()), len(SHOPS) - 1)]
            product = f"product-{random.integers(PRODUCTS):03d}"
            count, revenue = sold.get((shop, product), query.numbers.get((shop, product), (0, 0)))
            price = 1 + int(product[-3:]) % _DEAREST
            sold[shop, product] = count + 1, revenue + price
        query.run_batch(sold)
