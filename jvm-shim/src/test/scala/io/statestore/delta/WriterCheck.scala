package io.statestore.delta

import java.io.{File, IOException}

import io.statestore.rocksdb.{SstSettings, SstWriter}
import io.statestore.view.BytesRef
import org.apache.arrow.memory.OutOfMemoryException
import org.apache.spark.unsafe.Platform

/**
 * Makes writers that cannot begin: of deltas, to be run with a limit of no bytes on files, or of
 * SSTs. Or writers of deltas that lack the memory for a batch, each at a later column of it. Prints
 * how many failed, and the bytes of memory off the heap that are still held.
 */
object WriterCheck {
  private val attempts = 5

  def main(args: Array[String]): Unit = {
    def file(name: String): File = new File(args(0), name)
    def make(number: Int): RowWriter = args(1) match {
      case "delta" => new DeltaWriter(file(s"delta-$number"), "none", DeltaWriter.MaxRows)
      case "batch" => new DeltaWriter(file(s"batch-$number"), "zstd", DeltaWriter.MaxRows)
      case "sst" =>
        val inNoDirectory = new File(file("missing"), "rows.sst")
        new SstWriter(inNoDirectory, () => file("deletes"), SstSettings.of("none", 4))
    }
    val failed = (0 until attempts).count { number =>
      fails {
        val writer = make(number)
        try if (args(1) == "batch") finishWithin(writer, number * MoreBytes)
        finally writer.close()
      }
    }
    println(s"failed=$failed held=${DeltaWriter.allocator.getAllocatedMemory}")
  }

  /** More than a column of numbers takes. The last attempt has too few for a sample of the keys. */
  private val MoreBytes = 75L << 10

  /** Writes a batch that is full, with so many bytes for its columns. */
  private def finishWithin(writer: RowWriter, bytes: Long): Unit = {
    val row = new BytesRef
    row.set(new Array[Byte](16), Platform.BYTE_ARRAY_OFFSET.toLong, 16)
    (1 to DeltaWriter.MaxRows).foreach(_ => writer.add(0, 0, StateFileOp.Put, row, row))
    val allocator = DeltaWriter.allocator
    allocator.setLimit(allocator.getAllocatedMemory + bytes)
    try writer.finish()
    finally allocator.setLimit(Long.MaxValue)
    ()
  }

  private def fails(write: => Unit): Boolean =
    try {
      write
      false
    } catch {
      case _: IOException | _: org.rocksdb.RocksDBException | _: OutOfMemoryException => true
    }
}
