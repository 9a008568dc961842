package org.apache.spark.sql.execution.streaming.state

import java.lang.reflect.Method

import scala.annotation.unused

import org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.types.StructType

/** Key encoders of join state format 4, which came with Spark 4.2: no spec is one of these. */
object TimestampAsPrefixKeyStateEncoderSpec extends AbsentSpec

object TimestampAsPostfixKeyStateEncoderSpec extends AbsentSpec

sealed abstract class AbsentSpec {
  def unapply(@unused spec: KeyStateEncoderSpec): Option[StructType] = Option.empty

  def apply(keySchema: StructType): KeyStateEncoderSpec =
    throw new IllegalArgumentException(
      s"state of a Spark newer than 4.1: key_encoder=timestamp, key=${keySchema.simpleString}. " +
        "To fix: start the query with Spark 4.2 or later")
}

/** Members that Spark 4.2 and 4.3 declare and these do not. */
trait StoreMembersUntil41 {
  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]

  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean

  def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def allColumnFamilyNames: Set[String]

  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit

  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit
}

trait ProviderMembersUntil41 extends StateStoreProvider {
  def doSnapshotMaintenance(): Unit

  def doCleanupMaintenance(): Unit

  def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore

  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)

  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore
}

/** `SparkCalls` as Spark 4.0 and 4.1 have it. */
trait SparkUntil41 extends SparkCalls {

  /** Spark's own answer, which is hidden from everybody else. */
  override def isStateful(node: LogicalPlan): Boolean =
    SparkUntil41.isStatefulOperation.invoke(UnsupportedOperationChecker, node) == true

  override def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean =
    encoder.isInstanceOf[RangeKeyScanStateEncoder]

  override def supportsDeleteRange(encoder: RocksDBKeyStateEncoder): Boolean =
    supportsRangeScan(encoder)

  /** Without `loadEmpty`: Spark's own providers are empty at version 0 alone. */
  override def storeAt(provider: StateStoreProvider, base: Long, loadEmpty: Boolean): StateStore =
    provider.getStore(base)

  override def familiesOf(store: ReadStateStore): Set[String] =
    throw new UnsupportedOperationException("a store does not tell its column families: " +
      "spark=4.0 or 4.1. To fix: use Spark 4.2 or later")
}

private object SparkUntil41 {
  private lazy val isStatefulOperation: Method = {
    val method = UnsupportedOperationChecker.getClass
      .getDeclaredMethod("isStatefulOperation", classOf[LogicalPlan])
    method.setAccessible(true)
    method
  }
}
