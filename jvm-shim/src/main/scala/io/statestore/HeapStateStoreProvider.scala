package io.statestore

import io.statestore.engine.CheckpointMemory
import io.statestore.provider.ViewStateStoreProvider

/**
 * The heap backend: state on the worker's heap, checkpoints in the memory of the driver, gone with
 * it. Set it as `spark.sql.streaming.stateStore.providerClass`.
 */
class HeapStateStoreProvider extends ViewStateStoreProvider("heap") {
  // The driver makes an instance to ask for metric names while it plans, before any task runs.
  CheckpointMemory.offer()
}
