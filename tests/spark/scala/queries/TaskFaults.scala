package io.statestore.testing

import java.nio.file.{Files, Path, Paths}

import org.apache.spark.sql.{DataFrame, Encoders}

/** Faults of tasks, each made by the one task that takes a file of its name away. */
object TaskFaults {
  private val SlowMs = 6000L

  /**
   * The rows of a batch as JSON. A stateful operator commits when its output is drained: what
   * happens `after` happens to a task whose store has committed.
   *
   * @param directory where `fail-before`, `fail-after`, `slow-before` and `slow-after` are put
   */
  def collect(rows: DataFrame, directory: String): Array[String] =
    rows.toJSON.mapPartitions { (input: Iterator[String]) =>
      val faults = Paths.get(directory)
      def happen(when: String): Unit = {
        if (take(faults.resolve(s"slow-$when"))) Thread.sleep(SlowMs)
        if (take(faults.resolve(s"fail-$when"))) {
          throw new IllegalStateException(s"a task is to fail, $when its store has committed")
        }
      }
      happen("before")
      new Iterator[String] {
        private[this] var isDrained = false
        override def hasNext: Boolean = {
          val more = input.hasNext
          if (!more && !isDrained) {
            isDrained = true
            happen("after")
          }
          more
        }
        override def next(): String = input.next()
      }
    }(Encoders.STRING).collect()

  private def take(path: Path): Boolean = Files.deleteIfExists(path)
}
