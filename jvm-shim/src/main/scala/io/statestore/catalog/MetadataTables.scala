package io.statestore.catalog

import java.util
import java.util.concurrent.TimeUnit.MILLISECONDS

import scala.util.control.NonFatal

import io.statestore.Json

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table, TableCapability}
import org.apache.spark.sql.connector.read.{LocalScan, ScanBuilder}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.unsafe.types.UTF8String

/** Tables about a checkpoint: few rows, which the driver reads when a query of them is planned. */
object MetadataTables {
  private val HistoryFile = "statestore-history.jsonl"

  private val tables: Map[String, (String, CheckpointFiles => Iterator[InternalRow])] = Map(
    "versions" -> (("version BIGINT, batch BIGINT, committed_at TIMESTAMP", versions _)),
    "operators" -> ((
      "operator BIGINT, operator_name STRING, store STRING, num_partitions INT", operators _)),
    "partitions" -> ((
      "operator BIGINT, partition_id INT, num_files BIGINT, bytes BIGINT", partitions _)),
    "history" -> ((
      "at TIMESTAMP, event STRING, operation STRING, from_version BIGINT, to_version BIGINT, " +
        "user STRING, host STRING, writer STRING, id STRING, options STRING, result STRING",
      history _)))

  /** Names of the tables. */
  val names: Seq[String] = tables.keys.toSeq.sorted

  def load(files: CheckpointFiles, name: String): Option[Table] =
    tables.get(name).map { case (schema, rows) =>
      new ListedTable(s"$name of ${files.path}", StructType.fromDDL(schema), () => rows(files))
    }

  private def versions(files: CheckpointFiles): Iterator[InternalRow] =
    files.commits.iterator.map { case (batch, file) =>
      InternalRow(batch + 1, batch, micros(file.getModificationTime))
    }

  private def operators(files: CheckpointFiles): Iterator[InternalRow] =
    files.storesAt(files.newestVersion).iterator.map { store =>
      InternalRow(store.operator, text(store.operatorName), text(store.store), store.numPartitions)
    }

  /** Those of the newest version, and what others left in their directories. */
  private def partitions(files: CheckpointFiles): Iterator[InternalRow] = {
    val empty = for {
      store <- files.storesAt(files.newestVersion)
      partition <- 0 until store.numPartitions
    } yield (store.operator, partition) -> ((0L, 0L))
    val found = files.stateFiles.collect {
      case (Number(operator) +: Number(partition) +: _ +: _, bytes) =>
        (operator, partition.toInt) -> bytes
    }
    found.foldLeft(empty.toMap) { case (sums, (place, bytes)) =>
      val (files, sum) = sums.getOrElse(place, (0L, 0L))
      sums + (place -> ((files + 1, sum + bytes)))
    }.toSeq.sortBy(_._1).iterator.map { case ((operator, partition), (files, bytes)) =>
      InternalRow(operator, partition, files, bytes)
    }
  }

  private object Number {
    def unapply(name: String): Option[Long] = name.toIntOption.filter(_ >= 0).map(_.toLong)
  }

  /** The lines of the file, in order; of one that cannot be read, `damaged` and its text. */
  private def history(files: CheckpointFiles): Iterator[InternalRow] =
    files.linesOf(HistoryFile).iterator.map { line =>
      try {
        val fields = Json.readObject(line)
        def value(name: String): UTF8String = text(fields.required(name).asText(null))
        InternalRow(
          micros(fields.required("at_ms").asLong),
          value("event"),
          value("operation"),
          fields.required("from_version").asLong,
          fields.required("to_version").asLong,
          value("user"),
          value("host"),
          value("writer"),
          value("id"),
          text(Json.write(fields.required("options"))),
          text(Json.write(fields.required("result"))))
      } catch {
        case NonFatal(_) =>
          InternalRow(
            null, text("damaged"), null, null, null, null, null, null, null, null, text(line))
      }
    }

  private def micros(ms: Long): Long = MILLISECONDS.toMicros(ms)

  private def text(value: String): UTF8String = UTF8String.fromString(value)
}

/** A table of rows that the driver has. */
private final class ListedTable(
    override val name: String,
    override val schema: StructType,
    list: () => Iterator[InternalRow])
    extends Table
    with SupportsRead {

  override def capabilities: util.Set[TableCapability] = util.Set.of(TableCapability.BATCH_READ)

  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () =>
    new LocalScan {
      override def readSchema: StructType = schema

      override def rows: Array[InternalRow] = list().toArray
    }
}
