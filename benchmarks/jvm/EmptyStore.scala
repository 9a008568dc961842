package io.statestore.bench

import java.util.HashMap
import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * A store that keeps nothing and writes nothing. A query on it takes what Spark itself takes: the
 * least that any state store can bring a batch to.
 *
 * Every lookup misses, so rows that come out are wrong after the first batch, and Spark is spared
 * what it does with rows that are found.
 */
final class EmptyStateStoreProvider extends NoStateStoreProvider(None)

/**
 * The same, but that each `get` finds a row: one that an earlier batch put, whichever the key. So
 * the query is spared nothing; its rows are wrong, too. It is for aggregations: the operators of
 * joins, windows and variables would act on what they find.
 */
final class FindingStateStoreProvider
    extends NoStateStoreProvider(Some(new ConcurrentHashMap[String, UnsafeRow]))

/** @param found what is found, by column family; None finds nothing */
sealed abstract class NoStateStoreProvider(found: Option[ConcurrentHashMap[String, UnsafeRow]])
    extends StateStoreProvider {
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
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = storeId = stateStoreId

  override def stateStoreId: StateStoreId = storeId

  override def getStore(
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = new EmptyStore(storeId, version, found)

  override def close(): Unit = ()
}

private final class EmptyStore(
    val id: StateStoreId,
    val version: Long,
    found: Option[ConcurrentHashMap[String, UnsafeRow]]) extends StateStore {
  private val first = new HashMap[String, UnsafeRow]
  private var committed = false

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow =
    if (found.isEmpty) null else found.get.get(colFamilyName)

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = false

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    Iterator.empty

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    none

  override def prefixScan(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    if (found.nonEmpty && !first.containsKey(colFamilyName)) first.put(colFamilyName, value.copy())

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = ()

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = ()

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    ()

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = ()

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = ()

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = false

  override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

  override def commit(): Long = {
    found.foreach(_.putAll(first))
    committed = true
    version + 1
  }

  override def abort(): Unit = ()

  override def release(): Unit = ()

  override def hasCommitted: Boolean = committed

  override def metrics: StateStoreMetrics = StateStoreMetrics(0L, 0L, Map.empty)

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    StateStoreCheckpointInfo(id.partitionId, version + 1, None, None)

  private def none: StateStoreIterator[UnsafeRowPair] = new StateStoreIterator(Iterator.empty)
}
