package io.statestore.bench

import java.nio.ByteBuffer
import java.util.SplittableRandom
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.{DataFrame, Dataset}
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

/** A record of ShuffleBench and when it was made, in ms. */
final case class ShuffledRecord(time: Long, data: Array[Byte])

/** A record on its way to the consumer of a rule that takes it. */
final case class Routed(consumer: String, record: ShuffledRecord)

/** A consumer's state: of the records since it last returned something, in the order of times. */
final case class Tally(count: Long, sum: Long, first: Long, last: Long)

final case class Returned(consumer: String, tally: Tally)

/**
 * Rules that each take the records whose place is in an arc of the ring of the numbers below
 * 2^63. All arcs are equally wide, and begin where random numbers say.
 */
private final class ShuffleRules(count: Int, width: Long, seed: Long) {
  private val (begins, names) = {
    val random = new SplittableRandom(seed)
    val begins = Array.fill(count)(random.nextLong() & Long.MaxValue)
    val order = begins.indices.sortBy(begins(_)).toArray
    (order.map(begins(_)), order.map(rule => s"consumer-$rule"))
  }

  /** Returns the consumers of the rules that take a record of that place. */
  def consumers(place: Long): Iterator[String] = {
    val found = java.util.Arrays.binarySearch(begins, place)
    var after = if (found >= 0) found + 1 else -found - 1
    while (after < count && begins(after) == place) after += 1
    Iterator.range(0, count).map(step => Math.floorMod(after - 1 - step, count))
      .takeWhile(rule => ((place - begins(rule)) & Long.MaxValue) < width)
      .map(names(_))
  }
}

object ShuffleRules {
  private val known = new ConcurrentHashMap[(Int, Long, Long), ShuffleRules]

  /**
   * The stream of ShuffleBench: each record goes to the consumers of the rules that take it. A
   * consumer adds up its records in the order of their times, and returns that every `rate`
   * records. It begins to count at random, so that not all consumers return at once.
   *
   * @param records with the columns of `ShuffledRecord`
   */
  def shuffle(records: DataFrame, count: Int, width: Long, seed: Long, rate: Int): DataFrame = {
    import records.sparkSession.implicits._
    val routed: Dataset[Routed] = records.as[ShuffledRecord].flatMap { record =>
      val rules = of(count, width, seed)
      rules.consumers(ByteBuffer.wrap(record.data).getLong(8) & Long.MaxValue)
        .map(Routed(_, record))
    }
    routed.groupByKey(_.consumer)
      .flatMapGroupsWithState(OutputMode.Update(), GroupStateTimeout.NoTimeout())(
        (consumer: String, group: Iterator[Routed], state: GroupState[Tally]) =>
          consume(consumer, group.map(_.record).toArray.sortBy(_.time), state, rate))
      .select("consumer", "tally.*").toDF()
  }

  /** Made once in a JVM: a million rules are too many to be made or sent for each task. */
  private def of(count: Int, width: Long, seed: Long): ShuffleRules =
    known.computeIfAbsent((count, width, seed), _ => new ShuffleRules(count, width, seed))

  private def consume(
      consumer: String,
      records: Array[ShuffledRecord],
      state: GroupState[Tally],
      rate: Int): Iterator[Returned] = {
    val returned = Iterator.newBuilder[Returned]
    var tally = state.getOption.getOrElse {
      val bits = ByteBuffer.wrap(records.head.data).getLong(16)
      Tally((bits & Long.MaxValue) % rate, 0, 0, 0)
    }
    records.foreach { record =>
      val first = if (tally.first == 0) record.time else tally.first
      val sum = tally.sum + ByteBuffer.wrap(record.data).getLong(0)
      tally = Tally(tally.count + 1, sum, first, record.time)
      if (tally.count == rate) {
        returned += Returned(consumer, tally)
        tally = Tally(0, 0, 0, 0)
      }
    }
    state.update(tally)
    returned.result()
  }
}
