package io.statestore.provider

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.spark.sql.execution.streaming.state._

/**
 * Custom metrics of StreamingQueryProgress. Names are those of Spark's RocksDB provider where the
 * same thing is meant, so that dashboards go on working; the others start with `statestore`.
 */
private[statestore] object StoreMetrics {
  private def sum(name: String, what: String) = StateStoreCustomSumMetric(name, what)
  private def time(name: String, what: String) = StateStoreCustomTimingMetric(name, what)
  private def size(name: String, what: String) = StateStoreCustomSizeMetric(name, what)

  /** What stays as it is while no batch runs, where the others are 0 then. */
  private def gauge(metric: StateStoreCustomMetric) = SparkVersion.gauge(metric)

  val GetCount = sum("rocksdbGetCount", "number of get and keyExists calls")
  val PutCount = sum("rocksdbPutCount", "number of put and merge calls")
  val FileSyncMs = time("rocksdbCommitFileSyncLatencyMs", "fsync of the delta and its directory")
  val DeltaWriteMs = time("rocksdbChangeLogWriterCommitLatencyMs", "sorting and writing the delta")
  val LoadMs = time("rocksdbLoadLatencyMs", "building the working view of a version")
  val LoadSnapshotMs = time("rocksdbLoadFromSnapshotLatencyMs", "reading snapshots into the view")
  val ReplayMs = time("rocksdbReplayChangeLogLatencyMs", "replaying deltas into the view")
  val ReplayFiles = sum("rocksdbNumReplayChangelogFiles", "deltas replayed")
  val BytesRead = size("rocksdbTotalBytesRead", "bytes of state files read by loads")
  val BytesWritten = size("rocksdbTotalBytesWritten", "bytes of deltas made durable")
  val InternalKeys =
    gauge(sum("rocksdbNumInternalColFamiliesKeys", "rows in internal column families"))
  val ExternalFamilies = gauge(sum("rocksdbNumExternalColumnFamilies", "column families"))
  val InternalFamilies = gauge(sum("rocksdbNumInternalColumnFamilies", "internal column families"))
  val ForceSnapshots = sum("rocksdbForceSnapshotCount", "snapshots asked for by Spark")

  val DeltaRows = sum("statestoreDeltaRows", "rows in the delta")
  val DeltaDeletes = sum("statestoreDeltaDeletes", "rows of the delta that delete a key")
  val DeltaBytes = size("statestoreDeltaBytes", "bytes of the published delta")
  val VersionBytes =
    gauge(size("statestoreVersionBytes", "bytes of all files that make the version"))
  val EngineRss = gauge(size("statestoreEngineRssBytes", "resident memory of the engines"))
  val EngineRocksDB = gauge(
    size("statestoreEngineRocksdbBytes", "block cache and write buffers of the engines' RocksDB"))
  val EngineMs = time("statestoreCommitEngineMs", "the engine call of the commit")
  val PublishMs = time("statestoreCommitPublishMs", "publishing the delta, fsync included")
  val ApplyMs = time("statestoreApplyMs", "applying the batch before to the view, after its tasks")
  val EngineCalls = sum("statestoreEngineCalls", "calls from the shim to the engine")
  val SnapshotBytes = gauge(size("statestoreSnapshotBytes", "bytes of the newest snapshot"))
  val SnapshotMs = time("statestoreSnapshotDurationMs", "time the newest snapshot took")
  val Snapshots = gauge(sum("statestoreSnapshots", "snapshots published by the store's engine"))
  val FilesRead = sum("statestoreLoadedFiles", "state files read by loads")
  val RollBacks = sum("statestoreRollBacks", "previous version served again without a load")
  val OverlayBytes = size("statestoreOverlayBytes", "heap bytes of the batch's writes")
  val SpilledRuns = sum("statestoreSpilledRuns", "sorted runs the batch spilled to disk")
  val NotRescalable =
    gauge(sum("statestoreNotRescalable", "stores whose rows fail the key-group check"))

  // Since the reply before the one of this load or commit, requests in the background included.
  val StoragePuts = sum("statestoreStoragePuts", "requests to the storage that write")
  val StorageGets = sum("statestoreStorageGets", "requests to the storage that read")
  val StorageHeads = sum("statestoreStorageHeads", "requests to the storage for an attribute")
  val StorageLists = sum("statestoreStorageLists", "requests to the storage for a listing")
  val StorageDeletes = sum("statestoreStorageDeletes", "requests to the storage that delete")
  val Requests: Seq[(String, StateStoreCustomMetric)] = Seq(
    "put" -> StoragePuts, "get" -> StorageGets, "head" -> StorageHeads, "list" -> StorageLists,
    "delete" -> StorageDeletes)

  val All: Seq[StateStoreCustomMetric] = Seq(
    GetCount, PutCount, FileSyncMs, DeltaWriteMs, LoadMs, LoadSnapshotMs, ReplayMs, ReplayFiles,
    BytesRead, BytesWritten, InternalKeys, ExternalFamilies, InternalFamilies, ForceSnapshots,
    DeltaRows, DeltaDeletes, DeltaBytes, VersionBytes, EngineRss, EngineRocksDB, EngineMs,
    PublishMs, ApplyMs, EngineCalls, SnapshotBytes, SnapshotMs, Snapshots,
    FilesRead, RollBacks, OverlayBytes, SpilledRuns, NotRescalable) ++ Requests.map(_._2)
}

/** What happened for one handle, in the units of `StoreMetrics`. */
private[statestore] final class HandleCounters {
  private val values =
    scala.collection.mutable.HashMap.empty[StateStoreCustomMetric, Long].withDefaultValue(0L)
  var gets = 0L
  var puts = 0L

  def apply(metric: StateStoreCustomMetric): Long = values(metric)

  def add(metric: StateStoreCustomMetric, value: Long): Unit = values(metric) += value

  /** Adds the requests to the storage that a reply of the engine tells. */
  def addRequests(reply: ObjectNode): Unit = StoreMetrics.Requests.foreach { case (kind, metric) =>
    val number = reply.path("requests").path(kind).asLong
    add(metric, number)
    if (number > 0) StoreActivity.current.requested(kind, number)
  }

  def timed[T](metric: StateStoreCustomMetric)(body: => T): T = {
    val start = System.nanoTime()
    try body
    finally add(metric, (System.nanoTime() - start) / 1000000L)
  }

  def toMap: Map[StateStoreCustomMetric, Long] =
    StoreMetrics.All.map(metric => metric -> values(metric)).toMap +
      (StoreMetrics.GetCount -> gets) + (StoreMetrics.PutCount -> puts)
}
