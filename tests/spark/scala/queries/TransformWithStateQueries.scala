package io.statestore.testing

import java.sql.Timestamp
import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

final case class Timed(key: String, value: Long, ts: Timestamp, at: Long)
final case class First(key: String, first: Long)
final case class Shown(
    key: String, what: String, count: Long, seen: String, totals: String, timers: String)

/** What `Everything` of tests/spark/state_variables.py does, in Scala's API. */
final class Everything(mode: String, ttls: Seq[Long])
    extends StatefulProcessorWithInitialState[String, Timed, Shown, First] {
  private val ClearedAt = 8L
  private val TimerMs = 40000L
  private val InitialTimerMs = 1704067215000L

  @transient private var count: ValueState[Long] = _
  @transient private var seen: ListState[Long] = _
  @transient private var totals: MapState[Long, Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    def ttl(ms: Long) = if (ms == 0L) TTLConfig.NONE else TTLConfig(Duration.ofMillis(ms))
    val long = Encoders.scalaLong
    count = getHandle.getValueState("count", long, ttl(ttls(0)))
    seen = getHandle.getListState("seen", long, ttl(ttls(1)))
    totals = getHandle.getMapState("totals", long, long, ttl(ttls(2)))
  }

  override def handleInitialState(key: String, initial: First, timers: TimerValues): Unit = {
    count.update(initial.first % 5)
    seen.put(Array(initial.first, initial.first + 1))
    totals.updateValue(initial.first % 5, initial.first)
    totals.updateValue(7L, initial.first)
    if (mode == "EventTime") getHandle.registerTimer(InitialTimerMs)
  }

  override def handleInputRows(
      key: String, rows: Iterator[Timed], timers: TimerValues): Iterator[Shown] = {
    val events = rows.toSeq
    val values = events.map(_.value).sorted
    val sum = (if (count.exists()) count.get() else 0L) + values.size
    if (sum > ClearedAt) {
      count.clear()
      seen.clear()
      totals.clear()
      timersOf().foreach(getHandle.deleteTimer)
      show(key, "cleared", sum)
    } else {
      count.update(sum)
      if (!seen.exists()) seen.put(values.toArray)
      else if (sum % 3 == 0) values.foreach(seen.appendValue)
      else if (sum % 3 == 1) seen.appendList(values.toArray)
      else seen.put((seen.get().toSeq.takeRight(2) ++ values).toArray)
      values.foreach { value =>
        val rest = math.abs(value) % 5
        if (math.abs(value) % 7 == 0) totals.removeKey(rest)
        else if (totals.containsKey(rest)) totals.updateValue(rest, totals.getValue(rest) + value)
        else totals.updateValue(rest, value)
      }
      if (mode != "None") {
        val known = timersOf()
        if (known.size > 1) getHandle.deleteTimer(known.head)
        val newest =
          if (mode == "ProcessingTime") timers.getCurrentProcessingTimeInMs()
          else math.max(events.map(_.at).max, timers.getCurrentWatermarkInMs())
        getHandle.registerTimer(newest + TimerMs)
      }
      show(key, "seen", sum)
    }
  }

  override def handleExpiredTimer(
      key: String, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Shown] = {
    val sum = if (count.exists()) count.get() else -1L
    if (sum % 2 != 0) seen.clear() else totals.clear()
    show(key, if (mode == "EventTime") s"timer ${expired.getExpiryTimeInMs()}" else "timer", sum)
  }

  private def timersOf(): Seq[Long] =
    if (mode == "None") Nil else getHandle.listTimers().toSeq.sorted

  private def show(key: String, what: String, sum: Long): Iterator[Shown] = {
    val entries = totals.iterator().toSeq.sorted
    assert(entries.map(_._1) == totals.keys().toSeq.sorted)
    assert(entries.map(_._2).sum == totals.values().sum && totals.exists() == entries.nonEmpty)
    Iterator(Shown(
      key,
      what,
      sum,
      seen.get().mkString(","),
      entries.map { case (rest, total) => s"$rest:$total" }.mkString(","),
      if (mode == "EventTime") timersOf().mkString(",") else ""))
  }
}

object TransformWithStateQueries {

  /** State has the text of a number as its key, and Spark groups by the number. */
  def byNumber(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    events
      .groupBy("value")
      .as[String, Timed]
      .transformWithState(
        new Everything("None", Seq(0L, 0L, 0L)), TimeMode.None(), OutputMode.Update())
      .toDF()
  }

  /** @param initial keys with their first state, or null */
  def everything(
      events: DataFrame,
      initial: DataFrame,
      mode: String,
      valueTtlMs: Long,
      listTtlMs: Long,
      mapTtlMs: Long): DataFrame = {
    import events.sparkSession.implicits._
    val timeMode = mode match {
      case "EventTime" => TimeMode.EventTime()
      case "ProcessingTime" => TimeMode.ProcessingTime()
      case "None" => TimeMode.None()
    }
    val groups = events.as[Timed].groupByKey(_.key)
    val processor = new Everything(mode, Seq(valueTtlMs, listTtlMs, mapTtlMs))
    val (update, key) = (OutputMode.Update(), (first: First) => first.key)
    val reports =
      if (initial == null) groups.transformWithState(processor, timeMode, update)
      else {
        groups.transformWithState(
          processor, timeMode, update, initial.as[First].groupByKey(key))
      }
    reports.toDF()
  }
}
