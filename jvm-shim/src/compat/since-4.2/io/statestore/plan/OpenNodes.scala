package io.statestore.plan

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming._
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.streaming.{OutputMode, TimeMode}
import org.apache.spark.sql.types.StructType

/**
 * Puts nodes of transformWithState in the place of Spark's that ask for no provider by its name:
 * since Spark 4.2, `TransformWithStateExecBase.validateStateStoreProvider` takes its RocksDB one
 * only. Everything else about a node is Spark's own.
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
