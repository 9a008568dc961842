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
 * A column family to copy.
 *
 * @param isList whether a key has several values
 */
private[convert] final case class CopiedFamily(
    name: String,
    keySchema: StructType,
    spec: KeyStateEncoderSpec,
    valueSchema: StructType,
    isList: Boolean) {

  /** Lets a store know of the column family. */
  def create(store: StateStore): Unit = {
    // Spark keeps names that begin so to itself.
    val isInternal = name.startsWith("$")
    store.createColFamilyIfAbsent(name, keySchema, valueSchema, spec, isList, isInternal)
  }
}

/**
 * A store to copy.
 *
 * @param default the column family that every store has
 * @param others where there are any, `default` has no rows
 * @param schemas those of the column families, where they may change between restarts
 * @param checkpointId which attempt's version is meant at the source, in checkpoint format v2
 */
private[convert] final case class CopiedStore(
    operator: Long,
    partition: Int,
    name: String,
    default: CopiedFamily,
    others: Seq[CopiedFamily],
    schemas: Option[StateSchemaProvider],
    checkpointId: Option[String]) {

  /** Those that may have rows: Spark makes some only when it puts the first row in. */
  def familiesIn(store: ReadStateStore): Seq[CopiedFamily] =
    if (others.isEmpty) Seq(default)
    else others.filter(family => SparkVersion.familiesOf(store).contains(family.name))
}

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

  /** Whether rows have the IDs of their schemas. */
  def hasSchemaIds: Boolean = conf.stateStoreEncodingFormat == "avro"

  /** Whether state is in RocksDB. */
  def isRocksDB: Boolean = CopySide.InRocksDB(conf.providerClass)

  /** Runs `body` with the provider of a store. */
  def withProvider[T](store: CopiedStore)(body: StateStoreProvider => T): T = {
    val provider = StateStoreProvider.createAndInit(
      StateStoreProviderId(storeId(store), UUID.randomUUID()),
      store.default.keySchema,
      store.default.valueSchema,
      store.default.spec,
      useColumnFamilies = store.others.nonEmpty,
      conf,
      hadoopConf.value.value,
      useMultipleValuesPerKey = store.others.nonEmpty,
      stateSchemaProvider = store.schemas)
    try body(provider)
    finally provider.close()
  }

  /** Runs `body` with a version of a store. */
  def reading[T](store: CopiedStore, version: Long, checkpointId: Option[String])(
      body: ReadStateStore => T): T =
    withProvider(store) { provider =>
      if (store.others.nonEmpty) declare(store, provider.getStore(version, checkpointId))
      val read = provider.getReadStore(version, checkpointId)
      try body(read)
      finally read.abort()
    }

  /** Lets a provider know of the column families, as Spark's state reader does, and checks them. */
  private def declare(store: CopiedStore, opened: StateStore): Unit =
    try {
      val expected = store.others.map(_.name).toSet + store.default.name
      val foreign = SparkVersion.familiesOf(opened) -- expected
      if (foreign.nonEmpty) {
        throw new IOException(
          "a store has column families that the schema of its newest version has not: " +
            s"store=${storeId(store)}, column_families=${foreign.toSeq.sorted.mkString(", ")}")
      }
      store.others.foreach(_.create(opened))
    } finally opened.abort()

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
        store.others.foreach(_.create(empty))
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
      val families = store.familiesIn(from)
      val (rows, checkpointId) = target.writing(store, version) { to =>
        families.map(copy(_, from, to))
      }
      target.reading(store, version, checkpointId) { to =>
        val found = families.zip(rows).map { case (family, rows) =>
          if (family.isList) compareLists(family, from, rows, to)
          else compare(family, from, rows, to)
        }
        Json.obj()
          .put("rows", rows.sum)
          .put("checkpoint_id", checkpointId.orNull)
          .put("missing", found.map(_.missing).sum)
          .put("different", found.map(_.different).sum)
          .put("foreign", found.map(_.foreign).sum)
          .put("key", found.flatMap(_.key).headOption.orNull)
      }
    }

  /** Copies a column family; returns its rows, a list being one. */
  private def copy(family: CopiedFamily, from: ReadStateStore, to: StateStore): Long = {
    var rows = 0L
    from.iterator(family.name).foreach { pair =>
      if (family.isList) {
        // The iterator has the first value of each.
        val key = pair.key.copy()
        val values = from.valuesIterator(key, family.name)
        to.put(key, values.next(), family.name)
        values.foreach(to.merge(key, _, family.name))
      } else to.put(pair.key, pair.value, family.name)
      rows += 1L
    }
    rows
  }

  /** As `compare`, of lists: every list of the target is looked up in the source. */
  private def compareLists(
      family: CopiedFamily, from: ReadStateStore, rows: Long, to: ReadStateStore): Difference = {
    var (count, absent, different) = (0L, 0L, 0L)
    var first: UnsafeRow = null
    to.iterator(family.name).foreach { pair =>
      count += 1L
      val key = pair.key.copy()
      val expected = from.valuesIterator(key, family.name).map(_.copy()).toSeq
      val found = to.valuesIterator(key, family.name).map(_.copy()).toSeq
      if (expected != found) {
        if (expected.isEmpty) absent += 1L else different += 1L
        if (first == null) first = key
      }
    }
    Difference(rows - (count - absent), different, absent, Option(first))
  }

  /**
   * Looks up every row of one side in the other. Keys are unique: where all are there, and there
   * are as many, both sides are equal.
   */
  private def compare(
      family: CopiedFamily, from: ReadStateStore, rows: Long, to: ReadStateStore): Difference = {
    val name = family.name
    // RocksDB is slow to ask for one key after the other.
    val readsTarget = target.isRocksDB || !source.isRocksDB
    val (read, asked) = if (readsTarget) (to, from) else (from, to)
    // Two of them have their rows in one order, by the bytes of the key.
    val besides = if (source.isRocksDB && target.isRocksDB) asked.iterator(name) else Iterator.empty
    val next = besides.buffered
    var (count, absent, different) = (0L, 0L, 0L)
    var first: UnsafeRow = null
    read.iterator(name).foreach { pair =>
      count += 1L
      val other =
        if (next.hasNext && next.head.key == pair.key) next.next().value
        else asked.get(pair.key, name)
      if (other != pair.value) {
        if (other == null) absent += 1L else different += 1L
        if (first == null) first = pair.key.copy()
      }
    }
    val inBoth = count - absent
    val rowsOfTarget = if (readsTarget) count else to.iterator(name).size.toLong
    Difference(rows - inBoth, different, rowsOfTarget - inBoth, Option(first))
  }
}

/** How a copied column family differs from the source's, and the first such key. */
private final case class Difference(
    missing: Long, different: Long, foreign: Long, firstKey: Option[UnsafeRow]) {

  /** The first bytes of the key, in hexadecimal. */
  def key: Option[String] =
    firstKey.map(_.getBytes.take(Difference.ShownBytes).map(byte => f"$byte%02x").mkString)
}

private object Difference {
  val ShownBytes = 16
}
