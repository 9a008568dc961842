package io.statestore.delta

import java.io.File
import java.nio.channels.FileChannel
import java.nio.file.StandardOpenOption._
import java.util.{Arrays, Collections}

import scala.jdk.CollectionConverters._

import io.statestore.view.{BytesRef, RecordPages}
import org.apache.arrow.compression.CommonsCompressionFactory
import org.apache.arrow.memory.{ArrowBuf, BufferAllocator, RootAllocator}
import org.apache.arrow.vector.compression.{CompressionCodec, CompressionUtil, NoCompressionCodec}
import org.apache.arrow.vector.ipc.{ArrowStreamWriter, WriteChannel}
import org.apache.arrow.vector.ipc.message.{ArrowFieldNode, ArrowRecordBatch}
import org.apache.arrow.vector.ipc.message.{IpcOption, MessageSerializer}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType, Schema}
import org.apache.spark.unsafe.Platform

/**
 * Writes the rows of a delta as an Arrow IPC stream (docs/format.md), in record batches of at most
 * 16,384 rows and about 4 MiB. The caller gives the rows in file order. The file is scratch: the
 * engine adds the trailer and makes it durable.
 *
 * @param expectedRows upper bound that sizes the first buffers
 */
private[statestore] final class DeltaWriter(file: File, compression: String, expectedRows: Int)
    extends RowWriter {
  import DeltaWriter._

  private val channel = FileChannel.open(file.toPath, CREATE_NEW, WRITE)
  private val out = new WriteChannel(channel)
  private val codec: CompressionCodec = compression match {
    case "zstd" =>
      CommonsCompressionFactory.INSTANCE.createCodec(CompressionUtil.CodecType.ZSTD, ZstdLevel)
    case "none" => NoCompressionCodec.INSTANCE
  }
  private val capacity = math.max(1, math.min(MaxRows, expectedRows))
  private var batch: Columns = _

  try {
    batch = new Columns(capacity)
    MessageSerializer.serialize(out, StateFileSchema, IpcOption.DEFAULT)
  } catch {
    case e: Throwable =>
      close()
      throw e
  }

  override def add(keyGroup: Int, family: Int, op: Int, key: BytesRef, value: BytesRef): Unit = {
    val bytes = key.length.toLong + (if (value == null) 0 else value.length)
    val isFull = batch.rows == capacity || batch.bytes + bytes > MaxBatchBytes
    if (isFull && batch.rows > 0) {
      flush()
    }
    batch.add(keyGroup, family, op, key, value)
  }

  override def finish(): Long = {
    if (batch.rows > 0) flush()
    ArrowStreamWriter.writeEndOfStream(out, IpcOption.DEFAULT)
    channel.size()
  }

  override def close(): Unit =
    try if (batch != null) batch.close()
    finally channel.close()

  private def flush(): Unit = {
    val record = batch.toRecordBatch(codec)
    try MessageSerializer.serialize(out, record, IpcOption.DEFAULT)
    finally record.close()
    batch.clear()
  }
}

private[statestore] object DeltaWriter {
  val MaxRows = 16384
  val MaxBatchBytes: Long = 4L << 20

  /** Bytes that a byte may unpack to in a batch of one long row: readers take hardly more. */
  private val MostUnpacked = 1000L

  /** The fastest of the regular levels: a commit waits for it. */
  val ZstdLevel = 1

  /** Bytes of the beginning by which a buffer of `LargeBytes` or more is judged. */
  private val SampleBytes = 16L << 10
  private val LargeBytes = 8L * SampleBytes

  lazy val allocator: BufferAllocator = new RootAllocator(Long.MaxValue)

  val StateFileSchema: Schema = {
    def field(name: String, kind: ArrowType, nullable: Boolean): Field =
      new Field(name, new FieldType(nullable, kind, null), Collections.emptyList())
    new Schema(Arrays.asList(
      field("key_group", new ArrowType.Int(16, false), nullable = false),
      field("column_family", new ArrowType.Int(16, false), nullable = false),
      field("op", new ArrowType.Int(8, false), nullable = false),
      field("key", ArrowType.Binary.INSTANCE, nullable = false),
      field("value", ArrowType.Binary.INSTANCE, nullable = true)))
  }

  /** A buffer of each source: all of them, or none and a raise. */
  private def allOf[T](sources: T*)(make: T => ArrowBuf): Seq[ArrowBuf] = {
    val made = Seq.newBuilder[ArrowBuf]
    try sources.foreach(source => made += make(source))
    catch {
      case e: Throwable =>
        made.result().foreach(_.close())
        throw e
    }
    made.result()
  }

  /** What a codec makes of a buffer, which stays its owner's. */
  private def compressed(codec: CompressionCodec, buffer: ArrowBuf): ArrowBuf = {
    buffer.getReferenceManager.retain() // which `compress` releases unless it raises
    try codec.compress(allocator, buffer)
    catch {
      case e: Throwable =>
        buffer.close()
        throw e
    }
  }

  /** Whether a large buffer, by its beginning, loses a fifth: less is not worth the time. */
  private def isWorthCompressing(codec: CompressionCodec, buffer: ArrowBuf): Boolean =
    codec == NoCompressionCodec.INSTANCE || buffer.writerIndex < LargeBytes || {
      val sample = buffer.slice(0L, SampleBytes)
      sample.writerIndex(SampleBytes)
      val made = compressed(codec, sample)
      try made.writerIndex <= SampleBytes * 4 / 5
      finally made.close()
    }

  /** The buffers of one record batch. */
  private final class Columns(capacity: Int) extends AutoCloseable {
    private val buffers = allOf(
      capacity * 2L,
      capacity * 2L,
      capacity.toLong,
      (capacity + 1) * 4L,
      (capacity + 1) * 4L,
      (capacity + 7L) / 8L,
      capacity * 32L,
      capacity * 32L)(allocator.buffer(_)).iterator
    private val keyGroups = buffers.next()
    private val families = buffers.next()
    private val ops = buffers.next()
    private val keyOffsets = buffers.next()
    private val valueOffsets = buffers.next()
    private val validity = buffers.next()
    private var keys = buffers.next()
    private var values = buffers.next()
    private var keyBytes = 0L
    private var valueBytes = 0L
    private var nulls = 0
    var rows = 0
    clear()

    def bytes: Long = keyBytes + valueBytes

    def add(keyGroup: Int, family: Int, op: Int, key: BytesRef, value: BytesRef): Unit = {
      // Raw addresses: ArrowBuf checks bounds at every call, and capacity is known here.
      Platform.putShort(null, keyGroups.memoryAddress + rows * 2L, keyGroup.toShort)
      Platform.putShort(null, families.memoryAddress + rows * 2L, family.toShort)
      Platform.putByte(null, ops.memoryAddress + rows, op.toByte)
      keys = ensure(keys, keyBytes, key.length)
      RecordPages.copyBytes(key.base, key.at, null, keys.memoryAddress + keyBytes, key.length)
      keyBytes += key.length
      if (value == null) {
        nulls += 1
      } else {
        values = ensure(values, valueBytes, value.length)
        val to = values.memoryAddress + valueBytes
        RecordPages.copyBytes(value.base, value.at, null, to, value.length)
        valueBytes += value.length
        val at = validity.memoryAddress + (rows >>> 3)
        Platform.putByte(null, at, (Platform.getByte(null, at) | (1 << (rows & 7))).toByte)
      }
      rows += 1
      Platform.putInt(null, keyOffsets.memoryAddress + rows * 4L, Math.toIntExact(keyBytes))
      Platform.putInt(null, valueOffsets.memoryAddress + rows * 4L, Math.toIntExact(valueBytes))
    }

    /** The rows as a record batch of its own references; `close` it. */
    def toRecordBatch(codec: CompressionCodec): ArrowRecordBatch = {
      val none = allocator.getEmpty
      def sized(buffer: ArrowBuf, length: Long): ArrowBuf = {
        val view = buffer.slice(0L, length)
        view.writerIndex(length)
        val packed = if (isWorthCompressing(codec, view)) compressed(codec, view) else null
        val isTaken = length <= MaxBatchBytes || packed != null &&
          packed.writerIndex >= length / MostUnpacked
        if (packed != null && isTaken) {
          packed
        } else {
          if (packed != null) packed.close()
          CompressionUtil.packageRawBuffer(allocator, view) // as where a buffer would grow
        }
      }
      val buffers = allOf(
        none -> 0L, keyGroups -> rows * 2L,
        none -> 0L, families -> rows * 2L,
        none -> 0L, ops -> rows.toLong,
        none -> 0L, keyOffsets -> (rows + 1) * 4L, keys -> keyBytes,
        (if (nulls == 0) none else validity) -> (rows + 7L) / 8L,
        valueOffsets -> (rows + 1) * 4L, values -> valueBytes) { case (buffer, length) =>
        if (buffer eq none) none else sized(buffer, length)
      }
      val plain = new ArrowFieldNode(rows.toLong, 0L)
      val nodes =
        Arrays.asList(plain, plain, plain, plain, new ArrowFieldNode(rows.toLong, nulls.toLong))
      try {
        val compression = CompressionUtil.createBodyCompression(codec)
        new ArrowRecordBatch(rows, nodes, buffers.asJava, compression, true)
      } finally buffers.foreach(_.close())
    }

    def clear(): Unit = {
      rows = 0
      nulls = 0
      keyBytes = 0L
      valueBytes = 0L
      keyOffsets.setInt(0L, 0)
      valueOffsets.setInt(0L, 0)
      validity.setZero(0L, validity.capacity)
    }

    override def close(): Unit =
      Seq(keyGroups, families, ops, keyOffsets, valueOffsets, validity, keys, values)
        .foreach(_.close())

    private def ensure(buffer: ArrowBuf, used: Long, more: Int): ArrowBuf =
      if (used + more <= buffer.capacity) {
        buffer
      } else {
        val larger = allocator.buffer(math.max(used + more, buffer.capacity * 2L))
        larger.setBytes(0L, buffer, 0L, used)
        buffer.close()
        larger
      }
  }
}
