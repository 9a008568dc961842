package io.statestore.convert

import java.util.UUID

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import io.statestore.Json
import io.statestore.ShimOptions.Prefix
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{BinaryType, StructType}
import org.apache.spark.util.SerializableConfiguration

/**
 * Copies the state stores of a checkpoint at one version to another provider, a Spark task a store,
 * and compares what it wrote. It is a job that its caller waits for; meanwhile other threads may
 * ask how far it is, or cancel it.
 *
 * @param requestJson what `statestore/spark/convert.py` asks for: `version`,
 *                    `conf` (pinned by the offset log), `source` and `target` (`checkpoint`,
 *                    `provider`, `checkpoint_format`), and `stores`, each with the `schema_files`
 *                    of its column families, oldest first, and of those the names of `lists` and
 *                    of Spark's `indexes`
 */
final class StateCopy(spark: SparkSession, requestJson: String) {
  private[this] val request = Json.readObject(requestJson)
  private[this] val version = request.get("version").asLong
  private[this] val hadoopConf = spark.sessionState.newHadoopConf()
  private[this] val group = UUID.randomUUID().toString
  private[this] val tasks = spark.sparkContext.longAccumulator
  private[this] val sharedHadoopConf =
    spark.sparkContext.broadcast(new SerializableConfiguration(hadoopConf))
  private[this] val source = newSide("source")
  private[this] val target = newSide("target")
  private[this] val families = mutable.HashMap.empty[String, Seq[CopiedFamily]]
  private[this] val schemas = mutable.HashMap.empty[String, Option[StateSchemaProvider]]
  private[this] val stores = request.get("stores").elements.asScala.map(newStore).toIndexedSeq

  /**
   * Writes the full state of every store as the version in the target, and reads it again.
   *
   * Guarantee: when it returns `ok`, every store is durable, otherwise some may be. It can be
   * called again.
   *
   * @return JSON: `ok`, a store an object, in their order: `rows`; those `missing`, `different` or
   *         `foreign` in the target, with the first such key in `key`, null where only their number
   *         tells; in checkpoint format v2 `checkpoint_id`. Or `error`, why it failed
   */
  def run(): String = {
    tasks.reset()
    val countTasks = tasks
    val copy = new StoreCopy(source, target, version)
    spark.sparkContext.setJobGroup(group, "convert state", interruptOnCancel = true)
    try {
      val results = spark.sparkContext.parallelize(stores, stores.length).map { store =>
        val result = copy.run(store)
        countTasks.add(1L)
        Json.write(result)
      }.collect()
      results.mkString("{\"ok\":[", ",", "]}")
    } catch {
      case NonFatal(e) => Json.write(Json.obj().put("error", StateCopy.reasonOf(e)))
    } finally spark.sparkContext.clearJobGroup()
  }

  /** Stores that the job is done with. */
  def storesDone: Long = tasks.value

  /** Ends the running job, which then fails. */
  def cancel(): Unit = spark.sparkContext.cancelJobGroup(group)

  private def newStore(node: JsonNode): CopiedStore = {
    val files = node.get("schema_files").elements.asScala
      .map(file => new Path(source.root, file.asText)).toList
    val newest = files.last.toString
    val (defaults, others) = families
      .getOrElseUpdate(newest, readFamilies(files.last, node))
      .partition(_.name == StateStore.DEFAULT_COL_FAMILY_NAME)
    CopiedStore(
      node.get("operator").asLong,
      node.get("partition").asInt,
      node.get("name").asText,
      defaults.headOption.getOrElse(StateCopy.noDefault),
      others,
      schemas.getOrElseUpdate(newest, readSchemas(files)),
      textOf(node.get("checkpoint_id")))
  }

  /** Every schema by its ID, where rows have IDs. */
  private def readSchemas(files: List[Path]): Option[StateSchemaProvider] =
    Option.when(source.hasSchemaIds) {
      new InMemoryStateSchemaProvider(StateSchemaMetadata.createStateSchemaMetadata(
        source.root, hadoopConf, files.map(_.toString)))
    }

  private def readFamilies(file: Path, node: JsonNode): Seq[CopiedFamily] = {
    val (lists, indexes) = (textsOf(node.get("lists")), textsOf(node.get("indexes")))
    val numPrefixColumns = node.get("num_prefix_columns").asInt
    StateStoreInternals.readStateSchemas(file, hadoopConf).map { schema =>
      // Files of stores with one column family do not tell how its keys are kept.
      val spec = schema.keyStateEncoderSpec.getOrElse {
        if (numPrefixColumns == 0) NoPrefixKeyStateEncoderSpec(schema.keySchema)
        else PrefixKeyScanStateEncoderSpec(schema.keySchema, numPrefixColumns)
      }
      val name = schema.colFamilyName
      CopiedFamily(
        name, schema.keySchema, spec, schema.valueSchema, lists(name), indexes(name))
    }
  }

  private def newSide(name: String): CopySide = {
    val node = request.get(name)
    val conf = spark.sessionState.conf.clone()
    val pinned = request.get("conf").properties.asScala.map(e => e.getKey -> e.getValue.asText)
    // With the values that are meant where an older Spark pinned nothing.
    OffsetSeqMetadata.setSessionConf(OffsetSeqMetadata(0L, 0L, pinned.toMap), conf)
    val own = Map(
      Prefix + "providerClass" -> node.get("provider").asText,
      Prefix + "checkpointFormatVersion" -> node.get("checkpoint_format").asText)
    (StateCopy.settings ++ pinned ++ own)
      .foreach { case (key, value) => conf.setConfString(key, value) }
    // The source's own placement says where its state is. The target's provider is Spark's own.
    conf.unsetConf(Prefix + "checkpointStorage")
    val checkpoint = new Path(node.get("checkpoint").asText)
    val root = checkpoint.getFileSystem(hadoopConf).makeQualified(new Path(checkpoint, "state"))
    new CopySide(root.toString, StateStoreConf(conf), sharedHadoopConf)
  }

  private def textOf(node: JsonNode): Option[String] = Option(node.asText(null))

  private def textsOf(node: JsonNode): Set[String] = node.elements.asScala.map(_.asText).toSet
}

private object StateCopy {
  /** No coordinator waits for reports, which Spark 4.0 has no settings for. */
  private val Reports = Seq("commitValidation.enabled", "coordinatorReportSnapshotUploadLag")
    .map(Prefix + _).filter(StateStoreInternals.sqlConfKeys).map(_ -> "false")

  /** No query runs: rows are copied as they are. */
  val settings: Map[String, String] = Reports.toMap ++ Map(
    "formatValidation.enabled" -> "false",
    "rocksdb.changelogCheckpointing.enabled" -> "false", // a commit writes all files itself
    // It asks for the key of every put. A query that tracks counts when it loads such a version.
    "rocksdb.trackTotalNumberOfRows" -> "false"
  ).map { case (key, value) => Prefix + key -> value }

  /**
   * The column family `default` where the file of schemas has none: of `transformWithState` in
   * Python. It has no row, and a query that starts takes its own schema for it.
   */
  val noDefault: CopiedFamily = {
    val key = new StructType().add("key", BinaryType)
    val value = new StructType().add("value", BinaryType)
    CopiedFamily(
      StateStore.DEFAULT_COL_FAMILY_NAME,
      key,
      NoPrefixKeyStateEncoderSpec(key),
      value,
      isList = false,
      isIndex = false)
  }

  /** Messages of an error and its causes, without stack traces. */
  def reasonOf(error: Throwable): String =
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null)
      .map { e =>
        val line = String.valueOf(e.getMessage).linesIterator.nextOption().getOrElse("")
        s"${e.getClass.getSimpleName}: $line"
      }
      .mkString(" <- ")
}
