package io.statestore.testing

import java.math.{BigDecimal => Decimal}
import java.sql.{Date, Timestamp}
import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoders, Row}
import org.apache.spark.sql.streaming._
import org.apache.spark.sql.types._

final case class Held(key: String, value: String, list: String, map: String)

/**
 * Keeps rows of a schema in a value, a list and a map; shows what is there before it writes some.
 *
 * @param ttlMs of each variable, 0 for none
 */
final class Evolving(schema: StructType, ttlMs: Long, timers: Boolean)
    extends StatefulProcessor[String, Timed, Held] {
  private val TimerMs = 40000L
  private val MostInList = 5

  @transient private var value: ValueState[Row] = _
  @transient private var list: ListState[Row] = _
  @transient private var map: MapState[Long, Row] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val ttl = if (ttlMs == 0L) TTLConfig.NONE else TTLConfig(Duration.ofMillis(ttlMs))
    val rows = Encoders.row(schema)
    value = getHandle.getValueState("value", rows, ttl)
    list = getHandle.getListState("list", rows, ttl)
    map = getHandle.getMapState("map", Encoders.scalaLong, rows, ttl)
  }

  override def handleInputRows(
      key: String, rows: Iterator[Timed], times: TimerValues): Iterator[Held] = {
    val events = rows.toSeq.sortBy(event => (event.at, event.value))
    val held = show(key)
    events.foreach { event =>
      val number = event.value
      // Each variable leaves some of what it holds as it was.
      if (number % 3 == 0) value.update(Evolving.row(schema, number))
      if (number % 3 == 1) map.updateValue(number % 4, Evolving.row(schema, number))
      if (list.get().size >= MostInList) list.put(Array(Evolving.row(schema, number)))
      else if (number % 2 == 0) list.appendValue(Evolving.row(schema, number))
      if (number % 11 == 0) value.clear()
      if (number % 13 == 0) map.removeKey(number % 4)
    }
    if (timers) {
      getHandle.registerTimer(
        math.max(events.map(_.at).max, times.getCurrentWatermarkInMs()) + TimerMs)
    }
    held
  }

  override def handleExpiredTimer(
      key: String, times: TimerValues, expired: ExpiredTimerInfo): Iterator[Held] = show(key)

  private def show(key: String): Iterator[Held] = Iterator(Held(
    key,
    if (value.exists()) Evolving.shown(value.get()) else "none",
    list.get().map(Evolving.shown).mkString(" "),
    map.iterator().map { case (rest, row) => s"$rest ${Evolving.shown(row)}" }
      .toSeq.sorted.mkString(" ")))
}

object Evolving {
  private val DayMs = 86400000L
  private val StartMs = 1704067200000L

  /** A row of a schema, made from a number; a field is null for every seventh. */
  def row(schema: StructType, number: Long): Row = Row.fromSeq(schema.zipWithIndex.map {
    case (field, ordinal) =>
      if ((number + ordinal) % 7 == 0) null else made(field.dataType, number * 31 + ordinal)
  })

  def shown(row: Row): String = row.toSeq.map {
    case bytes: Array[Byte] => bytes.map(byte => f"$byte%02x").mkString
    case other => String.valueOf(other)
  }.mkString("[", ",", "]")

  private def made(kind: DataType, number: Long): Any = kind match {
    case BooleanType => number % 2 == 0
    case ByteType => number.toByte
    case ShortType => number.toShort
    case IntegerType => (number * 65537).toInt
    case LongType => number * 6700417L * 641L
    case FloatType => number / 3f
    case DoubleType => number / 3d
    case StringType => s"é$number"
    case BinaryType => BigInt(number).toByteArray
    case DateType => new Date(StartMs + number * DayMs)
    case TimestampType => new Timestamp(StartMs + number * 997L)
    case d: DecimalType => new Decimal(java.math.BigInteger.valueOf(number), d.scale)
    case ArrayType(element, _) =>
      Seq.tabulate((number.abs % 4).toInt)(i => made(element, number + i))
    case MapType(_, element, _) =>
      Map.from((0 until (number.abs % 3).toInt).map(i => s"k$i" -> made(element, number + i)))
    case nested: StructType => row(nested, number)
    case other => throw new IllegalArgumentException(s"no values of $other")
  }

  /** @param schema in Spark's DDL */
  def query(events: DataFrame, schema: String, ttlMs: Long, timers: Boolean): DataFrame = {
    import events.sparkSession.implicits._
    val mode =
      if (timers) TimeMode.EventTime()
      else if (ttlMs > 0L) TimeMode.ProcessingTime()
      else TimeMode.None()
    events.as[Timed].groupByKey(_.key)
      .transformWithState(
        new Evolving(StructType.fromDDL(schema), ttlMs, timers), mode, OutputMode.Update())
      .toDF()
  }
}
