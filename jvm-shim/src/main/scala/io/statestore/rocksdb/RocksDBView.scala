package io.statestore.rocksdb

import java.util.Arrays

import scala.collection.mutable

import io.statestore.view._
import org.apache.spark.unsafe.Platform

/**
 * The rows of one store at one version in RocksDB on the local disk, which the engine writes and
 * this JVM reads, with a cache of rows in front. RocksDB is open at this version or at an older
 * one: what was written since is kept in memory, within bounds. Beyond them the engine is asked for
 * the newest version's directory, a copy by hard links: as soon as a row is not in the cache, or
 * between batches where the last batch had such a row.
 *
 * Key in RocksDB: column family u16 big-endian, key. Value: key group u16 big-endian, value.
 *
 * @param path directory of the version, null for a store that never had rows
 * @param viewOf asks the engine for the directory of a later version, and its filter
 * @param rows how many there are; None after a rescale, when only reading them all tells
 * @param partition state partition of the store
 * @param filter N where only rows of this state partition of N are the store's, else 0
 */
private[statestore] final class RocksDBView(
    private var current: ViewVersion,
    val maxParallelism: Int,
    path: String,
    viewOf: ViewVersion => (String, Int),
    stored: Seq[ColumnFamily],
    private var rows: Option[NumRows],
    partition: Int,
    private var filter: Int,
    blockCacheBytes: Long,
    rowCacheBytes: Long)
    extends CommittedView {
  import RocksDBView._

  private val settings = ReaderSettings.of(blockCacheBytes)
  private var reader: VersionReader = if (path == null) null else new VersionReader(path, settings)
  private val recent = new RecentRows // since the reader's version
  private var numRecent = 0 // commits that they are of
  private var isReaderBehind = false // by more than the recent rows
  @volatile private var numIdle = 0 // times that the last handle went; cursors end with it
  private var wasRead = false // RocksDB, at this version
  private var before: Before = _ // the version before
  private val byName = mutable.LinkedHashMap.empty[String, Family]
  stored.foreach(add)

  override def version: ViewVersion = current

  override def previous: ViewVersion = if (before == null) null else before.version

  /** Without the cache, whose rows are those of the version that is left. */
  override def rollBack(): Unit = synchronized {
    byName.valuesIterator.foreach(_.cache.close())
    byName.clear()
    before.families.foreach(family => byName.put(family.family.name, family))
    current = before.version
    rows = Some(before.rows)
    before = null
    leaveReader()
    wasRead = false
  }

  override def becomeAttempt(checkpointId: String): Unit =
    current = current.copy(checkpointId = checkpointId)

  override def families: Iterable[ColumnFamily] = byName.values.map(_.family)

  override def family(name: String): CommittedFamily = byName.getOrElse(name, null)

  override def numRows: Long = counts.rows

  override def numInternalKeys: Long = counts.internal

  override def heapBytes: Long =
    synchronized(byName.valuesIterator.map(_.cache.heapBytes).sum + recent.heapBytes)

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
    val stays = !isReaderBehind && numRecent < mostRecent &&
      recent.takeIn(to.changes, RecentRows.maxBytes(RowCache.share(rowCacheBytes)))
    if (stays) {
      numRecent += 1
    } else {
      leaveReader()
      if (wasRead) reading()
    }
    wasRead = false
  }

  override protected def idle(): Unit = {
    numIdle += 1
    if (reader != null) reader.closeIterators()
  }

  override protected def close(): Unit = synchronized {
    closeReader()
    byName.valuesIterator.foreach(_.cache.close())
  }

  private def counts: NumRows = synchronized {
    if (rows.isEmpty) {
      val internal = byName.valuesIterator.map(_.family).filter(_.internal).map(_.id).toSet
      val asked = wasRead // by the query: what it reads it is likely to read again
      rows = Some(Option(reading()).fold(NumRows(0L, 0L))(_.count(isOwn, internal)))
      wasRead = asked
    }
    rows.get
  }

  private def add(family: ColumnFamily): Unit = byName(family.name) = new Family(family)

  private def isOwn(keyGroup: Int): Boolean = filter == 0 || keyGroup % filter == partition

  private def closeReader(): Unit = {
    if (reader != null) reader.close()
    reader = null
    recent.clear()
    numRecent = 0
  }

  /**
   * Commits that a reader stays for: it keeps files on the disk that the engine's database no
   * longer needs. Not as many for all stores, which would be left in one batch.
   */
  private def mostRecent: Int = MostRecent + partition % MostRecent

  /** Whoever reads next asks the engine for this version. */
  private def leaveReader(): Unit = {
    closeReader()
    isReaderBehind = current.number > 0L // version 0 has no rows and no directory
  }

  /** RocksDB, at this version but for the recent rows; null where it has none. */
  private def reading(): VersionReader = {
    if (isReaderBehind) {
      val (directory, filterNow) = viewOf(current)
      reader = new VersionReader(directory, settings)
      filter = filterNow
      isReaderBehind = false
    }
    wasRead = reader != null
    reader
  }

  private final class Before(
      val version: ViewVersion,
      val families: Seq[Family],
      val rows: NumRows)

  private final class Family(var family: ColumnFamily) extends CommittedFamily {

    val cache = new RowCache(rowCacheBytes, beganEmpty = path == null)

    override def get(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        into: BytesRef): Boolean = RocksDBView.this.synchronized {
      cache.find(keyBase, keyAt, keyLen, hash, into) match {
        case RowCache.Found => true
        case RowCache.Absent => false
        case _ => read(keyBase, keyAt, keyLen, hash, into)
      }
    }

    private def read(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        hash: Int,
        into: BytesRef): Boolean = {
      val key = encode(family.id, keyBase, keyAt, keyLen)
      val isThere = recent.find(key, into) match {
        case RowCache.Unknown => readStored(key, into)
        case answer => answer == RowCache.Found
      }
      if (isThere) cache.put(keyBase, keyAt, keyLen, hash, into)
      else cache.putAbsent(keyBase, keyAt, keyLen, hash)
      isThere
    }

    private def readStored(key: Array[Byte], into: BytesRef): Boolean = {
      val rocksDB = reading()
      val value = if (rocksDB == null) null else rocksDB.get(key)
      val isThere = value != null && isOwn(shortAt(value))
      if (isThere) into.set(value, Start + KeyGroupBytes, value.length - KeyGroupBytes)
      isThere
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
          if (get(base, at, length, RecordTable.hashKey(base, at, length), ignored)) found(i) = 0
        }
        i += 1
      }
    }

    override def rows(): CommittedCursor = range(null, null)

    override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor =
      RocksDBView.this.synchronized {
        val start = if (from == null) Array.emptyByteArray else from
        val first = encode(family.id, start, Start, start.length)
        val rocksDB = reading()
        val stored = if (rocksDB == null) null else rocksDB.rowsFrom(first)
        new RowCursor(stored, recent.rowsFrom(first), family.id, until)
      }
  }

  /** Merges the rows of RocksDB and the recent ones, which stand in their place. */
  private final class RowCursor(
      stored: VersionReader#RowIterator,
      written: RecentRows#RowIterator,
      familyId: Int,
      until: Array[Byte])
      extends CommittedCursor {
    private val openedAt = numIdle
    // Each stands at a row that was not shown yet, or is at its end.
    private var hasStored = stored != null
    private var hasWritten = true
    private var isStoredShown = true
    private var isWrittenShown = true

    override def advance(): Boolean = {
      while ((hasStored || hasWritten) && openedAt == numIdle) {
        if (hasStored && isStoredShown) advanceStored()
        if (hasWritten && isWrittenShown) hasWritten = written.advance() && isWithin(written.key)
        val order =
          if (!hasWritten) -1
          else if (!hasStored) 1
          else Arrays.compareUnsigned(stored.key, written.key)
        isStoredShown = order <= 0
        isWrittenShown = order >= 0
        if (hasWritten && isWrittenShown) {
          if (!written.isDeleted) {
            show(written.key, written.value, 0)
            return true
          }
        } else if (hasStored) {
          show(stored.key, stored.value, KeyGroupBytes)
          return true
        }
      }
      false
    }

    override def close(): Unit = if (stored != null) stored.close()

    /** Goes to the next row that is the store's. */
    private def advanceStored(): Unit = {
      hasStored = stored.advance()
      while (hasStored && isWithin(stored.key) && !isOwn(shortAt(stored.value))) {
        hasStored = stored.advance()
      }
      if (hasStored && !isWithin(stored.key)) {
        stored.close()
        hasStored = false
      }
    }

    private def show(bytes: Array[Byte], found: Array[Byte], skipped: Int): Unit = {
      key.set(bytes, Start + FamilyBytes, bytes.length - FamilyBytes)
      value.set(found, Start + skipped, found.length - skipped)
    }

    private def isWithin(bytes: Array[Byte]): Boolean = shortAt(bytes) == familyId &&
      (until == null || RecordOrder.compareKeys(
        bytes,
        Start + FamilyBytes,
        bytes.length - FamilyBytes,
        until,
        Start,
        until.length) < 0)
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
  val MostRecent = 64

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
