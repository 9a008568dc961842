package io.statestore.engine

import java.io.{File, IOException}
import java.nio.charset.StandardCharsets.UTF_8

import org.slf4j.LoggerFactory

import org.apache.spark.SPARK_VERSION

/**
 * Whether a Spark that no jar is made for has all that this jar names. The package in the jar looks
 * it up, with the Python of the engines, once in a JVM.
 */
private[statestore] object SparkFit {
  private val log = LoggerFactory.getLogger(getClass.getName.stripSuffix("$"))
  private val NumNamed = 3

  /**
   * Warns once where it fits, and else refuses.
   *
   * @param madeFor the Spark of this jar
   * @param sparks those that there is a jar for
   * @throws java.lang.IllegalStateException names what is missing
   */
  def require(madeFor: String, sparks: Seq[String]): Unit = if (missing.nonEmpty) {
    throw new IllegalStateException(
      "[wrong-spark] the jar of the state store does not fit this Spark, which lacks what its " +
        s"code names: spark='$SPARK_VERSION', jar='$madeFor', missing=${missing.size}, " +
        s"first='${missing.take(NumNamed).mkString("; ")}'. To fix: use Apache Spark " +
        s"${sparks.head} to ${sparks.last}, or a release of statestore that has a jar for this one")
  }

  private lazy val missing: Seq[String] = {
    val found =
      try look()
      catch {
        case e @ (_: IOException | _: LinkageError) => Seq(s"it cannot be looked up: $e")
      }
    if (found.isEmpty) {
      log.warn(
        "no jar of the state store is made for this Spark, and this one has all that it needs: " +
          s"spark=$SPARK_VERSION. To fix: use a release of statestore that has a jar for it")
    }
    found
  }

  /** Lines of the look-up, without the descriptors that are behind a parenthesis. */
  private def look(): Seq[String] = {
    val shim = new File(getClass.getProtectionDomain.getCodeSource.getLocation.toURI).getPath
    val jars = sys.props("java.class.path").split(File.pathSeparatorChar).toSeq
      .filter(path => path.endsWith(".jar") && new File(path).isFile)
    val scratch = ScratchDirectory.create(Seq(sys.props("java.io.tmpdir")))
    try {
      val module = Seq("-m", "statestore.io.link_check", shim)
      val launch =
        EngineLaunch.prepare("embedded", scratch.path).copy(arguments = module ++ jars)
      val process = launch.processBuilder().redirectErrorStream(true).start()
      process.getOutputStream.close()
      val lines = new String(process.getInputStream.readAllBytes(), UTF_8).linesIterator.toSeq
      val exitCode = process.waitFor()
      if (exitCode == 0) Nil
      else if (lines.isEmpty) Seq(s"it cannot be looked up: exit_code=$exitCode")
      else lines.map(_.takeWhile(_ != '('))
    } finally scratch.remove()
  }
}
