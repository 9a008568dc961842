"""The queries: each as a streaming query of Spark, and once more as SQL of DuckDB to check it by.

Both read `person`, `auction` and `bid`, with the columns of `generator.SCHEMA` and `date_time`. In
Spark a watermark of 4 seconds lies on it, as in the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.generator import SCHEMA

WATERMARK = "4 seconds"
LEFT_OUT = "q15 and q16 are left out: they count distinct values, and Spark has no such streams."
AS_WRITTEN = "as written"


@dataclass(frozen=True, slots=True)
class Query:
    """A query of Nexmark.

    Attributes:
        name: As in the reference.
        title: What it asks.
        sql: In Spark; for a `processor` what goes into it.
        batch: In DuckDB, over all events; what ends after `:watermark` has not come out.
        written: With which of Spark's operators.
        differs: From the query of the reference.
        processor: Method of `jvm/NexmarkQueries.scala` with a `transformWithState`.
        changed: Columns of the groups that come out again with each batch that has rows of them
            (update mode); empty where each row comes out once (append mode).
    """

    name: str
    title: str
    sql: str
    batch: str
    written: str
    differs: str = AS_WRITTEN
    processor: str = ""
    changed: tuple[str, ...] = ()

    @property
    def output_mode(self) -> str:
        """As Spark calls it."""
        return "update" if self.changed else "append"

    @property
    def needs_families(self) -> bool:
        """Whether Spark has it only on a store with column families."""
        return bool(self.processor)


_STATISTICS = """
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    min(price) AS min_price, max(price) AS max_price,
    CAST(floor(avg(price)) AS bigint) AS avg_price,
    CAST(sum(price) AS bigint) AS sum_price
"""
_BEST_FIRST = "price DESC, b.date_time, bidder, channel, b.extra"
_EXPANDED = """
    auction, bidder, price, channel, url, b.date_time AS bid_date_time, b.extra AS bid_extra,
    item_name, description, initial_bid, reserve, a.date_time AS auction_date_time, expires, seller,
    category, a.extra AS auction_extra
"""
_TOP = "auction, bidder, price, channel, url, date_time, extra"

QUERIES = (
    Query(
        "q3",
        "who sells in certain states",
        """SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id
           WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
        """SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id
           WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
        "join, kept for ever",
    ),
    Query(
        "q4",
        "average price of a category",
        """WITH final AS (
             SELECT window(a.date_time, '10 seconds') AS period, id, category, max(price) AS price
             FROM auction AS a JOIN bid AS b ON id = b.auction
               AND b.date_time >= a.date_time AND b.date_time <= expires
               AND b.date_time <= a.date_time + INTERVAL 1 SECOND
             GROUP BY window(a.date_time, '10 seconds'), id, category)
           SELECT period.start, category, avg(price) AS price FROM final
           GROUP BY period, category""",
        """WITH final AS (
             SELECT time_bucket(INTERVAL 10 SECOND, a.date_time) AS start, id, category,
               max(price) AS price
             FROM auction AS a JOIN bid AS b ON id = b.auction
               AND b.date_time BETWEEN a.date_time AND expires
             GROUP BY ALL)
           SELECT start, category, avg(price) AS price FROM final
           WHERE start + INTERVAL 10 SECOND <= :joined GROUP BY ALL""",
        "join in an interval, two aggregations",
        "an average for each 10 seconds in which auctions began, not one that changes for ever",
    ),
    Query(
        "q5",
        "auctions with most bids",
        """WITH counts AS (
             SELECT window, auction, count(*) AS num FROM bid
             GROUP BY window(date_time, '10 seconds', '2 seconds'), auction)
           SELECT max_by(auction, struct(num, -auction)) AS auction, max(num) AS num FROM counts
           GROUP BY window""",
        """WITH windows AS (
             SELECT time_bucket(INTERVAL 2 SECOND, date_time) - to_seconds(2 * unnest(range(5)))
               AS start, auction FROM bid),
           counts AS (SELECT start, auction, count(*) AS num FROM windows GROUP BY ALL)
           SELECT auction, num FROM counts WHERE start + INTERVAL 10 SECOND <= :watermark
           QUALIFY row_number() OVER (PARTITION BY start ORDER BY num DESC, auction) = 1""",
        "an aggregation of hopping windows and auctions, another one of the windows",
        "of several auctions with most bids the oldest; no join of the counts with their maximum",
    ),
    Query(
        "q7",
        "highest bid",
        """WITH bids AS (
             SELECT auction, bidder, price, date_time + INTERVAL 0 SECOND AS date_time, extra,
               window(date_time, '10 seconds') AS period FROM bid),
           most AS (SELECT window AS period, max(price) AS price FROM bid
             GROUP BY window(date_time, '10 seconds'))
           SELECT auction, bidder, bids.price, date_time, extra FROM bids JOIN most
           ON bids.period = most.period AND bids.price = most.price""",
        """SELECT auction, bidder, price, date_time, extra FROM bid
           WHERE time_bucket(INTERVAL 10 SECOND, date_time) + INTERVAL 10 SECOND <= :watermark
           QUALIFY price = max(price) OVER (
             PARTITION BY time_bucket(INTERVAL 10 SECOND, date_time))""",
        "an aggregation of windows, joined with all bids of the window",
        "a bid at the end of a window is in the next one, not in both",
    ),
    Query(
        "q8",
        "who is new and sells",
        """WITH p AS (SELECT window, id, name FROM person
             GROUP BY window(date_time, '10 seconds'), id, name),
           a AS (SELECT window, seller FROM auction
             GROUP BY window(date_time, '10 seconds'), seller)
           SELECT id, name, p.window.start FROM p JOIN a ON id = seller AND p.window = a.window""",
        """WITH p AS (SELECT DISTINCT id, name, time_bucket(INTERVAL 10 SECOND, date_time) AS start
             FROM person),
           a AS (SELECT DISTINCT seller, time_bucket(INTERVAL 10 SECOND, date_time) AS start
             FROM auction)
           SELECT id, name, p.start FROM p JOIN a ON id = seller AND p.start = a.start
           WHERE p.start + INTERVAL 10 SECOND <= :watermark""",
        "two aggregations of windows, a join of their windows",
    ),
    Query(
        "q9",
        "winning bids",
        """SELECT id, named_struct('id', id, 'item_name', item_name, 'description', description,
               'initial_bid', initial_bid, 'reserve', reserve, 'date_time', date_time,
               'expires', expires, 'seller', seller, 'category', category, 'extra', extra)
             AS auction, NULL AS bid, date_time FROM auction
           UNION ALL SELECT auction, NULL, named_struct('auction', auction, 'bidder', bidder,
               'price', price, 'channel', channel, 'url', url, 'date_time', date_time,
               'extra', extra), date_time FROM bid""",
        f"""SELECT id, item_name, description, initial_bid, reserve, a.date_time, expires, seller,
             category, a.extra, auction, bidder, price, channel, url, b.date_time, b.extra
           FROM auction AS a JOIN bid AS b ON id = auction
             AND b.date_time BETWEEN a.date_time AND expires
           WHERE expires <= :watermark
           QUALIFY row_number() OVER (PARTITION BY id ORDER BY {_BEST_FIRST}) = 1""",
        "transformWithState: two values and a timer of each auction",
        "the winner comes out once, when its auction is over",
        processor="winningBids",
    ),
    Query(
        "q11",
        "sessions of a bidder",
        """SELECT bidder, count(*) AS bid_count, session_window.start, session_window.end FROM bid
           GROUP BY bidder, session_window(date_time, '10 seconds')""",
        """WITH begun AS (
             SELECT bidder, date_time, date_time - lag(date_time) OVER (
               PARTITION BY bidder ORDER BY date_time) < INTERVAL 10 SECOND AS goes_on FROM bid),
           numbered AS (  -- of bids in one millisecond that first which begins a session
             SELECT *, count(*) FILTER (WHERE goes_on IS NOT TRUE) OVER (
               PARTITION BY bidder ORDER BY date_time, goes_on IS TRUE
               ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS session FROM begun)
           SELECT bidder, count(*) AS bid_count, min(date_time) AS start,
             max(date_time) + INTERVAL 10 SECOND AS end FROM numbered
           GROUP BY bidder, session HAVING max(date_time) + INTERVAL 10 SECOND <= :watermark""",
        "session windows",
    ),
    Query(
        "q12",
        "bids of a bidder in a window",
        """SELECT bidder, count(*) AS bid_count, window.start, window.end FROM bid
           GROUP BY bidder, window(date_time, '10 seconds')""",
        """SELECT bidder, count(*) AS bid_count,
             time_bucket(INTERVAL 10 SECOND, date_time) AS start, start + INTERVAL 10 SECOND AS end
           FROM bid WHERE start + INTERVAL 10 SECOND <= :watermark GROUP BY bidder, start""",
        "an aggregation of windows",
        "windows by the time of the bid; by the time of processing no two runs are the same",
    ),
    Query(
        "q17",
        "statistics of an auction and day",
        f"""SELECT auction, date_format(date_time, 'yyyy-MM-dd') AS day, {_STATISTICS}
           FROM bid GROUP BY auction, date_format(date_time, 'yyyy-MM-dd')""",
        f"""SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, {_STATISTICS}
           FROM bid GROUP BY ALL""",
        "an aggregation, kept for ever",
        changed=("auction",),
    ),
    Query(
        "q18",
        "last bid of a bidder on an auction",
        """SELECT last.auction, last.bidder, last.price, last.channel, last.url, last.date_time,
             last.extra
           FROM (SELECT max(struct(date_time, price, channel, url, extra, auction, bidder)) AS last
             FROM bid GROUP BY bidder, auction)""",
        f"""SELECT {_TOP} FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction
             ORDER BY date_time DESC, price DESC, channel DESC, url DESC, extra DESC) = 1""",
        "an aggregation, the largest row of each group, kept for ever",
        "of several bids in the same millisecond the highest",
        changed=("bidder", "auction"),
    ),
    Query(
        "q19",
        "ten highest bids of an auction",
        "SELECT auction, bidder, price, channel, url, date_time, extra FROM bid",
        f"""SELECT {_TOP}, row_number() OVER (PARTITION BY auction ORDER BY {_BEST_FIRST})
             AS rank_number FROM bid AS b QUALIFY rank_number <= 10""",
        "transformWithState: a list of each auction",
        processor="topBids",
        changed=("auction",),
    ),
    Query(
        "q20",
        "bids with their auctions",
        f"""SELECT {_EXPANDED} FROM bid AS b JOIN auction AS a ON b.auction = a.id
           WHERE category = 10""",
        f"""SELECT {_EXPANDED} FROM bid AS b JOIN auction AS a ON b.auction = a.id
           WHERE category = 10""",
        "join, kept for ever",
    ),
)


def find_query(name: str) -> Query:
    """Return the query of that name.

    Raises:
        LookupError: There is none; the message names those there are.
    """
    for query in QUERIES:
        if query.name == name:
            return query
    known = ", ".join(query.name for query in QUERIES)
    raise LookupError(f"no such query: query={name!r}. To fix: use one of {known}")


def stream(spark: SparkSession, query: Query, source: Path) -> DataFrame:
    """Return the results of a query over the files of a directory, one a batch."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    timed = events.withWatermark("date_time", WATERMARK)
    for kind, name in enumerate(("person", "auction", "bid")):
        of_kind = timed.where(f"event_type = {kind}").select(f"{name}.*", "date_time")
        of_kind.createOrReplaceTempView(name)
    rows = spark.sql(query.sql)
    if not query.processor:
        return rows
    jvm: Any = spark._jvm
    processed = getattr(jvm.io.statestore.bench.NexmarkQueries, query.processor)(rows._jdf)
    return DataFrame(processed, spark)
