package io.statestore.testing

import java.io.FileWriter
import java.time.Duration
import java.util.UUID

import org.apache.spark.sql.{DataFrame, Encoders, ForeachWriter, Row, SparkSession}
import org.apache.spark.sql.classic
import org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
import org.apache.spark.sql.functions.{
  col, count, lit, sum, timestamp_millis, timestamp_seconds, when, window}
import org.apache.spark.sql.streaming._

/** Counts the rows of a key in a value, sums them in a map, and lists every third one. */
final class Variables extends StatefulProcessor[Long, (Long, Long), (Long, Long, Long, Int)] {
  @transient private var count: ValueState[Long] = _
  @transient private var sums: MapState[Long, Long] = _
  @transient private var list: ListState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val long = Encoders.scalaLong
    count = getHandle.getValueState("count", long, TTLConfig.NONE)
    sums = getHandle.getMapState("sums", long, long, TTLConfig.NONE)
    list = getHandle.getListState("list", long, TTLConfig.NONE)
  }

  override def handleInputRows(
      key: Long,
      rows: Iterator[(Long, Long)],
      timers: TimerValues): Iterator[(Long, Long, Long, Int)] = rows.map { case (_, i) =>
    val seen = (if (count.exists()) count.get() else 0L) + 1L
    count.update(seen)
    val sum = (if (sums.containsKey(i % 2)) sums.getValue(i % 2) else 0L) + i
    sums.updateValue(i % 2, sum)
    if (seen % 3L == 0L) list.appendValue(i)
    (key, seen, sum, list.get().size)
  }
}

/**
 * Sets a timer at the first row of a key, which emits (key, -1, 0, 0); a value with a short time to
 * live counts the rows.
 */
final class Timers extends StatefulProcessor[Long, (Long, Long), (Long, Long, Long, Int)] {
  @transient private var first: ValueState[Long] = _
  @transient private var short: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    first = getHandle.getValueState("first", Encoders.scalaLong, TTLConfig.NONE)
    short = getHandle.getValueState(
      "short", Encoders.scalaLong, TTLConfig(Duration.ofMillis(Timers.ShortMs)))
  }

  override def handleInputRows(
      key: Long,
      rows: Iterator[(Long, Long)],
      timers: TimerValues): Iterator[(Long, Long, Long, Int)] = rows.map { case (_, i) =>
    if (!first.exists()) {
      first.update(i)
      short.update(i)
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + Timers.WaitMs)
    }
    (key, i, 0L, 0)
  }

  override def handleExpiredTimer(
      key: Long,
      timers: TimerValues,
      expired: ExpiredTimerInfo): Iterator[(Long, Long, Long, Int)] =
    Iterator.single((key, -1L, first.get(), 0))
}

object Timers {
  val WaitMs = 300L
  val ShortMs = 2000L
}

/** Writes its rows to files of its own, each row at once. */
final class Lines(directory: String) extends ForeachWriter[Row] {
  @transient private var file: FileWriter = _

  override def open(partition: Long, epoch: Long): Boolean = {
    file = new FileWriter(s"$directory/$epoch-$partition-${UUID.randomUUID()}")
    true
  }

  override def process(row: Row): Unit = {
    file.write(row.mkString(",") + "\n")
    file.flush()
  }

  override def close(error: Throwable): Unit = if (file != null) file.close()
}

/** A source of rows (i modulo a number of keys, i), i from 0, that is in memory. */
final class MemoryRows(session: SparkSession, numKeys: Long) {
  import session.implicits._

  private val source = LowLatencyMemoryStream[(Long, Long)](
    session.asInstanceOf[classic.SparkSession], MemoryRows.Partitions)
  private var fed = 0L

  def frame: DataFrame = source.toDF().toDF("key", "i")

  /** Adds the rows up to one. */
  def feed(until: Long): Unit = {
    source.addData((fed until until).map(i => (i % numKeys, i)))
    fed = until
  }
}

object MemoryRows {
  val Partitions = 2
}

object RealTimeQueries {
  private val LastOfFirstRun = 599L

  /** What a query returns over rows (key, i), to be written. */
  def over(rows: DataFrame, name: String): DataFrame = {
    import rows.sparkSession.implicits._
    def keyed(processor: StatefulProcessor[Long, (Long, Long), (Long, Long, Long, Int)],
        mode: TimeMode): DataFrame =
      rows.as[(Long, Long)].groupByKey(_._1)
        .transformWithState(processor, mode, OutputMode.Update()).toDF()
    name match {
      case "plain" => rows
      case "aggregation" => rows.groupBy("key").agg(count(lit(1)), sum("i"))
      // All windows but the newest are over when the first rows of a second run come.
      case "windows" =>
        val at = when(col("i") < LastOfFirstRun, col("i")).otherwise(10L * LastOfFirstRun)
        rows.withColumn("at", timestamp_seconds(at)).withWatermark("at", "1 second")
          .groupBy(window(col("at"), "2 seconds"), col("key")).agg(count(lit(1)), sum("i"))
          .select("window.start", "key", "count(1)", "sum(i)")
      case "deduplication" => rows.dropDuplicates("key").select("key")
      case "within-watermark" =>
        rows.withColumn("at", timestamp_millis(col("i")))
          .withWatermark("at", "1 second").dropDuplicatesWithinWatermark("key")
      case "variables" => keyed(new Variables, TimeMode.None())
      case "timers" => keyed(new Timers, TimeMode.ProcessingTime())
    }
  }
}
