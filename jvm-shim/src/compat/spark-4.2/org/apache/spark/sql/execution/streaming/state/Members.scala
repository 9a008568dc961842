package org.apache.spark.sql.execution.streaming.state

import org.apache.spark.sql.internal.SQLConf
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
object SparkVersion extends SparkSince42 {
  /** Spark 4.2.0 writes an offset log of format 2 without the number, and takes the session's. */
  override def askPartitions(conf: SQLConf, number: Int): Unit = {
    super.askPartitions(conf, number)
    if (conf.getConf(SQLConf.STREAMING_OFFSET_LOG_FORMAT_VERSION) == 2) {
      conf.setConf(SQLConf.SHUFFLE_PARTITIONS, number)
    }
  }
}
