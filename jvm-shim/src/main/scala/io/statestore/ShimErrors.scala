package io.statestore

import java.io.{File, IOException}
import java.nio.channels.ClosedByInterruptException

import com.fasterxml.jackson.databind.node.ObjectNode
import org.rocksdb.{RocksDBException, Status}

import org.apache.spark.sql.execution.streaming.state._

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
      s"cannot $action: path=$path, error=${cause.getMessage}. " +
        "To fix: free space on the local disk of the executor (spark.local.dir)",
      cause)

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

  /** Runs what writes a local file; that the disk is full or failed is a LocalDiskException. */
  def onLocalDisk[T](action: String, path: File)(body: => T): T =
    try body
    catch {
      case e: ClosedByInterruptException => throw e // the task was killed
      case e: IOException => throw new LocalDiskException(action, path, e)
      case e: RocksDBException if Option(e.getStatus).exists(_.getCode == Status.Code.IOError) =>
        throw new LocalDiskException(action, path, e)
    }

  /** Whether another attempt of the same version came in between. */
  def isFenced(cause: Throwable): Boolean = cause match {
    case reported: EngineReportedException => reported.errorClass == "FencedError"
    case _ => false
  }

  /**
   * What a store raises when it cannot be loaded: `CANNOT_LOAD_STATE_STORE`, except for an argument
   * that the user has to change, which stays an IllegalArgumentException.
   */
  def cannotLoad(cause: Throwable): Throwable = cause match {
    case argument: IllegalArgumentException => argument
    case interrupted: InterruptedException => interrupted
    case other => StateStoreErrors.cannotLoadStore(other)
  }

  /** What a store raises when its commit failed: Spark's error for a state file not written. */
  def cannotCommit(store: StateStoreId, version: Long, cause: Throwable): Throwable = cause match {
    case interrupted: InterruptedException => interrupted
    case other =>
      StateStoreInternals.failedToCommitStateFileError(
        s"${store.storeCheckpointLocation()} at version $version",
        other)
  }
}

/** A Python traceback, for people who read logs. It has no Java stack of its own. */
private final class PythonTraceback(traceback: String)
    extends RuntimeException(traceback, null, false, false)
