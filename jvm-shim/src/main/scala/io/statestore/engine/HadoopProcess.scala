package io.statestore.engine

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8

import io.statestore.Json
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.sql.execution.streaming.state.StateStoreInternals
import org.apache.spark.sql.internal.SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS

/**
 * Hadoop's file systems for operations, which run where no query does: docs/protocol.md, "Files of
 * Hadoop's file systems". `statestore/io/hadoop_process.py` starts it through spark-submit, so
 * that it has the Hadoop configuration and the jars that a query of this machine has.
 */
object HadoopProcess {

  def main(arguments: Array[String]): Unit = {
    require(arguments.isEmpty, "takes no arguments")
    // Threads of a file system's jar may not keep the process: it ends here, however it does.
    val status =
      try {
        serve()
        0
      } catch {
        case e: Throwable =>
          e.printStackTrace()
          1
      }
    System.exit(status)
  }

  private def serve(): Unit = {
    val stdin = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    val configuration = StateStoreInternals.hadoopConfiguration()
    // A session hands this one on, too, to what writes its files.
    val manager = STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
    sys.props.get(manager).foreach(configuration.set(manager, _))
    // Not arguments, which every user of the machine can read.
    Json.readObject(stdin.readLine()).properties()
      .forEach(field => configuration.set(field.getKey.stripPrefix(Prefix), field.getValue.asText))
    UserGroupInformation.setConfiguration(configuration)
    val server = new FileServer
    server.files.register("", configuration, isOfQuery = false)
    System.out.write(s"READY ${Json.write(server.address)}\n".getBytes(UTF_8))
    System.out.flush()
    // It lives as long as who started it.
    while (stdin.readLine() != null) {}
    server.close()
  }

  private val Prefix = "spark.hadoop."
}
