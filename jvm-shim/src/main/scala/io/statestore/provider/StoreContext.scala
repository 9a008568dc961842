package io.statestore.provider

import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import scala.util.Try

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{EngineReportedException, Json, ShimErrors, ShimOptions}
import io.statestore.engine.{CheckpointMemory, EnginePool, Engines, QueryRuns}
import io.statestore.keygroup.{KeyGroupFunction, PartitionKey}
import io.statestore.view.{ColumnFamily, OffHeapMemory, OverlayFamily}
import org.apache.hadoop.conf.Configuration
import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.{SparkVersion, StateSchemaProvider}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.types.StructType

/**
 * Settings that one provider was initialised with, and what its handles leave for later ones.
 *
 * @param schemas those of the state variables, where they may change between restarts
 */
private[statestore] final class StoreContext(
    val backend: String,
    val storeId: StateStoreId,
    val defaultFamily: ColumnFamily,
    val useColumnFamilies: Boolean,
    schemas: Option[StateSchemaProvider],
    val storeConf: StateStoreConf,
    val hadoopConf: Configuration,
    val options: ShimOptions) {

  /** The heap backend: what is committed is as durable as the driver. */
  val isInDriversMemory: Boolean = backend == "heap"

  val directory: String = storeId.storeCheckpointLocation().toString

  /** ID of the query run; where no query runs (the state data source), empty or of no meaning. */
  val run: String = hadoopConf.get("sql.streaming.runId", "")

  /** Tells this provider instance from others of the same store, which may outlive their query. */
  private val provider = UUID.randomUUID().toString

  /** Whether a query runs, and not the state data source or a conversion. */
  def isOfQuery: Boolean = partitionsOfQuery.isDefined

  private lazy val partitionsOfQuery = SparkVersion.partitionsOfQuery(hadoopConf)
    .filter(_ => QueryRuns.mayBeOfQuery(run))

  val checkpointFormat: Int = if (storeConf.enableStateStoreCheckpointIds) 2 else 1

  /** Whether rows are kept by key, and not by key group first. */
  val keepsRowsByKey: Boolean = backend == "rocksdb"

  /** Compression of the delta handed to the engine, which writes it anew for RocksDB. */
  val deltaCompression: String = if (keepsRowsByKey) "none" else options.fileCompression

  /** Memory for the pages of its views outside of the heap, or null. */
  lazy val outside: OffHeapMemory = OffHeap.of(options)

  lazy val engines: EnginePool = {
    val pool = Engines.forOptions(options)
    val checkpoint = storeId.checkpointRootLocation
    // A reader's session may have other settings: a query that runs here goes on with its own.
    if (isOfQuery || !Leases.hasWriter(checkpoint)) {
      pool.files.register(checkpoint, hadoopConf, isOfQuery)
    }
    pool
  }

  /** State partitions; None where nobody says (the state data source). */
  def numPartitions: Option[Int] =
    partitionsOfQuery.orElse(Option(hadoopConf.get(StoreContext.NumPartitionsKey)).map(_.toInt))

  def numPartitionsOfTask: Int =
    numPartitions.getOrElse(Option(TaskContext.get()).map(_.numPartitions()).getOrElse(1))

  /**
   * Refuses a store that could not be committed.
   *
   * @throws java.lang.IllegalArgumentException there is no such state partition, or operator
   */
  def checkWritable(): Unit = {
    // In a task of the state data source nobody knows: it may open one partition of many to read.
    val isKnown = numPartitions.isDefined || TaskContext.get() == null
    if (storeId.operatorId < 0 || storeId.partitionId < 0 ||
      isKnown && storeId.partitionId >= numPartitionsOfTask) {
      throw ShimErrors.noSuchStore(storeId, numPartitionsOfTask)
    }
  }

  /**
   * Every schema that values of a column family may have, by its ID: those that are stored, and
   * the query's, which has the highest. Without schemas of the query, as when Spark's state reader
   * reads, those that are stored.
   *
   * Its ID is Spark's where that is a new one. Spark counts what its own files list: where it runs
   * the first batch of a changed query again, that is not the query's, or Spark has none at all.
   */
  def valueSchemas(
      name: String,
      schema: StructType,
      stored: Option[ColumnFamily]): Map[Short, StructType] = {
    val known = stored.fold(Map.empty[Short, StructType])(_.valueSchemas)
    schemas.fold(known) { provider =>
      def ofSpark = Try(provider.getCurrentStateSchemaId(name, isKey = false).toInt).getOrElse(0)
      val id = known.keys.maxOption match {
        case None => ofSpark
        case Some(newest) if ColumnFamily.isSame(known(newest), schema) => newest.toInt
        case Some(newest) => math.max(ofSpark, newest + 1)
      }
      known + (id.toShort -> schema)
    }
  }

  // Making a function costs about a millisecond and one must not be shared, so idle ones are kept.
  private val idleFunctions =
    new ConcurrentHashMap[(ColumnFamily, Int), ConcurrentLinkedQueue[KeyGroupFunction]]()

  /** A key-group function for one handle; `giveBack` it when the handle is done. */
  def keyGroupFunction(family: ColumnFamily, maxParallelism: Int): KeyGroupFunction = {
    val idle = idleFunctions.get((family, maxParallelism))
    Option(if (idle == null) null else idle.poll()).getOrElse(
      PartitionKey.function(
        storeId.storeName, useColumnFamilies, family.name, family.spec, maxParallelism))
  }

  /** Takes back what a handle has written a column family with; it has committed. */
  def giveBack(written: OverlayFamily, maxParallelism: Int): Unit = {
    lastWritten.put(written.family.id, written.table.size)
    idleFunctions
      .computeIfAbsent(
        (written.family, maxParallelism), _ => new ConcurrentLinkedQueue[KeyGroupFunction])
      .add(written.keyGroup)
    ()
  }

  private val lastWritten = new ConcurrentHashMap[Int, Int]()

  /** How many keys of a column family a batch may write: as many as the last, up to a limit. */
  def expectedKeys(family: ColumnFamily): Int =
    math.min(lastWritten.getOrDefault(family.id, 0), StoreContext.MostExpectedKeys)

  /** A request of the protocol with what every call about this store names. */
  def request(op: String): ObjectNode = {
    val node = Json.obj()
    node.put("op", op).put("backend", backend)
    val store = node.putObject("store")
      .put("root", storeId.checkpointRootLocation)
      .put("operator", storeId.operatorId)
      .put("partition", storeId.partitionId)
      .put("name", storeId.storeName)
      .put("run", run)
      .put("provider", provider)
    // Not to close: nobody is asked, and nothing started, for a store that is given up. A lease is
    // in the checkpoint directory.
    if (isInDriversMemory && op != "close" && op != "lease") {
      store.set[ObjectNode]("memory", CheckpointMemory.address(options.enginePackage))
    }
    val engineOptions = options.engineJson.deepCopy()
    engineOptions.put("min_versions_to_retain", storeConf.minVersionsToRetain)
    // The state data source reads any checkpoint in a session that may be set up for another one.
    if (numPartitions.isEmpty) {
      engineOptions.put("checkpoint_storage", "").put("max_parallelism", 0)
    }
    node.set[ObjectNode]("options", engineOptions)
    node
  }

  def call(request: ObjectNode): ObjectNode =
    try withFiles.call(directory, request)
    catch {
      case e: EngineReportedException if e.kind == "driver-lost" =>
        // The memory may be gone: the next call asks the driver where it is now.
        CheckpointMemory.forget()
        throw e
    }

  /** Lets engines make room on the local disk. */
  def makeRoom(): Unit = engines.callRunning(directory, request("room"))

  /** As `EnginePool.callAny`. */
  def callAny(request: ObjectNode, timeoutMs: Long, isUrgent: Boolean): ObjectNode =
    withFiles.callAny(directory, request, timeoutMs, isUrgent)

  /** The engines, which open the checkpoint's files with the configuration of its query. */
  private def withFiles: EnginePool = {
    engines.files.keepRegistered(storeId.checkpointRootLocation, hadoopConf, isOfQuery)
    engines
  }
}

private[statestore] object StoreContext {
  /** Key of Hadoop's configuration: the number of state partitions where no query runs. */
  val NumPartitionsKey = "statestore.numPartitions"

  /** An index of 640 kB. */
  private val MostExpectedKeys = 1 << 16
}
