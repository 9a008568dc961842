package io.statestore

import java.io.{File, IOException}
import java.nio.channels.{ClosedByInterruptException, FileLockInterruptionException}
import java.nio.file.Files
import java.util.Locale

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.provider.StoreContext
import io.statestore.view.ColumnFamily
import org.rocksdb.{RocksDBException, Status}

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, StateStoreInternals}

/**
 * A failure that an engine reported.
 *
 * @param errorClass class of the error in docs/protocol.md
 * @param kind its kind, from the Python package's list of kinds
 * @param fields the values it names
 */
final class EngineReportedException(
    message: String,
    val errorClass: String,
    val kind: String,
    val fields: ObjectNode,
    cause: Throwable)
    extends RuntimeException(message, cause)

/** An engine that cannot be started, was lost for good, or belongs to an ended application. */
final class EngineUnavailableException(message: String, cause: Throwable = null)
    extends RuntimeException(message, cause)

/** The executor's local disk is full or failed; nothing durable is touched. */
final class LocalDiskException(action: String, path: File, cause: Exception)
    extends RuntimeException(
      s"[${LocalDiskException.kind(String.valueOf(cause.getMessage))}] " +
        s"cannot $action: path=$path, error=${cause.getMessage}. " +
        s"To fix: ${LocalDiskException.fix(String.valueOf(cause.getMessage))}",
      cause) {

  /** Whether the disk has no space left, and did not fail. */
  def isFull: Boolean = LocalDiskException.isFull(String.valueOf(cause.getMessage))
}

private object LocalDiskException {
  private val NoSpace = Seq("no space left", "file too large", "quota exceeded")

  private val Raise = "on the machine of the executor raise"

  def isFull(message: String): Boolean =
    NoSpace.exists(message.toLowerCase(Locale.ROOT).contains(_))

  /** The kind of error that a failure with this message is, of Java's or of RocksDB's. */
  def kind(message: String): String = if (isFull(message)) "storage-full" else "storage"

  /** What to do about it. */
  def fix(message: String): String = {
    val disk = "the local disk of the executor (spark.local.dir)"
    val text = message.toLowerCase(Locale.ROOT)
    if (isFull(message)) s"free space on $disk"
    else if (text.contains("too many open files")) s"$Raise the limit of open files (ulimit -n)"
    else if (message == "Map failed") s"$Raise vm.max_map_count"
    else s"look at $disk"
  }
}

/**
 * The start of a query is refused: it asks for another number of state partitions than its
 * checkpoint has. `statestore.run` reads the fields, rescales, and starts the query again.
 *
 * @param session of the query: its options reach the storage
 */
final class PartitionsAskedException(
    @transient val session: SparkSession,
    val checkpoint: String,
    val found: Int,
    val asked: Int,
    fix: String)
    extends IllegalArgumentException(
      "[partitions-asked] the checkpoint has another number of state partitions than the query " +
        s"asks for: state_partitions=$found asked=$asked checkpoint=$checkpoint. To fix: $fix")

/** How failures reach Spark: in Spark's own error classes where it has one for them. */
object ShimErrors {

  /**
   * The exception for an error reply.
   *
   * @param error the reply's `error` object
   * @param op the call it answers
   * @param store the store the call was for, as text
   * @return IllegalArgumentException for an argument or option that is out of range, otherwise
   *         EngineReportedException; the engine's traceback is its cause's message
   */
  def fromEngine(error: ObjectNode, op: String, store: String): RuntimeException = {
    val errorClass = error.path("class").asText("InternalError")
    val kind = error.path("kind").asText("internal")
    val reason = error.path("message").asText("the engine gave no reason")
    val message = s"$op failed: store=$store, class=$errorClass: $reason"
    val traceback = error.path("traceback").asText("")
    val cause = if (traceback.isEmpty) null else new PythonTraceback(traceback)
    if (errorClass == "InvalidArgumentError") {
      new IllegalArgumentException(message, cause)
    } else {
      val fields = error.path("fields") match {
        case node: ObjectNode => node
        case _ => Json.obj()
      }
      new EngineReportedException(message, errorClass, kind, fields, cause)
    }
  }

  /**
   * Runs what writes a local file. That the disk is full or failed is a LocalDiskException, that
   * the directory of the file is gone an EngineUnavailableException.
   */
  def onLocalDisk[T](action: String, path: File)(body: => T): T =
    try body
    catch {
      case e: IOException if isInterruption(e) => throw e
      case e @ (_: IOException | _: RocksDBException) if isGone(path.getParentFile) =>
        throw scratchGone(path.getParentFile, e)
      case e: IOException => throw new LocalDiskException(action, path, e)
      case e: RocksDBException if Option(e.getStatus).exists(_.getCode == Status.Code.IOError) =>
        throw new LocalDiskException(action, path, e)
    }

  /** Whether a directory is known not to be there; one of a disk that fails may be. */
  def isGone(directory: File): Boolean = Files.notExists(directory.toPath)

  /** The error where somebody has removed the directory of the engines and their files. */
  def scratchGone(directory: File, cause: Throwable = null): EngineUnavailableException =
    new EngineUnavailableException(
      s"the directory of the engines is gone: directory=$directory. To fix: set spark.local.dir " +
        "to a directory that nothing cleans while the application runs, and start it again",
      cause)

  /** Whether another attempt of the same version came in between. */
  def isFenced(cause: Throwable): Boolean = cause match {
    case reported: EngineReportedException => reported.errorClass == "FencedError"
    case _ => false
  }

  /**
   * The error of a store that cannot be loaded: the condition of Spark's table that the kind of
   * error means, and after Spark's text ours. An argument that the user has to change stays an
   * IllegalArgumentException.
   */
  def cannotLoad(backend: String, store: StateStoreId, cause: Throwable): Throwable = cause match {
    case _: IllegalArgumentException => cause
    case _ if isInterruption(cause) => cause
    case spark: SparkThrowable if spark.getCondition != null => cause
    case reported: EngineReportedException =>
      val own = if (backend == "rocksdb") RocksDBConditions else Map.empty
      val condition = (LoadConditions ++ own).getOrElse(reported.kind, Uncategorized)
      raised(condition, parameters(store, reported), cause)
    case _ => raised(Uncategorized, Map.empty, cause)
  }

  /** Whether it says that the task was killed, and nothing else. */
  def isInterruption(cause: Throwable): Boolean = cause match {
    case _: InterruptedException => true
    case _: ClosedByInterruptException | _: FileLockInterruptionException => true
    case _ => false
  }

  /** The error for a column family that is not laid out as the checkpoint's. */
  def schemaChanged(store: StateStoreId, stored: ColumnFamily, query: ColumnFamily): Throwable =
    raised(
      "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
      Map(
        "colFamilyName" -> stored.name,
        "oldSchema" -> stored.describe,
        "newSchema" -> query.describe),
      new IllegalStateException(
        s"[schema-changed] the state schema differs from the checkpoint's: ${describe(store)}. " +
          "To fix: restore the old query, give a new state variable another name, or start with " +
          "a new checkpoint location"))

  /** The error for a row with a value schema that nobody described. */
  def unknownSchema(family: String, id: Short, known: Iterable[Short]): Throwable =
    new IllegalStateException(
      "[corruption] a row is of a value schema that its column family has not: " +
        s"column_family=$family, schema=$id, known=${known.toSeq.sorted.mkString(" ")}. " +
        "To fix: verify the checkpoint; where its checksums hold, report it")

  /** The error of a store that is opened to be written and could not be committed. */
  def noSuchStore(store: StateStoreId, numPartitions: Int): Throwable =
    new IllegalArgumentException(
      s"[invalid-argument] there is no such state store: ${describe(store)}, " +
        s"num_partitions=$numPartitions. To fix: number operators and state partitions from 0; " +
        s"outside of a query, Hadoop's configuration says how many state partitions there are: " +
        StoreContext.NumPartitionsKey)

  /** The error of a commit that failed: Spark's own for a state file not written. */
  def cannotCommit(store: StateStoreId, version: Long, cause: Throwable): Throwable = cause match {
    case _ if isInterruption(cause) => cause
    case _ =>
      raised(
        "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT",
        Map("providerClass" -> s"${describe(store)} at version $version"),
        cause)
  }

  /** Spark 4.0 has not got every condition. */
  private def raised(condition: String, values: Map[String, String], cause: Throwable): Throwable =
    StateStoreInternals.error(
      if (StateStoreInternals.isCondition(condition)) condition else Uncategorized,
      values.withDefaultValue("unknown"),
      cause)

  private val Load = "CANNOT_LOAD_STATE_STORE."
  private val Uncategorized = s"${Load}UNCATEGORIZED"
  private val Damaged = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
  private val Changed = "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"
  private val Conf = ShimOptions.Prefix

  /** Spark's condition by kind of error; docs/spark.md shows this table. */
  private val LoadConditions = Map(
    "version-not-found" -> s"${Load}CANNOT_READ_DELTA_FILE_NOT_EXISTS",
    "file-not-found" -> s"${Load}CANNOT_READ_DELTA_FILE_NOT_EXISTS",
    "snapshot-not-found" -> s"${Load}CANNOT_READ_MISSING_SNAPSHOT_FILE",
    "driver-lost" -> s"${Load}CANNOT_READ_STREAMING_STATE_FILE",
    "fenced" -> s"${Load}INVALID_CHECKPOINT_LINEAGE",
    "lineage-broken" -> s"${Load}INVALID_CHECKPOINT_LINEAGE",
    "newer-format" -> s"${Load}INVALID_CHANGE_LOG_READER_VERSION",
    "checksum-mismatch" -> Damaged,
    "truncated" -> Damaged,
    "corruption" -> Damaged,
    "backend-changed" -> Changed,
    "other-provider" -> Changed,
    "max-parallelism-changed" -> Changed,
    "num-partitions-changed" -> Changed,
    "storage-changed" -> Changed)

  /** Where Spark's RocksDB provider has another one for the same thing. */
  private val RocksDBConditions = Map(
    "version-not-found" -> s"${Load}CANNOT_READ_STREAMING_STATE_FILE",
    "file-not-found" -> s"${Load}CANNOT_READ_STREAMING_STATE_FILE")

  /** The setting that a kind of error is about. */
  private val Settings = Map(
    "backend-changed" -> s"${Conf}providerClass",
    "other-provider" -> s"${Conf}providerClass",
    "max-parallelism-changed" -> s"${Conf}maxParallelism",
    "num-partitions-changed" -> "spark.sql.shuffle.partitions",
    "storage-changed" -> s"${Conf}checkpointStorage")

  /** Parameters of the conditions above, from the fields of an error. */
  private def parameters(
      store: StateStoreId,
      error: EngineReportedException): Map[String, String] = {
    def field(names: String*): String = names.map(error.fields.path(_)).find(!_.isMissingNode)
      .fold("unknown")(name => Backends.Providers.getOrElse(name.asText, name.asText))
    Map(
      "fileToRead" -> field("file", "directory", "store"),
      "fileName" -> field("file", "directory"),
      "clazz" -> describe(store),
      "lineage" -> field("found"),
      "message" -> s"expected=${field("expected")}",
      "version" -> field("format_version", "found"),
      "expectedChecksum" -> field("expected"),
      "computedChecksum" -> field("found"),
      "configName" -> Settings.getOrElse(error.kind, "unknown"),
      "oldConfig" -> field("checkpoint", "found"),
      "newConfig" -> field("query", "expected"))
  }

  private def describe(store: StateStoreId): String =
    s"StateStore[id=(op=${store.operatorId},part=${store.partitionId}),name=${store.storeName}," +
      s"dir=${store.storeCheckpointLocation()}]"
}

/** A Python traceback, for people who read logs. It has no Java stack of its own. */
private final class PythonTraceback(traceback: String)
    extends RuntimeException(traceback, null, false, false)
