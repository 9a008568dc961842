package io.statestore.view

import java.util.Arrays

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * Eight bytes of each of some keys, their word, which tell most of them apart: a signed number. Of
 * two keys with other words the one with the smaller word is smaller; equal words tell nothing.
 *
 * All keys begin with the same `first` bytes, which a word leaves out. Behind these come `split`
 * bytes of it. All keys go on alike from there up to `second`, as rows do that have numbers with
 * leading zeros, or lengths, between two columns: the rest of a word comes from there on. So time
 * and key of a timer are both in its word. Immutable.
 *
 * @param example a key, as far as `second`
 */
private[statestore] final class KeyWord private (
    example: Array[Byte],
    first: Int,
    split: Int,
    second: Int) {
  import KeyWord._

  private[this] val tailBits = 64 - split * 8

  /** The word of a key that `fits`. */
  def of(base: AnyRef, at: Long, length: Int): Long = {
    val head = RecordOrder.wordAt(base, at, length, first)
    if (split == 8) head
    else joined(head, RecordOrder.wordAt(base, at, length, second) ^ Long.MinValue)
  }

  def of(pages: RecordPages, address: Int): Long =
    of(pages.base(address), pages.keyOffset(address), pages.keyLength(address))

  /** Whether a key has what all others have in common, where it matters here. */
  def fits(base: AnyRef, at: Long, length: Int): Boolean =
    length >= (if (split == 8) first else second) &&
      isExample(base, at, 0, first) && (split == 8 || isExample(base, at, first + split, second))

  /** Zero where any bytes begin as all keys do; else on which side of all keys they are. */
  def side(bytes: Array[Byte]): Int = compareToExample(bytes, 0, first)

  /**
   * The word of any bytes whose `side` is zero. Where they do not go on as all keys do, they are on
   * one side of all keys that begin alike: so is the word, or it is that of the outermost ones.
   */
  def ofBound(bytes: Array[Byte]): Long = {
    val head = RecordOrder.wordAt(bytes, ArrayStart, bytes.length, first)
    val order = if (split == 8) 0 else compareToExample(bytes, first + split, second)
    if (split == 8) head
    else if (order < 0) joined(head, 0L)
    else if (order > 0) joined(head, -1L)
    else joined(head, RecordOrder.wordAt(bytes, ArrayStart, bytes.length, second) ^ Long.MinValue)
  }

  private def joined(head: Long, tail: Long): Long =
    (head >>> tailBits << tailBits) | (tail >>> (64 - tailBits))

  private def isExample(base: AnyRef, at: Long, from: Int, until: Int): Boolean =
    ByteArrayMethods.arrayEquals(
      base, at + from, example, ArrayStart + from, (until - from).toLong)

  /** Compares bytes from an index on with the example's; what ends before it is smaller. */
  private def compareToExample(bytes: Array[Byte], from: Int, until: Int): Int = {
    val end = math.min(bytes.length, until)
    if (end <= from) from - until
    else Arrays.compareUnsigned(bytes, from, end, example, from, until)
  }
}

private[statestore] object KeyWord {
  private val ArrayStart = Platform.BYTE_ARRAY_OFFSET.toLong

  /** Bytes that are looked at behind the first in which keys differ. */
  private val Window = 64

  /** Finds where keys differ, of which there is one at least. */
  final class Differences {
    private var example: Array[Byte] = _
    private var differs: Array[Byte] = _ // not zero where two keys have other bytes
    private var limit = 0 // bytes that are looked at: all keys have as many

    def add(pages: RecordPages, address: Int): Unit =
      add(pages.base(address), pages.keyOffset(address), pages.keyLength(address))

    def add(base: AnyRef, at: Long, length: Int): Unit =
      if (example == null) {
        example = new Array[Byte](length)
        Platform.copyMemory(base, at, example, ArrayStart, length.toLong)
        differs = new Array[Byte](length)
        limit = length
      } else {
        if (length < limit) limit = length
        var i = 0
        while (i + 8 <= limit) {
          val other = Platform.getLong(base, at + i) ^ Platform.getLong(example, ArrayStart + i)
          if (other != 0L) note(i, other)
          i += 8
        }
        while (i < limit) {
          val other = Platform.getByte(base, at + i) ^ example(i)
          if (other != 0) {
            differs(i) = -1
            limit = math.min(limit, i + Window)
          }
          i += 1
        }
      }

    private def note(at: Int, other: Long): Unit = {
      val known = Platform.getLong(differs, ArrayStart + at)
      Platform.putLong(differs, ArrayStart + at, known | other)
      limit = math.min(limit, at + Window)
    }

    /** What the words of these keys are: the longest part that is left out tells most. */
    def word: KeyWord = {
      var first = 0
      while (first < limit && differs(first) == 0) first += 1
      var split = 8
      var second = first + 8
      var longest = 0
      var at = first + 1
      while (at < math.min(first + 8, limit)) {
        var end = at
        while (end < limit && differs(end) == 0) end += 1
        if (end - at > longest) {
          longest = end - at
          split = at - first
          second = end
        }
        at = end + 1
      }
      new KeyWord(example, first, split, second)
    }
  }
}
