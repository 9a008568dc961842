package io.statestore.engine

import io.statestore.Json
import org.apache.hadoop.conf.Configuration

/**
 * Asks for a file by the configuration of a query when many others were registered since: before
 * and after the query has said that its own is to be kept. Then the same when a reader has brought
 * settings that lead nowhere. Prints the answers.
 */
object HadoopFilesCheck {
  private val own = "file:/own"

  def main(args: Array[String]): Unit = {
    val files = new HadoopFiles
    val configuration = new Configuration(false)
    (own +: (0 until 1000).map(number => s"file:/$number"))
      .foreach(files.register(_, configuration, isOfQuery = true))
    println(ask(files))
    files.keepRegistered(own, configuration, isOfQuery = true)
    println(ask(files))
    val readers = new Configuration(false)
    readers.set("fs.file.impl", "no.such.FileSystem")
    readers.set("fs.file.impl.disable.cache", "true")
    files.register(own, readers, isOfQuery = false)
    println(ask(files))
    files.keepRegistered(own, readers, isOfQuery = false)
    files.keepRegistered(own, configuration, isOfQuery = true)
    files.keepRegistered(own, readers, isOfQuery = false)
    println(ask(files))
  }

  private def ask(files: HadoopFiles): String = {
    val request = Json.obj().put("op", "list").put("checkpoint", own)
    files.answer(request.put("path", "file:/tmp")).toString
  }
}
