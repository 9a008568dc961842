package io.statestore.rocksdb

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import io.statestore.view.{BytesRef, CommittedCursor, FamilyChanges, NoAddressException}
import io.statestore.view.{NoMemoryException, PagedFamily, RecordPages, RecordTable}

/**
 * Rows of one column family in bounded memory: all of them where they fit, else those that were
 * read or written lately, absent ones included. Those are on the heap; all of them may be outside
 * of it, as long as there is memory, and only their index is then bounded by the budget.
 *
 * Where it has all rows it answers each read. Where it has some there are two generations: a row
 * that is found in the old one moves to the young one, and when the young one is full it becomes
 * the old one, whose rows go. All rows that have become too many are the first old generation.
 *
 * Each cache has an equal part of the budget. All rows may take more, up to what is left of three
 * quarters of the budget: most caches need little. What was taken so is given up with the next
 * batch when the others need their parts, which until then come on top of it.
 *
 * Rows handed out stay valid until `write` or `close` is called, which no reader may see. What goes
 * before that is on the heap, and lives as long as a row points into it; memory outside of the heap
 * goes in these two alone. Not thread-safe, but for reading `all`.
 *
 * @param budgetBytes for the caches of all column families of this JVM, and recent rows, together
 * @param empty the family, where it has no rows yet; null else
 */
private[rocksdb] final class RowCache(budgetBytes: Long, empty: PagedFamily) {
  import RecordPages.{Delete, Merge, OpMask, Put}
  import RowCache._

  private var whole = empty
  private var isLoaded = false // since the last batch: changes may name slots of something else
  private var young = Generation.empty
  private var old = Generation.empty
  private var isCounted = false
  private var reported = 0L // in `usedBytes`

  /** All rows of the family, null where they are not here. */
  def all: PagedFamily = whole

  def bytes: Long = heapBytes + (if (whole == null) 0L else whole.bytes - whole.heapBytes)

  private def heapBytes: Long =
    young.bytes + old.bytes + (if (whole == null) 0L else whole.heapBytes)

  /** Looks a key up; where the answer is `Found`, `into` shows the value. */
  def find(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int, into: BytesRef): Int =
    if (whole == null) findSome(keyBase, keyAt, keyLen, hash, into)
    else if (whole.get(keyBase, keyAt, keyLen, hash, into)) Found
    else Absent

  private def findSome(
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      hash: Int,
      into: BytesRef): Int = {
    val address = young.find(keyBase, keyAt, keyLen, hash)
    if (address != 0) {
      young.show(address, into)
    } else {
      val older = old.find(keyBase, keyAt, keyLen, hash)
      if (older == 0) {
        Unknown
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
   * another negative one where it is absent. Where all rows are here it is the slot, by which
   * `write` finds the row again.
   */
  def findSlots(other: RecordPages, records: Array[Int], count: Int, found: Array[Int]): Unit =
    if (whole == null) {
      young.findSlots(other, records, count, found)
    } else {
      whole.findSlots(other, records, count, found)
      var i = 0
      while (i < count) {
        if (found(i) < 0) found(i) = KnownAbsent
        i += 1
      }
    }

  def put(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int, value: BytesRef): Unit =
    if (hasRoomFor(value)) {
      young.put(
        Put, keyBase, keyAt, keyLen, hash, value.base, value.at, value.length, inPlace = false)
    }

  def putAbsent(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int): Unit =
    if (hasRoom) young.put(Delete, keyBase, keyAt, keyLen, hash, null, 0L, 0, inPlace = false)

  /**
   * Takes in all rows of the family; where they do not fit, the cache stays as it is. Where as many
   * rows as expected, of the size of the first, would not fit, it reads no more than those.
   *
   * @param into the family without rows, closed where it does not take them all
   * @param rows shows each row, and is closed where not all are asked for
   * @param expected number of rows, about; 0 where nobody knows
   * @param isWhole whether it showed them all, asked when it has ended
   * @param most rows after which it ends, in vain
   * @return whether the rows are too many; not where memory is short, or not all were shown
   */
  def load(
      into: PagedFamily,
      rows: CommittedCursor,
      expected: Long,
      isWhole: () => Boolean,
      most: Long = Long.MaxValue): Boolean = {
    count()
    var ended = false
    var areTooMany = false
    var numRows = 0
    var units = 0L
    def willFit = numRows != SampledRows || !into.isOnHeap ||
      units * 8L / numRows * expected <= mostWhole
    try {
      while (!ended && !areTooMany && numRows <= most) {
        if (into.heapBytes > mostWhole || !willFit) {
          areTooMany = true
        } else if (!rows.advance()) {
          ended = true
        } else {
          numRows += 1
          val (key, value) = (rows.key, rows.value)
          units += RecordPages.unitsOf(key.length, value.length)
          into.load(
            key.base, key.at, key.length, value.base, value.at, value.length, append = false)
          report(into.heapBytes)
        }
      }
      if (ended && isWhole()) {
        whole = into
        isLoaded = true
        young = Generation.empty
        old = Generation.empty
      }
    } catch {
      case _: NoMemoryException => ()
      case _: NoAddressException => areTooMany = true
    } finally {
      if (whole ne into) into.close()
      report()
      if (!ended) rows.close()
    }
    areTooMany
  }

  /** Takes in a committed batch; nothing reads a row that was handed out. */
  def write(change: FamilyChanges): Unit = {
    if (whole != null) writeWhole(change)
    if (whole == null) writeSome(change)
    isLoaded = false
    report()
  }

  /**
   * Takes changes in until the rows are too many to have all: then the younger generation has to
   * get all of the changes.
   */
  private def writeWhole(change: FamilyChanges): Unit = {
    count()
    val overlay = change.overlay
    if (whole.adopts && change.isAdoptable &&
      overlay.table.pages.heldBytes + overlay.indexBytes <= mostWhole) {
      whole.adopt(overlay)
    } else {
      try {
        // On the heap `fits` gives dead space up, where the rows reach their bound.
        if (!whole.isOnHeap) whole.compactIfWasteful(change)
        if (isLoaded) change.findSlots(whole.table)
        if (!fits || !takeIn(change, areNew = false) || !takeIn(change, areNew = true)) {
          if (whole.isOnHeap && whole.heapBytes <= maxBytes) {
            old = new Generation(whole.pages, whole.table)
          }
          dropWhole()
        } else {
          whole.shrinkIfWasteful()
        }
      } catch { case _: NoMemoryException | _: NoAddressException => dropWhole() }
    }
  }

  /** Takes in the changes of rows that are here, or new rows; false where they become too many. */
  private def takeIn(change: FamilyChanges, areNew: Boolean): Boolean = {
    val pages = change.overlay.table.pages
    val value = new BytesRef
    var held = whole.heapBytes
    var keeps = true
    var i = 0
    while (i < change.length && keeps) {
      change.prefetch(i, if (areNew) null else whole.table)
      val slot = change.slot(i)
      if (slot < 0 == areNew) {
        val address = change.address(i)
        val base = pages.base(address)
        val at = pages.keyOffset(address)
        val length = pages.keyLength(address)
        val op = change.op(i)
        if (op == Delete) {
          whole.unloadAt(slot)
        } else {
          change.value(i, value)
          whole.loadAt(
            slot, base, at, length, value.base, value.at, value.length, append = op == Merge)
        }
        // It grows by pages: most rows cost no look at the other caches.
        if (whole.heapBytes != held) {
          report()
          keeps = fits
          held = whole.heapBytes
        }
      }
      i += 1
    }
    keeps
  }

  private def dropWhole(): Unit = {
    whole.close()
    whole = null
  }

  /** Whether all rows are few enough, perhaps after their dead space was given up. */
  private def fits: Boolean = whole.heapBytes <= mostWhole || whole.isOnHeap && {
    whole.compactIfWasteful()
    whole.heapBytes <= mostWhole
  }

  private def writeSome(change: FamilyChanges): Unit = {
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
      if (op == Put) change.value(i, value)
      // The value of a merge, put together, is not kept where there are too many.
      if (op == Merge || (op == Put && !hasRoomFor(value)) || !hasRoom) {
        young.remove(base, at, length, hash)
        old.remove(base, at, length, hash)
      } else if (op == Delete) {
        young.put(Delete, base, at, length, hash, null, 0L, 0, inPlace = true)
      } else {
        young.put(Put, base, at, length, hash, value.base, value.at, value.length, inPlace = true)
      }
      i += 1
    }
  }

  def close(): Unit = {
    if (isCounted) numCaches.decrementAndGet()
    isCounted = false
    if (whole != null) dropWhole()
    young = Generation.empty
    old = Generation.empty
    report()
  }

  /** Of the share of the budget, what the recent rows leave. */
  private def maxBytes: Long = share(budgetBytes) - RecentRows.maxBytes(share(budgetBytes))

  /**
   * All rows take so much at most: what other caches leave, or of an equal part so much that there
   * is room for a young generation beside them when they are the old one.
   */
  def mostWhole: Long =
    math.max(maxBytes / 4 * 3, budgetBytes / 4 * 3 - (usedBytes.get - reported))

  /** Tells the other caches what this one holds, and what it is about to hold beside that. */
  private def report(more: Long = 0L): Unit = {
    val held = heapBytes + more
    if (held != reported) usedBytes.addAndGet(held - reported)
    reported = held
  }

  private def count(): Unit = if (!isCounted) {
    isCounted = true
    numCaches.incrementAndGet()
  }

  /** Makes room for a row in the young generation; false where it is not worth its memory. */
  private def hasRoom: Boolean = {
    count()
    if (share(budgetBytes) < SmallestShare) {
      false
    } else {
      if (young.bytes > maxBytes / 2 || (young.bytes > maxBytes / 4 && heapBytes > maxBytes)) {
        old = young
        young = Generation.empty
      }
      true
    }
  }

  /** Likewise; false also where the value would take the place of too many others. */
  private def hasRoomFor(value: BytesRef): Boolean = hasRoom && value.length <= maxBytes / 8

  private final class Generation(pages: RecordPages, table: RecordTable) {

    def bytes: Long = if (table.isEmpty) 0L else pages.heldBytes + table.indexBytes

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

  /** So many rows tell how large the others are. */
  private val SampledRows = 1000

  /** Caches that have a share of the budget. */
  private val numCaches = new AtomicInteger

  /** Bytes that they hold, without what was read since their last batch. */
  private val usedBytes = new AtomicLong

  /** Bytes for each cache of this JVM and the recent rows beside it. */
  def share(budgetBytes: Long): Long = budgetBytes / math.max(1, numCaches.get)

  // A page and an index; below that two generations cost more than they save.
  private val SmallestShare = 256L * 1024L
}
