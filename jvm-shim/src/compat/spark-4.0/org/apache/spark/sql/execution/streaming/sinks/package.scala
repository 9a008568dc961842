package org.apache.spark.sql.execution.streaming

/** Where Spark 4.1 moved these classes. */
package object sinks {
  type FileStreamSink = org.apache.spark.sql.execution.streaming.FileStreamSink
  val FileStreamSink = org.apache.spark.sql.execution.streaming.FileStreamSink
  type FileStreamSinkLog = org.apache.spark.sql.execution.streaming.FileStreamSinkLog
  val FileStreamSinkLog = org.apache.spark.sql.execution.streaming.FileStreamSinkLog
}
