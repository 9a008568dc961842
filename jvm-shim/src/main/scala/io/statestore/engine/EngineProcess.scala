package io.statestore.engine

import java.io.{BufferedReader, File, IOException, InputStream, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.SecureRandom
import java.util.HexFormat
import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{Background, EngineUnavailableException, Json, Resources}
import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.slf4j.LoggerFactory
import py4j.{Gateway, Py4JException}

/**
 * One running engine process and the connections to it, which are made by the first call.
 *
 * @param port where it listens
 * @param token what it must be shown
 */
private[engine] final class EngineProcess private (
    name: String,
    process: Process,
    val pid: Long,
    val port: Int,
    val token: String,
    client: EngineClient,
    callTimeoutMs: Long) {
  import EngineProcess.log

  private[this] val api = client
    .getPythonServerEntryPoint(new Gateway(null, client), Array(classOf[EngineApi]))
    .asInstanceOf[EngineApi]

  @volatile private[this] var discarded = false

  process.onExit().thenAccept { ended =>
    if (!discarded) {
      log.warn(s"engine ended by itself: engine=$name pid=$pid exit_code=${ended.exitValue()}")
    }
  }

  def isUsable: Boolean = !discarded && process.isAlive

  private[this] val numbers = new AtomicLong()

  /**
   * Call the engine and wait for as long as it goes on with the call, or so many milliseconds.
   *
   * @throws EngineHungException neither a reply nor a sign of life came in time
   * @throws EngineLostException the engine died or cannot be reached
   * @throws NoConnectionException the engine is alive, and takes this call on no new connection
   * @throws EngineFailedException the engine is alive but failed outside its own error handling
   */
  def call(request: ObjectNode, timeoutMs: Option[Long]): String = {
    val number = numbers.incrementAndGet()
    val text = Json.write(request.put("call", number))
    try timeoutMs match {
      case Some(limit) => client.within(limit)(api.call(text))
      case None => client.whileGoingOn(() => stepsOf(number))(api.call(text))
    } catch {
      case e: Py4JException => throw new EngineFailedException(e)
      case e: NoConnectionException if endsSoon => throw new EngineLostException(e)
    }
  }

  /** Whether the process is at its end, of which its connections tell first. */
  private def endsSoon: Boolean = process.waitFor(1L, TimeUnit.SECONDS)

  /** Steps that a call has done: the process answers this on another thread. */
  private def stepsOf(number: Long): Long = {
    val question = Json.write(Json.obj().put("op", "progress").put("of", number))
    val reply = client.within(callTimeoutMs / 2)(api.call(question))
    Json.readObject(reply).path("ok").path("steps").asLong
  }

  /** End the process at once. Its running calls fail. */
  def kill(): Unit = {
    discarded = true
    process.destroyForcibly()
    client.shutdown()
  }

  /** Ask the process to end: its stdin reaches end of file. */
  def beginStop(): Unit = {
    discarded = true
    EngineProcess.closeStdin(process)
  }

  /** Wait for an asked process until `deadlineNanos` (System.nanoTime), then end it. */
  def finishStop(deadlineNanos: Long): Unit = {
    try process.waitFor(deadlineNanos - System.nanoTime(), TimeUnit.NANOSECONDS)
    catch { case _: InterruptedException => Thread.currentThread().interrupt() }
    kill()
  }
}

/** The engine raised an exception that is no error reply. */
private[engine] final class EngineFailedException(cause: Throwable) extends RuntimeException(cause)

/** A process that was killed before it was ready: starting another one may succeed. */
private[engine] final class EngineKilledAtStartException(message: String)
    extends RuntimeException(message)

private[engine] object EngineProcess {
  private val log = LoggerFactory.getLogger(classOf[EngineProcess])

  private val ProtocolVersion = 1
  private val StartTimeoutSeconds = 60L
  private val StderrLinesKept = 20
  private val FirstSignalExitCode = 128

  /**
   * Start a process and wait until it is ready.
   *
   * @param name the engine's among those that share `scratch`, also for logs and threads
   * @param scratch directory that the engine may use and removes when its JVM is gone
   * @param callTimeoutMs milliseconds a call may be silent, at least 1
   * @throws EngineUnavailableException it cannot be started, or is of another version; says why
   * @throws EngineKilledAtStartException a signal ended it before it was ready
   */
  def start(
      name: String,
      launch: EngineLaunch,
      scratch: File,
      callTimeoutMs: Long): EngineProcess = {
    val startNanos = System.nanoTime()
    val process =
      try launch.processBuilder().start()
      catch {
        case e: IOException =>
          throw new EngineUnavailableException(
            s"engine cannot be started: ${describe(launch)}, error=${e.getMessage}. " +
              s"To fix: ${launch.fixOf(e.getMessage)}",
            e)
      }
    var started = false
    try {
      val stderr = new LineTail(StderrLinesKept)
      val stderrThread =
        readLines(s"statestore-engine-$name-stderr", process.getErrorStream) { line =>
          stderr.add(line)
          logLine(name, line)
        }
      val answer = new CompletableFuture[String]()
      val stdoutThread =
        readLines(s"statestore-engine-$name-stdout", process.getInputStream) { line =>
          val isAnswer = line.startsWith("READY ") || line.startsWith("FAILED ")
          if (!isAnswer || !answer.complete(line)) logLine(name, line)
        }
      process.onExit().thenAccept { ended =>
        // Its last output, a refusal above all, comes before the news of its end.
        Seq(stdoutThread, stderrThread).foreach(_.join(1000L))
        answer.completeExceptionally(new ProcessEnded(ended.exitValue()))
        ()
      }
      val token = newToken()
      val ready = handshake(name, process, token, scratch, answer, launch, stderr)
      val port = ready.get("port").asInt
      val client = new EngineClient(port, token, callTimeoutMs)
      val pid = ready.path("pid").asLong(process.pid())
      val engine = new EngineProcess(name, process, pid, port, token, client, callTimeoutMs)
      log.info(
        s"engine started: engine=$name pid=$pid version=${ready.path("version").asText} " +
          s"python=${ready.path("python").asText} pyarrow=${ready.path("pyarrow").asText} " +
          s"start_ms=${(System.nanoTime() - startNanos) / 1000000L}")
      started = true
      engine
    } finally if (!started) process.destroyForcibly()
  }

  private def handshake(
      name: String,
      process: Process,
      token: String,
      scratch: File,
      answer: CompletableFuture[String],
      launch: EngineLaunch,
      stderr: LineTail): ObjectNode = {
    def refuse(problem: String, cause: Throwable = null, fix: String = launch.fix): Nothing =
      throw new EngineUnavailableException(
        s"$problem: ${describe(launch)}, stderr=[${stderr.text}]. To fix: $fix", cause)

    val hello = Json.obj().put("version", Resources.version).put("protocol", ProtocolVersion)
      .put("scratch", scratch.getPath).put("engine", name)
      .put("application", StateStoreInternals.sparkConf.get("spark.app.id", ""))
      .put("executor", Option(SparkEnv.get).fold("")(_.executorId))
    val beside = hello.putArray("beside")
    StateStoreInternals.localDirectories(StateStoreInternals.sparkConf).foreach(beside.add)
    try {
      process.getOutputStream.write(s"$token\n${Json.write(hello)}\n".getBytes(UTF_8))
      process.getOutputStream.flush()
    } catch {
      // It ended already; how it ended follows below.
      case _: IOException => ()
    }
    val line =
      try answer.get(StartTimeoutSeconds, TimeUnit.SECONDS)
      catch {
        case e: TimeoutException =>
          refuse(
            s"engine was not ready within $StartTimeoutSeconds s", e,
            "start the query again; where that does not help, give executors a Python on a " +
              "local disk, and start fewer of them on one machine")
        case e: ExecutionException => e.getCause match {
          case ended: ProcessEnded if ended.exitCode >= FirstSignalExitCode =>
            throw new EngineKilledAtStartException(
              s"engine was killed while it started: ${describe(launch)}, " +
                s"exit_code=${ended.exitCode}, stderr=[${stderr.text}]")
          case ended: ProcessEnded =>
            refuse(s"engine ended before it was ready (exit code ${ended.exitCode})")
          case other => refuse("engine cannot be started", other)
        }
      }
    val reply =
      try Json.readObject(line.substring(line.indexOf(' ') + 1))
      catch {
        case e: IllegalArgumentException =>
          refuse(s"engine answered in an unknown form ($line)", e)
      }
    if (line.startsWith("FAILED ")) {
      // The engine's message ends with what to do.
      throw new EngineUnavailableException(
        s"engine refused to start: ${describe(launch)}, class=${reply.path("class").asText}: " +
          reply.path("message").asText)
    }
    val version = reply.path("version").asText
    val protocol = reply.path("protocol").asInt
    if (version != Resources.version || protocol != ProtocolVersion) {
      refuse(
        s"jar and Python package differ in version: jar_version=${Resources.version}, " +
          s"jar_protocol=$ProtocolVersion, package_version=$version, package_protocol=$protocol",
        fix = versionFix)
    }
    reply
  }

  private def versionFix: String =
    "leave out spark.sql.streaming.stateStore.engine.package to run the copy embedded in the " +
      s"jar, or install version ${Resources.version} of the package on every executor"

  private def describe(launch: EngineLaunch): String =
    s"command=${launch.command.mkString(" ")}, python_from=${launch.pythonFrom}"

  private def closeStdin(process: Process): Unit =
    try process.getOutputStream.close()
    catch { case _: IOException => () }

  def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    HexFormat.of().formatHex(bytes)
  }

  private def logLine(name: String, line: String): Unit =
    if (line.startsWith("WARNING") || line.startsWith("ERROR") || line.startsWith("CRITICAL")) {
      log.warn(s"engine=$name $line")
    } else {
      log.info(s"engine=$name $line")
    }

  private def readLines(name: String, in: InputStream)(handle: String => Unit): Thread = {
    val thread = Background.thread(
      name,
      () => {
        val reader = new BufferedReader(new InputStreamReader(in, UTF_8))
        try Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(handle)
        // The process is gone and its pipe with it.
        catch { case _: IOException => () }
      })
    thread.start()
    thread
  }

  private final class ProcessEnded(val exitCode: Int)
      extends RuntimeException(s"exit code $exitCode")

  /** The last lines of a stream. */
  private final class LineTail(limit: Int) {
    private[this] val lines = mutable.Queue.empty[String]

    def add(line: String): Unit = synchronized {
      lines.enqueue(line)
      if (lines.size > limit) lines.dequeue()
    }

    def text: String = synchronized(lines.mkString(" | "))
  }
}
