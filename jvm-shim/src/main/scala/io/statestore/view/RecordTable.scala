package io.statestore.view

import java.util.Arrays

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * Open-addressing hash index (linear probing, one tag byte and one int a slot) over records of
 * `pages`, which several tables may share.
 *
 * A slot number stays valid until the next `insert` that grows the index; `remove` and `replace`
 * move nothing. Not thread-safe for writing.
 */
private[statestore] final class RecordTable(val pages: RecordPages, expected: Int = 0) {
  import RecordTable._

  private var slots = new Slots(capacityFor(expected))
  private var mask = slots.capacity - 1
  private var occupied = 0 // live slots and tombstones
  private var live = 0
  private var wastefulCalls = 0 // of `shrinkIfWasteful`, one after the other
  private var touched = 0 // keeps the loads of `findSlots` from being optimised away

  def size: Int = live

  def isEmpty: Boolean = live == 0

  def indexBytes: Long = slots.capacity * 5L

  /** Slot of a key, or -1. */
  def find(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int): Int =
    findFrom(hash & mask, keyBase, keyAt, keyLen, hash)

  private def findFrom(
      first: Int,
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      hash: Int): Int = {
    val tag = tagOf(hash)
    var slot = first
    while (true) {
      val found = slots.tag(slot)
      if (found == Empty) return -1
      if (found == tag && keyEquals(slots.address(slot), keyBase, keyAt, keyLen)) return slot
      slot = (slot + 1) & mask
    }
    -1
  }

  /** Slot of the key of the record at `address`, or -1. */
  def findRecord(address: Int): Int = findSlot(pages, address)

  /** Slot of the key of a record in `other`, or -1. */
  def findSlot(other: RecordPages, address: Int): Int = {
    val base = other.base(address)
    val at = other.keyOffset(address)
    val length = other.keyLength(address)
    find(base, at, length, hashKey(base, at, length))
  }

  /** Address of the record here that has the key of a record in `other`, or 0. */
  def findIn(other: RecordPages, address: Int): Int = {
    val slot = findSlot(other, address)
    if (slot < 0) 0 else slots.address(slot)
  }

  /**
   * Finds the slots, or -1, of the keys of the first `count` of `records` in `other`. It goes over
   * all of them step by step, so that the cache misses of many keys overlap (group prefetching:
   * Chen et al., Improving Hash Join Performance through Prefetching, ICDE 2004).
   */
  def findSlots(other: RecordPages, records: Array[Int], count: Int, found: Array[Int]): Unit =
    if (isEmpty) {
      touch(other, records, 0, count) // who asks reads them next
      Arrays.fill(found, 0, count, -1)
    } else {
      lookUp(other, records, count, found)
    }

  private def lookUp(
      other: RecordPages,
      records: Array[Int],
      count: Int,
      found: Array[Int]): Unit = {
    val hashes = new Array[Int](count)
    var i = 0
    while (i < count) {
      val record = records(i)
      hashes(i) = hashKey(other.base(record), other.keyOffset(record), other.keyLength(record))
      i += 1
    }
    firstSlots(hashes, count, found)
    i = 0
    while (i < count) {
      if (found(i) >= 0) {
        val record = records(i)
        found(i) = findFrom(
          found(i), other.base(record), other.keyOffset(record), other.keyLength(record), hashes(i))
      }
      i += 1
    }
  }

  /** Brings `records` from `from` on, before `until`, into the cache; 0 is none. */
  def touch(of: RecordPages, records: Array[Int], from: Int, until: Int): Unit = {
    var i = from
    while (i < until) {
      if (records(i) != 0) touched += of.keyLength(records(i))
      i += 1
    }
  }

  /** The same with the records in slots, of which -1 is none. */
  def touchSlots(found: Array[Int], from: Int, until: Int): Unit = {
    var i = from
    while (i < until) {
      if (found(i) >= 0) touched += pages.keyLength(slots.address(found(i)))
      i += 1
    }
  }

  /** Brings the records of `count` keys, at off-heap addresses, into the cache for `find`. */
  def prefetch(keysAt: Array[Long], keyLens: Array[Int], count: Int): Unit = {
    val hashes = new Array[Int](count)
    var i = 0
    while (i < count) {
      hashes(i) = hashKey(null, keysAt(i), keyLens(i))
      i += 1
    }
    firstSlots(hashes, count, new Array[Int](count))
  }

  /** First slots where keys of these hashes may be, or -1; their records are in the cache then. */
  private def firstSlots(hashes: Array[Int], count: Int, found: Array[Int]): Unit = {
    var i = 0
    while (i < count) {
      found(i) = firstWithTag(hashes(i))
      i += 1
    }
    touchSlots(found, 0, count)
  }

  private def firstWithTag(hash: Int): Int = {
    val tag = tagOf(hash)
    var slot = hash & mask
    while (slots.tag(slot) != Empty && slots.tag(slot) != tag) slot = (slot + 1) & mask
    if (slots.tag(slot) == Empty) -1 else slot
  }

  @inline def addressAt(slot: Int): Int = slots.address(slot)

  /** Points a found slot at another record of the same key. */
  def replace(slot: Int, address: Int): Unit = slots.setAddress(slot, address)

  /** Adds a key that is known to be absent. */
  def insert(hash: Int, address: Int): Unit = {
    if ((occupied + 1) * 5L > slots.capacity * 4L) {
      // Where rows come and go: else tombstones would soon fill what little room is left.
      val spare = if (occupied > live) live / SpareShare else 0
      rehash(capacityFor(math.max(live + 1, math.min(live + spare + 1, MostRows))))
    }
    if (slots.place(hash, address)) occupied += 1
    live += 1
  }

  /**
   * Gives up room that rows which are gone have left, where it was too much in many calls one after
   * the other: rows that come and go in turns would make it grow again. Changes slot numbers.
   */
  def shrinkIfWasteful(): Unit = {
    val enough = capacityFor(math.max(live, math.min(live + live / SpareShare, MostRows)))
    val isWasteful = slots.capacity > SegmentSlots && slots.capacity / WastefulTimes >= enough
    wastefulCalls = if (isWasteful) wastefulCalls + 1 else 0
    if (wastefulCalls >= WastefulCalls) {
      rehash(enough)
      wastefulCalls = 0
    }
  }

  def remove(slot: Int): Unit = {
    // A slot before an empty one ends no probe sequence, so it need not leave a tombstone.
    if (slots.tag((slot + 1) & mask) == Empty) {
      slots.setTag(slot, Empty)
      occupied -= 1
    } else {
      slots.setTag(slot, Tombstone)
    }
    slots.setAddress(slot, 0)
    live -= 1
  }

  /** Addresses of all records, in no order. */
  def liveAddresses: Array[Int] = {
    val all = new Array[Int](live)
    var slot = 0
    var n = 0
    while (n < live) {
      if (slots.address(slot) != 0) {
        all(n) = slots.address(slot)
        n += 1
      }
      slot += 1
    }
    all
  }

  /** The table as it is now, for reading; later changes do not show in it. */
  def frozen: RecordTable = {
    val copy = new RecordTable(pages.frozen)
    copy.slots = slots.copy()
    copy.mask = mask
    copy.occupied = occupied
    copy.live = live
    copy
  }

  private def keyEquals(address: Int, keyBase: AnyRef, keyAt: Long, keyLen: Int): Boolean = {
    val page = pages.base(address)
    val at = pages.offset(address)
    (Platform.getInt(page, at) & RecordPages.KeyLengthMask) == keyLen &&
    ByteArrayMethods.arrayEquals(keyBase, keyAt, page, at + RecordPages.HeaderBytes, keyLen.toLong)
  }

  private def rehash(capacity: Int): Unit = {
    val larger = new Slots(capacity)
    val moved = new Array[Int](math.min(slots.capacity, MovedAtOnce))
    var from = 0
    while (from < slots.capacity) {
      slots.copyAddresses(from, moved)
      touch(pages, moved, 0, moved.length)
      var i = 0
      while (i < moved.length) {
        val address = moved(i)
        if (address != 0) {
          val base = pages.base(address)
          val at = pages.offset(address)
          val length = Platform.getInt(base, at) & RecordPages.KeyLengthMask
          larger.place(hashKey(base, at + RecordPages.HeaderBytes, length), address)
        }
        i += 1
      }
      from += moved.length
    }
    slots = larger
    mask = capacity - 1
    occupied = live
  }
}

private[statestore] object RecordTable {
  private val Empty: Byte = 0
  private val Tombstone: Byte = 1

  /** A table that was filled up by removals gets room for one in so many of its rows. */
  private val SpareShare = 8

  /** An index of so many times the slots that its rows need is wasteful. */
  private val WastefulTimes = 4
  private val WastefulCalls = 16

  @inline private def tagOf(hash: Int): Byte = {
    val tag = hash >>> 24
    (if (tag < 2) tag + 2 else tag).toByte
  }

  private val MostSlots = 1 << 30
  private val MostRows = ((MostSlots - 1L) * 4L / 5L).toInt

  private def capacityFor(entries: Int): Int = {
    val wanted = math.max(8L, entries * 5L / 4L + 1L)
    if (wanted > MostSlots) {
      throw new NoAddressException(
        "[state-too-large] a column family of a state partition has too many rows: " +
          s"rows=$entries maximum=$MostRows. To fix: go on in a checkpoint with more state " +
          "partitions: statestore restore CHECKPOINT NEW --num-partitions N")
    }
    val power = Integer.highestOneBit(wanted.toInt)
    if (power < wanted) power << 1 else power
  }

  /**
   * Tags and addresses in segments: an array of a power of two just misses fitting the regions that
   * G1 gives large objects, and would waste the better part of one.
   */
  private final class Slots(val capacity: Int) {
    private[this] val tags =
      Array.fill(numSegments(capacity))(new Array[Byte](math.min(capacity, SegmentSlots)))
    private[this] val addresses =
      Array.fill(numSegments(capacity))(new Array[Int](math.min(capacity, SegmentSlots)))

    @inline def tag(slot: Int): Byte = tags(slot >>> SegmentShift)(slot & SegmentMask)

    @inline def address(slot: Int): Int = addresses(slot >>> SegmentShift)(slot & SegmentMask)

    @inline def setTag(slot: Int, tag: Byte): Unit =
      tags(slot >>> SegmentShift)(slot & SegmentMask) = tag

    @inline def setAddress(slot: Int, address: Int): Unit =
      addresses(slot >>> SegmentShift)(slot & SegmentMask) = address

    /** The addresses, 0 for none, of as many slots as `into` has; all are in one segment. */
    def copyAddresses(from: Int, into: Array[Int]): Unit =
      System.arraycopy(addresses(from >>> SegmentShift), from & SegmentMask, into, 0, into.length)

    /** Whether it took a slot that was empty, and not a tombstone. */
    def place(hash: Int, newAddress: Int): Boolean = {
      val mask = capacity - 1
      var slot = hash & mask
      while (address(slot) != 0) slot = (slot + 1) & mask
      val wasEmpty = tag(slot) == Empty
      setTag(slot, tagOf(hash))
      setAddress(slot, newAddress)
      wasEmpty
    }

    def copy(): Slots = {
      val other = new Slots(capacity)
      var slot = 0
      while (slot < capacity) {
        other.setTag(slot, tag(slot))
        other.setAddress(slot, address(slot))
        slot += 1
      }
      other
    }
  }

  /** Slots whose records are brought into the cache together before they move: a power of two. */
  private val MovedAtOnce = 256

  private val SegmentShift = 15
  private val SegmentSlots = 1 << SegmentShift
  private val SegmentMask = SegmentSlots - 1

  private def numSegments(capacity: Int): Int = math.max(1, capacity >>> SegmentShift)

  /**
   * Hash of key bytes, a word at a time; unrelated to Spark's partition hash, which all keys of a
   * store agree in.
   */
  def hashKey(base: AnyRef, at: Long, length: Int): Int = {
    var hash = Seed ^ length
    var i = 0
    while (i + 8 <= length) {
      hash = mix(hash, Platform.getLong(base, at + i))
      i += 8
    }
    if (i < length) {
      var rest = 0L
      while (i < length) {
        rest = (rest << 8) | (Platform.getByte(base, at + i) & 0xffL)
        i += 1
      }
      hash = mix(hash, rest)
    }
    (mix(hash, 0L) >>> 32).toInt
  }

  @inline private def mix(hash: Long, word: Long): Long = {
    val product = (hash ^ word) * Multiplier
    product ^ (product >>> 29)
  }

  private val Seed = 0x5eedL
  private val Multiplier = 0x9e3779b97f4a7c15L // 2^64 / golden ratio
}
