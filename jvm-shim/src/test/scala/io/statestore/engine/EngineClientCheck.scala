package io.statestore.engine

import java.io.{BufferedReader, InputStreamReader}
import java.net.{InetAddress, ServerSocket}

import scala.util.{Failure, Success, Try}

import py4j.Protocol

/**
 * Makes a call that fails, and not for its connection. Prints what is raised, and how the
 * connection is left, as the engine sees it within ten seconds.
 */
object EngineClientCheck {
  def main(args: Array[String]): Unit = {
    val server = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
    val client = new EngineClient(server.getLocalPort, "token", callTimeoutMs = 60000L)
    val engine = new Thread(() => {
      val socket = server.accept()
      val reader = new BufferedReader(new InputStreamReader(socket.getInputStream))
      Seq.fill(3)(reader.readLine()) // the command that authenticates
      socket.getOutputStream.write(Protocol.getOutputVoidCommand.getBytes)
      socket.setSoTimeout(10000)
      println(Try(reader.readLine()) match {
        case Success(null) => "closed"
        case Failure(e) => s"open: $e"
        case Success(line) => s"other: $line"
      })
    })
    engine.start()
    println(s"raised: ${Try(client.sendCommand(null)).failed.get.getClass.getSimpleName}")
    engine.join()
    server.close()
  }
}
