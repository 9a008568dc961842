package io.statestore.view

import java.util.Arrays

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Where the bytes of a key or value are; filled in by the calls that take one. */
private[statestore] final class BytesRef {
  var base: AnyRef = _
  var at: Long = 0L
  var length: Int = 0

  def set(newBase: AnyRef, newAt: Long, newLength: Int): Unit = {
    base = newBase
    at = newAt
    length = newLength
  }
}

/**
 * The values of one key of a multi-value family that a batch puts or appends: entries of (u32
 * big-endian length, UnsafeRow bytes), of which the first may have been spilled to mapped memory.
 * Entries once written never change, so a reader that remembers the length it saw keeps a snapshot.
 *
 * @param keyBytes of the key
 * @param storedAt where its first entries are in mapped memory
 */
private[statestore] final class ValueBuffer(
    family: ColumnFamily,
    keyBytes: Int,
    storedAt: Long = 0L,
    storedBytes: Int = 0) {
  import ValueBuffer._

  // All but the last are at least `ShortBytes` long.
  private var spilled =
    if (storedBytes == 0) Vector.empty[Spilled] else Vector(Spilled(storedAt, storedBytes))
  private var spilledBytes = storedBytes
  private var array = Empty
  private var used = 0

  /** Bytes of all entries. */
  def length: Int = spilledBytes + used

  /** Bytes of the entries on the heap. */
  def unspilledBytes: Int = used

  /** Whether a spill moves it into its record, and nothing of it stays on the heap. */
  def isShort: Boolean = length < ShortBytes

  /** Bytes that `spillTo` writes: those on the heap behind a last part that is short. */
  def bytesToSpill: Int = used + shortPart

  /** Bytes held on the heap, with the room to grow and the place in its family. */
  def heapBytes: Long =
    ListBytes + PartBytes * spilled.length + (if (array.length == 0) 0 else 16L + array.length)

  def append(row: UnsafeRow): Unit = {
    val size = row.getSizeInBytes
    reserve(size + MultiValues.LengthBytes)
    MultiValues.putLength(array, used, size)
    Platform.copyMemory(
      row.getBaseObject,
      row.getBaseOffset,
      array,
      Platform.BYTE_ARRAY_OFFSET.toLong + used + MultiValues.LengthBytes,
      size.toLong)
    used += size + MultiValues.LengthBytes
  }

  /** The values in the first `numBytes` bytes. */
  def rows(numBytes: Int, codec: ValueCodec): Iterator[UnsafeRow] = {
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    if (spilled.isEmpty) {
      MultiValues.rows(array, start, numBytes, codec)
    } else {
      var left = numBytes
      val first = spilled.map { part =>
        val length = math.min(left, part.length)
        left -= length
        MultiValues.rows(null, part.at, length, codec)
      }
      (first :+ MultiValues.rows(array, start, left, codec)).iterator.flatten
    }
  }

  /** Shows all entries in one piece. */
  def show(ref: BytesRef): Unit = {
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    if (spilled.isEmpty) {
      ref.set(array, start, used)
    } else if (spilled.length == 1 && used == 0) {
      ref.set(null, spilled.head.at, spilledBytes)
    } else {
      val whole = new Array[Byte](length)
      var at = start
      spilled.foreach { part =>
        Platform.copyMemory(null, part.at, whole, at, part.length.toLong)
        at += part.length
      }
      Platform.copyMemory(array, start, whole, at, used.toLong)
      ref.set(whole, start, whole.length)
    }
  }

  /** Moves the entries on the heap to mapped memory, which has room for `bytesToSpill`. */
  def spillTo(at: Long): Unit = {
    val before = shortPart
    if (before > 0) {
      Platform.copyMemory(null, spilled.last.at, null, at, before.toLong)
      spilled = spilled.init
    }
    Platform.copyMemory(array, Platform.BYTE_ARRAY_OFFSET.toLong, null, at + before, used.toLong)
    spilled :+= Spilled(at, before + used)
    spilledBytes += used
    array = Empty // readers keep the old one
    used = 0
  }

  private def shortPart: Int =
    if (spilled.isEmpty || spilled.last.length >= ShortBytes) 0 else spilled.last.length

  private def reserve(more: Int): Unit = {
    RowLimits.require(family, keyBytes, length.toLong + more)
    val needed = used + more
    if (needed > array.length) {
      val doubled = math.min(math.max(64L, array.length.toLong * 2), MaxArray).toInt
      array = Arrays.copyOf(array, math.max(needed, doubled))
    }
  }

  private def MaxArray = Int.MaxValue - 16L
}

private object ValueBuffer {
  private val Empty = new Array[Byte](0)

  // A part costs the heap about a hundred bytes; so much of it is written again with the next.
  private val ShortBytes = 512

  // Of the JVM's objects, with compressed pointers; a place takes up to 8 of them.
  private val ListBytes = 48L
  private val PartBytes = 64L

  private final case class Spilled(at: Long, length: Int)
}

private[statestore] object MultiValues {
  val LengthBytes = 4

  def putLength(array: Array[Byte], at: Int, length: Int): Unit = {
    array(at) = (length >>> 24).toByte
    array(at + 1) = (length >>> 16).toByte
    array(at + 2) = (length >>> 8).toByte
    array(at + 3) = length.toByte
  }

  private def lengthAt(base: AnyRef, at: Long): Int =
    (Platform.getByte(base, at) & 0xff) << 24 | (Platform.getByte(base, at + 1) & 0xff) << 16 |
      (Platform.getByte(base, at + 2) & 0xff) << 8 | (Platform.getByte(base, at + 3) & 0xff)

  /** The rows in `numBytes` bytes of entries. */
  def rows(base: AnyRef, at: Long, numBytes: Int, codec: ValueCodec): Iterator[UnsafeRow] =
    new Iterator[UnsafeRow] {
      private var position = 0

      override def hasNext: Boolean = position < numBytes

      override def next(): UnsafeRow = {
        if (!hasNext) throw new NoSuchElementException("no more values")
        val rowBytes = lengthAt(base, at + position)
        val row = codec.decode(base, at + position + LengthBytes, rowBytes)
        position += LengthBytes + rowBytes
        row
      }
    }
}
