package org.apache.spark.sql.execution.streaming.state

import org.apache.spark.SparkContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * Spark 4.3 declares every member that the shim overrides, and one more: in real-time mode it asks
 * after each row which timers are due since the last time, not since the first timer.
 */
trait StoreMembers extends SupportsReusableIterator {

  /** Every row of a column family. */
  protected def allRows(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  /** Rows in order, without those that are below every key that begins with a prefix. */
  protected def rowsFrom(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] =
    new ReusableIterator[UnsafeRowPair] {
      private var rows = allRows(colFamilyName)

      override def refreshAndSeekToPrefix(prefixKey: UnsafeRow): Unit = {
        rows.close()
        rows = rowsFrom(prefixKey, colFamilyName)
      }

      override def hasNext: Boolean = rows.hasNext

      override def next(): UnsafeRowPair = rows.next()

      override def close(): Unit = rows.close()
    }
}

trait ProviderMembers extends LagReports {
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] =
    super.supportedInstanceMetrics ++ OutlierMetric.All
}

/**
 * What a batch's progress tells of single stores, for those where it is most. Spark 4.3 gathers
 * such metrics of the stores that ran; those before it make one of each for every store on the
 * driver, and send all of them with every task: they have the newest snapshot only.
 */
private[state] final case class OutlierMetric(
    metricPrefix: String,
    descPrefix: String,
    partitionId: Option[Int] = None,
    storeName: String = StateStoreId.DEFAULT_STORE_NAME)
    extends StateStoreInstanceMetric {
  override def initValue: Long = -1L
  override def ordering: Ordering[Long] = Ordering.Long.reverse
  override def ignoreIfUnchanged: Boolean = true

  override def createSQLMetric(sparkContext: SparkContext): SQLMetric =
    SQLMetrics.createSizeMetric(sparkContext, desc, initValue)

  override def combine(original: SQLMetric, value: Long): Long = math.max(original.value, value)

  override def withNewId(partition: Int, store: String): OutlierMetric =
    copy(partitionId = Some(partition), storeName = store)
}

private[state] object OutlierMetric {
  val Slowest = OutlierMetric("statestoreSlowestCommitMs", "milliseconds of the commit")
  val Largest = OutlierMetric("statestoreLargestVersionBytes", "bytes of the version")
  val All: Seq[OutlierMetric] = Seq(Slowest, Largest)
}

/** A metric of which Spark tells the newest value, and not 0, while no batch runs. */
private final case class Gauge(of: StateStoreCustomMetric) extends StateStoreCustomMetric {
  override def name: String = of.name
  override def desc: String = of.desc
  override def isSnapshot: Boolean = true
  override def withNewDesc(newDesc: String): Gauge = Gauge(of.withNewDesc(newDesc))
  override def createSQLMetric(sparkContext: SparkContext): SQLMetric =
    of.createSQLMetric(sparkContext)
}

/** The Spark that this jar is made for. */
object SparkVersion extends SparkSince42 {
  override def gauge(metric: StateStoreCustomMetric): StateStoreCustomMetric = Gauge(metric)

  override def keepJoinFormat(query: StreamExecution): Unit = FirstOffsets.write(query)

  override def planned(query: StreamExecution): Unit = FirstOffsets.begin(query)

  override def metrics(
      numKeys: Long,
      memoryUsedBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      store: OfStore): StateStoreMetrics = {
    val told = super.metrics(numKeys, memoryUsedBytes, custom, store)
    val outliers = Seq(
      OutlierMetric.Slowest -> store.commitMs,
      OutlierMetric.Largest -> store.versionBytes)
    told.copy(instanceMetrics = told.instanceMetrics ++ outliers.map { case (metric, value) =>
      metric.withNewId(store.id.partitionId, store.id.storeName) -> value
    })
  }
}
