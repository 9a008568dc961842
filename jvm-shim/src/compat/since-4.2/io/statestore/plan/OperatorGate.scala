package io.statestore.plan

import io.statestore.Backends

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.RealTimeTrigger
import org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist
import org.apache.spark.sql.execution.streaming.state.{QueryProviders, StateStoreInternals}
import org.apache.spark.sql.internal.SQLConf

/**
 * Lets `transformWithState` run over this package's providers, which Spark 4.2 and 4.3 refuse by
 * the name of their class. Spark finds it by its name in the jar's `META-INF/services`, for every
 * session of an application; a plan over another provider is left as it is, and no class of the
 * plan's own kind is loaded for it.
 */
final class OperatorGate extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar(_ => OperatorGate)
}

private object OperatorGate extends ColumnarRule {
  private object Open extends Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan = {
      val conf = SQLConf.get
      val isOurs = Backends.isOurs(conf.stateStoreProviderClass)
      val opened =
        if (isOurs) plan.transformUp { case node => OpenNodes.open(node) }
        else plan
      if (isOurs || conf.contains(QueryProviders.Key)) checkRealTime(plan, opened)
      opened
    }
  }

  /**
   * Spark knows what it runs in real-time mode by the names of classes, of which those put in here
   * are none. A session that is to run them tells it not to look; so it is asked here, about the
   * plan that is all its own.
   */
  private def checkRealTime(plan: SparkPlan, opened: SparkPlan): Unit = for {
    (query, session) <- StateStoreInternals.plannedQuery
    if query.trigger.isInstanceOf[RealTimeTrigger]
  } {
    RealTimeModeAllowlist.checkAllowedSink(query.sink, throwException = true)
    RealTimeModeAllowlist.checkAllowedPhysicalOperator(plan, throwException = true)
    val check = SQLConf.STREAMING_REAL_TIME_MODE_ALLOWLIST_CHECK
    if ((opened ne plan) && session.sessionState.conf.getConf(check)) {
      throw new IllegalArgumentException(
        "[invalid-option] Spark would refuse transformWithState in real-time mode over a " +
          s"provider of this package, by the name of a class: ${check.key}=true. To fix: set it " +
          "to false; what else Spark refuses it still does")
    }
  }

  // Spark plans every batch anew and asks for this each time.
  override def preColumnarTransitions: Rule[SparkPlan] = Open
}
