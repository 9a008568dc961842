package io.statestore.view

import scala.collection.mutable

/**
 * A working view in pages: of the heap and the filesystem backend. `advance` keeps an undo log of
 * one version, so that the version before can be served again after a failed batch without a load.
 *
 * @param outside memory for its pages outside of the JVM's heap, or null
 */
private[statestore] final class PagedView(
    private var current: ViewVersion,
    val maxParallelism: Int,
    outside: OffHeapMemory = null)
    extends WorkingView {
  import RecordPages._

  private val byName = mutable.LinkedHashMap.empty[String, PagedFamily]
  private var undo: Undo = _

  override def version: ViewVersion = current

  override def previous: ViewVersion = if (undo == null) null else undo.version

  override def families: Iterable[ColumnFamily] = byName.values.map(_.family)

  override def family(name: String): PagedFamily = byName.getOrElse(name, null)

  def addFamily(family: ColumnFamily, expected: Int = 0): PagedFamily = {
    val added = new PagedFamily(family, expected, outside)
    byName.put(family.name, added)
    added
  }

  override def numRows: Long = byName.valuesIterator.map(_.table.size.toLong).sum

  override def numInternalKeys: Long =
    byName.valuesIterator.filter(_.family.internal).map(_.table.size.toLong).sum

  override def bytes: Long =
    byName.valuesIterator.map(_.bytes).sum + (if (undo == null) 0L else undo.bytes)

  /** Goes over all rows and adds up the bytes of their keys and values. */
  def countStateBytes(): Unit =
    current = current.copy(stateBytes = byName.valuesIterator.map(_.stateBytes).sum)

  override def advance(to: ViewAdvance): Unit = {
    forget()
    val changes = to.changes.map(change => change.overlay.family.name -> change).toMap
    byName.foreach { case (name, family) =>
      family.compactIfWasteful(changes.getOrElse(name, null))
    }
    val log = new Undo(current, byName.toSeq)
    undo = log
    to.families.foreach { described =>
      // A roll-back keeps the newer description, which has every schema of the older one.
      byName.get(described.name).fold(addFamily(described)) { known =>
        known.family = described
        known
      }
    }
    to.changes.foreach(change => apply(byName(change.overlay.family.name), change, log))
    byName.valuesIterator.foreach(_.shrinkIfWasteful())
    val names = to.families.map(_.name).toSet
    byName.keys.filterNot(names).toList.foreach(byName.remove)
    current = to.version
  }

  override def rollBack(): Unit = {
    val log = undo
    undo = null
    current = log.version
    val added = byName.valuesIterator.filterNot(log.families.map(_._2).toSet).toList
    byName.clear()
    byName ++= log.families
    log.entries.foreach(_.rollBack())
    added.foreach(_.close())
  }

  override def becomeAttempt(checkpointId: String): Unit =
    current = current.copy(checkpointId = checkpointId)

  override protected def close(): Unit = {
    if (undo != null) undo.families.foreach(_._2.close())
    byName.valuesIterator.foreach(_.close())
  }

  /** Gives up the way back and the space it holds. */
  private def forget(): Unit = if (undo != null) {
    undo.entries.foreach(_.forget())
    undo.families.map(_._2).filterNot(byName.valuesIterator.toSet).foreach(_.close())
    undo = null
  }

  private def apply(into: PagedFamily, change: FamilyChanges, log: Undo): Unit = {
    if (into.adopts && change.isAdoptable) {
      into.adopt(change.overlay)
      log.entries += new Undo.Adopted(into)
      return
    }
    val entry = new Undo.Changed(into, change.length)
    log.entries += entry
    if (change.numNew < change.length) takeIn(into, change, entry, areNew = false)
    if (change.numNew > 0) takeIn(into, change, entry, areNew = true)
  }

  private def takeIn(
      into: PagedFamily,
      change: FamilyChanges,
      entry: Undo.Changed,
      areNew: Boolean): Unit = {
    val overlay = change.overlay.table.pages
    val ref = new BytesRef
    var i = 0
    while (i < change.length) {
      change.prefetch(i, if (areNew) null else into.table)
      val slot = change.slot(i)
      if (slot < 0 == areNew) {
        val from = change.address(i)
        val base = overlay.base(from)
        val keyAt = overlay.keyOffset(from)
        val keyLen = overlay.keyLength(from)
        change.value(i, ref)
        change.op(i) match {
          case Delete => entry.add(0, markDead(into, into.take(slot)))
          case _ if areNew =>
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
      }
      i += 1
    }
  }

  private def markDead(family: PagedFamily, address: Int): Int = {
    family.pages.setFlags(address, Dead)
    address
  }
}
