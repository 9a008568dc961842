package org.apache.spark.sql.execution.streaming.state

import scala.util.control.NonFatal

import io.statestore.Backends
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.plans.logical.{Join, LogicalPlan}
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation
import org.apache.spark.sql.execution.streaming.OneTimeTrigger
import org.apache.spark.sql.execution.streaming.checkpointing._
import org.apache.spark.sql.execution.streaming.runtime._
import org.apache.spark.sql.internal.SQLConf

/**
 * The first entry of an offset log, for a new query with a join of two streams whose session asks
 * for join state format 3 or 4. Spark gives a new query those on its RocksDB provider only, and
 * format 2 on any other (`MicroBatchExecution.applyJoinStateConfigGuardrails`). A query that has an
 * entry is none that Spark asks: it goes on with what the entry pins. This one has no offsets, so
 * batch 0 reads nothing.
 */
private[state] object FirstOffsets extends Logging {
  private val Format = SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION

  /**
   * Writes the entry, where it is one of those queries. Has to be called before Spark looks for the
   * newest entry, on the query's own thread.
   *
   * Guarantee: the query fails where the entry cannot be written, and none is there then.
   */
  def write(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution =>
      val session = batches.sparkSessionForStream
      val conf = session.sessionState.conf
      val format = conf.getConf(Format)
      val isAsked = format > 2 && Backends.isOurs(conf.stateStoreProviderClass)
      if (isAsked && batches.analyzedPlan.exists(isJoin)) {
        try if (isNew(batches, session)) add(batches, session)
        catch {
          case NonFatal(e) => batches.errorNotifier.markError(notWritten(batches, format, e))
        }
      }
    case _ => ()
  }

  /**
   * Asks each source where it starts, as Spark does for the first batch that reads, and has batch
   * 0 end there: of batch 0 Spark asks none, and a source that starts "now" would leave out what
   * comes until batch 1. Sources of the older interface cannot be asked. Where the run ends before
   * batch 1, only sources that keep their start themselves, such as Kafka, have the same. Has to be
   * called when the first batch of a run is planned.
   */
  def begin(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution =>
      val isWithoutOffsets = batches.offsetLog.getLatest().exists {
        case (0L, entry: OffsetSeq) => entry.offsets.forall(_.isEmpty)
        case (0L, entry: OffsetMap) => entry.offsetsMap.values.forall(_.isEmpty)
        case _ => false
      }
      if (isWithoutOffsets) {
        val streams = batches.logicalPlan.collect {
          case source: StreamingDataSourceV2ScanRelation => source.stream
        }
        val context = batches.getLatestExecutionContext()
        context.endOffsets ++= streams.distinct.map(stream => stream -> stream.initialOffset())
      }
    case _ => ()
  }

  /** As `MicroBatchExecution` has it. */
  private def isJoin(node: LogicalPlan): Boolean = node match {
    case join: Join => join.left.isStreaming && join.right.isStreaming
    case _ => false
  }

  /** Whether no file is there that Spark would go on with, or would refuse to begin beside. */
  private def isNew(query: StreamExecution, session: SparkSession): Boolean = {
    def isEmpty(name: String): Boolean = {
      val directory = new Path(query.resolvedCheckpointRoot, name)
      val files = CheckpointFileManager.create(directory, session.sessionState.newHadoopConf())
      !files.exists(directory) || files.list(directory).isEmpty
    }
    import StreamingCheckpointConstants._
    query.offsetLog.getLatest().isEmpty && isEmpty(DIR_NAME_COMMITS) && isEmpty(DIR_NAME_STATE)
  }

  private def add(query: StreamExecution, session: SparkSession): Unit = {
    val conf = session.sessionState.conf
    val partitions = SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL
    // Spark is about to set it, and the entry needs it set.
    if (conf.getConf(partitions).isEmpty) {
      conf.setConfString(partitions.key, conf.getConf(SQLConf.SHUFFLE_PARTITIONS).toString)
    }
    // As Spark has it on its own provider, to which the checkpoint may be converted.
    if (conf.getConf(Format) == 4) {
      conf.setConf(SQLConf.STATE_STORE_ROCKSDB_MERGE_OPERATOR_VERSION, 2)
    }
    val pinned = OffsetSeqMetadata(0L, query.triggerClock.getTimeMillis(), session.conf)
    val entry =
      if (CheckpointVersionManager.resolveOffsetLogVersion(session, None) < OffsetSeqLog.VERSION_2)
        OffsetSeq(query.analyzedPlan.collect(isSource).map(_ => None), Some(pinned))
      else OffsetMap(Map.empty, OffsetSeqMetadataV2(0L, pinned.batchTimestampMs, pinned.conf))
    // Where another run of the query was first, the entry is its.
    if (query.offsetLog.add(0L, entry) && query.trigger == OneTimeTrigger) {
      logWarning(
        "the first run of a join reads nothing with Trigger.Once, but pins its state format: " +
          s"checkpoint=${query.resolvedCheckpointRoot}, ${Format.key}=${conf.getConf(Format)}. " +
          "To fix: use Trigger.AvailableNow, or run the query once more")
    }
  }

  /** Nodes of which `MicroBatchExecution` makes a source each, or which it takes for one. */
  private val isSource: PartialFunction[LogicalPlan, LogicalPlan] = {
    case node @ (_: StreamingRelation | _: StreamingRelationV2 | _: StreamingExecutionRelation |
        _: StreamingDataSourceV2ScanRelation) => node
  }

  /** The error that the query ends with before its first batch. */
  private def notWritten(query: StreamExecution, format: Int, cause: Throwable): Throwable =
    new IllegalStateException(
      "[storage] cannot write the first entry of the offset log, which pins the state format of " +
        s"joins: checkpoint=${query.resolvedCheckpointRoot}, ${Format.key}=$format, " +
        s"reason=${cause.getMessage}. To fix: mend what the reason names and start the query " +
        s"again; or set ${Format.key} to 2, which Spark writes itself",
      cause)
}
