package io.statestore.engine

import io.statestore.Json
import org.apache.hadoop.conf.Configuration

/** Publishes a local file, by Hadoop, on a disk that has no room for it. Prints the answer. */
object FullHadoopDiskCheck {
  def main(args: Array[String]): Unit = {
    val files = new HadoopFiles
    files.register("file:/own", new Configuration(false), isOfQuery = true)
    val request = Json.obj().put("op", "publish").put("checkpoint", "file:/own")
      .put("local_path", args(0)).put("path", s"file:${args(1)}").put("overwrite", true)
    println(files.answer(request))
  }
}
