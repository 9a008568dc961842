package org.apache.spark.sql.execution.streaming.state

import scala.annotation.unused

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** Metrics of a single store: the version of its newest snapshot, and numbers of its commit. */
final case class OfStore(id: StateStoreId, snapshot: Long, commitMs: Long, versionBytes: Long)

/**
 * What is called otherwise, or is not there, in some versions of Spark. `SparkVersion`, which is
 * bound to one, makes the calls; so does what a version lets the shim override, `StoreMembers` and
 * `ProviderMembers`, which declare what an older version does not.
 */
trait SparkCalls {

  /** Metrics of a store; with those that are its alone where Spark has a place for them. */
  def metrics(
      numKeys: Long,
      memoryUsedBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      store: OfStore): StateStoreMetrics

  /** A metric as one that Spark goes on telling while no batch runs, where that is another. */
  def gauge(metric: StateStoreCustomMetric): StateStoreCustomMetric = metric

  /** Whether Spark closes a provider while no store of the executor can be opened. */
  def closesUnderLock: Boolean = false

  /** Refuses a row that is not of the schemas, as Spark's own providers do. */
  def validateRow(
      key: UnsafeRow,
      keySchema: StructType,
      value: UnsafeRow,
      valueSchema: StructType,
      id: StateStoreId,
      conf: StateStoreConf): Unit

  /** Tells the driver that a version is durable, where it asks for that. */
  def reportCommit(
      version: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit

  /** Whether the driver wants to know of snapshots. */
  def reportsSnapshots(conf: StateStoreConf): Boolean

  /**
   * Tells the coordinator on the driver that a snapshot of `version` is durable. Does nothing where
   * no coordinator can be reached.
   *
   * @param timestampMs when it became durable, milliseconds since the epoch
   */
  def reportSnapshot(provider: StateStoreProviderId, version: Long, timestampMs: Long): Unit

  /** The session with the configuration that a query's checkpoint pins. */
  def sessionOf(query: StreamExecution): SparkSession

  /**
   * Has a query keep the state format of joins that its session asks for. It is starting, on this
   * thread. Most Sparks ask no provider before.
   */
  def keepJoinFormat(@unused query: StreamExecution): Unit = ()

  /** Does what has to be done when the first batch of a run is planned, on the query's thread. */
  def planned(@unused query: StreamExecution): Unit = ()

  /** Whether a node of a query's plan keeps state. */
  def isStateful(node: LogicalPlan): Boolean

  /**
   * Has a query begin with a number of state partitions, by its own configuration. One that has a
   * checkpoint takes the number from there.
   */
  def askPartitions(conf: SQLConf, number: Int): Unit

  /** The number of state partitions that a checkpoint pins, where the session's conf tells. */
  def pinnedPartitions(conf: SQLConf): Option[Int]

  /** The number of state partitions, in a task of a query; None where no query runs. */
  def partitionsOfQuery(hadoopConf: Configuration): Option[Int]

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean

  def supportsDeleteRange(encoder: RocksDBKeyStateEncoder): Boolean

  /** A store to write version `base + 1` into, with nothing in it where `loadEmpty`. */
  def storeAt(provider: StateStoreProvider, base: Long, loadEmpty: Boolean): StateStore

  /** The column families that a store has, of whatever provider. */
  def familiesOf(store: ReadStateStore): Set[String]
}
