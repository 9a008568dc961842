package io.statestore.view

import java.io.File
import java.lang.management.ManagementFactory
import java.nio.file.Files

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoderSpec
import org.apache.spark.sql.types.{LongType, StructType}

/**
 * Batches of rows each of which puts a value, deletes a timer, registers another one and asks which
 * are due, as `transformWithState` does in real-time mode. A time is the number of a row.
 *
 * Run with numbers of rows. It prints, for each number and for each way to ask, the nanoseconds of
 * CPU that a row took, the bytes that the overlay held at the end, and how often the first timer
 * that was shown was not the first that is left.
 */
object TimersCheck {
  import LongRows._

  private val numKeys = 1000
  private val delay = 5000

  private val timers = {
    val schema = new StructType().add("t", LongType).add("k", LongType)
    family.copy(
      id = 1,
      name = "timers",
      spec = RangeKeyScanStateEncoderSpec(schema, Seq(0)))
  }
  private val toTimer = UnsafeProjection.create(timers.spec.keySchema)
  private val toTime = UnsafeProjection.create(new StructType().add("t", LongType))
  private val nothing = row(0)
  private val cpu = ManagementFactory.getThreadMXBean

  def main(args: Array[String]): Unit = {
    val kinds = Seq("everyTimer", "fromTheLast", "committed")
    kinds.foreach(batch(_, 20000)) // for the JVM to compile it
    for (rows <- args.map(_.toInt); kind <- kinds) {
      val start = cpu.getCurrentThreadCpuTime
      val (held, wrong) = batch(kind, rows)
      val nanos = (cpu.getCurrentThreadCpuTime - start) / rows
      println(s"kind=$kind rows=$rows nanos=$nanos heldBytes=$held wrong=$wrong")
    }
  }

  /** In `committed` the timers that rows delete are of the version before, else of the batch. */
  private def batch(kind: String, rows: Int): (Long, Int) = {
    val view = new PagedView(ViewVersion(0, null, null, rescalable = true), maxParallelism)
    Seq(family, timers).foreach(view.addFamily(_))
    val committed = view.family(timers.name).asInstanceOf[PagedFamily]
    val isCommitted = kind == "committed"
    if (isCommitted) {
      val codec = new KeyCodec(timers)
      (0 until rows).foreach { number =>
        codec.encode(timer(number))
        committed.load(
          codec.base,
          codec.at,
          codec.length,
          nothing.getBaseObject,
          nothing.getBaseOffset,
          nothing.getSizeInBytes,
          append = false)
      }
    }
    val overlay = new Overlay(new KeyGroups(maxParallelism), 1L << 30, () => scratchFile())
    val values = stateOf(null, overlay)
    val keyGroup = PartitionKey.function(
      "default", useColumnFamilies = true, timers.name, timers.spec, maxParallelism)
    val state =
      new FamilyState(timers, committed, overlay, () => overlay.family(timers, keyGroup))
    var wrong = 0
    var number = 0
    while (number < rows) {
      values.put(row(number % numKeys), row(number))
      val old = number + delay - numKeys
      if (isCommitted) state.remove(timer(number))
      else if (number >= numKeys) state.remove(timer(old))
      if (!isCommitted) state.put(timer(number + delay), nothing)
      val scan =
        if (kind == "everyTimer") state.scan(null, state.keyCodec.encodePrefix(time(number + 1)))
        else state.scan(state.keyCodec.encodePrefix(time(number)), null)
      val first = if (scan.hasNext) scan.next().key.getLong(0) else -1L
      val left =
        if (kind == "everyTimer" || isCommitted && number == rows - 1) -1
        else if (isCommitted) number + 1
        else math.max(delay, old + 1)
      if (first != left) wrong += 1
      number += 1
    }
    val held = overlay.heapBytes
    overlay.close()
    (held, wrong)
  }

  private def timer(time: Int): UnsafeRow =
    toTimer(InternalRow(time.toLong, (time % numKeys).toLong))

  private def time(at: Int): UnsafeRow = toTime(InternalRow(at.toLong))

  private def scratchFile(): File = {
    val path = Files.createTempFile("statestore-timers", ".run")
    Files.delete(path)
    path.toFile
  }
}
