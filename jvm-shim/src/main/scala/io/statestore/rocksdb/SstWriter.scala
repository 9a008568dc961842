package io.statestore.rocksdb

import java.io.File
import java.nio.ByteBuffer
import java.util.zip.CRC32C

import scala.collection.mutable

import io.statestore.delta.{DeltaWriter, RowWriter, StateFileOp}
import io.statestore.view.{BytesRef, RecordPages}
import org.apache.arrow.memory.ArrowBuf
import org.apache.spark.unsafe.Platform
import org.rocksdb.{BlockBasedTableConfig, BloomFilter, CompressionType, EnvOptions}
import org.rocksdb.{IndexType, Options, RocksDB, SstFileWriter}

/**
 * Writes the rows of a delta as an SST (docs/format.md), in the order of column family and key. The
 * file is scratch: the engine adds deletes and trailer and makes it durable. There are no merges.
 *
 * @param file where the SST goes; empty when there are no rows
 * @param newFile makes the path of the file for deletes, a delta in the format of `DeltaWriter`
 */
private[statestore] final class SstWriter(
    file: File,
    newFile: () => File,
    settings: SstSettings)
    extends RowWriter {
  import RocksDBView.{FamilyBytes, KeyGroupBytes}
  import SstWriter._

  private val sst = new SstFileWriter(settings.environment, settings.options)
  // Rows: key length i32, value length i32 or -1, key, value; RocksDB and the checksum read them.
  private var block: ArrowBuf = _
  private var bytes: ByteBuffer = _
  private var key: ByteBuffer = _
  private var value: ByteBuffer = _
  private var used = 0
  private var rows = 0L
  private var summed = 0L
  private val crc = new CRC32C
  private var deleted: File = _
  private var deletes: DeltaWriter = _
  private var deletesBytes = 0L
  try {
    newBlock(BlockBytes)
    sst.open(file.getPath)
  } catch {
    case e: Throwable =>
      close()
      throw e
  }

  /** Bytes of the rows, and the checksum over them, which are the same for equal rows. */
  def rowsLength: Long = summed
  def checksum: Long = crc.getValue

  /** The keys that are deleted, null for none. */
  def deletesFile: File = deleted
  def deletesLength: Long = deletesBytes

  override def add(
      keyGroup: Int,
      family: Int,
      op: Int,
      rowKey: BytesRef,
      rowValue: BytesRef): Unit = {
    val isDelete = op == StateFileOp.Delete
    val keyBytes = FamilyBytes + rowKey.length
    val valueBytes = if (isDelete) 0 else KeyGroupBytes + rowValue.length
    val size = Math.addExact(HeaderBytes + keyBytes, valueBytes)
    if (size > bytes.capacity - used) { // a sum of the two may be more than an Int
      flush()
      if (size > bytes.capacity) newBlock(size)
    }
    val from = used + HeaderBytes
    val at = block.memoryAddress + used
    Platform.putInt(null, at, keyBytes)
    Platform.putInt(null, at + 4, if (isDelete) -1 else valueBytes)
    putShort(at + HeaderBytes, family)
    val keyAt = at + HeaderBytes + FamilyBytes
    RecordPages.copyBytes(rowKey.base, rowKey.at, null, keyAt, rowKey.length)
    if (isDelete) {
      val copy = new Array[Byte](keyBytes)
      bytes.get(from, copy)
      sst.delete(copy)
      addDelete(keyGroup, family, rowKey)
    } else {
      val valueAt = keyAt + rowKey.length
      putShort(valueAt, keyGroup)
      RecordPages.copyBytes(
        rowValue.base, rowValue.at, null, valueAt + KeyGroupBytes, rowValue.length)
      key.limit(from + keyBytes).position(from)
      value.limit(from + keyBytes + valueBytes).position(from + keyBytes)
      sst.put(key, value)
    }
    used += size
    rows += 1
  }

  override def finish(): Long = {
    flush()
    if (rows > 0L) sst.finish()
    if (deletes != null) deletesBytes = deletes.finish()
    if (rows == 0L) 0L else file.length
  }

  override def close(): Unit = {
    sst.close()
    if (block != null) block.close()
    if (deletes != null) deletes.close()
  }

  private def addDelete(keyGroup: Int, family: Int, rowKey: BytesRef): Unit = {
    if (deletes == null) {
      deleted = newFile()
      deletes = new DeltaWriter(deleted, "none", DeltaWriter.MaxRows)
    }
    deletes.add(keyGroup, family, StateFileOp.Delete, rowKey, null)
  }

  private def flush(): Unit = {
    crc.update(bytes.limit(used).position(0))
    bytes.clear()
    summed += used
    used = 0
  }

  private def newBlock(size: Int): Unit = {
    val larger = DeltaWriter.allocator.buffer(size.toLong)
    if (block != null) block.close()
    block = larger
    bytes = block.nioBuffer(0L, size)
    key = bytes.duplicate()
    value = bytes.duplicate()
  }
}

private object SstWriter {
  val BlockBytes: Int = 64 << 10
  val HeaderBytes = 8

  def putShort(at: Long, number: Int): Unit = {
    Platform.putByte(null, at, (number >>> 8).toByte)
    Platform.putByte(null, at + 1, number.toByte)
  }
}

/** How this JVM writes SSTs: as the engine does (backends/rocksdb/sst.py). Never closed. */
private[statestore] final class SstSettings private (compression: String, blockSizeKB: Int) {
  val environment = new EnvOptions

  val options: Options = new Options()
    .setCompressionType(
      if (compression == "none") CompressionType.NO_COMPRESSION
      else CompressionType.getCompressionType(compression))
    .setTableFormatConfig(
      new BlockBasedTableConfig()
        // As TABLE_FORMAT in statestore/backends/rocksdb/database_memory.py.
        .setFormatVersion(6)
        .setBlockSize(blockSizeKB * 1024L)
        .setIndexType(IndexType.kTwoLevelIndexSearch)
        .setPartitionFilters(true)
        .setFilterPolicy(new BloomFilter(10)))
}

private[statestore] object SstSettings {
  private val made = mutable.HashMap.empty[(String, Int), SstSettings]

  def of(compression: String, blockSizeKB: Int): SstSettings = synchronized {
    RocksDB.loadLibrary()
    made.getOrElseUpdate((compression, blockSizeKB), new SstSettings(compression, blockSizeKB))
  }
}
