package io.statestore.provider

import java.io.File

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.delta.{StateFileOp, StateFileReader}
import io.statestore.rocksdb.SstReader
import io.statestore.view.{BytesRef, ColumnFamily, KeyCodec, MultiValues, ValueCodec}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{ChangeDataReader, RecordType}

/**
 * The changes of a range of versions, version by version: the net effect of each batch, each key
 * once, in no order (Spark's RocksDB provider shows every write, in the order it was made).
 *
 * @param reply what the engine answered to `changes`
 * @param removeFiles removes the files that were made for this reader
 */
private[statestore] final class ChangeReader(
    reply: ObjectNode,
    familyName: String,
    removeFiles: () => Unit)
    extends ChangeDataReader {
  private type Change = (RecordType.Value, UnsafeRow, UnsafeRow, Long)

  private val family = familyIn(reply)
  private val codec = family.map(new KeyCodec(_)).orNull
  private val valueCodec = family.map(new ValueCodec(_)).orNull
  // Those from before it was created have no rows of it: its ID may have been another one's, which
  // was removed.
  private val files = reply.get("files").elements.asScala.toSeq.reverseIterator
    .takeWhile(file => familyIn(file).exists(before => family.exists(isThat(_, before))))
    .toSeq.reverseIterator
  private var open = List.empty[AutoCloseable]
  private var changes: Iterator[Change] = Iterator.empty

  override protected def getNext(): Change = {
    while (!changes.hasNext && family.isDefined && files.hasNext) {
      closeFile()
      changes = read(files.next())
    }
    if (changes.hasNext) {
      changes.next()
    } else {
      finished = true
      null
    }
  }

  override protected def close(): Unit =
    try closeFile()
    finally removeFiles()

  private def familyIn(node: JsonNode): Option[ColumnFamily] =
    node.get("column_families").elements.asScala
      .map(family => ColumnFamily.fromJson(family.asInstanceOf[ObjectNode]))
      .find(_.name == familyName)

  private def isThat(now: ColumnFamily, before: ColumnFamily): Boolean =
    now.id == before.id && now.sameLayout(before)

  private def closeFile(): Unit = {
    open.foreach(_.close())
    open = Nil
  }

  private def read(file: JsonNode): Iterator[Change] = {
    val batchId = file.get("version").asLong - 1
    val reader = new StateFileReader(new File(file.get("path").asText))
    open = List(reader)
    val rows = Iterator
      .continually(reader.nextBatch())
      .takeWhile(identity)
      .flatMap(_ => (0 until reader.rows).iterator)
      .filter(reader.family(_) == family.get.id)
      .flatMap(change(reader, _, batchId))
    if (file.path("sst").isTextual) rows ++ puts(file.get("sst").asText, batchId) else rows
  }

  private def puts(sst: String, batchId: Long): Iterator[Change] = {
    val reader = new SstReader(sst, family.get.id)
    open ::= reader
    val (key, value) = (new BytesRef, new BytesRef)
    Iterator.continually(reader.next(key, value)).takeWhile(identity).map { _ =>
      val row = valueCodec.decode(value.base, value.at, value.length)
      (RecordType.PUT_RECORD, codec.decode(key.base, key.at, key.length), row, batchId)
    }
  }

  private def change(reader: StateFileReader, row: Int, batchId: Long): Iterator[Change] = {
    val key = codec.decode(null, reader.keyAddress(row), reader.keyLength(row)).copy()
    reader.op(row) match {
      case StateFileOp.Delete => Iterator.single((RecordType.DELETE_RECORD, key, null, batchId))
      case StateFileOp.Merge => values(reader, row).map((RecordType.MERGE_RECORD, key, _, batchId))
      case _ =>
        // A put of several values is a put of the first and merges of the others.
        values(reader, row).zipWithIndex.map { case (value, i) =>
          (if (i == 0) RecordType.PUT_RECORD else RecordType.MERGE_RECORD, key, value, batchId)
        }
    }
  }

  private def values(reader: StateFileReader, row: Int): Iterator[UnsafeRow] = {
    val (at, length) = (reader.valueAddress(row), reader.valueLength(row))
    val rows =
      if (family.get.multiValues) MultiValues.rows(null, at, length, valueCodec)
      else Iterator.single(valueCodec.decode(null, at, length))
    rows.map(_.copy())
  }
}
