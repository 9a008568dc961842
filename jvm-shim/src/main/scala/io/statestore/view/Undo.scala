package io.statestore.view

import scala.collection.mutable

/** What it takes to go back one version. */
private[statestore] final class Undo(
    val version: ViewVersion,
    val families: Seq[(String, PagedFamily)]) {
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
  final class Adopted(family: PagedFamily) extends Entry {
    override def rollBack(): Unit = family.clear()
    override def forget(): Unit = ()
    override def bytes: Long = 0L
  }

  /** At most `capacity` pairs of (record of the new version or 0, record of the old one or 0). */
  final class Changed(family: PagedFamily, capacity: Int) extends Entry {
    private val newer = new Array[Int](capacity)
    private val older = new Array[Int](capacity)
    private var used = 0

    def add(newAddress: Int, oldAddress: Int): Unit = {
      newer(used) = newAddress
      older(used) = oldAddress
      used += 1
    }

    override def rollBack(): Unit = {
      var i = used - 1
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
      var i = 0
      while (i < used) {
        if (older(i) != 0) family.pages.release(older(i))
        i += 1
      }
    }

    override def bytes: Long = 8L * capacity
  }
}
