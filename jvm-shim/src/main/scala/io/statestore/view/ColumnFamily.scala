package io.statestore.view

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}
import io.statestore.ShimErrors
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * A named key space of a store. `spec.keySchema` is the layout of the key rows (for some families
 * it differs from the key schema Spark registers beside it).
 *
 * @param valueSchemas where the schema of values may change, every one that rows may have, by
 *                     its ID; `valueSchema` is the newest, of the highest
 */
private[statestore] final case class ColumnFamily(
    id: Int,
    name: String,
    spec: KeyStateEncoderSpec,
    valueSchema: StructType,
    multiValues: Boolean,
    internal: Boolean,
    valueSchemas: Map[Short, StructType] = Map.empty) {
  import ColumnFamily.sameTypes

  /** Whether the schema of values may change. */
  def evolves: Boolean = valueSchemas.nonEmpty

  /** ID of the newest value schema. */
  def schemaId: Short = valueSchemas.keys.max

  /** A value schema by its ID. */
  def schemaOf(id: Short): StructType =
    valueSchemas.getOrElse(id, throw ShimErrors.unknownSchema(name, id, valueSchemas.keySet))

  /** The family whose rows this one lists by their expiry; null where it is no such index. */
  val indexOf: String = name match {
    case s"$$ttl_$state" if internal && spec.keySchema.length == 2 => state
    case _ => null
  }

  /** True when scans go by byte order of the encoded key; false when the key is the row itself. */
  def ordered: Boolean = !spec.isInstanceOf[NoPrefixKeyStateEncoderSpec]

  def toJson: ObjectNode = {
    val node = JsonNodeFactory.instance.objectNode()
    node.put("id", id).put("name", name)
    node.put("key_schema", spec.keySchema.json).put("value_schema", valueSchema.json)
    val (encoder, numPrefixColumns, ordinals) = spec match {
      case TimestampAsPrefixKeyStateEncoderSpec(_) => ("timestamp-prefix", 0, Nil)
      case TimestampAsPostfixKeyStateEncoderSpec(_) => ("timestamp-postfix", 0, Nil)
      case _: NoPrefixKeyStateEncoderSpec => ("no-prefix", 0, Nil)
      case s: PrefixKeyScanStateEncoderSpec => ("prefix", s.numColsPrefixKey, Nil)
      case s: RangeKeyScanStateEncoderSpec => ("range", 0, s.orderingOrdinals)
    }
    node.put("encoder", encoder).put("num_prefix_columns", numPrefixColumns)
    val array = node.putArray("ordering_ordinals")
    ordinals.foreach(array.add(_))
    node.put("multi_values", multiValues).put("internal", internal)
    if (evolves) {
      val schemas = node.putObject("value_schemas")
      valueSchemas.toSeq.sortBy(_._1).foreach { case (id, schema) =>
        schemas.put(id.toString, schema.json)
      }
    }
    node
  }

  /**
   * What would make stored bytes unreadable: types and encoder, not names or nullability. Which
   * value schemas one may come after another is Spark's to say, and it has said so before; but
   * that values get an end, or have none any more, Avro's rules allow by chance.
   */
  def sameLayout(other: ColumnFamily): Boolean =
    sameTypes(spec.keySchema, other.spec.keySchema) && evolves == other.evolves &&
      (evolves && hasExpiry == other.hasExpiry || sameTypes(valueSchema, other.valueSchema)) &&
      withoutSchema(toJson) == withoutSchema(other.toJson)

  /** Whether a value is a row beside the time when it expires: no row of Avro's that has none. */
  private def hasExpiry: Boolean =
    valueSchema.fieldNames.sameElements(Array("value", "ttlExpirationMs"))

  private def withoutSchema(json: ObjectNode): ObjectNode = {
    json.remove(java.util.Arrays.asList(
      "id", "name", "key_schema", "value_schema", "value_schemas", "internal"))
    json
  }

  /** One line for error messages. */
  def describe: String =
    s"key=${spec.keySchema.simpleString} value=${valueSchema.simpleString} " +
      s"encoder=${toJson.get("encoder").asText} multiValues=$multiValues"
}

private[statestore] object ColumnFamily {

  val DefaultId = 0

  /** Whether two schemas have the same columns, whatever may be null in them. */
  def isSame(one: StructType, other: StructType): Boolean =
    sameTypes(one, other) && one.catalogString == other.catalogString

  private def sameTypes(left: StructType, right: StructType): Boolean =
    DataType.equalsStructurally(left, right, ignoreNullability = true)

  def fromJson(node: ObjectNode): ColumnFamily = {
    val keySchema = schema(node, "key_schema")
    val ordinals = node.get("ordering_ordinals")
    val spec = node.get("encoder").asText match {
      case "no-prefix" => NoPrefixKeyStateEncoderSpec(keySchema)
      case "prefix" =>
        PrefixKeyScanStateEncoderSpec(keySchema, node.get("num_prefix_columns").asInt)
      case "range" =>
        RangeKeyScanStateEncoderSpec(keySchema, (0 until ordinals.size).map(ordinals.get(_).asInt))
      case "timestamp-prefix" => TimestampAsPrefixKeyStateEncoderSpec(keySchema)
      case "timestamp-postfix" => TimestampAsPostfixKeyStateEncoderSpec(keySchema)
    }
    ColumnFamily(
      node.get("id").asInt,
      node.get("name").asText,
      spec,
      schema(node, "value_schema"),
      node.get("multi_values").asBoolean,
      node.get("internal").asBoolean,
      valueSchemas(node))
  }

  private def valueSchemas(node: ObjectNode): Map[Short, StructType] =
    Option(node.get("value_schemas")).filterNot(_.isNull).fold(Map.empty[Short, StructType]) {
      _.fieldNames.asScala.map { id =>
        id.toShort -> schema(node.get("value_schemas").asInstanceOf[ObjectNode], id)
      }.toMap
    }

  private def schema(node: ObjectNode, field: String): StructType =
    DataType.fromJson(node.get(field).asText).asInstanceOf[StructType]
}

/**
 * Turns key rows into key bytes and back. `encode` leaves its result in `base`, `at` and `length`,
 * valid until the next call; rows it returns are the caller's. Not thread-safe: one per handle.
 */
private[statestore] final class KeyCodec(family: ColumnFamily) {
  private val numFields = family.spec.keySchema.length
  private val encoder: RocksDBKeyStateEncoder =
    if (!family.ordered) null
    else {
      family.spec.toEncoder(new UnsafeRowDataEncoder(family.spec, family.valueSchema), true)
    }

  var base: AnyRef = _
  var at: Long = 0L
  var length: Int = 0

  def encode(key: UnsafeRow): Unit =
    if (encoder == null) {
      base = key.getBaseObject
      at = key.getBaseOffset
      length = key.getSizeInBytes
    } else {
      val bytes = encoder.encodeKey(key)
      base = bytes
      at = Platform.BYTE_ARRAY_OFFSET.toLong
      length = bytes.length
    }

  /** The key of a record as a row of its own; over the page itself where the key is the row. */
  def decode(pages: RecordPages, address: Int): UnsafeRow =
    decode(pages.base(address), pages.keyOffset(address), pages.keyLength(address))

  def decode(keyBase: AnyRef, keyAt: Long, keyLength: Int): UnsafeRow =
    if (encoder == null) {
      val row = new UnsafeRow(numFields)
      row.pointTo(keyBase, keyAt, keyLength)
      row
    } else {
      val bytes = new Array[Byte](keyLength)
      val to = Platform.BYTE_ARRAY_OFFSET.toLong
      Platform.copyMemory(keyBase, keyAt, bytes, to, keyLength.toLong)
      encoder.decodeKey(bytes).copy()
    }

  def supportsPrefixScan: Boolean = encoder != null && encoder.supportPrefixKeyScan

  def supportsRangeScan: Boolean = encoder != null && SparkVersion.supportsRangeScan(encoder)

  def supportsDeleteRange: Boolean = encoder != null && SparkVersion.supportsDeleteRange(encoder)

  def encodePrefix(prefix: UnsafeRow): Array[Byte] = encoder.encodePrefixKey(prefix)

  def encodeBound(key: UnsafeRow): Array[Byte] = encoder.encodeKey(key)
}

private[statestore] object KeyCodec {

  /**
   * The smallest byte string above every one that starts with `prefix`; null when there is none.
   */
  def afterPrefix(prefix: Array[Byte]): Array[Byte] = {
    var last = prefix.length - 1
    while (last >= 0 && prefix(last) == -1) last -= 1
    if (last < 0) {
      null
    } else {
      val bound = java.util.Arrays.copyOf(prefix, last + 1)
      bound(last) = (bound(last) + 1).toByte
      bound
    }
  }
}
