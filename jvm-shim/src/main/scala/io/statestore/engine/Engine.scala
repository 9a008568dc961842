package io.statestore.engine

import java.util.concurrent.{CompletableFuture, ExecutionException}

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{Background, EngineUnavailableException}
import org.slf4j.LoggerFactory

/**
 * One engine of a pool, seen from outside: always there, whichever process serves it. A process
 * that died is replaced at the next call, and the calls it did not answer are sent again, which
 * docs/protocol.md allows for every call.
 *
 * @param start starts a process and waits until it is ready
 */
private[engine] final class Engine(index: Int, start: () => EngineProcess) {
  import Engine._

  // Guarded by this. Shared by all threads that wait for the same start.
  private[this] var current: CompletableFuture[EngineProcess] = _
  private[this] var stopped = false
  private[this] var starts = 0L

  /** Start the process unless one is running or starting. Does not wait. */
  def startInBackground(): Unit = {
    process()
    ()
  }

  /**
   * Send a request and return the reply.
   *
   * @param timeoutMs milliseconds to wait for the reply, after which the call is given up and the
   *        process lives on; None for as long as it goes on with the call: after the call timeout
   *        without a sign of life the process is killed
   * @param isRestarted whether a process that dies is replaced, else the call is given up
   * @throws EngineUnavailableException no process could be started, process after process died, or
   *         one that lives takes no new connection
   * @throws EngineFailedException the engine failed outside its own error handling
   * @throws java.lang.InterruptedException the task was killed while it waited for a start
   */
  def call(
      request: ObjectNode,
      timeoutMs: Option[Long] = None,
      isRestarted: Boolean = true): String = {
    var lost = 0
    var hung = 0
    var reply: String = null
    while (reply == null) {
      try {
        val engine = await(process())
        try reply = engine.call(request, timeoutMs)
        catch {
          case e: EngineHungException if timeoutMs.nonEmpty =>
            throw giveUp("engine did not answer in time", e)
          case e: EngineHungException =>
            log.warn(
              s"engine gives no sign of life and is killed: engine=$index pid=${engine.pid} " +
                s"op=${request.path("op").asText} timeout_ms=${e.timeoutMs}")
            engine.kill()
            hung += 1
            if (hung == MaxHung) throw giveUp(s"engine gave no sign of life $hung times", e, Slow)
          case e: EngineLostException =>
            engine.kill()
            throw e
          case e: NoConnectionException =>
            throw giveUp("engine takes no new connection", e, Limits)
        }
      } catch {
        case e @ (_: EngineLostException | _: EngineKilledAtStartException) =>
          lost += 1
          if (!isRestarted) throw giveUp("engine died", e)
          if (lost == MaxLost) throw giveUp(s"engine died $lost times in a row", e)
          log.warn(
            s"engine is lost and is started again: engine=$index losses=$lost error=${rootOf(e)}")
      }
    }
    reply
  }

  /** True while a process is up and has not been lost. */
  def isRunning: Boolean = synchronized {
    !stopped && current != null && current.isDone && !current.isCompletedExceptionally &&
    current.join().isUsable
  }

  /** Process ID, where a process is up. */
  def pid: Option[Long] = synchronized(Option.when(isRunning)(current.join().pid))

  /** How often a process was started anew, also where it did not come up. */
  def restarts: Long = synchronized(math.max(0L, starts - 1))

  private def giveUp(
      problem: String, cause: Throwable, orElse: String = ""): EngineUnavailableException =
    new EngineUnavailableException(
      s"$problem: engine=$index, error=${rootOf(cause)}. To fix: look at the engine's lines in " +
        s"the executor's log, and at the memory and processor time its machine has left$orElse",
      cause)

  private def rootOf(e: Throwable): Throwable =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).foldLeft(e)((_, cause) => cause)

  private def await(started: CompletableFuture[EngineProcess]): EngineProcess =
    try started.get()
    catch { case e: ExecutionException => throw e.getCause }

  /** The running process, or the start of a new one. */
  private def process(): CompletableFuture[EngineProcess] = synchronized {
    if (stopped) {
      throw new EngineUnavailableException(
        s"engine belongs to a Spark application that has ended: engine=$index. " +
          "To fix: start the query again in the new application")
    }
    if (current == null || current.isCompletedExceptionally ||
      (current.isDone && !current.join().isUsable)) {
      starts += 1
      current = beginStart()
    }
    current
  }

  private def beginStart(): CompletableFuture[EngineProcess] = {
    val started = new CompletableFuture[EngineProcess]()
    // Not on the caller's thread: a killed task must not take a start with it that others wait for.
    Background.thread(
      s"statestore-engine-$index-start",
      () =>
        try {
          val engine = start()
          if (!publish(started, engine)) engine.kill()
        } catch { case e: Throwable => started.completeExceptionally(e) }).start()
    started
  }

  private def publish(started: CompletableFuture[EngineProcess], engine: EngineProcess): Boolean =
    synchronized {
      if (stopped) {
        started.completeExceptionally(
          new EngineUnavailableException("engine was stopped while it started"))
        false
      } else started.complete(engine)
    }

  /** Refuse further calls and ask the process to end; the process, if one is running. */
  def beginStop(): Option[EngineProcess] = synchronized {
    stopped = true
    val running = Option(current).filter(f => f.isDone && !f.isCompletedExceptionally).map(_.join())
    running.foreach(_.beginStop())
    running
  }
}

private[engine] object Engine {
  private val log = LoggerFactory.getLogger(classOf[Engine])

  /** A call is given up when this many processes in a row died on it. */
  private val MaxLost = 5

  private val Slow = "; where storage or local disk need longer for a single step, raise " +
    "spark.sql.streaming.stateStore.engine.callTimeoutMs"

  private val Limits = "; where the error is of files or threads, raise their limits there " +
    "(ulimit -n, ulimit -u, pids of the container)"

  /** A call is given up when this many processes gave no sign of life. */
  private val MaxHung = 2
}
