package io.statestore.provider

import java.io.File

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.ShimErrors
import io.statestore.delta.{StateFileOp, StateFileReader}
import io.statestore.view._

/** Builds the view of a version from what the engine answers to `load`. */
private[statestore] abstract class ViewLoader(context: StoreContext) {

  /**
   * Loads a version.
   *
   * @param checkpointId the attempt wanted (checkpoint format v2), or None for whatever is there
   * @param fromSnapshot start at exactly this snapshot (version, checkpoint ID)
   */
  def load(
      version: Long,
      checkpointId: Option[String],
      fromSnapshot: Option[(Long, Option[String])],
      counters: HandleCounters): CommittedView = counters.timed(StoreMetrics.LoadMs) {
    val request = context.request("load")
    request.put("version", version).put("checkpoint_id", checkpointId.orNull)
    request.put("checkpoint_format", context.checkpointFormat)
    context.numPartitions match {
      case Some(n) => request.put("num_partitions", n)
      case None => request.putNull("num_partitions")
    }
    fromSnapshot.foreach { case (snapshot, id) =>
      request.putObject("from_snapshot").put("version", snapshot).put("checkpoint_id", id.orNull)
    }
    val start = System.nanoTime()
    val reply = context.call(request)
    counters.add(StoreMetrics.EngineCalls, 1L)
    counters.addRequests(reply)
    counters.add(StoreMetrics.FilesRead, reply.get("files_read").asLong)
    counters.add(StoreMetrics.BytesRead, reply.get("bytes_read").asLong)
    val view = build(
      ViewVersion(
        version,
        text(reply, "checkpoint_id"),
        text(reply, "lineage"),
        reply.get("rescalable").asBoolean),
      reply.get("column_families").elements.asScala
        .map(node => checked(ColumnFamily.fromJson(node.asInstanceOf[ObjectNode])))
        .toSeq,
      reply,
      counters)
    StoreActivity.current.loaded(
      (System.nanoTime() - start) / 1000000L, reply.get("bytes_read").asLong)
    view
  }

  /** Whether another attempt of the version that a view is of has the same rows. */
  def isSame(version: ViewVersion, checkpointId: String, counters: HandleCounters): Boolean =
    counters.timed(StoreMetrics.LoadMs) {
      val request = context.request("same")
      request.putObject("version")
        .put("version", version.number)
        .put("checkpoint_id", checkpointId)
        .put("lineage", version.lineage)
      counters.add(StoreMetrics.EngineCalls, 1L)
      context.call(request).get("same").asBoolean
    }

  /** Engine calls that views of this loader have made since the last time this was asked. */
  def takeCalls(): Long = 0L

  /** An empty view that claims to be at `version`. */
  def empty(version: Long, maxParallelism: Int): CommittedView

  /** The view of a version; `families` are those stored. */
  protected def build(
      version: ViewVersion,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): CommittedView

  /**
   * The family as the provider knows it, after a check that the stored bytes are laid out so. With
   * column families the default one holds nothing, and Spark opens it in several ways: for the
   * batch with the initial state, and in the state reader, it differs from the query's.
   */
  private def checked(stored: ColumnFamily): ColumnFamily =
    if (stored.name != context.defaultFamily.name) {
      stored
    } else {
      if (!context.useColumnFamilies && !stored.sameLayout(context.defaultFamily)) {
        throw ShimErrors.schemaChanged(context.storeId, stored, context.defaultFamily)
      }
      context.defaultFamily
    }

  private def text(node: ObjectNode, field: String): String =
    Option(node.get(field)).filterNot(_.isNull).map(_.asText).orNull
}

/** Builds a view on the heap by reading files. */
private[statestore] final class HeapViewLoader(context: StoreContext) extends ViewLoader(context) {
  private val PrefetchRows = 256

  override def empty(version: Long, maxParallelism: Int): CommittedView = {
    val view = new WorkingView(ViewVersion(version, null, null, rescalable = true), maxParallelism)
    view.addFamily(context.defaultFamily)
    view
  }

  override protected def build(
      version: ViewVersion,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): CommittedView = {
    val view = new WorkingView(version, reply.get("max_parallelism").asInt)
    val expected = math.min(reply.get("num_keys").asLong, Int.MaxValue / 4L).toInt
    val byId = families.map { family =>
      family.id -> view.addFamily(family, if (families.size == 1) expected else 0)
    }.toMap
    if (view.family(context.defaultFamily.name) == null) view.addFamily(context.defaultFamily)
    reply.get("files").elements.asScala.foreach(read(_, byId, counters))
    if (context.isInDriversMemory) view.countStateBytes()
    view
  }

  private def read(
      file: JsonNode,
      families: Map[Int, ViewFamily],
      counters: HandleCounters): Unit = {
    val isSnapshot = file.get("kind").asText == "snapshot"
    val metric = if (isSnapshot) StoreMetrics.LoadSnapshotMs else StoreMetrics.ReplayMs
    if (!isSnapshot) counters.add(StoreMetrics.ReplayFiles, 1L)
    counters.timed(metric) {
      val slices = file.get("slices").elements.asScala
        .map(slice => (slice.get(0).asLong, slice.get(1).asLong))
        .toSeq
      // Of a file that a rescale took over only some key groups count.
      val clip = file.get("clip")
      val modulus = if (clip.isNull) 1 else clip.get(0).asInt
      val remainder = if (clip.isNull) 0 else clip.get(1).asInt
      val reader = new StateFileReader(new File(file.get("path").asText), slices)
      try {
        var family: ViewFamily = null
        var familyId = -1
        while (reader.nextBatch()) {
          var row = 0
          while (row < reader.rows) {
            // No key of a snapshot can be there yet.
            if (row % PrefetchRows == 0 && !isSnapshot && family != null) {
              prefetch(reader, row, family)
            }
            if (modulus == 1 || reader.keyGroup(row) % modulus == remainder) {
              if (reader.family(row) != familyId) {
                familyId = reader.family(row)
                family = families.getOrElse(familyId, null)
              }
              // A column family that was removed later has rows, all of them deleted, but no name.
              if (family != null) replay(reader, row, family)
            }
            row += 1
          }
        }
      } finally reader.close()
    }
  }

  /** A guess: the rows from `from` on are of the family that the row before them was of. */
  private def prefetch(reader: StateFileReader, from: Int, family: ViewFamily): Unit = {
    val count = math.min(PrefetchRows, reader.rows - from)
    val keysAt = Array.tabulate(count)(i => reader.keyAddress(from + i))
    val keyLens = Array.tabulate(count)(i => reader.keyLength(from + i))
    family.prefetch(keysAt, keyLens, count)
  }

  private def replay(reader: StateFileReader, row: Int, family: ViewFamily): Unit =
    reader.op(row) match {
      case StateFileOp.Delete =>
        family.unload(null, reader.keyAddress(row), reader.keyLength(row))
      case op =>
        family.load(
          null,
          reader.keyAddress(row),
          reader.keyLength(row),
          null,
          reader.valueAddress(row),
          reader.valueLength(row),
          append = op == StateFileOp.Merge)
    }
}
