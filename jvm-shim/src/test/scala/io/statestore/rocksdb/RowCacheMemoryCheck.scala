package io.statestore.rocksdb

import java.util.concurrent.atomic.AtomicLong

import scala.util.Try

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import io.statestore.view._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{BinaryType, LongType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * Memory of caches that have all rows outside of the heap: prints the most that one held beside the
 * bytes of its rows, in percent, where every row is longer with each batch; and what becomes of
 * rows that are read in vain: more than can be addressed, and some that cannot be read.
 */
object RowCacheMemoryCheck {
  private val numRows = 20000
  private val numBatches = 12
  private val keySchema = new StructType().add("k", LongType)
  private val valueSchema = new StructType().add("v", BinaryType)
  private val family = ColumnFamily(
    ColumnFamily.DefaultId,
    "default",
    NoPrefixKeyStateEncoderSpec(keySchema),
    valueSchema,
    multiValues = false,
    internal = false)

  private val granted = new AtomicLong
  private val memory = new OffHeapMemory(
    new OffHeapMemory.Budget {
      override def grant(bytes: Long): Boolean = granted.addAndGet(bytes) > 0L
      override def giveBack(bytes: Long): Unit = {
        granted.addAndGet(-bytes)
        ()
      }
      override def limit: String = "none"
    },
    keptMs = 2L)

  def main(args: Array[String]): Unit = {
    println(s"percent=$mostHeld")
    println(s"unaddressable=$unaddressable")
    println(s"unreadable=$unreadable")
    val end = System.nanoTime() + 10000000000L
    while (granted.get > 0L && System.nanoTime() < end) Thread.sleep(5L)
    println(s"left=${granted.get}")
  }

  private def mostHeld: Long = {
    val cache = new RowCache(1L << 30, new PagedFamily(family, outside = memory))
    val toKey = UnsafeProjection.create(keySchema)
    val toValue = UnsafeProjection.create(valueSchema)
    val most = (1 to numBatches).map { batch =>
      val overlay = new Overlay(
        new KeyGroups(64), 1L << 40, () => throw new IllegalStateException("spilled"), true)
      val state = new FamilyState(family, cache.all, overlay, () => overlay.family(
        family, PartitionKey.function("default", false, family.name, family.spec, 64)))
      (0 until numRows).foreach { number =>
        val value = new Array[Byte](64 + 16 * batch)
        state.put(toKey(InternalRow(number.toLong)), toValue(InternalRow(value)))
      }
      var change: FamilyChanges = null
      val slots = new Array[Int](RecordBlock.Capacity)
      overlay.visitSorted { block =>
        if (change == null) change = new FamilyChanges(block.family)
        cache.findSlots(overlay.pages, block.addresses, block.length, slots)
        (0 until block.length).foreach(i => change.add(block.addresses(i), slots(i)))
      }
      cache.write(change)
      require(cache.all != null && cache.all.table.size == numRows, s"rows are gone: batch=$batch")
      100L * cache.bytes / cache.all.stateBytes
    }.max
    cache.close()
    most
  }

  /** Rows of eight bytes without an end; `onRow` is called before each. */
  private def rows(onRow: Int => Unit, onClose: () => Unit): CommittedCursor = new CommittedCursor {
    private var number = 0

    override def advance(): Boolean = {
      onRow(number)
      number += 1
      val bytes = java.nio.ByteBuffer.allocate(8).putLong(number.toLong).array
      key.set(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, 8)
      value.set(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, 8)
      true
    }

    override def close(): Unit = onClose()
  }

  private def unaddressable: String = {
    val cache = new RowCache(1L << 30, null)
    val full = new PagedFamily(family)
    // Of memory that is not there, and not read.
    full.pages.addMappedPages(0L, RecordPages.PageUnits.toLong * RecordPages.MaxPages)
    var closed = 0
    val areTooMany = Try(cache.load(full, rows(_ => (), () => closed += 1), 100L, () => true))
    cache.close()
    s"tooMany:${areTooMany.getOrElse("raised")},all:${cache.all != null},closed:$closed"
  }

  private def unreadable: String = {
    val cache = new RowCache(1L << 30, null)
    var closed = 0
    val failure = Try(cache.load(
      new PagedFamily(family, outside = memory),
      rows(
        number => if (number == 100000) throw new java.io.IOException("unreadable"),
        () => closed += 1),
      100L,
      () => true))
    cache.close()
    s"${failure.failed.get.getMessage},all:${cache.all != null},closed:$closed"
  }
}
