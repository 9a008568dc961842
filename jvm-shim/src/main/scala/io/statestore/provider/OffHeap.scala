package io.statestore.provider

import io.statestore.ShimOptions
import io.statestore.view.OffHeapMemory
import org.apache.spark.sql.execution.streaming.state.StorageMemory

/** The memory outside of the heap that all working views of this JVM share. */
private[statestore] object OffHeap {
  import StorageMemory.{Enabled, Size}

  private var from: StorageMemory = _
  private var memory: OffHeapMemory = _

  /**
   * Refuses the option where the application has no such memory.
   *
   * @throws java.lang.IllegalArgumentException names what to set
   */
  def check(options: ShimOptions): Unit =
    if (options.offHeapEnabled && !StorageMemory.isEnabled) {
      throw new IllegalArgumentException(
        "[invalid-option] the application has no memory outside of the heap: " +
          s"spark.sql.streaming.stateStore.offHeap.enabled=true $Enabled=false. To fix: start " +
          s"the application with $Enabled=true and $Size, three times the bytes of the rows of " +
          "an executor")
    }

  /** Where views of these options have their pages; null for the heap. */
  def of(options: ShimOptions): OffHeapMemory = {
    check(options)
    if (!options.offHeapEnabled) null
    else synchronized {
      val storage = StorageMemory.offHeap
      if (storage ne from) {
        from = storage
        memory = new OffHeapMemory(storage)
      }
      memory
    }
  }

  /** Bytes that were taken and not given back. */
  def bytes: Long = synchronized(if (memory == null) 0L else memory.bytes)
}
