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
 * The values of one key of a multi-value family while a batch appends to them: entries of (u32
 * big-endian length, UnsafeRow bytes). Bytes once written never change, so a reader that remembers
 * the array and the length it saw keeps a snapshot.
 */
private[statestore] final class ValueBuffer(initial: Int = 64) {
  private var array = new Array[Byte](initial)
  private var used = 0

  def bytes: Array[Byte] = array

  def length: Int = used

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

  def appendEntries(base: AnyRef, at: Long, length: Int): Unit = {
    reserve(length)
    Platform.copyMemory(base, at, array, Platform.BYTE_ARRAY_OFFSET.toLong + used, length.toLong)
    used += length
  }

  def copy(): ValueBuffer = {
    val other = new ValueBuffer(math.max(64, used * 2))
    other.appendEntries(array, Platform.BYTE_ARRAY_OFFSET.toLong, used)
    other
  }

  private def reserve(more: Int): Unit = {
    val needed = Math.addExact(used, more)
    if (needed > array.length) {
      val doubled = math.min(array.length.toLong * 2, MaxArray).toInt
      array = Arrays.copyOf(array, math.max(needed, doubled))
    }
  }

  private def MaxArray = Int.MaxValue - 16L
}

private[statestore] object MultiValues {
  val LengthBytes = 4

  def putLength(array: Array[Byte], at: Int, length: Int): Unit = {
    array(at) = (length >>> 24).toByte
    array(at + 1) = (length >>> 16).toByte
    array(at + 2) = (length >>> 8).toByte
    array(at + 3) = length.toByte
  }

  /** The rows in `numBytes` bytes of entries. */
  def rows(base: AnyRef, at: Long, numBytes: Int, codec: ValueCodec): Iterator[UnsafeRow] =
    new Iterator[UnsafeRow] {
      private var position = 0

      override def hasNext: Boolean = position < numBytes

      override def next(): UnsafeRow = {
        if (!hasNext) throw new NoSuchElementException("no more values")
        val rowBytes = (0 until LengthBytes).foldLeft(0) { (n, i) =>
          (n << 8) | (Platform.getByte(base, at + position + i) & 0xff)
        }
        val row = codec.decode(base, at + position + LengthBytes, rowBytes)
        position += LengthBytes + rowBytes
        row
      }
    }
}
