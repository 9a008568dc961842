package io.statestore.provider

import java.util.concurrent.atomic.AtomicLong

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.rocksdb.{NumRows, RocksDBView}
import io.statestore.view.{ColumnFamily, ViewVersion, WorkingView}

/** Builds the views of the rocksdb backend: opens directories that the engine names. */
private[statestore] final class RocksDBViewLoader(context: StoreContext)
    extends ViewLoader(context) {
  private[this] val calls = new AtomicLong()

  override def takeCalls(): Long = calls.getAndSet(0L)

  override protected def build(
      version: ViewVersion,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): WorkingView = view(
    version,
    reply.get("max_parallelism").asInt,
    viewOf(version, reply),
    if (families.exists(_.name == context.defaultFamily.name)) families
    else families :+ context.defaultFamily,
    rowsOf(reply),
    filterOf(reply))

  private def rowsOf(reply: ObjectNode): Option[NumRows] =
    Option.when(!reply.get("num_keys").isNull && !reply.get("num_internal_keys").isNull)(
      NumRows(reply.get("num_keys").asLong, reply.get("num_internal_keys").asLong))

  /** N where only rows of this state partition of N are the store's, else 0. */
  private def filterOf(reply: ObjectNode): Int =
    if (reply.get("key_group_filter").asBoolean) reply.get("num_partitions").asInt else 0

  private def askForView(version: ViewVersion): (String, Int) = {
    val request = context.request("view")
    request.putObject("version")
      .put("version", version.number)
      .put("checkpoint_id", version.checkpointId)
      .put("lineage", version.lineage)
    request.put("checkpoint_format", context.checkpointFormat)
    val reply = context.call(request)
    calls.incrementAndGet()
    (viewOf(version, reply), filterOf(reply))
  }

  /** Directory of a version's view, null for an empty one only, which has none. */
  private def viewOf(version: ViewVersion, reply: ObjectNode): String = {
    val path = Option(reply.get("view")).filterNot(_.isNull).map(_.asText).orNull
    if (path == null && version.lineage != null) {
      throw new IllegalStateException(s"the engine kept no view of version ${version.number}")
    }
    path
  }

  private def view(
      version: ViewVersion,
      maxParallelism: Int,
      path: String,
      families: Seq[ColumnFamily],
      rows: Option[NumRows],
      filter: Int): RocksDBView = new RocksDBView(
    version,
    maxParallelism,
    path,
    askForView,
    families,
    rows,
    context.storeId.partitionId,
    filter,
    context.options.rocksdbBlockCacheBytes,
    context.options.rocksdbRowCacheBytes,
    context.outside)
}
