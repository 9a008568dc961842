package io.statestore.bench

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

final case class Auction(
    id: Long,
    item_name: String,
    description: String,
    initial_bid: Long,
    reserve: Long,
    date_time: Timestamp,
    expires: Timestamp,
    seller: Long,
    category: Long,
    extra: String)

final case class Bid(
    auction: Long,
    bidder: Long,
    price: Long,
    channel: String,
    url: String,
    date_time: Timestamp,
    extra: String)

/** An auction, or a bid on it. */
final case class Offer(id: Long, auction: Option[Auction], bid: Option[Bid])

final case class Winner(auction: Auction, bid: Bid)

final case class Ranked(bid: Bid, rank_number: Long)

private object BestFirst extends Ordering[Bid] {
  private val order = Ordering.by((bid: Bid) =>
    (-bid.price, bid.date_time.getTime, bid.bidder, bid.channel, bid.extra))

  override def compare(one: Bid, other: Bid): Int = order.compare(one, other)
}

/**
 * Keeps an auction and the best bid on it until the auction expires, and returns both then.
 *
 * Time only rises from batch to batch, so a bid without its auction was made too early to win.
 */
final class WinningBids extends StatefulProcessor[Long, Offer, Winner] {
  @transient private var opened: ValueState[Auction] = _
  @transient private var best: ValueState[Bid] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    opened = getHandle.getValueState("auction", Encoders.product[Auction], TTLConfig.NONE)
    best = getHandle.getValueState("best", Encoders.product[Bid], TTLConfig.NONE)
  }

  override def handleInputRows(
      id: Long, rows: Iterator[Offer], timers: TimerValues): Iterator[Winner] = {
    val offers = rows.toSeq
    val begun = offers.flatMap(_.auction).headOption
    begun.foreach { auction =>
      opened.update(auction)
      getHandle.registerTimer(auction.expires.getTime)
    }
    begun.orElse(Option(opened.get())).foreach { auction =>
      val valid = offers.flatMap(_.bid).filter { bid =>
        !bid.date_time.before(auction.date_time) && !bid.date_time.after(auction.expires)
      }
      if (valid.nonEmpty) {
        val before = if (begun.isEmpty) Option(best.get()) else None
        val winning = (valid ++ before).min(BestFirst)
        if (!before.contains(winning)) best.update(winning)
      }
    }
    Iterator.empty
  }

  override def handleExpiredTimer(
      id: Long, timers: TimerValues, timer: ExpiredTimerInfo): Iterator[Winner] = {
    val winner = Option(best.get()).map(Winner(opened.get(), _))
    opened.clear()
    best.clear()
    winner.iterator
  }
}

/** Keeps the ten best bids on an auction in a list, and returns them when a bid was made. */
final class TopBids extends StatefulProcessor[Long, Bid, Ranked] {
  @transient private var top: ListState[Bid] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    top = getHandle.getListState("top", Encoders.product[Bid], TTLConfig.NONE)

  override def handleInputRows(
      auction: Long, rows: Iterator[Bid], timers: TimerValues): Iterator[Ranked] = {
    val before = top.get().toArray
    val best = (before ++ rows).sorted(BestFirst).take(TopBids.Most)
    if (!best.sameElements(before)) top.put(best)
    best.iterator.zipWithIndex.map { case (bid, index) => Ranked(bid, index + 1L) }
  }
}

private object TopBids {
  val Most = 10
}

object NexmarkQueries {

  /** @param offers with the columns of `Offer` and a watermark */
  def winningBids(offers: DataFrame): DataFrame = {
    import offers.sparkSession.implicits._
    offers.as[Offer].groupByKey(_.id)
      .transformWithState(new WinningBids, TimeMode.EventTime(), OutputMode.Append())
      .select("auction.*", "bid.*").toDF()
  }

  /** @param bids with the columns of `Bid` */
  def topBids(bids: DataFrame): DataFrame = {
    import bids.sparkSession.implicits._
    bids.as[Bid].groupByKey(_.auction)
      .transformWithState(new TopBids, TimeMode.None(), OutputMode.Update())
      .select("bid.*", "rank_number").toDF()
  }
}
