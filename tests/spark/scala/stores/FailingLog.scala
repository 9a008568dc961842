package io.statestore.testing

import java.io.IOException
import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.checkpointing._

/**
 * `spark.sql.streaming.checkpointFileManagerClass` of a storage that takes the first entry of each
 * offset log at the second try only.
 */
final class FailingLog(path: Path, hadoopConf: Configuration)
    extends FileContextBasedCheckpointFileManager(path, hadoopConf) {

  override def createAtomic(
      path: Path,
      overwriteIfPossible: Boolean): CheckpointFileManager.CancellableFSDataOutputStream = {
    val isFirst = path.getParent.getName == "offsets" && path.getName == "0"
    if (isFirst && FailingLog.tried.add(path.toString)) throw new IOException("no space is left")
    super.createAtomic(path, overwriteIfPossible)
  }
}

private object FailingLog {
  val tried: ConcurrentHashMap.KeySetView[String, java.lang.Boolean] = ConcurrentHashMap.newKeySet()
}
