package io.statestore.plan

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
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
  private val OurPackage = "io.statestore."

  private object Open extends Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan =
      if (SQLConf.get.stateStoreProviderClass.startsWith(OurPackage)) {
        plan.transformUp { case node => OpenNodes.open(node) }
      } else {
        plan
      }
  }

  // Spark plans every batch anew and asks for this each time.
  override def preColumnarTransitions: Rule[SparkPlan] = Open
}
