package io.statestore.rocksdb

import java.nio.ByteBuffer

import io.statestore.view._
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{StringType, StructType}
import org.rocksdb.{Options, RocksDB}

/**
 * Scans a view of a directory again and again, whose rows have half of the memory outside of the
 * heap that they need, and then all of it. Prints in how many scans of each a load was tried, and
 * whether every scan showed all rows.
 */
object LoadsInVainCheck {
  private val NumRows = 50000
  private val NumScans = 40
  private val NeededBytes = 4L << 20
  private val schema = new StructType().add("s", StringType)
  private val family =
    ColumnFamily(0, "default", NoPrefixKeyStateEncoderSpec(schema), schema, false, false)
  private var granted = 0L
  private var mostBytes = 0L
  private var asked = false

  private val memory = new OffHeapMemory(
    new OffHeapMemory.Budget {
      override def grant(bytes: Long): Boolean = {
        asked = true
        val isGranted = granted + bytes <= mostBytes
        if (isGranted) granted += bytes
        isGranted
      }
      override def giveBack(bytes: Long): Unit = granted -= bytes
      override def limit: String = s"limit=$mostBytes"
    },
    keptMs = 1L)

  def main(args: Array[String]): Unit = {
    val written = RocksDB.open(new Options().setCreateIfMissing(true), args(0))
    (0 until NumRows).foreach { number =>
      written.put(ByteBuffer.allocate(10).putShort(0).putLong(number).array, new Array[Byte](48))
    }
    written.close()
    Seq(NeededBytes / 2, NeededBytes * 4).foreach { bytes =>
      mostBytes = bytes
      val view = new RocksDBView(
        ViewVersion(1L, null, "lineage", rescalable = true), 64, args(0), _ => (args(0), 0),
        Seq(family), Some(io.statestore.rocksdb.NumRows(NumRows.toLong, 0L)), 0, 0, 1L << 20,
        1L << 30, memory)
      val loads = (1 to NumScans).count { _ =>
        asked = false
        val rows = view.family("default").rows()
        var shown = 0
        while (rows.advance()) shown += 1
        rows.close()
        if (shown != NumRows) println(s"wrong=$shown")
        asked
      }
      println(s"loads=$loads")
      view.retire()
    }
  }
}
