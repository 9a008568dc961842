package io.statestore.provider

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.ShimErrors
import io.statestore.view._

/** Builds the view of a version from what the engine answers to `load`. */
private[statestore] abstract class ViewLoader(context: StoreContext) {

  /**
   * Loads a version.
   *
   * @param checkpointId the attempt wanted (checkpoint format v2), or None for whatever is there
   * @param fromSnapshot start at exactly this snapshot (version, checkpoint ID)
   * @param shownAs version that the view claims to be at, where it is another one
   */
  def load(
      version: Long,
      checkpointId: Option[String],
      fromSnapshot: Option[(Long, Option[String])],
      counters: HandleCounters,
      shownAs: Option[Long] = None): WorkingView = counters.timed(StoreMetrics.LoadMs) {
    val request = context.request("load")
    request.put("version", version).put("checkpoint_id", checkpointId.orNull)
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
        shownAs.getOrElse(version),
        // Of a version that is lost, and taken for an empty one, the engine says no more than that.
        // Spark compares what a batch began with to the commit log.
        Option(text(reply, "checkpoint_id")).orElse(checkpointId).orNull,
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

  /** The view of a version; `families` are those stored. */
  protected def build(
      version: ViewVersion,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): WorkingView

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
