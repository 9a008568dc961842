package io.statestore.convert

import java.io.{FileNotFoundException, IOException}
import java.util.UUID

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.Json
import org.apache.hadoop.fs.Path
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.SerializableConfiguration

/**
 * A column family to copy.
 *
 * @param isList whether a key has several values
 * @param isIndex whether it is one of Spark's own beside the rows that it finds
 */
private[convert] final case class CopiedFamily(
    name: String,
    keySchema: StructType,
    spec: KeyStateEncoderSpec,
    valueSchema: StructType,
    isList: Boolean,
    isIndex: Boolean) {

  /** Lets a store know of the column family. */
  def create(store: StateStore): Unit = {
    // Spark keeps names that begin so to itself, too.
    val isInternal = isIndex || name.startsWith("$")
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
      val foreign = (SparkVersion.familiesOf(opened) -- expected)
        .filterNot(CopySide.isIndexWithoutState)
      if (foreign.nonEmpty) {
        throw new IOException(
          "a store has column families that the schema of its newest version has not: " +
            s"store=${storeId(store)}, column_families=${foreign.toSeq.sorted.mkString(", ")}. " +
            "Where the program has these state variables, start the query as it is and let it " +
            "end a batch, which writes its schemas anew, then convert. Only for variables that " +
            "are no more, run a batch of a program that calls deleteIfExists(NAME) in its init, " +
            "which deletes their rows")
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
    // Another attempt of this task may have made it, of the same rows, or be at it.
    val isRenamed =
      try !fileSystem.exists(snapshot) && fileSystem.rename(delta, snapshot)
      catch { case _: FileNotFoundException => false }
    if (!isRenamed) {
      if (!fileSystem.exists(snapshot)) {
        throw new IOException(s"cannot rename a file: from=$delta, to=$snapshot")
      }
      fileSystem.delete(delta, false)
    }
  }

  private def storeId(store: CopiedStore): StateStoreId =
    StateStoreId(root, store.operator, store.partition, store.name)
}

private object CopySide {
  val HdfsBacked = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

  private val Indexes = Set("$ttl", "$min", "$count", "$rowCounter")

  /**
   * Whether a column family that no schema names is an index of a state variable that is gone, or
   * was made again without it: Spark's `deleteIfExists` deletes the variable alone.
   */
  def isIndexWithoutState(name: String): Boolean = Indexes(name.takeWhile(_ != '_'))
}

/** Copies and compares one store, in one task. */
private[convert] final class StoreCopy(source: CopySide, target: CopySide, version: Long)
    extends Serializable {

  /** Copies the store and compares the copy, as it is read again; see `StateCopy.run`. */
  def run(store: CopiedStore): ObjectNode =
    source.reading(store, version, store.checkpointId) { from =>
      val families = store.familiesIn(from)
      val (copied, checkpointId) = target.writing(store, version) { to =>
        families.map(copy(_, from, to))
      }
      target.reading(store, version, checkpointId) { to =>
        val found = families.zip(copied).map { case (family, content) =>
          if (readAll(family, to)((_, _, _) => ()) == content) Difference.Equal
          else compare(family, from, content.rows, to).atLeastOne
        }
        Json.obj()
          .put("rows", copied.map(_.rows).sum)
          .put("checkpoint_id", checkpointId.orNull)
          .put("missing", found.map(_.missing).sum)
          .put("different", found.map(_.different).sum)
          .put("foreign", found.map(_.foreign).sum)
          .put("key", found.flatMap(_.key).headOption.orNull)
      }
    }

  /** Copies a column family. */
  private def copy(family: CopiedFamily, from: ReadStateStore, to: StateStore): Content =
    readAll(family, from) { (key, value, isFirst) =>
      if (isFirst) to.put(key, value, family.name) else to.merge(key, value, family.name)
    }

  /** Shows every key with each of its values, and whether that is the first, to `show`. */
  private def readAll(family: CopiedFamily, store: ReadStateStore)(
      show: (UnsafeRow, UnsafeRow, Boolean) => Unit): Content = {
    val content = new ContentSum
    store.iterator(family.name).foreach { pair =>
      content.addKey(pair.key)
      if (family.isList) {
        // The iterator has the first value of each.
        val key = pair.key.copy()
        var isFirst = true
        store.valuesIterator(key, family.name).foreach { value =>
          content.addValue(value)
          show(key, value, isFirst)
          isFirst = false
        }
      } else {
        content.addValue(pair.value)
        show(pair.key, pair.value, true)
      }
    }
    content.result
  }

  /**
   * Looks up every row of the target in the source, a list being one. Keys are unique: what the
   * source has beyond those that were found is missing.
   */
  private def compare(
      family: CopiedFamily, from: ReadStateStore, rows: Long, to: ReadStateStore): Difference = {
    var (count, absent, different) = (0L, 0L, 0L)
    var first: UnsafeRow = null
    to.iterator(family.name).foreach { pair =>
      count += 1L
      val key = pair.key.copy()
      val expected = valuesOf(family, key, from)
      if (expected != (if (family.isList) valuesOf(family, key, to) else Seq(pair.value))) {
        if (expected.isEmpty) absent += 1L else different += 1L
        if (first == null) first = key
      }
    }
    Difference(rows - (count - absent), different, absent, Option(first))
  }

  private def valuesOf(
      family: CopiedFamily, key: UnsafeRow, store: ReadStateStore): Seq[UnsafeRow] =
    if (family.isList) store.valuesIterator(key, family.name).map(_.copy()).toSeq
    else Option(store.get(key, family.name)).map(_.copy()).toSeq
}

/** The rows of a column family in any order: how many, a list being one, and a checksum of all. */
private final case class Content(rows: Long, checksum: Long)

/** Adds up what the rows of a column family hash to, each by itself. */
private final class ContentSum {
  private var rows = 0L
  private var sum = 0L
  private var last = 0L // what the row hashes to whose values may go on

  def addKey(key: UnsafeRow): Unit = {
    rows += 1L
    sum += last
    last = hash(key, seed = 42L)
  }

  /** Adds a value, the next one, of the key that was added last. */
  def addValue(value: UnsafeRow): Unit = last = hash(value, last)

  def result: Content = Content(rows, sum + last)

  private def hash(row: UnsafeRow, seed: Long): Long =
    XXH64.hashUnsafeBytes(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes, seed)
}

/** How a copied column family differs from the source's, and the first such key. */
private final case class Difference(
    missing: Long, different: Long, foreign: Long, firstKey: Option[UnsafeRow]) {

  /** Counts one row as different where none is: a read went wrong, and nobody knows which row. */
  def atLeastOne: Difference = if (this == Difference.Equal) copy(different = 1L) else this

  /** The first bytes of the key, in hexadecimal. */
  def key: Option[String] =
    firstKey.map(_.getBytes.take(Difference.ShownBytes).map(byte => f"$byte%02x").mkString)
}

private object Difference {
  val Equal: Difference = Difference(0L, 0L, 0L, Option.empty)
  val ShownBytes = 16
}
