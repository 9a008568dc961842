package org.apache.spark.sql.execution.streaming

/** Where Spark 4.1 moved these classes. */
package object checkpointing {
  type CheckpointFileManager = org.apache.spark.sql.execution.streaming.CheckpointFileManager
  val CheckpointFileManager = org.apache.spark.sql.execution.streaming.CheckpointFileManager
  type FileSystemBasedCheckpointFileManager =
    org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager
  type OffsetSeqMetadata = org.apache.spark.sql.execution.streaming.OffsetSeqMetadata
  val OffsetSeqMetadata = org.apache.spark.sql.execution.streaming.OffsetSeqMetadata
}
