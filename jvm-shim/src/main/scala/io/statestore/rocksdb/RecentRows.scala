package io.statestore.rocksdb

import java.util.{Arrays, Map => JavaMap, TreeMap}

import io.statestore.view.{BytesRef, FamilyChanges, RecordPages}
import org.apache.spark.unsafe.Platform

/**
 * Rows that were committed since the version RocksDB is open at, deleted ones included, in the
 * order RocksDB has, so that it need not be opened anew for a few rows. Bytes handed out stay
 * valid. Not thread-safe.
 */
private[rocksdb] final class RecentRows {
  import RecentRows._

  // The value of a deleted row is `Deleted` itself.
  private val rows = new TreeMap[Array[Byte], Array[Byte]](Arrays.compareUnsigned(_, _))
  private var bytes = 0L

  def heapBytes: Long = bytes

  /**
   * Takes in what a commit changed. Where it answers false this is of no more use: the rows would
   * need too much memory, or some value is not known whole.
   *
   * @param limit at most so many bytes are held
   */
  def takeIn(changes: Seq[FamilyChanges], limit: Long): Boolean = {
    val numChanges = changes.iterator.map(_.length.toLong).sum
    numChanges * RowOverhead <= limit && changes.forall(takeIn(_, limit))
  }

  /** Looks an encoded key up, as `RowCache.find` does. */
  def find(key: Array[Byte], into: BytesRef): Int = {
    val value = rows.get(key)
    if (value == null) {
      RowCache.Unknown
    } else if (value eq Deleted) {
      RowCache.Absent
    } else {
      into.set(value, Platform.BYTE_ARRAY_OFFSET.toLong, value.length)
      RowCache.Found
    }
  }

  /** The rows from an encoded key on. */
  def rowsFrom(key: Array[Byte]): RowIterator = new RowIterator(key)

  private def takeIn(change: FamilyChanges, limit: Long): Boolean = {
    val pages = change.overlay.table.pages
    val value = new BytesRef
    var i = 0
    while (i < change.length) {
      val address = change.address(i)
      change.value(i, value)
      if (change.op(i) == RecordPages.Merge || bytes + value.length > limit) return false
      val key = RocksDBView.encode(
        change.overlay.family.id,
        pages.base(address),
        pages.keyOffset(address),
        pages.keyLength(address))
      put(key, if (change.op(i) == RecordPages.Delete) Deleted else copyOf(value))
      i += 1
    }
    bytes <= limit
  }

  private def put(key: Array[Byte], value: Array[Byte]): Unit = {
    val before = rows.put(key, value)
    bytes += value.length
    if (before == null) bytes += key.length + RowOverhead else bytes -= before.length
  }

  private def copyOf(ref: BytesRef): Array[Byte] = {
    val copy = new Array[Byte](ref.length)
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    Platform.copyMemory(ref.base, ref.at, copy, start, ref.length.toLong)
    copy
  }

  final class RowIterator(from: Array[Byte]) {
    private val entries = rows.tailMap(from, true).entrySet.iterator
    private var current: JavaMap.Entry[Array[Byte], Array[Byte]] = _

    def advance(): Boolean = {
      val hasNext = entries.hasNext
      if (hasNext) current = entries.next()
      hasNext
    }

    def key: Array[Byte] = current.getKey

    def value: Array[Byte] = current.getValue

    def isDeleted: Boolean = current.getValue eq Deleted
  }
}

private[rocksdb] object RecentRows {

  /** Bytes that recent rows may take of a store's share, which is for them and its row cache. */
  def maxBytes(share: Long): Long = math.min(share / 5, MostBytes)

  private val Deleted = new Array[Byte](0)

  // A node of the map and the headers of two arrays.
  private val RowOverhead = 96L

  // Copying and comparing them should stay cheaper than opening RocksDB.
  private val MostBytes = 256L << 10
}
