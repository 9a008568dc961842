package io.statestore.view

import io.statestore.keygroup.KeyGroups
import org.apache.spark.unsafe.Platform

import scala.util.Try

/**
 * Adds a record to pages that have no address left, one whose key is as long as would set a bit of
 * its flags, and values to a list of nearly 2 GiB, which one commit leaves as they are and another
 * puts together with the list; prints how each is refused.
 */
object FullPagesCheck {
  private val at = Platform.BYTE_ARRAY_OFFSET.toLong

  def main(args: Array[String]): Unit = {
    val pages = new RecordPages
    // Of memory that is not there, and not read.
    pages.addMappedPages(0L, RecordPages.PageUnits.toLong * RecordPages.MaxPages)
    println(Try(pages.append(RecordPages.Put, new Array[Byte](8), at, 8, null, 0L, 0)))
    val long = new Array[Byte](RecordPages.KeyLengthMask + 1)
    println(Try((new RecordPages).append(RecordPages.Put, long, at, long.length, null, 0L, 0)))

    val lists = LongRows.family.copy(name = "bids", multiValues = true)
    val overlay = new Overlay(new KeyGroups(LongRows.maxParallelism), 0L, () => null)
    val change = new FamilyChanges(overlay.family(lists, null))
    def bytes(length: Int): BytesRef = {
      val ref = new BytesRef
      ref.set(new Array[Byte](length), at, length)
      ref
    }
    require(change.requireReadable(LongList, bytes(8), bytes(8)).length == LongList.numBytes)
    println(Try(change.requireReadable(LongList, bytes(8), bytes(200))))
    println(Try(change.putTogether(LongList, bytes(8), bytes(200))))
  }

  /** Committed rows: one list, of memory that is not there either. */
  private object LongList extends CommittedFamily {
    val numBytes: Int = Int.MaxValue - 200

    override def get(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        into: BytesRef): Boolean = {
      into.set(null, 0L, numBytes)
      true
    }

    override def rows(): CommittedCursor = throw new UnsupportedOperationException

    override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor =
      throw new UnsupportedOperationException

    override def findSlots(
        other: RecordPages,
        records: Array[Int],
        count: Int,
        found: Array[Int]): Unit = throw new UnsupportedOperationException
  }
}
