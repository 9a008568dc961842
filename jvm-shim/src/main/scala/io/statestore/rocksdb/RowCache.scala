package io.statestore.rocksdb

import java.util.concurrent.atomic.AtomicInteger

import io.statestore.view.{BytesRef, FamilyChanges, RecordPages, RecordTable}

/**
 * Rows of one column family that were read or written lately, absent ones included, in bounded
 * memory. Two generations: a row that is found in the old one moves to the young one, and when the
 * young one is full it becomes the old one, whose rows go. While no row went, a cache that began
 * with an empty family holds all of it, and a key that is not in it is absent.
 *
 * Rows handed out stay valid until `write` or `adopt` is called, which no reader may see: a
 * generation that went lives as long as a row points into it. Not thread-safe.
 *
 * @param budgetBytes for the caches of all column families of this JVM, and recent rows, together
 * @param beganEmpty the family has no rows yet
 */
private[rocksdb] final class RowCache(budgetBytes: Long, beganEmpty: Boolean) {
  import RecordPages.{Delete, Merge, OpMask, Put}
  import RowCache._

  private var young = Generation.empty
  private var old = Generation.empty
  private var hasAllRows = beganEmpty
  private var isCounted = false

  def heapBytes: Long = young.bytes + old.bytes

  /** Looks a key up; where the answer is `Found`, `into` shows the value. */
  def find(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int, into: BytesRef): Int = {
    val address = young.find(keyBase, keyAt, keyLen, hash)
    if (address != 0) {
      young.show(address, into)
    } else {
      val older = old.find(keyBase, keyAt, keyLen, hash)
      if (older == 0) {
        if (hasAllRows) Absent else Unknown
      } else {
        val answer = old.show(older, into)
        if (answer == Absent) putAbsent(keyBase, keyAt, keyLen, hash)
        else put(keyBase, keyAt, keyLen, hash, into)
        answer
      }
    }
  }

  /**
   * Looks up the keys of the first `count` of `records` in `other`, many at a time: a number in
   * `found` that is not negative where the key is there, `NotSeen` where only `find` can tell,
   * another negative one where it is absent.
   */
  def findSlots(other: RecordPages, records: Array[Int], count: Int, found: Array[Int]): Unit = {
    young.findSlots(other, records, count, found)
    if (hasAllRows && old.bytes == 0L) {
      var i = 0
      while (i < count) {
        if (found(i) == NotSeen) found(i) = KnownAbsent
        i += 1
      }
    }
  }

  def put(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int, value: BytesRef): Unit =
    if (hasRoom) {
      young.put(
        Put, keyBase, keyAt, keyLen, hash, value.base, value.at, value.length, inPlace = false)
    } else {
      hasAllRows = false
    }

  def putAbsent(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int): Unit =
    if (hasRoom) young.put(Delete, keyBase, keyAt, keyLen, hash, null, 0L, 0, inPlace = false)

  /** Takes in a committed batch; nothing reads a row that was handed out. */
  def write(change: FamilyChanges): Unit =
    if (change.isAdoptable && hasRoom && heapBytes == 0L &&
      change.overlay.table.pages.heapBytes + change.overlay.indexBytes <= maxBytes / 2) {
      young = new Generation(change.overlay.table.pages, change.overlay.table)
    } else {
      val pages = change.overlay.table.pages
      val value = new BytesRef
      var i = 0
      while (i < change.length) {
        val address = change.address(i)
        val base = pages.base(address)
        val at = pages.keyOffset(address)
        val length = pages.keyLength(address)
        val hash = RecordTable.hashKey(base, at, length)
        val op = change.op(i)
        // The value of a merge, put together, is not kept where there are too many.
        if (op == Merge || !hasRoom) {
          hasAllRows = false
          young.remove(base, at, length, hash)
          old.remove(base, at, length, hash)
        } else if (op == Delete) {
          young.put(Delete, base, at, length, hash, null, 0L, 0, inPlace = true)
        } else {
          change.value(i, value)
          young.put(
            Put, base, at, length, hash, value.base, value.at, value.length, inPlace = true)
        }
        i += 1
      }
    }

  def close(): Unit = {
    if (isCounted) numCaches.decrementAndGet()
    isCounted = false
    young = Generation.empty
    old = Generation.empty
    hasAllRows = false
  }

  /** Of the share of the budget, what the recent rows leave. */
  private def maxBytes: Long = share(budgetBytes) - RecentRows.maxBytes(share(budgetBytes))

  /** Makes room for a row in the young generation; false where a cache is not worth its memory. */
  private def hasRoom: Boolean = {
    if (!isCounted) {
      isCounted = true
      numCaches.incrementAndGet()
    }
    if (share(budgetBytes) < SmallestShare) {
      false
    } else {
      if (young.bytes > maxBytes / 2) {
        hasAllRows &= old.bytes == 0L
        old = young
        young = Generation.empty
      }
      true
    }
  }

  private final class Generation(pages: RecordPages, table: RecordTable) {

    def bytes: Long = if (table.isEmpty) 0L else pages.heapBytes + table.indexBytes

    def find(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int): Int = {
      val slot = if (table.isEmpty) -1 else table.find(keyBase, keyAt, keyLen, hash)
      if (slot < 0) 0 else table.addressAt(slot)
    }

    def findSlots(
        other: RecordPages,
        records: Array[Int],
        count: Int,
        found: Array[Int]): Unit = {
      table.findSlots(other, records, count, found)
      var i = 0
      while (i < count) {
        if (found(i) >= 0 && (pages.flags(table.addressAt(found(i))) & OpMask) == Delete) {
          found(i) = KnownAbsent
        }
        i += 1
      }
    }

    def show(address: Int, into: BytesRef): Int =
      if ((pages.flags(address) & OpMask) == Delete) {
        Absent
      } else {
        into.set(pages.base(address), pages.valueOffset(address), pages.valueLength(address))
        Found
      }

    /** `inPlace`: nobody reads the record that is there, its space is used again. */
    def put(
        op: Int,
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        valueBase: AnyRef,
        valueAt: Long,
        valueLen: Int,
        inPlace: Boolean): Unit = {
      val slot = table.find(keyBase, keyAt, keyLen, hash)
      val before = if (slot < 0) 0 else table.addressAt(slot)
      if (before != 0 && inPlace && op == Put && (pages.flags(before) & OpMask) == Put &&
        pages.valueLength(before) == valueLen) {
        pages.overwriteValue(before, valueBase, valueAt)
      } else {
        val address = pages.append(op, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
        if (before == 0) table.insert(hash, address) else table.replace(slot, address)
        if (before != 0 && inPlace) pages.release(before)
      }
    }

    def remove(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int): Unit = {
      val slot = if (table.isEmpty) -1 else table.find(keyBase, keyAt, keyLen, hash)
      if (slot >= 0) table.remove(slot)
    }
  }

  private object Generation {
    def empty: Generation = {
      val pages = new RecordPages
      new Generation(pages, new RecordTable(pages))
    }
  }
}

private[rocksdb] object RowCache {
  val Unknown = 0
  val Absent = 1
  val Found = 2

  /** In place of a slot: not in the young generation, as `RecordTable.findSlots` says it. */
  val NotSeen: Int = -1

  /** In place of a slot: absent. */
  private val KnownAbsent = -2

  /** Caches that have a share of the budget. */
  private val numCaches = new AtomicInteger

  /** Bytes for each cache of this JVM and the recent rows beside it. */
  def share(budgetBytes: Long): Long = budgetBytes / math.max(1, numCaches.get)

  // A page and an index; below that a cache costs more than it saves.
  private val SmallestShare = 256L * 1024L
}
