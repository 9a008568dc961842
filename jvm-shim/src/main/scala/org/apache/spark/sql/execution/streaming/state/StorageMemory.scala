package org.apache.spark.sql.execution.streaming.state

import io.statestore.view.OffHeapMemory
import org.apache.spark.SparkEnv
import org.apache.spark.memory.{MemoryManager, MemoryMode}
import org.apache.spark.storage.StreamBlockId

/**
 * Spark's memory outside of the heap, `spark.memory.offHeap.size`, of which storage that cannot be
 * evicted takes no more than `spark.memory.storageFraction`: the rest stays for execution. It is
 * counted in what an executor asks a cluster for. Guarded by its owner.
 */
final class StorageMemory private (private val manager: MemoryManager)
    extends OffHeapMemory.Budget {
  private val size = SparkEnv.get.conf.getSizeAsBytes(StorageMemory.Size, "0")
  private val fraction = SparkEnv.get.conf.getDouble(StorageMemory.Fraction, 0.5)
  private var taken = 0L

  /** Takes bytes; cached blocks make room. False where there are not so many. */
  override def grant(bytes: Long): Boolean = {
    val isGranted = taken + bytes <= size * fraction &&
      manager.acquireStorageMemory(StorageMemory.Block, bytes, MemoryMode.OFF_HEAP)
    if (isGranted) taken += bytes
    isGranted
  }

  override def giveBack(bytes: Long): Unit = {
    taken -= bytes
    manager.releaseStorageMemory(bytes, MemoryMode.OFF_HEAP)
  }

  override def limit: String =
    s"execution=${manager.offHeapExecutionMemoryUsed} ${StorageMemory.Size}=$size " +
      s"${StorageMemory.Fraction}=$fraction"
}

object StorageMemory {
  private val Block = StreamBlockId(Int.MaxValue, 0L) // not an RDD's: whose blocks may go
  val Enabled = "spark.memory.offHeap.enabled"
  val Size = "spark.memory.offHeap.size"
  private val Fraction = "spark.memory.storageFraction"

  private var last: StorageMemory = _

  /** That of the running application: the same object as long as it runs. */
  def offHeap: StorageMemory = synchronized {
    val manager = SparkEnv.get.memoryManager
    if (last == null || (last.manager ne manager)) last = new StorageMemory(manager)
    last
  }

  /** Whether the running application has such memory. */
  def isEnabled: Boolean = SparkEnv.get.conf.getBoolean(Enabled, false)
}
