package io.statestore.provider

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import io.statestore.{Backends, Json}
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamingCheckpointConstants

/** What the logs of a query say, at the checkpoint directory `root`. */
private[provider] final class QueryLogs(session: SparkSession, val root: String) {
  import QueryLogs._

  private val directory = new Path(root)
  private val hadoopConf = session.sessionState.newHadoopConf()
  private val fs = directory.getFileSystem(hadoopConf)

  def newestPlanned: Option[Long] = batches("offsets").maxOption

  /** The batch that a restart runs first. */
  def next: Long = newestPlanned.fold(0L) { planned =>
    if (batches("commits").contains(planned)) planned + 1 else planned
  }

  def isPlanned(batch: Long): Boolean = newestPlanned.exists(_ >= batch)

  /**
   * When a batch was planned, milliseconds since the Unix epoch: by the driver, which a copy of the
   * entry keeps, or by the storage, whichever is earlier.
   */
  def plannedMs(batch: Long): Long = {
    val file = fs.getFileStatus(new Path(directory, s"offsets/$batch"))
    math.min(entry(batch).path("batchTimestampMs").asLong, file.getModificationTime)
  }

  /** Whether state of a version is in the checkpoint: of a copy it is not. Elsewhere none is. */
  def hasState(version: Long): Boolean =
    !fs.exists(new Path(directory, "statestore.json")) && {
      val state = new Path(directory, s"${StreamingCheckpointConstants.DIR_NAME_STATE}/0/0")
      try {
        val files = fs.listFiles(state, true)
        Iterator.continually(files).takeWhile(_.hasNext)
          .exists(_.next().getPath.getName.startsWith(s"$version."))
      } catch { case _: FileNotFoundException => false }
    }

  /** Whether a repair went back to the version before a batch, at some time. */
  def wasRepaired(batch: Long): Boolean =
    names("statestore-repair").exists(name => name == s"$batch" || name.startsWith(s"$batch-"))

  /** Number of state partitions of the newest committed batch; of the first where none is. */
  def numPartitions: Option[Int] =
    batches("commits").maxOption.orElse(newestPlanned)
      .map(conf(_).path(Partitions).asInt).filter(_ > 0)

  /** The provider that the newest batch was planned with, which a restart takes again. */
  def provider: Option[String] =
    newestPlanned.map(conf(_).path(Provider).asText("")).filter(_.nonEmpty)

  /** Whether it has state, over a provider of this package. */
  def hasOurState: Boolean =
    fs.exists(new Path(directory, StreamingCheckpointConstants.DIR_NAME_STATE)) &&
      provider.exists(Backends.isOurs)

  /**
   * A file of state schemas that is not there: of those that are the newest of a store in Spark's
   * metadata of an operator, as the next batch finds it. The metadata names them by whole URIs.
   */
  def missingSchema: Option[Path] = {
    val batch = next
    val newest = for {
      operator <- batches(StreamingCheckpointConstants.DIR_NAME_STATE).iterator
      of = s"${StreamingCheckpointConstants.DIR_NAME_STATE}/$operator/_metadata/v2"
      written <- batches(of).filter(_ <= batch).maxOption.iterator
      store <- secondLine(s"$of/$written").path("stateStoreInfo").elements.asScala
      file <- store.path("stateSchemaFilePaths").elements.asScala.toSeq.lastOption
    } yield new Path(file.asText)
    newest.find(file => !file.getFileSystem(hadoopConf).exists(file))
  }

  /** Whether an operation made a batch, or Spark's repartition: no sink was given it then. */
  def isOfOperation(batch: Long): Boolean =
    isRescale(batch) || conf(batch).fieldNames.asScala.exists(_.startsWith("statestore."))

  /** Whether a batch changed the number of state partitions: where begun, no query ends it. */
  def isRescale(batch: Long): Boolean = {
    val (before, after) = (conf(batch - 1).path(Partitions), conf(batch).path(Partitions))
    !before.isMissingNode && !after.isMissingNode && before != after
  }

  /** The configuration that a batch was planned with; nothing where no entry has it. */
  private def conf(batch: Long): JsonNode = entry(batch).path("conf")

  private def entry(batch: Long): JsonNode = secondLine(s"offsets/$batch")

  /** The JSON behind the line with the version of a file; nothing where there is no such file. */
  private def secondLine(below: String): JsonNode =
    try {
      val in = fs.open(new Path(directory, below))
      val lines = try new String(in.readAllBytes(), UTF_8).split('\n') finally in.close()
      // A continuous trigger writes an empty line.
      lines.lift(1).filter(_.nonEmpty).fold[JsonNode](Json.obj())(Json.readObject)
    } catch { case _: FileNotFoundException => Json.obj() }

  private def batches(log: String): Set[Long] =
    names(log).filter(_.forall(Character.isDigit)).map(_.toLong)

  private def names(below: String): Set[String] =
    try fs.listStatus(new Path(directory, below)).map(_.getPath.getName).toSet
    catch { case _: FileNotFoundException => Set.empty }
}

private object QueryLogs {
  private val Partitions = "spark.sql.shuffle.partitions"
  private val Provider = "spark.sql.streaming.stateStore.providerClass"
}
