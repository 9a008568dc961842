package io.statestore.provider

import java.io.{File, RandomAccessFile}
import java.nio.file.Files

import scala.util.Using

import io.statestore.ShimOptions
import io.statestore.rocksdb.SstSettings
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * Commits a small store on a local disk that is full, most of it with the copy of a large one that
 * another engine has closed; and one whose rows are spilled there before that. Run with the
 * directory of a checkpoint and that of the disk; prints the versions.
 */
object RoomCheck {
  private val FreeBytes = 2L << 20

  def main(args: Array[String]): Unit = {
    val disk = new File(args(1))
    val prefix = "spark.sql.streaming.stateStore."
    val options = ShimOptions.parse(
      Map(s"${prefix}rocksdb.compression" -> "none", s"${prefix}engine.processes" -> "2"))
    SstSettings.of(options.rocksdbCompression, options.rocksdbBlockSizeKB) // unpacks the library
    System.setProperty("java.io.tmpdir", disk.getPath)
    Seq(Long.MaxValue, 2L << 20).zipWithIndex.foreach { case (budgetBytes, number) =>
      val Seq(large, small) = Seq(2L * number, 2L * number + 1L).map { operator =>
        LongCommits.contextOf(
          "rocksdb",
          StateStoreId(s"file:${args(0)}/state", operator, 0),
          options)
      }
      commit(large, 400000, Long.MaxValue)
      large.call(large.request("close"))
      fill(disk)
      println(commit(small, 100000, budgetBytes).version.number)
      new File(disk, "ballast").delete()
    }
  }

  private def fill(disk: File): Unit = {
    val block = new Array[Byte](1 << 16)
    Using.resource(new RandomAccessFile(new File(disk, "ballast"), "rw")) { file =>
      while (Files.getFileStore(disk.toPath).getUsableSpace > FreeBytes) file.write(block)
    }
  }

  private def commit(context: StoreContext, rows: Int, budgetBytes: Long): Committed = {
    val begin = LongCommits.commitOf(context, rows, budgetBytes)
    StoreCommit.inRoom(context)(begin())
  }
}
