package io.statestore.view

import org.apache.spark.sql.avro.SchemaConverters
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform

/**
 * Turns value rows into value bytes and back. Where the schema of values may change, the ID of the
 * schema that a row was written with is behind it, and a row of another one than the newest is
 * brought over as Spark's RocksDB provider brings it over. Not thread-safe: one per handle.
 */
private[statestore] final class ValueCodec(family: ColumnFamily) {
  import ValueCodec.IdBytes

  private val numFields = family.valueSchema.length
  private val evolves = family.evolves
  private val current = if (evolves) family.schemaId else 0.toShort
  private val written = new UnsafeRow(numFields)
  private var buffer = new Array[Byte](64)
  private lazy val evolution = new Evolution(family)

  /** The bytes to store of a row, themselves as a row; valid until the next call. */
  def encode(row: UnsafeRow): UnsafeRow =
    if (!evolves) {
      row
    } else {
      val at = Platform.BYTE_ARRAY_OFFSET.toLong
      val size = row.getSizeInBytes
      val needed = Math.addExact(size, IdBytes)
      if (buffer.length < needed) buffer = new Array[Byte](math.max(needed, buffer.length * 2))
      Platform.copyMemory(row.getBaseObject, row.getBaseOffset, buffer, at, size.toLong)
      Platform.putLong(buffer, at + size, current.toLong)
      written.pointTo(buffer, at, needed)
      written
    }

  /** The row that is stored, of the newest schema; over the bytes themselves where it was so. */
  def decode(base: AnyRef, at: Long, length: Int): UnsafeRow =
    if (!evolves) {
      rowAt(base, at, length, numFields)
    } else {
      val size = length - IdBytes
      val id = Platform.getLong(base, at + size).toShort
      if (id == current) rowAt(base, at, size, numFields)
      else evolution(id, rowAt(base, at, size, family.schemaOf(id).length))
    }

  private def rowAt(base: AnyRef, at: Long, length: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(base, at, length)
    row
  }
}

private[statestore] object ValueCodec {

  /** As many as keep rows where they may lie: on a word. */
  val IdBytes = 8

  /** Refuses what could not be brought over to a later schema: types that Avro has not. */
  def check(family: ColumnFamily): Unit = if (family.evolves) {
    new Evolution(family)
    ()
  }
}

/**
 * Rows of a column family's former value schemas as rows of the newest one: what Spark's encoder
 * writes of them with the schema of then, and reads with that of now.
 */
private final class Evolution(family: ColumnFamily) {
  private val schemas = family.valueSchemas.map { case (id, schema) =>
    id -> StateSchemaMetadataValue(schema, SchemaConverters.toAvroTypeWithDefaults(schema))
  }
  private val reader = encoder(family.schemaId)
  private val writers = family.valueSchemas.keys.map(id => id -> encoder(id)).toMap

  def apply(id: Short, row: UnsafeRow): UnsafeRow =
    reader.decodeValue(writers(id).encodeValue(row)).copy()

  private def encoder(id: Short): AvroStateEncoder =
    new AvroStateEncoder(family.spec, family.schemaOf(id), Some(new Schemas(id)), family.name)

  /** The schemas as they were when `current` was the newest. */
  private final class Schemas(current: Short) extends StateSchemaProvider {
    override def getSchemaMetadataValue(key: StateSchemaMetadataKey): StateSchemaMetadataValue =
      schemas(key.schemaId)

    override def getCurrentStateSchemaId(colFamilyName: String, isKey: Boolean): Short = current
  }
}
