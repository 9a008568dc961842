package io.statestore.view

import java.util.{ArrayList, TreeMap}
import java.util.concurrent.{Callable, CyclicBarrier, Executors}

import scala.jdk.CollectionConverters._
import scala.util.Random

import io.statestore.keygroup.KeyGroups
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoderSpec
import org.apache.spark.sql.types.{LongType, StructType}

/**
 * Readers of one view beside each other, each with a handle of its own, as two tasks that take up
 * one version have: scans, of few rows and of all, and lookups against a sorted map. Run with a
 * seed and a number of reads for each; exits non-zero at the first difference.
 */
object ViewReadersCheck {
  private val numReaders = 4
  private val numTimes = 1000
  private val mostOfTime = 6
  private val valueSchema = new StructType().add("v", LongType)
  private val timeSchema = new StructType().add("t", LongType)
  private val family = ColumnFamily(
    ColumnFamily.DefaultId,
    "default",
    RangeKeyScanStateEncoderSpec(timeSchema.add("k", LongType), Seq(0)),
    valueSchema,
    multiValues = false,
    internal = false)

  private type Row = (Long, Long, Long)

  def main(args: Array[String]): Unit = {
    val random = new Random(args(0).toLong)
    val view = new PagedView(ViewVersion(0, null, null, rescalable = true), 64)
    view.addFamily(family)
    val rows = load(view, random)
    val threads = Executors.newFixedThreadPool(numReaders)
    val start = new CyclicBarrier(numReaders)
    val readers = new ArrayList[Callable[Long]]
    (0 until numReaders).foreach { _ =>
      val reader = new Reader(view, rows, new Random(random.nextLong()))
      readers.add { () =>
        start.await()
        (0 until args(1).toInt).map(_ => reader.read()).sum
      }
    }
    val shown = try threads.invokeAll(readers).asScala.map(_.get).sum finally threads.shutdown()
    println(s"ok readers=$numReaders shown=$shown")
  }

  private def load(view: PagedView, random: Random): TreeMap[Long, Seq[Row]] = {
    val rows = new TreeMap[Long, Seq[Row]]
    val codec = new KeyCodec(family)
    val toKey = UnsafeProjection.create(family.spec.keySchema)
    val toValue = UnsafeProjection.create(valueSchema)
    (0 until numTimes).foreach { time =>
      val ofTime = (0 until random.nextInt(mostOfTime)).map { key =>
        (time.toLong, key.toLong, random.nextLong())
      }
      ofTime.foreach { case (time, key, number) =>
        codec.encode(toKey(InternalRow(time, key)))
        val value = toValue(InternalRow(number))
        view.family(family.name).load(
          codec.base,
          codec.at,
          codec.length,
          value.getBaseObject,
          value.getBaseOffset,
          value.getSizeInBytes,
          append = false)
      }
      rows.put(time.toLong, ofTime)
    }
    rows
  }

  private final class Reader(view: PagedView, rows: TreeMap[Long, Seq[Row]], random: Random) {
    private val overlay = new Overlay(
      new KeyGroups(64), 1L << 30, () => throw new IllegalStateException("spilled"))
    private val state =
      new FamilyState(family, view.family(family.name), overlay, () => null)
    private val toTime = UnsafeProjection.create(timeSchema)
    private val toKey = UnsafeProjection.create(family.spec.keySchema)

    /** Reads rows and compares them; returns how many there were. */
    def read(): Long = {
      val first = random.nextInt(numTimes + 1).toLong
      random.nextInt(400) match {
        case 0 => compare("all rows", scan(null, null), from(0L, numTimes.toLong))
        case n if n < 200 => compare(s"t=$first", scan(first, first + 1), from(first, first + 1))
        case n if n < 300 =>
          val until = first + random.nextInt(20)
          compare(s"t=$first..$until", scan(first, until), from(first, until))
        case _ => lookUp(first)
      }
    }

    private def scan(first: Long, until: Long): Seq[Row] = scan(bound(first), bound(until))

    private def scan(first: Array[Byte], until: Array[Byte]): Seq[Row] =
      state.scan(first, until).map { pair =>
        (pair.key.getLong(0), pair.key.getLong(1), pair.value.getLong(0))
      }.toVector

    private def bound(time: Long): Array[Byte] =
      state.keyCodec.encodePrefix(toTime(InternalRow(time)))

    private def from(first: Long, until: Long): Seq[Row] =
      rows.subMap(first, true, until, false).values.asScala.flatten.toVector

    private def lookUp(time: Long): Long = {
      (0L until mostOfTime.toLong).foreach { key =>
        val found: UnsafeRow = state.get(toKey(InternalRow(time, key)))
        val expected = from(time, time + 1).find(_._2 == key).map(_._3)
        if (Option(found).map(_.getLong(0)) != expected) {
          throw new IllegalStateException(s"t=$time k=$key: found $found, expected $expected")
        }
      }
      0L
    }

    private def compare(what: String, found: Seq[Row], expected: Seq[Row]): Long =
      if (found == expected) found.size.toLong
      else {
        throw new IllegalStateException(
          s"$what: ${found.take(8)} of ${found.size} rows, expected ${expected.take(8)}")
      }
  }
}
