package io.statestore.view

/**
 * The net effect of an overlay on one column family, collected while the delta is written: what the
 * view applies once the engine has made the delta durable. Slots are those of the family's table in
 * the view, which nothing changes in between.
 */
private[statestore] final class FamilyChanges(overlays: Overlay, val overlay: OverlayFamily) {
  import RecordPages._

  private val addresses = new Array[Int](overlay.table.size)
  private val slots = new Array[Int](overlay.table.size)
  private var used = 0
  private var inserts = 0
  private var deletes = 0
  private var inHeap = true

  def length: Int = used

  /** Keys that the view does not have. */
  def numNew: Int = inserts

  def numDeleted: Int = deletes

  def address(i: Int): Int = addresses(i)

  def slot(i: Int): Int = slots(i)

  def op(i: Int): Int = overlay.table.pages.flags(addresses(i)) & OpMask

  def value(i: Int, ref: BytesRef): Unit = overlays.value(addresses(i), ref)

  /** True when the overlay's table is exactly the family's next content. */
  def isAdoptable: Boolean =
    inHeap && deletes == 0 && !overlay.family.multiValues && used == overlay.table.size &&
      overlays.isPristine

  def add(address: Int, slot: Int): Unit = {
    addresses(used) = address
    slots(used) = slot
    used += 1
    if (slot < 0) inserts += 1
    if (op(used - 1) == Delete) deletes += 1
    if (overlay.table.pages.base(address) == null) inHeap = false
  }
}

private[statestore] object FamilyChanges {
  import RecordPages._

  /** The operation an overlay record stands for in the delta, or -1 when it changes nothing. */
  def netOp(pages: RecordPages, address: Int, slotInView: Int): Int =
    pages.flags(address) & OpMask match {
      case Delete => if (slotInView < 0) -1 else Delete
      case Merge => if (slotInView < 0) Put else Merge
      case _ => Put
    }
}
