package io.statestore.view

import scala.collection.mutable

import org.apache.spark.unsafe.Platform

/**
 * The rows of one column family at one version: of a `PagedView`, or all rows of a `RowCache`.
 *
 * @param outside memory for its pages, null for the heap; then `close` has to be called
 */
private[statestore] final class PagedFamily(
    var family: ColumnFamily,
    expected: Int = 0,
    outside: OffHeapMemory = null)
    extends CommittedFamily {
  import RecordPages._

  private var records = new RecordPages(outside)
  private var index = new RecordTable(records, expected)
  private var order: SortedAddresses = if (family.ordered) new SortedAddresses(records) else null

  def pages: RecordPages = records

  def table: RecordTable = index

  def bytes: Long = heapBytes + records.outsideBytes

  def heapBytes: Long = records.heldBytes - records.outsideBytes + index.indexBytes +
    (if (order == null) 0L else order.indexBytes)

  /** Bytes of all keys and values; goes over all rows. */
  def stateBytes: Long = index.liveAddresses.iterator
    .map(address => records.keyLength(address).toLong + records.valueLength(address))
    .sum

  override def get(
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      hash: Int,
      into: BytesRef): Boolean = {
    val slot = index.find(keyBase, keyAt, keyLen, hash)
    if (slot < 0) {
      false
    } else {
      val address = index.addressAt(slot)
      into.set(records.base(address), records.valueOffset(address), records.valueLength(address))
      true
    }
  }

  /** Bytes of the value in a slot that `findSlots` found. */
  def valueLength(slot: Int): Int = records.valueLength(index.addressAt(slot))

  /** Once the value in a slot can be read again with so many bytes more; errors as `RowLimits`. */
  def requireReadable(slot: Int, keyLen: Int, moreBytes: Int): Unit =
    RowLimits.require(family, keyLen, valueLength(slot).toLong + moreBytes)

  override def findSlots(
      other: RecordPages,
      addresses: Array[Int],
      count: Int,
      found: Array[Int]): Unit = index.findSlots(other, addresses, count, found)

  override def rows(): CommittedCursor = new RecordCursor {
    private val pages = records
    private var page = 0
    private var unit = 1

    override def advance(): Boolean = {
      while (page < pages.pageCount) {
        while (unit < pages.endOfPage(page)) {
          val address = (page << PageShift) | unit
          unit += pages.units(address)
          if ((pages.flags(address) & Dead) == 0) {
            show(pages, address)
            return true
          }
        }
        page += 1
        unit = 0
      }
      false
    }
  }

  override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor = new RecordCursor {
    private val pages = records
    private val addresses = order.range(from, until)

    override def advance(): Boolean = {
      val address = addresses.next()
      if (address != 0) show(pages, address)
      address != 0
    }
  }

  private abstract class RecordCursor extends CommittedCursor {
    protected def show(pages: RecordPages, address: Int): Unit = {
      val base = pages.base(address)
      key.set(base, pages.keyOffset(address), pages.keyLength(address))
      value.set(base, pages.valueOffset(address), pages.valueLength(address))
    }
  }

  /**
   * Puts a record with no way back, as a restore does; nothing reads the one that is there.
   *
   * @param append the value extends the one that is there (multi-value family)
   */
  def load(
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      valueBase: AnyRef,
      valueAt: Long,
      valueLen: Int,
      append: Boolean): Unit = {
    val slot = findSlot(keyBase, keyAt, keyLen)
    loadAt(slot, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen, append)
  }

  /** `load` of a key whose slot is known, negative where it is not there. */
  def loadAt(
      slot: Int,
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      valueBase: AnyRef,
      valueAt: Long,
      valueLen: Int,
      append: Boolean): Unit =
    if (slot < 0) {
      val address = records.append(Put, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
      add(RecordTable.hashKey(keyBase, keyAt, keyLen), address)
    } else if (!append && records.valueLength(index.addressAt(slot)) == valueLen) {
      records.overwriteValue(index.addressAt(slot), valueBase, valueAt)
    } else {
      val old = index.addressAt(slot)
      val address =
        if (append) appendedRecord(old, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
        else records.append(Put, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
      point(slot, address)
      records.release(old)
    }

  /** Prepares `load` and `unload` of these keys: see `RecordTable.prefetch`. */
  def prefetch(keysAt: Array[Long], keyLens: Array[Int], count: Int): Unit =
    index.prefetch(keysAt, keyLens, count)

  /** Removes a key with no way back, as a restore does. */
  def unload(keyBase: AnyRef, keyAt: Long, keyLen: Int): Unit =
    unloadAt(findSlot(keyBase, keyAt, keyLen))

  /** `unload` of a key whose slot is known, negative where it is not there. */
  def unloadAt(slot: Int): Unit = if (slot >= 0) records.release(take(slot))

  /** Slot of a key, or -1. */
  def findSlot(keyBase: AnyRef, keyAt: Long, keyLen: Int): Int =
    index.find(keyBase, keyAt, keyLen, RecordTable.hashKey(keyBase, keyAt, keyLen))

  def isOnHeap: Boolean = outside == null

  /** Whether it may take over the records of an overlay, which are on the heap. */
  def adopts: Boolean = isOnHeap && index.isEmpty

  /** Takes over the records of an overlay that holds nothing but puts; this family is empty. */
  def adopt(overlay: OverlayFamily): Unit = {
    records = overlay.table.pages
    index = overlay.table
    order = overlay.sorted
  }

  def close(): Unit = records.close()

  def clear(): Unit = {
    records.close()
    records = new RecordPages(outside)
    index = new RecordTable(records)
    order = if (family.ordered) new SortedAddresses(records) else null
  }

  /**
   * Rewrites the records when more than a quarter of the pages is of dead ones, without the space
   * that a change which is about to be applied takes again.
   *
   * @param change null for none
   */
  def compactIfWasteful(change: FamilyChanges = null): Unit = {
    val dead = records.deadBytes
    val least = math.max(records.heldBytes / 4, CompactionFloorBytes)
    if (dead > least && (change == null || dead - reusedBy(change) > least)) {
      val numPages = records.beginCompaction()
      var page = 0
      while (page < numPages) {
        val end = records.endOfPage(page)
        var unit = if (page == 0) 1 else 0
        while (unit < end) {
          val address = (page << PageShift) | unit
          val size = records.units(address)
          if ((records.flags(address) & Dead) == 0) move(address)
          unit += size
        }
        records.dropPage(page)
        page += 1
      }
    }
  }

  /** Gives up room of the index that rows have left; to be called once a version. */
  def shrinkIfWasteful(): Unit = index.shrinkIfWasteful()

  /** Bytes of freed records that the puts of a change take again, as some of the puts tell. */
  private def reusedBy(change: FamilyChanges): Long = {
    val step = change.length / SampledRows | 1 // odd: sizes may come in turns
    val numOfSize = mutable.HashMap.empty[Int, Int].withDefaultValue(0)
    val pages = change.overlay.table.pages
    val value = new BytesRef
    var i = 0
    while (i < change.length) {
      if (change.op(i) == Put) {
        change.value(i, value)
        numOfSize(unitsOf(pages.keyLength(change.address(i)), value.length)) += step
      }
      i += step
    }
    numOfSize.iterator.map { case (size, num) =>
      math.min(num, records.numFree(size)) * (size.toLong << 3)
    }.sum
  }

  private def move(address: Int): Unit = {
    val slot = index.findRecord(address)
    val keyLen = records.keyLength(address)
    point(slot, records.append(
      Put,
      records.base(address),
      records.keyOffset(address),
      keyLen,
      records.base(address),
      records.valueOffset(address),
      records.valueLength(address)))
  }

  def appendedRecord(
      old: Int,
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      valueBase: AnyRef,
      valueAt: Long,
      valueLen: Int): Int = {
    val oldLen = records.valueLength(old)
    RowLimits.require(family, keyLen, oldLen.toLong + valueLen)
    val joined = new Array[Byte](oldLen + valueLen)
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    Platform.copyMemory(records.base(old), records.valueOffset(old), joined, start, oldLen.toLong)
    Platform.copyMemory(valueBase, valueAt, joined, start + oldLen, valueLen.toLong)
    records.append(Put, keyBase, keyAt, keyLen, joined, start, joined.length)
  }

  def add(hash: Int, address: Int): Unit = {
    index.insert(hash, address)
    if (order != null) order.insert(address)
  }

  def point(slot: Int, address: Int): Unit = {
    index.replace(slot, address)
    if (order != null) order.replace(address)
  }

  /** Removes the key of a slot and returns the address of its record, which stays readable. */
  def take(slot: Int): Int = {
    val address = index.addressAt(slot)
    if (order != null) order.remove(address)
    index.remove(slot)
    address
  }

  private def CompactionFloorBytes = 1L << 20

  private def SampledRows = 1000
}
