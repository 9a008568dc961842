package io.statestore.engine

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8

import io.statestore.Json
import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkConf

/**
 * Hadoop's file systems for operations, which run where no query does: docs/protocol.md, "Files of
 * Hadoop's file systems". `statestore/io/hadoop_process.py` starts it through spark-submit, so
 * that it has the Hadoop configuration and the jars that a query of this machine has.
 */
object HadoopProcess {

  def main(arguments: Array[String]): Unit = {
    require(arguments.isEmpty, "takes no arguments")
    val stdin = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    val configuration = new Configuration()
    new SparkConf().getAllWithPrefix(Prefix).foreach { case (key, value) =>
      configuration.set(key, value)
    }
    // Not arguments, which every user of the machine can read.
    Json.readObject(stdin.readLine()).properties()
      .forEach(field => configuration.set(field.getKey.stripPrefix(Prefix), field.getValue.asText))
    val server = new FileServer
    server.register("", configuration)
    val ready = Json.obj().put("port", server.port).put("token", server.token)
    System.out.write(s"READY ${Json.write(ready)}\n".getBytes(UTF_8))
    System.out.flush()
    // It lives as long as who started it.
    while (stdin.readLine() != null) {}
    server.close()
  }

  private val Prefix = "spark.hadoop."
}
