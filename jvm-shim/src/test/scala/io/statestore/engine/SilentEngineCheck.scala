package io.statestore.engine

import java.net.{InetAddress, ServerSocket}

import scala.util.Try

/**
 * Calls an engine that takes a connection and says nothing, and one that ends it at once, as one
 * without a thread for it does. Prints what is raised, of the first also whether in time.
 */
object SilentEngineCheck {
  def main(args: Array[String]): Unit = {
    val server = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
    val client = new EngineClient(server.getLocalPort, "token", callTimeoutMs = 20000L)
    val began = System.nanoTime()
    println(Try(client.within(500L)(client.sendCommand("call"))).failed.get)
    println(if (System.nanoTime() - began < 10000000000L) "in time" else "too late")
    val closing = new Thread(() => while (true) server.accept().close())
    closing.setDaemon(true)
    closing.start()
    println(Try(client.sendCommand("call")).failed.get.getClass.getSimpleName)
  }
}
