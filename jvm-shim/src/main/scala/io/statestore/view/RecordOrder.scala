package io.statestore.view

import org.apache.spark.unsafe.Platform

/** Unsigned byte order of record keys, the order of state files and of ordered encoders. */
private[statestore] object RecordOrder {

  def compareKeys(
      leftBase: AnyRef,
      leftAt: Long,
      leftLen: Int,
      rightBase: AnyRef,
      rightAt: Long,
      rightLen: Int): Int = {
    val common = math.min(leftLen, rightLen)
    var i = 0
    while (i + 8 <= common) {
      val left = Platform.getLong(leftBase, leftAt + i)
      val right = Platform.getLong(rightBase, rightAt + i)
      if (left != right) {
        return java.lang.Long.compareUnsigned(bigEndian(left), bigEndian(right))
      }
      i += 8
    }
    while (i < common) {
      val left = Platform.getByte(leftBase, leftAt + i) & 0xff
      val right = Platform.getByte(rightBase, rightAt + i) & 0xff
      if (left != right) return left - right
      i += 1
    }
    leftLen - rightLen
  }

  def compareRecords(
      left: RecordPages,
      leftAddress: Int,
      right: RecordPages,
      rightAddress: Int): Int =
    compareKeys(
      left.base(leftAddress),
      left.keyOffset(leftAddress),
      left.keyLength(leftAddress),
      right.base(rightAddress),
      right.keyOffset(rightAddress),
      right.keyLength(rightAddress))

  def compareToBytes(pages: RecordPages, address: Int, bytes: Array[Byte]): Int =
    compareKeys(
      pages.base(address),
      pages.keyOffset(address),
      pages.keyLength(address),
      bytes,
      Platform.BYTE_ARRAY_OFFSET.toLong,
      bytes.length)

  /**
   * The 8 bytes of a key from `from` on, zeros behind its end, as a signed number that sorts as
   * they do.
   */
  def wordAt(base: AnyRef, at: Long, length: Int, from: Int): Long = {
    var word = 0L
    if (from + 8 <= length) {
      word = bigEndian(Platform.getLong(base, at + from))
    } else {
      var i = from
      while (i < length) {
        word |= (Platform.getByte(base, at + i) & 0xffL) << (56 - ((i - from) << 3))
        i += 1
      }
    }
    word ^ Long.MinValue
  }

  /** A word read from memory as the number whose unsigned order is that of its bytes. */
  @inline def bigEndian(word: Long): Long =
    if (LittleEndian) java.lang.Long.reverseBytes(word) else word

  private val LittleEndian = java.nio.ByteOrder.nativeOrder == java.nio.ByteOrder.LITTLE_ENDIAN
}
