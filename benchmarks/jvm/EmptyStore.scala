package io.statestore.bench

import java.util.HashMap
import java.util.concurrent.ConcurrentHashMap

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
    extends UnwrittenStateStoreProvider {
  private[bench] override def open(version: Long): UnwrittenStore =
    new EmptyStore(stateStoreId, version, found)
}

private final class EmptyStore(
    val id: StateStoreId,
    val version: Long,
    found: Option[ConcurrentHashMap[String, UnsafeRow]]) extends UnwrittenStore {
  private val first = new HashMap[String, UnsafeRow]

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow =
    if (found.isEmpty) null else found.get.get(colFamilyName)

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

  override protected def end(): Unit = found.foreach(_.putAll(first))

  override def metrics: StateStoreMetrics = StateStoreMetrics(0L, 0L, Map.empty)

  private def none: StateStoreIterator[UnsafeRowPair] = new StateStoreIterator(Iterator.empty)
}
