package io.statestore.engine

import scala.util.Try

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/** Asks a driver that does not answer in time; prints what is raised. */
object SilentDriverCheck {
  private val name = "silent"

  def main(args: Array[String]): Unit = {
    val conf = new SparkConf()
      .setMaster("local[1]").setAppName(name)
      .set("spark.ui.enabled", "false").set("spark.rpc.askTimeout", "1s")
    val spark = new SparkContext(conf)
    val env = SparkEnv.get
    StateStoreInternals.answerQuestions(env, name) { question =>
      Thread.sleep(question.toLong)
      question.getBytes
    }
    Seq("0", "3000").foreach { delay =>
      println(Try(StateStoreInternals.askDriver(env, name, delay).get.length))
    }
    spark.stop()
  }
}
