package io.statestore.view

import java.io.File

import scala.util.Try

import io.statestore.LocalDiskException
import io.statestore.keygroup.KeyGroups

/**
 * Puts rows until a spill fails for lack of space. Run with a directory that cannot hold a spill;
 * prints what failed, how many of the rows are still there, and what a commit behind it raises.
 */
object SpillCheck {
  import LongRows._

  private val budgetBytes = 1L << 20
  private val mostRows = 1000000

  def main(args: Array[String]): Unit = {
    val runs = Iterator.from(0).map(number => new File(args(0), s"run-$number"))
    val overlay = new Overlay(new KeyGroups(maxParallelism), budgetBytes, () => runs.next())
    val state = stateOf(emptyView().family(family.name), overlay)

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
    val commit = Try(overlay.visitSorted(_ => ())).failed.get
    println(s"commit=$commit")
  }
}
