package io.statestore.rocksdb

import java.util.Arrays

import io.statestore.view.BytesRef
import org.rocksdb.{Options, ReadOptions, RocksDB, SstFileReader}

/**
 * Reads the puts of one column family from an SST (docs/format.md) that the engine has verified, in
 * key order. Bytes shown stay valid.
 */
private[statestore] final class SstReader(path: String, familyId: Int) extends AutoCloseable {
  import RocksDBView._

  RocksDB.loadLibrary()
  private val options = new Options()
  private val settings = new ReadOptions().setFillCache(false)
  private val file = new SstFileReader(options)
  private val rows =
    try {
      file.open(path)
      file.newIterator(settings)
    } catch {
      case e: Throwable =>
        closeAll(file, settings, options)
        throw e
    }
  private val start = encode(familyId, Array.emptyByteArray, Start, 0)
  private var started = false
  private var closed = false

  /** Shows the next put; false when there is none, or it is closed. */
  def next(key: BytesRef, value: BytesRef): Boolean = synchronized {
    if (!closed) {
      if (started) rows.next() else rows.seek(start)
      started = true
    }
    if (closed) {
      false
    } else if (!rows.isValid) {
      rows.status() // raises what made it invalid
      false
    } else {
      val found = rows.key()
      val isOfFamily = Arrays.equals(found, 0, FamilyBytes, start, 0, FamilyBytes)
      if (isOfFamily) {
        val put = rows.value()
        key.set(found, Start + FamilyBytes, found.length - FamilyBytes)
        value.set(put, Start + KeyGroupBytes, put.length - KeyGroupBytes)
      }
      isOfFamily
    }
  }

  /** Ends the reader, also one that another thread reads from when the task ends. */
  override def close(): Unit = synchronized {
    if (!closed) closeAll(rows, file, settings, options)
    closed = true
  }

  private def closeAll(resources: AutoCloseable*): Unit = resources.foreach(_.close())
}
