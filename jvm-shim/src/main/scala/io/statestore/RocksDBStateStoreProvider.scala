package io.statestore

import io.statestore.provider.ViewStateStoreProvider

/**
 * The rocksdb backend: state in RocksDB on the worker's local disk, an SST per commit on a
 * filesystem. Set it as `spark.sql.streaming.stateStore.providerClass`.
 */
class RocksDBStateStoreProvider extends ViewStateStoreProvider("rocksdb")
