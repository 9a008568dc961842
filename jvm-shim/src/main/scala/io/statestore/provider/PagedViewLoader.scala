package io.statestore.provider

import java.io.File

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.delta.{StateFileOp, StateFileReader}
import io.statestore.view._

/** Builds the views of the heap and the filesystem backend: reads state files into pages. */
private[statestore] final class PagedViewLoader(context: StoreContext) extends ViewLoader(context) {
  private val PrefetchRows = 256

  override protected def build(
      version: ViewVersion,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): WorkingView = {
    val view = new PagedView(version, reply.get("max_parallelism").asInt, context.outside)
    try fill(view, families, reply, counters)
    catch {
      case e: Throwable =>
        view.retire()
        throw e
    }
    view
  }

  private def fill(
      view: PagedView,
      families: Seq[ColumnFamily],
      reply: ObjectNode,
      counters: HandleCounters): Unit = {
    val expected = math.min(reply.get("num_keys").asLong, Int.MaxValue / 4L).toInt
    val byId = families.map { family =>
      family.id -> view.addFamily(family, if (families.size == 1) expected else 0)
    }.toMap
    if (view.family(context.defaultFamily.name) == null) view.addFamily(context.defaultFamily)
    reply.get("files").elements.asScala.foreach(read(_, byId, counters))
    if (context.isInDriversMemory) view.countStateBytes()
  }

  private def read(
      file: JsonNode,
      families: Map[Int, PagedFamily],
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
        var family: PagedFamily = null
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
  private def prefetch(reader: StateFileReader, from: Int, family: PagedFamily): Unit = {
    val count = math.min(PrefetchRows, reader.rows - from)
    val keysAt = Array.tabulate(count)(i => reader.keyAddress(from + i))
    val keyLens = Array.tabulate(count)(i => reader.keyLength(from + i))
    family.prefetch(keysAt, keyLens, count)
  }

  private def replay(reader: StateFileReader, row: Int, family: PagedFamily): Unit =
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
