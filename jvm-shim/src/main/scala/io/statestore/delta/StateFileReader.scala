package io.statestore.delta

import java.io.File
import java.nio.channels.FileChannel
import java.nio.file.StandardOpenOption.READ

import org.apache.arrow.compression.CommonsCompressionFactory
import org.apache.arrow.vector.{UInt1Vector, UInt2Vector, VarBinaryVector}
import org.apache.arrow.vector.ipc.ArrowStreamReader

/**
 * Reads the rows of a state file that the engine has verified, batch by batch. Row bytes are
 * off-heap and valid until the next `nextBatch` or `close`.
 */
private[statestore] final class StateFileReader(file: File) extends AutoCloseable {
  private val channel = FileChannel.open(file.toPath, READ)
  private val reader =
    new ArrowStreamReader(channel, DeltaWriter.allocator, CommonsCompressionFactory.INSTANCE)
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
