package io.statestore.engine

import java.io.IOException
import java.nio.file.{Files, Path}

import scala.collection.mutable

import io.statestore.{Background, EngineUnavailableException, ShimOptions}

import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * All engine processes of this JVM, an executor's or a driver's. They end with the Spark
 * application they were started for, even where the JVM goes on with another one.
 */
object Engines {
  private val MostByDefault = 4
  private val RssLine = "VmRSS:\\s*(\\d+) kB".r

  // All guarded by this.
  private[this] val pools = mutable.HashMap.empty[EngineSettings, EnginePool]
  private[this] var application: SparkEnv = _
  private[this] var hasEnded = false
  private[this] var hasHook = false

  /**
   * The pool of this JVM for the given options; its processes start at their first call.
   *
   * @throws io.statestore.EngineUnavailableException the Spark application has ended
   */
  def forOptions(options: ShimOptions): EnginePool = synchronized {
    val running = SparkEnv.get
    if (running ne application) {
      closeAll()
      application = running
      hasEnded = running == null
      StateStoreInternals.onApplicationEnd(() => applicationEnded(running))
    }
    if (hasEnded) {
      throw new EngineUnavailableException(
        "no engine can be started: the Spark application has ended. " +
          "To fix: start the query again in a running application")
    }
    if (!hasHook) {
      Runtime.getRuntime.addShutdownHook(
        Background.thread("statestore-engines-stop", () => closeAll()))
      hasHook = true
    }
    pools.getOrElseUpdate(settings(options), new EnginePool(settings(options)))
  }

  /** Calls made in this JVM by their op, for tests and metrics. */
  def callCounts: Map[String, Long] = synchronized {
    pools.values.flatMap(_.callCounts).groupMapReduce(_._1)(_._2)(_ + _)
  }

  /** Engines of this JVM that are up. */
  def running: Int = synchronized(pools.values.map(_.pids.size).sum)

  /** How often one of them was started anew, also where it did not come up. */
  def restarts: Long = synchronized(pools.values.map(_.restarts).sum)

  /** Resident memory of those that are up, bytes; 0 where the system does not tell. */
  def rssBytes: Long = synchronized(pools.values.flatMap(_.pids).toSeq).map(residentBytes).sum

  private def residentBytes(pid: Long): Long =
    try RssLine.findFirstMatchIn(Files.readString(Path.of(s"/proc/$pid/status")))
      .fold(0L)(_.group(1).toLong * 1024)
    catch { case _: IOException => 0L }

  private def settings(options: ShimOptions): EngineSettings = {
    val byCores = math.max(1, math.min(MostByDefault, cores / 2))
    val asked = if (options.engineProcesses > 0) options.engineProcesses else byCores
    val env = SparkEnv.get
    // The driver of a cluster opens no store: its engine holds the leases of all queries.
    val onlyLeases =
      env != null && StateStoreInternals.isDriver(env) && !StateStoreInternals.isLocal(env)
    val processes = if (onlyLeases) 1 else asked
    EngineSettings(processes, options.engineCallTimeoutMs, options.enginePackage)
  }

  /** Of the executor. A container without a limit of its own shows all of its machine. */
  private def cores: Int = {
    val machine = Runtime.getRuntime.availableProcessors()
    val asked = Option(SparkEnv.get).filterNot(StateStoreInternals.isDriver)
      .flatMap(_.conf.getOption("spark.executor.cores"))
    asked.fold(machine)(number => math.min(number.toInt, machine))
  }

  private def closeAll(): Unit = synchronized {
    pools.values.foreach(_.close())
    pools.clear()
  }

  private def applicationEnded(ended: SparkEnv): Unit = synchronized {
    if (application eq ended) {
      hasEnded = true
      closeAll()
    }
  }
}
