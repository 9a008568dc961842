package io.statestore.view

import org.apache.spark.unsafe.Platform

/**
 * The net effect of an overlay on one column family, collected while the delta is written: what the
 * view applies once the engine has made the delta durable. Slots are those of the family's table in
 * the view, which nothing changes in between. So whoever applies it takes the keys that the view
 * has first: with new keys the table may grow, and their slots are not needed.
 */
private[statestore] final class FamilyChanges(val overlay: OverlayFamily) {
  import FamilyChanges.{FoundAtOnce, MaxWholeBytes, PrefetchedAtOnce}
  import RecordPages._

  private val addresses = new Array[Int](overlay.table.size)
  private val slots = new Array[Int](overlay.table.size)
  private var wholes: Array[Array[Byte]] = _ // where a merge was put together
  private var wholeBytes = 0L
  private var used = 0
  private var inserts = 0
  private var deletes = 0

  def length: Int = used

  /** Keys that the view does not have. */
  def numNew: Int = inserts

  def numDeleted: Int = deletes

  def address(i: Int): Int = addresses(i)

  def slot(i: Int): Int = slots(i)

  def op(i: Int): Int = {
    val op = overlay.table.pages.flags(addresses(i)) & OpMask
    if (op == Merge && (slots(i) < 0 || whole(i) != null)) Put else op
  }

  def value(i: Int, ref: BytesRef): Unit = {
    val joined = whole(i)
    if (joined == null) overlay.value(addresses(i), ref)
    else ref.set(joined, Platform.BYTE_ARRAY_OFFSET.toLong, joined.length)
  }

  /**
   * To be called for each change in turn, before it is read: brings some at a time into the cache,
   * with the records in `table` that they replace, so that their cache misses overlap.
   *
   * @param table null for new keys
   */
  def prefetch(i: Int, table: RecordTable): Unit = if (i % PrefetchedAtOnce == 0) {
    val until = math.min(i + PrefetchedAtOnce, used)
    overlay.table.touch(overlay.table.pages, addresses, i, until)
    if (table != null) table.touchSlots(slots, i, until)
  }

  /** Looks the slots up again: those of a table that was made since, of the same version. */
  def findSlots(table: RecordTable): Unit = {
    val some = new Array[Int](math.min(FoundAtOnce, used))
    val found = new Array[Int](some.length)
    var i = 0
    while (i < used) {
      val count = math.min(some.length, used - i)
      System.arraycopy(addresses, i, some, 0, count)
      table.findSlots(overlay.table.pages, some, count, found)
      System.arraycopy(found, 0, slots, i, count)
      i += count
    }
  }

  /** True when the overlay's table is exactly the family's next content. */
  def isAdoptable: Boolean =
    deletes == 0 && !overlay.family.multiValues && used == overlay.table.size &&
      overlay.isAllOfOverlay

  def add(address: Int, slot: Int): Unit = {
    addresses(used) = address
    slots(used) = slot
    used += 1
    if (slot < 0) inserts += 1
    if (op(used - 1) == Delete) deletes += 1
  }

  /**
   * Makes the merge that was added last a put, and puts the whole value in place of what is
   * appended. Where too many bytes are kept already it stays a merge for the view, which then has
   * to look the value up.
   *
   * @param below the committed rows; they have the key
   */
  def putTogether(below: CommittedFamily, key: BytesRef, value: BytesRef): Unit = {
    val committed = requireReadable(below, key, value)
    val joined = new Array[Byte](committed.length + value.length)
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    copyBytes(committed.base, committed.at, joined, start, committed.length)
    copyBytes(value.base, value.at, joined, start + committed.length, value.length)
    if (wholeBytes + joined.length <= MaxWholeBytes) {
      if (wholes == null) wholes = new Array[Array[Byte]](addresses.length)
      wholes(used - 1) = joined
      wholeBytes += joined.length
    }
    value.set(joined, start, joined.length)
  }

  /**
   * The committed value of a key, once it can be read again with what is appended to it.
   *
   * @param below the committed rows; they have the key
   * @throws NoAddressException it cannot
   */
  def requireReadable(below: CommittedFamily, key: BytesRef, more: BytesRef): BytesRef = {
    val committed = new BytesRef
    val hash = RecordTable.hashKey(key.base, key.at, key.length)
    if (!below.get(key.base, key.at, key.length, hash, committed)) {
      throw new IllegalStateException(s"a row is gone: column_family=${overlay.family.name}")
    }
    RowLimits.require(overlay.family, key.length, committed.length.toLong + more.length)
    committed
  }

  private def whole(i: Int): Array[Byte] = if (wholes == null) null else wholes(i)
}

private[statestore] object FamilyChanges {
  import RecordPages._

  private val PrefetchedAtOnce = 64
  private val FoundAtOnce = 1000

  /** Values of a family kept until the view has them. */
  private val MaxWholeBytes = 16L << 20

  /** The operation an overlay record stands for in the delta, or -1 when it changes nothing. */
  def netOp(pages: RecordPages, address: Int, slotInView: Int): Int =
    pages.flags(address) & OpMask match {
      case Delete => if (slotInView < 0) -1 else Delete
      case Merge => if (slotInView < 0) Put else Merge
      case _ => Put
    }
}
