package io.statestore.testing

import java.sql.Timestamp

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

final case class Event(key: String, value: Long, ts: Timestamp)
final case class Total(count: Long, sum: Long)
final case class Report(key: String, count: Long, sum: Long, timedOut: Boolean)

/**
 * The typed operators that PySpark has no API for, callable with a DataFrame of (key, value, ts).
 */
object GroupStateQueries {

  private val IdleMs = 30000L

  def mapGroups(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    val groups = events.as[Event].groupByKey(_.key)
    groups.mapGroupsWithState[Total, Report](GroupStateTimeout.NoTimeout) {
      (key: String, rows: Iterator[Event], state: GroupState[Total]) =>
        val total = add(state.getOption, rows.toSeq)
        state.update(total)
        Report(key, total.count, total.sum, timedOut = false)
    }.toDF()
  }

  /**
   * @param timeout NoTimeout, ProcessingTimeTimeout (1 ms: idle in the next batch means timed out)
   * or EventTimeTimeout
   */
  def flatMapGroups(events: DataFrame, mode: String, timeout: String): DataFrame = {
    import events.sparkSession.implicits._
    val outputMode = if (mode == "append") OutputMode.Append() else OutputMode.Update()
    val groupTimeout = timeout match {
      case "NoTimeout" => GroupStateTimeout.NoTimeout
      case "ProcessingTimeTimeout" => GroupStateTimeout.ProcessingTimeTimeout
      case "EventTimeTimeout" => GroupStateTimeout.EventTimeTimeout
    }
    val groups = events.as[Event].groupByKey(_.key)
    groups.flatMapGroupsWithState[Total, Report](outputMode, groupTimeout) {
      (key: String, rows: Iterator[Event], state: GroupState[Total]) =>
        if (state.hasTimedOut) {
          val total = state.get
          state.remove()
          Iterator(Report(key, total.count, total.sum, timedOut = true))
        } else {
          val seen = rows.toSeq
          val total = add(state.getOption, seen)
          // A removed state must be gone from the store, and come back from nothing later.
          if (total.count > 12) state.remove() else state.update(total)
          if (state.exists && timeout == "ProcessingTimeTimeout") state.setTimeoutDuration(1L)
          if (state.exists && timeout == "EventTimeTimeout") {
            val newest = seen.map(_.ts.getTime).max
            state.setTimeoutTimestamp(math.max(newest, state.getCurrentWatermarkMs()) + IdleMs)
          }
          Iterator(Report(key, total.count, total.sum, timedOut = false))
        }
    }.toDF()
  }

  private def add(before: Option[Total], rows: Seq[Event]): Total = {
    val Total(count, sum) = before.getOrElse(Total(0L, 0L))
    Total(count + rows.size, sum + rows.map(_.value).sum)
  }
}
