package io.statestore.rocksdb

import scala.collection.mutable

import io.statestore.view._
import org.apache.spark.unsafe.Platform

/**
 * The rows of one store at one version in RocksDB on the local disk, which the engine writes and
 * this JVM reads. A row is looked for in four places, the cheapest first. The first that knows the
 * key answers, also where it knows that the row is absent:
 *  1. the family's `RowCache`: all rows where they fit, else those read or written lately;
 *  2. the recent rows of the `OpenView`: what was committed since RocksDB was opened;
 *  3. RocksDB of the `OpenView`, at this version or an older one;
 *  4. the engine, where no view is open: it names the directory of this version, a copy by hard
 *     links, which becomes place 3. Place 2 is empty then.
 * The answer of 2 or 3 is put into 1. A scan goes over 1 where it has all rows, else it merges 2
 * and 3. Where reads of 3 have cost as much as reading all rows once, and those are likely to fit,
 * they are read into 1. Where 1 has all rows of every family no view stays open.
 *
 * Invariant: 2 laid over 3 is this version, and 1 never says otherwise. Hence
 *  - 2 is asked before 3: where both know a key, 2 has the newer row or its delete;
 *  - `advance` tells a commit to 1 and to 2. Where 2 cannot take it in, the open view is closed,
 *    and the next reader goes to 4. Where the batch has read RocksDB, 4 is asked at once, between
 *    batches: the next batch is likely to read it, too;
 *  - `rollBack` closes all three: 1 and 2 do not keep the rows that a commit replaced.
 * Where 3 or 4 fails the view is given up: it may be damaged, or no longer the version.
 *
 * Tasks read beside each other, one at a time (`synchronized`). No task has a handle while
 * `advance` and `rollBack` run, so no row that was shown is overwritten in 1. `idle` may run beside
 * a read and ends cursors only.
 *
 * Key in RocksDB: column family u16 big-endian, key. Value: key group u16 big-endian, value.
 *
 * @param path directory of the version, null for a store that never had rows
 * @param viewOf asks the engine for the directory of a later version, and its filter
 * @param rows how many there are; None after a rescale, when only reading them all tells
 * @param partition state partition of the store
 * @param filter N where only rows of this state partition of N are the store's, else 0
 * @param outside memory outside of the heap for all rows of a family, or null
 */
private[statestore] final class RocksDBView(
    private var current: ViewVersion,
    val maxParallelism: Int,
    path: String,
    viewOf: ViewVersion => (String, Int),
    stored: Seq[ColumnFamily],
    private var rows: Option[NumRows],
    partition: Int,
    filter: Int,
    blockCacheBytes: Long,
    rowCacheBytes: Long,
    outside: OffHeapMemory = null)
    extends WorkingView {
  import RocksDBView._

  private val settings = ReaderSettings.of(blockCacheBytes)
  // Shows this version; null where the engine is to be asked.
  @volatile private var opened: OpenView = openAt(path, filter)
  @volatile private var failure: Throwable = _ // of 4
  private var before: Before = _ // the version before
  private val byName = mutable.LinkedHashMap.empty[String, Family]
  stored.foreach(add)

  override def version: ViewVersion = current

  override def isDamaged: Boolean = {
    val view = opened
    failure.isInstanceOf[DamagedViewException] || (view != null && view.isDamaged)
  }

  override def isUnfit: Boolean = failure != null || isDamaged

  override def previous: ViewVersion = if (before == null) null else before.version

  /** Without the cache, whose rows are those of the version that is left. */
  override def rollBack(): Unit = synchronized {
    byName.valuesIterator.foreach(_.cache.close())
    byName.clear()
    before.families.foreach(family => byName.put(family.family.name, family))
    current = before.version
    rows = Some(before.rows)
    before = null
    leave()
  }

  override def becomeAttempt(checkpointId: String): Unit =
    current = current.copy(checkpointId = checkpointId)

  override def families: Iterable[ColumnFamily] = byName.values.map(_.family)

  override def family(name: String): CommittedFamily = byName.getOrElse(name, null)

  override def numRows: Long = counts.rows

  override def numInternalKeys: Long = counts.internal

  override def bytes: Long =
    synchronized(byName.valuesIterator.map(_.cache.bytes).sum +
      (if (opened == null) 0L else opened.heapBytes))

  override def advance(to: ViewAdvance): Unit = synchronized {
    before = new Before(current, byName.values.toSeq, counts)
    to.families.foreach { described =>
      // A roll-back keeps the newer description, which has every schema of the older one.
      byName.get(described.name).fold(add(described))(_.family = described)
    }
    to.changes.foreach(change => byName(change.overlay.family.name).cache.write(change))
    rows = Some(before.rows + to.changes)
    val names = to.families.map(_.name).toSet
    byName.keys.filterNot(names).toList.foreach(byName.remove(_).foreach(_.cache.close()))
    current = to.version
    val wasRead = opened != null && opened.wasRead
    val limit = RecentRows.maxBytes(RowCache.share(rowCacheBytes))
    val isNeeded = byName.valuesIterator.exists(_.cache.all == null)
    if (opened != null && !(isNeeded && opened.follow(to.changes, limit))) {
      leave()
      if (wasRead && isNeeded) openView()
    }
  }

  override protected def idle(): Unit = {
    val view = opened
    if (view != null) view.endCursors()
  }

  override protected def close(): Unit = synchronized {
    if (opened != null) opened.close()
    opened = openAt(null, 0) // who asks for metrics may come later
    byName.valuesIterator.foreach(_.cache.close())
  }

  private def counts: NumRows = synchronized {
    if (rows.isEmpty) {
      val internal = byName.valuesIterator.map(_.family).filter(_.internal).map(_.id).toSet
      rows = Some(openView().count(internal))
    }
    rows.get
  }

  /** Without reading them for that: more than fit anywhere where they were not counted. */
  private def knownRows: Long = rows.fold(Uncounted)(_.rows)

  private def add(family: ColumnFamily): Unit = byName(family.name) = new Family(family)

  /** Whoever reads next asks the engine for this version. */
  private def leave(): Unit = {
    if (opened != null) opened.close()
    // Version 0 has no rows and no directory.
    opened = if (current.number > 0L) null else openAt(null, 0)
  }

  private def openView(): OpenView = {
    if (opened == null) {
      // Noted once it has ended: a task's end looks meanwhile.
      try {
        val (directory, filterNow) = viewOf(current)
        val view = openAt(directory, filterNow)
        failure = null
        opened = view
      } catch {
        case e: Throwable =>
          failure = e
          throw e
      }
    }
    opened
  }

  private def openAt(directory: String, filter: Int): OpenView = new OpenView(
    if (directory == null) null else new VersionReader(directory, settings), partition, filter)

  private final class Before(
      val version: ViewVersion,
      val families: Seq[Family],
      val rows: NumRows)

  private final class Family(var family: ColumnFamily) extends CommittedFamily {

    val cache =
      new RowCache(rowCacheBytes, if (path == null) noRows else null)
    // Cost of reads of RocksDB, in rows of a scan; loads since the last one that ended otherwise
    // than for lack of memory; and number of rows that did not fit the cache, of which bytes.
    private var spent = 0L
    private var inVain = 0
    private var tooMany = Long.MaxValue
    private var tooManyFor = 0L

    private def noRows = new PagedFamily(family, outside = outside)

    override def get(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        into: BytesRef): Boolean =
      RocksDBView.this.synchronized(find(keyBase, keyAt, keyLen, hash, into, keeps = true))

    /** `keeps`: the answer of RocksDB is put into the cache, since it may be asked for again. */
    private def find(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        into: BytesRef,
        keeps: Boolean): Boolean =
      cache.find(keyBase, keyAt, keyLen, hash, into) match {
        case RowCache.Found => true
        case RowCache.Absent => false
        case _ =>
          spent += RowsPerLookup
          if (isLoaded()) {
            cache.all.get(keyBase, keyAt, keyLen, hash, into)
          } else {
            val isThere = openView().get(encode(family.id, keyBase, keyAt, keyLen), into)
            if (keeps && isThere) cache.put(keyBase, keyAt, keyLen, hash, into)
            else if (keeps) cache.putAbsent(keyBase, keyAt, keyLen, hash)
            isThere
          }
      }

    override def findSlots(
        other: RecordPages,
        records: Array[Int],
        count: Int,
        found: Array[Int]): Unit = RocksDBView.this.synchronized {
      cache.findSlots(other, records, count, found)
      val ignored = new BytesRef
      var i = 0
      while (i < count) {
        if (found(i) == RowCache.NotSeen) {
          val base = other.base(records(i))
          val at = other.keyOffset(records(i))
          val length = other.keyLength(records(i))
          val hash = RecordTable.hashKey(base, at, length)
          // These keys are written: `write` puts into the cache what they have then.
          if (find(base, at, length, hash, ignored, keeps = false)) found(i) = 0
        }
        i += 1
      }
    }

    override def rows(): CommittedCursor = RocksDBView.this.synchronized {
      if (cache.all == null) spent += knownRows
      if (cache.all != null || isLoaded()) cache.all.rows() else stored(null, null)
    }

    override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor =
      RocksDBView.this.synchronized {
        val isAll = from == null && until == null
        if (cache.all == null) spent += (if (isAll) knownRows else RowsPerRange)
        if (cache.all != null || isLoaded()) cache.all.range(from, until) else stored(from, until)
      }

    private def stored(from: Array[Byte], until: Array[Byte]): CommittedCursor = {
      val start = if (from == null) Array.emptyByteArray else from
      openView().rowsFrom(encode(family.id, start, Start, start.length), family.id, until)
    }

    /**
     * Reads all rows into the cache where reads of RocksDB have cost as much, the rows are likely
     * to fit and have not proved too many; returns whether it did.
     */
    private def isLoaded(): Boolean = {
      val fit = cache.mostWhole
      val mayFit = fit / (if (outside == null) SmallestRowBytes else IndexBytes)
      // Of several families nobody knows how many rows each has: a load shows it, which ends with
      // as many rows as reads have cost, and is in vain if there are more.
      val isAlone = byName.size == 1
      val enough = if (isAlone) knownRows
        else math.min(knownRows, math.max(FirstRows, knownRows >> MostInVain))
      // Of the rows, or what other caches have left, one may be another by now.
      if (fit / 2 > tooManyFor) tooMany = Long.MaxValue
      if (spent >= enough && (!isAlone || knownRows <= mayFit) && knownRows <= tooMany / 2) {
        val view = openView()
        val ends = view.timesEnded
        val areTooMany = cache.load(
          noRows, stored(null, null), if (isAlone) knownRows else 0L,
          () => view.timesEnded == ends,
          if (isAlone || inVain == MostInVain) Long.MaxValue
          else math.max(spent, enough << inVain))
        inVain = if (cache.all == null && !areTooMany) math.min(inVain + 1, MostInVain) else 0
        // A load in vain has read rows, and taken memory from others: the next one waits longer.
        spent = if (inVain == 0) 0L else -(enough << inVain)
        if (areTooMany) {
          tooMany = knownRows
          tooManyFor = fit
        }
      }
      cache.all != null
    }
  }
}

/** Rows of a store, and those of them in internal column families. */
private[statestore] final case class NumRows(rows: Long, internal: Long) {
  def +(changes: Iterable[FamilyChanges]): NumRows = changes.foldLeft(this) { (sum, change) =>
    val growth = change.numNew.toLong - change.numDeleted
    NumRows(
      sum.rows + growth,
      sum.internal + (if (change.overlay.family.internal) growth else 0L))
  }
}

private object RocksDBView {
  val FamilyBytes = 2
  val KeyGroupBytes = 2

  val Uncounted: Long = 1L << 40

  /** So many rows of a scan take as long as a lookup. */
  val RowsPerLookup = 8L

  /** And as the first row of a range: RocksDB looks into each file for it. */
  val RowsPerRange = 64L

  /** Heap of the smallest row, with its key, header and place in the index. */
  val SmallestRowBytes = 32L

  /** Rows of the first load of a column family beside others. */
  val FirstRows = 1000L

  /** A load in vain is tried again when reads have cost 2 to this power as much. */
  val MostInVain = 10

  /** Heap of its place in the index, at least. */
  val IndexBytes = 6L

  def Start: Long = Platform.BYTE_ARRAY_OFFSET.toLong

  def shortAt(bytes: Array[Byte]): Int = ((bytes(0) & 0xff) << 8) | (bytes(1) & 0xff)

  def encode(familyId: Int, keyBase: AnyRef, keyAt: Long, keyLen: Int): Array[Byte] = {
    val key = new Array[Byte](FamilyBytes + keyLen)
    key(0) = (familyId >>> 8).toByte
    key(1) = familyId.toByte
    Platform.copyMemory(keyBase, keyAt, key, Start + FamilyBytes, keyLen.toLong)
    key
  }
}
