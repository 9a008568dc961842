package io.statestore.rocksdb

import scala.collection.mutable

import io.statestore.view._
import org.apache.spark.unsafe.Platform

/**
 * The rows of one store at one version in RocksDB on the local disk, which the engine writes and
 * this JVM reads, with a cache of rows in front. A commit brings the next version's directory, a
 * copy by hard links; the rows of the commit go into the cache, so that what is written again and
 * again is seldom read from RocksDB.
 *
 * Key in RocksDB: column family u16 big-endian, key. Value: key group u16 big-endian, value.
 *
 * @param path directory of the version, null for a store that never had rows
 * @param partition state partition of the store
 * @param filter N where only rows of this state partition of N are the store's, else 0
 */
private[statestore] final class RocksDBView(
    private var current: ViewVersion,
    val maxParallelism: Int,
    path: String,
    stored: Seq[ColumnFamily],
    private var rows: Long,
    private var internalRows: Long,
    partition: Int,
    filter: Int,
    blockCacheBytes: Long,
    rowCacheBytes: Long)
    extends CommittedView {
  import RocksDBView._

  private val settings = ReaderSettings.of(blockCacheBytes)
  private var reader: VersionReader = open(path)
  private val cache = new RowCache(rowCacheBytes)
  private val byName = mutable.LinkedHashMap.empty[String, Family]
  stored.foreach(add)

  override def version: ViewVersion = current

  /** Null: the engine keeps the view of the version before. */
  override def previous: ViewVersion = null

  override def rollBack(): Unit = throw new UnsupportedOperationException("rollBack")

  override def families: Iterable[ColumnFamily] = byName.values.map(_.family)

  override def family(name: String): CommittedFamily = byName.getOrElse(name, null)

  override def numRows: Long = rows

  override def numInternalKeys: Long = internalRows

  override def heapBytes: Long = synchronized(cache.heapBytes)

  override def advance(to: ViewAdvance): Unit = synchronized {
    if (to.path == null) throw new IllegalStateException("the engine kept no view of the version")
    val next = open(to.path)
    if (reader != null) reader.close()
    reader = next
    to.families.foreach(family => if (!byName.contains(family.name)) add(family))
    to.changes.foreach { change =>
      val growth = change.numNew.toLong - change.numDeleted
      rows += growth
      if (change.overlay.family.internal) internalRows += growth
      remember(change)
    }
    val names = to.families.map(_.name).toSet
    byName.keys.filterNot(names).toList.foreach(byName.remove)
    current = to.version
  }

  override protected def idle(): Unit = if (reader != null) reader.closeIterators()

  override protected def close(): Unit = synchronized {
    if (reader != null) reader.close()
    cache.close()
  }

  private def add(family: ColumnFamily): Unit = byName.put(family.name, new Family(family))

  private def open(path: String): VersionReader =
    if (path == null) null else new VersionReader(path, settings)

  private def isOwn(value: Array[Byte]): Boolean =
    filter == 0 || shortAt(value) % filter == partition

  private def remember(change: FamilyChanges): Unit = {
    val pages = change.overlay.table.pages
    val value = new BytesRef
    var i = 0
    while (i < change.length) {
      val address = change.address(i)
      val key = encode(
        change.overlay.family.id,
        pages.base(address),
        pages.keyOffset(address),
        pages.keyLength(address))
      val hash = RecordTable.hashKey(key, Start, key.length)
      change.op(i) match {
        case RecordPages.Delete => cache.putAbsent(key, hash)
        case RecordPages.Merge => cache.remove(key, hash) // the engine put the values together
        case _ =>
          change.value(i, value)
          cache.put(key, hash, value.base, value.at, value.length)
      }
      i += 1
    }
  }

  private final class Family(val family: ColumnFamily) extends CommittedFamily {

    override def get(
        keyBase: AnyRef,
        keyAt: Long,
        keyLen: Int,
        keyHash: Int,
        into: BytesRef): Boolean = RocksDBView.this.synchronized {
      val key = encode(family.id, keyBase, keyAt, keyLen)
      val hash = RecordTable.hashKey(key, Start, key.length)
      cache.find(key, hash, into) match {
        case RowCache.Found => true
        case RowCache.Absent => false
        case _ =>
          val value = if (reader == null) null else reader.get(key)
          if (value == null || !isOwn(value)) {
            cache.putAbsent(key, hash)
            false
          } else {
            into.set(value, Start + KeyGroupBytes, value.length - KeyGroupBytes)
            cache.put(key, hash, into.base, into.at, into.length)
            true
          }
      }
    }

    override def findSlots(
        other: RecordPages,
        records: Array[Int],
        count: Int,
        found: Array[Int]): Unit = {
      val ignored = new BytesRef
      var i = 0
      while (i < count) {
        val address = records(i)
        val isThere = get(
          other.base(address),
          other.keyOffset(address),
          other.keyLength(address),
          0,
          ignored)
        found(i) = if (isThere) 0 else -1
        i += 1
      }
    }

    override def rows(): CommittedCursor = range(null, null)

    override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor =
      RocksDBView.this.synchronized {
        val start = if (from == null) Array.emptyByteArray else from
        val first = encode(family.id, start, Start, start.length)
        if (reader == null) Nothing else new RowCursor(reader.rowsFrom(first), family.id, until)
      }
  }

  private final class RowCursor(
      rows: VersionReader#RowIterator,
      familyId: Int,
      until: Array[Byte])
      extends CommittedCursor {

    override def advance(): Boolean = {
      while (rows.advance()) {
        val bytes = rows.key
        if (shortAt(bytes) != familyId || !isBelow(bytes)) {
          rows.close()
          return false
        }
        val found = rows.value
        if (isOwn(found)) {
          key.set(bytes, Start + FamilyBytes, bytes.length - FamilyBytes)
          value.set(found, Start + KeyGroupBytes, found.length - KeyGroupBytes)
          return true
        }
      }
      false
    }

    override def close(): Unit = rows.close()

    private def isBelow(bytes: Array[Byte]): Boolean = until == null ||
      RecordOrder.compareKeys(
        bytes,
        Start + FamilyBytes,
        bytes.length - FamilyBytes,
        until,
        Start,
        until.length) < 0
  }
}

private object RocksDBView {
  val FamilyBytes = 2
  val KeyGroupBytes = 2

  def Start: Long = Platform.BYTE_ARRAY_OFFSET.toLong

  def shortAt(bytes: Array[Byte]): Int = ((bytes(0) & 0xff) << 8) | (bytes(1) & 0xff)

  def encode(familyId: Int, keyBase: AnyRef, keyAt: Long, keyLen: Int): Array[Byte] = {
    val key = new Array[Byte](FamilyBytes + keyLen)
    key(0) = (familyId >>> 8).toByte
    key(1) = familyId.toByte
    Platform.copyMemory(keyBase, keyAt, key, Start + FamilyBytes, keyLen.toLong)
    key
  }

  object Nothing extends CommittedCursor {
    override def advance(): Boolean = false
  }
}
