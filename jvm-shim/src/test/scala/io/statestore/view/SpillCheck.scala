package io.statestore.view

import java.io.File

import io.statestore.LocalDiskException
import io.statestore.keygroup.{KeyGroups, PartitionKey}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{LongType, StructType}

/**
 * Puts rows until a spill fails for lack of space. Run with a directory that cannot hold a spill;
 * prints what failed and how many of the rows are still there.
 */
object SpillCheck {
  private val schema = new StructType().add("v", LongType)
  private val family = ColumnFamily(
    0,
    "default",
    NoPrefixKeyStateEncoderSpec(schema),
    schema,
    multiValues = false,
    internal = false)
  private val maxParallelism = 64
  private val budgetBytes = 1L << 20
  private val mostRows = 1000000

  def main(args: Array[String]): Unit = {
    val view = new WorkingView(ViewVersion(0, null, null, rescalable = true), maxParallelism)
    view.addFamily(family)
    val runs = Iterator.from(0).map(number => new File(args(0), s"run-$number"))
    val overlay = new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => runs.next())
    val keyGroup = PartitionKey.function(
      "default", useColumnFamilies = false, family.name, family.spec, maxParallelism)
    val state = new FamilyState(
      family, view.family(family.name), overlay, () => overlay.family(family, keyGroup))
    val toRow = UnsafeProjection.create(schema)
    def row(number: Int): UnsafeRow = toRow(InternalRow(number.toLong)).copy()

    var put = 0
    var failure: Throwable = null
    while (failure == null && put < mostRows) {
      put += 1
      try state.put(row(put), row(-put))
      catch { case e: LocalDiskException => failure = e }
    }
    println(s"failure=$failure")
    val kept = (1 to put).count { number =>
      val found = state.get(row(number))
      found != null && found.getLong(0) == -number.toLong
    }
    println(s"put=$put kept=$kept")
  }
}
