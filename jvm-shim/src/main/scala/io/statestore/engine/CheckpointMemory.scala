package io.statestore.engine

import java.nio.charset.StandardCharsets.UTF_8

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{EngineUnavailableException, Json}
import org.slf4j.LoggerFactory

import org.apache.spark.{SparkEnv, SparkException}
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * The heap backend's checkpoint storage: a Python process of the driver's that holds files in its
 * memory, started when the first store asks where it is, ended with the Spark application. An
 * executor asks the driver over Spark's RPC, once, and calls the process directly.
 */
object CheckpointMemory {
  private val log = LoggerFactory.getLogger(getClass.getName.stripSuffix("$"))
  private val EndpointName = "statestore-checkpoint-memory"
  private val ProcessName = "checkpoint-memory"
  private val Module = "statestore.engine.checkpoint_memory"
  private val Loopback = "127.0.0.1"
  private val NoCallTimeoutMs = Long.MaxValue

  // All guarded by this.
  private[this] var application: SparkEnv = _
  private[this] var running: Option[Running] = None // on the driver
  private[this] var known: Option[ObjectNode] = None // on an executor

  private final class Running(val process: EngineProcess, scratch: ScratchDirectory) {
    def end(): Unit = {
      process.beginStop()
      process.kill()
      scratch.remove()
    }
  }

  /** On the driver, lets executors ask from now on. Elsewhere nothing. Starts nothing. */
  def offer(): Unit = {
    val env = SparkEnv.get
    if (env != null && StateStoreInternals.isDriver(env)) enter(env)
  }

  /**
   * Where the memory is: `host`, `port` and `token`. Do not log it.
   *
   * @param enginePackage the package it runs if it is not running yet, as engines take it
   * @throws EngineUnavailableException the application has ended, its driver holds no memory, or
   *         the process cannot be started
   */
  def address(enginePackage: String): ObjectNode = {
    val env = SparkEnv.get
    if (env == null) {
      throw new EngineUnavailableException(
        "the driver's memory cannot be reached: the Spark application has ended. " +
          "To fix: start the query again in a running application")
    }
    enter(env)
    if (StateStoreInternals.isDriver(env)) own(env, enginePackage) else asked(env, enginePackage)
  }

  /** On an executor: asks anew at the next call. */
  def forget(): Unit = synchronized { known = None }

  /** Begins with a Spark application unless it is the one known. */
  private def enter(env: SparkEnv): Unit = synchronized {
    if (application ne env) {
      end()
      application = env
      if (StateStoreInternals.isDriver(env)) {
        StateStoreInternals.answerQuestions(env, EndpointName) { enginePackage =>
          Json.write(own(env, enginePackage)).getBytes(UTF_8)
        }
        StateStoreInternals.onApplicationEnd(() => synchronized(if (application eq env) end()))
      }
    }
  }

  private def end(): Unit = {
    running.foreach(_.end())
    running = None
    known = None
  }

  private def asked(env: SparkEnv, enginePackage: String): ObjectNode = synchronized {
    if (known.isEmpty) {
      val answer =
        try StateStoreInternals.askDriver(env, EndpointName, enginePackage)
        catch {
          case e: SparkException =>
            throw new EngineUnavailableException(
              s"the driver's memory cannot be reached: error=${e.getMessage}. " +
                "To fix: look at the driver's log; it starts a Python process for the memory",
              e)
        }
      known = answer.map(bytes => Json.readObject(new String(bytes, UTF_8)))
    }
    known.getOrElse(throw new EngineUnavailableException(
      "[driver-lost] this application's driver holds no state of the heap backend: no query of " +
        "its was started here. To fix: read the state in the application whose query made it, or " +
        "use the filesystem or rocksdb backend for state that must outlive its driver"))
  }

  /** The driver's own process, started unless it is running. */
  private def own(env: SparkEnv, enginePackage: String): ObjectNode = synchronized {
    if (application ne env) {
      throw new EngineUnavailableException("the Spark application has ended")
    }
    if (!running.exists(_.process.isUsable)) {
      running.foreach { lost =>
        log.warn(
          "the checkpoints of the heap backend are lost, their process is gone: " +
            s"pid=${lost.process.pid}")
        lost.end()
      }
      running = Some(start(env, enginePackage))
    }
    val process = running.get.process
    Json.obj().put("host", reachableHost(env)).put("port", process.port).put("token", process.token)
  }

  private def start(env: SparkEnv, enginePackage: String): Running = {
    val scratch = ScratchDirectory.create(StateStoreInternals.localDirectories(env.conf))
    try {
      val launch = EngineLaunch.prepare(enginePackage, scratch.path)
        .copy(arguments = Seq("-m", Module, listeningHost(env)))
      new Running(
        EngineProcess.start(ProcessName, launch, scratch.path, NoCallTimeoutMs), scratch)
    } catch {
      case e: Throwable =>
        scratch.remove()
        throw e
    }
  }

  private def reachableHost(env: SparkEnv): String =
    if (StateStoreInternals.isLocal(env)) Loopback else env.conf.get("spark.driver.host")

  private def listeningHost(env: SparkEnv): String =
    if (StateStoreInternals.isLocal(env)) Loopback
    else env.conf.get("spark.driver.bindAddress", reachableHost(env))
}
