package io.statestore.delta

import java.io.File
import java.nio.ByteBuffer
import java.nio.channels.{FileChannel, ReadableByteChannel}
import java.nio.file.StandardOpenOption.READ

import org.apache.arrow.compression.CommonsCompressionFactory
import org.apache.arrow.vector.{UInt1Vector, UInt2Vector, VarBinaryVector}
import org.apache.arrow.vector.ipc.ArrowStreamReader

/**
 * Reads the rows of a state file that the engine has verified, batch by batch. Row bytes are
 * off-heap and valid until the next `nextBatch` or `close`.
 *
 * @param slices offset and length of the bytes that are the stream, in file order; empty for a file
 *   that begins with it
 */
private[statestore] final class StateFileReader(file: File, slices: Seq[(Long, Long)] = Nil)
    extends AutoCloseable {
  private val channel = FileChannel.open(file.toPath, READ)
  private val stream = if (slices.isEmpty) channel else new SlicesChannel(channel, slices)
  private val reader =
    new ArrowStreamReader(stream, DeltaWriter.allocator, CommonsCompressionFactory.INSTANCE)
  private var keyGroups: UInt2Vector = _
  private var families: UInt2Vector = _
  private var ops: UInt1Vector = _
  private var keys: VarBinaryVector = _
  private var values: VarBinaryVector = _
  private var count = 0

  /** Loads the next batch; false at the end. */
  def nextBatch(): Boolean = {
    val more = reader.loadNextBatch()
    count = 0
    if (more) {
      val root = reader.getVectorSchemaRoot
      keyGroups = root.getVector("key_group").asInstanceOf[UInt2Vector]
      families = root.getVector("column_family").asInstanceOf[UInt2Vector]
      ops = root.getVector("op").asInstanceOf[UInt1Vector]
      keys = root.getVector("key").asInstanceOf[VarBinaryVector]
      values = root.getVector("value").asInstanceOf[VarBinaryVector]
      count = root.getRowCount
    }
    more
  }

  def rows: Int = count
  def keyGroup(row: Int): Int = keyGroups.get(row).toInt
  def family(row: Int): Int = families.get(row).toInt
  def op(row: Int): Int = ops.get(row).toInt

  def keyAddress(row: Int): Long =
    keys.getDataBuffer.memoryAddress + keys.getOffsetBuffer.getInt(row * 4L)
  def keyLength(row: Int): Int =
    keys.getOffsetBuffer.getInt((row + 1) * 4L) - keys.getOffsetBuffer.getInt(row * 4L)

  def valueAddress(row: Int): Long =
    values.getDataBuffer.memoryAddress + values.getOffsetBuffer.getInt(row * 4L)
  def valueLength(row: Int): Int =
    values.getOffsetBuffer.getInt((row + 1) * 4L) - values.getOffsetBuffer.getInt(row * 4L)

  override def close(): Unit = {
    reader.close(false)
    channel.close()
  }
}

/** The `op` column of a state file. */
private[statestore] object StateFileOp {
  val Put = 0
  val Delete = 1
  val Merge = 2
}

/** The bytes of some slices of a file, one after the other. */
private final class SlicesChannel(file: FileChannel, slices: Seq[(Long, Long)])
    extends ReadableByteChannel {
  private var left = slices.toList
  private var at = left.headOption.fold(0L)(_._1)

  override def read(into: ByteBuffer): Int = left match {
    case Nil => -1
    case (offset, length) :: rest if at >= offset + length =>
      left = rest
      at = rest.headOption.fold(0L)(_._1)
      read(into)
    case (offset, length) :: _ =>
      val limit = into.limit()
      val wanted = math.min(into.remaining().toLong, offset + length - at).toInt
      into.limit(into.position() + wanted)
      val found =
        try file.read(into, at)
        finally into.limit(limit)
      if (found > 0) at += found
      found
  }

  override def isOpen: Boolean = file.isOpen

  override def close(): Unit = file.close()
}
