package org.apache.spark.sql.execution.streaming.state

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** A store's newest snapshot, for Spark's list of stores that lag behind. */
trait LagReports extends StateStoreProvider {
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] =
    Seq(LagReports.SnapshotLastUploaded)
}

private[state] object LagReports {
  val SnapshotLastUploaded: StateStoreInstanceMetric = StateStoreSnapshotLastUploadInstanceMetric()
}

/** `SparkCalls` as Spark 4.1 and later have it. */
trait SparkSince41 extends SparkCalls {
  override def metrics(
      numKeys: Long,
      memoryUsedBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      store: OfStore): StateStoreMetrics = {
    val newest =
      LagReports.SnapshotLastUploaded.withNewId(store.id.partitionId, store.id.storeName)
    StateStoreMetrics(numKeys, memoryUsedBytes, custom, Map(newest -> store.snapshot))
  }

  override def validateRow(
      key: UnsafeRow,
      keySchema: StructType,
      value: UnsafeRow,
      valueSchema: StructType,
      id: StateStoreId,
      conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, id, conf)

  override def reportCommit(
      version: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    if (conf.commitValidationEnabled) {
      StateStore.reportCommitToCoordinator(version, id, hadoopConf)
    }

  override def reportsSnapshots(conf: StateStoreConf): Boolean = conf.reportSnapshotUploadLag

  override def reportSnapshot(
      provider: StateStoreProviderId, version: Long, timestampMs: Long): Unit =
    StateStoreProvider.coordinatorRef.foreach(_.snapshotUploaded(provider, version, timestampMs))

  override def sessionOf(query: StreamExecution): SparkSession = query.sparkSessionForStream

  /** The session's number is that of shuffles without state, and stays. */
  override def askPartitions(conf: SQLConf, number: Int): Unit =
    conf.setConfString(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL.key, number.toString)

  override def pinnedPartitions(conf: SQLConf): Option[Int] =
    conf.getConf(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL)

  override def partitionsOfQuery(hadoopConf: Configuration): Option[Int] =
    Option(hadoopConf.get(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL.key)).map(_.toInt)
}
