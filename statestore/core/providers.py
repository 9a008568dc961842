"""Provider classes: what `PROVIDER_KEY` and `REAL_TIME_KEY` may name."""

from __future__ import annotations

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = {
    "heap": "io.statestore.HeapStateStoreProvider",
    "filesystem": "io.statestore.FileSystemStateStoreProvider",
    "rocksdb": "io.statestore.RocksDBStateStoreProvider",
}
"""Provider class by state backend."""
REAL_TIME_KEY = "spark.statestore.providerClass"
"""Key that names the provider where Spark's is not set: real-time mode refuses Spark's."""
_STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
SPARK_PROVIDERS = {
    "spark-hdfs": f"{_STATE_PACKAGE}.HDFSBackedStateStoreProvider",
    "spark-rocksdb": f"{_STATE_PACKAGE}.RocksDBStateStoreProvider",
}
"""Provider class by name, of Spark's own providers."""
IN_DRIVER_MEMORY = frozenset({"heap"})
"""Names of providers whose state files are in the memory of the query's driver."""
IN_LOCAL_DATABASE = frozenset({"rocksdb", "spark-rocksdb"})
"""Names of providers that keep rows in RocksDB on the local disk of executors."""
SUCCESSORS = {"spark-hdfs": "filesystem", "spark-rocksdb": "rocksdb"}
"""State backend that keeps rows where a provider of Spark's keeps them, by its name."""
