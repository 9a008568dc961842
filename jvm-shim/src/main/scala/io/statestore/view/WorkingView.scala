package io.statestore.view

import scala.collection.mutable
import scala.collection.mutable.ArrayBuilder

import org.apache.spark.unsafe.Platform

/** The committed rows of one column family, at the version of the view it belongs to. */
private[statestore] final class ViewFamily(val family: ColumnFamily, expected: Int = 0) {
  import RecordPages._

  private var records = new RecordPages
  private var index = new RecordTable(records, expected)
  private var order: SortedAddresses = if (family.ordered) new SortedAddresses(records) else null

  def pages: RecordPages = records

  def table: RecordTable = index

  def sorted: SortedAddresses = order

  def heapBytes: Long =
    records.heapBytes + index.indexBytes + (if (order == null) 0L else order.indexBytes)

  /** Address of the record of a key, or 0. */
  def find(key: KeyCodec, hash: Int): Int = {
    val slot = index.find(key.base, key.at, key.length, hash)
    if (slot < 0) 0 else index.addressAt(slot)
  }

  /**
   * Puts a record with no way back, as a restore does.
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
    val hash = RecordTable.hashKey(keyBase, keyAt, keyLen)
    val slot = index.find(keyBase, keyAt, keyLen, hash)
    if (slot < 0) {
      add(hash, records.append(Put, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen))
    } else {
      val old = index.addressAt(slot)
      val address =
        if (append) appendedRecord(old, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
        else records.append(Put, keyBase, keyAt, keyLen, valueBase, valueAt, valueLen)
      point(slot, address)
      records.release(old)
    }
  }

  /** Removes a key with no way back, as a restore does. */
  def unload(keyBase: AnyRef, keyAt: Long, keyLen: Int): Unit = {
    val slot = index.find(keyBase, keyAt, keyLen, RecordTable.hashKey(keyBase, keyAt, keyLen))
    if (slot >= 0) records.release(take(slot))
  }

  /** Takes over the records of an overlay that holds nothing but puts; this family is empty. */
  def adopt(overlay: OverlayFamily): Unit = {
    records = overlay.table.pages
    index = overlay.table
    order = overlay.sorted
  }

  def clear(): Unit = {
    records = new RecordPages
    index = new RecordTable(records)
    order = if (family.ordered) new SortedAddresses(records) else null
  }

  /** Rewrites the records when more than a quarter of the pages is dead. */
  def compactIfWasteful(): Unit = {
    val dead = records.heapBytes - records.liveBytes
    if (dead > records.heapBytes / 4 && dead > CompactionFloorBytes) {
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
    val joined = new Array[Byte](Math.addExact(oldLen, valueLen))
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
}

/**
 * The rows of one store at one version, on the JVM heap. A cache of durable state: it can be
 * dropped at any time and loaded again.
 *
 * `advance` applies a committed overlay and keeps an undo log of one version, so that the version
 * before can be served again after a failed batch without a load. Both change the view in place
 * and are only allowed while no handle but the caller's is open on it (`StateStoreProvider` sees
 * to it).
 */
private[statestore] final class WorkingView(
    private var current: ViewVersion,
    val maxParallelism: Int) {
  import RecordPages._

  private val byName = mutable.LinkedHashMap.empty[String, ViewFamily]
  private var undo: Undo = _
  private var handles = 0

  def version: ViewVersion = current

  /** The version `rollBack` would go to, or null. */
  def previous: ViewVersion = if (undo == null) null else undo.version

  /** Handles that may read the view or rows of it; guarded by the provider's lock. */
  def openHandles: Int = handles
  def open(): Unit = handles += 1
  def release(): Unit = handles -= 1

  def families: Iterable[ViewFamily] = byName.values

  def family(name: String): ViewFamily = byName.getOrElse(name, null)

  def addFamily(family: ColumnFamily, expected: Int = 0): ViewFamily = {
    val added = new ViewFamily(family, expected)
    byName.put(family.name, added)
    added
  }

  /** Rows, those of internal column families included. */
  def numRows: Long = byName.valuesIterator.map(_.table.size.toLong).sum

  /** Rows as `StateStoreMetrics.numKeys` counts them: without internal column families. */
  def numKeys: Long =
    byName.valuesIterator.filterNot(_.family.internal).map(_.table.size.toLong).sum

  def numInternalKeys: Long = numRows - numKeys

  def heapBytes: Long =
    byName.valuesIterator.map(_.heapBytes).sum + (if (undo == null) 0L else undo.bytes)

  /**
   * Makes the view the version that `changes` commits.
   *
   * @param families the column families of the new version
   */
  def advance(
      next: ViewVersion,
      families: Seq[ColumnFamily],
      changes: Iterable[FamilyChanges]): Unit = {
    forget()
    byName.valuesIterator.foreach(_.compactIfWasteful())
    val log = new Undo(current, byName.toSeq)
    undo = log
    families.foreach(f => if (!byName.contains(f.name)) addFamily(f))
    changes.foreach(change => apply(byName(change.overlay.family.name), change, log))
    val names = families.map(_.name).toSet
    byName.keys.filterNot(names).toList.foreach(byName.remove)
    current = next
  }

  /** Goes back to the version before the last `advance`. */
  def rollBack(): Unit = {
    val log = undo
    undo = null
    current = log.version
    byName.clear()
    byName ++= log.families
    log.entries.foreach(_.rollBack())
  }

  /** Gives up the way back and the space it holds. */
  private def forget(): Unit = if (undo != null) {
    undo.entries.foreach(_.forget())
    undo = null
  }

  private def apply(into: ViewFamily, change: FamilyChanges, log: Undo): Unit = {
    if (into.table.isEmpty && change.isAdoptable) {
      into.adopt(change.overlay)
      log.entries += new Undo.Adopted(into)
      return
    }
    val entry = new Undo.Changed(into)
    log.entries += entry
    val overlay = change.overlay.table.pages
    val ref = new ValueRef
    val slotsHold = into.table.hasRoomFor(change.numNew)
    var i = 0
    while (i < change.length) {
      val from = change.address(i)
      val base = overlay.base(from)
      val keyAt = overlay.keyOffset(from)
      val keyLen = overlay.keyLength(from)
      val slot = if (slotsHold) change.slot(i) else findSlot(into, base, keyAt, keyLen)
      change.value(i, ref)
      change.op(i) match {
        case Delete => entry.add(0, markDead(into, into.take(slot)))
        case _ if slot < 0 =>
          val added = into.pages.append(Put, base, keyAt, keyLen, ref.base, ref.at, ref.length)
          into.add(RecordTable.hashKey(base, keyAt, keyLen), added)
          entry.add(added, 0)
        case op =>
          val old = into.table.addressAt(slot)
          val added =
            if (op == Merge) {
              into.appendedRecord(old, base, keyAt, keyLen, ref.base, ref.at, ref.length)
            } else {
              into.pages.append(Put, base, keyAt, keyLen, ref.base, ref.at, ref.length)
            }
          into.point(slot, added)
          entry.add(added, markDead(into, old))
      }
      i += 1
    }
  }

  private def markDead(family: ViewFamily, address: Int): Int = {
    family.pages.setFlags(address, Dead)
    address
  }

  private def findSlot(into: ViewFamily, base: AnyRef, at: Long, length: Int): Int =
    into.table.find(base, at, length, RecordTable.hashKey(base, at, length))
}

/** A version a view can be at; the checkpoint ID and lineage tell two attempts of it apart. */
private[statestore] final case class ViewVersion(
    number: Long,
    checkpointId: String,
    lineage: String,
    rescalable: Boolean)

/** What it takes to go back one version. */
private[statestore] final class Undo(
    val version: ViewVersion,
    val families: Seq[(String, ViewFamily)]) {
  val entries = mutable.ArrayBuffer.empty[Undo.Entry]
  def bytes: Long = entries.map(_.bytes).sum
}

private[statestore] object Undo {
  import RecordPages._

  sealed trait Entry {
    def rollBack(): Unit
    def forget(): Unit
    def bytes: Long
  }

  /** The family was empty and took over the overlay's records. */
  final class Adopted(family: ViewFamily) extends Entry {
    override def rollBack(): Unit = family.clear()
    override def forget(): Unit = ()
    override def bytes: Long = 0L
  }

  /** Pairs of (record of the new version or 0, record of the old version or 0). */
  final class Changed(family: ViewFamily) extends Entry {
    private val added = new ArrayBuilder.ofInt
    private val replaced = new ArrayBuilder.ofInt

    def add(newAddress: Int, oldAddress: Int): Unit = {
      added += newAddress
      replaced += oldAddress
    }

    override def rollBack(): Unit = {
      val newer = added.result()
      val older = replaced.result()
      var i = newer.length - 1
      while (i >= 0) {
        val slot = if (newer(i) == 0) -1 else family.table.findRecord(newer(i))
        if (older(i) != 0) family.pages.setFlags(older(i), Put)
        if (newer(i) == 0) {
          val old = older(i)
          val pages = family.pages
          family.add(
            RecordTable.hashKey(pages.base(old), pages.keyOffset(old), pages.keyLength(old)),
            old)
        } else if (older(i) == 0) {
          family.take(slot)
        } else {
          family.point(slot, older(i))
        }
        if (newer(i) != 0) family.pages.release(newer(i))
        i -= 1
      }
    }

    override def forget(): Unit = {
      val older = replaced.result()
      var i = 0
      while (i < older.length) {
        if (older(i) != 0) family.pages.release(older(i))
        i += 1
      }
    }

    override def bytes: Long = 8L * added.length
  }
}
