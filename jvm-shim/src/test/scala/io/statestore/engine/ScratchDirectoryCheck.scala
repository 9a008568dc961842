package io.statestore.engine

import java.io.File

import scala.util.Try

import io.statestore.ShimErrors
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * Makes a scratch directory in one of two, on a thread that is killed meanwhile. Prints what is
 * raised, what Spark sees of it, and how many directories are left.
 */
object ScratchDirectoryCheck {
  def main(args: Array[String]): Unit = {
    val parents = Seq("first", "second").map(new File(args(0), _))
    def create() = ScratchDirectory.create(parents.map(_.getPath))
    create().remove() // loads what logs
    Thread.currentThread().interrupt()
    val raised = Try(create()).failed.get
    Thread.interrupted()
    val store = StateStoreId(args(0), 0L, 0)
    Seq(raised, ShimErrors.cannotLoad("filesystem", store, raised))
      .foreach(error => println(error.getClass.getSimpleName))
    println(parents.flatMap(parent => Option(parent.list)).flatten.size)
  }
}
