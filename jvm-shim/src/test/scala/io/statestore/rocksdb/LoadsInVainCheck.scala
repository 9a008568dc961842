package io.statestore.rocksdb

import java.nio.ByteBuffer

import io.statestore.view._
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{StringType, StructType}
import org.apache.spark.unsafe.Platform
import org.rocksdb.{Options, RocksDB}

/**
 * Scans a view of a directory again and again, whose rows have half of the memory outside of the
 * heap that they need, and then all of it; and then a budget that their index does not fit, beside
 * a family of few rows. Prints in how many scans of each a load was tried, whether the few rows are
 * in the cache, and whether every scan showed all rows; and whether they are there after lookups.
 */
object LoadsInVainCheck {
  private val NumRows = 50000
  private val NumScans = 40
  private val NumFew = 2000
  private val NumMany = 1100000
  private val NeededBytes = 4L << 20
  private val schema = new StructType().add("s", StringType)
  private val (family, small) = (familyOf(0, "default"), familyOf(1, "small"))
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
    write(args(0), Seq(0 -> NumRows, 1 -> NumFew))
    Seq(NeededBytes / 2, NeededBytes * 4).foreach { bytes =>
      mostBytes = bytes
      val view = viewOf(args(0), Seq(family), NumRows, 1L << 30)
      println(s"loads=${loads(view, "default", NumRows)}")
      view.retire()
    }
    val view = viewOf(args(0), Seq(family, small), NumRows + NumFew, 400L << 10)
    println(s"large=${loads(view, "default", NumRows)}")
    loads(view, "small", NumFew)
    println(s"few=${view.bytes >= NumFew * 48L}")
    view.retire()
    println(s"after_lookups=${isKeptAfter(1200, "small", args(0), NumRows + NumFew)}")
    // One family has all rows, and the others none.
    mostBytes = 1L << 28
    write(s"${args(0)}-many", Seq(0 -> NumMany))
    println(s"after_many=${isKeptAfter(NumMany / 2, "default", s"${args(0)}-many", NumMany)}")
  }

  /** Writes so many rows of each column family. */
  private def write(path: String, families: Seq[(Int, Int)]): Unit = {
    val written = RocksDB.open(new Options().setCreateIfMissing(true), path)
    for ((id, number) <- families; i <- 0 until number) {
      written.put(
        ByteBuffer.allocate(10).putShort(id.toShort).putLong(i).array, new Array[Byte](48))
    }
    written.close()
  }

  /** Whether lookups bring all rows of a family into the cache: no absent key takes memory then. */
  private def isKeptAfter(numLookups: Int, name: String, path: String, numRows: Int): Boolean = {
    val view = viewOf(path, Seq(family, small), numRows, 1L << 30)
    (1 to numLookups).foreach(number => lookUp(view, name, -number.toLong))
    val bytes = view.bytes
    (1 to 3 * numLookups).foreach(number => lookUp(view, name, -numLookups.toLong - number))
    val isKept = view.bytes == bytes
    view.retire()
    isKept
  }

  private def familyOf(id: Int, name: String): ColumnFamily =
    ColumnFamily(id, name, NoPrefixKeyStateEncoderSpec(schema), schema, false, false)

  private def viewOf(
      path: String, families: Seq[ColumnFamily], numRows: Int, rowCacheBytes: Long): RocksDBView =
    new RocksDBView(
      ViewVersion(1L, null, "lineage", rescalable = true), 64, path, _ => (path, 0), families,
      Some(io.statestore.rocksdb.NumRows(numRows.toLong, 0L)), 0, 0, 1L << 20, rowCacheBytes,
      memory)

  /** Looks for a key that is not there. */
  private def lookUp(view: RocksDBView, name: String, key: Long): Unit = {
    val bytes = ByteBuffer.allocate(8).putLong(key).array
    val (at, into) = (Platform.BYTE_ARRAY_OFFSET.toLong, new BytesRef)
    view.family(name).get(bytes, at, 8, RecordTable.hashKey(bytes, at, 8), into)
  }

  /** In how many scans a load was tried. */
  private def loads(view: RocksDBView, name: String, numRows: Int): Int =
    (1 to NumScans).count { _ =>
      asked = false
      val rows = view.family(name).rows()
      var shown = 0
      while (rows.advance()) shown += 1
      rows.close()
      if (shown != numRows) println(s"wrong=$shown")
      asked
    }
}
