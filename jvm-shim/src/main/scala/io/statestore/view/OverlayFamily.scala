package io.statestore.view

import io.statestore.keygroup.KeyGroupFunction
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** The part of an overlay that belongs to one column family. */
private[statestore] final class OverlayFamily(
    overlay: Overlay,
    val family: ColumnFamily,
    val keyGroup: KeyGroupFunction) {
  import RecordPages._

  private val pages = overlay.pages
  private val codec = new KeyCodec(family)
  private val keyRow = new UnsafeRow(family.spec.keySchema.length)
  val table = new RecordTable(pages)
  val sorted: SortedAddresses = if (family.ordered) new SortedAddresses(pages) else null
  var heapRecords = 0

  def isEmpty: Boolean = table.isEmpty

  def indexBytes: Long = table.indexBytes + (if (sorted == null) 0L else sorted.indexBytes)

  /** Address of the record of a key, or 0. */
  def find(key: KeyCodec, hash: Int): Int = {
    val slot = table.find(key.base, key.at, key.length, hash)
    if (slot < 0) 0 else table.addressAt(slot)
  }

  def put(key: KeyCodec, hash: Int, value: UnsafeRow): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    val size = value.getSizeInBytes
    if (slot >= 0) {
      val old = table.addressAt(slot)
      if (pages.valueLength(old) == size && overlay.isMutable(old) &&
        (pages.flags(old) & OpMask) == Put) {
        pages.overwriteValue(old, value.getBaseObject, value.getBaseOffset)
        return
      }
    }
    store(slot, hash, pages.append(
      Put, key.base, key.at, key.length, value.getBaseObject, value.getBaseOffset, size))
  }

  def delete(key: KeyCodec, hash: Int): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    store(slot, hash, pages.append(Delete, key.base, key.at, key.length, null, 0L, 0))
  }

  /** Replaces (`op` Put) or extends (`op` Merge) the values of a key of a multi-value family. */
  def putValues(key: KeyCodec, hash: Int, op: Int, values: Iterator[UnsafeRow]): Unit = {
    val slot = table.find(key.base, key.at, key.length, hash)
    val old = if (slot < 0) 0 else table.addressAt(slot)
    val oldOp = if (old == 0) Merge else pages.flags(old) & OpMask
    if (op == Merge && old != 0 && oldOp != Delete && overlay.isExternal(old) &&
      overlay.isMutable(old)) {
      append(overlay.external(old), values)
    } else {
      val buffer = if (op == Merge && old != 0 && oldOp != Delete) copyOf(old) else new ValueBuffer
      append(buffer, values)
      val newOp = if (op == Merge && oldOp == Merge) Merge else Put
      store(slot, hash, overlay.appendExternal(newOp, key.base, key.at, key.length, buffer))
    }
  }

  def keyGroupOf(address: Int): Int =
    if (family.ordered) {
      keyGroup(codec.decode(pages, address))
    } else {
      keyRow.pointTo(pages.base(address), pages.keyOffset(address), pages.keyLength(address))
      keyGroup(keyRow)
    }

  /** The record of a key has a new address. */
  def moved(old: Int, address: Int): Unit = {
    table.replace(table.findRecord(old), address)
    if (sorted != null) sorted.replace(address)
  }

  private def append(buffer: ValueBuffer, values: Iterator[UnsafeRow]): Unit = {
    val before = buffer.length
    values.foreach(buffer.append)
    overlay.grewExternally((buffer.length - before).toLong)
  }

  private def copyOf(address: Int): ValueBuffer =
    if (overlay.isExternal(address)) {
      overlay.external(address).copy()
    } else {
      val buffer = new ValueBuffer
      buffer.appendEntries(
        pages.base(address), pages.valueOffset(address), pages.valueLength(address))
      buffer
    }

  private def store(slot: Int, hash: Int, address: Int): Unit = {
    if (slot < 0) {
      table.insert(hash, address)
      if (sorted != null) sorted.insert(address)
      heapRecords += 1
    } else {
      if (pages.base(table.addressAt(slot)) == null) heapRecords += 1
      overlay.superseded()
      table.replace(slot, address)
      if (sorted != null) sorted.replace(address)
    }
    overlay.afterWrite()
  }
}
