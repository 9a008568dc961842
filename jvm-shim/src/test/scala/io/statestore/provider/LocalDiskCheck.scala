package io.statestore.provider

import java.io.{File, FileOutputStream, IOException}
import java.nio.channels.ClosedByInterruptException

import scala.util.Try

import io.statestore.ShimErrors
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.rocksdb.{EnvOptions, Options, RocksDB, SstFileWriter}

/**
 * Fails to write to the local disk in several ways. Run with a directory; prints what is raised,
 * the last of it for a directory that was removed, and how an interruption reaches Spark.
 */
object LocalDiskCheck {
  private val failures = Seq(
    new IOException("No space left on device"),
    new IOException("Disk quota exceeded"),
    new IOException("Map failed", new OutOfMemoryError("Map failed")),
    new IOException("/quota/delta-1: Too many open files"),
    new IOException("Input/output error"),
    new IOException())

  def main(args: Array[String]): Unit = {
    val directory = new File(args(0), "scratch")
    val file = new File(directory, "delta-1")
    require(directory.mkdir())
    failures.foreach(failure => show(ShimErrors.onLocalDisk("write", file)(throw failure)))
    require(directory.delete())
    show(ShimErrors.onLocalDisk("write", file)(new FileOutputStream(file)))
    RocksDB.loadLibrary()
    show(ShimErrors.onLocalDisk("write", file) {
      new SstFileWriter(new EnvOptions, new Options).open(file.getPath)
    })

    val killed = new ClosedByInterruptException
    val store = StateStoreId(directory.getPath, 0L, 0)
    println(Seq(
      ShimErrors.cannotLoad("filesystem", store, killed),
      ShimErrors.cannotCommit(store, 1L, killed)).map(_.getClass.getSimpleName).mkString(" "))
  }

  private def show(body: => Any): Unit = println(Try(body).failed.get)
}
