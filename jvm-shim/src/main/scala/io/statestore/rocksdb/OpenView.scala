package io.statestore.rocksdb

import java.util.Arrays

import io.statestore.view._

/**
 * The rows of a store as RocksDB has them at one version, and what was committed since, which
 * stands in their place. Bytes handed out stay valid. Not thread-safe, but for `endCursors`.
 *
 * @param reader RocksDB at the version, null where the store has no rows in it
 * @param partition state partition of the store
 * @param filter N where only rows of this state partition of N are the store's, else 0
 */
private[rocksdb] final class OpenView(reader: VersionReader, partition: Int, filter: Int) {
  import OpenView._
  import RocksDBView._

  private val recent = new RecentRows
  private var numCommits = 0 // that they are of
  private var isRead = false
  @volatile private var numEnds = 0

  /** Whether a query has read RocksDB since the last commit: it is likely to read it again. */
  def wasRead: Boolean = isRead

  /** How often cursors ended; a cursor that was open then has not shown all rows. */
  def timesEnded: Int = numEnds

  /** Whether a read of RocksDB has failed. */
  def isDamaged: Boolean = reader != null && reader.isDamaged

  def heapBytes: Long = recent.heapBytes

  /**
   * Takes in what a commit changed. Where it answers false only `close` may follow: that is too
   * much, or the reader has stayed for long. It keeps files on the disk that the engine's database
   * no longer needs.
   *
   * @param maxBytes at most so many bytes are held
   */
  def follow(changes: Seq[FamilyChanges], maxBytes: Long): Boolean = {
    isRead = false
    numCommits += 1
    numCommits <= mostCommits && recent.takeIn(changes, maxBytes)
  }

  /** Not as many for all stores, which would be opened anew in one batch. */
  private def mostCommits: Int = MostCommits + partition % MostCommits

  /** Shows the value of an encoded key in `into`; false when it is not there. */
  def get(key: Array[Byte], into: BytesRef): Boolean = recent.find(key, into) match {
    case RowCache.Unknown => readStored(key, into)
    case answer => answer == RowCache.Found
  }

  private def readStored(key: Array[Byte], into: BytesRef): Boolean = {
    val value = if (reader == null) null else reader.get(key)
    isRead = reader != null
    val isThere = value != null && isOwn(shortAt(value))
    if (isThere) into.set(value, Start + KeyGroupBytes, value.length - KeyGroupBytes)
    isThere
  }

  /** The rows of a column family from an encoded key on, up to the key `until`, null for all. */
  def rowsFrom(key: Array[Byte], familyId: Int, until: Array[Byte]): CommittedCursor = {
    isRead = reader != null
    val stored = if (reader == null) null else reader.rowsFrom(key)
    new RowCursor(stored, recent.rowsFrom(key), familyId, until)
  }

  /**
   * Reads all rows of RocksDB to count them; nothing was committed since.
   *
   * @param internal IDs of the internal column families
   */
  def count(internal: Set[Int]): NumRows =
    if (reader == null) NumRows(0L, 0L) else reader.count(isOwn, internal)

  /** No cursor shows a row any more. */
  def endCursors(): Unit = {
    numEnds += 1
    if (reader != null) reader.closeIterators()
  }

  def close(): Unit = {
    endCursors()
    if (reader != null) reader.close()
  }

  private def isOwn(keyGroup: Int): Boolean = filter == 0 || keyGroup % filter == partition

  /** Merges the rows of RocksDB and the recent ones, which stand in their place. */
  private final class RowCursor(
      stored: VersionReader#RowIterator,
      written: RecentRows#RowIterator,
      familyId: Int,
      until: Array[Byte])
      extends CommittedCursor {
    private val openedAt = numEnds
    // Each stands at a row that was not shown yet, or is at its end.
    private var hasStored = stored != null
    private var hasWritten = true
    private var isStoredShown = true
    private var isWrittenShown = true

    override def advance(): Boolean = {
      while ((hasStored || hasWritten) && openedAt == numEnds) {
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

private object OpenView {
  val MostCommits = 64
}
