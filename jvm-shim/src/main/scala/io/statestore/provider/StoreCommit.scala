package io.statestore.provider

import java.io.File
import java.util.UUID

import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{LocalDiskException, ShimErrors}
import io.statestore.delta.{DeltaWriter, RowWriter, StateFileOp}
import io.statestore.rocksdb.{SstSettings, SstWriter}
import io.statestore.view._

/**
 * One commit: the overlay written as a delta, in file order, and handed to the engine in one call.
 * The view is not touched: it follows when the task of the handle has ended.
 *
 * @param families the column families of the new version
 */
private[statestore] final class StoreCommit(
    context: StoreContext,
    view: WorkingView,
    overlay: Overlay,
    families: Seq[ColumnFamily],
    counters: HandleCounters,
    forceSnapshot: Boolean) {

  private val base = view.version
  private val changes = mutable.LinkedHashMap.empty[Int, FamilyChanges]
  private var puts = 0L
  private var deletes = 0L
  private var merges = 0L
  private var length = 0L
  private var sst: SstWriter = _
  private var rescalable = base.rescalable
  private var stateBytes = base.stateBytes
  private val keyGroupGrowth = new Array[Long](StoreCommit.KeyGroupClasses)

  /** Makes the next version durable, or raises what the engine or the local disk said. */
  def run(): Committed = Leases.committing(context) {
    // Also the attempt's identity: a call that is repeated is recognised by it.
    val checkpointId = UUID.randomUUID().toString.replace("-", "")
    val file = context.engines.scratchFile("delta")
    try {
      counters.timed(StoreMetrics.DeltaWriteMs) {
        ShimErrors.onLocalDisk("write the delta", file)(writeDelta(file))
      }
      val call = request(checkpointId, file)
      val numKeys = view.numKeys + growth(internal = false)
      val numInternalKeys = view.numInternalKeys + growth(internal = true)
      val reply = counters.timed(StoreMetrics.EngineMs)(context.call(call))
      count(reply, numInternalKeys)
      val version = ViewVersion(
        base.number + 1, checkpointId, reply.get("lineage").asText, rescalable, stateBytes)
      val changed = changes.values.filter(_.length > 0).toSeq
      val advance = new ViewAdvance(version, families, changed, () => overlay.free())
      Committed(version, numKeys, reply.get("snapshot"), advance)
    } finally {
      file.delete()
      if (sst != null && sst.deletesFile != null) sst.deletesFile.delete()
    }
  }

  /** How many rows more than the view the new version has. */
  private def growth(internal: Boolean): Long = changes.valuesIterator
    .filter(_.overlay.family.internal == internal)
    .map(change => change.numNew.toLong - change.numDeleted)
    .sum

  /** Only the engine makes a version of all the state. */
  private def writesSst: Boolean = context.keepsRowsByKey && context.options.rocksdbIncremental

  private def writeDelta(file: File): Unit = {
    val expected = overlay.allFamilies.map(_.table.size).sum
    val writer =
      if (writesSst) {
        sst = new SstWriter(
          file,
          () => context.engines.scratchFile("deletes"),
          SstSettings.of(context.options.rocksdbCompression, context.options.rocksdbBlockSizeKB))
        sst
      } else {
        new DeltaWriter(file, context.deltaCompression, expected)
      }
    try {
      val slots = new Array[Int](RecordBlock.Capacity)
      overlay.visitSorted { block =>
        val below = view.family(block.family.family.name)
        if (below == null) java.util.Arrays.fill(slots, -1)
        else below.findSlots(overlay.pages, block.addresses, block.length, slots)
        writeBlock(writer, block, below, slots)
      }
      length = writer.finish()
    } finally writer.close()
  }

  private def writeBlock(
      writer: RowWriter,
      block: RecordBlock,
      below: CommittedFamily,
      slots: Array[Int]): Unit = {
    val pages = overlay.pages
    val family = block.family
    val change = changes.getOrElseUpdate(family.family.id, new FamilyChanges(family))
    val partitions = context.numPartitionsOfTask
    val partition = context.storeId.partitionId
    val key = new BytesRef
    val value = new BytesRef
    var i = 0
    while (i < block.length) {
      val address = block.addresses(i)
      val op = FamilyChanges.netOp(pages, address, slots(i))
      if (op >= 0) {
        val keyGroup = block.keyGroups(i)
        change.add(address, slots(i))
        if (keyGroup % partitions != partition) rescalable = false
        val growth = if (slots(i) < 0) 1L else if (op == RecordPages.Delete) -1L else 0L
        keyGroupGrowth(keyGroup / partitions % StoreCommit.KeyGroupClasses) += growth
        key.set(pages.base(address), pages.keyOffset(address), pages.keyLength(address))
        if (op == RecordPages.Delete) value.set(null, 0L, 0) else family.value(address, value)
        if (context.isInDriversMemory) {
          stateBytes += value.length
          if (slots(i) < 0) stateBytes += key.length
          else if (op != RecordPages.Merge) stateBytes -= replacedBytes(below, slots(i), key, op)
        }
        val isPutTogether = op == RecordPages.Merge && sst != null
        if (isPutTogether) change.putTogether(below, key, value)
        else if (op == RecordPages.Merge) below match {
          case rows: PagedFamily => rows.requireReadable(slots(i), key.length, value.length)
          case rows => change.requireReadable(rows, key, value)
        }
        val written = if (isPutTogether) RecordPages.Put else op
        val shown = if (op == RecordPages.Delete) null else value
        writer.add(keyGroup, family.family.id, codeOf(written), key, shown)
      }
      i += 1
    }
  }

  /** Bytes of the row in the view that a put, which leaves the key, or a delete takes away. */
  private def replacedBytes(below: CommittedFamily, slot: Int, key: BytesRef, op: Int): Int = {
    val value = below.asInstanceOf[PagedFamily].valueLength(slot)
    value + (if (op == RecordPages.Delete) key.length else 0)
  }

  /** Counts an operation and gives its code in the file. */
  private def codeOf(op: Int): Int = op match {
    case RecordPages.Delete =>
      deletes += 1
      StateFileOp.Delete
    case RecordPages.Merge =>
      merges += 1
      StateFileOp.Merge
    case _ =>
      puts += 1
      StateFileOp.Put
  }

  private def request(checkpointId: String, file: File): ObjectNode = {
    val request = context.request("commit")
    request.put("version", base.number + 1)
    if (base.lineage == null) { // the delta is the full state of its version
      request.putNull("parent")
    } else {
      request.putObject("parent")
        .put("version", base.number)
        .put("checkpoint_id", base.checkpointId)
        .put("lineage", base.lineage)
    }
    request.put("checkpoint_id", checkpointId)
    request.put("checkpoint_format", context.checkpointFormat)
    val delta = request.putObject("delta")
      .put("path", file.getPath)
      .put("length", length)
      .put("put", puts)
      .put("delete", deletes)
      .put("merge", merges)
    if (sst != null) {
      val described = delta.putObject("sst")
        .put("rows_length", sst.rowsLength)
        .put("checksum", sst.checksum)
      if (sst.deletesFile != null) {
        described.putObject("deletes")
          .put("path", sst.deletesFile.getPath)
          .put("length", sst.deletesLength)
      }
    }
    request.put("num_keys", view.numRows + growth(internal = false) + growth(internal = true))
    request.put("num_internal_keys", view.numInternalKeys + growth(internal = true))
    if (context.isInDriversMemory) request.put("state_bytes", stateBytes)
    request.put("max_parallelism", view.maxParallelism)
    request.put("num_partitions", context.numPartitionsOfTask)
    request.put("rescalable", rescalable)
    val growths = request.putArray("key_group_growth")
    keyGroupGrowth.foreach(growths.add(_))
    val list = request.putArray("column_families")
    families.foreach(family => list.add(family.toJson))
    request.put("force_snapshot", forceSnapshot)
    request.put("write_ms", counters(StoreMetrics.DeltaWriteMs))
  }

  private def count(reply: ObjectNode, numInternalKeys: Long): Unit = {
    val size = reply.get("size").asLong
    val snapshot = reply.get("snapshot")
    counters.add(StoreMetrics.EngineCalls, 1L)
    counters.addRequests(reply)
    counters.add(StoreMetrics.DeltaRows, puts + deletes + merges)
    counters.add(StoreMetrics.DeltaDeletes, deletes)
    counters.add(StoreMetrics.DeltaBytes, size)
    counters.add(StoreMetrics.BytesWritten, size)
    counters.add(StoreMetrics.VersionBytes, reply.get("version_bytes").asLong)
    counters.add(StoreMetrics.EngineRss, reply.get("rss_share_bytes").asLong)
    counters.add(StoreMetrics.EngineRocksDB, reply.get("rocksdb_share_bytes").asLong)
    counters.add(StoreMetrics.PublishMs, math.round(reply.get("publish_ms").asDouble))
    counters.add(StoreMetrics.FileSyncMs, math.round(reply.get("sync_ms").asDouble))
    counters.add(StoreMetrics.SnapshotBytes, snapshot.get("bytes").asLong)
    counters.add(StoreMetrics.SnapshotMs, math.round(snapshot.get("duration_ms").asDouble))
    counters.add(StoreMetrics.Snapshots, snapshot.get("taken").asLong)
    counters.add(StoreMetrics.OverlayBytes, overlay.heapBytes)
    counters.add(StoreMetrics.SpilledRuns, overlay.numRuns.toLong)
    counters.add(StoreMetrics.InternalFamilies, families.count(_.internal).toLong)
    counters.add(StoreMetrics.ExternalFamilies, families.count(!_.internal).toLong)
    counters.add(StoreMetrics.InternalKeys, numInternalKeys)
    counters.add(StoreMetrics.ForceSnapshots, if (forceSnapshot) 1L else 0L)
    counters.add(StoreMetrics.NotRescalable, if (rescalable) 0L else 1L)
  }
}

private object StoreCommit {

  /** How many numbers tell where rows were added: statestore/checkpoint/key_group_rows.py. */
  val KeyGroupClasses = 64

  /** Runs a commit; where the local disk is full one more, once engines have made room there. */
  def inRoom(context: StoreContext)(commit: => StoreCommit): Committed =
    try commit.run()
    catch {
      case e: LocalDiskException if e.isFull =>
        context.makeRoom()
        commit.run()
    }
}

/**
 * A commit that is durable; `snapshot` is the newest one, as the engine answered, `advance` brings
 * the view it was made on to its version.
 */
private[statestore] final case class Committed(
    version: ViewVersion,
    numKeys: Long,
    snapshot: JsonNode,
    advance: ViewAdvance)
