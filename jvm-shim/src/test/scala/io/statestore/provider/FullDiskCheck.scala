package io.statestore.provider

import io.statestore.{Json, ShimOptions}
import io.statestore.rocksdb.SstSettings
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * Commits rows that the local disk has no space for, with each writer: few rows, which reach the
 * disk when their file ends, and many, which reach it before. Prints a line when all that a commit
 * needs is loaded, waits for a byte, then prints how each commit failed, how the start of an engine
 * did, and which files are left.
 */
object FullDiskCheck {
  import LongCommits._

  private val fewAndMany = Seq(5000, 100000)

  def main(args: Array[String]): Unit = {
    val prefix = "spark.sql.streaming.stateStore."
    val options = ShimOptions.parse(
      Map(s"${prefix}rocksdb.compression" -> "none", s"${prefix}file.compression" -> "none"))
    val contexts = Seq("filesystem", "rocksdb").map { backend =>
      contextOf(backend, StateStoreId("file:/checkpoint", 0L, 0), options)
    }
    SstSettings.of(options.rocksdbCompression, options.rocksdbBlockSizeKB) // unpacks the library
    println("ready")
    System.in.read()
    for (context <- contexts; rows <- fewAndMany) {
      println(s"${context.backend} $rows ${failureOf(commitOf(context, rows)().run())}")
    }
    val status = Json.obj().put("op", "status")
    val start = failureOf(contexts.head.engines.call("store", status))
    println(s"start $start")
    val scratch = contexts.head.engines.scratchFile("none").getParentFile
    println(s"left=${scratch.list.filterNot(Set("lock", "python")).mkString(",")}")
  }

  private def failureOf(act: => Any): Throwable =
    try {
      act
      null
    } catch { case e: Exception => e }
}
