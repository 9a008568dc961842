package io.statestore.view

import java.util.ArrayDeque
import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.collection.mutable

import io.statestore.view.OffHeapMemory._
import org.apache.spark.unsafe.Platform

/**
 * Memory outside of the JVM's heap for the pages of working views. Whoever takes a piece frees it:
 * nothing here is collected.
 *
 * Freed memory stays mapped a while, and only a new page may take its place before that: a
 * task that is ended from outside has threads, as those that write to its Python worker, which may
 * read a row a moment after its handle is closed. They find bytes, if not those of the row.
 *
 * @param budget who grants the memory, and takes it back
 * @param keptMs milliseconds for which freed memory stays mapped
 */
private[statestore] final class OffHeapMemory(budget: Budget, keptMs: Long = KeptMs) {
  private val kept = mutable.HashMap.empty[Int, ArrayDeque[Freed]] // by size, the oldest first
  private var takenBytes = 0L
  private var isTrimming = false

  /** Bytes that were granted and not given back, those freed a moment ago among them. */
  def bytes: Long = synchronized(takenBytes)

  /**
   * Takes memory, which has any content, and returns its address. Waits where memory that was
   * freed is about to be given back.
   *
   * @throws io.statestore.view.NoMemoryException there is not so much
   */
  def take(size: Int): Long = synchronized {
    while (!kept.contains(size) && !budget.grant(size + HeaderBytes)) {
      if (kept.isEmpty) {
        throw new NoMemoryException(
          "[state-too-large] the rows of all state partitions of this executor do not fit into " +
            s"what Spark's tasks leave of its memory outside of the heap: taken=$takenBytes " +
            s"${budget.limit}. To fix: raise spark.memory.offHeap.size, or use more executors; " +
            "where execution is the larger, smaller batches do, too")
      }
      awaitOldest()
    }
    kept.get(size).fold(allocate(size)) { same =>
      val address = same.pollLast().address
      if (same.isEmpty) kept -= size
      address
    }
  }

  /** Allocates memory that was granted. */
  private def allocate(size: Int): Long = {
    val start =
      try Platform.allocateMemory(size + HeaderBytes)
      catch {
        case e: OutOfMemoryError =>
          budget.giveBack(size + HeaderBytes)
          throw new NoMemoryException(
            "[state-too-large] the machine has no memory left outside of the heap: " +
              s"taken=$takenBytes ${budget.limit}. To fix: lower spark.memory.offHeap.size to " +
              "what the machine has, and use more executors", e)
      }
    takenBytes += size + HeaderBytes
    Platform.putLong(null, start, size.toLong)
    start + HeaderBytes
  }

  /** Waits until the piece that was freed first is due, or another one is freed. */
  private def awaitOldest(): Unit = {
    val oldest = kept.valuesIterator.map(_.peekFirst.at).min
    val restNanos = oldest + keptNanos - System.nanoTime()
    if (restNanos > 0L) TimeUnit.NANOSECONDS.timedWait(this, restNanos)
    trim()
  }

  /** Frees what `take` returned; nothing may ask for it any more. Returns its size. */
  def free(address: Long): Int = synchronized {
    val size = sizeAt(address)
    kept.getOrElseUpdate(size, new ArrayDeque[Freed]).addLast(new Freed(address, System.nanoTime()))
    if (!isTrimming) trimLater()
    notifyAll()
    size
  }

  private def trimLater(): Unit = {
    isTrimming = true
    CompletableFuture.delayedExecutor(keptMs, TimeUnit.MILLISECONDS).execute { () =>
      synchronized {
        trim()
        isTrimming = false
        if (kept.nonEmpty) trimLater()
      }
    }
  }

  private def trim(): Unit = {
    val now = System.nanoTime()
    kept.filterInPlace { (size, same) =>
      while (!same.isEmpty && now - same.peekFirst.at >= keptNanos) {
        Platform.freeMemory(same.pollFirst().address - HeaderBytes)
        takenBytes -= size + HeaderBytes
        budget.giveBack(size + HeaderBytes)
      }
      !same.isEmpty
    }
  }

  private def keptNanos: Long = TimeUnit.MILLISECONDS.toNanos(keptMs)

  private def sizeAt(address: Long): Int = Platform.getLong(null, address - HeaderBytes).toInt
}

object OffHeapMemory {

  /** For how long what a task has read stays mapped once it is freed. */
  val KeptMs = 10000L

  private val HeaderBytes = 8

  private final class Freed(val address: Long, val at: Long)

  /** Who grants memory; called by one thread at a time. */
  trait Budget {
    def grant(bytes: Long): Boolean
    def giveBack(bytes: Long): Unit

    /** Settings that make the limit, each as key=value. */
    def limit: String
  }
}

/** There is no memory left outside of the heap. */
private[statestore] final class NoMemoryException(message: String, cause: Throwable = null)
    extends IllegalStateException(message, cause)
