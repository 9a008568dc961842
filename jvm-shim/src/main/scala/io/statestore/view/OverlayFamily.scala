package io.statestore.view

import java.util.Arrays

import scala.collection.mutable

import io.statestore.keygroup.KeyGroupFunction
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * The part of an overlay that belongs to one column family.
 *
 * @param expected how many keys are likely to be written; the index need not grow up to that
 */
private[statestore] final class OverlayFamily(
    overlay: Overlay,
    val family: ColumnFamily,
    val keyGroup: KeyGroupFunction,
    expected: Int) {
  import RecordPages._

  private val pages = overlay.pages
  val table = new RecordTable(pages, expected)
  val sorted: SortedAddresses = if (family.ordered) new SortedAddresses(pages) else null

  // Records since the last spill, as they were written; a replaced or forgotten one stays in the
  // list.
  private var addresses = new Array[Int](16)
  private var ranks = new Array[Int](16)
  private var used = 0
  private var replaced = false

  private var shownUntil = 0L // a scan may have any record before this address

  // Of a multi-value family: a record that is `Listed` has a place in it as its value. Null where
  // the record was replaced, or was spilled with the bytes of its list.
  private val lists = mutable.ArrayBuffer.empty[ValueBuffer]
  private var freePlaces = new java.util.ArrayDeque[Integer]

  def isEmpty: Boolean = table.isEmpty

  def indexBytes: Long = table.indexBytes + 8L * addresses.length +
    (if (sorted == null) 0L else sorted.indexBytes)

  /** True while the overlay's pages have the records of `table` and no other, all on the heap. */
  def isAllOfOverlay: Boolean = !replaced && overlay.numRuns == 0 && overlay.allFamilies.size == 1

  /** Upper bound of the records on the heap. */
  def maxHeapRecords: Int = used

  /** Shows (address, rank of the key group) of every record on the heap, in order of address. */
  def foreachOnHeap(visit: (Int, Int) => Unit): Unit = {
    var i = 0
    while (i < used) {
      val address = addresses(i)
      if (!replaced || isCurrent(address)) visit(address, ranks(i))
      i += 1
    }
  }

  /** True for the record that its key stands for now. */
  def isCurrent(address: Int): Boolean = table.findIn(pages, address) == address

  /**
   * The records as they are now, to be shown to a scan: none of this family is overwritten any
   * more.
   */
  def showAll(): RecordPages = {
    shownUntil = pages.end
    pages.frozen
  }

  /** Whether no scan can have a record. Addresses grow, but for those behind a large record. */
  def isMutable(address: Int): Boolean =
    Integer.toUnsignedLong(address) >= shownUntil && overlay.isMutable(address)

  /** Address of the record of a key, or 0. */
  def find(key: KeyCodec, hash: Int): Int = {
    val slot = table.find(key.base, key.at, key.length, hash)
    if (slot < 0) 0 else table.addressAt(slot)
  }

  def put(row: UnsafeRow, key: KeyCodec, hash: Int, value: UnsafeRow): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    val size = value.getSizeInBytes
    if (slot >= 0) {
      val old = table.addressAt(slot)
      if (pages.valueLength(old) == size && isMutable(old) &&
        (pages.flags(old) & OpMask) == Put) {
        pages.overwriteValue(old, value.getBaseObject, value.getBaseOffset)
        return
      }
    }
    store(row, slot, hash, pages.append(
      Put, key.base, key.at, key.length, value.getBaseObject, value.getBaseOffset, size))
  }

  def delete(row: UnsafeRow, key: KeyCodec, hash: Int): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    store(row, slot, hash, pages.append(Delete, key.base, key.at, key.length, null, 0L, 0))
  }

  /**
   * Takes back what was written to a key, which has a record here and no row in the view: neither
   * scans nor the commit see it again, and memory goes by the keys that are left.
   */
  def forget(key: KeyCodec, hash: Int): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    val old = table.addressAt(slot)
    if (sorted != null) sorted.remove(old)
    table.remove(slot)
    leave(old)
    overlay.afterWrite()
  }

  /** Replaces (`op` Put) or extends (`op` Merge) the values of a key of a multi-value family. */
  def putValues(
      row: UnsafeRow,
      key: KeyCodec,
      hash: Int,
      op: Int,
      values: Iterator[UnsafeRow]): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    val old = if (slot < 0) 0 else table.addressAt(slot)
    val isAppended = op == Merge && old != 0 && (pages.flags(old) & OpMask) != Delete
    if (isAppended && hasList(old)) {
      val list = listOf(old)
      val before = list.heapBytes
      values.foreach(list.append)
      overlay.listsGrew(list.heapBytes - before)
      overlay.afterWrite()
    } else {
      val list =
        if (isAppended) {
          new ValueBuffer(family, key.length, pages.valueOffset(old), pages.valueLength(old))
        } else {
          new ValueBuffer(family, key.length)
        }
      values.foreach(list.append)
      overlay.listsGrew(list.heapBytes)
      val place = Array[Int](placeFor(list))
      val newOp =
        if (isAppended) pages.flags(old)
        else if (op == Merge && old == 0) Merge
        else Put
      store(row, slot, hash, pages.append(
        newOp | Listed, key.base, key.at, key.length, place, Platform.INT_ARRAY_OFFSET.toLong, 4))
    }
  }

  /** The list that is a record's value, null where the bytes are in the record. */
  def listOf(address: Int): ValueBuffer = if (hasList(address)) lists(placeOf(address)) else null

  def currentLists: Iterator[ValueBuffer] = lists.iterator.filter(_ != null)

  /** The value bytes of a record as it is now. */
  def value(address: Int, ref: BytesRef): Unit =
    if (hasList(address)) lists(placeOf(address)).show(ref)
    else ref.set(pages.base(address), pages.valueOffset(address), pages.valueLength(address))

  /** The list that a spill writes into the record on the heap, null where that stays as it is. */
  def listToStore(address: Int): ValueBuffer = {
    val list = listOf(address)
    if (list != null && list.isShort) list else null
  }

  /** The record of a list is replaced; a scan that began before has the list. */
  def dropList(address: Int): Unit = {
    overlay.listsGrew(-listOf(address).heapBytes)
    lists(placeOf(address)) = null
  }

  private def hasList(address: Int): Boolean = (pages.flags(address) & Listed) != 0

  private def placeOf(address: Int): Int =
    Platform.getInt(pages.base(address), pages.valueOffset(address))

  private def placeFor(list: ValueBuffer): Int =
    if (freePlaces.isEmpty) {
      lists += list
      lists.length - 1
    } else {
      val place = freePlaces.pop()
      lists(place) = list
      place
    }

  /** The record of a key has a new address. */
  def moved(old: Int, address: Int): Unit = {
    table.replace(table.findRecord(old), address)
    if (sorted != null) sorted.replace(address)
  }

  /** Moves the current records on the heap to the end of the pages. */
  def moveHeapRecords(): Unit = {
    var kept = 0
    var i = 0
    while (i < used) {
      val slot = table.findRecord(addresses(i))
      if (slot >= 0 && table.addressAt(slot) == addresses(i)) {
        val copy = pages.copy(addresses(i))
        table.replace(slot, copy)
        if (sorted != null) sorted.replace(copy)
        addresses(kept) = copy
        ranks(kept) = ranks(i)
        kept += 1
      }
      i += 1
    }
    used = kept
  }

  /** No record is left on the heap. */
  def spilled(): Unit = {
    used = 0
    replaced = false
    lists.takeInPlace(lists.lastIndexWhere(_ != null) + 1)
    lists.trimToSize()
    freePlaces = new java.util.ArrayDeque
    lists.indices.filter(lists(_) == null).foreach(freePlaces.push(_))
  }

  /** A record stands for its key no more. */
  private def leave(old: Int): Unit = {
    if (pages.base(old) != null) {
      replaced = true
      overlay.replaced(old)
    }
    if (hasList(old)) {
      dropList(old)
      freePlaces.push(placeOf(old))
    }
  }

  private def store(row: UnsafeRow, slot: Int, hash: Int, address: Int): Unit = {
    if (slot < 0) {
      table.insert(hash, address)
      if (sorted != null) sorted.insert(address)
    } else {
      leave(table.addressAt(slot))
      table.replace(slot, address)
      if (sorted != null) sorted.replace(address)
    }
    if (used == addresses.length) {
      addresses = Arrays.copyOf(addresses, used * 2)
      ranks = Arrays.copyOf(ranks, used * 2)
    }
    addresses(used) = address
    ranks(used) = overlay.keyGroups.rank(keyGroup(row))
    used += 1
    overlay.listed()
    overlay.afterWrite()
  }
}
