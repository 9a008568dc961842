package io.statestore

import io.statestore.provider.ViewStateStoreProvider

/**
 * The filesystem backend: state on the worker's heap, a delta per commit and snapshots in the
 * background on a filesystem. Set it as `spark.sql.streaming.stateStore.providerClass`.
 */
class FileSystemStateStoreProvider extends ViewStateStoreProvider("filesystem")
