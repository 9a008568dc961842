package io.statestore.convert

import java.io.IOException
import java.util.UUID

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{Json, RocksDBStateStoreProvider}
import org.apache.hadoop.fs.Path
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.SerializableConfiguration

/**
 * A store to copy.
 *
 * @param checkpointId which attempt's version is meant at the source, in checkpoint format v2
 */
private[convert] final case class CopiedStore(
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

  /** Whether state is in RocksDB. */
  def isRocksDB: Boolean = CopySide.InRocksDB(conf.providerClass)

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
      finally read.abort()
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
      val empty = SparkVersion.storeAt(provider, base, loadEmpty = !startsAtZero)
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
    val (delta, snapshot) =
      (new Path(directory, "1.delta"), new Path(directory, s"$version.snapshot"))
    fileSystem.delete(snapshot, false) // of an attempt of this task that failed
    if (!fileSystem.rename(delta, snapshot)) {
      throw new IOException(s"cannot rename a file: from=$delta, to=$snapshot")
    }
  }

  private def storeId(store: CopiedStore): StateStoreId =
    StateStoreId(root, store.operator, store.partition, store.name)
}

private object CopySide {
  private val SparksPackage = "org.apache.spark.sql.execution.streaming.state"
  val HdfsBacked = s"$SparksPackage.HDFSBackedStateStoreProvider"
  val InRocksDB: Set[String] =
    Set(s"$SparksPackage.RocksDBStateStoreProvider", classOf[RocksDBStateStoreProvider].getName)
}

/** What is done with one store, in one task. */
private[convert] final class StoreCopy(source: CopySide, target: CopySide, version: Long)
    extends Serializable {

  /** Copies the store and compares the copy, as it is read again; see `StateCopy.run`. */
  def run(store: CopiedStore): ObjectNode =
    source.reading(store, version, store.checkpointId) { from =>
      val (rows, checkpointId) = target.writing(store, version) { to =>
        var rows = 0L
        from.iterator().foreach { pair =>
          to.put(pair.key, pair.value)
          rows += 1L
        }
        rows
      }
      val result = Json.obj().put("rows", rows).put("checkpoint_id", checkpointId.orNull)
      target.reading(store, version, checkpointId)(compare(from, rows, _, result))
    }

  /**
   * Looks up every row of one side in the other. Keys are unique: where all are there, and there
   * are as many, both sides are equal.
   */
  private def compare(
      from: ReadStateStore,
      rows: Long,
      to: ReadStateStore,
      result: ObjectNode): ObjectNode = {
    // RocksDB is slow to ask for one key after the other.
    val readsTarget = target.isRocksDB || !source.isRocksDB
    val (read, asked) = if (readsTarget) (to, from) else (from, to)
    // Two of them have their rows in one order, by the bytes of the key.
    val besides = if (source.isRocksDB && target.isRocksDB) asked.iterator() else Iterator.empty
    val next = besides.buffered
    var (count, absent, different) = (0L, 0L, 0L)
    var first: UnsafeRow = null
    read.iterator().foreach { pair =>
      count += 1L
      val other =
        if (next.hasNext && next.head.key == pair.key) next.next().value
        else asked.get(pair.key, StateStore.DEFAULT_COL_FAMILY_NAME)
      if (other != pair.value) {
        if (other == null) absent += 1L else different += 1L
        if (first == null) first = pair.key.copy()
      }
    }
    val inBoth = count - absent
    val rowsOfTarget = if (readsTarget) count else to.iterator().size.toLong
    result
      .put("missing", rows - inBoth)
      .put("different", different)
      .put("foreign", rowsOfTarget - inBoth)
      .put("key", if (first == null) null else StoreCopy.shown(first))
  }
}

private object StoreCopy {
  private val ShownBytes = 16

  /** The first bytes of a key, in hexadecimal. */
  def shown(key: UnsafeRow): String =
    key.getBytes.take(ShownBytes).map(byte => f"$byte%02x").mkString
}
