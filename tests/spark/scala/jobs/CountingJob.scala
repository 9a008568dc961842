package io.statestore.testing

import java.nio.file.{Files, Paths}

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.Trigger

/** Counts names in a file with a streaming query, and prints the counts. No Python is in it. */
object CountingJob {
  def main(arguments: Array[String]): Unit = {
    require(arguments.isEmpty, "it takes no arguments")
    Files.createDirectories(Paths.get("rows"))
    Files.writeString(Paths.get("rows/names.csv"), "a\nb\nb\n")
    val spark = SparkSession.builder().master("local[2]").getOrCreate()
    val query = spark.readStream.schema("name STRING").csv("rows")
      .groupBy("name").count()
      .writeStream.outputMode("complete").format("memory").queryName("counts")
      .trigger(Trigger.AvailableNow()).option("checkpointLocation", "checkpoint")
      .start()
    query.awaitTermination()
    val counts = spark.table("counts").collect().map(row => s"${row.get(0)}=${row.get(1)}").sorted
    println(counts.mkString("counted ", " ", ""))
    spark.stop()
  }
}
