package org.apache.spark.sql.execution.streaming.state

import org.apache.spark.sql.types.StructType

/** Members that Spark 4.3 declares and this one does not. */
trait StoreMembers {
  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit
}

trait ProviderMembers extends LagReports {
  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit
}

/** The Spark that this jar is made for. */
object SparkVersion extends SparkSince42
