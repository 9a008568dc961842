package org.apache.spark.sql.internal

import scala.jdk.CollectionConverters._

import org.apache.spark.internal.config.ConfigEntry

/** Spark SQL's table of configuration, which before Spark 4.2 only this package can see. */
object SQLConfEntries {
  def all: Iterable[ConfigEntry[_]] = SQLConf.getConfigEntries().asScala
}
