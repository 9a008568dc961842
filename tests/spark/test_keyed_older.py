"""What keyed state asks of Spark is refused by name where Spark has not got it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from statestore import keyed
from statestore.core.errors import IncompatibleError

from .test_keyed_source import Growing

pytestmark = pytest.mark.ours


class Value(keyed.RichMapFunction):
    """Returns a column."""

    def map(self, value: Row) -> int:
        return int(value.value)


@pytest.mark.lacks("row-api")
def test_process_is_refused_by_name(spark: SparkSession) -> None:
    """Catches an AttributeError, which says nothing of what to do."""
    groups: Any = spark.createDataFrame([("a", 1)], "key STRING, value LONG").groupBy("key")

    with pytest.raises(IncompatibleError, match="no transformWithState of rows") as refused:
        keyed.process(groups, Value())

    assert refused.value.kind == "wrong-spark"


@pytest.mark.lacks("source-start")
def test_stateful_source_is_refused_by_name() -> None:
    """Catches a source that begins anew with every restart."""
    with pytest.raises(IncompatibleError, match="where a batch starts") as refused:
        Growing({"counters": "1"}).streamReader(StructType())

    assert refused.value.kind == "wrong-spark"
