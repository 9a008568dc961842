package io.statestore.provider

import java.util.concurrent.LinkedBlockingQueue

import scala.jdk.CollectionConverters._
import scala.util.Try

import io.statestore.ShimOptions
import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.apache.spark.sql.internal.SQLConf

/**
 * Begins a lease while the driver is asked which of the runs before are active. Prints the runs
 * that it is asked about next, how many threads of leases know a thread local of who made them, and
 * whether a lease is old by either clock.
 */
object LeasesCheck {
  def main(args: Array[String]): Unit = {
    val conf = new SparkConf()
      .setMaster("local[1]").setAppName("leases").set("spark.ui.enabled", "false")
      .set("spark.pyspark.python", "python-that-is-not-there") // no engine is needed
    val spark = new SparkContext(conf)
    asExecutor(SparkEnv.get)
    // Nobody answers where no query over this package was planned: a read within `foreachBatch`.
    require(!contextOf("reader").isOfQuery)
    val contexts = Seq("first", "second").map(contextOf)
    val questions = new LinkedBlockingQueue[String]
    StateStoreInternals.answerQuestions(SparkEnv.get, "statestore-query-runs") { question =>
      if (!question.contains("*")) {
        if (questions.isEmpty) hold(contexts.last)
        questions.add(question)
      }
      question.getBytes
    }
    contexts.foreach(context => require(context.isOfQuery)) // asks the driver, too
    mark.set("of the thread that runs the first query")
    hold(contexts.head)
    questions.take()
    println(questions.take().split(' ').sorted.mkString(" "))
    println(Thread.getAllStackTraces.keySet.asScala.count(
      thread => thread.getName == "statestore-leases" && inherits(thread)))
    val now = Leases.Moment.now()
    val minuteAgo =
      Seq(now.copy(elapsedMs = now.elapsedMs - 60000), now.copy(unixMs = now.unixMs - 60000))
    println(minuteAgo.map(_.ageMs >= 60000).mkString(" "))
    spark.stop()
  }

  private val mark = new InheritableThreadLocal[String]

  private def inherits(thread: Thread): Boolean = {
    val field = classOf[Thread].getDeclaredField("inheritableThreadLocals")
    field.setAccessible(true)
    Option(field.get(thread)).exists { locals =>
      val entry = locals.getClass.getDeclaredMethod("getEntry", classOf[ThreadLocal[_]])
      entry.setAccessible(true)
      entry.invoke(locals, mark) != null
    }
  }

  private def hold(context: StoreContext): Unit = require(Try(Leases.hold(context)).isFailure)

  /** An executor, that has to ask. */
  private def asExecutor(env: SparkEnv): Unit = {
    val id = classOf[SparkEnv].getDeclaredField("executorId")
    id.setAccessible(true)
    id.set(env, "1")
  }

  private def contextOf(run: String): StoreContext = {
    val hadoopConf = new Configuration(false)
    hadoopConf.set("sql.streaming.runId", run)
    hadoopConf.set(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL.key, "1")
    new StoreContext(
      "filesystem",
      StateStoreId(s"file:/$run", 0L, 0),
      defaultFamily = null,
      useColumnFamilies = false,
      schemas = None,
      StateStoreConf.empty,
      hadoopConf,
      ShimOptions.parse(Map.empty))
  }
}
