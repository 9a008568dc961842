package org.apache.spark.sql.execution.streaming.state

import java.util.UUID

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.api.python.PythonUtils
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.util.{NextIterator, Utils}

/** The few members of Spark that only its own packages can see, and nothing else. */
object StateStoreInternals {

  /** Run ID of the query whose task uses `hadoopConf`. */
  def runId(hadoopConf: Configuration): UUID =
    UUID.fromString(StateStoreProvider.getRunId(hadoopConf))

  /**
   * Tell the coordinator on the driver that a snapshot of `version` is durable. Does nothing where
   * no coordinator can be reached.
   *
   * @param timestampMs when it became durable, milliseconds since the epoch
   */
  def reportSnapshot(provider: StateStoreProviderId, version: Long, timestampMs: Long): Unit =
    StateStoreProvider.coordinatorRef.foreach(_.snapshotUploaded(provider, version, timestampMs))

  /** Spark's error for a commit that failed; `file` names what could not be written. */
  def failedToCommitStateFileError(file: String, cause: Throwable): Throwable =
    QueryExecutionErrors.failedToCommitStateFileError(file, cause)

  /** Spark's error for a version below 0. */
  def unexpectedStateStoreVersion(version: Long): Throwable =
    QueryExecutionErrors.unexpectedStateStoreVersion(version)

  /** Local directories Spark may fill on this machine, in Spark's order; never empty. */
  def localDirectories(conf: SparkConf): Seq[String] =
    Utils.getConfiguredLocalDirs(conf).toSeq

  /** File name of the py4j archive that comes with Spark. */
  def py4jArchive: String = PythonUtils.PY4J_ZIP_NAME

  /** Join entries of a Python path, leaving out empty ones. */
  def mergePythonPaths(paths: Seq[String]): String = PythonUtils.mergePythonPaths(paths: _*)

  /** Configuration of the running Spark application, or an empty one outside of any. */
  def sparkConf: SparkConf = Option(SparkEnv.get).fold(new SparkConf(false))(_.conf)

  /**
   * Run `action` when the Spark application ends whose driver is in this JVM. Does nothing in an
   * executor's JVM, which ends with its application.
   */
  def onApplicationEnd(action: () => Unit): Unit =
    SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = action()
    }))

  /** Every configuration key that Spark SQL knows, alternative spellings included. */
  lazy val sqlConfKeys: Set[String] =
    SQLConf.getConfigEntries().asScala.flatMap(entry => entry.key :: entry.alternatives).toSet
}

/** Spark's iterator over the changes of a version range, open to implementations outside Spark. */
abstract class ChangeDataReader
    extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]
