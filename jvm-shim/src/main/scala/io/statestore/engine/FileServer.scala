package io.statestore.engine

import java.io.{BufferedReader, BufferedWriter, IOException, InputStreamReader, OutputStreamWriter}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.concurrent.atomic.AtomicBoolean

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{Background, Json}
import org.slf4j.LoggerFactory

/**
 * Serves engines, or an operation, files of Hadoop's file systems, on a loopback port: one JSON
 * object a line each way, after a line with the token. It offers nothing but `HadoopFiles`, and
 * listens once somebody asks where.
 *
 * Every user of the machine can connect. Who has not shown the token yet, the strangers, costs a
 * bounded number of threads, and no memory; whoever has is an engine.
 */
private[engine] final class FileServer {
  import FileServer._

  val token: String = EngineProcess.newToken()

  val files = new HadoopFiles

  // Guarded by this; strangers in the order they came in.
  private[this] var server: ServerSocket = _
  private[this] val strangers = mutable.LinkedHashMap.empty[Socket, Long] // when, nanoseconds
  private[this] val known = mutable.HashSet.empty[Socket]

  private[this] val hasWarned = new AtomicBoolean

  def port: Int = synchronized {
    if (server == null) {
      val listening = new ServerSocket(0, Backlog, InetAddress.getByName("127.0.0.1"))
      start("statestore-files")(acceptFrom(listening))
      server = listening
    }
    server.getLocalPort
  }

  /** Where it listens, as an engine or an operation is told. */
  def address: ObjectNode = Json.obj().put("port", port).put("token", token)

  /** End all connections. Requests under way may still take effect. */
  def close(): Unit = synchronized {
    if (server != null) server.close()
    (strangers.keySet ++ known).foreach(_.close())
  }

  private def acceptFrom(listening: ServerSocket): Unit =
    while (!listening.isClosed) {
      // Without a listener engines would wait for ever: out of file descriptors, it tries again.
      try {
        val connection = listening.accept()
        admit(connection)
        try start("statestore-stranger")(serve(connection))
        catch {
          case e: Throwable =>
            end(connection)
            throw e
        }
      } catch {
        case e: Throwable if !listening.isClosed =>
          log.warn("a connection of an engine cannot be accepted, it is tried again", e)
          Thread.sleep(PauseMs)
      }
    }

  /**
   * The stranger that came in first makes room, as soon as an engine would have shown the token.
   * Until then the next one waits: threads of an engine may come all at once.
   */
  private def admit(connection: Socket): Unit = synchronized {
    while (strangers.size >= MostStrangers) {
      val (first, since) = strangers.head
      val leftMs = StrangeForMs - (System.nanoTime() - since) / 1000000L
      if (leftMs <= 0L) end(first) else wait(leftMs)
    }
    strangers += connection -> System.nanoTime()
  }

  private def serve(connection: Socket): Unit =
    try {
      if (showsToken(connection)) {
        synchronized {
          if (strangers.remove(connection).nonEmpty) known += connection
          notifyAll()
        }
        Thread.currentThread.setName("statestore-connection")
        connection.setTcpNoDelay(true)
        val reader = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
        val writer = new BufferedWriter(new OutputStreamWriter(connection.getOutputStream, UTF_8))
        Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach { line =>
          writer.write(Json.write(files.answer(Json.readObject(line))))
          writer.write('\n')
          writer.flush()
        }
      } else if (!hasWarned.getAndSet(true)) {
        log.warn("a connection without the token was refused; later ones are, without a word")
      }
    } finally end(connection)

  private def end(connection: Socket): Unit = synchronized {
    strangers -= connection
    known -= connection
    notifyAll()
    connection.close()
  }

  /** Reads as many bytes as the token's line has, and waits no longer than an engine needs. */
  private def showsToken(connection: Socket): Boolean = {
    val wanted = s"$token\n".getBytes(UTF_8)
    val deadlineNanos = System.nanoTime() + TokenTimeoutMs * 1000000L
    def read(found: Array[Byte]): Boolean = {
      val leftMs = (deadlineNanos - System.nanoTime()) / 1000000L
      if (found.length == wanted.length) {
        MessageDigest.isEqual(found, wanted)
      } else if (leftMs <= 0L) {
        false
      } else {
        connection.setSoTimeout(leftMs.toInt)
        val next = connection.getInputStream.readNBytes(1)
        next.nonEmpty && read(found ++ next)
      }
    }
    val isShown = read(Array.emptyByteArray)
    connection.setSoTimeout(0)
    isShown
  }

  private def start(name: String)(body: => Unit): Unit = {
    val run: Runnable = () =>
      try body
      catch {
        // The other side is gone, or this one was closed.
        case e: IOException => log.debug("connection ended", e)
        // Not for the executor to end by.
        case e: Throwable => log.error(s"thread ended: name=$name", e)
      }
    Background.thread(name, run).start()
  }
}

private object FileServer {
  private val log = LoggerFactory.getLogger(classOf[FileServer])
  private val Backlog = 128
  private val PauseMs = 200L
  private val MostStrangers = 32
  private val StrangeForMs = 500L
  private val TokenTimeoutMs = 5000L
}
