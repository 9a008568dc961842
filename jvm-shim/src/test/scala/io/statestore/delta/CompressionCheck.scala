package io.statestore.delta

import java.io.File
import java.nio.ByteBuffer
import java.security.MessageDigest

import io.statestore.view.BytesRef
import org.apache.spark.unsafe.Platform

/**
 * Writes rows to a delta: the key is the number of the row, the value its hash, or zeros: 300, or
 * 100 MiB. Key groups are of 8, column families of 3; each 7th row is a delete. Prints the bytes of
 * memory off the heap that are still held.
 */
object CompressionCheck {
  def main(args: Array[String]): Unit = {
    val numRows = args(2).toInt
    val writer = new DeltaWriter(new File(args(0)), "zstd", numRows)
    try {
      (0 until numRows).foreach { number =>
        val key = ByteBuffer.allocate(8).putLong(number.toLong).array
        val value = args(1) match {
          case "hashes" => MessageDigest.getInstance("SHA-256").digest(key)
          case "zeros" => new Array[Byte](300)
          case "long" => new Array[Byte](100 << 20)
        }
        val (group, family) = (number % 8, number % 3)
        if (number % 7 == 0) {
          writer.add(group, family, StateFileOp.Delete, shown(key), null)
        } else {
          writer.add(group, family, StateFileOp.Put, shown(key), shown(value))
        }
      }
      writer.finish()
    } finally writer.close()
    println(s"held=${DeltaWriter.allocator.getAllocatedMemory}")
  }

  private def shown(bytes: Array[Byte]): BytesRef = {
    val ref = new BytesRef
    ref.set(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length)
    ref
  }
}
