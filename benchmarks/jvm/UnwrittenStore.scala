package io.statestore.bench

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** A provider of stores that write nothing, so that no version of one can be opened again. */
abstract class UnwrittenStateStoreProvider extends StateStoreProvider {
  private var storeId: StateStoreId = _

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    storeId = stateStoreId
    begin(keyStateEncoderSpec)
  }

  /** Takes how the keys of the default column family are laid out. */
  protected def begin(spec: KeyStateEncoderSpec): Unit = ()

  private[bench] def open(version: Long): UnwrittenStore

  override def stateStoreId: StateStoreId = storeId

  override def getStore(
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val store = open(version)
    store.base = uniqueId
    store
  }

  override def close(): Unit = ()
}

private[bench] abstract class UnwrittenStore extends StateStore {
  private var committed = false

  /** IDs of the version before and of this one, in the checkpoint format that has them. */
  var base: Option[String] = None
  private lazy val checkpointId = UUID.randomUUID.toString

  protected def end(): Unit

  override def commit(): Long = {
    end()
    committed = true
    version + 1
  }

  override def abort(): Unit = ()

  override def release(): Unit = ()

  override def hasCommitted: Boolean = committed

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    StateStoreCheckpointInfo(id.partitionId, version + 1, Some(checkpointId), base)
}
