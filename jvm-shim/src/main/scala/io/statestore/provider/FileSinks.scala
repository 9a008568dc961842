package io.statestore.provider

import java.io.FileNotFoundException
import java.util.{Collections, WeakHashMap}

import scala.util.control.NonFatal

import org.apache.hadoop.fs.{FileSystem, Path}

import org.apache.spark.internal.Logging
import org.apache.spark.sql
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.execution.streaming.runtime.{CompactibleFileStreamLog, StreamExecution}
import org.apache.spark.sql.execution.streaming.sinks.{FileStreamSink, FileStreamSinkLog}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreInternals}

/**
 * Spark's file sink, which tells batches by their numbers: it leaves out each one up to the newest
 * of its log, `_spark_metadata`, and its readers need an entry there of every batch. No sink is
 * given the batch that an operation made, nor is a new output directory given those of before.
 * Their entries are written here, by Spark's own class: the log is the sink's.
 *
 * A batch that the sink has and the commit log has not is run again by Spark and left out by the
 * sink, so nobody makes its state. Where that is needed, the sink's entry is taken back first: in
 * checkpoint format 2, as Spark then has no IDs for the commit log; after a repair; and in a copy
 * of a checkpoint, which has the plan of the batch and not its state.
 */
private[statestore] object FileSinks extends Logging {

  /** Storages date files by clocks of their own, some in whole seconds. */
  private val MaxRoundedMs = 1000L
  private val MaxSkewMs = 60000L

  /** What sinks had when their queries were started. */
  private val atStart = Collections.synchronizedMap(new WeakHashMap[Table, AtStart])

  /**
   * When a query is started: refuses a file sink that would leave out rows of it, or whose log can
   * be read no more once the query has run a batch.
   *
   * @throws java.lang.IllegalArgumentException the sink has other batches than the checkpoint
   */
  def check(session: sql.SparkSession, write: WriteToStream): Unit = session match {
    case classic: SparkSession =>
      val logs = new QueryLogs(classic, write.resolvedCheckpointLocation)
      // Twice, and the checkpoint in between: a run that goes on meanwhile is not in its own way.
      for {
        newest <- open(classic, write.sink, logs).map(_.newest)
        if logs.hasOurState ||
          logs.newestPlanned.isEmpty && StateStoreInternals.isStateful(write.inputQuery)
        next = logs.next
        log <- open(classic, write.sink, logs)
      } {
        val isPlanned = newest == next && logs.isPlanned(next)
        // What is older than its plan, another query has written.
        val aheadMs = if (isPlanned) log.writtenMs(next) - logs.plannedMs(next) else 0L
        if (newest > next || newest == next && !isPlanned || aheadMs < -MaxSkewMs) {
          throw apart(
            "the file sink has batches that the query would run, and would leave them out",
            s"output=${log.output} newest_batch=$newest checkpoint=${logs.root} next_batch=$next")
        }
        val hasNext = isPlanned && aheadMs > -MaxRoundedMs
        atStart.put(write.sink, AtStart(next, log.missing(next), hasNext))
      }
    case _ => ()
  }

  /**
   * When the first batch of a run was planned and is not written yet: makes the log of the query's
   * file sink whole. Not before, since until then an operation can be taken back. What is missing
   * was found at the start: Spark has purged old entries of the offset log since.
   *
   * @param session the query's own, whose checkpoint format is the one that Spark goes on with
   */
  def complete(query: StreamExecution, session: SparkSession): Unit = {
    val logs = new QueryLogs(session, query.resolvedCheckpointRoot)
    for {
      start <- Option(atStart.get(query.sink)) // Spark may ask again after a storage failed
      // Another run may have committed it meanwhile: then nothing is this one's to change.
      if logs.next == start.next && logs.isPlanned(start.next)
      log <- open(session, query.sink, logs)
    } {
      log.complete(start.missing)
      if (start.hasNext && lacksState(session, logs, start.next)) log.takeBack(start.next)
    }
  }

  /** Whether a batch has to be computed again, since it is planned and its state cannot be had. */
  private def lacksState(session: SparkSession, logs: QueryLogs, batch: Long): Boolean =
    new StateStoreConf(session.sessionState.conf).enableStateStoreCheckpointIds ||
      logs.wasRepaired(batch) || !logs.hasState(batch + 1)

  private def open(session: SparkSession, sink: Table, logs: QueryLogs): Option[SinkLog] =
    sink match {
      case files: FileStreamSink =>
        val output = new Path(files.toString.stripPrefix("FileSink[").stripSuffix("]"))
        val conf = session.sessionState.conf
        val fs = output.getFileSystem(session.sessionState.newHadoopConf())
        val path = FileStreamSink.getMetadataLogPath(fs, output, conf)
        Some(new SinkLog(session, path, output, logs))
      case _ => None
    }

  private def apart(what: String, values: String): IllegalArgumentException =
    new IllegalArgumentException(
      s"[sink-apart] $what: $values. To fix: start the query with a new output directory; what " +
        "else can be done is said by statestore explain sink-apart")

  /**
   * @param next the batch that the query runs first
   * @param missing as `SinkLog.missing`
   * @param hasNext whether the sink has that batch, from a run that did not end it
   */
  private final case class AtStart(next: Long, missing: (Seq[Long], Boolean), hasNext: Boolean)

  /** The log of a file sink, beside the checkpoint of the query that writes to it. */
  private final class SinkLog(session: SparkSession, path: Path, val output: Path, logs: QueryLogs)
      extends FileStreamSinkLog(FileStreamSinkLog.VERSION, session, path.toString) {

    def newest: Long = getLatestBatchId().getOrElse(-1L)

    /**
     * The batches before `next` whose entries a reader of these would miss, ascending; and whether
     * the sink has no file before `next`: a reader then needs its newest compaction and all after.
     */
    def missing(next: Long): (Seq[Long], Boolean) = {
      val known = listBatchesOnDisk.filter(_ < next).toSet
      val start = known.filter(CompactibleFileStreamLog.isCompactionBatch(_, compactInterval))
      val absent = (start.maxOption.getOrElse(0L) until next).filterNot(known)
      val lost = absent.find(!logs.isOfOperation(_))
      if (lost.isEmpty) (absent, false)
      else if (known.forall(get(_).exists(_.isEmpty)) && firstFile.isEmpty) {
        val needed = CompactibleFileStreamLog.getAllValidBatches(next - 1, compactInterval)
        (needed.filterNot(known), true)
      } else {
        val found = firstFile.fold("")(file => s" found=$file")
        leaveNoEmptyLog()
        throw apart(
          "the file sink lacks batches that the query has run",
          s"output=$output newest_batch=$newest missing_batch=${lost.get}$found " +
            s"checkpoint=${logs.root} next_batch=$next")
      }
    }

    /**
     * A file that a batch has written here. Of a new output none has before its log is complete,
     * also where the first one was killed; where the log was lost, files tell.
     */
    private lazy val firstFile: Option[Path] = filesBelow(output).nextOption()

    /** Files of rows as Spark names them. A directory that is no COLUMN=VALUE is anybody's. */
    private def filesBelow(directory: Path): Iterator[Path] =
      try {
        val found = fs.listStatusIterator(directory)
        Iterator.continually(found).takeWhile(_.hasNext).map(_.next()).flatMap { status =>
          val path = status.getPath
          if (status.isDirectory && path.getName.contains("=")) filesBelow(path)
          else Iterator.single(path).filter(_ => status.isFile && path.getName.startsWith("part-"))
        }
      } catch { case _: FileNotFoundException => Iterator.empty }

    /** Spark makes the directory before a query is refused: empty, it hides every file. */
    private def leaveNoEmptyLog(): Unit =
      try {
        if (fs.listStatus(path).isEmpty) fs.delete(path, false)
      } catch {
        case NonFatal(error) => logWarning(s"an empty log hides the files of $output", error)
      }

    private def fs: FileSystem = output.getFileSystem(session.sessionState.newHadoopConf())

    def complete(missing: (Seq[Long], Boolean)): Unit = {
      val (batches, isNew) = missing
      batches.foreach { batch =>
        // Compaction reads what is before, which a new sink has not got.
        if (isNew) addNewBatchByStream(batch)(serialize(Array.empty, _))
        else add(batch, Array.empty)
      }
      if (batches.nonEmpty) {
        logInfo(s"the file sink was given no batch of these: output=$output, batches=$batches")
      }
    }

    def writtenMs(batch: Long): Long = {
      val entry = batchIdToPath(batch)
      val fs = entry.getFileSystem(session.sessionState.newHadoopConf())
      fs.getFileStatus(entry).getModificationTime
    }

    def takeBack(batch: Long): Unit = if (newest == batch) {
      logInfo(s"the file sink is given a batch again: output=$output, batch=$batch")
      purgeAfter(batch - 1)
    }
  }
}
