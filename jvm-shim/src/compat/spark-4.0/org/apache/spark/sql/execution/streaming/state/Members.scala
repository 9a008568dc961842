package org.apache.spark.sql.execution.streaming.state

import scala.language.reflectiveCalls

import io.statestore.engine.QueryRuns
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.NextIterator

trait StoreMembers extends StoreMembersUntil41 {
  def release(): Unit

  def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit

  def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
}

trait ProviderMembers extends ProviderMembersUntil41 with SupportsFineGrainedReplay {
  type Change = (RecordType.Value, UnsafeRow, UnsafeRow, Long)

  /** The read store that the running task has opened last, while it is open. */
  def readStoreOfTask: Option[ReadStateStore]

  /**
   * An aggregation opens a read store and then, of the same version, a store to write. Later Sparks
   * ask for the one to be upgraded: two handles on a view would cost a load in each batch.
   */
  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    readStoreOfTask.fold(super.getStore(version, stateStoreCkptId)) { read =>
      upgradeReadStoreToWriteStore(
        read, version, stateStoreCkptId, forceSnapshotOnCommit = false)
    }

  def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore

  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore =
    replayStateFromSnapshot(snapshotVersion, endVersion, readOnly = true, None, None)

  def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): NextIterator[Change]

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String]): NextIterator[Change] =
    getStateStoreChangeDataReader(startVersion, endVersion, colFamilyNameOpt, None)
}

/** The Spark that this jar is made for. Its driver asks for no reports. */
object SparkVersion extends SparkUntil41 {
  override def metrics(
      numKeys: Long,
      memoryUsedBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      store: OfStore): StateStoreMetrics = StateStoreMetrics(numKeys, memoryUsedBytes, custom)

  override def closesUnderLock: Boolean = true

  override def validateRow(
      key: UnsafeRow,
      keySchema: StructType,
      value: UnsafeRow,
      valueSchema: StructType,
      id: StateStoreId,
      conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, conf)

  override def reportCommit(
      version: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit = ()

  override def reportsSnapshots(conf: StateStoreConf): Boolean = false

  override def reportSnapshot(
      provider: StateStoreProviderId, version: Long, timestampMs: Long): Unit = ()

  /** Hidden from everybody but Spark's own kinds of queries. */
  override def sessionOf(query: StreamExecution): SparkSession =
    query.asInstanceOf[{ def sparkSessionForStream: SparkSession }].sparkSessionForStream

  /** Nobody knows the number that a session asked for: Spark puts the pinned one in its place. */
  override def pinnedPartitions(conf: SQLConf): Option[Int] = None

  override def askPartitions(conf: SQLConf, number: Int): Unit =
    conf.setConf(SQLConf.SHUFFLE_PARTITIONS, number)

  /** As later Sparks name the key, and set it when a query starts. */
  private val StatePartitions = "spark.sql.streaming.internal.stateStore.partitions"

  /** Spark's own key begins with the number, but a function of `foreachBatch` may set it. */
  override def planned(query: StreamExecution): Unit =
    sessionOf(query).sessionState.conf
      .setConfString(StatePartitions, query.lastExecution.numStateStores.toString)

  /** Nothing in a task says so: the driver knows whether it is one of a query. */
  override def partitionsOfQuery(hadoopConf: Configuration): Option[Int] =
    Option(hadoopConf.get(StreamExecution.RUN_ID_KEY)).filter(QueryRuns.isActive).map { _ =>
      val key = SQLConf.SHUFFLE_PARTITIONS
      Seq(StatePartitions, key.key).flatMap(name => Option(hadoopConf.get(name)))
        .headOption.fold(key.defaultValue.get)(_.toInt)
    }
}
