package io.statestore.testing

import org.apache.spark.TaskContext
import org.apache.spark.sql.{DataFrame, Row}

/** Tasks that fail at their first attempt. */
object FailingTasks {

  /**
   * A stateful operator commits when its output is drained: failing then is failing after the
   * commit.
   */
  def failFirstAttempt(rows: DataFrame, afterCommit: Boolean): DataFrame =
    rows.mapPartitions { (input: Iterator[Row]) =>
      val fails = TaskContext.get().attemptNumber() == 0
      def failWhen(condition: Boolean): Unit =
        if (fails && condition) {
          throw new IllegalStateException("the task fails at its first attempt")
        }
      new Iterator[Row] {
        override def hasNext: Boolean = {
          val more = input.hasNext
          failWhen(if (afterCommit) !more else more)
          more
        }
        override def next(): Row = input.next()
      }
    }(rows.encoder)
}
