package io.statestore.provider

import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, CountDownLatch}
import java.util.concurrent.{ScheduledThreadPoolExecutor, TimeUnit}

import scala.annotation.tailrec
import scala.jdk.CollectionConverters._
import scala.util.Try
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{
  Background, Backends, EngineReportedException, EngineUnavailableException, ShimOptions}
import io.statestore.engine.QueryRuns
import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StatefulQuery, StateStoreId}
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.apache.spark.sql.streaming.{StreamingQuery, StreamingQueryProgress}

/**
 * The leases of this JVM, one for each query run that it has stores of, on the driver for each that
 * is active: while there is one, operations leave the checkpoint alone. A lease is dropped when the
 * driver no longer knows the run and no commit is under way. Whatever becomes of its engine, a
 * lease is renewed from here; the engine drops those of a JVM that died.
 */
private[statestore] object Leases extends Logging {
  private val CheckEveryMs = 1000L

  /** An engine may be as busy as that without being passed over. */
  private val MinCallTimeoutMs = 5000L

  /** A lease lasts so many intervals, as `statestore/checkpoint/lease.py` says. */
  private val Intervals = 3L

  private val held = new ConcurrentHashMap[(String, String), Lease]()

  private lazy val timer: ScheduledThreadPoolExecutor = {
    val made = new ScheduledThreadPoolExecutor(1, daemon(_))
    made.scheduleWithFixedDelay(() => check(), 0L, CheckEveryMs, TimeUnit.MILLISECONDS)
    made
  }

  private def daemon(work: Runnable): Thread = Background.thread("statestore-leases", work)

  /** On the driver, holds a lease of each stateful query from now on, before its first task. */
  def watch(): Unit = {
    timer
    ()
  }

  /**
   * Holds a lease for the run of a store from now on. Does nothing where no query runs.
   *
   * @throws io.statestore.EngineReportedException an operation is changing the checkpoint
   */
  def hold(context: StoreContext): Unit =
    if (context.isOfQuery) begin(context, isCommit = false).end()

  /**
   * Commits while the lease of the store's run is held: it is not dropped before the end.
   *
   * @throws io.statestore.EngineReportedException an operation is changing the checkpoint, its
   *         state is another's, or the lease cannot be taken again
   */
  def committing[T](context: StoreContext)(commit: => T): T =
    if (!context.isOfQuery) commit
    else {
      val lease = begin(context, isCommit = true)
      try commit
      finally lease.end()
    }

  /**
   * Does something while the lease of the store's run is held, and nothing where it is not: the run
   * has ended, and an operation may have changed the checkpoint since. What `deletes` files keeps
   * the lease from being dropped.
   */
  def whileHeld(context: StoreContext, deletes: Boolean)(body: => Unit): Unit =
    if (!context.isOfQuery) body
    else {
      val lease = held.get(keyOf(context))
      if (lease != null && lease.isHeld) {
        if (!deletes) body
        else if (lease.begin()) {
          try if (lease.isHeld) body
          finally lease.end()
        }
      }
    }

  /** Whether a query run that has stores here may write, also where its lease has expired. */
  def hasWriter(checkpoint: String): Boolean = held.keySet.asScala.exists(_._1 == checkpoint)

  /**
   * Fails where the lease of a run was refused here. On a driver in a cluster nothing else does: it
   * has no stores, and executors have leases of their own.
   *
   * @throws io.statestore.EngineReportedException an operation was changing the checkpoint, or its
   *         state is another's
   */
  def requireNotRefused(run: String): Unit =
    held.asScala.foreach { case ((_, of), lease) => if (of == run) lease.requireNotRefused() }

  @tailrec
  private def begin(context: StoreContext, isCommit: Boolean): Lease = {
    val lease = leaseOf(context)
    if (lease.begin()) {
      try lease.ensureHeld(isCommit)
      catch {
        case e: Throwable =>
          lease.end()
          throw e
      }
      lease
    } else {
      held.remove(keyOf(context), lease)
      begin(context, isCommit)
    }
  }

  private def keyOf(context: StoreContext): (String, String) =
    (context.storeId.checkpointRootLocation, context.run)

  private def leaseOf(context: StoreContext): Lease = {
    watch()
    held.computeIfAbsent(keyOf(context), _ => new Lease(context))
  }

  /** Begins to hold the leases of new runs, on the driver, and lets go of those that ended. */
  private def check(): Unit =
    try {
      StateStoreInternals.statefulQueries(Backends.isOurs)
        .filterNot(query => held.containsKey((query.stateDirectory, query.run)))
        .foreach { query =>
          // A class that is not there, or an option out of range, fails the first task by name.
          Try(contextOf(query)).foreach(leaseOf)
        }
      val asked = held.asScala.toSeq // others may begin meanwhile
      if (asked.nonEmpty) {
        val active = QueryRuns.active(asked.map { case ((_, run), _) => run }.toSet)
        asked.foreach { case (key, lease) =>
          lease.isEnding = !active(key._2)
          if (lease.isEnding && lease.endIfIdle()) {
            held.remove(key, lease)
            ViewHolders.ended(key._2)
          }
        }
      }
    } catch {
      // Also of memory or threads that are short: a raise would end the timer for good.
      case e: Throwable => logWarning("leases were not looked after", e)
    }

  private def contextOf(query: StatefulQuery): StoreContext = {
    val storeConf = query.newStoreConf()
    new StoreContext(
      Backends.Providers.map(_.swap).apply(query.providerClass),
      StateStoreId(query.stateDirectory, 0L, 0),
      defaultFamily = null, // of no store
      useColumnFamilies = false,
      schemas = None,
      storeConf,
      query.newHadoopConf(),
      ShimOptions.parse(storeConf.sqlConfs))
  }

  /**
   * A moment by two clocks: one stands still while the machine is suspended, the other may be set
   * back. Of its ages the larger counts.
   */
  private[provider] final case class Moment(elapsedMs: Long, unixMs: Long) {
    def ageMs: Long = {
      val now = Moment.now()
      math.max(now.elapsedMs - elapsedMs, now.unixMs - unixMs)
    }
  }

  private[provider] object Moment {
    def now(): Moment =
      Moment(TimeUnit.NANOSECONDS.toMillis(System.nanoTime()), System.currentTimeMillis())
  }

  /** An operation is changing the checkpoint, or it names the state of another checkpoint. */
  private val Refusals = Set("InUseError", "IncompatibleError")

  /**
   * One lease; `context` is that of any store of the run. A thread of its own renews it, so that an
   * engine that hangs holds up no other.
   */
  private final class Lease(context: StoreContext) {
    private val id = UUID.randomUUID().toString.replace("-", "")
    private val intervalMs = context.options.leaseIntervalMs
    private val lastsMs = Intervals * intervalMs
    private val over = new CountDownLatch(1)

    /** Whether the driver no longer knows the run: only what is under way keeps the lease. */
    @volatile var isEnding = false

    // Guarded by this.
    private var users = 0

    // Changed under the lock of `calling`, as its calls are made.
    private val calling = new Object
    @volatile private var renewedAt: Option[Moment] = None // when the call was made
    @volatile private var refusal: EngineReportedException = _
    private var ran: StreamingQueryProgress = _ // of the newest batch that was not an idle report
    private var hasWarned = false // that there is no engine, once until there is one

    daemon(() => keep()).start()

    /** Begins a use of the lease; false when it is over, and a new one is needed. */
    def begin(): Boolean = synchronized {
      if (over.getCount > 0) users += 1
      over.getCount > 0
    }

    def end(): Unit = synchronized(users -= 1)

    /** Lets go of the lease, which its thread drops, unless it is in use. */
    def endIfIdle(): Boolean = synchronized {
      if (users == 0) over.countDown()
      users == 0
    }

    /** Takes the lease unless it is held; only a commit fails where the storage does. */
    def ensureHeld(isCommit: Boolean): Unit = {
      if (hasExpired) calling.synchronized {
        try if (hasExpired && refusal == null) take()
        catch {
          case e: EngineReportedException if e.errorClass == "StorageError" && !isCommit =>
            logWarning(s"lease was not taken: $describe", e)
        }
      }
      requireNotRefused()
    }

    def requireNotRefused(): Unit = if (refusal != null) throw refusal

    def isHeld: Boolean = !isEnding && refusal == null && !hasExpired

    private def keep(): Unit = {
      renew()
      while (!over.await(intervalMs, TimeUnit.MILLISECONDS)) renew()
      try call("drop")
      catch {
        // Its engines dropped it at the end of the application, or none ever took it.
        case e: EngineUnavailableException =>
          if (renewedAt.nonEmpty) {
            logInfo(s"no engine to drop a lease: $describe, error=${e.getMessage}")
          }
        case NonFatal(e) => logWarning(s"lease was not dropped: $describe", e)
      }
    }

    private def renew(): Unit = calling.synchronized {
      if (refusal == null) {
        try {
          // One that expired may have let an operation begin.
          if (hasExpired) take() else renewWith("renew")
        } catch {
          case e: EngineUnavailableException =>
            val text = s"no engine to renew a lease: $describe, error=${e.getMessage}"
            if (hasWarned) logInfo(text)
            else logWarning(s"$text. Without it operations may take the query for stopped")
            hasWarned = true
          // As in `check`: it would end the thread that renews the lease.
          case e: Throwable => logWarning(s"lease was not renewed: $describe", e)
        }
      }
    }

    private def take(): Unit =
      try renewWith("take")
      catch {
        case e: EngineReportedException if Refusals(e.errorClass) =>
          logWarning(s"lease is refused, the query run writes no more: $describe")
          refusal = e
      }

    private def renewWith(action: String): Unit = {
      val began = Moment.now()
      call(action)
      renewedAt = Some(began)
      hasWarned = false
    }

    private def hasExpired: Boolean = renewedAt.forall(_.ageMs >= lastsMs)

    private def call(action: String): Unit = {
      val request = context.request("lease")
      request.put("action", action).put("id", id).put("pid", ProcessHandle.current().pid())
      StateStoreInternals.activeQuery(context.run).foreach(tell(_, request))
      // The first call may have to wait for the start of an engine.
      if (renewedAt.isEmpty) context.call(request)
      else {
        val timeoutMs = math.max(intervalMs, MinCallTimeoutMs)
        // A lease that is taken again has expired. Of an executor's engine commits notice it.
        val isUrgent = action == "take" && StateStoreInternals.isDriver(SparkEnv.get)
        context.callAny(request, timeoutMs, isUrgent)
      }
      ()
    }

    /** Adds the query's name, and of its newest progress what its files do not tell. */
    private def tell(query: StreamingQuery, request: ObjectNode): Unit = {
      val told = request.putObject("query").put("name", query.name)
      // While it is idle Spark reports the batch to come, with no rows, and rates of 0.
      query.recentProgress.reverseIterator.find(_.durationMs.containsKey("addBatch"))
        .foreach(ran = _)
      if (ran != null) {
        told.put("batch", ran.batchId).put("rows", ran.numInputRows)
        val newest = query.lastProgress
        Seq(
          "input_rows_per_second" -> newest.inputRowsPerSecond,
          "processed_rows_per_second" -> newest.processedRowsPerSecond
        ).foreach { case (name, rate) => if (java.lang.Double.isFinite(rate)) told.put(name, rate) }
      }
    }

    private def describe: String =
      s"checkpoint=${context.storeId.checkpointRootLocation}, run=${context.run}, lease=$id"
  }
}
