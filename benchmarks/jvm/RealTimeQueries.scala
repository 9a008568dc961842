package io.statestore.bench

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

final case class Sent(key: String, sent: Timestamp)

/** Counts the rows of a key in a value, and passes on when the newest of them was sent. */
final class Counts extends StatefulProcessor[String, Sent, (String, Long, Timestamp)] {
  @transient private var count: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    count = getHandle.getValueState("count", Encoders.scalaLong, TTLConfig.NONE)

  override def handleInputRows(
      key: String,
      rows: Iterator[Sent],
      timers: TimerValues): Iterator[(String, Long, Timestamp)] = rows.map { row =>
    val seen = (if (count.exists()) count.get() else 0L) + 1L
    count.update(seen)
    (key, seen, row.sent)
  }
}

object RealTimeQueries {

  /** @param rows with columns key and sent */
  def count(rows: DataFrame): DataFrame = {
    import rows.sparkSession.implicits._
    rows.as[Sent].groupByKey(_.key)
      .transformWithState(new Counts, TimeMode.None(), OutputMode.Update())
      .toDF("key", "count", "sent")
  }
}
