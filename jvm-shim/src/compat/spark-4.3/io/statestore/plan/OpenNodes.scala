package io.statestore.plan

import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming._
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TimeMode}
import org.apache.spark.sql.types.StructType

/**
 * Puts nodes of transformWithState in the place of Spark's that ask for no provider by its name:
 * `TransformWithStateExecBase.validateStateStoreProvider` of Spark 4.3 takes its RocksDB one only.
 * Everything else about a node is Spark's own.
 */
private[plan] object OpenNodes {

  /** The node that stands for one of a plan; most stand for themselves. */
  def open(node: SparkPlan): SparkPlan = node match {
    case _: OpenTransformWithStateInPySpark | _: OpenTransformWithState => node
    case python: TransformWithStateInPySparkExec if python.isStreaming =>
      reopen(python, classOf[OpenTransformWithStateInPySpark])
    case scala: TransformWithStateExec if scala.isStreaming =>
      reopen(scala, classOf[OpenTransformWithState])
    case _ => node
  }

  /** Makes a node of a subclass, whose constructor takes what the node's does. */
  def reopen[T <: SparkPlan](node: SparkPlan, to: Class[T]): T = {
    val arguments = node.productIterator.map(_.asInstanceOf[AnyRef]).toArray
    val made = to.cast(to.getConstructors.head.newInstance(arguments: _*))
    made.copyTagsFrom(node)
    node.logicalLink.foreach(made.setLogicalLink)
    made
  }
}

/**
 * The node of Python's transformWithState. Its constructor takes what the base's does, in that
 * order.
 */
final class OpenTransformWithStateInPySpark(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outputAttrs: Seq[Attribute],
    outputMode: OutputMode,
    timeMode: TimeMode,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    userFacingDataType: TransformWithStateInPySpark.UserFacingDataType.Value,
    child: SparkPlan,
    isStreaming: Boolean,
    hasInitialState: Boolean,
    initialState: SparkPlan,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateSchema: StructType)
    extends TransformWithStateInPySparkExec(
      functionExpr, groupingAttributes, outputAttrs, outputMode, timeMode, stateInfo,
      batchTimestampMs, prevBatchTimestampMs, eventTimeWatermarkForLateEvents,
      eventTimeWatermarkForEviction, userFacingDataType, child, isStreaming, hasInitialState,
      initialState, initialStateGroupingAttrs, initialStateSchema) {

  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateInPySparkExec =
    OpenNodes.reopen(
      copy(child = newLeft, initialState = newRight), classOf[OpenTransformWithStateInPySpark])

  // A rule's result that equals what it was given is taken for that.
  override def canEqual(other: Any): Boolean = other.isInstanceOf[OpenTransformWithStateInPySpark]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode
}

/** The node of Scala's and Java's transformWithState, made in the same way. */
final class OpenTransformWithState(
    keyDeserializer: Expression,
    valueDeserializer: Expression,
    groupingAttributes: Seq[Attribute],
    dataAttributes: Seq[Attribute],
    statefulProcessor: StatefulProcessor[Any, Any, Any],
    timeMode: TimeMode,
    outputMode: OutputMode,
    keyEncoder: ExpressionEncoder[Any],
    outputObjAttr: Attribute,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    child: SparkPlan,
    isStreaming: Boolean,
    isRealTimeMode: Boolean,
    hasInitialState: Boolean,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateDataAttrs: Seq[Attribute],
    initialStateDeserializer: Expression,
    initialState: SparkPlan)
    extends TransformWithStateExec(
      keyDeserializer, valueDeserializer, groupingAttributes, dataAttributes, statefulProcessor,
      timeMode, outputMode, keyEncoder, outputObjAttr, stateInfo, batchTimestampMs,
      prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction, child,
      isStreaming, isRealTimeMode, hasInitialState, initialStateGroupingAttrs,
      initialStateDataAttrs, initialStateDeserializer, initialState) {

  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateExec =
    OpenNodes.reopen(
      copy(child = newLeft, initialState = newRight), classOf[OpenTransformWithState])

  override def canEqual(other: Any): Boolean = other.isInstanceOf[OpenTransformWithState]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode
}
