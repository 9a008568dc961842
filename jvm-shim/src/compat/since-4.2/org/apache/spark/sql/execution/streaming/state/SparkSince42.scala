package org.apache.spark.sql.execution.streaming.state

import org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** `SparkCalls` as Spark 4.2 and later have it. */
trait SparkSince42 extends SparkSince41 {
  override def isStateful(node: LogicalPlan): Boolean =
    UnsupportedOperationChecker.isStatefulOperation(node)

  override def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean =
    encoder.supportsRangeScan

  override def supportsDeleteRange(encoder: RocksDBKeyStateEncoder): Boolean =
    encoder.supportsDeleteRange

  override def storeAt(provider: StateStoreProvider, base: Long, loadEmpty: Boolean): StateStore =
    provider.getStore(base, loadEmpty = loadEmpty)

  override def familiesOf(store: ReadStateStore): Set[String] = store.allColumnFamilyNames
}
