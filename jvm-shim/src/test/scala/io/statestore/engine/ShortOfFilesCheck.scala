package io.statestore.engine

import java.io.{File, FileInputStream}

import scala.util.Try

import io.statestore.Json

/**
 * Calls an engine, and starts another one, when this JVM can open no file more; all of it was done
 * once before, so that no class is missing. Then calls the engine again. Run with a Python, the
 * directory of the package and one for scratch files; prints what was raised, whether the call was
 * answered and whether the engine is the same.
 */
object ShortOfFilesCheck {
  def main(args: Array[String]): Unit = {
    val launch = EngineLaunch(args(0), "the test", Seq(args(1)), "statestore")
    val scratch = new File(args(2))
    def start(name: String, how: EngineLaunch) =
      EngineProcess.start(name, how, scratch, callTimeoutMs = 60000L)
    val engine = new Engine(0, () => start("0", launch))
    engine.startInBackground()
    while (!engine.isRunning) Thread.sleep(10L)
    val pid = engine.pid
    def call() = Try(engine.call(Json.obj().put("op", "status")))
    def startAnother() = Try(start("1", launch))

    Try(start("1", launch.copy(python = "/no-such-python"))).failed.get.getMessage
    Try(new EngineClient(1, "token", callTimeoutMs = 1000L).sendCommand("call"))
    val taken = Iterator.continually(Try(new FileInputStream("/dev/null")))
      .takeWhile(_.isSuccess).map(_.get).toList
    val (called, started) = (call(), startAnother())
    taken.foreach(_.close())
    Seq(called, started).foreach(failed => println(failed.failed.get.getMessage))
    println(s"answered=${call().isSuccess} same=${engine.pid == pid}")
    engine.beginStop().foreach(_.finishStop(System.nanoTime() + 10000000000L))
  }
}
