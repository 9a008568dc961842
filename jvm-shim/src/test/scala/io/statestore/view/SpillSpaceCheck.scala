package io.statestore.view

import java.io.File
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import io.statestore.keygroup.KeyGroups

/**
 * Puts rows until some are spilled, and frees them. Run with a directory; prints how many files in
 * it are mapped before, at once after that, and in the end, which is the first moment there is none
 * or ten seconds later. The overlay is there all the time. Rows are put into another one that was
 * freed before, as by a thread that outlives its task.
 */
object SpillSpaceCheck {
  import LongRows._

  private val budgetBytes = 1L << 20
  private val numRows = 100000

  def main(args: Array[String]): Unit = {
    val directory = Path.of(args(0)).toRealPath()
    val runs = Iterator.from(0).map(number => new File(directory.toFile, s"run-$number"))
    val overlay = new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => runs.next())
    val state = stateOf(emptyView().family(family.name), overlay)
    (1 to numRows).foreach(number => state.put(row(number), row(-number)))
    require((1 to numRows).forall(number => state.get(row(number)).getLong(0) == -number.toLong))
    overlay.close()
    def numMapped: Int =
      Files.readAllLines(Path.of("/proc/self/maps")).asScala.count(_.contains(s"$directory/run-"))
    val before = numMapped
    overlay.free(keptMs = 2000L)
    val kept = numMapped
    val late = new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => runs.next())
    late.close()
    late.free()
    val lateState = stateOf(emptyView().family(family.name), late)
    (1 to numRows).foreach(number => lateState.put(row(number), row(-number)))
    val end = System.nanoTime() + 10000000000L
    while (numMapped > 0 && System.nanoTime() < end) Thread.sleep(10L)
    require(late.heapBytes > budgetBytes)
    println(s"runs=${overlay.numRuns} before=$before kept=$kept left=$numMapped")
  }
}
