package io.statestore.bench

import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

final case class Change(k: String, v: Long)

/** Adds a change to what a key has, and returns a sum of that. */
abstract class Adding extends StatefulProcessor[String, Change, (String, Long)] {
  protected val long: org.apache.spark.sql.Encoder[Long] = Encoders.scalaLong

  protected def add(change: Change, timers: TimerValues): Long

  override def handleInputRows(
      key: String, rows: Iterator[Change], timers: TimerValues): Iterator[(String, Long)] =
    rows.map(change => (key, add(change, timers)))
}

/** One value a key. */
final class Value(ttl: TTLConfig) extends Adding {
  @transient private var total: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    total = getHandle.getValueState("total", long, ttl)

  override protected def add(change: Change, timers: TimerValues): Long = {
    val sum = (if (total.exists()) total.get() else 0L) + change.v
    total.update(sum)
    sum
  }
}

/** A list a key, to which every change appends. */
final class Values extends Adding {
  @transient private var seen: ListState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    seen = getHandle.getListState("seen", long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    seen.appendValue(change.v)
    seen.get().sum
  }
}

/** A map of eight entries a key, of which every change updates one. */
final class Totals extends Adding {
  @transient private var totals: MapState[Long, Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    totals = getHandle.getMapState("totals", long, long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    val entry = change.v % 8
    val sum = (if (totals.containsKey(entry)) totals.getValue(entry) else 0L) + change.v
    totals.updateValue(entry, sum)
    sum
  }
}

/** A list a key, of which every change reads what is there and then appends row by row. */
final class Appended extends Adding {
  @transient private var seen: ListState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    seen = getHandle.getListState("seen", long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    val sum = seen.get().sum
    (1 to VariableQueries.LongList).foreach(i => seen.appendValue(change.v + i))
    sum
  }
}

/**
 * A long list a key, which loses its first row with every change and gets another one: the calls
 * that a list with a time to live makes when one of its rows expires.
 */
final class Expired extends Adding {
  @transient private var seen: ListState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    seen = getHandle.getListState("seen", long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    val kept =
      if (seen.exists()) seen.get().drop(1)
      else Iterator.range(1, VariableQueries.LongList).map(_.toLong)
    seen.clear()
    kept.foreach(seen.appendValue)
    seen.appendValue(change.v)
    change.v
  }
}

/** A map and timers of a key, which every change goes over before it adds to both. */
final class Iterated extends Adding {
  @transient private var totals: MapState[Long, Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    totals = getHandle.getMapState("totals", long, long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    val sum = totals.iterator().map(_._2).sum
    val next = (timers.getCurrentProcessingTimeInMs() +: getHandle.listTimers().toSeq).max
    getHandle.registerTimer(next + 3600000L)
    totals.updateValue(change.v % 8, change.v)
    sum
  }
}

/** A timer a key, which every change sets anew; its time is a value. */
final class Timers extends Adding {
  @transient private var expiry: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    expiry = getHandle.getValueState("expiry", long, TTLConfig.NONE)

  override protected def add(change: Change, timers: TimerValues): Long = {
    if (expiry.exists()) getHandle.deleteTimer(expiry.get())
    val next = timers.getCurrentProcessingTimeInMs() + 3600000L + change.v
    getHandle.registerTimer(next)
    expiry.update(next)
    next
  }
}

object VariableQueries {

  /** Rows that are appended to a list at once, or are in one that loses its first. */
  val LongList = 2000

  /**
   * @param kind of state: value, list, map, timers, or ttl, which is a value that expires; appended
   *             and expired are long lists, iterated is a map with timers
   */
  def of(changes: DataFrame, kind: String): DataFrame = {
    import changes.sparkSession.implicits._
    val processor = kind match {
      case "value" => new Value(TTLConfig.NONE)
      case "list" => new Values
      case "map" => new Totals
      case "timers" => new Timers
      case "appended" => new Appended
      case "expired" => new Expired
      case "iterated" => new Iterated
      case "ttl" => new Value(TTLConfig(Duration.ofHours(1)))
    }
    val timeMode = kind match {
      case "timers" | "ttl" | "iterated" => TimeMode.ProcessingTime()
      case _ => TimeMode.None()
    }
    changes.as[Change].groupByKey(_.k)
      .transformWithState(processor, timeMode, OutputMode.Update()).toDF()
  }
}
