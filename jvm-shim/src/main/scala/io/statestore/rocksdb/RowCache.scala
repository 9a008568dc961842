package io.statestore.rocksdb

import java.util.concurrent.atomic.AtomicInteger

import io.statestore.view.{BytesRef, RecordPages, RecordTable}
import org.apache.spark.unsafe.Platform

/**
 * Rows of one store that were read or written lately, absent ones included, in bounded memory. Two
 * generations: a row that is found in the old one moves to the young one, and when the young one
 * is full it becomes the old one, whose rows go. Rows handed out stay valid: a generation that went
 * lives as long as a row points into it. Not thread-safe.
 *
 * @param budgetBytes for the caches of all stores of this JVM together
 */
private[rocksdb] final class RowCache(budgetBytes: Long) {
  import RecordPages.{Delete, OpMask, Put}
  import RowCache._

  private var young = new Generation
  private var old = new Generation
  numStores.incrementAndGet()

  def heapBytes: Long = young.bytes + old.bytes

  /** Looks a key up; where the answer is `Found`, `into` shows the value. */
  def find(key: Array[Byte], hash: Int, into: BytesRef): Int = {
    val address = young.find(key, hash)
    if (address != 0) {
      young.show(address, into)
    } else {
      val older = old.find(key, hash)
      if (older == 0) {
        Unknown
      } else {
        val answer = old.show(older, into)
        if (answer == Absent) put(key, hash, Delete, null, 0L, 0)
        else put(key, hash, Put, into.base, into.at, into.length)
        answer
      }
    }
  }

  def put(key: Array[Byte], hash: Int, valueBase: AnyRef, valueAt: Long, valueLen: Int): Unit =
    put(key, hash, Put, valueBase, valueAt, valueLen)

  def putAbsent(key: Array[Byte], hash: Int): Unit = put(key, hash, Delete, null, 0L, 0)

  def remove(key: Array[Byte], hash: Int): Unit = {
    young.remove(key, hash)
    old.remove(key, hash)
  }

  def close(): Unit = {
    numStores.decrementAndGet()
    young = new Generation
    old = new Generation
  }

  private def put(
      key: Array[Byte],
      hash: Int,
      op: Int,
      valueBase: AnyRef,
      valueAt: Long,
      valueLen: Int): Unit = {
    val share = budgetBytes / math.max(1, numStores.get)
    if (share < SmallestShare) {
      remove(key, hash)
      return
    }
    if (young.bytes > share / 2) {
      old = young
      young = new Generation
    }
    young.put(key, hash, op, valueBase, valueAt, valueLen)
  }

  private final class Generation {
    private val pages = new RecordPages
    private val table = new RecordTable(pages, 0)

    def bytes: Long = if (table.isEmpty) 0L else pages.heapBytes + table.indexBytes

    def find(key: Array[Byte], hash: Int): Int = {
      val slot = if (table.isEmpty) -1 else table.find(key, Start, key.length, hash)
      if (slot < 0) 0 else table.addressAt(slot)
    }

    def show(address: Int, into: BytesRef): Int =
      if ((pages.flags(address) & OpMask) == Delete) {
        Absent
      } else {
        into.set(pages.base(address), pages.valueOffset(address), pages.valueLength(address))
        Found
      }

    def put(
        key: Array[Byte],
        hash: Int,
        op: Int,
        valueBase: AnyRef,
        valueAt: Long,
        valueLen: Int): Unit = {
      val slot = table.find(key, Start, key.length, hash)
      val address = pages.append(op, key, Start, key.length, valueBase, valueAt, valueLen)
      if (slot < 0) table.insert(hash, address) else table.replace(slot, address)
    }

    def remove(key: Array[Byte], hash: Int): Unit = {
      val slot = if (table.isEmpty) -1 else table.find(key, Start, key.length, hash)
      if (slot >= 0) table.remove(slot)
    }
  }
}

private[rocksdb] object RowCache {
  val Unknown = 0
  val Absent = 1
  val Found = 2

  private val numStores = new AtomicInteger

  // A page and an index; below that a cache costs more than it saves.
  private val SmallestShare = 256L * 1024L

  private def Start: Long = Platform.BYTE_ARRAY_OFFSET.toLong
}
