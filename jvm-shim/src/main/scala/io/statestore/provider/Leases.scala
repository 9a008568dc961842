package io.statestore.provider

import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, Future, ScheduledThreadPoolExecutor, TimeUnit}

import scala.annotation.tailrec
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import io.statestore.{EngineReportedException, EngineUnavailableException}
import io.statestore.engine.QueryRuns
import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * The leases of this JVM, one for each query run with stores here: while there is one, operations
 * leave the checkpoint alone. A lease is taken when the run's first store is opened, and dropped
 * when the driver no longer knows the run. Whatever becomes of its engine, a lease is renewed from
 * here; the engine drops those of a JVM that died.
 */
private[statestore] object Leases extends Logging {
  private val CheckEveryMs = 1000L

  private val held = new ConcurrentHashMap[(String, String), Lease]()

  // One renews while the other waits for the driver.
  private lazy val timer: ScheduledThreadPoolExecutor = {
    val made = new ScheduledThreadPoolExecutor(
      2,
      (work: Runnable) => {
        val thread = new Thread(work, "statestore-leases")
        thread.setDaemon(true)
        thread
      })
    made.setRemoveOnCancelPolicy(true)
    made.scheduleWithFixedDelay(
      () => dropEnded(), CheckEveryMs, CheckEveryMs, TimeUnit.MILLISECONDS)
    made
  }

  /**
   * Holds a lease for the run of a store from now on. Does nothing where no query runs.
   *
   * @throws io.statestore.EngineReportedException an operation is changing the checkpoint
   */
  @tailrec
  def hold(context: StoreContext): Unit = if (context.isOfQuery) {
    val key = (context.storeId.checkpointRootLocation, context.run)
    val lease = held.computeIfAbsent(key, _ => new Lease(context))
    if (!lease.ensureTaken()) {
      held.remove(key, lease)
      hold(context)
    }
  }

  private def every(intervalMs: Long)(work: => Unit): Future[_] =
    timer.scheduleWithFixedDelay(() => work, intervalMs, intervalMs, TimeUnit.MILLISECONDS)

  private def dropEnded(): Unit =
    try {
      val runs = held.keySet.asScala.map(_._2).toSet
      if (runs.nonEmpty) {
        val active = QueryRuns.active(runs)
        held.asScala.foreach { case (key, lease) =>
          if (!active(key._2) && held.remove(key, lease)) lease.drop()
        }
      }
    } catch { case NonFatal(e) => logWarning("leases of ended runs were not dropped", e) }

  /** One lease; `context` is that of any store of the run. */
  private final class Lease(context: StoreContext) {
    private val id = UUID.randomUUID().toString.replace("-", "")
    private val intervalMs = context.options.leaseIntervalMs

    // Changed under the lease's lock, as its calls are made.
    @volatile private var isTaken = false
    @volatile private var refusal: EngineReportedException = _
    private var isOver = false
    private var renewedAt = 0L // nanoseconds
    private var renewals: Future[_] = _

    /** Takes the lease unless that was done; false when it is over, and a new one is needed. */
    def ensureTaken(): Boolean = {
      if (refusal != null) throw refusal
      isTaken || synchronized {
        if (!isTaken && !isOver) {
          take()
          renewals = every(intervalMs)(renew())
        }
        !isOver
      }
    }

    private def take(): Unit = {
      try {
        call("take")
        renewedAt = System.nanoTime()
      } catch {
        // Not worth a failed task: the next renewal tries again.
        case e: EngineReportedException if e.errorClass == "StorageError" =>
          logWarning(s"lease was not taken: $describe", e)
          renewedAt = System.nanoTime() - lastsNanos
      }
      isTaken = true
    }

    private def renew(): Unit = synchronized {
      if (!isOver && refusal == null) {
        try {
          // One that expired may have let an operation begin.
          val hasExpired = System.nanoTime() - renewedAt >= lastsNanos
          call(if (hasExpired) "take" else "renew")
          renewedAt = System.nanoTime()
        } catch {
          case e: EngineReportedException if e.errorClass == "InUseError" =>
            logWarning(s"lease is lost, the query run writes no more: $describe", e)
            refusal = e
          case e: EngineUnavailableException =>
            logInfo(s"no engine to renew a lease: $describe, error=${e.getMessage}")
          case NonFatal(e) => logWarning(s"lease was not renewed: $describe", e)
        }
      }
    }

    def drop(): Unit = synchronized {
      isOver = true
      isTaken = false
      if (renewals != null) renewals.cancel(false)
      try call("drop")
      catch {
        // Its engines dropped it at the end of the application.
        case e: EngineUnavailableException =>
          logInfo(s"no engine to drop a lease: $describe, error=${e.getMessage}")
        case NonFatal(e) => logWarning(s"lease was not dropped: $describe", e)
      }
    }

    private def call(action: String): Unit = {
      val request = context.request("lease")
      request.put("action", action).put("id", id).put("pid", ProcessHandle.current().pid())
      request.put("application", StateStoreInternals.sparkConf.get("spark.app.id", ""))
      request.put("executor", Option(SparkEnv.get).fold("")(_.executorId))
      context.call(request)
      ()
    }

    private def lastsNanos: Long = TimeUnit.MILLISECONDS.toNanos(Intervals * intervalMs)

    private def describe: String =
      s"checkpoint=${context.storeId.checkpointRootLocation}, run=${context.run}, lease=$id"
  }

  /** A lease lasts so many intervals, as `statestore/checkpoint/lease.py` says. */
  private val Intervals = 3L
}
