package io.statestore.keygroup

import org.apache.spark.sql.catalyst.expressions.{BoundReference, Expression, GetStructField}
import org.apache.spark.sql.catalyst.expressions.{MutableProjection, SpecificInternalRow, UnsafeRow}
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateMutableProjection
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{IntegerType, NullType, StructType}

/** Key group of a state key. Not thread-safe: one per store handle. */
abstract class KeyGroupFunction {

  /** Key group in [0, max parallelism) of a key laid out as the encoder's key schema says. */
  def apply(key: UnsafeRow): Int
}

/**
 * Which columns of a state key Spark partitioned the input by, told from what a provider is given:
 * store name, column family and key encoder. Every operator's layout is a case here; where none
 * fits, the rows' key groups disagree with their state partition and the store says so itself.
 */
object PartitionKey {
  private val JoinIndexed = "-keyWithIndexToValue"
  private val EventTime = "__event_time"
  private val TtlPrefix = "$ttl_"

  /**
   * Key-group function over the state keys of one column family.
   *
   * @param spec its key schema is the layout of the keys
   */
  def function(
      storeName: String,
      useColumnFamilies: Boolean,
      columnFamily: String,
      spec: KeyStateEncoderSpec,
      maxParallelism: Int): KeyGroupFunction =
    columns(storeName, useColumnFamilies, columnFamily, spec) match {
      case Nil => SinglePartition
      case expressions => new HashedKeyGroup(expressions, maxParallelism)
    }

  /**
   * Partition-key columns as expressions over the state key. Empty where all state is in state
   * partition 0: no key columns, or none that holds anything.
   */
  def columns(
      storeName: String,
      useColumnFamilies: Boolean,
      columnFamily: String,
      spec: KeyStateEncoderSpec): Seq[Expression] = {
    val schema = spec.keySchema
    val joinStore = if (useColumnFamilies) columnFamily else storeName
    val all = schema.indices.map(column(schema, _))
    val partitionKey = spec match {
      case _ if schema.fieldNames.lastOption.contains(EventTime) && isTimestamped(spec) =>
        all.init
      case _: NoPrefixKeyStateEncoderSpec if joinStore.endsWith(JoinIndexed) => all.init
      // Map state and the timers of a key: the first column is the grouping key.
      case _: PrefixKeyScanStateEncoderSpec if useColumnFamilies => all.take(1)
      // Session windows: the last column is the start of the session.
      case PrefixKeyScanStateEncoderSpec(_, prefixColumns) => all.take(prefixColumns)
      // Timers by time and expiry indexes: the second column holds the grouping key.
      case _: RangeKeyScanStateEncoderSpec if useColumnFamilies && schema.length == 2 =>
        Seq(expiringKey(columnFamily, schema))
      case _ => all
    }
    if (partitionKey.forall(holdsNothing)) Nil else partitionKey
  }

  private def isTimestamped(spec: KeyStateEncoderSpec): Boolean = spec match {
    case TimestampAsPrefixKeyStateEncoderSpec(_) | TimestampAsPostfixKeyStateEncoderSpec(_) => true
    case _ => false
  }

  /** The expiry index of a map state holds (grouping key, user key) where others hold the key. */
  private def expiringKey(columnFamily: String, schema: StructType): Expression = {
    val element = column(schema, 1)
    schema(1).dataType match {
      case StructType(Array(key, userKey))
          if columnFamily.startsWith(TtlPrefix) && key.name == "key" && userKey.name == "userKey" &&
            key.dataType.isInstanceOf[StructType] && userKey.dataType.isInstanceOf[StructType] =>
        GetStructField(element, 0)
      case _ => element
    }
  }

  private def column(schema: StructType, ordinal: Int): Expression =
    BoundReference(ordinal, schema(ordinal).dataType, nullable = true)

  private def holdsNothing(expression: Expression): Boolean = expression.dataType match {
    case NullType => true
    case struct: StructType => struct.isEmpty
    case _ => false
  }

  private object SinglePartition extends KeyGroupFunction {
    override def apply(key: UnsafeRow): Int = 0
  }

  /** Spark's own partition function with key groups for partitions. */
  private final class HashedKeyGroup(columns: Seq[Expression], maxParallelism: Int)
      extends KeyGroupFunction {
    // A row of its own type keeps the result unboxed.
    private[this] val result = new SpecificInternalRow(Seq(IntegerType))
    private[this] val projection: MutableProjection = GenerateMutableProjection
      .generate(Seq(HashPartitioning(columns, maxParallelism).partitionIdExpression))
      .target(result)

    override def apply(key: UnsafeRow): Int = {
      projection(key)
      result.getInt(0)
    }
  }
}
