package io.statestore.view

import java.io.File
import java.nio.file.Files

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.{LongType, StructType}

/** Writes to several overlays side by side and looks at the bytes of their records. */
object OverlayBudgetCheck {
  private val schema = new StructType().add("v", LongType)
  private val family = ColumnFamily(
    0,
    "default",
    NoPrefixKeyStateEncoderSpec(schema),
    schema,
    multiValues = false,
    internal = false)
  private val keyGroups = new KeyGroups(64)
  private val keyGroup = PartitionKey.function(
    "default", useColumnFamilies = false, family.name, family.spec, 64)
  private val toRow = UnsafeProjection.create(schema)
  private val numOverlays = 8
  private val budgetBytes = 8L << 20
  private val pageBytes = 256L << 10
  private val rowsOfBudget = 100000 // of 40 bytes: about half of the budget

  def main(args: Array[String]): Unit = {
    val overlays = Seq.fill(numOverlays)(
      new Overlay(keyGroups, budgetBytes, () => scratchFile()))
    val states = overlays.map { overlay =>
      new FamilyState(family, null, overlay, () => overlay.family(family, keyGroup))
    }
    (0 until rowsOfBudget).foreach { number =>
      states.foreach(_.put(row(number), row(-number)))
      val held = overlays.map(_.pages.heapBytes).sum
      check(held <= budgetBytes + numOverlays * pageBytes, s"held=$held rows=$number")
    }
    check(overlays.forall(_.numRuns > 0), "an overlay never spilled")

    overlays.tail.foreach(_.close())
    val runs = overlays.head.numRuns
    (0 until rowsOfBudget).foreach(i => states.head.put(row(rowsOfBudget + i), row(i)))
    check(overlays.head.numRuns == runs, "the share of closed overlays is not given back")
    overlays.foreach(_.close())
    println("ok")
  }

  private def row(number: Int): UnsafeRow = toRow(InternalRow(number.toLong)).copy()

  private def check(holds: Boolean, what: => String): Unit = if (!holds) {
    println(s"failed: $what")
    System.exit(0)
  }

  private def scratchFile(): File = {
    val path = Files.createTempFile("statestore-budget", ".run")
    Files.delete(path)
    path.toFile
  }
}
