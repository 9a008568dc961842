package org.apache.spark.sql.execution.streaming

/** Where Spark 4.1 moved these classes. */
package object runtime {
  val CompactibleFileStreamLog = org.apache.spark.sql.execution.streaming.CompactibleFileStreamLog
  type StreamExecution = org.apache.spark.sql.execution.streaming.StreamExecution
  val StreamExecution = org.apache.spark.sql.execution.streaming.StreamExecution
  val StreamingCheckpointConstants =
    org.apache.spark.sql.execution.streaming.StreamingCheckpointConstants
}
