package io.statestore.delta

import java.io.{File, IOException}

import io.statestore.rocksdb.{SstSettings, SstWriter}

/**
 * Makes writers that cannot begin: of deltas, to be run with a limit of no bytes on files, or of
 * SSTs. Prints how many failed, and the bytes of memory off the heap that are still held.
 */
object WriterCheck {
  private val attempts = 5

  def main(args: Array[String]): Unit = {
    def file(name: String): File = new File(args(0), name)
    def make(number: Int): RowWriter = args(1) match {
      case "delta" => new DeltaWriter(file(s"delta-$number"), "none", DeltaWriter.MaxRows)
      case "sst" =>
        val inNoDirectory = new File(file("missing"), "rows.sst")
        new SstWriter(inNoDirectory, () => file("deletes"), SstSettings.of("none", 4))
    }
    val failed = (1 to attempts).count(number => fails(make(number)))
    println(s"failed=$failed held=${DeltaWriter.allocator.getAllocatedMemory}")
  }

  private def fails(make: => RowWriter): Boolean =
    try {
      make.close()
      false
    } catch { case _: IOException | _: org.rocksdb.RocksDBException => true }
}
