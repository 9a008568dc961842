package io.statestore.engine

import java.io.{BufferedInputStream, BufferedReader, BufferedWriter, EOFException, IOException}
import java.io.{InputStreamReader, OutputStreamWriter}
import java.net.{ConnectException, InetAddress, InetSocketAddress, Socket, SocketTimeoutException}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentLinkedDeque

import scala.util.Try

import py4j.{Gateway, Protocol, Py4JPythonClient}

/** Neither a reply nor a sign of life within the call timeout. */
private[engine] final class EngineHungException(val timeoutMs: Long)
    extends RuntimeException(s"no sign of life within $timeoutMs ms")

/** The engine died or cannot be reached. */
private[engine] final class EngineLostException(cause: Throwable)
    extends RuntimeException(cause.getMessage, cause)

/** No new connection: this JVM or the engine may lack a file or a thread, or the engine died. */
private[engine] final class NoConnectionException(cause: IOException)
    extends RuntimeException(cause.getMessage, cause)

/**
 * Connections to one engine process, under py4j's protocol. Each concurrent call has a connection
 * of its own, reused by later calls of any thread: as many connections as calls at one time, and
 * threads that end leave none behind. py4j's own pooled client logs every command it sends.
 *
 * @param port the engine's port on 127.0.0.1
 * @param callTimeoutMs milliseconds of silence to bear, at least 1
 */
private[engine] final class EngineClient(port: Int, token: String, callTimeoutMs: Long)
    extends Py4JPythonClient {
  import EngineClient._

  private[this] val readTimeoutMs = math.min(callTimeoutMs, Int.MaxValue.toLong).toInt
  private[this] val idle = new ConcurrentLinkedDeque[Connection]()
  private[this] val patience = new ThreadLocal[Patience] {
    override def initialValue(): Patience = Patience(readTimeoutMs, () => 0L)
  }
  @volatile private[this] var closed = false

  /** Makes this thread's calls wait at most so many milliseconds for a reply, at least 1. */
  def within[T](timeoutMs: Long)(calls: => T): T =
    waiting(Patience(math.min(timeoutMs, readTimeoutMs.toLong).toInt, () => 0L))(calls)

  /**
   * Makes this thread's calls wait for a reply as long as they go on: they are given up when for
   * the call timeout there was no new step.
   *
   * @param steps asks another connection how far the call is; may fail
   */
  def whileGoingOn[T](steps: () => Long)(calls: => T): T =
    waiting(Patience(readTimeoutMs, steps))(calls)

  private def waiting[T](wanted: Patience)(calls: => T): T = {
    val before = patience.get
    patience.set(wanted)
    try calls
    finally patience.set(before)
  }

  override def sendCommand(command: String): String = sendCommand(command, blocking = true)

  /**
   * @throws EngineHungException neither a reply nor a sign of life came in time
   * @throws EngineLostException the connection failed, or nobody listens
   * @throws NoConnectionException there is none for the call, which was not sent
   */
  override def sendCommand(command: String, blocking: Boolean): String = {
    var connection = idle.pollLast()
    try {
      if (connection == null) connection = connect()
      val reply = connection.send(command, patience.get)
      idle.addLast(connection)
      if (closed) closeIdle()
      reply
    } catch {
      case e: IOException =>
        if (connection != null) connection.close()
        e match {
          case _: SocketTimeoutException => throw new EngineHungException(patience.get.timeoutMs)
          case _ => throw new EngineLostException(e)
        }
      case e: Throwable => // a connection with a reply on its way serves no other call
        if (connection != null) connection.close()
        throw e
    }
  }

  private def connect(): Connection =
    try new Connection(port, token, patience.get.timeoutMs)
    catch {
      case e @ (_: SocketTimeoutException | _: ConnectException) => throw e
      case e: IOException => throw new NoConnectionException(e)
    }

  /** Close the connections that are not in use; those in use fail with their process. */
  override def shutdown(): Unit = {
    closed = true
    closeIdle()
  }

  private def closeIdle(): Unit =
    Iterator.continually(idle.pollLast()).takeWhile(_ != null).foreach(_.close())

  override def getAddress: InetAddress = Address
  override def getPort: Int = port
  override def getReadTimeout: Int = readTimeoutMs
  override def isMemoryManagementEnabled: Boolean = false

  override def copyWith(address: InetAddress, port: Int): Py4JPythonClient =
    new EngineClient(port, token, callTimeoutMs)

  override def getPythonServerEntryPoint(gateway: Gateway, interfaces: Array[Class[_]]): AnyRef =
    // The interface's own class loader: the context loader of a task need not see it.
    gateway.createProxy(interfaces.head.getClassLoader, interfaces, Protocol.ENTRY_POINT_OBJECT_ID)
}

private object EngineClient {
  private val Address = InetAddress.getByName("127.0.0.1")

  /** How long a call may be silent, and how far it is. */
  private final case class Patience(timeoutMs: Int, steps: () => Long)

  /** Made within the timeout of the call that needs it. */
  private final class Connection(port: Int, token: String, timeoutMs: Int) {
    private[this] val socket = new Socket()
    private[this] val (input, reader, writer) =
      try open()
      catch {
        case e: IOException =>
          close()
          throw e
      }

    private def open(): (BufferedInputStream, BufferedReader, BufferedWriter) = {
      // Otherwise a message above 8 kB waits 40 ms for a delayed acknowledgement.
      socket.setTcpNoDelay(true)
      socket.connect(new InetSocketAddress(Address, port), timeoutMs)
      socket.setSoTimeout(timeoutMs)
      val input = new BufferedInputStream(socket.getInputStream)
      val reader = new BufferedReader(new InputStreamReader(input, UTF_8))
      val writer = new BufferedWriter(new OutputStreamWriter(socket.getOutputStream, UTF_8))
      writer.write(Protocol.getAuthCommand(token))
      writer.flush()
      reader.readLine() match {
        case null => throw new EOFException("engine closed the connection")
        case answer if answer != Protocol.getOutputVoidCommand.trim =>
          throw new IOException("engine refused the authentication token")
        case _ => (input, reader, writer)
      }
    }

    def send(command: String, patience: Patience): String = {
      writer.write(command)
      writer.flush()
      await(patience)
      val reply = readLine(patience.timeoutMs)
      if (reply == null) throw new EOFException("engine closed the connection")
      if (Protocol.isReturnMessage(reply)) reply.substring(1) else reply
    }

    /** Wait until a reply begins; its bytes stay to be read. */
    private def await(patience: Patience): Unit = {
      val halfMs = math.max(1, patience.timeoutMs / 2)
      var steps = 0L
      var silentSince = System.nanoTime()
      while (!begins(halfMs)) {
        val asked = System.nanoTime()
        val now = Try(patience.steps()).getOrElse(steps)
        if (now != steps) {
          steps = now
          silentSince = asked
        } else if (System.nanoTime() - silentSince >= patience.timeoutMs * 1000000L) {
          throw new EngineHungException(patience.timeoutMs)
        }
      }
    }

    private def begins(timeoutMs: Int): Boolean = {
      socket.setSoTimeout(timeoutMs)
      input.mark(1)
      try {
        if (input.read() >= 0) input.reset()
        true
      } catch { case _: SocketTimeoutException => false }
    }

    private def readLine(timeoutMs: Int): String = {
      socket.setSoTimeout(timeoutMs)
      reader.readLine()
    }

    def close(): Unit =
      try socket.close()
      catch { case _: IOException => () }
  }
}
