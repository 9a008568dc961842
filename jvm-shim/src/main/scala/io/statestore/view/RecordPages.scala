package io.statestore.view

import java.util.Arrays

import org.apache.spark.unsafe.Platform

/**
 * Key/value records in byte pages: a million records are a few objects for the garbage collector.
 *
 * A record is `[flags 4 bit | key length 28 bit: int][value length: int][key][value]`, key and
 * value padded with zeros to 8 bytes. Its address is an unsigned int counting 8-byte units: the
 * upper 17 bits name the page, the lower 15 the unit in it; 0 means "no record". A record never
 * moves and is never overwritten while it may be read, except by compaction and where a released
 * record is taken again, both of which only the owner of a view with no other open handle does.
 * Pages are byte arrays (below half a G1 region), memory outside of the heap or, for records that
 * were spilled, memory-mapped; a record larger than half a page gets one of its own.
 *
 * Not thread-safe for writing; readers may run beside each other.
 *
 * @param outside where pages are, but for the first, which a store of few rows does not fill; null
 *        for the heap. Then `close` has to be called, and nothing may read a page that was dropped
 */
private[statestore] final class RecordPages(outside: OffHeapMemory = null) {
  import RecordPages._

  private var bases = new Array[AnyRef](4)
  private var starts = new Array[Long](4)
  private var ends = new Array[Int](4)
  private var numPages = 0
  private var tail = -1
  private var tailCapacity = 0
  private var free = new Array[FreeRecords](0) // by their size
  private var freeBytes = 0L
  private var releasedBytes = 0L
  private val freePages = new java.util.ArrayDeque[Integer]()
  private var held = 0L
  private var heldOutside = 0L

  /** Bytes of the pages held, without mapped ones, and of what tells which records are free. */
  def heldBytes: Long = held + freeBytes

  /** Those of them outside of the heap. */
  def outsideBytes: Long = heldOutside

  /**
   * Bytes of released records, without those that had a page of their own. What is left over at the
   * end of a page, where the next record did not fit, is not among them: a rewrite leaves as much.
   */
  def deadBytes: Long = releasedBytes

  /** How many records of so many units `allocate` will take that were released. */
  def numFree(size: Int): Int = if (size < free.length && free(size) != null) free(size).size else 0

  def pageCount: Int = numPages

  /** First unit behind the records of a page. */
  def endOfPage(page: Int): Int = ends(page)

  /** First unit behind the records of the last page; where no space is used again, of all pages. */
  def end: Long =
    if (numPages == 0) 0L
    else ((numPages - 1L) << PageShift) + math.min(ends(numPages - 1), PageUnits)

  @inline def base(address: Int): AnyRef = bases(address >>> PageShift)

  @inline def offset(address: Int): Long =
    starts(address >>> PageShift) + ((address & UnitMask).toLong << 3)

  @inline def keyLength(address: Int): Int =
    Platform.getInt(base(address), offset(address)) & KeyLengthMask

  @inline def keyOffset(address: Int): Long = offset(address) + HeaderBytes

  @inline def valueLength(address: Int): Int = Platform.getInt(base(address), offset(address) + 4)

  @inline def valueOffset(address: Int): Long =
    offset(address) + HeaderBytes + padded(keyLength(address))

  @inline def flags(address: Int): Int =
    Platform.getInt(base(address), offset(address)) & ~KeyLengthMask

  def setFlags(address: Int, flags: Int): Unit = {
    val at = offset(address)
    val page = base(address)
    Platform.putInt(page, at, (Platform.getInt(page, at) & KeyLengthMask) | flags)
  }

  /** Size of the record in 8-byte units. */
  def units(address: Int): Int = unitsOf(keyLength(address), valueLength(address))

  /** Copies a record in and returns its address; a null `valueBase` with length 0 is no value. */
  def append(
      flags: Int,
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      valueBase: AnyRef,
      valueAt: Long,
      valueLen: Int): Int = {
    val size = unitsOf(keyLen, valueLen)
    if (size > MaxSharedUnits) RowLimits.require(null, keyLen, valueLen.toLong)
    val address = allocate(size)
    val page = base(address)
    val at = offset(address)
    val to = writeHead(page, at, flags, keyBase, keyAt, keyLen, valueLen)
    copyPadded(valueBase, valueAt, page, to, valueLen)
    address
  }

  /** Copies a record to a new place and returns its address. */
  def copy(address: Int): Int = {
    val length = valueLength(address)
    val (fromBase, key, value) = (base(address), keyOffset(address), valueOffset(address))
    append(flags(address), fromBase, key, keyLength(address), fromBase, value, length)
  }

  /** Replaces a value by one of the same length, in place. */
  def overwriteValue(address: Int, valueBase: AnyRef, valueAt: Long): Unit =
    copyPadded(valueBase, valueAt, base(address), valueOffset(address), valueLength(address))

  /** Gives a record's space back; nothing may read it any more. */
  def release(address: Int): Unit = {
    val size = units(address)
    if (size > MaxSharedUnits) {
      dropPage(address >>> PageShift)
    } else {
      setFlags(address, Dead)
      releasedBytes += size.toLong << 3
      if (size >= free.length) free = Arrays.copyOf(free, math.max(size + 1, free.length * 2))
      if (free(size) == null) free(size) = new FreeRecords
      free(size).push(address)
    }
  }

  /**
   * Adds records that were written to `units` mapped units at `memoryAddress`. One may cross from a
   * page to the next, which follows it in memory. Returns the address of the first unit. The caller
   * keeps the mapping alive.
   */
  def addMappedPages(memoryAddress: Long, units: Long): Int = {
    val first = numPages
    var done = 0L
    while (done < units) {
      val inPage = math.min(PageUnits.toLong, units - done).toInt
      checkAddressable(numPages)
      addPage(numPages, null, memoryAddress + (done << 3), inPage)
      done += inPage
    }
    tail = -1 // the next record starts a heap page of its own
    first << PageShift
  }

  /**
   * The records as they are now, for reading: what is added later does not show, and a spill takes
   * nothing away. Values that are overwritten do show.
   */
  def frozen: RecordPages = {
    val copy = new RecordPages
    copy.bases = bases
    copy.starts = starts
    copy.ends = ends
    copy.numPages = numPages
    copy
  }

  /**
   * Starts a rewrite of all records: what is appended from now on goes to new pages, and the free
   * lists are forgotten. Returns the number of pages to go through; `dropPage` each when its
   * records are moved.
   */
  def beginCompaction(): Int = {
    tail = -1
    free = new Array[FreeRecords](0)
    freeBytes = 0L
    releasedBytes = 0L
    // A new page must not take a number that is still to be visited.
    freePages.clear()
    numPages
  }

  /**
   * Forgets a page that nothing refers to any more; rows that point into it stay readable where it
   * is on the heap.
   */
  def dropPage(page: Int): Unit = bases(page) match {
    case bytes: Array[Byte] =>
      held -= bytes.length
      bases(page) = null
      ends(page) = 0
      recycle(page)
    case _ =>
      freeOutside(page)
      if (ends(page) == 0) recycle(page)
  }

  /** Frees what is outside of the heap; no record is read any more. */
  def close(): Unit = if (outside != null) {
    var page = 0
    while (page < numPages) {
      freeOutside(page)
      page += 1
    }
    bases = new Array[AnyRef](0)
    numPages = 0
  }

  private def freeOutside(page: Int): Unit =
    if (outside != null && bases(page) == null && ends(page) != 0) {
      val bytes = outside.free(starts(page))
      held -= bytes
      heldOutside -= bytes
      ends(page) = 0
    }

  /** Page 0 is not used again: its first address would be 0. */
  private def recycle(page: Int): Unit = if (page != 0) freePages.push(page)

  /** Drops the heap pages before one: every record has been moved to others. */
  def dropHeapPages(until: Int): Unit = {
    if (tail < until) tail = -1
    bases = bases.clone() // frozen pages go on with the old ones
    ends = ends.clone()
    var page = 0
    while (page < until) {
      dropPage(page)
      page += 1
    }
    freePages.clear() // addresses in an overlay only ever grow
  }

  private def allocate(size: Int): Int = {
    if (size > MaxSharedUnits) {
      if (numPages == 0) makeRoom(1) // address 0 must not name a record
      val page = nextPage()
      takePage(page, Math.multiplyExact(size, 8), size)
      page << PageShift
    } else if (numFree(size) > 0) {
      releasedBytes -= size.toLong << 3
      free(size).pop()
    } else {
      if (tail < 0 || ends(tail) + size > tailCapacity) makeRoom(size)
      val address = (tail << PageShift) | ends(tail)
      ends(tail) += size
      address
    }
  }

  /** The first page grows by doubling, so that a store of a few rows costs a few kilobytes. */
  private def makeRoom(size: Int): Unit = {
    if (tail == 0 && tailCapacity < HeapPageUnits) {
      var capacity = tailCapacity
      while (capacity < ends(0) + size) capacity *= 2
      capacity = math.min(capacity, HeapPageUnits)
      val old = bases(0).asInstanceOf[Array[Byte]]
      if (ends(0) + size <= capacity) {
        bases(0) = Arrays.copyOf(old, capacity << 3)
        held += (capacity << 3) - old.length
        tailCapacity = capacity
        return
      }
    }
    var capacity = if (numPages == 0) FirstPageUnits else PageUnits
    while (capacity < size + 1) capacity *= 2
    capacity = math.min(capacity, HeapPageUnits)
    // Unit 0 of page 0 stays unused: address 0 means "no record".
    val page = nextPage()
    takePage(page, capacity << 3, if (page == 0) 1 else 0)
    tail = page
    tailCapacity = capacity
  }

  private def takePage(page: Int, bytes: Int, end: Int): Unit = {
    checkAddressable(page) // before memory is taken, which nobody would free
    if (outside == null || page == 0) {
      addPage(page, new Array[Byte](bytes), Platform.BYTE_ARRAY_OFFSET.toLong, end)
    } else {
      addPage(page, null, outside.take(bytes), end)
      heldOutside += bytes
    }
    held += bytes
  }

  private def nextPage(): Int = if (freePages.isEmpty) numPages else freePages.pop()

  private def checkAddressable(page: Int): Unit =
    if (page >= MaxPages) {
      throw new NoAddressException(
        "[state-too-large] the rows of a state partition, or those that a batch writes to it, " +
          s"are more than can be addressed in memory: pages=$MaxPages. To fix: start the query " +
          "from a checkpoint with more state partitions: statestore restore CHECKPOINT NEW " +
          "--num-partitions NUMBER; or, where one large value changes very often, from an older " +
          "version (--version) with smaller batches")
    }

  private def addPage(page: Int, base: AnyRef, start: Long, end: Int): Unit = {
    if (page == bases.length) {
      bases = Arrays.copyOf(bases, page * 2)
      starts = Arrays.copyOf(starts, page * 2)
      ends = Arrays.copyOf(ends, page * 2)
    }
    bases(page) = base
    starts(page) = start
    ends(page) = end
    if (page == numPages) numPages += 1
  }

  /**
   * Addresses of released records of one size, in blocks. A list through the records themselves
   * would wait for memory once for each record that is taken again.
   */
  private final class FreeRecords {
    private val blocks = new java.util.ArrayList[Array[Int]]
    private var count = 0

    def size: Int = count

    def push(address: Int): Unit = {
      val number = count >>> BlockShift
      if (number == blocks.size) {
        blocks.add(new Array[Int](if (number == 0) 8 else BlockSize))
        freeBytes += blocks.get(number).length * 4L
      } else if (count == blocks.get(0).length && count < BlockSize) {
        freeBytes += count * 4L
        blocks.set(0, Arrays.copyOf(blocks.get(0), count * 2))
      }
      blocks.get(number)(count & (BlockSize - 1)) = address
      count += 1
    }

    def pop(): Int = {
      count -= 1
      val number = count >>> BlockShift
      if (number + 2 < blocks.size) { // one stays for what is released next
        freeBytes -= BlockSize * 4L
        blocks.remove(blocks.size - 1)
      }
      blocks.get(number)(count & (BlockSize - 1))
    }
  }
}

private[statestore] object RecordPages {
  val PageShift = 15
  val PageUnits: Int = 1 << PageShift
  val UnitMask: Int = PageUnits - 1
  val MaxPages: Int = 1 << (32 - PageShift)
  val MaxSharedUnits: Int = PageUnits / 2

  /** Released records of a block. */
  private val BlockShift = 12
  private val BlockSize = 1 << BlockShift

  /** Two units less, for the array's header: so that pages fill G1 regions without a rest. */
  val HeapPageUnits: Int = PageUnits - 2
  val FirstPageUnits = 128
  val HeaderBytes = 8
  val KeyLengthMask = 0x0fffffff

  /** Operation of an overlay record; a record of the committed view is always a put. */
  val Put = 0
  val Delete: Int = 1 << 28
  val Merge: Int = 2 << 28
  val OpMask: Int = 3 << 28

  /** In an overlay: the value is the place of a list. */
  val Listed: Int = 1 << 30

  /** In the committed view: not part of the current version. */
  val Dead: Int = 1 << 31

  @inline def padded(length: Int): Int = (length + 7) & ~7

  @inline def unitsOf(keyLen: Int, valueLen: Int): Int =
    1 + ((padded(keyLen) + padded(valueLen)) >>> 3)

  /** Writes a record but for its value, and returns where that goes. */
  def writeHead(
      to: AnyRef,
      at: Long,
      flags: Int,
      keyBase: AnyRef,
      keyAt: Long,
      keyLen: Int,
      valueLen: Int): Long = {
    Platform.putInt(to, at, keyLen | flags)
    Platform.putInt(to, at + 4, valueLen)
    copyPadded(keyBase, keyAt, to, at + HeaderBytes, keyLen)
    at + HeaderBytes + padded(keyLen)
  }

  private def copyPadded(from: AnyRef, fromAt: Long, to: AnyRef, toAt: Long, length: Int): Unit = {
    if ((length & 7) != 0) Platform.putLong(to, toAt + padded(length) - 8, 0L)
    copyBytes(from, fromAt, to, toAt, length)
  }

  /** `Platform.copyMemory` without its overhead for the few words that most keys and values are. */
  def copyBytes(from: AnyRef, fromAt: Long, to: AnyRef, toAt: Long, length: Int): Unit =
    if ((length & 7) == 0 && length <= LongestWordCopy) {
      var i = 0L
      while (i < length) {
        Platform.putLong(to, toAt + i, Platform.getLong(from, fromAt + i))
        i += 8L
      }
    } else {
      Platform.copyMemory(from, fromAt, to, toAt, length.toLong)
    }

  private def LongestWordCopy = 128
}

/** How long a row can be: what is read of it is one array at most. */
private[statestore] object RowLimits {
  import RecordPages._

  private val MaxBytes = Int.MaxValue - 64L

  /**
   * Once a row with a value of so many bytes, all values of a key of a multi-value family together,
   * can be read again.
   *
   * @param family null where it is not known
   * @throws NoAddressException it cannot
   */
  def require(family: ColumnFamily, keyBytes: Int, valueBytes: Long): Unit = {
    val rowBytes = HeaderBytes + padded(keyBytes) + ((valueBytes + 7L) & ~7L)
    if (keyBytes > KeyLengthMask || rowBytes > MaxBytes) {
      val of = if (family == null) "" else s"column_family=${family.name}, "
      throw new NoAddressException(
        s"[state-too-large] the rows of one key are more than can be read again: ${of}" +
          s"key_bytes=$keyBytes, value_bytes=$valueBytes, most=$MaxBytes; of a key " +
          s"$KeyLengthMask. To fix: keep fewer or shorter values for a key, with a time to live, " +
          "an earlier watermark or a key of more columns")
    }
  }
}

/** A record cannot be addressed in memory. */
private[statestore] final class NoAddressException(message: String)
    extends IllegalStateException(message)
