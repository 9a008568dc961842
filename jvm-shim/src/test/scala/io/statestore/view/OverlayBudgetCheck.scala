package io.statestore.view

import java.io.File
import java.nio.file.Files

import io.statestore.keygroup.KeyGroups

/** Writes to several overlays, side by side and in turn, and looks at the bytes of records. */
object OverlayBudgetCheck {
  import LongRows._

  private val numOverlays = 8
  private val budgetBytes = 8L << 20
  private val pageBytes = 256L << 10
  private val rowsOfBudget = 50000 // of 40 bytes, and what lists and sorts them: half of it

  def main(args: Array[String]): Unit = {
    val overlays = Seq.fill(numOverlays)(
      new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => scratchFile()))
    val states = overlays.map(stateOf(null, _))
    (0 until rowsOfBudget).foreach { number =>
      states.foreach(_.put(row(number), row(-number)))
      // With what lists the records and puts them in order.
      val held = overlays.map { overlay =>
        overlay.pages.heldBytes +
          overlay.allFamilies.map(_.maxHeapRecords * Overlay.ListedBytes).sum
      }.sum
      check(held <= budgetBytes + numOverlays * pageBytes, s"held=$held rows=$number")
    }
    check(overlays.forall(_.numRuns > 0), "an overlay never spilled")

    overlays.tail.foreach(_.close())
    // A task that is killed has threads that write a moment longer.
    states.tail.foreach(_.put(row(rowsOfBudget), row(0)))
    val runs = overlays.head.numRuns
    (0 until rowsOfBudget).foreach(i => states.head.put(row(rowsOfBudget + i), row(i)))
    check(overlays.head.numRuns == runs, "the share of closed overlays is not given back")
    overlays.foreach(_.close())

    val inTurn = (0 until numOverlays).map { _ =>
      val overlay = new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => scratchFile())
      val state = stateOf(null, overlay)
      (0 until rowsOfBudget).foreach(number => state.put(row(number), row(-number)))
      overlay // of a task that writes the next one before it ends
    }
    val held = inTurn.map { overlay =>
      overlay.pages.heldBytes +
        overlay.allFamilies.map(_.maxHeapRecords * Overlay.ListedBytes).sum
    }.sum
    check(held <= budgetBytes + numOverlays * (Overlay.SmallestShare + pageBytes), s"held=$held")
    inTurn.foreach(_.close())
    check(Overlay.allBytes.get == 0L, s"left=${Overlay.allBytes.get}")

    val tiny = new Overlay(new KeyGroups(maxParallelism), 0L, () => scratchFile())
    val state = stateOf(null, tiny)
    (0 until rowsOfBudget).foreach(number => state.put(row(number), row(-number)))
    val most = rowsOfBudget * (40L + Overlay.ListedBytes) / Overlay.SmallestShare + 1L
    check(tiny.numRuns <= most, s"a budget of nothing spills all the time: runs=${tiny.numRuns}")
    tiny.close()
    println("ok")
  }

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
