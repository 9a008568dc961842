package io.statestore.rocksdb

import java.nio.ByteBuffer
import java.util.Arrays

import scala.collection.mutable

import org.rocksdb.{BlockBasedTableConfig, BloomFilter, LRUCache, Options, ReadOptions}
import org.rocksdb.{RocksDB, RocksDBException, RocksIterator}

import org.apache.spark.internal.Logging

/**
 * A version of a store in RocksDB, opened read-only from the directory the engine names. The engine
 * may delete the directory meanwhile: every file of it stays open. Thread-safe; after `close`
 * iterators end and `get` is refused, since RocksDB's memory is gone.
 */
private[rocksdb] final class VersionReader(path: String, settings: ReaderSettings) {
  import VersionReader.{MostIdle, MostOpen}

  private val database = reading(RocksDB.openReadOnly(settings.options, path))
  // Those that hold an iterator of RocksDB, in the order in which they took it: the last is mostly
  // the first that ends.
  private val open = mutable.ArrayBuffer.empty[RowIterator]
  // Those of RocksDB that none holds: a join asks for rows of one key for each of its own.
  private val idle = mutable.ArrayBuffer.empty[RocksIterator]
  private var numEnds = 0
  private var closed = false
  @volatile private var damaged = false

  /** Whether a read has failed. */
  def isDamaged: Boolean = damaged

  /** Iterators of RocksDB, whose memory no garbage collection frees. */
  def numHeld: Int = synchronized(open.length + idle.length)

  /** The value of a key, null when it is not there. */
  def get(key: Array[Byte]): Array[Byte] = synchronized {
    checkOpen()
    reading(database.get(settings.reads, key))
  }

  /** The rows from a key on. Ends by itself at the last row, else with `closeIterators`. */
  def rowsFrom(key: Array[Byte]): RowIterator = synchronized {
    checkOpen()
    new RowIterator(key)
  }

  /**
   * Reads all rows to count them.
   *
   * @param isCounted whether rows of a key group count
   * @param internal IDs of the internal column families
   */
  def count(isCounted: Int => Boolean, internal: Set[Int]): NumRows = synchronized {
    checkOpen()
    val iterator = database.newIterator(settings.scans)
    val start = ByteBuffer.allocateDirect(RocksDBView.FamilyBytes)
    def shortOf(read: ByteBuffer => Int): Int = {
      start.clear()
      read(start)
      start.getShort(0) & 0xffff
    }
    try {
      var rows, internalRows = 0L
      iterator.seekToFirst()
      while (iterator.isValid) {
        if (isCounted(shortOf(iterator.value))) {
          rows += 1L
          if (internal.nonEmpty && internal(shortOf(iterator.key))) internalRows += 1L
        }
        iterator.next()
      }
      reading(iterator.status()) // raises what made it invalid
      NumRows(rows, internalRows)
    } finally iterator.close()
  }

  def closeIterators(): Unit = synchronized {
    numEnds += 1
    while (open.nonEmpty) open.last.giveUp()
    idle.foreach(_.close())
    idle.clear()
  }

  def close(): Unit = synchronized {
    closeIterators()
    if (!closed) database.close()
    closed = true
  }

  private def reading[T](body: => T): T =
    try body
    catch {
      case e: RocksDBException if e.getMessage.contains("Too many open files") =>
        throw new OpenFilesException(path, e)
      case e: RocksDBException =>
        damaged = true
        throw new DamagedViewException(path, e)
    }

  private def checkOpen(): Unit =
    if (closed) throw new IllegalStateException(s"version is closed: path=$path")

  /**
   * Holds an iterator of RocksDB while few others were read since. Then it gives that one up, and
   * takes another when it is read on: a reader may leave any number of scans half way.
   */
  final class RowIterator(from: Array[Byte]) {
    private var openedAt = numEnds // -1 at its end
    private var held: RocksIterator = _
    private var currentKey: Array[Byte] = _
    private var currentValue: Array[Byte] = _

    /** Goes to the next row; false when there is none, and after the task's end. */
    def advance(): Boolean = VersionReader.this.synchronized {
      if (!hasEnded) {
        if (held == null) take() else held.next()
        if (held.isValid) {
          currentKey = held.key()
          currentValue = held.value()
        } else {
          // Raises what made it invalid. It may not be read on then, but looked for anew.
          try reading(held.status())
          finally giveUp()
          close()
        }
      }
      !hasEnded
    }

    def key: Array[Byte] = currentKey

    def value: Array[Byte] = currentValue

    def close(): Unit = VersionReader.this.synchronized {
      giveUp()
      openedAt = -1
    }

    private def hasEnded: Boolean = openedAt != numEnds

    /** Takes one that stands at the next row. */
    private def take(): Unit = {
      if (open.length == MostOpen) open.head.giveUp()
      held =
        if (idle.isEmpty) database.newIterator(settings.reads) else idle.remove(idle.length - 1)
      open += this
      // No key is between one and the same with a zero behind it.
      held.seek(if (currentKey == null) from else Arrays.copyOf(currentKey, currentKey.length + 1))
    }

    private[VersionReader] def giveUp(): Unit = if (held != null) {
      open.remove(open.lastIndexOf(this))
      if (idle.length < MostIdle) idle += held else held.close()
      held = null
    }
  }
}

private object VersionReader {

  /** A task goes over few ranges at a time; each iterator keeps the block that it stands in. */
  val MostIdle = 4

  /** A reader that wants no more rows does not always say so. */
  val MostOpen = 64
}

/** RocksDB cannot read a version on the local disk; its durable files may be whole. */
private[statestore] final class DamagedViewException(path: String, cause: RocksDBException)
    extends IllegalStateException(
      s"the state on the local disk cannot be read: directory=$path error=${cause.getMessage}. " +
        "To fix: let the batch run again, it is built anew from the checkpoint",
      cause)

/** The executor may open no more files; those on the local disk may be whole. */
private[statestore] final class OpenFilesException(path: String, cause: RocksDBException)
    extends IllegalStateException(
      s"the state on the local disk cannot be opened: directory=$path " +
        s"error=${cause.getMessage}. To fix: raise the limit of open files on the executors " +
        "(ulimit -n, LimitNOFILE), or give each fewer state partitions",
      cause)

/** How this JVM reads RocksDB: one block cache for all stores. Never closed. */
private[rocksdb] final class ReaderSettings private (blockCacheBytes: Long) {
  val options: Options = new Options()
    .setMaxOpenFiles(-1)
    .setTableFormatConfig(
      new BlockBasedTableConfig()
        .setBlockCache(new LRUCache(blockCacheBytes))
        .setCacheIndexAndFilterBlocks(true)
        .setFilterPolicy(new BloomFilter(10)))
    .setInfoLogLevel(org.rocksdb.InfoLogLevel.HEADER_LEVEL)

  val reads: ReadOptions = new ReadOptions()

  /** For reading all rows once. */
  val scans: ReadOptions = new ReadOptions().setFillCache(false).setReadaheadSize(4L << 20)
}

private[rocksdb] object ReaderSettings extends Logging {
  private var made: (Long, ReaderSettings) = _
  private val refused = mutable.HashSet.empty[Long]

  /** Those of the first query of this JVM: RocksJava cannot change the size of a cache. */
  def of(blockCacheBytes: Long): ReaderSettings = synchronized {
    RocksDB.loadLibrary()
    if (made == null) made = (blockCacheBytes, new ReaderSettings(blockCacheBytes))
    val (bytes, settings) = made
    if (bytes != blockCacheBytes && refused.add(blockCacheBytes)) {
      logWarning(
        s"the block cache keeps the size that the first query of this executor gave it: " +
          s"rocksdb.blockCacheSizeMB=${blockCacheBytes >> 20} size=${bytes >> 20}. " +
          "To fix: give all queries of an application one size")
    }
    settings
  }
}
