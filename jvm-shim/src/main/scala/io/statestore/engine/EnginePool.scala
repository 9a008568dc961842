package io.statestore.engine

import java.io.File
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}
import java.util.concurrent.atomic.LongAdder

import scala.annotation.tailrec
import scala.jdk.CollectionConverters._
import scala.util.{Failure, Random, Try}

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{EngineUnavailableException, Json, ShimErrors}

import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * The engines of one JVM for one set of engine options. A store keeps to one engine, chosen by the
 * hash of its directory, so that an engine is the only one that has a store open.
 */
final class EnginePool private[engine] (settings: EngineSettings) {
  // Of several local disks any one, as Spark does.
  private[this] val scratch = ScratchDirectory.create(
    Random.shuffle(StateStoreInternals.localDirectories(StateStoreInternals.sparkConf)))

  /** Laid out anew for each start: the machine may have cleaned its temporary files since. */
  private[this] def launch = {
    scratch.requirePresent()
    EngineLaunch.prepare(settings.enginePackage, scratch.path)
  }

  private[this] val server = new FileServer

  /** What engines may open, with which Hadoop configurations. */
  val files: HadoopFiles = server.files

  private[this] val engines = Array.tabulate(settings.processes)(index =>
    new Engine(
      index,
      () =>
        EngineProcess.start(index.toString, launch, scratch.path, settings.callTimeoutMs)))

  private[this] val counts = new ConcurrentHashMap[String, LongAdder]()

  /** A path in the scratch directory that no other file has; the file does not exist. */
  def scratchFile(prefix: String): File = scratch.newFile(prefix)

  /** Remove a scratch file, or a directory with all that is in it. Never raises. */
  def removeScratch(file: File): Unit = ScratchDirectory.deleteTree(file.toPath)

  /** Begin to start the engines, so that the first call need not wait for it. Does not wait. */
  def startInBackground(): Unit = engines.foreach(_.startInBackground())

  /**
   * Call the engine of a store. An engine that died meanwhile is started again and called again.
   *
   * @param storeKey the store's directory
   * @param request a call of docs/protocol.md, `op` included
   * @return the reply's `ok` object
   * @throws java.lang.IllegalArgumentException an option or argument is out of range
   * @throws io.statestore.EngineReportedException the engine reported another failure
   * @throws io.statestore.EngineUnavailableException no engine could be started, kept or called
   * @throws java.lang.InterruptedException the task was killed while an engine was starting
   */
  def call(storeKey: String, request: ObjectNode): ObjectNode =
    replyOf(storeKey, request)(engineOf(storeKey).call(_))

  /**
   * Call the engine of a store or, where it does not answer in time, any other that does: for what
   * every engine can do. No engine is taken for hung because of it, and the start of the first one
   * is not waited for while another engine is up.
   *
   * @param timeoutMs milliseconds to wait for the answer of each
   * @param isUrgent whether the only engine of a pool is called as by `call`: nothing else may
   *        notice that it hangs
   * @throws io.statestore.EngineUnavailableException none answered; otherwise as `call`
   */
  def callAny(
      storeKey: String,
      request: ObjectNode,
      timeoutMs: Long,
      isUrgent: Boolean): ObjectNode =
    if (isUrgent && engines.length == 1) call(storeKey, request)
    else replyOf(storeKey, request) { asked =>
      val first = engineOf(storeKey)
      val running = (first +: engines.toSeq.filterNot(_ eq first)).filter(_.isRunning)
      @tailrec
      def ask(engine: Engine, others: Seq[Engine]): String =
        if (others.isEmpty) {
          engine.call(asked, Some(timeoutMs))
        } else {
          Try(engine.call(asked, Some(timeoutMs), isRestarted = false)) match {
            case Failure(_: EngineUnavailableException) => ask(others.head, others.tail)
            case answer => answer.get
          }
        }
      val isUp = running.contains(first)
      if (!isUp) first.startInBackground()
      val order = if (isUp) running else running :+ first
      ask(order.head, order.tail)
    }

  private def replyOf(storeKey: String, request: ObjectNode)(
      ask: ObjectNode => String): ObjectNode = {
    val op = request.path("op").asText
    counts.computeIfAbsent(op, _ => new LongAdder()).increment()
    var reply = answer(ask, request)
    if (reply.path("error").path("kind").asText == "files-not-offered") {
      // The first call of this engine that needs a file system of Hadoop's.
      request.set[ObjectNode]("files", server.address)
      reply = answer(ask, request)
    }
    (reply.get("ok"), reply.get("error")) match {
      case (ok: ObjectNode, _) => ok
      case (_, error: ObjectNode) => throw ShimErrors.fromEngine(error, op, storeKey)
      case _ =>
        val error = internalError("reply has neither ok nor error").get("error")
        throw ShimErrors.fromEngine(error.asInstanceOf[ObjectNode], op, storeKey)
    }
  }

  private def answer(ask: ObjectNode => String, request: ObjectNode): ObjectNode =
    try Json.readObject(ask(request))
    catch {
      case e: EngineFailedException => internalError(e.getCause.getMessage)
      case e: IllegalArgumentException => internalError(e.getMessage)
    }

  /** Call the engine of a store unless none is running: for what a lost engine need not be told. */
  def callIfRunning(storeKey: String, request: ObjectNode): Unit =
    if (engineOf(storeKey).isRunning) {
      call(storeKey, request)
      ()
    }

  /** Call every engine that is running, for what each does of its own; their answers count not. */
  def callRunning(storeKey: String, request: ObjectNode): Unit =
    engines.filter(_.isRunning).foreach { engine =>
      Try(replyOf(storeKey, request)(engine.call(_)))
    }

  private def engineOf(storeKey: String): Engine =
    engines(Math.floorMod(storeKey.hashCode, engines.length))

  private def internalError(message: String): ObjectNode = {
    val reply = Json.obj()
    reply.putObject("error")
      .put("class", "InternalError").put("kind", "internal").put("message", message)
    reply
  }

  /** Number of calls made by their op. A call that was repeated counts once. */
  def callCounts: Map[String, Long] = counts.asScala.view.mapValues(_.sum).toMap

  /** Process IDs of the engines that are up. */
  def pids: Seq[Long] = engines.toSeq.flatMap(_.pid)

  /** How often an engine was started anew, also where it did not come up. */
  def restarts: Long = engines.iterator.map(_.restarts).sum

  /** End the engines and remove the scratch directory. Further calls are refused. */
  private[engine] def close(): Unit = {
    val deadlineNanos = System.nanoTime() + TimeUnit.SECONDS.toNanos(EnginePool.StopTimeoutSeconds)
    val stopping = engines.flatMap(_.beginStop())
    stopping.foreach(_.finishStop(deadlineNanos))
    server.close()
    scratch.remove()
  }
}

private object EnginePool {

  /** How long engines have to end by themselves; a commit cannot be running any more. */
  private val StopTimeoutSeconds = 2L
}

/** The options that pools differ by. */
private[engine] final case class EngineSettings(
    processes: Int,
    callTimeoutMs: Long,
    enginePackage: String)
