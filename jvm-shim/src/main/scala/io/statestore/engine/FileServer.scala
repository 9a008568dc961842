package io.statestore.engine

import java.io.{BufferedReader, BufferedWriter, IOException, InputStreamReader, OutputStreamWriter}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.concurrent.ConcurrentHashMap

import io.statestore.Json
import org.apache.hadoop.conf.Configuration
import org.slf4j.LoggerFactory

/**
 * Serves engines, or an operation, files of Hadoop's file systems, on a loopback port: one JSON
 * object a line each way, after a line with the token. It offers nothing but `HadoopFiles`.
 */
private[engine] final class FileServer {
  import FileServer._

  val token: String = EngineProcess.newToken()

  private[this] val files = new HadoopFiles
  private[this] val server = new ServerSocket(0, Backlog, InetAddress.getByName("127.0.0.1"))
  private[this] val connections = ConcurrentHashMap.newKeySet[Socket]()

  start("statestore-files") {
    while (!server.isClosed) {
      // Without a listener engines would wait for ever: out of file descriptors, it tries again.
      try accept()
      catch {
        case e: Throwable if !server.isClosed =>
          log.warn("a connection of an engine cannot be accepted, it is tried again", e)
          Thread.sleep(PauseMs)
      }
    }
  }

  def port: Int = server.getLocalPort

  /** Use the Hadoop configuration of the query that has this checkpoint. */
  def register(checkpoint: String, configuration: Configuration): Unit =
    files.register(checkpoint, configuration)

  /** End all connections. Requests under way may still take effect. */
  def close(): Unit = {
    server.close()
    connections.forEach(_.close())
  }

  private def accept(): Unit = {
    val connection = server.accept()
    connections.add(connection)
    try start("statestore-files-connection")(serve(connection))
    catch {
      case e: Throwable =>
        end(connection)
        throw e
    }
  }

  private def serve(connection: Socket): Unit =
    try {
      connection.setTcpNoDelay(true)
      val reader = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
      val writer = new BufferedWriter(new OutputStreamWriter(connection.getOutputStream, UTF_8))
      if (isToken(reader.readLine())) {
        Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach { line =>
          writer.write(Json.write(files.answer(Json.readObject(line))))
          writer.write('\n')
          writer.flush()
        }
      } else log.warn("a connection without the token was refused")
    } finally end(connection)

  private def end(connection: Socket): Unit = {
    connections.remove(connection)
    connection.close()
  }

  private def isToken(line: String): Boolean =
    line != null && MessageDigest.isEqual(line.getBytes(UTF_8), token.getBytes(UTF_8))

  private def start(name: String)(body: => Unit): Unit = {
    val run: Runnable = () =>
      try body
      catch {
        // The other side is gone, or this one was closed.
        case e: IOException => log.debug("connection ended", e)
        // Not for the executor to end by.
        case e: Throwable => log.error(s"thread ended: name=$name", e)
      }
    val thread = new Thread(run, name)
    thread.setDaemon(true)
    thread.start()
  }
}

private object FileServer {
  private val log = LoggerFactory.getLogger(classOf[FileServer])
  private val Backlog = 128
  private val PauseMs = 200L
}
