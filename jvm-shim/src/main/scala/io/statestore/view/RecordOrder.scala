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
   * Sorts `prefixes(i) = sort prefix << 32 | position` by prefix and then by the key of the
   * record at `addresses(position)`. A prefix is 31 bits: key-group rank and column family.
   */
  def sort(prefixes: Array[Long], pages: RecordPages, addresses: Array[Int]): Unit = {
    java.util.Arrays.sort(prefixes)
    val scratch = new Array[Long](prefixes.length)
    var from = 0
    while (from < prefixes.length) {
      val prefix = prefixes(from) >>> 32
      var until = from + 1
      while (until < prefixes.length && (prefixes(until) >>> 32) == prefix) until += 1
      if (until - from > 1) mergeSort(prefixes, scratch, from, until, pages, addresses)
      from = until
    }
  }

  private def mergeSort(
      items: Array[Long],
      scratch: Array[Long],
      from: Int,
      until: Int,
      pages: RecordPages,
      addresses: Array[Int]): Unit = {
    if (until - from <= 12) {
      var i = from + 1
      while (i < until) {
        val item = items(i)
        val address = addresses(item.toInt)
        var j = i - 1
        while (j >= from && compareRecords(pages, addresses(items(j).toInt), pages, address) > 0) {
          items(j + 1) = items(j)
          j -= 1
        }
        items(j + 1) = item
        i += 1
      }
    } else {
      val middle = (from + until) >>> 1
      mergeSort(items, scratch, from, middle, pages, addresses)
      mergeSort(items, scratch, middle, until, pages, addresses)
      System.arraycopy(items, from, scratch, from, middle - from)
      var left = from
      var right = middle
      var out = from
      while (left < middle) {
        if (right < until &&
          compareRecords(
            pages,
            addresses(items(right).toInt),
            pages,
            addresses(scratch(left).toInt)) < 0) {
          items(out) = items(right)
          right += 1
        } else {
          items(out) = scratch(left)
          left += 1
        }
        out += 1
      }
    }
  }

  @inline private def bigEndian(word: Long): Long =
    if (LittleEndian) java.lang.Long.reverseBytes(word) else word

  private val LittleEndian = java.nio.ByteOrder.nativeOrder == java.nio.ByteOrder.LITTLE_ENDIAN
}
