package io.statestore

import java.io.IOException
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}
import io.statestore.engine.SparkFit
import org.slf4j.LoggerFactory

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.apache.spark.unsafe.types.UTF8String

/**
 * The options of one query, checked. The table of options (names, defaults, ranges) comes from the
 * Python package and is embedded in the jar, so that both sides know the same ones.
 *
 * @param partitions number of state partitions that the query is to have, 0 for that it has
 * @param overlayMaxBytes bytes of uncommitted writes all stores of this JVM keep in memory
 * @param offHeapEnabled whether the rows of working views are outside of the heap
 * @param fileCompression `none` or `zstd`
 * @param rocksdbBlockCacheBytes block cache of RocksDB readers in this JVM
 * @param rocksdbRowCacheBytes bytes of rows that all stores of the rocksdb backend keep on the heap
 * @param leaseIntervalMs milliseconds between two renewals of a lease
 * @param rocksdbIncremental whether a commit makes only the rows of its batch durable
 * @param rocksdbCompression of the blocks in an SST, of rocksdbBlockSizeKB each
 * @param engineProcesses engine processes in this JVM, 0 to choose from its cores
 * @param engineCallTimeoutMs milliseconds after which a call's engine counts as hung
 * @param enginePackage `embedded` or `installed`
 * @param engineJson every option that an engine reads, by its field name; copy before changing it;
 *        holds secrets
 */
final case class ShimOptions(
    partitions: Int,
    overlayMaxBytes: Long,
    offHeapEnabled: Boolean,
    fileCompression: String,
    rocksdbBlockCacheBytes: Long,
    rocksdbRowCacheBytes: Long,
    leaseIntervalMs: Long,
    rocksdbIncremental: Boolean,
    rocksdbCompression: String,
    rocksdbBlockSizeKB: Int,
    engineProcesses: Int,
    engineCallTimeoutMs: Long,
    enginePackage: String,
    engineJson: ObjectNode) {

  /** Without the options themselves, of which some are secret. */
  override def toString: String = getClass.getSimpleName
}

object ShimOptions {
  val Prefix = "spark.sql.streaming.stateStore."

  /** Keys of Spark's own RocksDB provider, which it reads without declaring them, in any case. */
  private val RocksDBPrefix = Prefix + "rocksdb."

  // All row caches and all overlays take these parts of the heap where nobody says how much.
  private val RowCachesPerHeap = 8L
  private val OverlaysPerHeap = 4L

  private val Url = "(https?://[^\\s/]+(/\\S*)?)?".r

  private val log = LoggerFactory.getLogger(classOf[ShimOptions])
  private val warned = ConcurrentHashMap.newKeySet[String]()

  /**
   * Read the options from a query's explicitly set configuration.
   *
   * @param sqlConfs Spark configuration, of which keys of the state store are looked at
   * @throws java.lang.IllegalArgumentException a value is out of range, or a key of the state store
   *         is known neither to this package nor to Spark
   */
  def parse(sqlConfs: Map[String, String]): ShimOptions = {
    sqlConfs.keys.toSeq.sorted.foreach(checkKnown)
    val engine = Json.obj()
    val set = sqlConfs.map { case (key, value) => canonical(key) -> value }
    val values = table.flatMap { option =>
      val value = set.get(option.key).fold(option.default)(option.parse)
      if (option.forEngine) engine.set[JsonNode](option.field, value)
      Option.when(option.forShim)(option.field -> value)
    }.toMap
    ShimOptions(
      partitions = values("partitions").asInt,
      overlayMaxBytes = ofHeap(values("overlay_max_bytes").asLong, OverlaysPerHeap),
      offHeapEnabled = values("off_heap_enabled").asBoolean,
      fileCompression = values("file_compression").asText,
      rocksdbBlockCacheBytes = values("rocksdb_block_cache_size_mb").asLong << 20,
      rocksdbRowCacheBytes = ofHeap(values("rocksdb_row_cache_bytes").asLong, RowCachesPerHeap),
      leaseIntervalMs = values("lease_interval_ms").asLong,
      rocksdbIncremental = values("rocksdb_incremental").asBoolean,
      rocksdbCompression = values("rocksdb_compression").asText,
      rocksdbBlockSizeKB = values("rocksdb_block_size_kb").asInt,
      engineProcesses = values("engine_processes").asInt,
      engineCallTimeoutMs = values("engine_call_timeout_ms").asLong,
      enginePackage = values("engine_package").asText,
      engineJson = engine)
  }

  /**
   * Says once which options of Spark's RocksDB provider the rocksdb backend does not follow.
   *
   * @param sqlConfs as for `parse`
   */
  def warnOfIgnored(sqlConfs: Map[String, String]): Unit =
    sqlConfs.keys.map(canonical).filter(ignored.contains).filter(warned.add).foreach { key =>
      log.warn(s"option is ignored by the rocksdb backend: key=$key, reason=${ignored(key)}")
    }

  /** Bytes asked for, or where nobody says so many of the heap. */
  private def ofHeap(asked: Long, parts: Long): Long =
    if (asked >= 0L) asked else Runtime.getRuntime.maxMemory / parts

  /** A key as the table has it: Spark's RocksDB provider takes its own in any case. */
  private def canonical(key: String): String =
    if (!key.regionMatches(true, 0, RocksDBPrefix, 0, RocksDBPrefix.length)) key
    else (keys ++ ignored.keys).find(_.equalsIgnoreCase(key)).getOrElse(key)

  /**
   * Refuses a key of the state store that is known neither to this package nor to Spark.
   *
   * @throws java.lang.IllegalArgumentException names the nearest key
   */
  def checkKnown(asked: String): Unit = {
    val key = canonical(asked)
    if (key.startsWith(Prefix) && !keys.contains(key) && !ignored.contains(key) &&
      !StateStoreInternals.sqlConfKeys.contains(key)) {
      val known = keys ++ StateStoreInternals.sqlConfKeys.filter(_.startsWith(Prefix))
      val nearest = known.toSeq.sorted.minBy { other =>
        UTF8String.fromString(key).levenshteinDistance(UTF8String.fromString(other))
      }
      throw new IllegalArgumentException(
        s"[unknown-option] unknown option: key=$key, nearest=$nearest. To fix: use $nearest, or " +
          "remove it; docs/configuration.md lists every option")
    }
  }

  private lazy val (table: Seq[TableRow], ignored: Map[String, String]) = {
    val rows = Json.read(Resources.text("/io/statestore/options.json")).elements().asScala.toSeq
    val (others, own) = rows.partition(_.get("type").asText == "ignored")
    (own.map(TableRow), others.map(row => row.get("key").asText -> row.get("doc").asText).toMap)
  }

  private lazy val keys: Set[String] = table.map(_.key).toSet

  /** One row of the embedded table. */
  private final case class TableRow(json: JsonNode) {
    val key: String = json.get("key").asText
    val field: String = json.get("field").asText
    val default: JsonNode = json.get("default")
    val forEngine: Boolean = json.get("scope").asText != "shim"
    val forShim: Boolean = json.get("scope").asText != "engine"
    private[this] val kind = json.get("type").asText
    private[this] val choices = json.get("choices").elements().asScala.map(_.asText).toSeq
    private[this] val minimum = bound("min")
    private[this] val maximum = bound("max")

    private def bound(name: String): Option[BigDecimal] =
      Option(json.get(name)).filter(_.isNumber).map(node => BigDecimal(node.decimalValue))

    /** The value in the option's type. */
    def parse(value: String): JsonNode = {
      val text = value.trim
      val parsed: Option[JsonNode] = kind match {
        // As Spark's own switches, in any case.
        case "boolean" => text.toBooleanOption.map(nodes.booleanNode)
        case "float" =>
          text.toDoubleOption.filter(d => d.isFinite && inRange(d)).map(nodes.numberNode(_))
        case "int" => text.toIntOption.filter(i => inRange(i)).map(nodes.numberNode(_))
        case "long" => text.toLongOption.filter(l => inRange(l)).map(nodes.numberNode(_))
        case "url" => Some(text).filter(Url.matches).map(nodes.textNode)
        case _ =>
          Some(text).filter(t => choices.isEmpty || choices.contains(t)).map(nodes.textNode)
      }
      parsed.getOrElse(throw new IllegalArgumentException(
        s"[invalid-option] value of an option is out of range: $key=$value. " +
          s"To fix: set it to ${json.get("range").asText}, " +
          s"or leave it out for ${json.get("default_text").asText}"))
    }

    private def inRange(value: BigDecimal): Boolean =
      minimum.forall(_ <= value) && maximum.forall(value <= _)
  }

  private def nodes = JsonNodeFactory.instance
}

/** Files embedded in the jar. */
private[statestore] object Resources {

  /**
   * Text of an embedded file.
   *
   * @throws java.lang.IllegalStateException it is not in the jar, or the jar is gone or damaged
   */
  def text(path: String): String = new String(bytes(path), UTF_8)

  def bytes(path: String): Array[Byte] = {
    val in = getClass.getResourceAsStream(path)
    if (in == null) {
      throw new IllegalStateException(
        s"file cannot be found in the jar: path=$path. To fix: start the application again where " +
          "the jar was moved or deleted under it, or else build it with ./build.sh jar")
    }
    try in.readAllBytes()
    catch {
      case e: IOException =>
        throw new IllegalStateException(
          s"file in the jar cannot be read: path=$path. To fix: replace the jar, it is damaged", e)
    } finally in.close()
  }

  /** Version of this jar, which is the version of the Python package it was built with. */
  lazy val version: String = text("/io/statestore/version").trim

  /** Oldest release of the Spark minor that this jar is made for. */
  private lazy val oldestSpark: String = text("/io/statestore/spark").trim

  /** Spark minors that there is a jar for. */
  private lazy val sparks: Seq[String] = text("/io/statestore/sparks").split("\\s+").toSeq

  /**
   * Refuses to go on in another Spark, before a class is asked for that one of the two has not got.
   * A Spark that has no jar of its own may have all that this jar names: then it is served.
   *
   * @throws java.lang.IllegalStateException names the jar or the Spark that is the right one
   */
  def checkSpark(): Unit = {
    val (minor, patch) = release(SPARK_VERSION)
    val (madeFor, oldest) = release(oldestSpark)
    if (!sparks.contains(minor)) {
      SparkFit.require(madeFor, sparks)
    } else if (minor != madeFor) {
      throw new IllegalStateException(
        s"[wrong-spark] the jar of the state store is for another Spark: jar='$madeFor', " +
          s"spark='$SPARK_VERSION'. To fix: put what `statestore jar --spark $minor` prints into " +
          s"spark.jars, or io.statestore:statestore-shim_2.13-spark$minor:$version into " +
          "spark.jars.packages")
    }
    if (minor == madeFor && patch < oldest) {
      throw new IllegalStateException(
        "[wrong-spark] this patch release of Spark lacks what the state store needs: " +
          s"spark='$SPARK_VERSION', oldest='$oldestSpark'. To fix: use Spark $oldestSpark or a " +
          s"later $minor")
    }
  }

  /** Minor and patch of a version, such as 4.0 and 2 of 4.0.2-SNAPSHOT. */
  private def release(version: String): (String, Int) = {
    val parts = version.split("[.-]")
    val patch = parts.lift(2).flatMap(_.toIntOption)
    (parts.take(2).mkString("."), patch.getOrElse(Int.MaxValue))
  }
}
