package io.statestore.view

import java.io.File
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.channels.FileChannel.MapMode
import java.nio.file.Files
import java.nio.file.StandardOpenOption.{CREATE_NEW, READ, WRITE}
import java.util.PriorityQueue
import java.util.concurrent.{CompletableFuture, TimeUnit}
import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import scala.collection.mutable

import io.statestore.{LocalDiskException, ShimErrors}
import io.statestore.keygroup.{KeyGroupFunction, KeyGroups}
import org.apache.arrow.memory.util.MemoryUtil
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.apache.spark.unsafe.Platform

/**
 * The uncommitted writes of one store handle, over all its column families.
 *
 * Within the overlay a record is overwritten in place where it is newer than every scan and the
 * value as long as before; else it is replaced by appending a new one, so what a scan shows stays
 * valid. Where most of the records are replaced ones, the others move to new pages: what a batch
 * holds goes by its keys, not by its writes. The list of a key of a multi-value family is beside
 * its record and grows in place: who reads it remembers its length.
 *
 * When the heap bytes pass the overlay's share of `budgetBytes`, or those of all overlays pass all
 * of it, as where a task writes stores one after the other, the records move, sorted, to a run
 * in a memory-mapped scratch file (unlinked at once: no file outlives the process), while the index
 * stays on the heap. A short list becomes the value of its record there; what a longer one has on
 * the heap moves to another file. Reads find all as before, and the commit merges the runs. `free`
 * gives the disk its space back: left to the garbage collector, the files of many batches would be
 * there at once.
 *
 * @param budgetBytes for all overlays of this JVM that hold writes together
 * @param byKey the order for the commit is by column family and key, not by key group first
 * @param smallestShare bytes that an overlay holds before it spills, however small its share is
 * @param makeRoom what may make room on a disk that is full, once for each file
 */
private[statestore] final class Overlay(
    val keyGroups: KeyGroups,
    budgetBytes: Long,
    newScratchFile: () => File,
    byKey: Boolean = false,
    smallestShare: Long = Overlay.SmallestShare,
    makeRoom: () => Unit = () => ()) {
  import RecordPages._
  import SortedRecords.{FamilyBits, FamilyMask}

  val pages = new RecordPages
  private val families = mutable.LinkedHashMap.empty[Int, OverlayFamily]
  private var listBytes = 0L // on the heap
  private val runs = mutable.ArrayBuffer.empty[Run]
  // Of lists and runs: rows handed out point into them.
  private val mappings = mutable.ArrayBuffer.empty[MappedByteBuffer]
  private var lastFamily: OverlayFamily = _ // that `familyOf` returned
  private var movedUntil = 0L // records before this address stay as they are
  private var deadBytes = 0L // of replaced records on the heap
  private var numListed = 0L // records on the heap, replaced ones included
  private var compactions = 0
  @volatile private var closed = false // a thread that outlives the task may go on with a write
  private var isCounted = false
  private var keptBytes = 0L // on the heap after the last spill
  private var notedBytes = 0L // of this overlay among those of all
  private var failure: Throwable = _ // of a spill, which left records in two places

  def family(
      family: ColumnFamily,
      keyGroup: => KeyGroupFunction,
      expected: Int = 0): OverlayFamily =
    families.getOrElseUpdate(family.id, new OverlayFamily(this, family, keyGroup, expected))

  /** Rows that were written to a family, null for none. */
  def writtenFamily(id: Int): OverlayFamily = families.getOrElse(id, null)

  def allFamilies: Iterable[OverlayFamily] = families.values

  def heapBytes: Long =
    pages.heldBytes + listBytes + families.valuesIterator.map(_.indexBytes).sum

  def numRuns: Int = runs.size

  def numCompactions: Int = compactions

  /** Whether a record is none of those that a spill has moved. */
  def isMutable(address: Int): Boolean = Integer.toUnsignedLong(address) >= movedUntil

  /** Lists hold so many bytes more on the heap. */
  def listsGrew(bytes: Long): Unit = listBytes += bytes

  /** A family has listed one record more. */
  def listed(): Unit = numListed += 1L

  /** A record on the heap stands for its key no more. */
  def replaced(address: Int): Unit =
    deadBytes += (pages.units(address).toLong << 3) + Overlay.ListedBytes

  /** Raises what a spill has raised before, too: user code may have gone on behind it. */
  def afterWrite(): Unit = if (!closed) {
    ensureWhole()
    if (!isCounted) count()
    val held = recordBytes
    if (math.abs(held - notedBytes) >= Overlay.NotedBytes) note()
    if (held > smallestShare) {
      if (2L * deadBytes > held) compact()
      else if (held > budgetBytes / math.max(1, Overlay.numWritten.get) ||
        Overlay.allBytes.get > budgetBytes) {
        try spill()
        catch { case e: Throwable => failure = e; throw e }
        note()
      }
    }
  }

  /** Bytes on the heap that a spill would give back. */
  private def recordBytes: Long =
    pages.heldBytes + listBytes + numListed * Overlay.ListedBytes - keptBytes

  /** Tells the others what this overlay holds. */
  private def note(): Unit = synchronized {
    if (!closed) {
      val held = recordBytes
      Overlay.allBytes.addAndGet(held - notedBytes)
      notedBytes = held
    }
  }

  private def ensureWhole(): Unit = if (failure != null) throw failure

  private def count(): Unit = synchronized {
    if (!closed && !isCounted) {
      isCounted = true
      Overlay.numWritten.incrementAndGet()
    }
  }

  /**
   * Leaves its share of the budget to the others. What is written after it is lost, and a spill
   * that another thread is at fails.
   */
  def close(): Unit = synchronized {
    closed = true
    if (isCounted) {
      isCounted = false
      Overlay.numWritten.decrementAndGet()
      Overlay.allBytes.addAndGet(-notedBytes)
    }
  }

  private def requireOpen(): Unit =
    if (closed) throw new IllegalStateException("the state store was closed during a write")

  /**
   * Gives back what a closed overlay has spilled, after a while: as with freed pages, a thread of
   * an ended task may read a row a moment later. Nothing else asks for a record any more.
   *
   * @param keptMs milliseconds
   */
  def free(keptMs: Long = OffHeapMemory.KeptMs): Unit = {
    val spilled = synchronized {
      val all = mappings.toList
      mappings.clear()
      all
    }
    if (spilled.nonEmpty) {
      CompletableFuture.delayedExecutor(keptMs, TimeUnit.MILLISECONDS)
        .execute(() => spilled.foreach(StateStoreInternals.unmap))
    }
  }

  /**
   * Shows every record of the overlay to `visitor`, in the order of state files, a block at a time,
   * each valid during its call. Nothing may write meanwhile. After a spill that failed it raises
   * what that has raised.
   */
  def visitSorted(visitor: RecordBlock => Unit): Unit = {
    ensureWhole()
    val block = new RecordBlock(visitor)
    val heap = sortHeapRecords()
    if (runs.isEmpty) {
      var i = 0
      while (i < heap.length) {
        add(block, heap.prefix(i), heap.address(i))
        i += 1
      }
    } else {
      mergeRuns(heap, block)
    }
    block.show()
  }

  private def add(block: RecordBlock, prefix: Int, address: Int): Unit =
    block.add(familyOf(prefix), keyGroups.groupOfRank(prefix >>> FamilyBits), address)

  private def familyOf(prefix: Int): OverlayFamily = {
    val id = prefix & FamilyMask
    if (lastFamily == null || lastFamily.family.id != id) lastFamily = families(id)
    lastFamily
  }

  private def mergeRuns(heap: SortedRecords, block: RecordBlock): Unit = {
    val cursors = new PriorityQueue[RecordsCursor]((left, right) =>
      compare(left.prefix, left.address, right.prefix, right.address))
    (new HeapCursor(heap) +: runs.map(new RunCursor(_))).filter(_.hasRecord).foreach(cursors.add)
    while (!cursors.isEmpty) {
      val first = cursors.poll()
      add(block, first.prefix, first.address)
      first.advance()
      if (first.hasRecord) cursors.add(first)
    }
  }

  private def compare(leftPrefix: Int, left: Int, rightPrefix: Int, right: Int): Int = {
    val byPrefix =
      java.lang.Integer.compare(leftPrefix & prefixMask, rightPrefix & prefixMask)
    if (byPrefix != 0) byPrefix else RecordOrder.compareRecords(pages, left, pages, right)
  }

  private def prefixMask: Int = SortedRecords.prefixMask(byKey)

  private def sortHeapRecords(): SortedRecords =
    SortedRecords.of(pages, families.values, keyGroups.maxParallelism, byKey)

  /** Moves the records on the heap to new pages, without those that were replaced. */
  private def compact(): Unit = {
    movedUntil = pages.end
    val before = pages.beginCompaction()
    families.valuesIterator.foreach(_.moveHeapRecords())
    pages.dropHeapPages(before)
    numListed = families.valuesIterator.map(_.maxHeapRecords.toLong).sum
    deadBytes = 0L
    compactions += 1
  }

  /**
   * Moves the lists to disk, and every heap record to a sorted run there. After a raise all of them
   * can be read, on the heap or on disk, and nothing more is written.
   *
   * @throws io.statestore.LocalDiskException the disk is full or failed
   */
  private def spill(): Unit = {
    spillLists()
    val sorted = sortHeapRecords()
    var from = 0
    while (from < sorted.length) {
      var bytes = runBytes(sorted, from)
      var until = from + 1
      while (until < sorted.length && bytes + runBytes(sorted, until) <= MaxRunBytes) {
        bytes += runBytes(sorted, until)
        until += 1
      }
      spillRun(sorted, from, until, bytes)
      from = until
    }
    pages.dropHeapPages(pages.pageCount)
    families.valuesIterator.foreach(_.spilled())
    numListed = 0L
    deadBytes = 0L
    movedUntil = pages.end // what is on disk stays as it is
    keptBytes = pages.heldBytes + listBytes
  }

  /** Moves what long lists have on the heap; the records that name them move as all do. */
  private def spillLists(): Unit = {
    val lists = families.valuesIterator.flatMap(_.currentLists)
      .filter(list => !list.isShort && list.unspilledBytes > 0).toArray
    var from = 0
    while (from < lists.length) {
      var bytes = lists(from).bytesToSpill.toLong
      var until = from + 1
      while (until < lists.length && bytes + lists(until).bytesToSpill <= MaxRunBytes) {
        bytes += lists(until).bytesToSpill
        until += 1
      }
      var at = mapScratch(bytes)
      lists.slice(from, until).foreach { list =>
        requireOpen()
        val length = list.bytesToSpill
        val before = list.heapBytes
        list.spillTo(at)
        listBytes += list.heapBytes - before
        at += length
      }
      from = until
    }
  }

  /** Bytes of a record in a run, with its prefix. */
  private def runBytes(sorted: SortedRecords, i: Int): Long = {
    val address = sorted.address(i)
    val list = familyOf(sorted.prefix(i)).listToStore(address)
    val units =
      if (list == null) pages.units(address) else unitsOf(pages.keyLength(address), list.length)
    8L + (units.toLong << 3)
  }

  private def spillRun(sorted: SortedRecords, from: Int, until: Int, bytes: Long): Unit = {
    val memory = mapScratch(bytes)
    val first = pages.addMappedPages(memory, bytes >>> 3)
    var at = memory
    var i = from
    while (i < until) {
      requireOpen()
      val old = sorted.address(i)
      val family = familyOf(sorted.prefix(i))
      Platform.putLong(null, at, sorted.prefix(i).toLong)
      at += 8L
      val address = first + ((at - memory) >>> 3).toInt
      val list = family.listToStore(old)
      if (list == null) {
        copyBytes(pages.base(old), pages.offset(old), null, at, pages.units(old) << 3)
      } else {
        family.dropList(old)
        storeList(old, list, at)
      }
      family.moved(old, address)
      at += pages.units(address).toLong << 3
      i += 1
    }
    runs += new Run(first, until - from)
  }

  /** Writes a record with the bytes of its list; the file has zeros behind them. */
  private def storeList(address: Int, list: ValueBuffer, at: Long): Unit = {
    val base = pages.base(address)
    val flags = pages.flags(address) & ~Listed
    list.spillTo(writeHead(
      null, at, flags, base, pages.keyOffset(address), pages.keyLength(address), list.length))
  }

  /** Address of so many bytes in a new file, zeros, until `free`. */
  private def mapScratch(bytes: Long): Long =
    try mapFile(bytes)
    catch {
      case e: LocalDiskException if e.isFull =>
        makeRoom()
        mapFile(bytes)
    }

  private def mapFile(bytes: Long): Long = {
    val path = newScratchFile()
    ShimErrors.onLocalDisk("spill state", path) {
      val channel = FileChannel.open(path.toPath, CREATE_NEW, READ, WRITE)
      try {
        allocate(channel, bytes)
        keep(channel.map(MapMode.READ_WRITE, 0L, bytes))
      } finally {
        channel.close()
        Files.deleteIfExists(path.toPath)
      }
    }
  }

  private def keep(mapped: MappedByteBuffer): Long = synchronized {
    if (closed) StateStoreInternals.unmap(mapped) // else nobody would
    requireOpen()
    mappings += mapped
    MemoryUtil.getByteBufferAddress(mapped)
  }

  /** Gives a file its space: through a mapping, a disk that is full would end the process. */
  private def allocate(channel: FileChannel, bytes: Long): Unit = {
    val zeros = ByteBuffer.allocateDirect(math.min(bytes, AllocatedAtOnceBytes).toInt)
    var left = bytes
    while (left > 0L) {
      zeros.clear().limit(math.min(left, zeros.capacity.toLong).toInt)
      left -= channel.write(zeros)
    }
  }

  /** `count` records from `first` on, each behind a unit that holds its sort prefix. */
  private final class Run(val first: Int, val count: Int)

  /** Walks sorted records. */
  private abstract class RecordsCursor {
    var prefix = 0
    var address = 0

    def hasRecord: Boolean = address != 0

    def advance(): Unit
  }

  private final class HeapCursor(records: SortedRecords) extends RecordsCursor {
    private var next = 0
    advance()

    override def advance(): Unit =
      if (next < records.length) {
        prefix = records.prefix(next)
        address = records.address(next)
        next += 1
      } else {
        address = 0
      }
  }

  /** Walks the records of a run that are still current. */
  private final class RunCursor(run: Run) extends RecordsCursor {
    private var left = run.count
    private var unit = run.first
    advance()

    override def advance(): Unit = {
      address = 0
      while (address == 0 && left > 0) {
        prefix = Platform.getLong(pages.base(unit), pages.offset(unit)).toInt
        val candidate = unit + 1
        unit = candidate + pages.units(candidate)
        left -= 1
        if (familyOf(prefix).isCurrent(candidate)) address = candidate
      }
    }
  }

  /** A file is mapped in one piece, which ends at 2 GiB; a longer record has one of its own. */
  private def MaxRunBytes = 1L << 30
  private def AllocatedAtOnceBytes = 1L << 20
}

private object Overlay {

  /** Overlays that hold writes. */
  val numWritten = new AtomicInteger

  /** Bytes on the heap that they hold, but for `NotedBytes` of each. */
  val allBytes = new AtomicLong
  val NotedBytes: Long = 64L << 10

  // Below that a spill makes more runs than it saves memory.
  val SmallestShare: Long = 1L << 20

  /** Heap of a record beside its own bytes: in its family's list, and while records are sorted. */
  val ListedBytes = 48L
}

/** Records of one column family, in the order of state files. */
private[statestore] final class RecordBlock(visitor: RecordBlock => Unit) {
  private var currentFamily: OverlayFamily = _
  private var used = 0
  val addresses = new Array[Int](RecordBlock.Capacity)
  val keyGroups = new Array[Int](RecordBlock.Capacity)

  def family: OverlayFamily = currentFamily

  def length: Int = used

  def add(family: OverlayFamily, keyGroup: Int, address: Int): Unit = {
    if (used == RecordBlock.Capacity || (family ne currentFamily)) show()
    currentFamily = family
    addresses(used) = address
    keyGroups(used) = keyGroup
    used += 1
  }

  /** Shows the visitor what was added since the last block. */
  def show(): Unit = {
    if (used > 0) visitor(this)
    used = 0
  }
}

private[statestore] object RecordBlock {
  val Capacity = 1024
}
