package io.statestore.view

import java.nio.ByteBuffer

import scala.collection.mutable

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{BinaryType, LongType, StructType}

/**
 * Changes most rows of a view in each batch, compares all rows, and prints the most bytes that the
 * view held beside those of its rows, in percent: where each value is as long as before, where each
 * is longer, where other keys come in place of most, and where a batch of few rows follows one of
 * all. Then the bytes of its index, where nearly all rows have gone for some batches. Fails at the
 * first difference.
 */
object ViewMemoryCheck {
  private val numRows = 50000
  private val numBatches = 12
  private val maxParallelism = 64
  private val keySchema = new StructType().add("k", LongType)
  private val valueSchema = new StructType().add("v", BinaryType)
  private val toKey = UnsafeProjection.create(keySchema)
  private val toValue = UnsafeProjection.create(valueSchema)
  private val family = ColumnFamily(
    ColumnFamily.DefaultId,
    "default",
    NoPrefixKeyStateEncoderSpec(keySchema),
    valueSchema,
    multiValues = false,
    internal = false)
  private val keyGroup = PartitionKey.function(
    "default", useColumnFamilies = false, family.name, family.spec, maxParallelism)

  def main(args: Array[String]): Unit = {
    val all = 0 until numRows
    val most = numRows / 10 * 8
    val same = mostHeld((rows, batch) => all.foreach(rows.put(_, 64, batch)))
    val longer = mostHeld((rows, batch) => all.foreach(rows.put(_, 64 + 16 * batch, batch)))
    val others = mostHeld { (rows, batch) =>
      (0 until most).foreach(i => rows.remove(numRows * (batch - 1) + i))
      (0 until most).foreach(i => rows.put(numRows * batch + i, 64, batch))
    }
    val few = mostHeld { (rows, batch) =>
      all.take(if (batch % 2 == 0) numRows else 100).foreach(rows.put(_, 64 + batch / 2, batch))
    }
    println(s"same=$same longer=$longer others=$others few=$few")
    println(indexWhenMostHaveGone())
  }

  private def key(number: Int): UnsafeRow = toKey(InternalRow(number.toLong)).copy()

  /** The rows of a view, and what they are to be. */
  private final class Rows {
    private val view =
      new PagedView(ViewVersion(0, null, null, rescalable = true), maxParallelism)
    private val model = mutable.HashMap.empty[Int, Array[Byte]]
    private var overlay = newOverlay()
    private var state: FamilyState = _

    view.addFamily(family)
    state = newState()

    private def newOverlay(): Overlay = new Overlay(
      new KeyGroups(maxParallelism), 1L << 30, () => throw new IllegalStateException("spilled"))

    private def newState(): FamilyState = new FamilyState(
      family, view.family(family.name), overlay, () => overlay.family(family, keyGroup))

    def put(number: Int, length: Int, batch: Int): Unit = {
      val value = ByteBuffer.allocate(length).putInt(number).putInt(batch).array
      state.put(key(number), toValue(InternalRow(value)))
      model(number) = value
    }

    def remove(number: Int): Unit = {
      state.remove(key(number))
      model.remove(number)
      ()
    }

    def commit(version: Long): Unit = {
      var change: FamilyChanges = null
      val slots = new Array[Int](RecordBlock.Capacity)
      overlay.visitSorted { block =>
        if (change == null) change = new FamilyChanges(block.family)
        view.family(family.name).findSlots(overlay.pages, block.addresses, block.length, slots)
        (0 until block.length).foreach { i =>
          if (FamilyChanges.netOp(overlay.pages, block.addresses(i), slots(i)) >= 0) {
            change.add(block.addresses(i), slots(i))
          }
        }
      }
      val to = ViewVersion(version, s"c$version", s"l$version", rescalable = true)
      view.advance(new ViewAdvance(to, Seq(family), Seq(change)))
      overlay.close()
      overlay = newOverlay()
      state = newState()
      compare(version)
    }

    private def compare(version: Long): Unit = {
      require(view.numRows == model.size, s"version $version has ${view.numRows} rows")
      model.foreach { case (number, value) =>
        val found = state.get(key(number))
        require(
          found != null && java.util.Arrays.equals(found.getBinary(0), value),
          s"version $version, key $number")
      }
    }

    def indexBytes: Long = view.family(family.name).table.indexBytes

    def percentHeld: Long = 100L * view.bytes / view.family(family.name).stateBytes
  }

  private def indexWhenMostHaveGone(): Long = {
    val rows = new Rows
    (0 until numRows).foreach(rows.put(_, 8, 0))
    rows.commit(1L)
    (20 until numRows).foreach(rows.remove)
    rows.commit(2L)
    (1 to 20).foreach { batch =>
      rows.put(batch, 8, batch)
      rows.commit(batch + 2L)
    }
    rows.indexBytes
  }

  /** Of all batches but the first, whose records the view takes over. */
  private def mostHeld(write: (Rows, Int) => Unit): Long = {
    val rows = new Rows
    (0 until numBatches).map { batch =>
      write(rows, batch)
      rows.commit(batch + 1L)
      if (batch == 0) 0L else rows.percentHeld
    }.max
  }
}
