"""Two streaming tables with state: the first flight of each route, and flights by the hour."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

INPUT = "/tmp/flights/in"  # noqa: S108

spark = SparkSession.active()


def flights() -> DataFrame:
    """Return the flights that come in, a file a batch."""
    columns = "route STRING, minutes LONG, at TIMESTAMP"
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(INPUT)


@dp.table
def first_flights() -> DataFrame:
    """Return the first flight of each route."""
    return flights().dropDuplicates(["route"])


@dp.table
def by_hour() -> DataFrame:
    """Return the flights of each hour, once it is over."""
    hours = flights().withWatermark("at", "1 hour").groupBy(sf.window("at", "1 hour"))
    counted = hours.agg(sf.count("*").alias("flights"), sf.sum("minutes").alias("minutes"))
    return counted.select(sf.col("window.start").alias("hour"), "flights", "minutes")
