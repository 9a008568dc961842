package io.statestore.convert

import java.util.UUID

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.Json
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.SerializableConfiguration

/**
 * A store to copy.
 *
 * @param index its place in the order that results are given in
 * @param checkpointId which attempt's version is meant at the source, in checkpoint format v2
 */
private[convert] final case class CopiedStore(
    index: Int,
    operator: Long,
    partition: Int,
    name: String,
    keySchema: StructType,
    valueSchema: StructType,
    numPrefixColumns: Int,
    checkpointId: Option[String])

/**
 * One of the two checkpoints.
 *
 * @param root its `state` directory
 * @param conf names the provider class
 */
private[convert] final class CopySide(
    val root: String,
    conf: StateStoreConf,
    hadoopConf: Broadcast[SerializableConfiguration])
    extends Serializable {

  /** Runs `body` with the provider of a store. */
  def withProvider[T](store: CopiedStore)(body: StateStoreProvider => T): T = {
    val provider = StateStoreProvider.createAndInit(
      StateStoreProviderId(storeId(store), UUID.randomUUID()),
      store.keySchema,
      store.valueSchema,
      if (store.numPrefixColumns == 0) NoPrefixKeyStateEncoderSpec(store.keySchema)
      else PrefixKeyScanStateEncoderSpec(store.keySchema, store.numPrefixColumns),
      useColumnFamilies = false,
      conf,
      hadoopConf.value.value,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None)
    try body(provider)
    finally provider.close()
  }

  /** Runs `body` with a version of a store. */
  def reading[T](store: CopiedStore, version: Long, checkpointId: Option[String])(
      body: ReadStateStore => T): T =
    withProvider(store) { provider =>
      val read = provider.getReadStore(version, checkpointId)
      try body(read)
      finally read.release()
    }

  /**
   * Runs `body` with an empty store and commits that as the version.
   *
   * @return what `body` returned and, in checkpoint format v2, the version's checkpoint ID
   */
  def writing[T](store: CopiedStore, version: Long)(
      body: StateStore => T): (T, Option[String]) =
    withProvider(store) { provider =>
      // Spark's HDFS-backed provider makes an empty store for version 0 only.
      val startsAtZero = conf.providerClass == CopySide.HdfsBacked
      val base = if (startsAtZero) 0L else version - 1L
      val empty = provider.getStore(base, loadEmpty = !startsAtZero)
      try {
        val result = body(empty)
        empty.commit()
        if (startsAtZero && version > 1L) becomeSnapshot(store, version)
        (result, empty.getStateStoreCheckpointInfo().stateStoreCkptId)
      } finally {
        if (!empty.hasCommitted) empty.abort()
      }
    }

  /**
   * Turns the delta that made version 1 of the HDFS-backed provider into the snapshot of another
   * version: a file of puts is both, and does not say which version it makes.
   */
  private def becomeSnapshot(store: CopiedStore, version: Long): Unit = {
    val directory = storeId(store).storeCheckpointLocation()
    val fileSystem = directory.getFileSystem(hadoopConf.value.value)
    Seq("", ".crc").foreach { suffix => // the second is Spark's checksum of the first
      val delta = new Path(directory, s"1.delta$suffix")
      if (fileSystem.exists(delta)) {
        rename(fileSystem, delta, new Path(directory, s"$version.snapshot$suffix"))
      }
    }
  }

  private def rename(fileSystem: FileSystem, from: Path, to: Path): Unit = {
    fileSystem.delete(to, false) // of an attempt of this task that failed
    if (!fileSystem.rename(from, to)) {
      throw new java.io.IOException(s"cannot rename a file: from=$from, to=$to")
    }
  }

  private def storeId(store: CopiedStore): StateStoreId =
    StateStoreId(root, store.operator, store.partition, store.name)
}

private object CopySide {
  val HdfsBacked = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
}

/** What is done with one store, in one task. */
private[convert] final class StoreCopy(source: CopySide, target: CopySide, version: Long)
    extends Serializable {

  /** Copies the store; see `StateCopy.copy`. */
  def copy(store: CopiedStore): ObjectNode =
    source.reading(store, version, store.checkpointId) { from =>
      val (rows, checkpointId) = target.writing(store, version) { to =>
        var rows = 0L
        from.iterator().foreach { pair =>
          to.put(pair.key, pair.value)
          rows += 1L
        }
        rows
      }
      Json.obj().put("rows", rows).put("checkpoint_id", checkpointId.orNull)
    }

  /**
   * Compares the store; see `StateCopy.compare`. Keys are unique: where every row of the source is
   * in the target, and the target has as many, both are equal.
   */
  def compare(store: CopiedStore, checkpointId: Option[String]): ObjectNode =
    source.reading(store, version, store.checkpointId) { from =>
      target.reading(store, version, checkpointId) { to =>
        var (rows, missing, different) = (0L, 0L, 0L)
        var first: UnsafeRow = null
        from.iterator().foreach { pair =>
          rows += 1L
          val found = to.get(pair.key, StateStore.DEFAULT_COL_FAMILY_NAME)
          if (found != pair.value) {
            if (found == null) missing += 1L else different += 1L
            if (first == null) first = pair.key.copy()
          }
        }
        val foreign = to.iterator().size - (rows - missing)
        Json.obj()
          .put("rows", rows)
          .put("missing", missing)
          .put("different", different)
          .put("foreign", foreign)
          .put("key", if (first == null) null else StoreCopy.shown(first))
      }
    }
}

private object StoreCopy {
  private val ShownBytes = 16

  /** The first bytes of a key, in hexadecimal. */
  def shown(key: UnsafeRow): String =
    key.getBytes.take(ShownBytes).map(byte => f"$byte%02x").mkString
}
